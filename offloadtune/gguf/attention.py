"""Heads and sliding windows of every block, as llama.cpp reads them (src/models, `load_swa_pattern`)."""

from __future__ import annotations

from offloadtune.gguf.header import Header, is_count, shown
from offloadtune.gguf.opening import damaged

_PERIODS = {
    "afmoe": 4,
    "cohere2": 4,
    "cohere2moe": 4,
    "deepseek4": 0,
    "exaone-moe": 4,
    "exaone4": 4,
    "gemma-embedding": 6,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "laguna": 4,
    "llama4": 4,
    "mellum": 4,
    "modern-bert": 3,
    "muse-glimmer": 4,
    "olmo2": 4,
    "plamo3": 8,
    "smallthinker": 4,
}
"""Of so many blocks in a row one attends to everything; 0: none does."""

_DENSE_FIRST = {"cohere2moe", "laguna", "modern-bert", "smallthinker"}
"""Here the first block of a period attends to everything, elsewhere the last."""

_DEFAULT_WINDOWS = {"exaone-moe": 128, "exaone4": 4096, "gemma2": 4096, "llama4": 8192}
_FIXED_WINDOWS = {"llama4": 8192, "smallthinker": 4096}
_WINDOW_IGNORED = {"phi3"}
_N_LAYER_EXAONE4_SWA = 64


def per_block(header: Header, key: str, n_layer: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """The count of every block under `key`, which holds one number for all or an array. Raises GgufError."""
    if key not in header.key_values:
        return default
    value = header.key_values[key]
    if key not in header.array_lengths:
        return (header.count(key),) * n_layer
    if header.array_lengths[key] != n_layer or not all(map(is_count, value)):
        raise damaged(header.path, f"its {shown(key)} is {shown(value)}, not one count for each of {n_layer} blocks")
    return tuple(value)


def head_sizes(header: Header, arch: str, n_embd: int, n_head: tuple[int, ...]) -> tuple[int, int]:
    """(n_embd_head_k, n_embd_head_v): from their keys, else n_embd divided by the largest head count."""
    default = n_embd // max(n_head) if max(n_head) else 0
    n_embd_head_k = header.count(f"{arch}.attention.key_length", default=default)
    return n_embd_head_k, header.count(f"{arch}.attention.value_length", default=default)


def sliding_window(header: Header, arch: str, n_layer: int, n_layer_nextn: int) -> tuple[int, tuple[bool, ...]]:
    """(n_swa in tokens, whether each block slides); (0, all False) where llama.cpp attends to everything."""
    n_swa = _window(header, arch, n_layer)
    is_swa = _pattern(header, arch, n_layer, n_layer_nextn) if n_swa else (False,) * n_layer
    return (n_swa if any(is_swa) else 0), is_swa


def _window(header: Header, arch: str, n_layer: int) -> int:
    if arch in _WINDOW_IGNORED or (arch == "exaone4" and n_layer != _N_LAYER_EXAONE4_SWA):
        return 0
    n_swa = header.count(f"{arch}.attention.sliding_window", default=_DEFAULT_WINDOWS.get(arch, 0))
    return _FIXED_WINDOWS.get(arch, n_swa) if n_swa else 0


def _pattern(header: Header, arch: str, n_layer: int, n_layer_nextn: int) -> tuple[bool, ...]:
    key = f"{arch}.attention.sliding_window_pattern"
    value = header.key_values.get(key)
    if isinstance(value, tuple):
        flags = [bool(flag) for flag in value[:n_layer]]
        return tuple(flags + [False] * (n_layer - len(flags)))
    if value is None and arch not in _PERIODS:
        return (False,) * n_layer
    period = header.count(key, default=_PERIODS.get(arch))
    dense = 0 if arch in _DENSE_FIRST else period - 1
    n_trunk = n_layer - n_layer_nextn
    return tuple(i < n_trunk and (period == 0 or i % period != dense) for i in range(n_layer))

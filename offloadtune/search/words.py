"""Settings in words: what some have otherwise than others, for whoever says why they are tried, won or lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from offloadtune.records import Settings
from offloadtune.units import format_count, format_split

_WITH_THEIR_LAYERS = "all experts with their layers"
_FFN_WITH_THEIR_LAYERS = "all feed-forward weights with their layers"


def _ffn_words(n: int) -> str:
    away = f"the feed-forward weights of {format_count(n, 'block')} in main memory"
    return away if n else _FFN_WITH_THEIR_LAYERS


_VARIED: dict[str, Callable[[Any], str]] = {
    "n_cpu_moe": lambda n: f"the experts of {format_count(n, 'block')} in main memory" if n else _WITH_THEIR_LAYERS,
    "n_cpu_ffn": _ffn_words,
    "n_ctx": lambda n: f"n_ctx {n}",
    "n_ubatch": lambda n: f"n_ubatch {n}",
    "flash_attn_type": lambda kind: f"flash attention {kind}",
    "n_threads": lambda n: f"{format_count(n, 'thread')} for decoding",
    "n_threads_batch": lambda n: f"{format_count(n, 'thread')} for prompts",
    "op_offload": lambda is_on: f"op offload {'on' if is_on else 'off'}",
    "tensor_split": lambda shares: f"split {format_split(shares, ',')}" if shares else "split by free memory",
    "op_offload_min_batch": lambda n: (
        "work lent as the engine has it" if n is None else f"work lent from {n} tokens on"
    ),
    "no_host": lambda is_on: f"main memory {'as the CPU likes it' if is_on else 'pinned for the device'}",
    "offload_kqv": lambda is_on: f"the cache {'with its layers' if is_on else 'in main memory'}",
    "swa_full": lambda is_on: "the whole cache of sliding windows" if is_on else "no cache outside sliding windows",
    "type_k": lambda name: f"K of {name}",
    "type_v": lambda name: f"V of {name}",
}
"""What a search varies besides layers; whatever else differs is written as name=value."""

_OF_DEVICES = {"n_cpu_moe", "n_cpu_ffn", "op_offload", "op_offload_min_batch", "no_host", "offload_kqv", "tensor_split"}
"""What changes nothing without a device."""


def differences(settings: Settings, base: Settings) -> tuple[str, ...]:
    """What `settings` have otherwise than `base`: "12 layers fewer", "n_ubatch 128"; () where nothing."""
    names = [*_VARIED, *(field.name for field in dataclasses.fields(Settings) if field.name not in _VARIED)]
    if settings.devices == ():
        names = [name for name in names if name not in _OF_DEVICES]
    words = list(_changed(settings, base, names))
    if 0 < base.n_cpu_moe != settings.n_cpu_moe > 0 and settings.devices != ():
        n = settings.n_cpu_moe - base.n_cpu_moe
        blocks = f"{abs(n)} {'more' if n > 0 else 'fewer'} {'block' if abs(n) == 1 else 'blocks'}"
        words[words.index(_VARIED["n_cpu_moe"](settings.n_cpu_moe))] = f"the experts of {blocks} in main memory"
    return (*_layers_beside(settings, base), *words)


def what_is_new(settings: Settings, best: Settings, everything: int) -> str:
    """What a search tries beside the best so far, in a few words; `everything` are all layers."""
    words = list(_changed(settings, best, _VARIED))
    if settings.devices == () and best.devices != ():
        words.insert(0, "the CPU alone")
    elif (settings.n_gpu_layers, settings.devices) != (best.n_gpu_layers, best.devices):
        words.insert(0, f"{settings.n_gpu_layers} of {everything} layers on the device")
    return ", ".join(words) or "the best so far with other small settings"


def _changed(settings: Settings, base: Settings, names: Iterable[str]) -> Iterator[str]:
    """The other values of `names`; a batch that only makes room for its ubatch is not told."""
    for name in names:
        value = getattr(settings, name)
        is_told = name in {"devices", "n_gpu_layers"} or (name == "n_batch" and settings.n_ubatch != base.n_ubatch)
        if value != getattr(base, name) and not is_told:
            yield _VARIED[name](value) if name in _VARIED else f"{name}={value}"


def _layers_beside(settings: Settings, base: Settings) -> Iterator[str]:
    n, n_base = settings.n_gpu_layers, base.n_gpu_layers
    names = " and ".join(settings.devices or ()) if settings.devices != base.devices else ""
    if settings.devices == () != base.devices:
        yield "the CPU alone"
    elif base.devices == () != settings.devices or names or min(n, n_base) < 0 <= max(n, n_base):
        yield f"{format_count(n, 'layer') if n >= 0 else 'all layers'} on {names or 'the device'}"
    elif n != n_base:
        yield f"{format_count(abs(n - n_base), 'layer')} {'more' if n > n_base else 'fewer'}"

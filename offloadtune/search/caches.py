"""What may be tried of the cache: where it lies, how much of sliding windows it keeps, and in which type."""

from __future__ import annotations

from offloadtune.footprint import BYTES_OF_32, has_cache
from offloadtune.records import Settings, Target
from offloadtune.search.space import Space

_HEADS = {"q8_0": frozenset(range(32, 1024, 32)), "q4_0": frozenset({64, 128, 256})}
"""Coarser types and the sizes of heads that backends have flash attention for, over K and V of one type."""

KV_NAMES = {BYTES_OF_32[name]: name for name in _HEADS}
"""Bytes of 32 values -> coarser type."""


def kv_types(space: Space, base: Settings) -> list[str]:
    """Types of K and V alike: the front end's own, and coarser ones where the user allows them."""
    own, facts = base.type_v, space.facts
    if not space.allow_kv_quant or base.type_k != own or not has_cache(facts):
        return [own]
    heads = {facts.n_embd_head_k, facts.n_embd_head_v}
    return [own, *(name for name, sizes in _HEADS.items() if heads <= sizes and name != own)]


def offload_states(space: Space, base: Settings) -> list[bool]:
    """With the blocks, and where there are devices in main memory too."""
    return [base.offload_kqv, False] if space.has_devices and base.offload_kqv else [base.offload_kqv]


def window_states(space: Space, base: Settings) -> list[bool]:
    """All that blocks with a sliding window have read, or what the window shows."""
    return [base.swa_full] if why_no_windows(space) else [base.swa_full, not base.swa_full]


def why_no_windows(space: Space) -> str:
    """Why swa_full stays as it is, "" where both are tried.

    `Llama` goes back to what a new prompt shares with the one before, and does not ask whether the windows are still
    there (llama.py, generate); llama-server reads anew what is not.
    """
    if not any(space.facts.is_swa):
        return "the model has no sliding window"
    return "llama-cpp-python needs the whole cache to go back in" if space.target is Target.LLAMA_CPP_PYTHON else ""

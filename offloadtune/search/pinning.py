"""Whether weights in main memory are pinned for a device, or stored as the CPU likes them best.

Where a device offers pinned memory the engine takes that for all weights that stay on the host, before any layout of
the CPU's own (llama-model.cpp, make_cpu_buft_list). With no_host the CPU repacks quantised weights instead, and works
faster; a device cannot work for what is repacked, so op offload then changes nothing.
"""

from __future__ import annotations

from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Settings
from offloadtune.search.space import Space

_MUCH_FRAC = 0.1
"""Of the layers that must lie in main memory, or parts of some: else how the CPU stores the rest hardly counts."""

_FLOAT_TYPES = {"F32", "F16", "BF16"}


def no_hosts(space: Space, base: Settings) -> list[bool]:
    """Values of no_host, that of `base` first."""
    return [base.no_host] if _why_idle(space) else [base.no_host, not base.no_host]


def has_much_on_host(space: Space, n_gpu_layers: Ints, n_blocks_away: Ints) -> Bools:
    return (n_gpu_layers <= (1 - _MUCH_FRAC) * space.everything) | (n_blocks_away > 0)


def why_no_no_host(space: Space) -> str:
    """Why no_host stays as it is, "" where both are tried or the user holds it."""
    return "" if "no_host" in {**space.kept, **space.fixed} else _why_idle(space)


def _why_idle(space: Space) -> str:
    held = {**space.kept, **space.fixed}
    if not space.pins_host:
        return "no device offers pinned memory of the host"
    if not space.repacks or not held.get("use_extra_bufts", True):
        return "the CPU has no layout of its own for weights"
    types = [name for name, _ in space.facts.type_bytes[:1]]
    return "the CPU has no layout of its own for weights that are not quantised" if set(types) <= _FLOAT_TYPES else ""

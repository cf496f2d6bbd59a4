"""What may be tried of each setting: placements, which need a load each, and axes, which do not for the most part.

What the user or the self-test holds takes the place of an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from offloadtune.footprint import has_dense_ffn
from offloadtune.records import Goal, Settings
from offloadtune.search.caches import kv_types, offload_states, window_states
from offloadtune.search.lending import min_batches
from offloadtune.search.pinning import no_hosts
from offloadtune.search.space import Space

_UBATCHES = (64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting that can be tried without another load, and its values in a space."""

    name: str
    values: Callable[[Space, Settings], Sequence[Any]]


def useful_ubatches(space: Space, base: Settings) -> list[int]:
    """Those of which the one before did not take the whole prompt, and the target's own.

    Where only tokens count none is larger than that: it could but take room.
    """
    most = min(2 * space.workload.n_prompt_new - 1, base.n_ctx)
    if not space.counts_reading:
        most = base.n_ubatch
    return sorted({base.n_ubatch, *(n for n in _UBATCHES if n <= most)})


def _thread_counts(space: Space, _base: Settings) -> list[int]:
    """A thread a core; half of that, where memory is the limit; and all that the cores take.

    Without devices threads are most of what there is to choose: then in eighths of the cores, from a quarter.
    """
    cores = space.n_physical_cores
    eighths = (4,) if space.has_devices else range(2, 8)
    return sorted({*(max(cores * n // 8, 1) for n in eighths), cores, space.n_logical_cores})


AXES = (
    Axis(name="n_ubatch", values=useful_ubatches),
    Axis(name="flash_attn_type", values=lambda _, base: (flash_name(base), "disabled")),
    Axis(
        name="op_offload",
        values=lambda space, base: (base.op_offload, not base.op_offload) if space.has_devices else (base.op_offload,),
    ),
    Axis(name="offload_kqv", values=offload_states),
    Axis(name="swa_full", values=window_states),
    Axis(name="type_v", values=kv_types),
    Axis(name="op_offload_min_batch", values=min_batches),
    Axis(name="no_host", values=no_hosts),
)
THREADS = (Axis(name="n_threads", values=_thread_counts), Axis(name="n_threads_batch", values=_thread_counts))


IDLE = {Goal.TTFT: ("n_threads",), Goal.DECODE: ("n_threads_batch",)}
"""What changes nothing that a goal counts, and no memory: to read a prompt, or to write a token."""


def idle_axes(space: Space) -> tuple[str, ...]:
    """What changes nothing that counts: neither for the goal nor for a limit."""
    return () if space.counts_reading and space.counts_writing else IDLE.get(space.goal, ())


def values_of(space: Space, base: Settings, axis: Axis) -> list[Any]:
    """What may be tried of an axis: the one value held, or that does as well as any, or all of them."""
    is_held = axis.name in {**space.kept, **space.fixed} or axis.name in idle_axes(space)
    return [getattr(base, axis.name)] if is_held else list(axis.values(space, base))


def placements_of(space: Space, base: Settings) -> list[tuple[bool, int, int, int]]:
    """(has devices, n_gpu_layers, n_cpu_moe, n_cpu_ffn).

    Whole layers; experts away with all the rest there; all experts away; of dense models all there but feed-forward
    weights, which leaves attention and cache on the device.
    """
    away = (base.n_cpu_moe, base.n_cpu_ffn)
    held = {**space.kept, **space.fixed}
    if not space.has_devices:
        return [(base.devices != (), base.n_gpu_layers, *away)]
    layers = [base.n_gpu_layers] if "n_gpu_layers" in held else list(range(space.everything + 1))
    found = [(True, k, *away) for k in layers]
    n_blocks = space.facts.n_layer
    if space.facts.n_expert and "n_cpu_moe" not in held:
        found += [(True, layers[-1], m, base.n_cpu_ffn) for m in range(1, n_blocks)]
        found += [(True, k, n_blocks, base.n_cpu_ffn) for k in layers]
    if not space.facts.n_expert and has_dense_ffn(space.facts) and "n_cpu_ffn" not in held:
        found += [(True, layers[-1], base.n_cpu_moe, m) for m in range(1, n_blocks + 1)]
    if not held.keys() & {"n_gpu_layers", "devices"}:
        found.append((False, 0, *away))
    return found


def flash_name(base: Settings) -> str:
    return "enabled" if base.flash_attn_type == "disabled" else base.flash_attn_type

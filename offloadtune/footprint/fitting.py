"""Whether settings fit into what devices and main memory have to give, and the largest context that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint.anatomy import Backend, Bools, Ints
from offloadtune.footprint.grid import Grid
from offloadtune.footprint.reckon import Footprints
from offloadtune.plans import DevicePlan, HostPlan
from offloadtune.records import GgufFacts, Settings
from offloadtune.units import format_bytes

COMPUTE_BAND_FRAC = 0.1
"""How far a compute buffer may lie above the rule, as a part of it; measured, see compute.py."""

_MARGIN_FRAC = 0.02
_CELLS_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What there is to give: free bytes and runtime bytes of each device, and what main memory has available.

    `free_bytes` holds None for a device of unknown size; `margin_bytes` is kept free where nobody has measured what
    the driver takes; `shares` decide how many layers each takes.
    """

    names: tuple[str, ...]
    backends: tuple[Backend, ...]
    free_bytes: tuple[int | None, ...]
    runtime_bytes: tuple[int, ...]
    margin_bytes: tuple[int, ...]
    shares: tuple[float, ...]
    available_bytes: int | None = None

    @property
    def is_known(self) -> bool:
        return bool(self.free_bytes) and None not in self.free_bytes


def margin_of(free_bytes: int | None) -> int:
    """What to keep free on a device where no trial has told what its driver takes."""
    return int((free_bytes or 0) * _MARGIN_FRAC)


def fits(found: Footprints, room: Room, *, is_mapped: bool, is_exact: Bools | bool = False) -> Bools:
    """Whether each setting fits on every device of known size and in main memory, shape (n_settings,).

    Where the compute buffers are not exact (`is_exact`, for all or each) there must be room for their band too.
    """
    ok = np.ones(len(found.output_bytes), dtype=np.bool_)
    needed = found.device_bytes + np.where(is_exact, 0, np.ceil(found.compute_bytes * COMPUTE_BAND_FRAC))
    for used, free, runtime, margin in zip(needed, room.free_bytes, room.runtime_bytes, room.margin_bytes, strict=True):
        if free is not None:
            ok &= (used == 0) | (used + runtime + margin <= free)
    if room.available_bytes is not None:
        held = found.host_kv_cache_bytes + found.host_compute_bytes + found.output_bytes
        ok &= held + (0 if is_mapped else found.host_weights_bytes) <= room.available_bytes
    return ok


def largest_contexts(n_ctx_most: int, n_settings: int, do_fit: Callable[[Ints], Bools]) -> Ints:
    """The largest n_ctx for each setting with which it fits, in steps of 256 up to `n_ctx_most`; 0 where none does.

    `do_fit` says for which settings an n_ctx each does.
    """
    low = np.zeros(n_settings, dtype=np.int64)
    high = np.full_like(low, n_ctx_most // _CELLS_STEP)
    while (low < high).any():
        middle = (low + high + 1) // 2
        ok = do_fit(np.maximum(middle, 1) * _CELLS_STEP)
        low, high = np.where(ok, middle, low), np.where(ok, high, middle - 1)
    return low * _CELLS_STEP


def grid_of(facts: GgufFacts, settings: Settings, **arrays: Ints) -> Grid:
    """`settings` with some fields as arrays."""
    names = ["n_cpu_moe", "n_cpu_ffn", "n_batch", "n_ubatch", "n_seq_max", "n_outputs_max"]
    names += ["swa_full", "offload_kqv", "op_offload"]
    one = Grid.of((settings,), facts.n_layer)
    fields = {name: getattr(settings, name) for name in names}
    fields |= {"n_gpu_layers": settings.n_gpu_layers, "n_ctx": settings.n_ctx, "unified": settings.kv_unified}
    fields |= {"k32": one.k32, "v32": one.v32, "flash": one.flash, "splits": one.splits}
    return Grid.over(facts.n_layer, **{**fields, **arrays})


def is_mapped(settings: Settings) -> bool:
    """Whether weights in main memory are pages of the file that the system may drop."""
    return settings.load_mode in {"auto", "mmap"}


def refusals(devices: Sequence[DevicePlan], host: HostPlan) -> list[str]:
    """Why a plan does not fit, a sentence for each device and for main memory."""
    found = []
    for device in devices:
        if device.short_bytes and device.free_bytes is not None:
            has, short = format_bytes(device.free_bytes), format_bytes(device.short_bytes)
            sure = "" if device.total_bytes > device.free_bytes else " of the room that the rule's uncertainty asks for"
            found.append(f"{device.name} has {has} to give and lacks {short}{sure}.")
    if host.available_bytes is not None and host.held_bytes > host.available_bytes:
        short = format_bytes(host.held_bytes - host.available_bytes)
        has = format_bytes(host.available_bytes)
        advice = "" if host.is_mapped else ": mapped from the file, weights need less"
        found.append(f"Main memory has {has} available and lacks {short}{advice}.")
    return found

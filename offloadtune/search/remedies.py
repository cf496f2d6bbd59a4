"""What would make settings fit that have no room: the smallest change first, by the arithmetic of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint import BYTES_OF_32, contradiction, grid_of, is_mapped, largest_contexts, pad_256, reckon
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import GgufFacts, Settings
from offloadtune.speed import next_quant_down
from offloadtune.units import MIB, format_bytes

N_REMEDIES_MOST = 3
_CELLS_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Settings that have no room: devices have `device_bytes` to give, main memory `host_bytes`; None is not known.

    `are_layers_fixed` where n_gpu_layers is as the user wants it; else any number may do. `n_ctx_needed` is what the
    workload fills, `device_taken_bytes` what drivers take besides, 0 where that is not known. `vram_limit_bytes` and
    `ram_limit_bytes` are those that the user set, `device_free_bytes` and `host_free_bytes` what there is besides.
    Weights mapped from the file count in main memory where that is limited.
    """

    facts: GgufFacts
    settings: Settings
    device_bytes: int | None
    host_bytes: int | None
    are_layers_fixed: bool
    n_ctx_needed: int
    device_taken_bytes: int = 0
    vram_limit_bytes: int | None = None
    ram_limit_bytes: int | None = None
    device_free_bytes: int | None = None
    host_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change after which settings fit: in words, as it is done, and which part of what it changes it gives up."""

    words: str
    act: str
    given_up_frac: float


def remedies(lack: Lack) -> tuple[Remedy, ...]:
    """The smallest changes, each of which is enough alone, at most three; none where nothing lacks by arithmetic."""
    if _fits(lack, lack.settings):
        return ()
    found = [one for some in (_context, _layers, _limits, _cache, _weights) for one in some(lack)]
    return tuple(sorted(found, key=lambda one: one.given_up_frac)[:N_REMEDIES_MOST])


def _context(lack: Lack) -> Iterator[Remedy]:
    now = lack.settings.n_ctx
    most = largest_contexts(
        (now - 1) // _CELLS_STEP * _CELLS_STEP,
        1,
        lambda n_ctx: np.array([_fits(lack, lack.settings.replace(n_ctx=int(n_ctx[0])))]),
    )
    if n_ctx := int(most[0]):
        is_too_small = n_ctx < pad_256(lack.n_ctx_needed)
        act = f"--n-ctx {n_ctx}" + " with a smaller --workload" * is_too_small
        yield Remedy(words=f"a context of {n_ctx} instead of {now}", act=act, given_up_frac=1 - n_ctx / now)


def _layers(lack: Lack) -> Iterator[Remedy]:
    now = min(lack.settings.n_gpu_layers, lack.facts.n_layer + 1)
    if not lack.are_layers_fixed or not now:
        return
    device, host = _bytes(lack, lack.settings, np.arange(now))
    if (fitting := np.flatnonzero(_have_room(lack, device, host))).size:
        k = int(fitting[-1])
        words = f"{k} layers on the device instead of {now}"
        yield Remedy(words=words, act=f"--set n_gpu_layers={k}", given_up_frac=1 - k / now)


def _limits(lack: Lack) -> Iterator[Remedy]:
    """A larger limit, where there is as much."""
    device, host = _bytes(lack, lack.settings, _layer_counts(lack))
    for option, what, whose, limit, free, needed, others in (
        ("--vram-limit", "device", "the driver", lack.vram_limit_bytes, lack.device_free_bytes, device, host),
        ("--ram-limit", "main", "the process", lack.ram_limit_bytes, lack.host_free_bytes, host, device),
    ):
        room = lack.host_bytes if needed is device else lack.device_bytes
        enough = needed[others <= room] if room is not None else needed
        if limit is None or not enough.size:
            continue
        n_mib = -(-int(enough.min()) // MIB)
        if n_mib * MIB > limit and (free is None or n_mib * MIB <= free):
            words = f"{n_mib} MiB of {what} memory instead of {format_bytes(limit)}"
            act = f"{option} {n_mib}MiB, and more for what {whose} takes itself"
            yield Remedy(words=words, act=act, given_up_frac=1 - limit / (n_mib * MIB))


def _cache(lack: Lack) -> Iterator[Remedy]:
    settings = lack.settings
    saved = 1 - BYTES_OF_32["q8_0"] / BYTES_OF_32[settings.type_k]
    smaller = settings.replace(type_k="q8_0", type_v="q8_0", flash_attn_type="enabled")
    if saved > 0 and contradiction(lack.facts, smaller) is None and _fits(lack, smaller):
        act = "--allow-kv-quant, for a KV cache in q8_0, less precise"
        yield Remedy(words="a KV cache in q8_0", act=act, given_up_frac=saved)


def _weights(lack: Lack) -> Iterator[Remedy]:
    """The largest of the usual smaller quantisations that fits; its bytes are these in the ratio of usual files."""
    facts, name, ratio = lack.facts, lack.facts.quantisation, 1.0
    bits = 8 * facts.tensor_bytes / max(facts.n_params, 1)
    while (lower := next_quant_down(name, bits * ratio)) is not None:
        name, ratio = lower[0], ratio * lower[1]
        if _fits(lack, lack.settings, weights_ratio=ratio):
            words = f"weights in {name} instead of {facts.quantisation}"
            yield Remedy(words=words, act=f"a file of the model in {name}", given_up_frac=1 - ratio)
            return


def _fits(lack: Lack, settings: Settings, weights_ratio: float = 1.0) -> bool:
    """Whether some number of layers has room, or the one that is fixed."""
    return bool(_have_room(lack, *_bytes(lack, settings, _layer_counts(lack), weights_ratio)).any())


def _layer_counts(lack: Lack) -> Ints:
    settings = lack.settings
    if lack.are_layers_fixed or settings.devices == ():
        return np.array([settings.n_gpu_layers if settings.devices != () else 0])
    return np.arange(lack.facts.n_layer + 2)


def _bytes(lack: Lack, settings: Settings, n_gpu_layers: Ints, weights_ratio: float = 1.0) -> tuple[Ints, Ints]:
    """What devices and main memory hold with each number of layers."""
    grid = grid_of(lack.facts, settings, n_gpu_layers=n_gpu_layers)
    found = reckon(lack.facts, grid)
    counts_weights = lack.ram_limit_bytes is not None or not is_mapped(settings)
    on_host = found.host_weights_bytes * counts_weights
    device = (found.weights_bytes * weights_ratio + found.kv_cache_bytes + found.compute_bytes).sum(axis=0)
    device += lack.device_taken_bytes * (device > 0)
    host = on_host * weights_ratio + found.host_kv_cache_bytes + found.host_compute_bytes + found.output_bytes
    return np.ceil(device).astype(np.int64), np.ceil(host).astype(np.int64)


def _have_room(lack: Lack, device: Ints, host: Ints) -> Bools:
    ok = np.ones(len(device), dtype=np.bool_)
    if lack.device_bytes is not None:
        ok &= device <= lack.device_bytes
    if lack.host_bytes is not None:
        ok &= host <= lack.host_bytes
    return ok

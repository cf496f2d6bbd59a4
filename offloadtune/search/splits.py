"""Sensible tensor_splits over two to four devices, each as whole layers a device, so that no two place alike.

With k layers over n devices there are (k + n - 1 over n - 1) placements. Where those are too many a coarser grid of
them is looked at; of what fits on every device those are taken that lie far apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint import GENERIC, Grid, Room, backend_of, fits, grid_of, is_mapped, margin_of, reckon
from offloadtune.footprint.weights import slices_of
from offloadtune.records import Goal, Settings
from offloadtune.search.space import Space
from offloadtune.speed import Laws, amounts_for
from offloadtune.speeds import Phase

Ints = NDArray[np.int64]

N_SPLITS_MOST = 20
_N_DEVICES = range(2, 5)
_N_LOOKED_AT = 2000


def split_candidates(space: Space, settings: Settings) -> tuple[tuple[float, ...], ...]:
    """Splits of the layers of `settings` that fit, as layers a device, from all on the first to all on the last.

    Among these `N_SPLITS_MOST` at most are the engine's own, by free memory, and the one that is expected to be the
    fastest where speeds are foretold. () where there is nothing to divide, or devices are named: what each of those has
    to give is not known here.
    """
    k = space.everything if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, space.everything)
    n_devices = len(space.device_free_bytes)
    if n_devices not in _N_DEVICES or k < 1 or settings.devices is not None:
        return ()
    laws = None if space.laws is None else space.laws(settings)
    if laws is not None and len(laws.rig.devices) != n_devices:
        laws = None
    by_engine = _by_free_memory(space, k)
    splits = np.unique(np.vstack([by_engine, _divisions(k, n_devices)]), axis=0)[::-1]
    splits = splits[_that_fit(space, settings, splits, laws)]
    if not len(splits):
        return ()
    kept = {0, len(splits) - 1, *np.flatnonzero((splits == by_engine).all(axis=1)).tolist()}
    if laws is not None:
        kept.add(_fastest(space, settings, splits, laws))
    return tuple(tuple(map(float, splits[i])) for i in _far_apart(splits, kept))


def _by_free_memory(space: Space, k: int) -> Ints:
    """Layers a device by the engine's own rule."""
    n_layer = space.facts.n_layer
    slices = slices_of(Grid.over(n_layer, n_gpu_layers=k), n_layer, space.device_free_bytes)
    return np.asarray((slices.end - slices.begin)[:, 0])


def _divisions(k: int, n_devices: int) -> Ints:
    """Every division of k layers over the devices, or of as many parts of them as can be looked at."""
    n_parts = k
    while math.comb(n_parts + n_devices - 1, n_devices - 1) > _N_LOOKED_AT:
        n_parts -= 1
    inner = itertools.combinations_with_replacement(range(n_parts + 1), n_devices - 1)
    edges = np.array([(0, *some, n_parts) for some in inner], dtype=np.int64)
    return np.diff(edges * k // n_parts, axis=1)


def _that_fit(space: Space, settings: Settings, splits: Ints, laws: Laws | None) -> NDArray[np.bool_]:
    """By footprint on every device; what the driver takes of all of them is laid on each alike."""
    free, n_devices = space.device_free_bytes, len(space.device_free_bytes)
    names = tuple(device.name for device in laws.rig.devices) if laws else ()
    room = Room(
        names=names or ("",) * n_devices,
        backends=tuple(map(backend_of, names)) or (GENERIC,) * n_devices,
        free_bytes=free,
        runtime_bytes=(math.ceil(space.runtime_bytes / n_devices),) * n_devices,
        margin_bytes=tuple(0 if space.runtime_bytes else margin_of(n_bytes) for n_bytes in free),
        shares=tuple(map(float, free)),
    )
    layers = np.full(len(splits), settings.n_gpu_layers, dtype=np.int64)
    grid = grid_of(space.facts, settings, n_gpu_layers=layers, splits=splits)
    return fits(reckon(space.facts, grid, room.backends, room.shares), room, is_mapped=is_mapped(settings))


def _fastest(space: Space, settings: Settings, splits: Ints, laws: Laws) -> int:
    """Index of the split that the law likes best for the goal."""
    workload, alone = space.workload, settings.replace(n_seq_max=1)  # visits write one sequence
    each = [alone.replace(tensor_split=tuple(split)) for split in splits.tolist()]
    n_prompt, depth = workload.n_prompt_new, workload.n_prefix_cached
    asked = {Phase.PREFILL: (n_prompt, depth), Phase.DECODE: (1, depth + n_prompt)}
    prompt_s, token_s = (
        laws.of(phase).interval(amounts_for(phase, space.facts, each, laws.rig, n_prompt=n, depth=at))[0]
        for phase, (n, at) in asked.items()
    )
    n_prompts, n_tokens = {Goal.TTFT: (1, 0), Goal.DECODE: (0, 1)}.get(space.goal, (1, workload.n_gen - 1))
    return int(np.argmin(n_prompts * prompt_s + n_tokens * token_s))


def _far_apart(splits: Ints, kept: Collection[int]) -> list[int]:
    """Indices of `kept` and of those farthest from all taken before, up to `N_SPLITS_MOST`, in their order."""
    taken = sorted(kept)
    apart = np.abs(splits[:, None] - splits[taken][None]).sum(axis=2).min(axis=1)
    while len(taken) < N_SPLITS_MOST and apart.any():
        taken.append(int(apart.argmax()))
        apart = np.minimum(apart, np.abs(splits - splits[taken[-1]]).sum(axis=1))
    return sorted(taken)

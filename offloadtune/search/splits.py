"""Divisions of the layers over two to four devices that are tried, each as whole layers a device: no two place alike.

With k layers over n devices there are (k + n - 1 over n - 1) placements. Where those are too many a coarser grid of
them is looked at. Of what every device holds those are taken that fill devices one after the other, which is the best
where each device takes its own time for a layer and they wait for each other, and besides those that lie far apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

import numpy as np

from offloadtune.footprint import Grid, grid_of
from offloadtune.footprint.anatomy import Bools, Floats, Ints
from offloadtune.footprint.weights import slices_of
from offloadtune.records import Settings
from offloadtune.search.columns import Cards, Columns, cards_of
from offloadtune.search.space import Space, start_settings

N_SPLITS_MOST = 20
"""Of all layers, or of as many as the user fixed."""
_N_SPLITS_OF_FEWER = 8
_N_COUNTS_OF_FEWER = 3
"""Where not all layers have room, so many of the largest counts that have are divided otherwise."""

_N_DEVICES = range(2, 5)
_N_LOOKED_AT = 2000


def why_no_splits(space: Space) -> str:
    """Why layers are divided as the engine does it, "" where the user says so or other ways are tried too."""
    if _is_held(space):
        return ""
    n_devices = len(cards_of(space))
    if n_devices not in _N_DEVICES:
        if space.n_devices in _N_DEVICES:
            return "what each device has to give is not known"
        return f"other divisions than the engine's, by free memory, are tried over {_N_DEVICES[-1]} devices at most"
    return "" if len(split_placements(space)[0]) else "the devices have room for no other division than the engine's"


def split_placements(space: Space) -> tuple[Ints, Ints]:
    """(n_gpu_layers, n_cpu_moe, n_cpu_ffn) of placements divided otherwise than by the engine, and layers a device.

    All layers where they have room, else a few of the largest counts. With experts in main memory, which the engine
    does not heed, the division that fills the devices alike.
    """
    base, cards = start_settings(space), cards_of(space)
    none = np.zeros((0, 3), dtype=np.int64), np.zeros((0, len(cards)), dtype=np.int64)
    if len(cards) not in _N_DEVICES or _is_held(space):
        return none
    found: list[tuple[Settings, Ints]] = []
    held = {**space.kept, **space.fixed}
    if "n_gpu_layers" in held:
        found.append((base, split_candidates(space, base)))
    else:
        found += _largest(space, base)
        if space.facts.n_expert and "n_cpu_moe" not in held:
            whole = base.replace(n_gpu_layers=space.everything)
            away = [whole.replace(n_cpu_moe=m) for m in range(1, space.facts.n_layer + 1)]
            found += [(one, _most_even(space, one)) for one in away]
    found = [(one, splits) for one, splits in found if len(splits)]
    if not found:
        return none
    placed = [
        np.repeat([[_n_layers(space, one), one.n_cpu_moe, one.n_cpu_ffn]], len(splits), axis=0) for one, splits in found
    ]
    return np.vstack(placed), np.vstack([splits for _, splits in found])


def _is_held(space: Space) -> bool:
    """Whether the user, or the self-test, says how layers are divided, or that there is nothing to divide."""
    held = {**space.kept, **space.fixed}
    return "tensor_split" in held or held.get("devices") == ()


def with_splits(space: Space, placements: Ints) -> tuple[Ints, Ints]:
    """(has devices, n_gpu_layers, n_cpu_moe, n_cpu_ffn), as the engine divides and as it would not; layers a device.

    The latter are 0 on all where the engine divides.
    """
    divided, splits = split_placements(space)
    by_engine = np.zeros((len(placements), splits.shape[1]), dtype=np.int64)
    on_devices = np.hstack([np.ones((len(divided), 1), dtype=np.int64), divided])
    return np.vstack([placements, on_devices]), np.vstack([by_engine, splits])


def _largest(space: Space, base: Settings) -> list[tuple[Settings, Ints]]:
    """Everything with its divisions, or the few largest counts of layers that have room with some division."""
    found = []
    for k in range(space.everything, 0, -1):
        one, n_most = base.replace(n_gpu_layers=k), N_SPLITS_MOST if k == space.everything else _N_SPLITS_OF_FEWER
        if len(splits := split_candidates(space, one, n_most)):
            found.append((one, splits))
        if found and (k == space.everything or len(found) == _N_COUNTS_OF_FEWER):
            break
    return found


def split_candidates(space: Space, settings: Settings, n_most: int = N_SPLITS_MOST) -> Ints:
    """Divisions of the layers of `settings` that every device holds, (n, n_devices), but for the engine's own.

    From most on the first to most on the last; empty where there is nothing to divide.
    """
    cards, k = cards_of(space), _n_layers(space, settings)
    if k < 1 or len(cards) not in _N_DEVICES:
        return np.zeros((0, len(cards)), dtype=np.int64)
    splits, _ = _that_fit(space, settings, cards)
    is_own = (splits == _by_free_memory(space, cards, k)).all(axis=1)
    splits = splits[~is_own]
    return np.asarray(splits[_far_apart(splits, _filled_in_turn(splits), n_most)] if len(splits) else splits)


def _most_even(space: Space, settings: Settings) -> Ints:
    """The division that leaves the fullest device the most room, (1, n_devices); empty where it is the engine's own."""
    cards = cards_of(space)
    splits, fullest_frac = _that_fit(space, settings, cards)
    if not len(splits):
        return splits
    best = splits[[int(fullest_frac.argmin())]]
    is_own = (best == _by_free_memory(space, cards, _n_layers(space, settings))).all()
    return best[:0] if is_own else best


def _n_layers(space: Space, settings: Settings) -> int:
    k = settings.n_gpu_layers
    return space.everything if k < 0 else min(k, space.everything)


def _that_fit(space: Space, settings: Settings, cards: Cards) -> tuple[Ints, Floats]:
    """Divisions whose weights and cache every device holds, and how full the fullest is with all that they take."""
    splits = _divisions(_n_layers(space, settings), len(cards))
    layers = np.full(len(splits), settings.n_gpu_layers, dtype=np.int64)
    ones = np.ones_like(layers)
    grid = grid_of(space.facts, settings, n_gpu_layers=layers, splits=splits)
    unused = {"n_threads": ones, "n_threads_batch": ones, "is_pinned": ones > 1, "no_host": ones > 1}
    columns = Columns.over(space.facts, grid, cards, **unused)
    fits = have_room(space, columns, cards)
    return splits[fits], (columns.bytes_of_each / _free_of(cards)).max(axis=0)[fits]


def have_room(space: Space, columns: Columns, cards: Cards) -> Bools:
    """Whether the least that settings can take is on no device more than it has, nor altogether than may be taken."""
    return np.asarray(
        (columns.least_bytes <= space.device_bytes) & (columns.least_of_each <= _free_of(cards)).all(axis=0)
    )


def _free_of(cards: Cards) -> Ints:
    return np.maximum(np.array(cards.free_bytes, dtype=np.int64), 1)[:, None]


def _by_free_memory(space: Space, cards: Cards, k: int) -> Ints:
    """Layers a device by the engine's own rule."""
    n_layer = space.facts.n_layer
    slices = slices_of(Grid.over(n_layer, n_gpu_layers=k), n_layer, cards.free_bytes)
    return np.asarray((slices.end - slices.begin)[:, 0])


def _divisions(k: int, n_devices: int) -> Ints:
    """Every division of k layers over the devices, or of as many parts of them as can be looked at."""
    n_parts = k
    while math.comb(n_parts + n_devices - 1, n_devices - 1) > _N_LOOKED_AT:
        n_parts -= 1
    inner = itertools.combinations_with_replacement(range(n_parts + 1), n_devices - 1)
    edges = np.array([(0, *some, n_parts) for some in inner], dtype=np.int64)
    return np.unique(np.diff(edges * k // n_parts, axis=1), axis=0)[::-1]


def _filled_in_turn(splits: Ints) -> set[int]:
    """Indices of those that put the most they can on one device, then on the next, in any order of devices."""
    orders = itertools.permutations(range(splits.shape[1]))
    return {int(np.lexsort(splits[:, order[::-1]].T)[-1]) for order in orders}


def _far_apart(splits: Ints, kept: Collection[int], n_most: int) -> list[int]:
    """Indices of `kept` and of those farthest from all taken before, up to `n_most`, in their order."""
    taken = sorted(kept)
    apart = np.abs(splits[:, None] - splits[taken][None]).sum(axis=2).min(axis=1)
    while len(taken) < n_most and apart.any():
        taken.append(int(apart.argmax()))
        apart = np.minimum(apart, np.abs(splits - splits[taken[-1]]).sum(axis=1))
    return sorted(taken)

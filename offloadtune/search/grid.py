"""All settings that may be tried together, as arrays: placements x batches x kernels x cache x threads.

Placements are layers on the devices, experts kept from there, and how several devices divide the layers.

What may be tried of each is in axes.py, what rules a combination out in mesh.py. Built once a space: the footprints of
all come from one call.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint import BYTES_OF_32, Grid, is_mapped, lends_from
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Settings
from offloadtune.search.axes import THREADS, flash_name, values_of
from offloadtune.search.caches import KV_NAMES
from offloadtune.search.columns import Columns, cards_of
from offloadtune.search.mesh import Mesh, allowed
from offloadtune.search.space import Space, start_settings
from offloadtune.search.splits import have_room

N_CHOICES_MOST = 20_000
"""Of more, placements are thinned out: a step of the search must cost far less than a trial."""

_N_NEAR_THE_WALL = 3
"""Of the placements that fit with each batch so many of the largest stay when placements are thinned out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """All candidates of a space. What no column names is as in `base`."""

    base: Settings
    columns: Columns

    def __len__(self) -> int:
        return len(self.columns)

    def settings(self, i: int) -> Settings:
        """The candidate as it is tried."""
        columns, grid = self.columns, self.columns.grid
        n_ubatch = int(grid.n_ubatch[i])
        return self.base.replace(
            devices=self.base.devices if grid.has_devices[i] else (),
            n_gpu_layers=int(self._layers[i]),
            n_cpu_moe=int(grid.n_cpu_moe[i]),
            n_cpu_ffn=int(grid.n_cpu_ffn[i]),
            tensor_split=self._splits[i],
            n_ubatch=n_ubatch,
            n_batch=_batch_of(self.base, n_ubatch),
            flash_attn_type=flash_name(self.base) if grid.flash[i] else "disabled",
            n_threads=int(columns.n_threads[i]),
            n_threads_batch=int(columns.n_threads_batch[i]),
            op_offload=bool(grid.op_offload[i]),
            offload_kqv=bool(grid.offload_kqv[i]),
            swa_full=bool(grid.swa_full[i]),
            type_k=KV_NAMES.get(int(grid.k32[i]), self.base.type_k),
            type_v=KV_NAMES.get(int(grid.v32[i]), self.base.type_v),
            no_host=bool(columns.no_host[i]),
            op_offload_min_batch=self._min_batch(int(grid.lends_from[i])),
        )

    def index_of(self, settings: Settings) -> int | None:
        """Which candidate these are, None where they are none."""
        i = self._rows.get(_key(settings))
        return i if i is not None and self.settings(i) == settings else None

    def placement_number(self, placement: tuple[Any, ...]) -> int:
        """The number that `placements` holds for what shares a load so, -1 where no candidate does."""
        return self._numbers.get(placement, -1)

    @cached_property
    def placements(self) -> Ints:
        """A number for each candidate, the same for those that share a load."""
        return _placement_numbers(self.columns.grid) * 2 + self.columns.no_host

    @cached_property
    def axes(self) -> dict[str, NDArray[Any]]:
        """Columns by the name of their setting, those that take one of a few values."""
        columns, grid = self.columns, self.columns.grid
        return {
            "n_ubatch": grid.n_ubatch,
            "flash_attn_type": np.where(grid.flash, flash_name(self.base), "disabled"),
            "op_offload": grid.op_offload,
            "no_host": columns.no_host,
            "offload_kqv": grid.offload_kqv,
            "swa_full": grid.swa_full,
            "type_v": np.array([KV_NAMES.get(n, self.base.type_v) for n in grid.v32.tolist()]),
            "n_threads": columns.n_threads,
            "n_threads_batch": columns.n_threads_batch,
            "n_gpu_layers": self._layers,
        }

    @cached_property
    def _layers(self) -> Ints:
        """n_gpu_layers as asked: what the user fixed may be more than there are."""
        asked = self.base.n_gpu_layers
        return np.full(len(self), asked) if asked else self.columns.grid.n_gpu_layers

    def _min_batch(self, from_tokens: int) -> int | None:
        own = self.base.op_offload_min_batch
        return own if from_tokens == lends_from(self.base) else from_tokens

    @cached_property
    def _splits(self) -> list[tuple[float, ...] | None]:
        """tensor_split of each: None where the engine divides."""
        splits = self.columns.grid.splits
        if splits is None or self.base.tensor_split is not None:
            return [self.base.tensor_split] * len(self)
        return [tuple(row) if any(row) else None for row in splits.tolist()]

    @cached_property
    def _numbers(self) -> dict[tuple[Any, ...], int]:
        numbers, rows = np.unique(self.placements, return_index=True)
        return {self.settings(int(i)).placement: int(n) for n, i in zip(numbers, rows, strict=True)}

    @cached_property
    def _rows(self) -> dict[tuple[Any, ...], int]:
        columns, grid = self.columns, self.columns.grid
        found = (
            grid.has_devices,
            self._layers,
            grid.n_cpu_moe,
            grid.n_cpu_ffn,
            grid.n_ubatch,
            grid.flash,
            grid.op_offload,
            grid.offload_kqv,
            grid.swa_full,
            grid.v32,
            grid.lends_from,
            columns.no_host,
            columns.n_threads,
            columns.n_threads_batch,
        )
        keys = zip(*(column.tolist() for column in found), self._splits, strict=True)
        return {key: i for i, key in enumerate(keys)}


def _key(settings: Settings) -> tuple[Any, ...]:
    return (
        settings.devices != (),
        settings.n_gpu_layers,
        settings.n_cpu_moe,
        settings.n_cpu_ffn,
        settings.n_ubatch,
        settings.flash_attn_type != "disabled",
        settings.op_offload,
        settings.offload_kqv,
        settings.swa_full,
        BYTES_OF_32[settings.type_v],
        lends_from(settings),
        settings.no_host,
        settings.n_threads,
        settings.n_threads_batch,
        settings.tensor_split,
    )


class _BySpace:
    """A space as a cache key: alike where all but the laws is, and the file is the very same record."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def __hash__(self) -> int:
        return hash((id(self.space.facts), self.space.n_ctx, self.space.device_bytes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BySpace) and other.space.facts is self.space.facts and other.space == self.space


def choices_of(space: Space) -> Choices:
    """All candidates of `space`, kept for the next question about the same one."""
    return _choices(_BySpace(space))


@lru_cache(maxsize=8)
def _choices(key: _BySpace) -> Choices:
    space = key.space
    base = start_settings(space)
    mesh = allowed(space, base)
    alone = np.full(len(mesh.n_ubatch), 1)
    columns = _columns(space, base, mesh, alone, alone)
    kept = np.ones(len(columns), dtype=np.bool_)
    if space.has_devices:
        kept &= have_room(space, columns, cards_of(space))
        kept &= ~_is_needlessly_away(space, base, mesh)
    threads = _thread_pairs(space, base)
    kept &= _thinned(columns, kept, N_CHOICES_MOST // len(threads))
    rows, i_threads = _with_threads(columns, np.flatnonzero(kept), len(threads))
    pairs = np.array(threads)[i_threads]
    columns = _columns(space, base, mesh[rows], pairs[:, 0], pairs[:, 1])
    return Choices(base=base, columns=columns)


def _is_needlessly_away(space: Space, base: Settings, mesh: Mesh) -> Bools:
    """Whether the cache is in main memory though there is room for it where it is read."""
    found = np.zeros(len(mesh.n_ubatch), dtype=np.bool_)
    rows = np.flatnonzero(mesh.offload_kqv != base.offload_kqv)
    if len(rows):
        there = dataclasses.replace(mesh[rows], offload_kqv=np.full(len(rows), base.offload_kqv))
        alone = np.ones(len(rows), dtype=np.int64)
        columns, cards = _columns(space, base, there, alone, alone), cards_of(space)
        free_bytes = np.array(cards.free_bytes, dtype=np.int64)[:, None]
        found[rows] = (columns.device_bytes <= space.device_bytes) & (columns.bytes_of_each <= free_bytes).all(axis=0)
    return found


def _columns(space: Space, base: Settings, mesh: Mesh, n_threads: Ints, n_threads_batch: Ints) -> Columns:
    one = Grid.of((base,), space.facts.n_layer)
    grid = Grid.over(
        space.facts.n_layer,
        n_gpu_layers=mesh.n_gpu_layers,
        n_cpu_moe=mesh.n_cpu_moe,
        n_cpu_ffn=mesh.n_cpu_ffn,
        n_ctx=base.n_ctx,
        n_batch=np.maximum(mesh.n_ubatch, base.n_batch),
        n_ubatch=mesh.n_ubatch,
        n_seq_max=base.n_seq_max,
        n_outputs_max=base.n_outputs_max,
        swa_full=mesh.swa_full,
        offload_kqv=mesh.offload_kqv,
        op_offload=mesh.op_offload,
        lends_from=mesh.lends_from,
        unified=base.kv_unified,
        k32=np.where(mesh.v32 == one.v32, one.k32, mesh.v32),
        v32=mesh.v32,
        flash=mesh.flash,
        has_devices=mesh.has_devices,
        splits=mesh.splits.astype(np.float64) if mesh.splits.any() else one.splits,
    )
    pinned = np.full(len(grid), not is_mapped(base))
    threads = {"n_threads": n_threads, "n_threads_batch": n_threads_batch}
    return Columns.over(space.facts, grid, cards_of(space), **threads, is_pinned=pinned, no_host=mesh.no_host)


def _thread_pairs(space: Space, base: Settings) -> list[tuple[int, int]]:
    """(n_threads, n_threads_batch), the first one those of `base`."""
    own = (base.n_threads, base.n_threads_batch)
    decode, batch = (values_of(space, base, axis) for axis in THREADS)
    return [own, *((n, m) for n in decode for m in batch if (n, m) != own)]


def _with_threads(columns: Columns, rows: Ints, n_pairs: int) -> tuple[Ints, Ints]:
    """Rows once for each pair of thread counts; once only where the CPU computes nothing to speak of."""
    n_each = np.where(columns.works_on_host[rows], n_pairs, 1)
    starts = np.cumsum(n_each) - n_each
    return np.repeat(rows, n_each), np.arange(n_each.sum()) - np.repeat(starts, n_each)


def _thinned(columns: Columns, kept: Bools, n_most: int) -> Bools:
    """All, or where they are too many every n-th placement, and those that are the largest to fit with some batch."""
    n_kept = int(kept.sum())
    if n_kept <= n_most:
        return kept
    grid = columns.grid
    places = _placement_numbers(grid)
    kinds = (grid.n_ubatch * 2 + grid.flash) * 2 + grid.op_offload
    kinds = ((kinds * 2 + grid.offload_kqv) * 2 + grid.swa_full) * 256 + grid.v32
    largest = [
        rows[np.argsort(-columns.device_bytes[rows], kind="stable")[:_N_NEAR_THE_WALL]]
        for rows in (np.flatnonzero(kept & (kinds == kind)) for kind in np.unique(kinds))
    ]
    near, every = places[np.concatenate(largest)], np.unique(places[kept])
    return kept & (np.isin(places, near) | np.isin(places, every[:: -(-n_kept // n_most)]) | ~grid.has_devices)


def _placement_numbers(grid: Grid) -> Ints:
    """A number for each entry, the same for those that share a load."""
    found = grid.n_gpu_layers
    for away in (grid.n_cpu_moe, grid.n_cpu_ffn):
        found = found * (int(away.max(initial=0)) + 1) + away
    found = found * 2 + grid.has_devices
    found = found * (int(grid.lends_from.max(initial=0)) + 1) + grid.lends_from
    if grid.splits is None:
        return found
    rows, number = np.unique(grid.splits, axis=0, return_inverse=True)
    return found * len(rows) + number.ravel()


def _batch_of(base: Settings, n_ubatch: int) -> int:
    return min(max(base.n_batch, n_ubatch), base.n_ctx)

"""All settings that may be tried together, as arrays: placements x batches x kernels x cache x threads.

Placements are layers on the devices, experts kept from there, and how several devices divide the layers.

An axis is a row of AXES, what rules a combination out a row of RULES, each with its reason. What the user or the
self-test holds takes the place of an axis. Built once a space: the footprints of all come from one call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint import BYTES_OF_32, Grid, has_dense_ffn, is_mapped, lends_from
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Goal, Settings
from offloadtune.search.caches import KV_NAMES, kv_types, offload_states, window_states
from offloadtune.search.columns import Columns, cards_of
from offloadtune.search.lending import min_batches, parts_the_prompt
from offloadtune.search.pinning import has_much_on_host, no_hosts
from offloadtune.search.space import Space, start_settings
from offloadtune.search.splits import have_room, with_splits

N_CHOICES_MOST = 20_000
"""Of more, placements are thinned out: a step of the search must cost far less than a trial."""

_UBATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
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
            flash_attn_type=_flash_name(self.base) if grid.flash[i] else "disabled",
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
            "flash_attn_type": np.where(grid.flash, _flash_name(self.base), "disabled"),
            "op_offload": grid.op_offload,
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


# --- axes ----------------------------------------------------------------------------------------------------------


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
    Axis(name="flash_attn_type", values=lambda _, base: (_flash_name(base), "disabled")),
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
_I_LENT = [axis.name for axis in AXES].index("op_offload_min_batch")
THREADS = (Axis(name="n_threads", values=_thread_counts), Axis(name="n_threads_batch", values=_thread_counts))


IDLE = {Goal.TTFT: ("n_threads",), Goal.DECODE: ("n_threads_batch",)}
"""What changes nothing that a goal counts, and no memory: to read a prompt, or to write a token."""


def idle_axes(space: Space) -> tuple[str, ...]:
    """What changes nothing that counts: neither for the goal nor for a limit."""
    return () if space.counts_reading and space.counts_writing else IDLE.get(space.goal, ())


def _values(space: Space, base: Settings, axis: Axis) -> list[Any]:
    """What may be tried of an axis: the one value held, or that does as well as any, or all of them."""
    is_held = axis.name in {**space.kept, **space.fixed} or axis.name in idle_axes(space)
    return [getattr(base, axis.name)] if is_held else list(axis.values(space, base))


def _placements(space: Space, base: Settings) -> list[tuple[bool, int, int, int]]:
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


# --- rules ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Mesh:
    """Combinations before any rule, one entry each; `splits` are layers a device, 0 in all where the engine divides."""

    has_devices: Bools
    n_gpu_layers: Ints
    n_cpu_moe: Ints
    n_cpu_ffn: Ints
    splits: Ints
    n_ubatch: Ints
    flash: Bools
    op_offload: Bools
    offload_kqv: Bools
    swa_full: Bools
    v32: Ints
    lends_from: Ints
    no_host: Bools

    def __getitem__(self, chosen: Bools | Ints) -> _Mesh:
        return _Mesh(**{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`allows` says of each combination whether it may be tried, and `why` what speaks against the others."""

    why: str
    allows: Callable[[Space, Settings, _Mesh], Bools]


RULES = (
    Rule(
        why="no ubatch is larger than its batch",
        allows=lambda space, base, mesh: mesh.n_ubatch <= ({**space.kept, **space.fixed}.get("n_batch") or base.n_ctx),
    ),
    Rule(
        why="experts of blocks that are not on the device are in main memory already",
        allows=lambda space, base, mesh: (
            (mesh.n_cpu_moe == base.n_cpu_moe) | (mesh.n_cpu_moe > space.everything - mesh.n_gpu_layers)
        ),
    ),
    Rule(
        why="feed-forward weights of blocks that are not on the device are in main memory already",
        allows=lambda space, base, mesh: (
            (mesh.n_cpu_ffn == base.n_cpu_ffn) | (mesh.n_cpu_ffn > space.everything - mesh.n_gpu_layers)
        ),
    ),
    Rule(
        why="nothing is lent to a device where nothing, or everything, lies on it",
        allows=lambda space, base, mesh: (
            (mesh.op_offload == base.op_offload)
            | (mesh.has_devices & ((mesh.n_gpu_layers < space.everything) | (mesh.n_cpu_moe + mesh.n_cpu_ffn > 0)))
        ),
    ),
    Rule(
        why="where it lends all of a prompt, or nothing, op_offload says as much",
        allows=lambda space, base, mesh: (
            (mesh.lends_from == lends_from(base))
            | (
                mesh.has_devices
                & mesh.op_offload
                & ((mesh.n_gpu_layers < space.everything) | (mesh.n_cpu_moe + mesh.n_cpu_ffn > 0))
            )
            & parts_the_prompt(space, base, mesh.n_ubatch, mesh.lends_from)
        ),
    ),
    Rule(
        why="how the CPU stores weights counts where it has many, and then no device works for it",
        allows=lambda space, base, mesh: (
            (mesh.no_host == base.no_host)
            | mesh.has_devices
            & has_much_on_host(space, mesh.n_gpu_layers, mesh.n_cpu_moe + mesh.n_cpu_ffn)
            & (mesh.op_offload == base.op_offload)
            & (mesh.lends_from == lends_from(base))
        ),
    ),
    Rule(
        why="a quantised V cache needs flash attention",
        allows=lambda _space, _base, mesh: mesh.flash | (mesh.v32 >= BYTES_OF_32["f16"]),
    ),
    Rule(
        why="a cache in main memory is for blocks on a device, which attends to it with flash attention only",
        allows=lambda _, base, mesh: (mesh.offload_kqv == base.offload_kqv) | (mesh.flash & (mesh.n_gpu_layers > 1)),
    ),
)


def ruled_out(space: Space) -> list[str]:
    """Values of axes that a rule leaves no combination of, each with its reason."""
    base = start_settings(space)
    mesh, found = _mesh(space, base), []
    for rule in RULES:
        allowed = mesh[np.asarray(rule.allows(space, base, mesh))]
        lost = {name: np.setdiff1d(getattr(mesh, name), getattr(allowed, name)) for name in _WORDS}
        found += [f"{_WORDS[name](values.tolist())}: {rule.why}" for name, values in lost.items() if len(values)]
        mesh = allowed
    return found


_WORDS: dict[str, Callable[[list[Any]], str]] = {
    "n_ubatch": lambda sizes: f"n_ubatch {', '.join(map(str, sizes))}",
    "n_cpu_moe": lambda counts: f"n_cpu_moe {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else ""),
    "n_cpu_ffn": lambda counts: f"n_cpu_ffn {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else ""),
    "flash": lambda states: f"flash attention {' and '.join('on' if one else 'off' for one in states)}",
    "op_offload": lambda states: f"op offload {' and '.join('on' if one else 'off' for one in states)}",
    "offload_kqv": lambda _: "offload_kqv off",
    "v32": lambda counts: f"a cache of {' or '.join(KV_NAMES.get(n, 'f16') for n in counts)}",
}


# --- all of it -----------------------------------------------------------------------------------------------------


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
    mesh = _mesh(space, base)
    for rule in RULES:
        mesh = mesh[np.asarray(rule.allows(space, base, mesh))]
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


def _is_needlessly_away(space: Space, base: Settings, mesh: _Mesh) -> Bools:
    """Whether the cache is in main memory though there is room for it where it is read."""
    found = np.zeros(len(mesh.n_ubatch), dtype=np.bool_)
    rows = np.flatnonzero(mesh.offload_kqv != base.offload_kqv)
    if len(rows):
        there = dataclasses.replace(mesh[rows], offload_kqv=np.full(len(rows), base.offload_kqv))
        alone = np.ones(len(rows), dtype=np.int64)
        found[rows] = _columns(space, base, there, alone, alone).device_bytes <= space.device_bytes
    return found


def _mesh(space: Space, base: Settings) -> _Mesh:
    values = [_values(space, base, axis) for axis in AXES]
    values[_I_LENT] = [lends_from(base.replace(op_offload_min_batch=one)) for one in values[_I_LENT]]
    placements, splits = with_splits(space, np.array(_placements(space, base)))
    sizes = [len(placements), *(len(one) for one in values)]
    i_place, *indices = np.indices(sizes).reshape(len(sizes), -1)
    columns = (np.array(one)[i] for one, i in zip(values, indices, strict=True))
    n_ubatch, flash, op_offload, offload_kqv, swa_full, type_v, from_tokens, no_host = columns
    has_devices, n_gpu_layers, n_cpu_moe, n_cpu_ffn = placements[i_place].T
    return _Mesh(
        has_devices=has_devices.astype(np.bool_),
        n_gpu_layers=n_gpu_layers.astype(np.int64),
        n_cpu_moe=n_cpu_moe.astype(np.int64),
        n_cpu_ffn=n_cpu_ffn.astype(np.int64),
        splits=splits[i_place],
        n_ubatch=n_ubatch.astype(np.int64),
        flash=flash != "disabled",
        op_offload=op_offload.astype(np.bool_),
        offload_kqv=offload_kqv.astype(np.bool_),
        swa_full=swa_full.astype(np.bool_),
        v32=np.array([BYTES_OF_32[name] for name in type_v.tolist()], dtype=np.int64),
        lends_from=from_tokens.astype(np.int64),
        no_host=no_host.astype(np.bool_),
    )


def _columns(space: Space, base: Settings, mesh: _Mesh, n_threads: Ints, n_threads_batch: Ints) -> Columns:
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
    decode, batch = (_values(space, base, axis) for axis in THREADS)
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


def _flash_name(base: Settings) -> str:
    return "enabled" if base.flash_attn_type == "disabled" else base.flash_attn_type

"""Settings as arrays: what the arithmetic of memory and speed asks of them, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from offloadtune.footprint import (
    GENERIC,
    HOST,
    Backend,
    Grid,
    anatomy_of,
    backend_of,
    has_dense_ffn,
    is_mapped,
    reckon,
)
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import GgufFacts, Settings
from offloadtune.search.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The devices that take layers, in the engine's order: how each stores tensors, and what it has free.

    The engine divides by what is free. One without a name of its own stands for all, where no more is known.
    """

    names: tuple[str, ...] = ("",)
    backends: tuple[Backend, ...] = (HOST,)
    free_bytes: tuple[int, ...] = (1,)

    def __len__(self) -> int:
        return len(self.names)


def cards_of(space: Space) -> Cards:
    """Each device of its own where there are several, those the user named where they are known."""
    free, n_devices = space.device_free_bytes, len(space.device_free_bytes)
    names = space.device_names or ("",) * n_devices
    if named := {**space.kept, **space.fixed}.get("devices"):
        by_name = dict(zip(names, free, strict=False))
        if not set(named) <= by_name.keys():
            return Cards(free_bytes=(space.device_bytes,))
        names, free = tuple(named), tuple(by_name[name] for name in named)
    if len(free) < 2:
        return Cards(free_bytes=(space.device_bytes,))
    return Cards(names=names, backends=tuple(backend_of(name) if name else GENERIC for name in names), free_bytes=free)


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """What memory and speed of settings depend on, one entry each; bytes are those predicted.

    Of each device, shape (n_devices, n): what it takes, the part that the rule of compute buffers may get wrong, and
    what cannot be undercut. `host_bytes` and `least_host_bytes` are main memory's. `works_on_host` where weights that
    are multiplied with lie in main memory.
    """

    grid: Grid
    n_threads: Ints
    n_threads_batch: Ints
    is_pinned: Bools
    no_host: Bools
    bytes_of_each: Ints
    compute_of_each: Ints
    least_of_each: Ints
    host_bytes: Ints
    least_host_bytes: Ints
    works_on_host: Bools

    def __len__(self) -> int:
        return len(self.n_threads)

    @cached_property
    def device_bytes(self) -> Ints:
        """Of all devices together, as are the next two."""
        return np.asarray(self.bytes_of_each.sum(axis=0))

    @cached_property
    def compute_bytes(self) -> Ints:
        return np.asarray(self.compute_of_each.sum(axis=0))

    @cached_property
    def least_bytes(self) -> Ints:
        return np.asarray(self.least_of_each.sum(axis=0))

    @classmethod
    def of(cls, facts: GgufFacts, settings: Sequence[Settings], cards: Cards = Cards()) -> Columns:
        """The columns of settings of any kind, in their order."""
        return cls.over(
            facts,
            Grid.of(settings, facts.n_layer),
            cards,
            n_threads=np.array([one.n_threads for one in settings]),
            n_threads_batch=np.array([one.n_threads_batch for one in settings]),
            is_pinned=np.array([not is_mapped(one) for one in settings]),
            no_host=np.array([one.no_host for one in settings], dtype=np.bool_),
        )

    @classmethod
    def over(cls, facts: GgufFacts, grid: Grid, cards: Cards = Cards(), **given: Any) -> Columns:
        """The columns of a grid, with the bytes that one call reckons for all of it."""
        found = reckon(facts, grid, cards.backends, tuple(map(float, cards.free_bytes)))
        is_exact = not anatomy_of(facts).why_inexact
        return cls(
            grid=grid,
            **given,
            bytes_of_each=found.device_bytes,
            compute_of_each=found.compute_bytes,
            least_of_each=found.weights_bytes + found.kv_cache_bytes * is_exact,
            host_bytes=found.host_weights_bytes + found.host_kv_cache_bytes + found.host_compute_bytes,
            least_host_bytes=found.host_weights_bytes + found.host_kv_cache_bytes * is_exact,
            works_on_host=(grid.n_gpu_layers <= facts.n_layer)
            | ((grid.n_cpu_moe > 0) & (facts.n_expert > 0))
            | ((grid.n_cpu_ffn > 0) & has_dense_ffn(facts)),
        )

"""Settings as arrays: what the arithmetic of memory and speed asks of them, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offloadtune.footprint import Grid, anatomy_of, is_mapped, reckon
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import GgufFacts, Settings


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """What memory and speed of settings depend on, one entry each; bytes are those predicted.

    `device_bytes` are of all devices together, `compute_bytes` the part of them that the rule may get wrong,
    `least_bytes` what cannot be undercut; `host_bytes` and `least_host_bytes` are main memory's. `works_on_host` where
    weights that are multiplied with lie in main memory.
    """

    grid: Grid
    n_threads: Ints
    n_threads_batch: Ints
    is_pinned: Bools
    device_bytes: Ints
    compute_bytes: Ints
    least_bytes: Ints
    host_bytes: Ints
    least_host_bytes: Ints
    works_on_host: Bools

    def __len__(self) -> int:
        return len(self.n_threads)

    @classmethod
    def of(cls, facts: GgufFacts, settings: Sequence[Settings]) -> Columns:
        """The columns of settings of any kind, in their order."""
        return cls.over(
            facts,
            Grid.of(settings, facts.n_layer),
            n_threads=np.array([one.n_threads for one in settings]),
            n_threads_batch=np.array([one.n_threads_batch for one in settings]),
            is_pinned=np.array([not is_mapped(one) for one in settings]),
        )

    @classmethod
    def over(cls, facts: GgufFacts, grid: Grid, **given: Any) -> Columns:
        """The columns of a grid, with the bytes that one call reckons for all of it."""
        found = reckon(facts, grid)
        is_exact = not anatomy_of(facts).why_inexact
        weights, cache, compute = found.weights_bytes[0], found.kv_cache_bytes[0], found.compute_bytes[0]
        return cls(
            grid=grid,
            **given,
            device_bytes=weights + cache + compute,
            compute_bytes=compute,
            least_bytes=weights + cache * is_exact,
            host_bytes=found.host_weights_bytes + found.host_kv_cache_bytes + found.host_compute_bytes,
            least_host_bytes=found.host_weights_bytes + found.host_kv_cache_bytes * is_exact,
            works_on_host=(grid.n_gpu_layers <= facts.n_layer) | ((grid.n_cpu_moe > 0) & (facts.n_expert > 0)),
        )

"""The whole footprint of settings: each device's weights, cache and compute buffer, and the host's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from offloadtune.footprint.anatomy import Anatomy, Backend, ById, Ints, anatomy_of
from offloadtune.footprint.compute import Terms, device_compute, host_compute, output_buffer
from offloadtune.footprint.grid import HOST, Grid
from offloadtune.footprint.weights import cache_of_blocks, device_weights, host_weights, slices_of
from offloadtune.records import GgufFacts, Settings

_N_AT_ONCE = 20_000
"""Settings whose arrays stay in the processor's cache: twice as fast as a million at once."""


@dataclass(frozen=True, kw_only=True)
class Footprints:
    """Bytes by kind: on devices of shape (n_devices, n_settings), in main memory of shape (n_settings,)."""

    weights_bytes: Ints
    kv_cache_bytes: Ints
    compute_bytes: Ints
    host_weights_bytes: Ints
    host_kv_cache_bytes: Ints
    host_compute_bytes: Ints
    output_bytes: Ints

    @property
    def device_bytes(self) -> Ints:
        """All kinds together, shape (n_devices, n_settings)."""
        return self.weights_bytes + self.kv_cache_bytes + self.compute_bytes

    @classmethod
    def joined(cls, parts: Sequence[Footprints]) -> Footprints:
        """The footprints of a grid from those of its slices."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names})

    def __add__(self, other: Footprints) -> Footprints:
        """Of two models together, setting by setting."""
        names = [field.name for field in fields(self)]
        return Footprints(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes on all offload devices together. `least_bytes` cannot be undercut, `bytes` is what we expect.

    `least_bytes` holds the weights, and the cache where its rule is exact.
    """

    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    least_bytes: int

    @property
    def bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.compute_bytes


def reckon(
    facts: GgufFacts,
    grid: Grid,
    backends: Sequence[Backend] = (HOST,),
    shares: Sequence[float] | None = None,
    terms: Sequence[Terms | None] | None = None,
) -> Footprints:
    """The footprints of every setting of `grid` on devices of `backends`, which take layers by their `shares`.

    Without devices n_gpu_layers must be 0 in all of them.
    `terms` are what probes of the engine identified, one entry a device; without them the compute buffers follow the
    rule. Source of each formula: the modules of this package.
    """
    if len(grid) > _N_AT_ONCE:
        slices_of_grid = (grid[i : i + _N_AT_ONCE] for i in range(0, len(grid), _N_AT_ONCE))
        return Footprints.joined([reckon(facts, part, backends, shares, terms) for part in slices_of_grid])
    anatomy = anatomy_of(facts)
    n_devices = len(backends)
    backends = backends or (HOST,)  # where there is no device one that gets nothing stands for it
    slices = slices_of(grid, anatomy.n_layer, shares or [1.0] * len(backends))
    on_device = np.where(grid.offload_kqv, 1, 0)
    caches = [
        on_device * cache_of_blocks(anatomy, grid, begin, end, backend)
        for begin, end, backend in zip(slices.begin, slices.end, backends, strict=True)
    ]
    start = np.zeros_like(slices.first)
    end = np.where(grid.offload_kqv, slices.first, anatomy.n_layer)
    weights = device_weights(anatomy, grid, slices, backends)
    refused = device_weights(anatomy, grid, slices, [HOST] * len(backends)) - device_weights(
        anatomy, grid, slices, [Backend(alignment=32, refuses=backend.refuses) for backend in backends]
    )
    return Footprints(
        weights_bytes=weights[:n_devices],
        kv_cache_bytes=np.stack(caches)[:n_devices],
        compute_bytes=device_compute(anatomy, grid, slices, backends, terms)[:n_devices],
        host_weights_bytes=host_weights(anatomy, grid, slices) + refused.sum(axis=0),
        host_kv_cache_bytes=cache_of_blocks(anatomy, grid, start, end, HOST),
        host_compute_bytes=host_compute(anatomy, grid, slices, backends),
        output_bytes=output_buffer(anatomy, grid),
    )


def estimate_footprint(facts: GgufFacts, settings: Settings) -> Footprint:
    """What `settings` put on the offload devices; all zero when nothing is offloaded."""
    return estimate_footprints(facts, (settings,))[0]


def estimate_footprints(facts: GgufFacts, settings: Sequence[Settings]) -> list[Footprint]:
    """`estimate_footprint` of many settings, as if one device took all layers."""
    return list(_estimated(ById(facts), tuple(settings)))


@lru_cache(maxsize=1024)  # a search asks the same again and again
def _estimated(key: ById, settings: tuple[Settings, ...]) -> list[Footprint]:
    if not settings:
        return []
    facts = key.facts
    found = reckon(facts, Grid.of(settings, facts.n_layer))
    is_exact = not anatomy_of(facts).why_inexact
    kinds = (found.weights_bytes[0], found.kv_cache_bytes[0], found.compute_bytes[0])
    return [
        Footprint(
            weights_bytes=weights, kv_cache_bytes=cache, compute_bytes=compute, least_bytes=weights + cache * is_exact
        )
        for weights, cache, compute in zip(*(kind.tolist() for kind in kinds), strict=True)
    ]


def kv_cache_layer_bytes(facts: GgufFacts, settings: Settings, i_layer: int) -> int:
    """Cache of one block, all sequences."""
    return _cache_between(anatomy_of(facts), settings, i_layer, i_layer + 1)


def kv_cache_bytes(facts: GgufFacts, settings: Settings) -> int:
    """Cache of all blocks, wherever they lie."""
    return _cache_between(anatomy_of(facts), settings, 0, facts.n_layer)


def _cache_between(anatomy: Anatomy, settings: Settings, begin: int, end: int) -> int:
    grid = Grid.of((settings,), anatomy.n_layer)
    return int(cache_of_blocks(anatomy, grid, np.array([begin]), np.array([end]), HOST)[0])

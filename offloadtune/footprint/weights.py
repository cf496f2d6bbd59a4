"""Which blocks lie on which device, and the bytes of weights and cache that go with them. Exact.

With NA blocks and k = n_gpu_layers, block i is on a device iff i >= NA + 1 - k, and the output counts as block NA
(llama-model.cpp, `get_layer_buft_list`). Several devices share those blocks in contiguous slices: of the k blocks the
j-th goes to the first device whose cumulated share exceeds j / k, both as floats of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint.anatomy import Anatomy, Backend, Floats, Ints, places_of
from offloadtune.footprint.grid import HOST, Grid


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Blocks [begin, end) of each device, of all NA + 1; arrays of shape (n_devices, n_settings)."""

    begin: Ints
    end: Ints
    n_layer: int

    @property
    def first(self) -> Ints:
        """The first offloaded block of each setting."""
        return np.asarray(self.begin.min(axis=0), dtype=np.int64)


def slices_of(grid: Grid, n_layer: int, shares: Sequence[float]) -> Slices:
    """Blocks of each device, one an entry of `shares`, in llama.cpp's order of devices.

    They take blocks by the setting's own split; where it has none, by `shares`, of any scale.
    """
    k = grid.n_gpu_layers
    start = n_layer + 1 - k
    sums = np.cumsum(_shares_of(grid, shares), axis=1, dtype=np.float32)
    cumulated = sums[:, :-1] / np.where(sums[:, -1:] > 0, sums[:, -1:], 1)
    edges = [np.zeros_like(k), *(_n_below(share, k) for share in cumulated.T), k]
    begin = np.stack([start + edge for edge in edges[:-1]])
    end = np.stack([start + edge for edge in edges[1:]])
    return Slices(begin=begin, end=end, n_layer=n_layer)


def _shares_of(grid: Grid, shares: Sequence[float]) -> Floats:
    """Those of each device in each setting, (n_settings, n_devices), or in all of them, (1, n_devices)."""
    by_engine = np.array([shares], dtype=np.float64)
    if grid.splits is None:
        return by_engine
    n_devices = len(shares)
    named = np.pad(grid.splits[:, :n_devices], ((0, 0), (0, max(n_devices - grid.splits.shape[1], 0))))
    return np.where(named.any(axis=1, keepdims=True), named, by_engine)


def _n_below(share: NDArray[np.float32], k: Ints) -> Ints:
    """How many j of 0 to k - 1 have j / k below `share`, in floats of 32 bits."""
    n_sure = np.maximum(np.floor(share.astype(np.float64) * k).astype(np.int64) - 1, 0)
    n_below = n_sure.copy()
    for j in (n_sure, n_sure + 1, n_sure + 2):
        n_below += (j < k) & (j.astype(np.float32) / np.maximum(k, 1).astype(np.float32) < share)
    return n_below


def device_weights(anatomy: Anatomy, grid: Grid, slices: Slices, backends: Sequence[Backend]) -> Ints:
    """Bytes of weights on each device, shape (n_devices, n_settings)."""
    rows = []
    for begin, end, backend in zip(slices.begin, slices.end, backends, strict=True):
        places = places_of(anatomy, backend)
        kept_away = grid.n_cpu_moe  # experts of the blocks before this one are on the host
        n_bytes = between(places.dense, begin, end) - between(places.ffn, begin, np.minimum(end, grid.n_cpu_ffn))
        n_bytes = n_bytes + between(places.experts, np.maximum(begin, kept_away), np.maximum(end, kept_away))
        n_bytes = n_bytes + np.where((begin <= anatomy.n_layer) & (end > anatomy.n_layer), places.tied_copy, 0)
        rows.append(n_bytes + np.where(between(anatomy.uses_shared, begin, end) > 0, places.shared, 0))
    return np.stack(rows)


def host_weights(anatomy: Anatomy, grid: Grid, slices: Slices) -> Ints:
    """Bytes of weights in main memory, shape (n_settings,): the rest, and the inputs always."""
    places = places_of(anatomy, HOST)
    first, kept_away = slices.first, grid.n_cpu_moe
    zero = np.zeros_like(first)
    n_bytes = places.inputs + between(places.dense, zero, first) + between(places.experts, zero, first)
    n_bytes = n_bytes + between(places.experts, first, np.maximum(first, np.minimum(kept_away, anatomy.n_layer)))
    n_bytes = n_bytes + between(places.ffn, first, grid.n_cpu_ffn)
    if anatomy.has_two_embeddings:
        n_bytes = n_bytes + np.where(first > anatomy.n_layer, places.tied_copy, 0)
    return n_bytes + np.where(between(anatomy.uses_shared, zero, first) > 0, places.shared, 0)


def cache_of_blocks(anatomy: Anatomy, grid: Grid, begin: Ints, end: Ints, backend: Backend) -> Ints:
    """Bytes of cache and recurrent state of blocks [begin, end), shape (n_settings,), by llama-kv-cache.cpp."""
    n_bytes = np.zeros_like(begin)
    values_v = (anatomy.n_values_v, anatomy.n_values_v_padded)
    for is_window in (False, True):
        of_kind = anatomy.is_swa == is_window
        if not of_kind.any():
            continue
        cells = cells_of(anatomy, grid, is_window=is_window) * grid.n_streams
        k = between(np.where(of_kind, anatomy.n_values_k, 0), begin, end)
        flash_v, plain_v = (between(np.where(of_kind, values, 0), begin, end) for values in values_v)
        v = np.where(grid.flash, flash_v, plain_v)
        n_bytes = n_bytes + cells * k // 32 * grid.k32 + cells * v // 32 * grid.v32
        if backend.row_padding:
            for values, of_32 in ((anatomy.n_values_k, grid.k32), (anatomy.n_values_v, grid.v32)):
                spare = np.where(values > 0, -values % backend.row_padding, 0)
                spare = between(np.where(of_kind, spare, 0), begin, end) // 32 * of_32
                n_bytes = n_bytes + np.where(of_32 < _BYTES_OF_32_F16, spare, 0)
    return n_bytes + between(anatomy.state_bytes, begin, end) * grid.n_seq_max


def cells_of(anatomy: Anatomy, grid: Grid, *, is_window: bool) -> Ints:
    """Cells of one stream of the cache of sliding blocks, or of the others (llama-kv-cache-iswa.cpp)."""
    if not is_window:
        return grid.n_cells
    window = anatomy.facts.n_swa * np.where(grid.unified, grid.n_seq_max, 1) + grid.n_ubatch
    window = (np.minimum(grid.n_cells, window) + 255) // 256 * 256
    return np.where(grid.swa_full, grid.n_cells, window)


_BYTES_OF_32_F16 = 64


def between(of_block: Ints, begin: Ints, end: Ints) -> Ints:
    """Sum of `of_block[begin:end]` for arrays of bounds; 0 where the slice is empty. Blocks beyond the array hold 0."""
    sums = np.concatenate(([0], np.cumsum(of_block)))
    last = len(sums) - 1
    low, high = np.clip(begin, 0, last), np.clip(end, 0, last)
    return np.asarray(sums[np.maximum(high, low)] - sums[low])

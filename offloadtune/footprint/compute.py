"""Compute buffers: what the graph allocator reserves for one full ubatch. Rules of thumb, exact once identified.

The allocator's peak is that of the most expensive phase. For u tokens in a ubatch, o outputs, n cells, 4 bytes a value:

    output     o (n_vocab + n_embd)                                               where the output layer is
    block      u (3 n_ff + 2 n_embd + masks + indices)                            one block's feed-forward network
    attention  u (n n_head + 2 n_head n_embd_head + 2 n_embd + masks + indices)   with flash attention off

A mask is n values of 2 bytes with flash attention, 4 without, one for each cache (two where blocks slide). A mixture
of experts is wider: see `_n_wide`. On top of the block phase come copies: of one block's quantised cache as f16
(CUDA's flash attention), and of the largest weight that lies on the host, where the device works for the host
(op_offload, from 32 tokens on).

The rules were found with llama-cpp-python 0.3.36 by asking the engine for its reservations, and hold to some per
cent: which freed block the allocator reuses depends on the graph. `identify` makes them exact for a placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint.anatomy import Anatomy, Backend, Bools, Ints, places_of
from offloadtune.footprint.grid import BYTES_OF_32, HOST, Grid
from offloadtune.footprint.weights import Slices, between, cells_of

N_TOKENS_OFFLOADED = 32
"""From so many tokens on a device is lent to matrices on the host (GGML_OP_OFFLOAD_MIN_BATCH)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was identified for one device and placement, None where no probe told.

    Bytes a token in the block phase and in attention, masks and scores apart, and bytes an output.
    """

    block_bytes_per_token: float | None = None
    attention_bytes_per_token: float | None = None
    output_bytes_per_output: float | None = None


def device_compute(
    anatomy: Anatomy,
    grid: Grid,
    slices: Slices,
    backends: Sequence[Backend],
    terms: Sequence[Terms | None] | None = None,
) -> Ints:
    """Bytes of compute buffer on each device, shape (n_devices, n_settings); 0 where nothing is offloaded to it."""
    rows = []
    for i, (begin, end, backend) in enumerate(zip(slices.begin, slices.end, backends, strict=True)):
        known = (terms[i] if terms else None) or Terms()
        here = _Here.of(anatomy, grid, begin, end)
        layers = _layers(here, known)
        if backend.copies_quantised_kv:
            layers = layers + np.where(grid.flash & here.has_blocks, _f16_copies(anatomy, grid), 0)
        if backend.offloads_ops and i == 0:  # the scheduler lends the first device that can
            weight = largest_host_weight(anatomy, grid, slices)
            lent = grid.op_offload & (grid.n_ubatch >= N_TOKENS_OFFLOADED) & (end > begin) & (weight > 0)
            on_host = _Here.of(anatomy, grid, np.zeros_like(begin), np.maximum(slices.first, grid.n_cpu_moe))
            layers = np.where(lent, np.maximum(layers, _layers(on_host, known) + weight), layers)
        rows.append(np.maximum(layers, _output(here, known)))
    return np.asarray(np.stack(rows), dtype=np.int64)


def host_compute(anatomy: Anatomy, grid: Grid, slices: Slices) -> Ints:
    """Bytes of compute buffer in main memory, shape (n_settings,): the graph's inputs, and what runs there."""
    everything = _Here.of(anatomy, grid, np.zeros_like(slices.first), np.full_like(slices.first, anatomy.n_layer))
    inputs = grid.n_ubatch * (8 * anatomy.facts.n_embd + 4) + everything.inputs
    here = _Here.of(anatomy, grid, np.zeros_like(slices.first), slices.first + (slices.first > anatomy.n_layer))
    layers = _layers(here, Terms())
    beside = grid.n_ubatch * (4 * anatomy.facts.n_embd + 4) + everything.inputs - here.inputs
    layers = np.where(layers > 0, layers + beside, 0)
    return np.asarray(np.maximum(np.maximum(inputs, layers), _output(here, Terms())), dtype=np.int64)


def output_buffer(anatomy: Anatomy, grid: Grid) -> Ints:
    """Bytes of the host's buffer of logits when the context opens; it grows with the outputs asked for."""
    return 4 * anatomy.facts.n_vocab * grid.n_seq_max


def largest_host_weight(anatomy: Anatomy, grid: Grid, slices: Slices) -> Ints:
    """Bytes of the largest matrix of a block that stays on the host; 0 where none does."""
    places = places_of(anatomy, HOST)
    of_any, of_experts = (
        np.concatenate(([0], np.maximum.accumulate(largest))) for largest in (places.largest, places.largest_expert)
    )
    return np.asarray(
        np.maximum(of_any[np.minimum(slices.first, anatomy.n_layer)], of_experts[grid.n_cpu_moe]), dtype=np.int64
    )


@dataclass(frozen=True, kw_only=True)
class _Here:
    """Blocks [begin, end) in one place, for each setting: what of the graph runs there.

    `inputs` are bytes of masks, rotations and indices; `n_scored` the widest cache in cells. The last block's
    feed-forward network works on the outputs only.
    """

    anatomy: Anatomy
    grid: Grid
    has_blocks: Bools
    has_inner: Bools
    has_first: Bools
    has_output: Bools
    inputs: Ints
    n_scored: Ints

    @classmethod
    def of(cls, anatomy: Anatomy, grid: Grid, begin: Ints, end: Ints) -> _Here:
        n_trunk = anatomy.n_trunk
        in_trunk = np.arange(anatomy.n_layer) < n_trunk
        inputs, n_scored = np.zeros_like(begin), np.zeros_like(begin)
        for is_window in (False, True):
            of_kind = in_trunk & (anatomy.is_swa == is_window)
            is_here = between(of_kind.astype(np.int64), begin, end) > 0
            cells = cells_of(anatomy, grid, is_window=is_window)
            inputs = inputs + np.where(is_here, _inputs_of_cache(anatomy, grid, cells, of_kind), 0)
            n_scored = np.maximum(n_scored, np.where(is_here, cells, 0))
        has_blocks = np.minimum(end, n_trunk) > begin
        return cls(
            anatomy=anatomy,
            grid=grid,
            has_blocks=has_blocks,
            has_inner=np.minimum(end, n_trunk - 1) > begin,
            has_first=has_blocks & (begin == 0),
            has_output=(begin <= anatomy.n_layer) & (end > anatomy.n_layer),
            inputs=inputs + np.where(has_blocks, 4 * grid.n_ubatch, 0),
            n_scored=n_scored,
        )


def _layers(here: _Here, known: Terms) -> Ints:
    """Bytes of the dearest of the blocks' phases, all blocks being as wide as the widest; 0 without a block."""
    anatomy, grid, n_embd = here.anatomy, here.grid, here.anatomy.facts.n_embd
    n_tokens = np.where(here.has_inner, grid.n_ubatch, grid.n_outputs)
    block = 4 * (n_tokens * _n_wide(anatomy) + grid.n_ubatch * n_embd * (2 + here.has_first))
    if known.block_bytes_per_token is not None:
        block = np.asarray(n_tokens * known.block_bytes_per_token)
    of_heads = anatomy.n_head * int(max(anatomy.head_k.max(initial=0), anatomy.head_v.max(initial=0)))
    attention = grid.n_ubatch * 8 * (n_embd + of_heads)
    if known.attention_bytes_per_token is not None:
        attention = np.asarray(grid.n_ubatch * known.attention_bytes_per_token)
    scores = np.where(grid.flash, 0, 4 * grid.n_ubatch * here.n_scored * anatomy.n_head)
    phases = np.maximum(block, attention + scores) + here.inputs
    return np.where(here.has_blocks, phases, 0).astype(np.int64)


def _output(here: _Here, known: Terms) -> Ints:
    facts, a_row = here.anatomy.facts, known.output_bytes_per_output
    a_row = 4 * (facts.n_vocab + facts.n_embd) if a_row is None else a_row
    return np.where(here.has_output, here.grid.n_outputs * a_row, 0).astype(np.int64)


def _inputs_of_cache(anatomy: Anatomy, grid: Grid, cells: Ints, of_kind: Bools) -> Ints:
    """Bytes of the inputs that one cache brings: its mask, where K and V go, what rotates before quantising.

    Transposed V takes an index a value. Source: llama-kv-cache.cpp, build_input_k_rot and its neighbours.
    """
    mask = np.where(grid.flash, 2, 4) * grid.n_ubatch * cells
    n_values_v = int(anatomy.n_values_v_padded.max(initial=0))
    indices = grid.n_ubatch * (8 + 8 * np.where(grid.flash, 1, max(n_values_v, 1)))
    n_bytes = mask + indices
    for heads, of_32, at_most in ((anatomy.head_k, grid.k32, None), (anatomy.head_v, grid.v32, 64)):
        n_rotated = _n_rotated(heads[of_kind], at_most)
        n_bytes = n_bytes + np.where(of_32 < BYTES_OF_32["f16"], 4 * n_rotated * n_rotated, 0)
    return np.asarray(n_bytes, dtype=np.int64)


def _n_rotated(heads: Ints, at_most: int | None) -> int:
    """Width of the rotation for heads of these sizes: the largest 64 * 2^i that divides it; 0 where there is none."""
    if not len(heads) or heads.min() != heads.max() or heads[0] <= 0 or heads[0] % 64:
        return 0
    power_of_two = int(heads[0]) & -int(heads[0])
    return min(power_of_two, at_most or power_of_two)


def _f16_copies(anatomy: Anatomy, grid: Grid) -> Ints:
    """Bytes of the f16 copy of the widest block's quantised K and V, over the whole cache."""
    n_bytes = np.zeros_like(grid.n_cells)
    for values, of_32 in ((anatomy.n_values_k, grid.k32), (anatomy.n_values_v, grid.v32)):
        copied = 2 * grid.n_cells * grid.n_streams * values.max(initial=0)
        n_bytes = n_bytes + np.where(of_32 < BYTES_OF_32["f16"], copied, 0)
    return n_bytes


def _n_wide(anatomy: Anatomy) -> int:
    """Values a token has at the widest point of a feed-forward network, its own input and output apart.

    Dense: gate, up and their product. Experts: the same of each expert used, or their outputs twice and one product.
    """
    n_embd, n_used, n_ff = anatomy.facts.n_embd, anatomy.facts.n_expert_used, anatomy.n_ff_expert
    dense = 3 * int(anatomy.n_ff.max(initial=0))
    if not n_used:
        return dense
    experts = n_used * max(3 * n_ff, 2 * n_embd + n_ff) + n_embd
    return max(experts, dense if anatomy.has_dense_blocks else 0)


def inputs_and_scores(anatomy: Anatomy, grid: Grid, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Bytes of masks and indices, and of attention scores, for blocks [begin, end): what a token's share leaves out."""
    here = _Here.of(anatomy, grid, begin, end)
    return here.inputs, np.where(grid.flash, 0, 4 * grid.n_ubatch * here.n_scored * anatomy.n_head)

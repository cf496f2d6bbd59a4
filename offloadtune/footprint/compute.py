"""Compute buffers: what the graph allocator reserves for one full ubatch. Rules with a measured band.

The allocator's peak is that of the dearest phase. For u tokens in a ubatch, o outputs, n cells, 4 bytes a value:

    output     o (n_vocab + n_embd)                                               where the output layer is
    block      u (3 n_ff + 2 n_embd + masks + indices)                            one block's feed-forward network
    attention  u (n n_head + 2 n_head n_embd_head + 2 n_embd + masks + indices)   with flash attention off

A mask is n values of 2 bytes with flash attention, 4 without, one for each cache (two where blocks slide). Mixtures,
hybrids and the first block are wider than that: `widths`. On top of attention come copies of one block's quantised
cache as f16 (CUDA's flash attention), and on top of blocks that a device works on for the host (op_offload, from 32
tokens on) the largest of their weights. Several devices that hold everything keep four copies of each input and of
the hidden state (pipelining).

Measured against 10,400 reservations of llama-cpp-python 0.3.36 on one device, 42 models, 4 to 6 placements each:
exact in 80 %, within 2 % in 90 %, within 10 % in 97 %; in main memory (12,480) exact in 84 %, within 2 % in 91 %, 10 %
in 98 %. Beyond: devices that hold the last block alone, logits of all tokens for DeepSeek V2, Gemma 4 with embeddings
for each layer, some hybrid mixtures with experts on the host. tests/integration/test_footprint_shapes.py prints today's
figures for published shapes. Lent work and f16 copies could not be asked of the engine: they follow its source and
published logs (benchmarks/footprint_error.py); pipelining was asked of it with several RPC devices only, 2 models in
every kind of division: of 2,256 buffers of 2 and 3 devices 93 % exact, 96 % within 2 %, none more than 2 % below.

With feed-forward weights of some blocks in main memory, 1,728 reservations of 4 dense models: 98 % exact on the
device, none more than 6 % below; nearly all exact in main memory. Mixtures, hybrids and fused layouts are reckoned as
if their blocks on the device were as wide as before.

Which freed block the allocator uses again depends on the graph: `Terms` from a probe make the rules exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint.anatomy import Anatomy, Backend, Bools, Ints, places_of
from offloadtune.footprint.grid import BYTES_OF_32, HOST, Grid
from offloadtune.footprint.weights import Slices, between, cells_of
from offloadtune.footprint.widths import n_of_heads, widths_of

N_COPIES = 4
"""Copies of each input with pipelining (GGML_SCHED_MAX_COPIES)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the engine reserves on one device beyond the rule, by a probe of the placement; negative where it is less.

    Bytes a token of the ubatch in the blocks' phases, and bytes an output beside its logits.
    """

    more_per_token: float = 0.0
    more_per_output: float = 0.0


def device_compute(
    anatomy: Anatomy,
    grid: Grid,
    slices: Slices,
    backends: Sequence[Backend],
    terms: Sequence[Terms | None] | None = None,
) -> Ints:
    """Bytes of compute buffer on each device, shape (n_devices, n_settings); 0 where nothing is offloaded to it."""
    pipelined = _is_pipelined(grid, slices, backends)
    lent = _is_lent(anatomy, grid, slices, backends)
    rows = []
    for i, (begin, end, backend) in enumerate(zip(slices.begin, slices.end, backends, strict=True)):
        known = (terms[i] if terms else None) or Terms()
        here = _Here.of(anatomy, grid, begin, end, is_device=True, keeps_input=pipelined & backend.keeps_handed)
        layers = _layers(here, backend, is_device=True, frees=~pipelined)
        if i == 0 and backend.offloads_ops:  # the scheduler lends the first device that can
            last_away = np.maximum(slices.first, np.maximum(grid.n_cpu_moe, grid.n_cpu_ffn))
            on_host = _Here.of(anatomy, grid, np.zeros_like(begin), last_away)
            weight = largest_host_weight(anatomy, grid, slices)
            for_host = _layers(on_host, backend, is_device=True) + weight
            is_output_lent = (slices.first > anatomy.n_layer) & (grid.n_outputs >= grid.lends_from)
            of_output = grid.n_outputs * 4 * (anatomy.facts.n_vocab + anatomy.facts.n_embd) + _output_matrix(anatomy)
            for_host = np.maximum(for_host, np.where(is_output_lent, of_output, 0))
            layers = np.where(lent, np.maximum(layers, for_host), layers)
        more = np.where(end > begin, _copies(here, begin, backend), 0)
        layers = np.where(layers > 0, np.maximum(layers + grid.n_ubatch * known.more_per_token, 0), 0)
        output = _output(here) + np.where(here.has_output, grid.n_outputs * known.more_per_output, 0)
        output = output + np.where(here.has_output & pipelined, here.inputs, 0)  # which are kept to the end
        rows.append(np.maximum(layers, output) + np.where(pipelined, more, 0))
    return np.asarray(np.stack(rows), dtype=np.int64)


def _copies(here: _Here, begin: Ints, backend: Backend) -> Ints:
    """Bytes of what pipelining keeps more often: inputs, and the hidden state; of outputs alone where no block is."""
    n_states = np.where((begin == 0) | ~here.has_blocks | (not backend.keeps_handed), N_COPIES, 2 * N_COPIES)
    n_rows = np.where(here.has_blocks, here.grid.n_ubatch, here.grid.n_outputs)
    return np.asarray((N_COPIES - 1) * here.inputs + 4 * n_states * n_rows * here.anatomy.facts.n_embd)


def host_compute(anatomy: Anatomy, grid: Grid, slices: Slices, backends: Sequence[Backend] = ()) -> Ints:
    """Bytes of compute buffer in main memory, shape (n_settings,): the graph's inputs, and what runs there."""
    zero, embedding = np.zeros_like(slices.first), 4 * grid.n_ubatch * anatomy.facts.n_embd
    everything = _Here.of(anatomy, grid, zero, np.full_like(zero, anatomy.n_layer))
    here = _Here.of(anatomy, grid, zero, slices.first + (slices.first > anatomy.n_layer))
    inputs = 4 * grid.n_ubatch + embedding + everything.inputs
    pipelined = _is_pipelined(grid, slices, backends)
    kept = embedding * all(backend.keeps_handed for backend in backends)
    inputs = inputs + np.where(pipelined, (N_COPIES - 1) * (everything.inputs + kept), 0)
    work = np.maximum(_layers(here) - np.where(here.has_blocks, here.inputs, 0), 0)
    work = np.maximum(work, np.where(grid.n_cpu_moe > slices.first, _experts(everything), 0))
    is_away = between(places_of(anatomy, HOST).ffn, slices.first, grid.n_cpu_ffn) > 0
    work = np.maximum(work, np.where(is_away, _feed_forward(anatomy, grid), 0))
    work = np.where(_is_lent(anatomy, grid, slices, backends), _left_to_host(here), work)
    output = np.where(here.has_output, _output(here) + embedding + 4 * grid.n_outputs, 0)
    return np.asarray(np.maximum(inputs + np.maximum(work, embedding), output), dtype=np.int64)


def _experts(everything: _Here) -> Ints:
    """Bytes beside the inputs of experts that work on the host for blocks on a device.

    They take the place of the masks as far as those are no larger than the embedding.
    """
    grid, anatomy = everything.grid, everything.anatomy
    embedding = 4 * grid.n_ubatch * anatomy.facts.n_embd
    wide = 4 * grid.n_ubatch * widths_of(anatomy).experts
    return np.asarray(wide + embedding - np.minimum(everything.inputs, embedding))


def _feed_forward(anatomy: Anatomy, grid: Grid) -> Ints:
    """Bytes beside the inputs of feed-forward networks that work on the host for blocks on a device.

    Of its three parts each goes where the first block's mask has been, and what it is fed, as far as there is room.
    """
    part = 4 * grid.n_ubatch * max(int(anatomy.n_ff.max(initial=0)), 1)
    embedding = 4 * grid.n_ubatch * anatomy.facts.n_embd
    is_window = bool(anatomy.is_swa[:1].any())
    room = _inputs_of_cache(anatomy, grid, cells_of(anatomy, grid, is_window=is_window), anatomy.is_swa == is_window)
    room = room * bool(anatomy.n_values_k[:1].any())
    n_inside = np.maximum((room - embedding) // part, room >= part)
    return np.asarray(part * np.maximum(3 - n_inside, 0) + np.where(room < embedding, embedding, 0))


def _left_to_host(here: _Here) -> Ints:
    """Bytes beside the inputs of what a device that works for the host leaves it: attention over its own caches."""
    grid, anatomy = here.grid, here.anatomy
    embedding = 4 * grid.n_ubatch * anatomy.facts.n_embd
    attention = _scores(here) + embedding + 4 * grid.n_ubatch * n_of_heads(anatomy)
    keeps_state = here.has_blocks & anatomy.is_hybrid
    return np.asarray(np.where(here.attends | keeps_state, attention, embedding))


def _is_pipelined(grid: Grid, slices: Slices, backends: Sequence[Backend]) -> Bools:
    """Whether several devices take turns at parts of a batch (llama-context.cpp, `pipeline_parallel`).

    All of them must have events.
    """
    able = len(backends) > 1 and all(backend.has_events for backend in backends)
    is_whole = (grid.n_gpu_layers > slices.n_layer) & (grid.n_cpu_moe == 0) & (grid.n_cpu_ffn == 0)
    return np.asarray(able & is_whole & grid.offload_kqv)


def _is_lent(anatomy: Anatomy, grid: Grid, slices: Slices, backends: Sequence[Backend]) -> Bools:
    """Whether the first device works for matrices that lie on the host."""
    able = bool(backends) and backends[0].offloads_ops
    weight = largest_host_weight(anatomy, grid, slices)
    is_large = grid.n_ubatch >= grid.lends_from
    is_there = (slices.end[0] > slices.begin[0]) | (able and not backends[0].is_assumed)
    return np.asarray(able & is_there & grid.has_devices & grid.op_offload & is_large & (weight > 0))


def _output_matrix(anatomy: Anatomy) -> int:
    """Bytes of the matrix that makes logits."""
    places = places_of(anatomy, HOST)
    return places.tied_copy or int(places.dense[anatomy.n_layer])


def output_buffer(anatomy: Anatomy, grid: Grid) -> Ints:
    """Bytes of the host's buffer of logits when the context opens; it grows with the outputs asked for."""
    return 4 * anatomy.facts.n_vocab * grid.n_seq_max


def largest_host_weight(anatomy: Anatomy, grid: Grid, slices: Slices) -> Ints:
    """Bytes of the largest matrix of a block that stays on the host; 0 where none does."""
    places = places_of(anatomy, HOST)
    of_any, of_experts, of_ffn = (
        np.concatenate(([0], np.maximum.accumulate(largest)))
        for largest in (places.largest, places.largest_expert, places.largest_ffn)
    )
    kept_away = np.maximum(of_experts[grid.n_cpu_moe], of_ffn[grid.n_cpu_ffn])
    return np.asarray(np.maximum(of_any[np.minimum(slices.first, anatomy.n_layer)], kept_away), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class _Here:
    """Blocks [begin, end) in one place, for each setting: what of the graph runs there.

    `inputs` are bytes of masks, rotations and indices; `n_scored` the widest cache in cells. The last block's
    feed-forward network works on the outputs only. Where the first block `is_relieved` of its own, `n_returned` values
    a token stand beside the networks that are here.
    """

    anatomy: Anatomy
    grid: Grid
    has_blocks: Bools
    has_inner: Bools
    has_several: Bools
    has_last: Bools
    has_first: Bools
    has_output: Bools
    attends: Bools
    inputs: Ints
    n_scored: Ints
    has_one: Bools
    n_returned: Ints
    is_relieved: Bools

    @classmethod
    def of(  # noqa: PLR0913 - one argument a fact
        cls,
        anatomy: Anatomy,
        grid: Grid,
        begin: Ints,
        end: Ints,
        *,
        is_device: bool = False,
        keeps_input: Bools | bool = False,
    ) -> _Here:
        """With `keeps_input` what comes in stays beside the first of these blocks, as the embedding does.

        Feed-forward networks that a device is relieved of make its blocks narrower.
        """
        n_trunk, width = anatomy.n_trunk, widths_of(anatomy)
        attending = (np.arange(anatomy.n_layer) < n_trunk) & ((anatomy.state_bytes == 0) | (anatomy.n_values_k > 0))
        inputs, n_scored = np.zeros_like(begin), np.zeros_like(begin)
        for is_window in (False, True):
            of_kind = attending & (anatomy.is_swa == is_window)
            if not of_kind.any():
                continue
            is_here = between(of_kind.astype(np.int64), begin, end) > 0
            cells = cells_of(anatomy, grid, is_window=is_window)
            inputs = inputs + np.where(is_here, _inputs_of_cache(anatomy, grid, cells, of_kind), 0)
            n_scored = np.maximum(n_scored, np.where(is_here, cells, 0))
        n_full = n_trunk if width.does_all else n_trunk - 1
        has_blocks = np.minimum(end, n_trunk) > begin
        has_last = has_blocks & (end >= n_trunk)
        is_narrower = is_device and width.first > 0 and not (width.does_all or width.experts)
        wide_from = np.clip(grid.n_cpu_ffn, begin, end) if is_narrower else begin
        is_relieved = has_blocks & (begin == 0) & (wide_from > begin)
        n_returned = width.returned or np.where(wide_from == 1, 2 * width.first, 0)
        inputs = inputs + np.where(has_blocks, 4 * width.n_inputs * grid.n_ubatch, 0)
        return cls(
            anatomy=anatomy,
            grid=grid,
            has_blocks=has_blocks,
            has_inner=np.minimum(end, n_full) > wide_from,
            has_several=np.minimum(end, n_full if width.does_all else n_full - 1) > wide_from,
            has_last=has_last,
            has_first=has_blocks & ((wide_from == 0) | keeps_input),
            has_output=(begin <= anatomy.n_layer) & (end > anatomy.n_layer),
            attends=n_scored > 0,
            inputs=inputs + np.where(has_last, -(-4 * grid.n_outputs // HOST.alignment) * HOST.alignment, 0),
            n_scored=n_scored,
            has_one=np.minimum(end, n_trunk) - begin == 1,
            n_returned=np.where(is_relieved, n_returned, 0),
            is_relieved=is_relieved,
        )


def _layers(here: _Here, backend: Backend = HOST, *, is_device: bool = False, frees: Bools | bool = False) -> Ints:
    """Bytes of the dearest of the blocks' phases, all blocks being as wide as the widest; 0 without a block.

    Flash attention on a device works on a copy of one block's cache where that lies in main memory. A device that
    `frees` its copies of the inputs has the room of the mask again once the attention of its only block is done.
    """
    anatomy, grid, width = here.anatomy, here.grid, widths_of(here.anatomy)
    n_embd = anatomy.facts.n_embd
    n_tokens = np.where(here.has_inner, grid.n_ubatch, grid.n_outputs)
    is_quantised = np.minimum(grid.k32, grid.v32) < BYTES_OF_32["f16"]
    first = np.where(is_quantised, width.first_rotated, width.first)
    beyond = np.where(here.has_first, first, width.inner * here.has_several) + here.n_returned
    wide = width.block + width.reordered * backend.offloads_ops - 2 * n_embd
    block = 4 * (n_tokens * wide + grid.n_ubatch * (2 * n_embd + beyond))
    is_plain = not (width.does_all or width.experts)
    if is_plain:  # the outputs' rows are picked out in the last block
        last = 4 * (grid.n_outputs * (wide + n_embd) + grid.n_ubatch * 2 * n_embd) - _mask_in_use_again(here)
        block = np.maximum(block, np.where(here.has_last, last, 0))
    beyond = np.where(here.has_first, 0, width.attention_inner) + np.where(is_quantised, width.rotated, 0)
    beyond = beyond + np.where(here.is_relieved & grid.flash, width.returned, 0)
    attention = 4 * grid.n_ubatch * (width.attention + beyond)
    if backend.copies_quantised_kv:
        attention = attention + np.where(grid.flash & here.attends, _f16_copies(anatomy, grid), 0)
    if is_device:
        is_away = grid.flash & here.attends & ~grid.offload_kqv
        attention = attention + np.where(is_away, _cache_of_a_block(anatomy, grid), 0)
    attention = np.where(here.attends, attention + _scores(here), 0)
    kept = np.where(frees & here.has_one & is_plain, 0, here.inputs)
    return np.where(here.has_blocks, np.maximum(block + kept, attention + here.inputs), 0).astype(np.int64)


def _mask_in_use_again(here: _Here) -> Ints:
    """Bytes of the mask where the last block's feed-forward network takes its place, all of its outputs being asked."""
    grid = here.grid
    of_token = np.where(grid.flash, 2, 4) * grid.n_cells
    fits = (grid.n_outputs == grid.n_ubatch) & (of_token >= 4 * int(here.anatomy.n_ff.max(initial=0)))
    return np.asarray(np.where(fits & here.attends, of_token * grid.n_ubatch, 0))


def _scores(here: _Here) -> Ints:
    """Bytes of the scores of all heads, which flash attention does without."""
    n_bytes = 4 * here.grid.n_ubatch * here.n_scored * here.anatomy.n_head
    return np.asarray(np.where(here.grid.flash, 0, n_bytes))


def _output(here: _Here) -> Ints:
    facts, grid = here.anatomy.facts, here.grid
    a_row = 4 * (facts.n_vocab + facts.n_embd)
    width = widths_of(here.anatomy)
    normed = 4 * grid.n_ubatch * width.normed
    alone = np.where(here.has_blocks, 0, 2 * normed) if width.does_all else 0
    return np.where(here.has_output, np.maximum(grid.n_outputs * a_row + normed, alone), 0).astype(np.int64)


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


def _cache_of_a_block(anatomy: Anatomy, grid: Grid) -> Ints:
    """Bytes of the widest block's K and V over the whole cache, as they are stored."""
    values_of_k, values_of_v = anatomy.n_values_k.max(initial=0), anatomy.n_values_v.max(initial=0)
    return np.asarray(grid.n_cells * grid.n_streams * (values_of_k * grid.k32 + values_of_v * grid.v32) // 32)


def _f16_copies(anatomy: Anatomy, grid: Grid) -> Ints:
    """Bytes of the f16 copy of the widest block's quantised K and V, over the whole cache."""
    n_bytes = np.zeros_like(grid.n_cells)
    for values, of_32 in ((anatomy.n_values_k, grid.k32), (anatomy.n_values_v, grid.v32)):
        copied = 2 * grid.n_cells * grid.n_streams * values.max(initial=0)
        n_bytes = n_bytes + np.where(of_32 < BYTES_OF_32["f16"], copied, 0)
    return n_bytes

"""How much of each term a passage has: what one decode step or one prompt reads, computes and hands over, and where.

Shapes: one entry a query (settings, prompt, depth); amounts are (n_terms, n_queries), in the order of `terms_of`. With
W bytes of weights, P parameters, u_E(m) = 1 - (1 - k/E)^m the share of E experts that m tokens touch, and n cells of
cache (in steps of 256, a window's at most):

    decode    weights W u_E(B), cache B (K + V bytes of n cells), blocks, for each device and the host;
              link: cache of blocks on devices that is kept in main memory; handovers between backends
    prefill   for each of ceil(N / u) ubatches of m tokens: flop 2 P m, attention 2 n_head (d_k + d_v) m n,
              weights W u_E(m), blocks; link: weights of host blocks, where a device works for the host (op offload,
              from 32 tokens on), and the cache of those blocks

A sequence or prompt asks for one output, so the output layer computes once a prompt and once a sequence and step.
Sources: ggml-backend.cpp (splits, copies of inputs), llama-context.cpp (ubatches, outputs), llama-kv-cache.cpp (cells).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint.anatomy import Anatomy, Bools, Ints, anatomy_of, parameters_of, places_of
from offloadtune.footprint.compute import N_TOKENS_OFFLOADED
from offloadtune.footprint.grid import HOST, Grid
from offloadtune.footprint.weights import cells_of, slices_of
from offloadtune.records import GgufFacts
from offloadtune.speeds import Phase, Rig

Floats = NDArray[np.float64]

_N_AT_ONCE = 20_000
"""Queries whose arrays stay in the processor's cache."""

_OF_PLACE = {
    Phase.DECODE: ("weights", "cache", "plain_cache", "blocks"),
    Phase.PREFILL: ("flop", "attention", "plain_attention", "weights", "blocks"),
}
_OF_ALL = {
    Phase.DECODE: ("link", "handovers", "mixed", "steps"),
    Phase.PREFILL: ("link_pinned", "link_pageable", "streamed_blocks", "mixed", "ubatches", "prompts"),
}
_UNITS = {"flop": "flop", "attention": "flop", "plain_attention": "flop"} | dict.fromkeys(
    ("weights", "cache", "plain_cache", "link", "link_pinned", "link_pageable"), "bytes"
)

_WORDS = {
    "weights": "reading the weights",
    "cache": "reading the cache",
    "plain_cache": "reading the cache without flash attention",
    "blocks": "the blocks",
    "flop": "multiplying the weights",
    "attention": "attention",
    "plain_attention": "attention without flash attention",
    "link": "fetching the cache from main memory",
    "handovers": "handing over between devices",
    "mixed": "splitting the blocks over host and devices",
    "steps": "each token besides",
    "link_pinned": "copying weights to the device",
    "link_pageable": "copying mapped weights to the device",
    "streamed_blocks": "blocks computed by the device for the host",
    "ubatches": "each ubatch besides",
    "prompts": "each prompt besides",
}


@dataclass(frozen=True, slots=True)
class Term:
    """One term: `place` is "host", "" for all together, or the index of a device; `unit` is bytes, flop or count."""

    place: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.place}.{self.kind}" if self.place else self.kind

    @property
    def unit(self) -> str:
        return _UNITS.get(self.kind, "count")

    @property
    def words(self) -> str:
        """What it is, as the subject of a sentence."""
        where = {"": "", "host": " of the host"}.get(self.place, f" of device {self.place}")
        return f"{_WORDS[self.kind]}{where}"


def terms_of(phase: Phase, n_devices: int) -> tuple[Term, ...]:
    """The terms of a phase on so many devices, in the order of amounts and coefficients."""
    places = [*map(str, range(n_devices)), "host"]
    return tuple(Term(place, kind) for place in places for kind in _OF_PLACE[phase]) + tuple(
        Term("", kind) for kind in _OF_ALL[phase]
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What each query asks, arrays of one length or numbers: a prompt of `n_prompt` tokens after `depth` cached ones.

    `depth` is that of each of `n_seq` sequences. Host times are multiplied by `slower_memory` and `slower_compute`,
    1.0 with all cores at work. `is_pinned` where the host's weights lie in memory that a device reads directly.
    """

    n_prompt: Ints
    depth: Ints
    n_seq: Ints
    slower_memory: Floats
    slower_compute: Floats
    is_pinned: Bools

    def __getitem__(self, part: slice) -> Work:
        return Work(**{field.name: getattr(self, field.name)[part] for field in fields(self)})

    @classmethod
    def over(  # noqa: PLR0913 - one argument a column
        cls,
        n_queries: int,
        *,
        n_prompt: Ints | int = 1,
        depth: Ints | int = 0,
        n_seq: Ints | int = 1,
        slower_memory: Floats | float = 1.0,
        slower_compute: Floats | float = 1.0,
        is_pinned: Bools | bool = False,
    ) -> Work:
        """The work of `n_queries` queries; numbers stand for all of them."""

        def column(value: NDArray[np.generic] | float, kind: type) -> NDArray[np.generic]:
            return np.broadcast_to(np.asarray(value, dtype=kind), (n_queries,))

        return cls(
            n_prompt=column(n_prompt, np.int64),  # type: ignore[arg-type]
            depth=column(depth, np.int64),  # type: ignore[arg-type]
            n_seq=column(n_seq, np.int64),  # type: ignore[arg-type]
            slower_memory=column(slower_memory, np.float64),  # type: ignore[arg-type]
            slower_compute=column(slower_compute, np.float64),  # type: ignore[arg-type]
            is_pinned=column(is_pinned, np.bool_),  # type: ignore[arg-type]
        )


def amounts_of(phase: Phase, facts: GgufFacts, grid: Grid, work: Work, rig: Rig) -> Floats:
    """Amounts of every term, shape (n_terms, n_queries), for settings `grid` on the devices of `rig`."""
    if len(grid) > _N_AT_ONCE:
        parts = [
            amounts_of(phase, facts, grid[i : i + _N_AT_ONCE], work[i : i + _N_AT_ONCE], rig)
            for i in range(0, len(grid), _N_AT_ONCE)
        ]
        return np.concatenate(parts, axis=1)
    placed = _Placed(anatomy_of(facts), grid, rig)
    return placed.decode(work) if phase is Phase.DECODE else placed.prefill(work)


class _Placed:
    """A file's blocks on the places of each setting, and sums over them."""

    def __init__(self, anatomy: Anatomy, grid: Grid, rig: Rig) -> None:
        self.anatomy, self.grid, self.rig = anatomy, grid, rig
        self.n_devices = len(rig.devices)
        self.slices = slices_of(grid, anatomy.n_layer, rig.shares or [1.0] * max(self.n_devices, 1))
        n_used, n_expert = anatomy.facts.n_expert_used, anatomy.facts.n_expert
        self.used_frac = min(1.0, n_used / n_expert) if n_expert else 1.0
        n_bytes, values = places_of(anatomy, HOST), parameters_of(anatomy)
        self.dense_bytes, self.expert_bytes = _cumulated(n_bytes.dense[:-1]), _cumulated(n_bytes.experts[:-1])
        self.dense_flop = _cumulated(2 * values.dense[:-1])
        self.expert_flop = _cumulated(2 * values.experts[:-1]) * self.used_frac
        self.output_bytes = float(n_bytes.dense[-1] + n_bytes.tied_copy)  # a tied output is the embedding
        self.output_flop = 2.0 * float(values.dense[-1] + values.tied_copy)
        self.zero = np.zeros_like(self.slices.first)
        self.trunk = np.full_like(self.slices.first, anatomy.n_trunk)
        self.first = np.minimum(self.slices.first, self.trunk)
        self.has_output = self.slices.first <= anatomy.n_layer  # on a device
        self.experts_from = np.minimum(grid.n_cpu_moe, self.trunk)
        self.attends_on_device = grid.offload_kqv | grid.flash

    # --- phases ---

    def decode(self, work: Work) -> Floats:
        """One step of `n_seq` sequences, each a token at `depth`."""
        n_seq = work.n_seq.astype(np.float64)
        cells = _pad_256(work.depth + 1)
        touched, flash = self.touched(n_seq), self.grid.flash
        is_away = ~self.grid.offload_kqv & flash
        rows: list[Floats] = []
        link = np.zeros_like(n_seq)
        for i in range(self.n_devices):
            cache = n_seq * self.cache_bytes(cells, *self.bounds(i))
            link = link + is_away * cache
            here = cache * self.attends_on_device
            weights = self.weights_on_device(i, touched) + self.output_on(i) * self.output_bytes
            rows += [weights, here * flash, here * ~flash, self.n_blocks(i) + self.output_on(i)]
        weights = (self.weights_on_host(touched) + ~self.has_output * self.output_bytes) * work.slower_memory
        cache = n_seq * self.cache_bytes(cells, self.zero, self.host_attends()) * work.slower_memory
        rows += [weights, cache * flash, cache * ~flash, self.first + 0.0]
        return np.stack([*rows, link, self.handovers(), self.mixed(), np.ones_like(n_seq)])

    def prefill(self, work: Work) -> Floats:
        """A prompt, ubatch by ubatch: the full ones alike, and what is left of it in a last one."""
        n_each = self.grid.n_ubatch.astype(np.float64)
        n_full = np.floor(work.n_prompt / n_each)
        n_rest = work.n_prompt - n_full * n_each
        cells_full = work.depth + n_each * (n_full + 1) / 2  # on average over the full ubatches
        total = n_full * self.ubatch(n_each, cells_full, work)
        if n_rest.any():
            cells_rest = np.asarray(work.depth + work.n_prompt, dtype=np.float64)
            total = total + (n_rest > 0) * self.ubatch(n_rest, cells_rest, work)
        flop, n_bytes = (_OF_PLACE[Phase.PREFILL].index(kind) for kind in ("flop", "weights"))
        for i in range(self.n_devices + 1):  # the output computes for one token
            is_host, first = i == self.n_devices, i * len(_OF_PLACE[Phase.PREFILL])
            is_here = ~self.has_output if is_host else self.output_on(i)
            total[first + flop] += is_here * self.output_flop * (work.slower_compute if is_host else 1.0)
            total[first + n_bytes] += is_here * self.output_bytes * (work.slower_memory if is_host else 1.0)
        n_ubatches = n_full + (n_rest > 0)
        return np.concatenate([total, [n_ubatches * self.mixed(), n_ubatches, np.ones_like(n_rest)]])

    def ubatch(self, n_tokens: Floats, n_cells: Floats, work: Work) -> Floats:
        """The amounts of one ubatch whose tokens see `n_cells` on average, all but what counts ubatches and prompts."""
        grid, touched, flash = self.grid, self.touched(n_tokens), self.grid.flash
        is_lent = grid.op_offload & grid.has_devices & (n_tokens >= N_TOKENS_OFFLOADED) & self.lends
        is_lent_attention = is_lent & flash
        host_flop, host_weights = n_tokens * self.flop_on_host(), self.weights_on_host(touched)
        host_attention = self.attention_flop(n_tokens, n_cells, self.zero, self.host_attends())
        cells = _pad_256(n_cells)
        link = is_lent * host_weights + is_lent_attention * self.cache_bytes(cells, self.zero, self.first)
        link = link + (~grid.offload_kqv & flash) * self.cache_bytes(cells, self.first, self.trunk)
        rows: list[Floats] = []
        for i in range(self.n_devices):
            is_lender = i == 0
            attention = self.attention_flop(n_tokens, n_cells, *self.bounds(i)) * self.attends_on_device
            attention = attention + host_attention * is_lent_attention * is_lender
            rows += [
                n_tokens * self.flop_on_device(i) + is_lent * host_flop * is_lender,
                attention * flash,
                attention * ~flash,
                self.weights_on_device(i, touched) + is_lent * host_weights * is_lender,
                self.n_blocks(i),
            ]
        attends = host_attention * ~is_lent_attention * work.slower_compute
        rows += [host_flop * ~is_lent * work.slower_compute, attends * flash, attends * ~flash]
        rows += [host_weights * ~is_lent * work.slower_memory, self.first * ~is_lent + 0.0]
        return np.stack([*rows, link * work.is_pinned, link * ~work.is_pinned, self.first * is_lent + 0.0])

    # --- amounts by place ---

    def bounds(self, i: int) -> tuple[Ints, Ints]:
        """Blocks of a device, without the output."""
        return np.minimum(self.slices.begin[i], self.trunk), np.minimum(self.slices.end[i], self.trunk)

    def n_blocks(self, i: int) -> Floats:
        begin, end = self.bounds(i)
        return (end - begin).astype(np.float64)

    def output_on(self, i: int) -> Bools:
        begin, end = self.slices.begin[i], self.slices.end[i]
        return np.asarray((begin <= self.anatomy.n_layer) & (end > self.anatomy.n_layer))

    def host_attends(self) -> Ints:
        """The block before which attention is computed in main memory: the devices', or all for want of their cache."""
        return np.where(self.attends_on_device, self.first, self.trunk)

    def weights_on_device(self, i: int, touched: Floats) -> Floats:
        """Bytes that are read of the blocks of a device."""
        begin, end = self.bounds(i)
        low, high = np.maximum(begin, self.experts_from), np.maximum(end, self.experts_from)
        return _between(self.dense_bytes, begin, end) + touched * _between(self.expert_bytes, low, high)

    def weights_on_host(self, touched: Floats) -> Floats:
        """Bytes that are read of blocks on the host, and of experts there whose block is on a device."""
        last = np.maximum(self.first, self.experts_from)
        dense = _between(self.dense_bytes, self.zero, self.first)
        return dense + touched * _between(self.expert_bytes, self.zero, last)

    def flop_on_device(self, i: int) -> Floats:
        """Operations a token."""
        begin, end = self.bounds(i)
        low, high = np.maximum(begin, self.experts_from), np.maximum(end, self.experts_from)
        return _between(self.dense_flop, begin, end) + _between(self.expert_flop, low, high)

    def flop_on_host(self) -> Floats:
        last = np.maximum(self.first, self.experts_from)
        return _between(self.dense_flop, self.zero, self.first) + _between(self.expert_flop, self.zero, last)

    def touched(self, n_tokens: Floats) -> Floats:
        """Share of a block's experts that so many tokens need."""
        return np.asarray(1.0 - (1.0 - self.used_frac) ** n_tokens)

    def cache_bytes(self, n_cells: Ints, begin: Ints, end: Ints) -> Floats:
        """Bytes of cache that one sequence reads in blocks [begin, end), their recurrent states written back too."""
        anatomy, grid = self.anatomy, self.grid
        total = 2.0 * _between(_cumulated(anatomy.state_bytes), begin, end)
        for is_window in (False, True):
            of_kind = anatomy.is_swa == is_window
            if of_kind.any():
                cells = np.minimum(n_cells, cells_of(anatomy, grid, is_window=is_window)) / 32
                k = _between(_cumulated(np.where(of_kind, anatomy.n_values_k, 0)), begin, end)
                v = _between(_cumulated(np.where(of_kind, anatomy.n_values_v, 0)), begin, end)
                total = total + cells * (k * grid.k32 + v * grid.v32)
        return total

    def attention_flop(self, n_tokens: Floats, n_cells: Floats, begin: Ints, end: Ints) -> Floats:
        """Products of queries with keys and of weights with values, for tokens that each see so many cells."""
        anatomy = self.anatomy
        heads = np.array(anatomy.facts.n_head, dtype=np.int64)
        width = np.where(anatomy.state_bytes > 0, 0, 2 * heads * (anatomy.head_k + anatomy.head_v))
        total = np.zeros_like(n_tokens)
        for is_window in (False, True):
            of_kind = anatomy.is_swa == is_window
            if of_kind.any():
                cells = np.minimum(n_cells, cells_of(anatomy, self.grid, is_window=is_window))
                total = total + n_tokens * cells * _between(_cumulated(np.where(of_kind, width, 0)), begin, end)
        return total

    @property
    def lends(self) -> bool:
        """Whether the first device works for matrices in main memory."""
        return bool(self.rig.devices) and self.rig.devices[0].offloads_ops

    def handovers(self) -> Floats:
        """From backend to backend and back, for experts and caches that are not where their block is."""
        experts = np.maximum(self.experts_from - self.first, 0) * bool(self.anatomy.facts.n_expert)
        caches = np.where(self.grid.offload_kqv, 0, self.trunk - self.first)
        n_used = sum(self.slices.end[i] > self.slices.begin[i] for i in range(self.n_devices)) + self.zero
        return np.asarray(2.0 * (experts + caches) + np.maximum(n_used - 1, 0))

    def mixed(self) -> Floats:
        """1 where both the host and a device hold blocks."""
        return ((self.first > 0) & self.has_output).astype(np.float64)


def _cumulated(of_block: Floats | Ints) -> Floats:
    return np.concatenate(([0.0], np.cumsum(of_block, dtype=np.float64)))


def _between(cumulated: Floats, begin: Ints, end: Ints) -> Floats:
    """Sum over blocks [begin, end); 0 where the slice is empty."""
    return np.asarray(cumulated[np.maximum(begin, end)] - cumulated[begin])


def _pad_256(n_cells: Ints | Floats) -> Ints:
    return (np.asarray(np.ceil(n_cells), dtype=np.int64) + 255) // 256 * 256

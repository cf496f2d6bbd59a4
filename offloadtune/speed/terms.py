"""How much of each term a passage has: what one decode step or one prompt reads, computes and hands over, and where.

Shapes: one entry a query (settings, prompt, depth); amounts are (n_terms, n_queries), in the order of `terms_of`. With
W bytes of weights, P parameters, u_E(m) = 1 - (1 - k/E)^m the share of E experts that m tokens touch, and n cells of
cache (in steps of 256, a window's at most):

    decode    weights W u_E(B), cache B (K + V bytes of n cells), blocks, for each device and the host;
              link: cache of blocks on devices that is kept in main memory; handovers between backends
    prefill   for each of ceil(N / u) ubatches of m tokens: flop 2 P m, attention 2 n_head (d_k + d_v) m n,
              weights W u_E(m^0.6), activations 6 flop / n_embd, blocks; link: weights of host blocks, where a device
              works for the host (op offload, from 32 tokens on), and the cache of those blocks, whose attention the
              device computes too

A sequence or prompt asks for one output, so the output layer computes once a prompt and once a sequence and step.
Sources: ggml-backend.cpp (splits, copies of inputs), llama-context.cpp (ubatches, outputs), llama-kv-cache.cpp (cells).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint.anatomy import Anatomy, Bools, ById, Ints, anatomy_of, parameters_of, places_of
from offloadtune.footprint.compute import N_TOKENS_OFFLOADED
from offloadtune.footprint.grid import HOST, Grid
from offloadtune.footprint.weights import cells_of, slices_of
from offloadtune.records import GgufFacts
from offloadtune.speeds import Phase, Rig

Floats = NDArray[np.float64]

N_AT_ONCE = 5_000
"""Queries whose arrays stay in the processor's cache."""

_PROMPT_VARIETY = 0.6
"""m tokens of one prompt ask for as many experts as m^0.6 tokens of unrelated texts would: neighbours ask for the same.

By prompts of 256 to 8192 tokens in gpt-oss-120b whose experts were copied to an RTX 3090 (benchmarks/data).
"""

_BYTES_PASSED = 6.0
"""Between the products of a token, an operation, times the model's width: about as many values as weights by that
width, each of 4 bytes, written once and read twice, where a weight is two operations."""

_STEPS_OF_EXPERTS = 0.8
_STEPS_OF_STATE = 0.5
"""How many more kernels than a plain block's, as a part of them, a block with experts starts, and a recurrent one.

By decode of gpt-oss, Qwen 3.5 to 3.8 and others beside plain models on the same cards (benchmarks/data).
"""

_OF_PLACE = {
    Phase.DECODE: ("weights", "cache", "plain_cache", "blocks"),
    Phase.PREFILL: ("flop", "attention", "plain_attention", "weights", "activations", "blocks"),
}
_OF_ALL = {
    Phase.DECODE: ("link", "handovers", "mixed", "steps"),
    Phase.PREFILL: ("link_pinned", "link_pageable", "streamed_blocks", "mixed", "ubatches", "prompts"),
}
_UNITS = {"flop": "flop", "attention": "flop", "plain_attention": "flop"} | dict.fromkeys(
    ("weights", "cache", "plain_cache", "activations", "link", "link_pinned", "link_pageable"), "bytes"
)

_WORDS = {
    "weights": "reading the weights",
    "cache": "reading the cache",
    "plain_cache": "reading the cache without flash attention",
    "blocks": "each block besides",
    "flop": "multiplying the weights",
    "attention": "attention",
    "activations": "passing values from product to product",
    "plain_attention": "attention without flash attention",
    "link": "fetching the cache from main memory",
    "handovers": "each handing over between devices",
    "mixed": "splitting the blocks over host and devices",
    "steps": "each token besides",
    "link_pinned": "copying weights to the device",
    "link_pageable": "copying mapped weights to the device",
    "streamed_blocks": "each block computed by the device for the host",
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
    def what(self) -> str:
        """What takes the time, wherever it is done."""
        return _WORDS[self.kind]

    @property
    def words(self) -> str:
        """What takes the time and where, as the subject of a sentence."""
        where = {"": "", "host": " of the host"}.get(self.place, f" of device {self.place}")
        return f"{self.what}{where}"


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
    parts = [
        Placed(facts, grid[part], rig).amounts(phase, work[part])
        for part in (slice(i, i + N_AT_ONCE) for i in range(0, max(len(grid), 1), N_AT_ONCE))
    ]
    return np.concatenate(parts, axis=1)


class Placed:
    """A file's blocks on the places of each setting: what each place holds, and the amounts of passages over them."""

    def __init__(self, facts: GgufFacts, grid: Grid, rig: Rig) -> None:
        blocks = _blocks_of(ById(facts))
        self.blocks, self.grid = blocks, grid
        n_devices = len(rig.devices)
        lends = bool(rig.devices) and rig.devices[0].offloads_ops
        slices = slices_of(grid, blocks.n_layer, rig.shares or [1.0] * max(n_devices, 1))
        first = np.minimum(slices.first, blocks.n_trunk)
        experts_from = np.minimum(grid.n_cpu_moe, blocks.n_trunk)  # experts of blocks before this one are on the host
        self.devices: list[_Share] = []
        n_used = np.zeros_like(first)
        for begin, end in zip(slices.begin[:n_devices], slices.end[:n_devices], strict=True):
            low, high = np.minimum(begin, blocks.n_trunk), np.minimum(end, blocks.n_trunk)
            kept = np.maximum(low, experts_from), np.maximum(high, experts_from)
            has_output = np.asarray((begin <= blocks.n_layer) & (end > blocks.n_layer))
            self.devices.append(_Share.of(blocks, (low, high), kept, has_output))
            n_used += end > begin
        zero, has_output = np.zeros_like(first), np.asarray(slices.first <= blocks.n_layer)
        self.host = _Share.of(blocks, (zero, first), (zero, np.maximum(first, experts_from)), ~has_output)
        self.attends_on_device = grid.offload_kqv | grid.flash
        self.is_away = ~grid.offload_kqv & grid.flash  # the cache, from devices that attend to it
        self.is_lent = grid.op_offload & grid.has_devices & lends
        self.mixed = ((first > 0) & has_output).astype(np.float64)
        experts_away = np.maximum(experts_from - first, 0) * bool(blocks.has_experts)
        caches_away = np.where(grid.offload_kqv, 0, blocks.n_trunk - first)
        self.handovers = 2.0 * (experts_away + caches_away) + np.maximum(n_used - 1, 0)

    def amounts(self, phase: Phase, work: Work) -> Floats:
        """Amounts of a phase, shape (n_terms, n_queries)."""
        return self._decode(work) if phase is Phase.DECODE else self._prefill(work)

    def _decode(self, work: Work) -> Floats:
        """One step of `n_seq` sequences, each a token at `depth`."""
        n_seq = work.n_seq.astype(np.float64)
        cells, touched, flash = _pad_256(work.depth + 1), self._touched(n_seq), self.grid.flash
        rows: list[Floats] = []
        link = kept_back = np.zeros_like(n_seq)
        for share in self.devices:
            cache = n_seq * self._cache_bytes(share, cells)
            link, kept_back = link + cache * self.is_away, kept_back + cache * ~self.attends_on_device
            here = cache * self.attends_on_device
            rows += [self._weights(share, touched), here * flash, here * ~flash, share.n_steps + share.has_output]
            rows[-4] = rows[-4] + share.has_output * self.blocks.output_bytes
        # the CPU passes over masked cells, and reads recurrent states as it reads weights
        states = 2.0 * n_seq * self.host.state_bytes
        weights = self._weights(self.host, touched) + self.host.has_output * self.blocks.output_bytes + states
        seen = np.where(flash, work.depth + 1, cells)
        cache = (n_seq * self._cache_bytes(self.host, seen) - states + kept_back) * work.slower_memory
        rows += [weights * work.slower_memory, cache * flash, cache * ~flash, self.host.n_blocks]
        return np.stack([*rows, link, self.handovers, self.mixed, np.ones_like(n_seq)])

    def _prefill(self, work: Work) -> Floats:
        """A prompt, ubatch by ubatch: the full ones alike, and what is left of it in a last one."""
        n_each = self.grid.n_ubatch.astype(np.float64)
        n_full = np.floor(work.n_prompt / n_each)
        n_rest = work.n_prompt - n_full * n_each
        cells_full = work.depth + n_each * (n_full + 1) / 2  # on average over the full ubatches
        total = n_full * self._ubatch(n_each, cells_full, work)
        if n_rest.any():
            cells_rest = np.asarray(work.depth + work.n_prompt, dtype=np.float64)
            total += (n_rest > 0) * self._ubatch(n_rest, cells_rest, work)
        flop, n_bytes = (_OF_PLACE[Phase.PREFILL].index(kind) for kind in ("flop", "weights"))
        for i, share in enumerate((*self.devices, self.host)):  # the output computes for one token
            is_host, row = share is self.host, i * len(_OF_PLACE[Phase.PREFILL])
            total[row + flop] += share.has_output * self.blocks.output_flop * (work.slower_compute if is_host else 1.0)
            total[row + n_bytes] += share.has_output * self.blocks.output_bytes * (work.slower_memory if is_host else 1)
        n_ubatches = n_full + (n_rest > 0)
        return np.concatenate([total, [n_ubatches * self.mixed, n_ubatches, np.ones_like(n_rest)]])

    def _ubatch(self, n_tokens: Floats, n_cells: Floats, work: Work) -> Floats:
        """The amounts of one ubatch whose tokens see `n_cells` on average, all but what counts ubatches and prompts."""
        touched, flash, cells = self._touched(n_tokens**_PROMPT_VARIETY), self.grid.flash, _pad_256(n_cells)
        is_lent = self.is_lent & (n_tokens >= N_TOKENS_OFFLOADED)
        attends = [self._attention(share, n_tokens, n_cells) for share in self.devices]
        host_attends = self._attention(self.host, n_tokens, n_cells)
        host_flop, host_weights = n_tokens * self.host.flop, self._weights(self.host, touched)
        link = is_lent * host_weights
        if is_lent.any():  # without flash attention V lies transposed, and goes with the whole context's rows
            link = link + is_lent * self._cache_bytes(self.host, cells, np.where(flash, cells, self.grid.n_cells))
        if self.is_away.any():
            link = link + self.is_away * sum(self._cache_bytes(share, cells) for share in self.devices)
        rows: list[Floats] = []
        for i, (share, attention) in enumerate(zip(self.devices, attends, strict=True)):
            flop, weights = n_tokens * share.flop, self._weights(share, touched)
            attention_here = attention * self.attends_on_device
            if i == 0:  # the one that works for the host
                flop, weights = flop + is_lent * host_flop, weights + is_lent * host_weights
                attention_here = attention_here + is_lent * host_attends
            passed = flop * self.blocks.bytes_passed
            rows += [flop, attention_here * flash, attention_here * ~flash, weights, passed, share.n_steps]
        on_host = host_attends * ~is_lent + sum(attends) * ~self.attends_on_device
        on_host = on_host * work.slower_compute
        host_flop = host_flop * ~is_lent
        rows += [host_flop * work.slower_compute, on_host * flash, on_host * ~flash]
        passed = host_flop * self.blocks.bytes_passed * work.slower_memory
        rows += [host_weights * ~is_lent * work.slower_memory, passed, self.host.n_blocks * ~is_lent]
        return np.stack([*rows, link * work.is_pinned, link * ~work.is_pinned, self.host.n_blocks * is_lent])

    def _touched(self, n_tokens: Floats) -> Floats | float:
        """Share of a block's experts that so many tokens need."""
        return np.asarray(1.0 - (1.0 - self.blocks.used_frac) ** n_tokens) if self.blocks.has_experts else 1.0

    def _weights(self, share: _Share, touched: Floats | float) -> Floats:
        """Bytes of the blocks of a place that are read."""
        return share.dense_bytes + touched * share.expert_bytes

    def _cache_bytes(self, share: _Share, n_cells: Ints, n_cells_v: Ints | None = None) -> Floats:
        """Bytes of cache that one sequence reads in the blocks of a place, recurrent states written back too.

        `n_cells_v` are those of V where they are not as many as of K.
        """
        total = 2.0 * share.state_bytes
        for kind, (k, v, _) in zip(self.blocks.kinds, share.of_kinds, strict=True):
            most = cells_of(self.blocks.anatomy, self.grid, is_window=kind)
            cells = np.minimum(n_cells, most) / 32
            cells_v = cells if n_cells_v is None else np.minimum(n_cells_v, most) / 32
            total = total + cells * k * self.grid.k32 + cells_v * v * self.grid.v32
        return total

    def _attention(self, share: _Share, n_tokens: Floats, n_cells: Floats) -> Floats:
        """Products of queries with keys and of weights with values, for tokens that each see so many cells."""
        total = np.zeros_like(n_tokens)
        for kind, (_, _, width) in zip(self.blocks.kinds, share.of_kinds, strict=True):
            cells = np.minimum(n_cells, cells_of(self.blocks.anatomy, self.grid, is_window=kind))
            total = total + n_tokens * cells * width
        return total


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """A file's blocks summed from the first on, each array (n_sums, n_trunk + 1), for differences between bounds.

    `whole` has bytes and operations a token of all but experts, recurrent state, kernels (a plain block's count as 1),
    and for each of `kinds` (False for whole contexts, True for windows) values of K, values of V and operations of
    attention a token and cell. `experts` has bytes of all and operations of those used.
    """

    anatomy: Anatomy
    n_layer: int
    n_trunk: int
    kinds: tuple[bool, ...]
    whole: Floats
    experts: Floats
    has_experts: bool
    used_frac: float
    output_bytes: float
    output_flop: float
    bytes_passed: float


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one place holds in each setting; arrays (n_settings,). `n_steps` are blocks counted by their kernels."""

    n_blocks: Floats
    n_steps: Floats
    dense_bytes: Floats
    expert_bytes: Floats | float
    flop: Floats
    state_bytes: Floats
    of_kinds: tuple[tuple[Floats, Floats, Floats], ...]
    has_output: Bools

    @classmethod
    def of(cls, blocks: _Blocks, bounds: tuple[Ints, Ints], experts: tuple[Ints, Ints], has_output: Bools) -> _Share:
        """Whole blocks between `bounds` and experts of those between other bounds."""
        begin, end = bounds
        whole = blocks.whole.take(np.maximum(begin, end), 1) - blocks.whole.take(begin, 1)
        n_bytes, flop, state, n_steps, *rest = whole
        expert_bytes: Floats | float = 0.0
        if blocks.has_experts:
            low, high = experts
            expert_bytes, more = blocks.experts.take(np.maximum(low, high), 1) - blocks.experts.take(low, 1)
            flop = flop + more
        return cls(
            n_blocks=np.maximum(end - begin, 0).astype(np.float64),
            n_steps=n_steps,
            dense_bytes=n_bytes,
            expert_bytes=expert_bytes,
            flop=flop,
            state_bytes=state,
            of_kinds=tuple((k, v, width) for k, v, width in zip(rest[::3], rest[1::3], rest[2::3], strict=True)),
            has_output=has_output,
        )


@lru_cache(maxsize=8)
def _blocks_of(key: ById) -> _Blocks:
    facts = key.facts
    anatomy = anatomy_of(facts)
    n_bytes, values = places_of(anatomy, HOST), parameters_of(anatomy)
    used_frac = min(1.0, facts.n_expert_used / facts.n_expert) if facts.n_expert else 1.0
    width = 2 * np.array(facts.n_head, dtype=np.int64) * (anatomy.head_k + anatomy.head_v)
    width = np.where(anatomy.state_bytes > 0, 0, width)
    n_steps = 1.0 + _STEPS_OF_EXPERTS * (n_bytes.experts[:-1] > 0) + _STEPS_OF_STATE * (anatomy.state_bytes > 0)
    kinds = tuple(kind for kind in (False, True) if (anatomy.is_swa == kind).any())
    of_kinds = [
        np.where(anatomy.is_swa == kind, amount, 0)
        for kind in kinds
        for amount in (anatomy.n_values_k, anatomy.n_values_v, width)
    ]
    return _Blocks(
        anatomy=anatomy,
        n_layer=anatomy.n_layer,
        n_trunk=anatomy.n_trunk,
        kinds=kinds,
        whole=_cumulated(n_bytes.dense[:-1], 2 * values.dense[:-1], anatomy.state_bytes, n_steps, *of_kinds),
        experts=_cumulated(n_bytes.experts[:-1], 2 * used_frac * values.experts[:-1]),
        has_experts=bool(n_bytes.experts.any()),
        used_frac=used_frac,
        output_bytes=float(n_bytes.dense[-1] + n_bytes.tied_copy),  # a tied output is the embedding
        output_flop=2.0 * float(values.dense[-1] + values.tied_copy),
        bytes_passed=_BYTES_PASSED / facts.n_embd,
    )


def _cumulated(*of_block: NDArray[Any]) -> Floats:
    sums = np.cumsum(np.stack(of_block), axis=1, dtype=np.float64)
    return np.concatenate([np.zeros((len(of_block), 1)), sums], axis=1)


def _pad_256(n_cells: Ints | Floats) -> Ints:
    return (np.asarray(np.ceil(n_cells), dtype=np.int64) + 255) // 256 * 256

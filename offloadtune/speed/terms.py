"""How much of each term a passage has: what one decode step or one prompt reads, computes and hands over, and where.

Shapes: one entry a query (settings, prompt, depth); amounts are (n_terms, n_queries), in the order of `terms_of`. With
W bytes of weights, P parameters, u_E(m) = 1 - (1 - k/E)^m the share of E experts that m tokens touch, and n cells of
cache (in steps of 256, a window's at most):

    decode    weights W u_E(B), cache B (K + V bytes of n cells), blocks, for each device and the host; flop 2 P for
              each sequence beyond those whose products are made while weights are read (8 on a device, 1 on the host);
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

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint.anatomy import Bools, ById, Ints
from offloadtune.footprint.grid import Grid
from offloadtune.footprint.weights import cells_of, slices_of
from offloadtune.records import GgufFacts
from offloadtune.speed.blocks import Floats, Share, blocks_of, ffn_between
from offloadtune.speeds import Phase, Rig

N_AT_ONCE = 5_000
"""Queries whose arrays stay in the processor's cache."""

_N_SEQ_READ_ALIKE = 8
"""So many sequences cost a device no more computing than it has time for while it reads the weights (mmvq.cuh)."""

_PROMPT_VARIETY = 0.6
"""m tokens of one prompt ask for as many experts as m^0.6 tokens of unrelated texts would: neighbours ask for the same.

By prompts of 256 to 8192 tokens in gpt-oss-120b whose experts were copied to an RTX 3090 (benchmarks/data).
"""

_OF_PLACE = {
    Phase.DECODE: ("weights", "cache", "plain_cache", "blocks", "flop"),
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
        blocks = blocks_of(ById(facts))
        self.blocks, self.grid = blocks, grid
        n_devices = len(rig.devices)
        self.lender = rig.lender
        self.skips = [not device.offloads_ops for device in rig.devices]  # as a CPU does, which these may be
        slices = slices_of(grid, blocks.n_layer, rig.shares or [1.0] * max(n_devices, 1))
        first_of_all = slices.first if n_devices else np.full_like(slices.first, blocks.n_layer + 1)
        first = np.minimum(first_of_all, blocks.n_trunk)
        experts_from = np.minimum(grid.n_cpu_moe, blocks.n_trunk)  # experts of blocks before this one are on the host
        ffn_from = np.minimum(grid.n_cpu_ffn, blocks.n_trunk)  # and so are other feed-forward weights before this one
        ffn_away = (first, np.maximum(first, ffn_from))
        self.devices: list[Share] = []
        n_used = np.zeros_like(first)
        for begin, end in zip(slices.begin[:n_devices], slices.end[:n_devices], strict=True):
            low, high = np.minimum(begin, blocks.n_trunk), np.minimum(end, blocks.n_trunk)
            kept = np.maximum(low, experts_from), np.maximum(high, experts_from)
            has_output = np.asarray((begin <= blocks.n_layer) & (end > blocks.n_layer))
            share = Share.of(blocks, (low, high), kept, has_output)
            spared = (low, np.minimum(high, ffn_from))
            self.devices.append(share.with_ffn(blocks, spared, times=-1) if ffn_from.any() else share)
            n_used += end > begin
        zero, has_output = np.zeros_like(first), np.asarray(first_of_all <= blocks.n_layer)
        self.host = Share.of(blocks, (zero, first), (zero, np.maximum(first, experts_from)), ~has_output)
        if ffn_from.any():
            self.host = self.host.with_ffn(blocks, ffn_away, times=1)
        self.attends_on_device = grid.offload_kqv | grid.flash
        self.is_away = ~grid.offload_kqv & grid.flash  # the cache, from devices that attend to it
        self.is_lent = grid.op_offload & grid.has_devices & (rig.lender is not None)
        self.mixed = ((first > 0) & has_output).astype(np.float64)
        experts_away = np.maximum(experts_from - first, 0) * bool(blocks.has_experts)
        caches_away = np.where(grid.offload_kqv, 0, blocks.n_trunk - first)
        n_away = experts_away + caches_away + ffn_between(blocks, ffn_away)[2]
        self.handovers = 2.0 * n_away + np.maximum(n_used - 1, 0)

    def amounts(self, phase: Phase, work: Work) -> Floats:
        """Amounts of a phase, shape (n_terms, n_queries)."""
        return self._decode(work) if phase is Phase.DECODE else self._prefill(work)

    def _decode(self, work: Work) -> Floats:
        """One step of `n_seq` sequences, each a token at `depth`."""
        n_seq = work.n_seq.astype(np.float64)
        cells, touched, flash = _pad_256(work.depth + 1), self._touched(n_seq), self.grid.flash
        rows: list[Floats] = []
        link = kept_back = np.zeros_like(n_seq)
        seen = np.where(flash, work.depth + 1, cells)  # the CPU passes over masked cells
        for share, skips in zip(self.devices, self.skips, strict=True):
            cache = self._cache_bytes(share, seen if skips else cells, n_seq=n_seq, skips=skips)
            link, kept_back = link + cache * self.is_away, kept_back + cache * ~self.attends_on_device
            here = cache * self.attends_on_device
            weights = self._weights(share, touched) + share.has_output * self.blocks.output_bytes
            rows += [weights, here * flash, here * ~flash, share.n_steps + share.has_output]
            rows += [np.maximum(n_seq - _N_SEQ_READ_ALIKE, 0) * self._step_flop(share)]
        # it reads recurrent states as it reads weights
        states = 2.0 * n_seq * self.host.state_bytes
        weights = self._weights(self.host, touched) + self.host.has_output * self.blocks.output_bytes + states
        cache = (self._cache_bytes(self.host, seen, n_seq=n_seq, skips=True) - states + kept_back) * work.slower_memory
        rows += [weights * work.slower_memory, cache * flash, cache * ~flash, self.host.n_blocks]
        rows += [(n_seq - 1) * self._step_flop(self.host) * work.slower_compute]
        return np.stack([*rows, link, self.handovers, self.mixed, np.ones_like(n_seq)])

    def _step_flop(self, share: Share) -> Floats:
        """Operations of one token of one sequence."""
        return share.flop + share.has_output * self.blocks.output_flop

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
        is_lent = self.is_lent & (n_tokens >= self.grid.lends_from)
        attends = [
            self._attention(share, n_tokens, n_cells, skips=skips)
            for share, skips in zip(self.devices, self.skips, strict=True)
        ]
        host_attends = self._attention(self.host, n_tokens, n_cells, skips=True)
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
            if i == self.lender:
                flop, weights = flop + is_lent * host_flop, weights + is_lent * host_weights
                lent = self._attention(self.host, n_tokens, n_cells, skips=False)
                attention_here = attention_here + is_lent * lent
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

    def _weights(self, share: Share, touched: Floats | float) -> Floats:
        """Bytes of the blocks of a place that are read."""
        return share.dense_bytes + touched * share.expert_bytes

    def _cache_bytes(
        self,
        share: Share,
        n_cells: Ints,
        n_cells_v: Ints | None = None,
        n_seq: Floats | float = 1.0,
        *,
        skips: bool = False,
    ) -> Floats:
        """Bytes of cache that sequences read in the blocks of a place, recurrent states written back too.

        `n_cells` are those of each; `n_cells_v` those of V where they are not as many as of K. What sequences share is
        no longer than it is. `skips` where flash attention passes over what a window hides.
        """
        total = 2.0 * n_seq * share.state_bytes
        for kind, (k, v, _) in zip(self.blocks.kinds, share.of_kinds, strict=True):
            most = self._most_cells(is_window=kind, skips=skips)
            cells, cells_v = (
                np.where(self.grid.unified, np.minimum(n_seq * n, most), n_seq * np.minimum(n, most)) / 32
                for n in (n_cells, n_cells if n_cells_v is None else n_cells_v)
            )
            total = total + cells * k * self.grid.k32 + cells_v * v * self.grid.v32
        return total

    def _attention(self, share: Share, n_tokens: Floats, n_cells: Floats, *, skips: bool) -> Floats:
        """Products of queries with keys and of weights with values, of tokens the last of which sees so many cells.

        `skips` where flash attention passes over masked cells, as the CPU does (ggml-cpu/ops.cpp): those of later
        tokens of the ubatch, and those outside a window.
        """
        total = np.zeros_like(n_tokens)
        if skips:
            n_cells = np.where(self.grid.flash, n_cells - n_tokens / 2, n_cells)
        for kind, (_, _, width) in zip(self.blocks.kinds, share.of_kinds, strict=True):
            total = total + n_tokens * np.minimum(n_cells, self._most_cells(is_window=kind, skips=skips)) * width
        return total

    def _most_cells(self, *, is_window: bool, skips: bool) -> Ints:
        """Cells of one stream that are looked at, at most."""
        most = cells_of(self.blocks.anatomy, self.grid, is_window=is_window)
        window = max(self.blocks.anatomy.facts.n_swa, 1)
        return np.where(self.grid.flash, np.minimum(most, window), most) if is_window and skips else most


def _pad_256(n_cells: Ints | Floats) -> Ints:
    return (np.asarray(np.ceil(n_cells), dtype=np.int64) + 255) // 256 * 256

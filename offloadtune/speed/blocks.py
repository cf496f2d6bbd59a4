"""What a file's blocks read, compute and keep, summed so that any run of them is a difference of two sums.

share of a place = sums before the end of its blocks - sums before their beginning
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint.anatomy import Anatomy, Bools, ById, Ints, anatomy_of, parameters_of, places_of
from offloadtune.footprint.grid import HOST

Floats = NDArray[np.float64]

_BYTES_PASSED = 6.0
"""Bytes that pass between products, for an operation of a token, times the width of the model.

About as many values pass as there are weights by that width; each has 4 bytes, is written once and read twice, and a
weight is two operations.
"""

_STEPS_OF_EXPERTS = 0.8
_STEPS_OF_STATE = 0.5
"""How many more kernels than a plain block's, as a part of them, a block with experts starts, and a recurrent one.

By decode of gpt-oss, Qwen 3.5 to 3.8 and others beside plain models on the same cards (benchmarks/data).
"""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A file's blocks summed from the first on, each array (n_sums, n_trunk + 1), for differences between bounds.

    `whole` has bytes and operations a token of all but experts, recurrent state, kernels (a plain block's count as 1),
    and for each of `kinds` (False for whole contexts, True for windows) values of K, values of V and operations of
    attention a token and cell. `experts` has bytes of all and operations of those used; `ffn` has, of what `whole`
    holds in feed-forward networks, bytes, operations, and 1 for each block with one.
    """

    anatomy: Anatomy
    n_layer: int
    n_trunk: int
    kinds: tuple[bool, ...]
    whole: Floats
    experts: Floats
    ffn: Floats
    has_experts: bool
    used_frac: float
    output_bytes: float
    output_flop: float
    bytes_passed: float


@dataclass(frozen=True, kw_only=True)
class Share:
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
    def of(cls, blocks: Blocks, bounds: tuple[Ints, Ints], experts: tuple[Ints, Ints], has_output: Bools) -> Share:
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

    def with_ffn(self, blocks: Blocks, bounds: tuple[Ints, Ints], times: int) -> Share:
        """With the feed-forward networks of blocks between `bounds` as well, or with `times` -1 without them."""
        n_bytes, flop, _ = times * ffn_between(blocks, bounds)
        return dataclasses.replace(self, dense_bytes=self.dense_bytes + n_bytes, flop=self.flop + flop)


def ffn_between(blocks: Blocks, bounds: tuple[Ints, Ints]) -> Floats:
    """Bytes, operations and number of the feed-forward networks of blocks between `bounds`, (3, n_settings)."""
    begin, end = bounds
    return np.asarray(blocks.ffn.take(np.maximum(begin, end), 1) - blocks.ffn.take(begin, 1))


@lru_cache(maxsize=8)
def blocks_of(key: ById) -> Blocks:
    """The sums of a file, kept for the next question about the same record."""
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
    return Blocks(
        anatomy=anatomy,
        n_layer=anatomy.n_layer,
        n_trunk=anatomy.n_trunk,
        kinds=kinds,
        whole=_cumulated(n_bytes.dense[:-1], 2 * values.dense[:-1], anatomy.state_bytes, n_steps, *of_kinds),
        experts=_cumulated(n_bytes.experts[:-1], 2 * used_frac * values.experts[:-1]),
        ffn=_cumulated(n_bytes.ffn[:-1], 2 * values.ffn[:-1], n_bytes.ffn[:-1] > 0),
        has_experts=bool(n_bytes.experts.any()),
        used_frac=used_frac,
        output_bytes=float(n_bytes.dense[-1] + n_bytes.tied_copy),  # a tied output is the embedding
        output_flop=2.0 * float(values.dense[-1] + values.tied_copy),
        bytes_passed=_BYTES_PASSED / max(facts.n_embd, 1),
    )


def _cumulated(*of_block: NDArray[Any]) -> Floats:
    sums = np.cumsum(np.stack(of_block), axis=1, dtype=np.float64)
    return np.concatenate([np.zeros((len(of_block), 1)), sums], axis=1)

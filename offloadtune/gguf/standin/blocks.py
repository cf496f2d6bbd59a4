"""Random weights as ggml stores them: blocks that every kernel accepts, with the spread that a tensor should have.

A block is random bits around a scale in half precision, so any bits are weights once the scale is set. Only the types
without blocks are drawn as numbers. Zeros or one block over and over would run 5 to 15 % faster than real weights do;
so would one scale for all, by up to 30 %, where the engine looks scales up in a table, which then stays in the cache.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offloadtune.gguf.tables import TYPES_BY_NAME

Bytes = npt.NDArray[np.uint8]


class _Layout(NamedTuple):
    """How a block of random bits becomes one of weights.

    `spread` is that of the weights when scales spread around 1. `scales` are places of half-precision numbers and
    their multiples of the block's scale. `masks`, (places, bits that stay, bits that are set), keep the small scales
    within a block small: else the large ones would have to be denormal.
    """

    spread: float
    scales: tuple[tuple[int, float], ...] = ((0, 1.0),)
    masks: tuple[tuple[slice, int, int], ...] = ()


_SIX_BIT_SCALES = ((slice(4, 12), 0x06, 0x01), (slice(12, 16), 0x66, 0x11))

_LAYOUTS = {
    "Q4_0": _Layout(4.61),
    "Q4_1": _Layout(4.61, ((0, 1.0), (2, -7.5))),
    "Q5_0": _Layout(9.23),
    "Q5_1": _Layout(9.23, ((0, 1.0), (2, -15.5))),
    "Q8_0": _Layout(73.9),
    "Q2_K": _Layout(13.8, ((80, 1.0), (82, 1.5))),
    "Q3_K": _Layout(43.4, ((108, 1.0),)),
    "Q4_K": _Layout(31.9, ((0, 1.0), (2, 7.5)), _SIX_BIT_SCALES),
    "Q5_K": _Layout(64.7, ((0, 1.0), (2, 15.5)), _SIX_BIT_SCALES),
    "Q6_K": _Layout(84.9, ((208, 1.0),), ((slice(192, 208), 0x06, 0x01),)),
    "IQ2_XXS": _Layout(53.3),
    "IQ2_XS": _Layout(55.9),
    "IQ2_S": _Layout(56.4),
    "IQ3_XXS": _Layout(35.4, masks=((slice(69, 98, 4), 0x3F, 0),)),
    "IQ3_S": _Layout(35.0, masks=((slice(106, 110), 0x33, 0),)),
    "IQ1_S": _Layout(7.21),
    "IQ4_NL": _Layout(67.4),
    "IQ4_XS": _Layout(67.4, masks=((slice(2, 4), 0, 0xAA), (slice(4, 8), 0, 0x11))),
    "TQ1_0": _Layout(0.817, ((52, 1.0),)),
    "TQ2_0": _Layout(1.12, ((64, 1.0),)),
}

_LEAST_SPREAD = 1 / 128  # finer weights would need denormal scales
_SCALES_LOG_SPREAD, _RATIO_LOG_SPREAD = 0.4, 0.17
"""Of all scales of a type, and of a block's second over its first. Two real files have 0.2 to 0.4 within a tensor and
0.2 from one to the next, and 0.14 to 0.19."""

_SPREAD_IQ1_M, _PLACE_IQ1_M = 7.2, 48
_SPREAD_MXFP4, _EXPONENT_MXFP4 = 7.7, 128

BLOCK_TYPES = frozenset({"F32", "F16", "BF16", "IQ1_M", "MXFP4", *_LAYOUTS})
"""The types that can be written."""


def random_blocks(type_name: str, n_blocks: int, spread: float, chance: np.random.Generator) -> Bytes:
    """`n_blocks` blocks, one a row, of finite weights with a spread of about `spread`, and no less than 1/128."""
    ggml_type, spread = TYPES_BY_NAME[type_name], max(spread, _LEAST_SPREAD)
    if ggml_type.n_block == 1:
        values = spread * chance.standard_normal(n_blocks, dtype=np.float32)
        return as_stored(type_name, values).reshape(n_blocks, ggml_type.block_bytes)
    blocks = np.frombuffer(chance.bytes(n_blocks * ggml_type.block_bytes), dtype=np.uint8)
    blocks = blocks.reshape(n_blocks, ggml_type.block_bytes).copy()
    if type_name == "MXFP4":
        middle = _EXPONENT_MXFP4 + round(math.log2(spread / _SPREAD_MXFP4))
        blocks[:, 0] = middle + chance.integers(-1, 2, n_blocks)
        return blocks
    scales = spread * _around_one(_SCALES_LOG_SPREAD, n_blocks, chance)
    if type_name == "IQ1_M":
        bits = as_stored("F16", scales / np.float32(_SPREAD_IQ1_M)).view("<u2")
        for i in range(4):  # the scale's bits, four at a time, over the upper ends of four words
            place = _PLACE_IQ1_M + 2 * i + 1
            blocks[:, place] = blocks[:, place] & 0x0F | (bits >> 4 * i & 0x0F) << 4
        return blocks
    layout = _LAYOUTS[type_name]
    for places, stay, are_set in layout.masks:
        blocks[:, places] = blocks[:, places] & stay | are_set
    for place, multiple in layout.scales:
        stored = as_stored("F16", scales * np.float32(multiple / layout.spread))
        blocks[:, place : place + 2] = stored.reshape(n_blocks, 2)
        scales = scales * _around_one(_RATIO_LOG_SPREAD, n_blocks, chance)
    return blocks


def _around_one(log_spread: float, n: int, chance: np.random.Generator) -> npt.NDArray[np.float32]:
    """Positive numbers whose squares are 1 in the mean."""
    logs = log_spread * chance.standard_normal(n) - log_spread**2
    return np.exp(logs).astype(np.float32)


def as_stored(type_name: str, values: npt.NDArray[np.float32]) -> Bytes:
    """The bytes of `values` in F32, F16 or BF16; what would be denormal in half precision becomes its least normal."""
    if type_name == "F32":
        return values.astype("<f4").view(np.uint8)
    if type_name == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8)
    least = np.finfo(np.float16).tiny
    normal = np.where(np.abs(values) < least, np.copysign(least, values), values)
    return normal.astype("<f2").view(np.uint8)

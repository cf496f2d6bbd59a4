"""Random blocks of every type, read back by the `gguf` package: weights of the spread asked for, all of them sound."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from offloadtune.gguf.standin.blocks import BLOCK_TYPES, as_stored, random_blocks
from offloadtune.gguf.tables import TYPES_BY_NAME

N_WEIGHTS = 1 << 18
POWERS_OF_TWO = {"MXFP4"}  # whose scale is one


def weights(type_name: str, spread: float, seed: int = 1) -> Any:
    n_blocks = N_WEIGHTS // TYPES_BY_NAME[type_name].n_block
    blocks = random_blocks(type_name, n_blocks, spread, np.random.default_rng(seed))
    assert blocks.shape == (n_blocks, TYPES_BY_NAME[type_name].block_bytes)
    return dequantize(blocks.reshape(1, -1), gguf.GGMLQuantizationType[type_name])


@pytest.mark.parametrize("n_row", [64, 4096, 16384])
@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
def test_weights_are_finite_and_of_the_spread_asked_for(type_name: str, n_row: int) -> None:
    values = weights(type_name, n_row**-0.5) * n_row**0.5
    assert values.size == N_WEIGHTS
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(1, rel=0.35 if type_name in POWERS_OF_TWO else 0.05)
    assert abs(values.mean()) < 0.5


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES))
def test_no_weight_and_no_scale_is_denormal(type_name: str) -> None:
    values = weights(type_name, 0.0)  # the finest that is asked for
    assert np.abs(values[values != 0]).min() > np.finfo(np.float32).tiny
    assert (values == 0).mean() < 0.4  # three values make a third of them zero


@pytest.mark.parametrize("type_name", sorted(BLOCK_TYPES - {"F32", "F16", "BF16"}))
def test_blocks_differ_from_each_other_and_from_seed_to_seed(type_name: str) -> None:
    one, same, other = (random_blocks(type_name, 4096, 0.02, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert len(np.unique(one, axis=0)) == len(one)
    assert (one == same).all()
    assert (one != other).any()


def test_half_precision_keeps_signs_and_has_no_denormals() -> None:
    stored = as_stored("F16", np.array([1e-6, -1e-6, 0.5], dtype=np.float32)).view(np.float16)
    assert stored.tolist() == [np.finfo(np.float16).tiny, -np.finfo(np.float16).tiny, 0.5]

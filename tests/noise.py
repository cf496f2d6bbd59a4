"""Timings with noise as machines make it: swings of 20 % that last from one visit to the next, stalls, heavy tails."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LAWS = ("normal", "t3", "stalls")
SWING_LOG = 0.2


def series(random: np.random.Generator, n_series: int, n: int, *, law: str = "normal", rho: float = 0.0) -> Floats:
    """`n_series` rows of n seconds about 1: the exponential of an order-one autoregression."""
    shape = (n_series, n)
    if law == "normal":
        shocks = random.normal(size=shape)
    elif law == "t3":
        shocks = random.standard_t(3, size=shape) / math.sqrt(3)
    else:
        shocks = 0.3 * random.normal(size=shape) + (random.random(shape) < 0.1) * random.exponential(3, size=shape)
    logs = shocks.copy()
    for i in range(1, n):
        logs[:, i] = rho * logs[:, i - 1] + math.sqrt(1 - rho**2) * shocks[:, i]
    seconds: Floats = np.exp(SWING_LOG * logs)
    return seconds


def rounds(
    random: np.random.Generator, n_series: int, n_pairs: int, *, law: str = "normal", rho: float = 0.0
) -> Floats:
    """Pairs of one machine with itself, `[series, pair, A or B]`; which one comes first is drawn for each pair."""
    visits = series(random, n_series, 2 * n_pairs, law=law, rho=rho).reshape(n_series, n_pairs, 2)
    is_swapped = random.random((n_series, n_pairs, 1)) < 0.5
    pairs: Floats = np.where(is_swapped, visits[..., ::-1], visits)
    return pairs

"""Student's t far out in its tails, where tables end and expansions about the normal law are too narrow."""

from __future__ import annotations

import functools
import math


def upper_tail(t: float, n_freedom: int) -> float:
    """Chance of a value above `t`, 0 or more, by the finite series (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(n_freedom))
    sine, cosine_squared = math.sin(angle), math.cos(angle) ** 2
    is_odd = n_freedom % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for k in range(n_freedom // 2):
        total += term
        term *= cosine_squared * ((2 * k + 2) / (2 * k + 3) if is_odd else (2 * k + 1) / (2 * k + 2))
    inside = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return (1 - inside) / 2


@functools.cache
def upper_quantile(chance: float, n_freedom: int) -> float:
    """The t, 0 or more, that is exceeded with `chance`, from 1e-9 to 0.5."""
    if not 1e-9 <= chance <= 0.5 or n_freedom < 1:  # below, rounding errors of the series show
        raise ValueError(f"no quantile for a chance of {chance} with {n_freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while upper_tail(high, n_freedom) > chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, n_freedom) > chance else (low, middle)
    return high

"""What every statistic here asks of its samples: enough of them, each a positive and finite number."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LOG_RATIO_LIMIT = 250 * math.log(10)


def checked(samples: Sequence[float], n_at_least: int, what: str = "samples") -> list[float]:
    """`samples` as a list, or a ValueError that says what is wrong with them and where."""
    values = list(samples)
    if len(values) < n_at_least:
        raise ValueError(f"{what}: at least {n_at_least} are needed, there are {len(values)}")
    for i, value in enumerate(values):
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{what}: number {i} (from 0) is {value}, not a positive finite number")
    return values


def checked_frac(frac: float, what: str) -> float:
    """`frac` where it lies strictly between 0 and 1, else a ValueError."""
    if not 0 < frac < 1:
        raise ValueError(f"{what} is {frac}, not strictly between 0 and 1")
    return frac


def checked_noise(noise_frac: float) -> float:
    """`noise_frac` where it is a finite share from 0 up, else a ValueError."""
    if not math.isfinite(noise_frac) or noise_frac < 0:
        raise ValueError(f"noise_frac is {noise_frac}, not a finite number from 0 up")
    return noise_frac


def log_ratios(a: Sequence[float], b: Sequence[float], n_at_least: int = 1) -> list[float]:
    """log(b / a) of each pair; a ValueError where the two have unlike lengths."""
    firsts, seconds = checked(a, n_at_least, "samples of A"), checked(b, n_at_least, "samples of B")
    if len(firsts) != len(seconds):
        raise ValueError(f"pairs are incomplete: {len(firsts)} samples of A, {len(seconds)} of B")
    logs = [math.log(second) - math.log(first) for first, second in zip(firsts, seconds, strict=True)]
    if max(map(abs, logs)) > _LOG_RATIO_LIMIT:
        raise ValueError("samples of A and B differ by more than a factor of 1e250: they are not of one quantity")
    return logs

"""Drift of a session: whether a figure goes up or down with time, and how fast."""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offloadtune.stats.samples import checked

SIGNIFICANCE = 0.05
_N_EXACT = 40
_N_AUTOCORRELATION = 10  # below, an autocorrelation cannot be told from chance
_NORMAL = statistics.NormalDist()
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Change with time, as a share of the median per hour, with its 95 % interval.

    `p_value` is the chance of so clear a trend without any drift; `span_s` is what was watched, and a rate per hour
    is an extrapolation where that is less.
    """

    drift_frac_per_hour: float
    low_frac_per_hour: float
    high_frac_per_hour: float
    p_value: float
    span_s: float
    n_samples: int

    @property
    def percent_per_hour(self) -> float:
        return 100 * self.drift_frac_per_hour

    @property
    def session_frac(self) -> float:
        """Change over the session watched, as a share of the median."""
        return self.drift_frac_per_hour * self.span_s / 3600

    @property
    def is_significant(self) -> bool:
        return self.p_value < SIGNIFICANCE


def estimate_drift(at_s: Sequence[float], samples: Sequence[float]) -> Drift:
    """Mann-Kendall test for a trend of `samples` taken at `at_s` seconds, with the Theil-Sen slope.

    Mann, Econometrica 13 (1945), 245-259; Kendall, Rank Correlation Methods (variance with ties); Sen, JASA 63 (1968),
    1379-1389 (slope and interval). The test is exact up to 40 samples without ties, normal with continuity correction
    else. From 10 samples on, noise that outlasts a sample widens the variance by the lag-one autocorrelation of the
    ranks of what the slope leaves (Yue and Wang, Water Resources Management 18 (2004), 201-218); without that,
    neighbours that are slow together pass for a trend.

    Simulated false alarms: 2 to 4 % for independent samples, 4 to 6 % at an autocorrelation of 0.3, 5 to 10 % at 0.6
    and 12 to 16 % at 0.9, where a wander is as long as the session; below 10 samples, uncorrected, 15 % at 0.6.
    """
    values, times = np.array(checked(samples, 4)), np.array(list(at_s), dtype=float)
    if len(times) != len(values) or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise ValueError("at_s: one finite time for each sample is needed, each later than the one before")
    i, j = np.triu_indices(len(values), k=1)
    signs = np.sign(values[j] - values[i])
    slopes = np.sort((values[j] - values[i]) / (times[j] - times[i]))
    slope = float(np.median(slopes))
    # rounding errors have no order: residuals count to a billionth of the median
    inflation = _variance_inflation(np.round((values - slope * (times - times[0])) / np.median(values), 9))
    variance = _kendall_variance(values) * inflation
    reach = _NORMAL.inv_cdf(1 - SIGNIFICANCE / 2) * math.sqrt(variance)
    first = max(0, math.floor((len(slopes) - reach) / 2) - 1)
    per_hour = 3600 / float(np.median(values))
    return Drift(
        drift_frac_per_hour=slope * per_hour,
        low_frac_per_hour=float(slopes[first]) * per_hour,
        high_frac_per_hour=float(slopes[len(slopes) - 1 - first]) * per_hour,
        p_value=_p_value(round(float(signs.sum())), values, variance, is_independent=inflation == 1),
        span_s=float(times[-1] - times[0]),
        n_samples=len(values),
    )


def _p_value(score: int, values: Floats, variance: float, *, is_independent: bool) -> float:
    n = len(values)
    if is_independent and n <= _N_EXACT and len(set(values.tolist())) == n:
        n_inversions = (n * (n - 1) // 2 - abs(score)) // 2
        return min(1.0, 2 * sum(_inversions(n)[: n_inversions + 1]))
    if score == 0 or variance <= 0:
        return 1.0
    return math.erfc((abs(score) - 1) / math.sqrt(2 * variance))


@functools.cache
def _inversions(n: int) -> tuple[float, ...]:
    """Chance of 0, 1, ... inversions in a random order of n."""
    chances = np.ones(1)
    for size in range(2, n + 1):
        chances = np.convolve(chances, np.full(size, 1 / size))
    return tuple(chances.tolist())


def _kendall_variance(values: Floats) -> float:
    n = len(values)
    tied = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values.tolist()).values())
    return (n * (n - 1) * (2 * n + 5) - tied) / 18


def _variance_inflation(residuals: Floats) -> float:
    """Variance of a mean of n autocorrelated samples over that of independent ones; 1 where none is seen.

    Order-one autoregression (Matalas and Langbein, J. Geophys. Res. 67 (1962), 3441-3448) of the ranks, its
    coefficient freed of its bias about a fitted line, -(2 + 4 rho) / n to first order (about a mean it is
    -(1 + 3 rho) / n: Kendall, Biometrika 41 (1954), 403-404).
    """
    n = len(residuals)
    if n < _N_AUTOCORRELATION:
        return 1.0
    ranks = _ranks(residuals) - (n - 1) / 2
    if not ranks.any():
        return 1.0
    raw = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks))
    rho = min(0.95, (n * raw + 2) / (n - 4))
    if rho <= 0:
        return 1.0
    return 1 + 2 * (rho ** (n + 1) - n * rho**2 + (n - 1) * rho) / (n * (rho - 1) ** 2)


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, group, n_equal = np.unique(values, return_inverse=True, return_counts=True)
    middles: Floats = np.cumsum(n_equal) - (n_equal + 1) / 2
    return middles[group]

"""Medians, ratios and verdicts of a sweep.

Median interval: order statistics of the binomial distribution (Conover, Practical Nonparametric Statistics, 3.2);
no shape is assumed, and with few samples the interval is the whole range with its true, lower coverage.
Ratio: paired log-ratios with Student's t, one pair a round, because rounds are what the machine's drift is shared in.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from offloadtune.records import Estimate, Verdict

_COVERAGE = 0.95
# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom (any table of the t distribution)
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T_975_LIMIT = 2.13  # beyond the table: a little wide, never narrow


def estimate_median(samples: Sequence[float]) -> Estimate:
    """Median of `samples` with the narrowest symmetric order-statistics interval of at least 95 %, else the range."""
    ordered = sorted(samples)
    n = len(ordered)
    rank = max((k for k in range(n // 2) if _median_coverage(n, k) >= _COVERAGE), default=0)
    return Estimate(
        p50=statistics.median(ordered),
        low=ordered[rank],
        high=ordered[n - 1 - rank],
        n_samples=n,
        coverage_frac=round(_median_coverage(n, rank), 4),
    )


def estimate_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Ratio of two interleaved series, one pair a round, as geometric mean with its 95 % interval.

    With one round the interval is (0, infinity): nothing can be said.
    """
    logs = [math.log(top / bottom) for top, bottom in zip(numerators, denominators, strict=True)]
    n = len(logs)
    middle = statistics.fmean(logs)
    if n == 1:
        return Estimate(p50=math.exp(middle), low=0.0, high=math.inf, n_samples=1, coverage_frac=1.0)
    t = _T_975[n - 2] if n - 2 < len(_T_975) else _T_975_LIMIT
    reach = t * statistics.stdev(logs) / math.sqrt(n)
    return Estimate(
        p50=math.exp(middle),
        low=math.exp(middle - reach),
        high=math.exp(middle + reach),
        n_samples=n,
        coverage_frac=_COVERAGE,
    )


def judge(ratio: Estimate, noise_frac: float) -> Verdict:
    """Whether the other took longer (`faster`: we win), beyond both the interval and the noise of the sweep."""
    if ratio.low > 1 and ratio.p50 > 1 + noise_frac:
        return Verdict.FASTER
    if ratio.high < 1 and ratio.p50 < 1 / (1 + noise_frac):
        return Verdict.SLOWER
    return Verdict.SAME


def is_tie(ratio: Estimate, noise_frac: float) -> bool:
    """Whether the slower of two may stand for the faster: inside the noise, or inside an interval of enough rounds.

    Below three rounds the interval says next to nothing, and taking it for a tie would always choose the default.
    """
    return ratio.p50 <= 1 + noise_frac or (ratio.n_samples >= 3 and ratio.low <= 1)


def session_noise_frac(repeats: Sequence[Sequence[float]]) -> float:
    """A/A noise: median relative difference of neighbouring repeats of the same settings; 0 without repeats."""
    differences = [abs(math.log(after / before)) for series in repeats for before, after in itertools.pairwise(series)]
    return math.expm1(statistics.median(differences)) if differences else 0.0


def _median_coverage(n: int, rank: int) -> float:
    """Chance that the true median lies between the order statistics `rank` and n - 1 - `rank` (from 0)."""
    tail = sum(math.comb(n, k) for k in range(rank + 1)) / 2.0**n
    return max(0.0, 1 - 2 * tail)

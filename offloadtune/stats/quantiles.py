"""Quantiles with distribution-free intervals, and outliers flagged by their distance from the median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune.records import Estimate
from offloadtune.stats.samples import checked, checked_frac

OUTLIER_THRESHOLD = 3.5
_COVERAGE = 0.95
_SLACK = 1e-9  # 10 x (1 - 0.9) is one sample, not a little less


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileEstimate:
    """The `quantile_frac` quantile in the unit of the samples.

    `coverage_frac` is the chance that [`low`, `high`] holds the true quantile, exact for independent samples of a
    continuous law and a lower bound for others. Samples that are slow together speak for the time they were taken in
    only. Of a whole session's median the 95 % hold 77 to 82 % in simulation at an autocorrelation of 0.6, and on a
    machine shared with others a third (benchmarks/interval_coverage.py): it changes for longer than the samples last,
    and counting them as fewer, by their autocorrelation, brings that to a half, no more.
    What the samples are too few for is None, and `reason` says so.
    """

    quantile_frac: float
    value: float | None
    low: float | None
    high: float | None
    coverage_frac: float | None
    n_samples: int
    reason: str | None = None


def quantile(samples: Sequence[float], quantile_frac: float) -> float:
    """Quantile by linear interpolation at position (n - 1) p of the ordered samples, from 0.

    Definition 7 of Hyndman and Fan, Sample Quantiles in Statistical Packages, The American Statistician 50 (1996),
    361-365; NumPy's and R's default.
    """
    ordered = sorted(checked(samples, 1))
    position = (len(ordered) - 1) * checked_frac(quantile_frac, "quantile_frac")
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def estimate_quantile(
    samples: Sequence[float], quantile_frac: float, confidence_frac: float = 0.95
) -> QuantileEstimate:
    """Quantile with an equal-tailed interval between two order statistics, no shape assumed.

    The number of samples under the quantile is binomial, so each end's rank bounds its own tail by half of what
    `confidence_frac` leaves (David and Nagaraja, Order Statistics, 3rd ed., 7.1). The median needs 6 samples for an
    interval of 95 %, P95 needs 72; P95 as a figure needs 20, below which not one sample is expected beyond it.
    """
    ordered = sorted(checked(samples, 2))
    checked_frac(quantile_frac, "quantile_frac")
    checked_frac(confidence_frac, "confidence_frac")
    n, beyond = len(ordered), min(quantile_frac, 1 - quantile_frac)
    ranks = _ranks(n, quantile_frac, (1 - confidence_frac) / 2)
    if ranks is None or n * beyond < 1 - _SLACK:
        low = high = coverage = None
        reason = _too_few(n, quantile_frac, confidence_frac)
    else:
        (below, above), coverage = ranks
        low, high, reason = ordered[below - 1], ordered[above - 1], None
    return QuantileEstimate(
        quantile_frac=quantile_frac,
        value=quantile(ordered, quantile_frac) if n * beyond >= 1 - _SLACK else None,
        low=low,
        high=high,
        coverage_frac=coverage,
        n_samples=n,
        reason=reason,
    )


def estimate_median(samples: Sequence[float]) -> Estimate:
    """Median of `samples` with the narrowest symmetric order-statistics interval of at least 95 %, else the range.

    Few samples give the range with its true, lower coverage (Conover, Practical Nonparametric Statistics, 3.2). It is
    the median of the time in which the samples were taken: of that, visits that take turns with others hold 99 % and
    more (benchmarks/interval_coverage.py). A machine that is shared may be another an hour later.
    """
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


def modified_z_scores(samples: Sequence[float]) -> tuple[float, ...]:
    """0.6745 (x - median) / MAD of each sample: a z-score that outliers cannot hide in.

    Iglewicz and Hoaglin, How to Detect and Handle Outliers (ASQC, 1993). Where more than half of the samples are
    equal the MAD is 0 and the mean absolute deviation stands in, times 1.2533 (its ratio to sigma of a normal law);
    where all are equal, every score is 0.
    """
    values = checked(samples, 3)
    middle = statistics.median(values)
    deviations = [abs(value - middle) for value in values]
    scale = statistics.median(deviations) / 0.6745 or math.sqrt(math.pi / 2) * statistics.fmean(deviations)
    return tuple((value - middle) / scale if scale else 0.0 for value in values)


def outlier_flags(samples: Sequence[float], threshold: float = OUTLIER_THRESHOLD) -> tuple[bool, ...]:
    """Which samples have a modified z-score beyond `threshold`. To be shown, never dropped: a stall is data."""
    return tuple(abs(score) > threshold for score in modified_z_scores(samples))


def _median_coverage(n: int, rank: int) -> float:
    """Chance that the true median lies between the order statistics `rank` and n - 1 - `rank` (from 0)."""
    tail = sum(math.comb(n, k) for k in range(rank + 1)) / 2.0**n
    return max(0.0, 1 - 2 * tail)


def _ranks(n: int, quantile_frac: float, tail_frac: float) -> tuple[tuple[int, int], float] | None:
    """Ranks of the ends, from 1, and the chance that they enclose the quantile; None where an end is not there."""
    pmf = [_binomial(n, k, quantile_frac) for k in range(n + 1)]
    below, low_tail = 0, 0.0  # `low_tail`: at most below - 1 samples under the quantile
    while low_tail + pmf[below] <= tail_frac:
        low_tail += pmf[below]
        below += 1
    above, high_tail = n + 1, 0.0  # `high_tail`: at least `above` samples under it
    while high_tail + pmf[above - 1] <= tail_frac:
        high_tail += pmf[above - 1]
        above -= 1
    return ((below, above), 1 - low_tail - high_tail) if below >= 1 and above <= n else None


def _binomial(n: int, k: int, chance: float) -> float:
    log_ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log_ways + k * math.log(chance) + (n - k) * math.log1p(-chance))


def _too_few(n: int, quantile_frac: float, confidence_frac: float) -> str:
    farther = max(quantile_frac, 1 - quantile_frac)
    n_for_tail = math.ceil(math.log((1 - confidence_frac) / 2) / math.log(farther))
    n_needed = max(n + 1, n_for_tail, math.ceil(1 / (1 - farther) - _SLACK))
    name = f"the {100 * quantile_frac:g} % quantile"
    return f"{n} samples cannot bound {name} with {100 * confidence_frac:g} % confidence: {n_needed} are needed."

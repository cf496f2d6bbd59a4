"""Comparison of two settings from interleaved pairs, one sample of each a round.

The ratio's interval is the Wilcoxon signed-rank test turned round: order statistics of the Walsh averages of the log
ratios, about their median, the Hodges-Lehmann estimate (Hollander, Wolfe and Chicken, Nonparametric Statistical
Methods, 3rd ed., 3.1-3.3). It asks that log ratios lie symmetrically about the middle, which they do wherever A and B
share a law of noise, heavy-tailed or skewed as that may be. The sign test asks less, and pays: 99.2 % at 8 pairs.
Where pairs are too few for the ranks to reach the confidence asked for, Student's t of the log ratios stands in: it
asks that they be normal, and gives more than it promises where their tails are longer (Benjamini, JASA 78 (1983),
645-654).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.records import Estimate, Verdict
from offloadtune.stats.samples import checked, checked_frac, checked_noise, log_ratios

CONFIDENCE = 0.95
POWER = 0.8
N_PAIRS_DECISIVE = 6
"""Fewer pairs reach no interval of 95 % by ranks: all of n lie on one side with a chance of 2 ** (1 - n)."""
_N_EXACT = 100
_NORMAL = statistics.NormalDist()
_EXPONENT_LIMIT = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """`ratio` is B's time over A's, `verdict` is on B.

    `is_decided`: B is faster or slower, or the whole interval lies inside the noise. `n_more_pairs` would decide it
    with a chance of 80 % if ratio and spread stay as they are; 0 where it is decided, None where the ratio lies on the
    edge of the noise, so that no number of pairs would, or where one pair shows no spread.
    """

    ratio: Estimate
    verdict: Verdict
    is_decided: bool
    noise_frac: float
    n_more_pairs: int | None


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence_frac: float = CONFIDENCE) -> Estimate:
    """B over A from pairs, with a distribution-free interval; with fewer than 6 pairs by Student's t, with one none.

    Simulated coverage where A or B comes first by chance in each pair: 94.6 to 96.6 % at 7, 8, 10 and 20 pairs (6000
    series each), for swings of 20 % that are normal, Student's t of 3 degrees or rare one-sided stalls, with an
    autocorrelation from visit to visit of 0, 0.5 or 0.9; 94.7 to 97.3 % at 2 to 5 pairs. A fixed order A B A B covers
    96 to 98 % instead, A B B A 92 to 96 %: neighbouring pairs then share their noise. Six pairs cover 96.9 %, the first
    step of the exact test.
    """
    return estimate_from_logs(log_ratios(a, b), confidence_frac)


def compare_pairs(
    a_s: Sequence[float], b_s: Sequence[float], noise_frac: float, confidence_frac: float = CONFIDENCE
) -> PairedComparison:
    """Whether B takes less time than A, more, or the same within `noise_frac`, the A/A noise of the session.

    `confidence_frac` is that of this look, where it is one of several.
    """
    logs = log_ratios(a_s, b_s)
    checked_noise(noise_frac)
    ratio = estimate_from_logs(logs, confidence_frac)
    verdict, is_decided = verdict_of(ratio, noise_frac)
    return PairedComparison(
        ratio=ratio,
        verdict=verdict,
        is_decided=is_decided,
        noise_frac=noise_frac,
        n_more_pairs=0 if is_decided else _more_pairs(logs, ratio, noise_frac, confidence_frac),
    )


def inverse(ratio: Estimate) -> Estimate:
    """A over B of B over A."""
    return dataclasses.replace(
        ratio,
        p50=1 / ratio.p50,
        low=1 / ratio.high,
        high=1 / ratio.low if ratio.low else math.inf,
    )


def session_noise_frac(repeats: Sequence[Sequence[float]]) -> float:
    """Noise of one sample: median relative difference of neighbouring repeats of the same settings; 0 without any.

    What is smaller than that matters to nobody who takes one sample, however many pairs show it.
    """
    differences = [abs(math.log(after / before)) for series in repeats for before, after in itertools.pairwise(series)]
    return math.expm1(statistics.median(differences)) if differences else 0.0


def aa_noise(samples: Sequence[float]) -> float:
    """A/A noise as a share: half the width of the ratio interval between alternating halves of one series.

    `samples` are repeats of the same settings in the order they were taken, 12 at least; of an odd number the last is
    left out. It is the noise of a comparison of as many pairs, so it falls as the session goes on.
    """
    values = checked(samples, 2 * N_PAIRS_DECISIVE)
    n_even = len(values) // 2 * 2
    ratio = paired_ratio(values[0:n_even:2], values[1:n_even:2])
    return math.expm1(math.log(ratio.high / ratio.low) / 2)


def spread_of_pairs(a: Sequence[float], b: Sequence[float]) -> float:
    """Standard deviation of log(B / A) from pair to pair; 0.1 is about 10 %."""
    return statistics.stdev(log_ratios(a, b, 2))


def minimum_detectable_frac(
    spread_log: float, n_pairs: int, power_frac: float = POWER, confidence_frac: float = CONFIDENCE
) -> float:
    """Smallest true change, as a share, that `n_pairs` show at this confidence with a chance of `power_frac`.

    (t of the interval's true level + t of the power) times spread / sqrt(n), over the square root of 3 / pi, the
    efficiency of signed ranks for normal noise (Lehmann, Nonparametrics, 2.5 and 4.2). Infinite where ranks reach no
    such interval, for 95 % below six pairs. Simulated power where 80 % is asked: 73 % at 6 pairs, 79 to 83 % from 8 on;
    more with heavy tails.
    """
    if not math.isfinite(spread_log) or spread_log < 0:
        raise ValueError(f"spread_log is {spread_log}, not a finite number from 0 up")
    checked_frac(power_frac, "power_frac")
    checked_frac(confidence_frac, "confidence_frac")
    if n_pairs < N_PAIRS_DECISIVE:
        return math.inf
    _, coverage = _rank(n_pairs, confidence_frac)
    if coverage < confidence_frac:
        return math.inf
    quantiles = _t_quantile((1 + coverage) / 2, n_pairs - 1) + _t_quantile(power_frac, n_pairs - 1)
    exponent = quantiles * spread_log * math.sqrt(math.pi / 3 / n_pairs)
    return math.expm1(exponent) if exponent < 700 else math.inf


def pairs_needed(spread_log: float, change_frac: float, confidence_frac: float = CONFIDENCE) -> int:
    """Smallest number of pairs whose minimum detectable change, at a power of 80 %, is at most `change_frac`."""
    if not math.isfinite(change_frac) or change_frac <= 0:
        raise ValueError(f"change_frac is {change_frac}, not a positive finite number")

    def is_enough(n_pairs: int) -> bool:
        return minimum_detectable_frac(spread_log, n_pairs, confidence_frac=confidence_frac) <= change_frac

    above = N_PAIRS_DECISIVE
    while not is_enough(above):
        above *= 2
    below = max(N_PAIRS_DECISIVE - 1, above // 2)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if is_enough(middle) else (middle, above)
    return above


def estimate_from_logs(logs: Sequence[float], confidence_frac: float) -> Estimate:
    """Hodges-Lehmann estimate and signed-rank interval of log ratios, as a ratio; see the head for too few of them."""
    checked_frac(confidence_frac, "confidence_frac")
    rank, coverage = _rank(len(logs), confidence_frac)
    if coverage < confidence_frac:
        return _by_students_t(logs, confidence_frac)
    values = np.array(logs)
    i, j = np.triu_indices(len(values))
    walsh = np.sort((values[i] + values[j]) / 2)
    return Estimate(
        p50=math.exp(float(np.median(walsh))),
        low=math.exp(float(walsh[rank])),
        high=math.exp(float(walsh[len(walsh) - 1 - rank])),
        n_samples=len(values),
        coverage_frac=coverage,
    )


def verdict_of(ratio: Estimate, noise_frac: float) -> tuple[Verdict, bool]:
    """On B, from the ratio of its times to A's; and whether that is decided rather than open."""
    edge = 1 + noise_frac
    if ratio.high < 1 and ratio.p50 < 1 / edge:
        return Verdict.FASTER, True
    if ratio.low > 1 and ratio.p50 > edge:
        return Verdict.SLOWER, True
    return Verdict.SAME, 1 / edge <= ratio.low and ratio.high <= edge


def _by_students_t(logs: Sequence[float], confidence_frac: float) -> Estimate:
    """Geometric mean with its t interval; one pair has no ends."""
    middle, n = statistics.fmean(logs), len(logs)
    if n == 1:
        return Estimate(p50=math.exp(middle), low=0.0, high=math.inf, n_samples=1, coverage_frac=1.0)
    reach = _t_quantile((1 + confidence_frac) / 2, n - 1) * statistics.stdev(logs) / math.sqrt(n)
    return Estimate(
        p50=math.exp(middle),
        low=math.exp(max(middle - reach, -_EXPONENT_LIMIT)),
        high=math.exp(min(middle + reach, _EXPONENT_LIMIT)),
        n_samples=n,
        coverage_frac=confidence_frac,
    )


def _more_pairs(logs: Sequence[float], ratio: Estimate, noise_frac: float, confidence_frac: float) -> int | None:
    if len(logs) < 2:
        return None
    shift, noise = abs(math.log(ratio.p50)), math.log1p(noise_frac)
    spread = statistics.stdev(logs)
    if shift > noise:  # the interval is to leave 1 out, and the ratio itself to stay beyond the noise
        power = _NORMAL.inv_cdf(POWER)
        room = min(shift, (shift - noise) * (_NORMAL.inv_cdf((1 + confidence_frac) / 2) + power) / power)
    else:
        room = noise - shift
    if room <= spread * 1e-3:  # a million pairs and more
        return None
    return max(1, pairs_needed(spread, math.expm1(room), confidence_frac) - len(logs))


@functools.cache
def _rank(n: int, confidence_frac: float) -> tuple[int, float]:
    """Rank of the lower end among the ordered Walsh averages, from 0, and the coverage that it gives.

    Exact distribution of the signed-rank sum up to 100 pairs, normal beyond.
    """
    tail = (1 - confidence_frac) / 2
    if n > _N_EXACT:
        mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        rank = math.floor(mean + _NORMAL.inv_cdf(tail) * deviation - 0.5)
        return rank, 1 - 2 * _NORMAL.cdf((rank + 0.5 - mean) / deviation)
    chances = np.ones(1)
    for size in range(1, n + 1):
        step = np.zeros(size + 1)
        step[[0, size]] = 0.5
        chances = np.convolve(chances, step)
    at_most = np.cumsum(chances)
    rank = max(0, int(np.searchsorted(at_most, tail * (1 + 1e-12), side="right")) - 1)
    return rank, max(0.0, 1 - 2 * float(at_most[rank]))


@functools.cache
def _t_quantile(chance: float, n_freedom: int) -> float:
    """Student's t, exact below 30 degrees, from there by its expansion about the normal.

    Abramowitz and Stegun, 26.7.3 to 26.7.5.
    """
    if n_freedom >= 30:
        z = _NORMAL.inv_cdf(chance)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        return z + first / n_freedom + second / n_freedom**2
    low, high = -math.pi / 2, math.pi / 2  # of the angle whose tangent is t / sqrt(n_freedom)
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _t_chance(angle, n_freedom) < chance else (low, angle)
    return math.sqrt(n_freedom) * math.tan((low + high) / 2)


def _t_chance(angle: float, n_freedom: int) -> float:
    """Chance of a smaller t than that of this angle."""
    sine, cosine, is_odd = math.sin(angle), math.cos(angle), n_freedom % 2
    term = cosine if is_odd else 1.0
    total = term if n_freedom > 1 else 0.0
    for k in range(2 + is_odd, n_freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return (1 + inside) / 2

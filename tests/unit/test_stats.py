"""Intervals hold what they promise, and comparisons respect the noise."""

from __future__ import annotations

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import stats
from offloadtune.records import Estimate, Verdict

POSITIVE = st.floats(1e-3, 1e3)
SERIES = st.lists(POSITIVE, min_size=1, max_size=30)
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=20)


def ratio(p50: float, low: float, high: float, n_samples: int = 5) -> Estimate:
    return Estimate(p50=p50, low=low, high=high, n_samples=n_samples, coverage_frac=0.95)


# --- the median ----------------------------------------------------------------------------------------------------


def exact_coverage(n: int, below: int, above: int) -> Fraction:
    """Chance that the median of any continuous law lies between the order statistics number `below` and `above`.

    Each sample falls under the median like a coin; the interval holds it when at least `below` and fewer than `above`
    do. Counted from 1, coin by coin.
    """
    n_heads = [Fraction(1)]
    for _ in range(n):
        n_heads = [
            (left + right) / 2 for left, right in zip([*n_heads, Fraction(0)], [Fraction(0), *n_heads], strict=True)
        ]
    return sum(n_heads[below:above], Fraction(0))


@pytest.mark.parametrize("n", range(1, 41))
def test_median_interval_is_the_narrowest_that_holds_95_percent(n: int) -> None:
    estimate = stats.estimate_median([float(i) for i in range(1, n + 1)])
    below, above = int(estimate.low), int(estimate.high)
    assert below + above == n + 1
    assert estimate.coverage_frac == pytest.approx(float(exact_coverage(n, below, above)), abs=1e-4)
    if below > 1:
        assert estimate.coverage_frac >= 0.95
    if below + 1 < above - 1:
        assert exact_coverage(n, below + 1, above - 1) < Fraction(95, 100)


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15)])
def test_median_interval_has_the_ranks_of_the_tables(n: int, low: float, high: float) -> None:
    estimate = stats.estimate_median([float(i) for i in range(1, n + 1)])
    assert (estimate.low, estimate.high) == (low, high)


@pytest.mark.parametrize("n", [2, 5, 7, 12, 25])
def test_median_interval_covers_as_often_as_it_says(n: int) -> None:
    random = np.random.default_rng(20240607)
    n_draws = 4000
    draws = random.lognormal(mean=math.log(3.0), sigma=0.8, size=(n_draws, n))
    estimates = [stats.estimate_median(draw.tolist()) for draw in draws]
    covered = sum(estimate.low <= 3.0 <= estimate.high for estimate in estimates) / n_draws
    promised = estimates[0].coverage_frac
    assert covered == pytest.approx(promised, abs=4 * math.sqrt(promised * (1 - promised) / n_draws))


@pytest.mark.parametrize(("n", "coverage"), [(1, 0.0), (2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)])
def test_few_samples_give_the_range_with_its_true_lower_coverage(n: int, coverage: float) -> None:
    estimate = stats.estimate_median([float(i) for i in range(n)])
    assert (estimate.low, estimate.high, estimate.coverage_frac) == (0.0, n - 1.0, coverage)
    assert estimate.n_samples == n


@given(SERIES)
def test_order_of_the_samples_does_not_matter(samples: list[float]) -> None:
    assert stats.estimate_median(samples) == stats.estimate_median(sorted(samples, reverse=True))


@given(SERIES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_median_scales_with_its_samples(samples: list[float], factor: float) -> None:
    one, other = stats.estimate_median(samples), stats.estimate_median([factor * sample for sample in samples])
    assert (other.p50, other.low, other.high) == (one.p50 * factor, one.low * factor, one.high * factor)
    assert other.coverage_frac == one.coverage_frac
    assert one.low <= one.p50 <= one.high


# --- the ratio -----------------------------------------------------------------------------------------------------


def test_ratio_against_a_paired_t_interval_by_hand() -> None:
    """Logs 0.1, 0.2, 0.3: mean 0.2, deviation 0.1; Student's t of two degrees of freedom is 4.303."""
    estimate = stats.estimate_ratio([math.exp(0.1), math.exp(0.2), math.exp(0.3)], [1.0, 1.0, 1.0])
    reach = 4.303 * 0.1 / math.sqrt(3)
    assert estimate.p50 == pytest.approx(math.exp(0.2))
    assert estimate.low == pytest.approx(math.exp(0.2 - reach))
    assert estimate.high == pytest.approx(math.exp(0.2 + reach))
    assert (estimate.n_samples, estimate.coverage_frac) == (3, 0.95)


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062), (3, 4.3027), (4, 3.1824), (6, 2.5706), (11, 2.2281), (16, 2.1314)])
def test_ratio_uses_students_t(n: int, t: float) -> None:
    logs = [(-1) ** i * 0.01 for i in range(n)]
    estimate = stats.estimate_ratio([math.exp(log) for log in logs], [1.0] * n)
    reach = math.log(estimate.high / estimate.p50)
    assert reach * math.sqrt(n) / statistics.stdev(logs) == pytest.approx(t, rel=1e-3)


@pytest.mark.parametrize(("n", "t"), [(17, 2.1199), (31, 2.0423), (200, 1.972)])
def test_beyond_the_table_the_interval_is_a_little_wide_and_never_narrow(n: int, t: float) -> None:
    logs = [(-1) ** i * 0.01 for i in range(n)]
    estimate = stats.estimate_ratio([math.exp(log) for log in logs], [1.0] * n)
    used = math.log(estimate.high / estimate.p50) * math.sqrt(n) / statistics.stdev(logs)
    assert t <= used <= 1.1 * t


@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_ratio_interval_covers_95_percent(n: int) -> None:
    random = np.random.default_rng(7)
    n_draws = 4000
    tops = random.lognormal(mean=math.log(1.2), sigma=0.1, size=(n_draws, n))
    bottoms = random.lognormal(mean=0.0, sigma=0.1, size=(n_draws, n))
    covered = 0
    for top, bottom in zip(tops.tolist(), bottoms.tolist(), strict=True):
        estimate = stats.estimate_ratio(top, bottom)
        covered += estimate.low <= 1.2 <= estimate.high
    assert covered / n_draws > 0.95 - 4 * math.sqrt(0.05 * 0.95 / n_draws)
    assert covered / n_draws < 0.975


def test_ratio_pairs_the_rounds_so_that_shared_drift_cancels() -> None:
    drift = [1.0, 1.5, 0.7, 2.0]
    estimate = stats.estimate_ratio([1.1 * d for d in drift], drift)
    assert estimate.low == pytest.approx(1.1)
    assert estimate.high == pytest.approx(1.1)


def test_one_round_says_nothing() -> None:
    estimate = stats.estimate_ratio([5.0], [4.0])
    assert estimate.p50 == pytest.approx(1.25)
    assert (estimate.low, estimate.high) == (0.0, math.inf)


def test_rounds_of_unequal_number_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        stats.estimate_ratio([1.0, 2.0], [1.0])


@given(PAIRS)
def test_the_inverse_ratio_is_the_inverse(pairs: list[tuple[float, float]]) -> None:
    tops, bottoms = [top for top, _ in pairs], [bottom for _, bottom in pairs]
    one, other = stats.estimate_ratio(tops, bottoms), stats.estimate_ratio(bottoms, tops)
    assert one.p50 * other.p50 == pytest.approx(1)
    if len(pairs) > 1:
        assert one.low * other.high == pytest.approx(1)
        assert one.high * other.low == pytest.approx(1)
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER, Verdict.SAME: Verdict.SAME}
    assert stats.judge(other, 0.0) is opposite[stats.judge(one, 0.0)]


@given(PAIRS, st.floats(1e-2, 1e2))
def test_ratio_knows_no_unit(pairs: list[tuple[float, float]], factor: float) -> None:
    tops, bottoms = [top for top, _ in pairs], [bottom for _, bottom in pairs]
    one = stats.estimate_ratio(tops, bottoms)
    other = stats.estimate_ratio([factor * top for top in tops], [factor * bottom for bottom in bottoms])
    assert (other.p50, other.low, other.high) == pytest.approx((one.p50, one.low, one.high), rel=1e-6)


# --- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimate", "noise_frac", "verdict"),
    [
        (ratio(1.30, 1.20, 1.40), 0.05, Verdict.FASTER),
        (ratio(1.30, 0.99, 1.70), 0.05, Verdict.SAME),
        (ratio(1.03, 1.01, 1.05), 0.05, Verdict.SAME),
        (ratio(1.03, 1.01, 1.05), 0.02, Verdict.FASTER),
        (ratio(0.70, 0.60, 0.80), 0.05, Verdict.SLOWER),
        (ratio(0.70, 0.40, 1.01), 0.05, Verdict.SAME),
        (ratio(0.97, 0.95, 0.99), 0.05, Verdict.SAME),
        (ratio(1.00, 1.00, 1.00), 0.0, Verdict.SAME),
        (ratio(9.00, 0.00, math.inf, 1), 0.0, Verdict.SAME),
    ],
)
def test_verdicts_need_both_interval_and_noise(estimate: Estimate, noise_frac: float, verdict: Verdict) -> None:
    assert stats.judge(estimate, noise_frac) is verdict


@pytest.mark.parametrize(
    ("estimate", "noise_frac", "tie"),
    [
        (ratio(1.02, 1.01, 1.03), 0.05, True),  # inside the session's noise
        (ratio(1.10, 0.98, 1.23), 0.05, True),  # inside the interval
        (ratio(1.10, 1.05, 1.15), 0.05, False),
        (ratio(1.25, 0.00, math.inf, 1), 0.0, False),  # one round proves no tie
        (ratio(1.25, 0.50, 3.10, 2), 0.0, False),
        (ratio(1.25, 0.90, 1.70, 3), 0.0, True),
        (ratio(1.00, 1.00, 1.00, 1), 0.0, True),
    ],
)
def test_ties(estimate: Estimate, noise_frac: float, tie: bool) -> None:  # noqa: FBT001
    assert stats.is_tie(estimate, noise_frac) is tie


def test_session_noise_is_the_median_difference_of_neighbouring_repeats() -> None:
    assert stats.session_noise_frac([[1.0, 1.1, 1.0], [5.0, 5.0]]) == pytest.approx(0.1)
    assert stats.session_noise_frac([[1.0], []]) == 0
    assert stats.session_noise_frac([]) == 0


@given(st.lists(SERIES, max_size=5))
def test_session_noise_is_never_negative_and_knows_no_direction(repeats: list[list[float]]) -> None:
    noise = stats.session_noise_frac(repeats)
    assert noise >= 0
    assert stats.session_noise_frac([series[::-1] for series in repeats]) == pytest.approx(noise)
    largest = max((b / a if b > a else a / b for s in repeats for a, b in itertools.pairwise(s)), default=1.0)
    assert noise <= (largest - 1) * (1 + 1e-9) + 1e-9

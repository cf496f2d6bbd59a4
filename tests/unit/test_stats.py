"""The median and its interval hold what they promise; the noise of a session is that of one sample."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import stats

POSITIVE = st.floats(1e-3, 1e3)
SERIES = st.lists(POSITIVE, min_size=1, max_size=30)


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


# --- the noise of a session ---------------------------------------------------------------------------------------


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

"""A session's drift is found, measured per hour, and told from noise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import series

from offloadtune import stats

SERIES = st.lists(st.floats(1e-2, 1e2), min_size=4, max_size=30)


def seconds(samples: list[float], step_s: float = 10.0) -> list[float]:
    return [step_s * i for i in range(len(samples))]


def test_a_straight_rise_by_hand() -> None:
    """From 100 by 1 every 360 s: median 105, so 10 in an hour is 9.52 %; all 11 in order by chance: 2 in 11!."""
    samples = [100.0 + i for i in range(11)]
    drift = stats.estimate_drift(seconds(samples, 360), samples)
    assert drift.percent_per_hour == pytest.approx(1000 / 105)
    assert drift.low_frac_per_hour == pytest.approx(10 / 105)
    assert drift.high_frac_per_hour == pytest.approx(10 / 105)
    assert drift.session_frac == pytest.approx(10 / 105)
    assert drift.span_s == 3600
    assert drift.is_significant


@pytest.mark.parametrize("n", [4, 5, 6])
def test_chances_are_those_of_all_orders(n: int) -> None:
    def score(order: tuple[int, ...]) -> int:
        return abs(sum((b > a) - (b < a) for a, b in itertools.combinations(order, 2)))

    scores = [score(order) for order in itertools.permutations(range(n))]
    for order in itertools.islice(itertools.permutations(range(n)), 0, None, 7):
        samples = [1.0 + i for i in order]
        expected = sum(other >= score(order) for other in scores) / len(scores)
        assert stats.estimate_drift(seconds(samples), samples).p_value == pytest.approx(min(1.0, expected))


def test_ties_lessen_the_variance() -> None:
    """Kendall's variance: (5 * 4 * 15 - 2 * 1 * 9 - 3 * 2 * 11) / 18 = 12; score 6 of 10 pairs, 4 of them ties."""
    samples = [1.0, 1.0, 2.0, 2.0, 2.0]
    expected = math.erfc((6 - 1) / math.sqrt(2 * 12))
    assert stats.estimate_drift(seconds(samples), samples).p_value == pytest.approx(expected)


def test_equal_samples_do_not_drift() -> None:
    drift = stats.estimate_drift(seconds([3.0] * 20), [3.0] * 20)
    assert (drift.drift_frac_per_hour, drift.p_value, drift.is_significant) == (0, 1, False)


def test_rounding_errors_are_no_autocorrelation() -> None:
    samples = [0.3 + 0.1 * i / 3 for i in range(12)]
    assert stats.estimate_drift(seconds(samples, 7.7), samples).p_value == pytest.approx(2 / math.factorial(12))


@pytest.mark.parametrize("n", [8, 20, 40])
def test_the_interval_covers_the_true_drift(n: int) -> None:
    """5 % an hour on noise of 1 %; the slope is that of the samples over their median."""
    rows = 1 + 0.01 * np.random.default_rng(9).normal(size=(400, n)) + 0.05 * np.linspace(-0.5, 0.5, n)
    found = [stats.estimate_drift(seconds(row, 3600 / (n - 1)), row) for row in rows.tolist()]
    covered = np.mean([drift.low_frac_per_hour <= 0.05 <= drift.high_frac_per_hour for drift in found])
    assert 0.93 <= covered <= 0.995


def test_one_stall_does_not_bend_the_slope() -> None:
    samples = [100.0 + i for i in range(12)]
    samples[6] = 5000.0
    drift = stats.estimate_drift(seconds(samples, 300), samples)
    assert drift.percent_per_hour == pytest.approx(100 * 12 / 106.5, rel=0.02)
    assert drift.is_significant


@given(SERIES, st.sampled_from([0.5, 4.0]))
def test_drift_knows_no_unit_and_no_start(samples: list[float], factor: float) -> None:
    one = stats.estimate_drift(seconds(samples), samples)
    other = stats.estimate_drift([64.0 + s for s in seconds(samples)], [factor * sample for sample in samples])
    assert other.p_value == pytest.approx(one.p_value)
    assert other.drift_frac_per_hour == pytest.approx(one.drift_frac_per_hour)
    assert one.low_frac_per_hour <= one.drift_frac_per_hour <= one.high_frac_per_hour
    assert 0 <= one.p_value <= 1


@pytest.mark.parametrize(("n", "rho", "at_most"), [(8, 0.0, 0.07), (20, 0.0, 0.07), (20, 0.3, 0.09), (40, 0.6, 0.12)])
def test_noise_seldom_passes_for_drift(n: int, rho: float, at_most: float) -> None:
    rows = series(np.random.default_rng(3), 400, n, rho=rho).tolist()
    assert sum(stats.estimate_drift(seconds(row), row).is_significant for row in rows) / len(rows) < at_most


def test_a_drift_as_large_as_the_noise_is_found() -> None:
    rows = series(np.random.default_rng(4), 200, 40) * np.linspace(1, 1.5, 40)
    found = [stats.estimate_drift(seconds(row), row) for row in rows.tolist()]
    assert sum(drift.is_significant for drift in found) / len(found) > 0.9
    assert np.median([drift.session_frac for drift in found]) == pytest.approx(0.5 / 1.25, rel=0.1)


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 2.0, 3.0], [1.0, 2.0, math.nan, 3.0], [1.0, 0.0, 1.0, 1.0]])
def test_bad_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples: "):
        stats.estimate_drift(seconds(samples), samples)


@pytest.mark.parametrize(
    "at_s", [[], [0.0, 1.0, 2.0], [0.0, 1.0, 1.0, 2.0], [0.0, 2.0, 1.0, 3.0], [0.0, 1, 2, math.nan]]
)
def test_times_must_go_forward(at_s: list[float]) -> None:
    with pytest.raises(ValueError, match="at_s"):
        stats.estimate_drift(at_s, [1.0, 2.0, 3.0, 4.0])

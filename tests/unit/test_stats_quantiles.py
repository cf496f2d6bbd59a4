"""Quantiles bound what they can, say what they cannot, and outliers are seen."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import stats

SERIES = st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=120)
FRACS = st.sampled_from([0.05, 0.25, 0.5, 0.9, 0.95])
BAD = [[], [1.0], [1.0, math.nan, 2.0], [1.0, math.inf, 2.0], [1.0, 0.0, 2.0], [1.0, -1.0, 2.0]]


@given(SERIES, FRACS)
def test_a_quantile_is_numpys(samples: list[float], frac: float) -> None:
    assert stats.quantile(samples, frac) == pytest.approx(float(np.quantile(samples, frac)), rel=1e-9)


def exact_chance(n: int, frac: Fraction, below: int, above: int) -> Fraction:
    """Chance that at least `below` and fewer than `above` of n samples lie under the quantile."""
    return sum((math.comb(n, k) * frac**k * (1 - frac) ** (n - k) for k in range(below, above)), Fraction(0))


@pytest.mark.parametrize("frac", [Fraction(1, 4), Fraction(1, 2), Fraction(9, 10), Fraction(19, 20)])
@pytest.mark.parametrize("n", [72, 73, 100, 250])
def test_each_end_is_the_nearest_rank_that_keeps_its_tail(n: int, frac: Fraction) -> None:
    estimate = stats.estimate_quantile([float(i) for i in range(1, n + 1)], float(frac))
    assert estimate.low is not None
    assert estimate.high is not None
    below, above = int(estimate.low), int(estimate.high)
    assert estimate.coverage_frac == pytest.approx(float(exact_chance(n, frac, below, above)))
    for ends, keeps in (
        ((0, below), True),
        ((0, below + 1), False),
        ((above, n + 1), True),
        ((above - 1, n + 1), False),
    ):
        assert (exact_chance(n, frac, *ends) <= Fraction(1, 40)) is keeps


@pytest.mark.parametrize(("frac", "n_needed"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.05, 72), (0.99, 368)])
def test_too_few_samples_are_said_to_be(frac: float, n_needed: int) -> None:
    few = stats.estimate_quantile([1.0 + i for i in range(n_needed - 1)], frac)
    assert (few.low, few.high, few.coverage_frac) == (None, None, None)
    assert few.reason is not None
    assert f"{n_needed} are needed" in few.reason
    enough = stats.estimate_quantile([1.0 + i for i in range(n_needed)], frac)
    assert enough.reason is None
    assert enough.coverage_frac is not None
    assert enough.coverage_frac >= 0.95


def test_a_p95_of_fewer_than_20_is_no_figure() -> None:
    assert stats.estimate_quantile([1.0 + i for i in range(19)], 0.95).value is None
    assert stats.estimate_quantile([1.0 + i for i in range(20)], 0.95).value == pytest.approx(19.05)
    assert stats.estimate_quantile([1.0 + i for i in range(10)], 0.9).value == pytest.approx(9.1)


@given(st.integers(2, 80), st.floats(0.01, 0.99), st.floats(0.05, 0.999))
def test_what_is_not_known_has_a_reason(n: int, frac: float, confidence: float) -> None:
    estimate = stats.estimate_quantile([1.0 + i for i in range(n)], frac, confidence)
    is_bounded = estimate.low is not None
    assert (estimate.reason is None) is is_bounded
    assert (estimate.high is not None) is is_bounded
    assert (estimate.coverage_frac is not None) is is_bounded
    assert estimate.value is not None or not is_bounded


@given(SERIES)
def test_the_median_has_the_interval_of_the_sweep(samples: list[float]) -> None:
    ours, sweeps = stats.estimate_quantile(samples, 0.5), stats.estimate_median(samples)
    assert ours.value == pytest.approx(sweeps.p50)
    if len(samples) >= 6:
        assert (ours.low, ours.high) == (sweeps.low, sweeps.high)
        assert ours.coverage_frac == pytest.approx(sweeps.coverage_frac, abs=1e-4)


@given(SERIES, FRACS, st.sampled_from([0.25, 2.0, 1024.0]))
def test_quantiles_scale_and_know_no_order(samples: list[float], frac: float, factor: float) -> None:
    one = stats.estimate_quantile(samples, frac)
    assert stats.estimate_quantile(samples[::-1], frac) == one
    other = stats.estimate_quantile([factor * sample for sample in samples], frac)
    for ours, theirs in ((one.value, other.value), (one.low, other.low), (one.high, other.high)):
        assert theirs == (None if ours is None else pytest.approx(ours * factor))


@given(SERIES, FRACS)
def test_more_confidence_is_never_narrower(samples: list[float], frac: float) -> None:
    loose, strict = (stats.estimate_quantile(samples, frac, confidence) for confidence in (0.8, 0.95))
    if strict.low is not None and strict.high is not None and strict.coverage_frac is not None:
        assert loose.low is not None
        assert loose.high is not None
        assert loose.coverage_frac is not None
        assert strict.low <= loose.low <= loose.high <= strict.high
        assert 0.8 <= loose.coverage_frac <= strict.coverage_frac


@pytest.mark.parametrize("samples", BAD)
def test_bad_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples: "):
        stats.estimate_quantile(samples, 0.5)
    with pytest.raises(ValueError, match="samples: "):
        stats.modified_z_scores(samples)


@pytest.mark.parametrize("frac", [0.0, 1.0, -0.5, 1.5, math.nan])
def test_shares_lie_between_none_and_all(frac: float) -> None:
    for call in (
        lambda: stats.quantile([1.0, 2.0], frac),
        lambda: stats.estimate_quantile([1.0, 2.0], frac),
        lambda: stats.estimate_quantile([1.0, 2.0], 0.5, frac),
    ):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            call()


# --- outliers ------------------------------------------------------------------------------------------------------


def test_modified_z_scores_by_hand() -> None:
    """Median 3, deviations 2 1 0 1 7, MAD 1."""
    assert stats.modified_z_scores([1.0, 2.0, 3.0, 4.0, 10.0]) == pytest.approx((-1.349, -0.6745, 0, 0.6745, 4.7215))
    assert stats.outlier_flags([1.0, 2.0, 3.0, 4.0, 10.0]) == (False, False, False, False, True)


def test_outliers_among_equal_samples_are_seen_although_the_mad_is_nought() -> None:
    """Mean deviation 1 / 10 of the one: its score is 10 / 1.2533."""
    scores = stats.modified_z_scores([5.0] * 9 + [6.0])
    assert scores[:9] == (0.0,) * 9
    assert scores[9] == pytest.approx(10 / 1.2533141)
    assert stats.outlier_flags([5.0] * 4) == (False,) * 4


@given(SERIES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_outliers_know_no_unit_and_none_is_dropped(samples: list[float], factor: float) -> None:
    flags = stats.outlier_flags(samples)
    assert len(flags) == len(samples)
    assert stats.outlier_flags([factor * sample for sample in samples]) == flags
    assert stats.outlier_flags(samples[::-1]) == flags[::-1]
    assert sum(flags) < len(samples) / 2

"""Intervals and verdicts hold what they promise on noise as machines make it: 20 % swings that outlast a visit.

Small here; `slow` has 2000 series of each kind.
"""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from noise import LAWS, SWING_LOG, rounds, series

from offloadtune import stats
from offloadtune.records import Verdict

RHOS = (0.0, 0.5, 0.9)
SIZES = [pytest.param(300, id="300"), pytest.param(2000, id="2000", marks=pytest.mark.slow)]


def bound(chance: float, n: int) -> float:
    """Four standard errors of a share of n."""
    return 4 * math.sqrt(chance * (1 - chance) / n)


@pytest.mark.parametrize("n_series", SIZES)
@pytest.mark.parametrize("n_pairs", [3, 7, 10, 20])
def test_paired_intervals_cover_95_percent_and_aa_is_seldom_faster(n_pairs: int, n_series: int) -> None:
    random = np.random.default_rng(20260830)
    covered, faster = [], []
    for law, rho in itertools.product(LAWS, RHOS):
        found = [
            stats.compare_pairs(pairs[:, 0].tolist(), pairs[:, 1].tolist(), 0.0)
            for pairs in rounds(random, n_series, n_pairs, law=law, rho=rho)
        ]
        covered.append(statistics.fmean(one.ratio.low <= 1 <= one.ratio.high for one in found))
        faster.append(statistics.fmean(one.verdict is Verdict.FASTER for one in found))
        promised = found[0].ratio.coverage_frac
        room = 0.02 if n_pairs < 6 else 0.0  # Student's t promises too little where tails are long
        assert covered[-1] == pytest.approx(promised + room / 2, abs=bound(promised, n_series) + room / 2), (law, rho)
        assert faster[-1] < 0.025 + bound(0.025, n_series), (law, rho)
    print(f"{n_pairs} pairs: covered {min(covered):.3f} to {max(covered):.3f}, faster up to {max(faster):.3f}")
    assert 0.94 <= statistics.fmean(covered) <= 0.965 + room
    assert statistics.fmean(faster) < 0.05


@pytest.mark.parametrize("n_series", SIZES)
def test_a_true_change_is_covered_too(n_series: int) -> None:
    pairs = rounds(np.random.default_rng(2), n_series, 10, law="t3", rho=0.5)
    estimates = [stats.paired_ratio(row[:, 0].tolist(), (1.3 * row[:, 1]).tolist()) for row in pairs]
    covered = statistics.fmean(estimate.low <= 1.3 <= estimate.high for estimate in estimates)
    assert covered == pytest.approx(0.951, abs=bound(0.951, n_series))


@pytest.mark.parametrize("n_series", SIZES)
@pytest.mark.parametrize(("law", "n_pairs"), [("normal", 8), ("normal", 20), ("t3", 20)])
def test_the_minimum_detectable_change_is_detected(law: str, n_pairs: int, n_series: int) -> None:
    change = 1 + stats.minimum_detectable_frac(SWING_LOG * math.sqrt(2), n_pairs)
    pairs = rounds(np.random.default_rng(8), n_series, n_pairs, law=law)
    found = [stats.compare_pairs((change * row[:, 0]).tolist(), row[:, 1].tolist(), 0.0) for row in pairs]
    assert statistics.fmean(one.verdict is Verdict.FASTER for one in found) > 0.77 - bound(0.8, n_series)


@pytest.mark.parametrize("n_series", SIZES)
@pytest.mark.parametrize("rho", RHOS)
def test_aa_noise_is_the_reach_of_a_comparison_of_as_many_pairs(rho: float, n_series: int) -> None:
    """Halves of one series differ by no more than their noise in 95 of 100, alternation leaving something over."""
    within = []
    for row in series(np.random.default_rng(6), n_series, 40, rho=rho).tolist():
        middle = stats.paired_ratio(row[::2], row[1::2]).p50
        within.append(max(middle, 1 / middle) - 1 <= stats.aa_noise(row))
    assert statistics.fmean(within) > 0.95 - bound(0.05, n_series)


@pytest.mark.parametrize("n_series", SIZES)
@pytest.mark.parametrize(("frac", "n"), [(0.5, 9), (0.5, 30), (0.95, 72), (0.95, 200)])
def test_quantile_intervals_cover_as_often_as_they_say(frac: float, n: int, n_series: int) -> None:
    truth = math.exp(SWING_LOG * statistics.NormalDist().inv_cdf(frac))
    rows = series(np.random.default_rng(7), n_series, n).tolist()
    covered, promised = 0, 0.0
    for estimate in (stats.estimate_quantile(row, frac) for row in rows):
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.coverage_frac is not None
        promised = estimate.coverage_frac
        covered += estimate.low <= truth <= estimate.high
    assert covered / n_series == pytest.approx(promised, abs=bound(promised, n_series))

"""Looks while pairs come in: stated levels, no look in between."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from offloadtune import stats
from offloadtune.records import Verdict
from offloadtune.stats import StoppingRule

BAD = [[(1.0, math.nan)], [(0.0, 1.0)], [(1.0, -1.0)], []]


@pytest.mark.parametrize("rule", list(StoppingRule))
@pytest.mark.parametrize("n_looks", [1, 2, 3, 5, 10])
def test_the_looks_together_err_in_5_percent(rule: StoppingRule, n_looks: int) -> None:
    """The constants against a random walk: any look beyond its level, over 200 000 walks."""
    levels = [stats.look_confidence_frac(i, n_looks, rule) for i in range(1, n_looks + 1)]
    critical = np.array([statistics.NormalDist().inv_cdf((1 + level) / 2) for level in levels])
    walks = np.random.default_rng(1).normal(size=(200_000, n_looks)).cumsum(axis=1)
    beyond = (np.abs(walks) / np.sqrt(np.arange(1, n_looks + 1)) > critical).any(axis=1)
    assert beyond.mean() == pytest.approx(0.05, abs=0.002)


def test_pocock_shares_alike_and_obrien_fleming_saves() -> None:
    pocock = [stats.look_confidence_frac(i, 5) for i in range(1, 6)]
    saving = [stats.look_confidence_frac(i, 5, StoppingRule.OBRIEN_FLEMING) for i in range(1, 6)]
    assert len(set(pocock)) == 1
    assert saving == sorted(saving, reverse=True)
    assert saving[-1] < pocock[-1]


def pairs_of(change: float, n: int) -> list[tuple[float, float]]:
    return [(1.0, change * math.exp((-1) ** i * (0.05 + i / 1000))) for i in range(n)]


def test_a_large_change_ends_at_the_first_look_and_a_small_one_at_the_last() -> None:
    first = stats.decide(pairs_of(0.7, 8), 5)
    assert (first.i_look, first.verdict, first.is_decided, first.is_final) == (1, Verdict.FASTER, True, True)
    assert stats.decide(pairs_of(1.4, 8), 5).verdict is Verdict.SLOWER
    early = stats.decide(pairs_of(0.99, 16), 5)
    assert (early.i_look, early.is_decided, early.is_final) == (2, False, False)
    last = stats.decide(pairs_of(0.99, 40), 5)
    assert (last.i_look, last.verdict, last.is_decided, last.is_final) == (5, Verdict.SAME, False, True)


def test_a_change_inside_the_noise_ends_as_the_same() -> None:
    decision = stats.decide(pairs_of(1.0, 16), 3, noise_frac=0.1)
    assert (decision.verdict, decision.is_decided) == (Verdict.SAME, True)


def test_one_planned_look_is_the_plain_comparison() -> None:
    pairs = pairs_of(0.95, 20)
    decision = stats.decide(pairs, 1, n_pairs_a_look=20)
    plain = stats.paired_ratio([a for a, _ in pairs], [b for _, b in pairs])
    assert decision.confidence_frac == pytest.approx(0.95, abs=1e-4)
    assert (decision.ratio.low, decision.ratio.high) == (plain.low, plain.high)


def test_looks_too_early_for_ranks_decide_only_what_is_plain() -> None:
    decision = stats.decide(pairs_of(0.9, 3), 5, n_pairs_a_look=3)
    assert (decision.verdict, decision.is_decided, decision.is_final) == (Verdict.SAME, False, False)
    assert stats.decide(pairs_of(0.1, 3), 5, n_pairs_a_look=3).verdict is Verdict.FASTER


def test_peeking_is_refused() -> None:
    with pytest.raises(ValueError, match="after every 8 pairs, not after 9"):
        stats.decide(pairs_of(0.5, 9), 5)
    with pytest.raises(ValueError, match="look 3 is not one of the 2"):
        stats.decide(pairs_of(0.5, 24), 2)
    for n_looks in (0, 11, -1):
        with pytest.raises(ValueError, match="n_planned_looks"):
            stats.decide(pairs_of(0.5, 8), n_looks)
    with pytest.raises(ValueError, match="n_pairs_a_look"):
        stats.decide(pairs_of(0.5, 8), 2, n_pairs_a_look=0)
    with pytest.raises(ValueError, match="noise_frac"):
        stats.decide(pairs_of(0.5, 8), 2, noise_frac=-1)


@pytest.mark.parametrize("pairs", BAD)
def test_bad_pairs_are_refused(pairs: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match=r"samples of [AB]: "):
        stats.decide(pairs, 2, n_pairs_a_look=1)

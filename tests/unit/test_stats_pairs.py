"""B against A from pairs: known values, laws of ratios, what n pairs can show."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import stats
from offloadtune.records import Verdict

POSITIVE = st.floats(1e-2, 1e2)
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=25)
BAD = [[], [1.0, math.nan], [1.0, math.inf], [1.0, 0.0], [-1.0, 1.0]]


def halves(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [a for a, _ in pairs], [b for _, b in pairs]


# coverage of the signed-rank interval, from the tables of Wilcoxon's statistic: n, critical value at 5 % two-sided
@pytest.mark.parametrize(("n", "critical"), [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52)])
def test_the_interval_has_the_ranks_of_the_tables(n: int, critical: int) -> None:
    logs = [1.7**i / 1e3 for i in range(n)]
    estimate = stats.paired_ratio([1.0] * n, [math.exp(log) for log in logs])
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    assert math.log(estimate.low) == pytest.approx(walsh[critical])
    assert math.log(estimate.high) == pytest.approx(walsh[-1 - critical])
    assert 0.95 <= estimate.coverage_frac < 0.97


@pytest.mark.parametrize("n", [6, 7, 8])
def test_coverage_is_counted_over_all_signs(n: int) -> None:
    """The ratio 1 is covered or not by each way to give n magnitudes their signs, all as likely without a change."""
    magnitudes = [0.01 * 1.9**i for i in range(n)]
    n_covered = 0
    for signs in itertools.product((-1, 1), repeat=n):
        ratios = [math.exp(sign * magnitude) for sign, magnitude in zip(signs, magnitudes, strict=True)]
        estimate = stats.paired_ratio([1.0] * n, ratios)
        n_covered += estimate.low <= 1 <= estimate.high
    assert estimate.coverage_frac == pytest.approx(n_covered / 2**n)


# two-sided quantiles of Student's t for n - 1 degrees of freedom, from any table
@pytest.mark.parametrize(
    ("n", "confidence_frac", "t"),
    [
        (2, 0.95, 12.7062),
        (3, 0.95, 4.3027),
        (4, 0.95, 3.1824),
        (5, 0.95, 2.7764),
        (2, 0.99, 63.657),
        (3, 0.99, 9.9248),
        (4, 0.99, 5.8409),
        (5, 0.99, 4.6041),
        (6, 0.99, 4.0321),
        (7, 0.99, 3.7074),
    ],
)
def test_pairs_too_few_for_ranks_get_students_t(n: int, confidence_frac: float, t: float) -> None:
    logs = [0.1 + 0.01 * i for i in range(n)]
    estimate = stats.paired_ratio([1.0] * n, [math.exp(log) for log in logs], confidence_frac)
    reach = t * statistics.stdev(logs) / math.sqrt(n)
    assert math.log(estimate.p50) == pytest.approx(statistics.fmean(logs))
    assert math.log(estimate.high / estimate.p50) == pytest.approx(reach, rel=5e-3)
    assert math.log(estimate.p50 / estimate.low) == pytest.approx(reach, rel=5e-3)
    assert estimate.coverage_frac == confidence_frac


def test_a_few_pairs_decide_only_what_is_plain() -> None:
    assert stats.compare_pairs([1.0, 1.1, 1.0], [0.5, 0.56, 0.5], 0.05).verdict is Verdict.FASTER
    unclear = stats.compare_pairs([1.0, 1.1, 1.0], [0.9, 1.05, 0.7], 0.05)
    assert (unclear.verdict, unclear.is_decided) == (Verdict.SAME, False)


def test_one_pair_says_nothing() -> None:
    comparison = stats.compare_pairs([5.0], [1.0], 0.0)
    assert comparison.ratio.p50 == pytest.approx(0.2)
    assert (comparison.ratio.low, comparison.ratio.high) == (0.0, math.inf)
    assert (comparison.verdict, comparison.is_decided) == (Verdict.SAME, False)


def test_exact_and_normal_ranks_meet() -> None:
    below, above = (
        stats.paired_ratio([1.0] * n, [math.exp(math.sin(i * i) / 10) for i in range(n)]) for n in (100, 101)
    )
    assert above.coverage_frac == pytest.approx(below.coverage_frac, abs=0.002)
    assert math.log(above.high / above.low) == pytest.approx(math.log(below.high / below.low), rel=0.05)


@given(PAIRS, st.sampled_from([0.25, 2.0, 1024.0]), st.randoms(use_true_random=False))
def test_laws_of_ratios(pairs: list[tuple[float, float]], factor: float, random: object) -> None:
    a, b = halves(pairs)
    one = stats.paired_ratio(a, b)
    assert one.low <= one.p50 * (1 + 1e-12)
    assert one.p50 <= one.high * (1 + 1e-12)
    back = stats.inverse(stats.paired_ratio(b, a))
    assert (back.low, back.p50, back.high) == pytest.approx((one.low, one.p50, one.high))
    scaled = stats.paired_ratio([factor * value for value in a], [factor * value for value in b])
    assert (scaled.p50, scaled.low, scaled.high) == pytest.approx((one.p50, one.low, one.high))
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert stats.paired_ratio(*halves(shuffled)).low == pytest.approx(one.low)
    looser = stats.paired_ratio(a, b, 0.8)
    assert one.low <= looser.low <= looser.high <= one.high


@pytest.mark.parametrize(
    ("change", "noise_frac", "verdict", "is_decided"),
    [
        (0.80, 0.05, Verdict.FASTER, True),
        (1.25, 0.05, Verdict.SLOWER, True),
        (0.97, 0.05, Verdict.SAME, True),  # shown to lie inside the noise
        (0.97, 0.00, Verdict.FASTER, True),
        (0.955, 0.05, Verdict.SAME, False),  # on the edge of it
        (1.045, 0.05, Verdict.SAME, False),
    ],
)
def test_verdicts_are_on_b(change: float, noise_frac: float, verdict: Verdict, is_decided: bool) -> None:  # noqa: FBT001
    a = [1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0, 1.1]
    b = [change * value * math.exp((-1) ** i * (0.01 + i / 2000)) for i, value in enumerate(a)]
    comparison = stats.compare_pairs(a, b, noise_frac)
    assert (comparison.verdict, comparison.is_decided) == (verdict, is_decided)
    assert (comparison.n_more_pairs == 0) is is_decided


def test_more_pairs_are_asked_for_until_the_change_is_detectable() -> None:
    a = [1.0] * 8
    b = [0.93 * math.exp((-1) ** i * (0.12 + i / 100)) for i in range(8)]
    comparison = stats.compare_pairs(a, b, 0.02)
    assert not comparison.is_decided
    n_more, spread = comparison.n_more_pairs, stats.spread_of_pairs(a, b)
    assert n_more is not None
    change = max(comparison.ratio.p50, 1 / comparison.ratio.p50) - 1
    assert (
        stats.minimum_detectable_frac(spread, 8 + n_more) <= change < stats.minimum_detectable_frac(spread, 7 + n_more)
    )


@pytest.mark.parametrize("change", [1.02, 1.0 / 1.02, 1.08, 1.0 / 1.08, 1.2])
def test_pairs_asked_for_narrow_the_interval_to_the_room_that_a_verdict_leaves(change: float) -> None:
    """Inside a noise of 5 % that is the way to its edge, beyond it the way to 1, or 3.33 times that to the edge."""
    comparison = stats.compare_pairs([1.0] * 8, [change * math.exp((-1) ** i * 0.3) for i in range(8)], 0.05)
    shift, noise = abs(math.log(change)), math.log(1.05)
    room = noise - shift if shift < noise else min(shift, (shift - noise) * (1.95996 + 0.84162) / 0.84162)
    assert comparison.n_more_pairs == stats.pairs_needed(0.3 * math.sqrt(8 / 7), math.expm1(room)) - 8


def test_no_number_of_pairs_is_promised_where_none_would_do() -> None:
    assert stats.compare_pairs([1.0], [2.0], 0.0).n_more_pairs is None
    on_the_edge = [1.1 * math.exp((-1) ** i * 0.2) for i in range(8)]
    assert stats.compare_pairs([1.0] * 8, on_the_edge, 0.1).n_more_pairs is None


@pytest.mark.parametrize(("n", "change"), [(12, 0.303), (20, 0.212), (40, 0.141)])
def test_what_pairs_of_swings_of_20_percent_can_show(n: int, change: float) -> None:
    assert stats.minimum_detectable_frac(0.2 * math.sqrt(2), n) == pytest.approx(change, abs=0.001)


def test_more_pairs_show_less_and_fewer_than_six_nothing() -> None:
    shown = [stats.minimum_detectable_frac(0.1, n) for n in range(6, 130)]
    assert shown == sorted(shown, reverse=True)
    assert stats.minimum_detectable_frac(0.1, 5) == math.inf
    assert stats.minimum_detectable_frac(1e3, 6) == math.inf


@given(st.floats(0, 0.5), st.floats(0.01, 1))
def test_pairs_needed_is_the_smallest_that_will_do(spread: float, change: float) -> None:
    n = stats.pairs_needed(spread, change)
    assert stats.minimum_detectable_frac(spread, n) <= change < stats.minimum_detectable_frac(spread, n - 1)


def test_aa_noise_by_hand() -> None:
    """Six pairs whose log ratios run from -0.1 to 0.1: the interval is the range, half its width 0.1."""
    logs = [-0.1, 0.1, 0.0, 0.05, -0.05, 0.02]
    samples = [value for log in logs for value in (2.0, 2.0 * math.exp(log))]
    assert stats.aa_noise(samples) == pytest.approx(math.expm1(0.1))
    assert stats.aa_noise([*samples, 99.0]) == pytest.approx(math.expm1(0.1))
    assert stats.aa_noise([3.0] * 12) == 0


@pytest.mark.parametrize("samples", [[], [1.0], [1.0] * 11, [1.0] * 12 + [math.nan], [0.0] * 12, [-1.0] * 12])
def test_aa_noise_refuses_bad_samples(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples: "):
        stats.aa_noise(samples)


@pytest.mark.parametrize("samples", BAD)
def test_bad_pairs_are_refused(samples: list[float]) -> None:
    good = [1.0] * len(samples)
    for a, b in ((samples, good), (good, samples)):
        with pytest.raises(ValueError, match=r"samples of [AB]: "):
            stats.paired_ratio(a, b)
        with pytest.raises(ValueError, match=r"samples of [AB]: "):
            stats.compare_pairs(a, b, 0.1)
        with pytest.raises(ValueError, match=r"samples of [AB]: "):
            stats.spread_of_pairs(a, b)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="incomplete: 2 samples of A, 1 of B"):
        stats.paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="not of one quantity"):
        stats.paired_ratio([1e-300], [1e300])
    for noise_frac in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="noise_frac"):
            stats.compare_pairs([1.0], [1.0], noise_frac)
    for spread in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="spread_log"):
            stats.minimum_detectable_frac(spread, 8)
    for change in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="change_frac"):
            stats.pairs_needed(0.1, change)
    with pytest.raises(ValueError, match="confidence_frac"):
        stats.paired_ratio([1.0], [1.0], 1.0)

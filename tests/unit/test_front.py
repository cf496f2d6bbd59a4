"""The Pareto front: nothing on it is beaten, noise makes no rows, and each row says what it has otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import MIB, made_up_facts, made_up_space, ok_result, visit

from offloadtune.recommend import Round, pareto_front, recommend
from offloadtune.recommend.front import TOLERANCE_FRAC, front_of
from offloadtune.records import Settings, Trial, TrialResult
from offloadtune.search import Space, baseline_trials
from offloadtune.sweeps import Front, FrontPoint

SPACE = made_up_space(made_up_facts(), device_bytes=8 << 30)
CPU_ONLY = baseline_trials(SPACE)["cpu_only"].settings
FULL = CPU_ONLY.replace(devices=None, n_gpu_layers=13)
TRIAL = Trial(settings=FULL, target=SPACE.target, why="a test")


def point(ttft_s: float, tok_per_s: float, n_ctx: int = 1024, device_bytes: int | None = 0) -> FrontPoint:
    return FrontPoint(
        trial=TRIAL,
        changes=(),
        ttft_s=ttft_s,
        decode_tok_per_s=tok_per_s,
        n_ctx=n_ctx,
        device_bytes=device_bytes,
        n_visits=1,
    )


def is_as_good(one: FrontPoint, other: FrontPoint, tolerance_frac: float = 0.0) -> bool:
    most = 1 + tolerance_frac
    return (
        one.ttft_s <= other.ttft_s * most
        and 1 / one.decode_tok_per_s <= 1 / other.decode_tok_per_s * most
        and one.n_ctx >= other.n_ctx
        and (one.device_bytes or 0) <= (other.device_bytes or 0) * (1 + min(tolerance_frac, TOLERANCE_FRAC))
    )


SOME = st.lists(
    st.builds(
        point,
        st.floats(0.1, 10),
        st.floats(1, 100),
        st.sampled_from([512, 1024, 4096]),
        st.integers(0, 1 << 34),
    ),
    min_size=1,
    max_size=25,
)


@given(SOME, st.floats(0, 0.2))
def test_what_is_kept_is_beaten_by_nothing_but_the_first_may_be(points: Sequence[FrontPoint], tolerance: float) -> None:
    first, *others = front_of(points, tolerance)
    assert first is points[0]
    for one in others:
        beaters = [other for other in points if is_as_good(other, one) and not is_as_good(one, other)]
        assert beaters == []


@given(SOME, st.floats(0, 0.2))
def test_all_that_is_left_out_is_equalled_by_something_kept(points: Sequence[FrontPoint], tolerance: float) -> None:
    kept = front_of(points, tolerance)
    for one in points:
        assert any(is_as_good(other, one, tolerance + 1e-12) for other in kept)


@given(SOME, st.floats(0, 0.2))
def test_each_kept_is_better_in_something_than_those_before_it(points: Sequence[FrontPoint], tolerance: float) -> None:
    kept = front_of(points, tolerance)
    for i, one in enumerate(kept):
        assert not any(is_as_good(other, one, tolerance - 1e-12) for other in kept[:i])


@given(st.lists(st.tuples(*[st.floats(1.0, 1.0099)] * 2), min_size=1, max_size=20))
def test_noise_of_one_percent_makes_one_row(noise: Sequence[tuple[float, float]]) -> None:
    assert len(front_of([point(a, 50 * b) for a, b in noise], TOLERANCE_FRAC)) == 1


def test_memory_that_nobody_knows_neither_wins_nor_loses() -> None:
    known, unknown, worse = point(1.0, 50, device_bytes=100), point(1.0, 60, device_bytes=None), point(2.0, 40)
    assert front_of([known, unknown], TOLERANCE_FRAC) == [known, unknown]
    assert front_of([unknown, known], TOLERANCE_FRAC) == [unknown]
    assert front_of([unknown, worse], TOLERANCE_FRAC) == [unknown]


# --- of results ----------------------------------------------------------------------------------------------------


def ran(settings: Settings, ttft_s: float, token_s: float, peak_bytes: int = 0) -> TrialResult:
    one = visit(ttft_s=ttft_s, token_s=token_s)
    return ok_result(dataclasses.replace(TRIAL, settings=settings), (one,), peak_bytes=peak_bytes)


def front(results: Sequence[TrialResult], space: Space = SPACE, rounds: Sequence[Round] = ()) -> Front:
    answer = recommend(space, results, rounds)
    assert answer is not None
    return pareto_front(space, results, rounds, answer)


FASTEST = ran(FULL, 1.0, 0.01, 400 * MIB)
SMALLER = ran(FULL.replace(n_gpu_layers=1), 1.5, 0.03, 50 * MIB)
ALONE = ran(CPU_ONLY, 3.0, 0.05)
MORE = ran(FULL.replace(n_ctx=2048), 1.05, 0.011, 410 * MIB)
WORSE = ran(FULL.replace(n_ubatch=64), 1.6, 0.011, 401 * MIB)


def test_the_front_has_the_answer_first_and_then_what_is_near_it() -> None:
    found = front([ALONE, WORSE, SMALLER, MORE, FASTEST])
    assert [one.changes for one in found.points] == [(), ("n_ctx 2048",), ("12 layers fewer",), ("the CPU alone",)]
    first, *_, alone = found.points
    assert (first.trial.settings, first.ttft_s, first.n_ctx, first.device_bytes) == (FULL, 1.0, 1024, 400 * MIB)
    assert alone.decode_tok_per_s == pytest.approx(20)
    assert alone.device_bytes == 0
    assert found.tolerance_frac == TOLERANCE_FRAC


def test_the_front_does_not_hang_on_the_order_of_results() -> None:
    results = [ALONE, WORSE, SMALLER, MORE, FASTEST]
    assert front(results) == front(results[::-1])


def test_what_breaks_the_limit_or_is_not_as_the_user_fixed_it_is_no_choice() -> None:
    limited = dataclasses.replace(SPACE, limit_bytes=405 * MIB, device_bytes=405 * MIB)
    assert ("n_ctx 2048",) not in [one.changes for one in front([ALONE, FASTEST, MORE], limited).points]
    fixed = dataclasses.replace(SPACE, fixed={"n_gpu_layers": 13})
    assert [one.changes for one in front([ALONE, SMALLER, FASTEST, MORE], fixed).points] == [(), ("n_ctx 2048",)]


def test_visits_are_counted_and_rounds_are_figures() -> None:
    rounds = [{FULL: (visit(ttft_s=2.0, token_s=0.01),), CPU_ONLY: (visit(ttft_s=4.0, token_s=0.05),)}] * 3
    points = {one.changes: one for one in front([ALONE, FASTEST, SMALLER], rounds=rounds).points}
    assert (points[()].ttft_s, points[()].n_visits) == (2.0, 3)
    assert (points["12 layers fewer",].ttft_s, points["12 layers fewer",].n_visits) == (1.5, 1)


def test_what_the_noise_of_the_sweep_hides_is_no_difference() -> None:
    """Rounds that differ by a tenth, and settings with 5 % more to the first token and 5 % more tokens a second."""
    near = ran(FULL.replace(n_ubatch=256), 1.05, 0.0095, 400 * MIB)
    assert len(front([FASTEST, near]).points) == 2
    rounds = [
        {one.trial.settings: (visit(ttft_s=ttft_s * swing, token_s=token_s * swing),) for one, ttft_s, token_s in pair}
        for swing in (1.0, 1.12, 0.99, 1.1)
        for pair in [((FASTEST, 1.0, 0.01), (near, 1.05, 0.0095))]
    ]
    found = front([FASTEST, near], rounds=rounds)
    assert found.tolerance_frac > 0.1
    assert len(found.points) == 1
    near = dataclasses.replace(near, device_peak_bytes=(("Made-Up0", 380 * MIB),))
    assert len(front([FASTEST, near], rounds=rounds).points) == 2  # bytes have no noise


def test_a_device_that_told_nothing_is_unknown_and_the_cpu_alone_takes_nothing() -> None:
    untold = dataclasses.replace(FASTEST, device_peak_bytes=())
    alone = dataclasses.replace(ALONE, device_peak_bytes=())
    faster_alone = dataclasses.replace(alone, visits=(visit(ttft_s=0.5, token_s=0.05),))
    points = {one.trial.settings: one.device_bytes for one in front([untold, faster_alone]).points}
    assert points == {FULL: None, CPU_ONLY: 0}

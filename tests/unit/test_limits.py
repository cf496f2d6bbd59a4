"""Limits of speed and of memory: who keeps them, who comes nearest, and what the search goes after meanwhile."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lawful import FACTS, LawfulEngine, Times, lawful_space
from synthetic import MIB, SyntheticEngine, carry_out, made_up_facts, made_up_space, ok_result, visit

from offloadtune.recommend import Round, is_decided, recommend
from offloadtune.records import NO_LIMITS, Goal, Limits, Settings, Trial, TrialResult, Visit
from offloadtune.search import (
    N_VISITS_OF_P95,
    Space,
    baseline_trials,
    can_hold,
    candidates,
    finalists,
    is_allowed,
    keeps_limits,
    least_host_bytes,
    limits_reached,
    next_trial,
    result_rank,
    shortfall,
    start_settings,
)
from offloadtune.search.columns import Columns
from offloadtune.search.grid import choices_of
from offloadtune.search.room import over_ram
from offloadtune.speed.blocks import Floats

SECONDS = st.floats(1e-3, 1e3)
SMALL = made_up_facts()
FLOOR = Limits(min_tok_per_s=40.0)


def ran(
    settings: Settings, ttft_s: float, token_s: float, *, peak_bytes: int = 0, host_peak: int | None = None
) -> TrialResult:
    trial = Trial(settings=settings, target=space_of().target, why="a test")
    result = ok_result(trial, (visit(ttft_s=ttft_s, token_s=token_s),), peak_bytes=peak_bytes)
    return dataclasses.replace(result, host_peak_rss_bytes=host_peak)


def space_of(limits: Limits = NO_LIMITS, goal: Goal = Goal.TURN, device_bytes: int = 8 << 30) -> Space:
    return dataclasses.replace(made_up_space(SMALL, device_bytes=device_bytes, goal=goal), limits=limits)


def placed(n_gpu_layers: int) -> Settings:
    return baseline_trials(space_of())["cpu_only"].settings.replace(devices=None, n_gpu_layers=n_gpu_layers)


# --- the judge -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=30), SECONDS, SECONDS)
def test_what_keeps_the_limits_misses_them_by_nothing_and_the_rest_by_something(
    times: list[tuple[float, float]], ttft_s: float, token_s: float
) -> None:
    visits = [visit(ttft_s=one, token_s=other) for one, other in times]
    limits = Limits(ttft_p95_s=ttft_s, min_tok_per_s=1 / token_s)
    reached = list(limits_reached(visits, limits))
    missed = shortfall(visits, limits)
    assert (missed == 0) == all(one.is_kept for one in reached)
    assert missed >= 0
    assert shortfall(visits, NO_LIMITS) == 0
    twice = [visit(ttft_s=2 * one, token_s=2 * other) for one, other in times]
    assert shortfall(twice, limits) >= missed


def test_a_percentile_takes_visits_and_before_that_the_longest_stands_for_it() -> None:
    limits = Limits(ttft_p95_s=1.0)
    few = [visit(ttft_s=i / 10, token_s=0.1) for i in range(1, N_VISITS_OF_P95)]
    (of_few,) = limits_reached(few, limits)
    assert (of_few.reached, of_few.n_visits) == (1.9, N_VISITS_OF_P95 - 1)
    (of_many,) = limits_reached([*few, visit(ttft_s=2.0, token_s=0.1)], limits)
    assert of_many.reached == pytest.approx(1.905)  # between the last two of twenty


def test_a_disturbed_visit_breaks_no_limit_where_there_are_others() -> None:
    slow = dataclasses.replace(visit(ttft_s=9.0, token_s=9.0), disturbed_by=("Something else ran.",))
    assert shortfall([slow, visit(ttft_s=0.5, token_s=0.02)], Limits(ttft_p95_s=1.0, min_tok_per_s=40.0)) == 0


def test_what_misses_a_limit_ranks_after_what_keeps_it_and_the_nearest_first() -> None:
    space = space_of(FLOOR, Goal.TTFT)
    keeps, near, far = (ran(placed(k), ttft, token) for k, ttft, token in ((1, 9, 0.02), (2, 1, 0.03), (3, 0.5, 0.05)))
    ranked = sorted([far, near, keeps], key=lambda one: result_rank(space, one))
    assert ranked == [keeps, near, far]
    assert [keeps_limits(space, one) for one in ranked] == [True, False, False]
    assert min([far, near, keeps], key=lambda one: result_rank(space_of(goal=Goal.TTFT), one)) == far


def test_of_the_goal_context_the_largest_that_keeps_the_limit_is_first() -> None:
    space = space_of(FLOOR, Goal.CONTEXT)
    small, large = ran(placed(3), 1, 0.02), ran(placed(2).replace(n_ctx=4096), 1, 0.03)
    assert min([small, large], key=lambda one: result_rank(space, one)) == small
    assert min([small, large], key=lambda one: result_rank(space_of(goal=Goal.CONTEXT), one)) == large


def test_main_memory_over_the_limit_is_not_allowed_and_untold_is() -> None:
    space = space_of(Limits(host_bytes=100))
    assert not is_allowed(space, ran(placed(1), 1, 1, host_peak=101))
    assert is_allowed(space, ran(placed(1), 1, 1, host_peak=100))
    assert is_allowed(space, ran(placed(1), 1, 1))
    assert is_allowed(space_of(), ran(placed(1), 1, 1, host_peak=101))


def test_finalists_differ_in_what_a_limit_counts() -> None:
    """By the goal `decode` two ubatches are one; who sets a limit to the first token wants to know both."""
    some = [ran(placed(3).replace(n_ubatch=n), 1, 0.02) for n in (512, 256)]
    assert len({one.settings.n_ubatch for one in finalists(space_of(goal=Goal.DECODE), some)}) == 1
    limited = space_of(Limits(ttft_p95_s=1.0), Goal.DECODE)
    assert {one.settings.n_ubatch for one in finalists(limited, some)} == {512, 256}


def test_axes_that_only_a_limit_counts_are_tried() -> None:
    space = made_up_space(SMALL, device_bytes=100 * MIB, goal=Goal.DECODE, n_prompt_new=2048, n_ctx=4096)
    assert len(np.unique(choices_of(space).columns.n_threads_batch)) == 1
    limited = choices_of(dataclasses.replace(space, limits=Limits(ttft_p95_s=1.0)))
    assert len(np.unique(limited.columns.n_threads_batch)) == 3
    assert limited.columns.grid.n_ubatch.max() == 2048


# --- the answer ----------------------------------------------------------------------------------------------------

DEFAULT = baseline_trials(space_of())["default"].settings


def rounds_of(visits: dict[Settings, Visit], n: int) -> list[Round]:
    return [{settings: (one,) for settings, one in visits.items()}] * n


def first_reason(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round] = ()) -> str:
    answer = recommend(space, results, rounds)
    assert answer is not None
    return answer.reasons[0]


def test_the_nearest_is_recommended_and_said_to_be_the_nearest() -> None:
    results = [ran(placed(1), 1, 0.05), ran(placed(2), 9, 1 / 31.2)]
    answer = recommend(space_of(FLOOR), results, ())
    assert answer is not None
    assert answer.trial.settings == placed(2)
    assert answer.reasons[0] == "No settings tried write 40.0 tok/s; the nearest, recommended here, writes 31.2 tok/s."
    (limit,) = answer.limits
    assert (limit.limit, limit.is_kept, limit.n_visits) == ("min_tok_per_s", False, 1)


def test_a_limit_to_the_first_token_says_how_many_visits_it_rests_on() -> None:
    results = [ran(placed(1), 0.8, 0.05)]
    limits = Limits(ttft_p95_s=0.5)
    assert first_reason(space_of(limits), results) == (
        "No settings tried have their first token within 500 ms in 95 of 100 turns; the nearest, recommended here, has "
        "its first token within 800 ms (the only visit; a 95th percentile takes 20)."
    )
    once = {placed(1): visit(ttft_s=0.4, token_s=0.05), DEFAULT: visit(ttft_s=0.4, token_s=0.5)}
    several = [*results, ran(DEFAULT, 0.4, 0.5)]
    assert "the longest of 7 visits" in first_reason(space_of(limits), several, rounds_of(once, 7))
    assert "within 400 ms (95th percentile of 21 visits): within your limit" in first_reason(
        space_of(limits), several, rounds_of(once, 21)
    )


def test_rounds_go_on_until_a_percentile_can_be_told() -> None:
    once = {placed(1): visit(ttft_s=0.4, token_s=0.05), DEFAULT: visit(ttft_s=0.8, token_s=0.5)}
    results = [ran(placed(1), 0.4, 0.05), ran(DEFAULT, 0.8, 0.5)]
    limited = space_of(Limits(ttft_p95_s=0.5))
    assert is_decided(space_of(), results, rounds_of(once, 7))
    assert not is_decided(limited, results, rounds_of(once, 7))
    assert is_decided(limited, results, rounds_of(once, 21))


def test_by_the_rounds_who_breaks_the_limit_is_not_recommended_and_no_tie() -> None:
    """The first visit of the fastest kept the floor; in the rounds it does not."""
    fast, steady = placed(2), placed(1)
    results = [ran(fast, 0.5, 0.024), ran(steady, 1.0, 0.024), ran(DEFAULT, 3.0, 0.1)]
    once = {
        fast: visit(ttft_s=0.5, token_s=0.026),
        steady: visit(ttft_s=0.6, token_s=0.0249),
        DEFAULT: visit(ttft_s=3.0, token_s=0.1),
    }
    answer = recommend(space_of(FLOOR), results, rounds_of(once, 7))
    assert answer is not None
    assert answer.trial.settings == steady
    assert answer.reasons[0] == "It writes 40.2 tok/s: within your limit of 40.0 tok/s at least."


def test_what_misses_the_limit_by_little_is_no_tie_however_simple() -> None:
    """Half a per cent apart is the same, but for a floor between the two."""
    simple, complex_ = placed(3), placed(3).replace(n_ubatch=256, n_batch=1024)
    results = [ran(simple, 1.0, 0.0251), ran(complex_, 1.0, 0.0249)]
    jitter = (1.0, 1.02, 0.99, 1.01, 0.98, 1.0)
    rounds: list[Round] = [
        {simple: (visit(ttft_s=one, token_s=0.0251),), complex_: (visit(ttft_s=other, token_s=0.0249),)}
        for one, other in zip(jitter, (*jitter[2:], *jitter[:2]), strict=True)
    ]
    for limits, chosen in ((NO_LIMITS, simple), (FLOOR, complex_)):
        answer = recommend(space_of(limits), results, rounds)
        assert answer is not None
        assert answer.trial.settings == chosen


def test_where_others_keep_it_by_one_visit_only_those_compared_are_spoken_of() -> None:
    results = [ran(placed(1), 1, 0.05), ran(placed(2), 9, 0.02)]
    reason = first_reason(space_of(FLOOR), results, rounds_of({placed(1): visit(ttft_s=1, token_s=0.05)}, 3))
    assert reason.startswith("None of the settings compared side by side write 40.0 tok/s; the nearest")


def test_two_limits_are_named_together() -> None:
    limits = Limits(min_tok_per_s=40.0, ttft_p95_s=2.0)
    reason = first_reason(space_of(limits), [ran(placed(1), 1, 0.05)])
    assert reason == (
        "No settings tried keep both limits, 40.0 tok/s at least and 2.00 s to the first token in 95 of 100 turns; the "
        "nearest, recommended here, writes 20.0 tok/s."
    )


def test_the_depth_of_the_speeds_is_said_for_the_goal_context() -> None:
    answer = recommend(space_of(FLOOR, Goal.CONTEXT), [ran(placed(1).replace(n_ctx=8192), 1, 0.02)], ())
    assert answer is not None
    assert any("with 512 tokens in the context" in one and "not at the end of 8192" in one for one in answer.reasons)


def test_more_context_that_misses_the_limit_is_said_to() -> None:
    """Of the same settings, as where the price of twice the context is tried."""
    small, large = ran(placed(3), 1, 0.02), ran(placed(3).replace(n_ctx=2048), 1, 0.03)
    for limits, words in ((FLOOR, "runs too, but not within your limits: "), (NO_LIMITS, "runs too: ")):
        answer = recommend(space_of(limits), [small, large], ())
        assert answer is not None
        assert any(f"A context of 2048 {words}" in one for one in answer.reasons)


def test_a_baseline_that_main_memory_may_not_hold_is_left_out_with_the_reason() -> None:
    full = placed(13)
    space = space_of(Limits(host_bytes=least_host_bytes(SMALL, full) + MIB))
    answer = recommend(space, [ran(full, 1, 0.02, host_peak=1)], ())
    assert answer is not None
    limit = "over your limit of"
    assert any(
        "No verdict against the CPU alone: main memory would hold" in one and limit in one for one in answer.reasons
    )


# --- the search ----------------------------------------------------------------------------------------------------


def limited_space(limits: Limits, goal: Goal = Goal.TURN, device_mib: int = 1200) -> Space:
    return dataclasses.replace(
        lawful_space(device_mib=device_mib, goal=goal, n_prompt_new=2048, n_ctx=4096), limits=limits
    )


def slow_large_batches(settings: Settings) -> tuple[float, float]:
    """Tokens take half as long again with a larger ubatch than 512, which no law knows; prompts are read faster."""
    return (0.5, 1.5) if settings.n_ubatch > 512 else (1.0, 1.0)


def truths(engine: LawfulEngine) -> tuple[list[Settings], Floats, Floats]:
    """All that fit, with their true seconds to the first token and of a token."""
    choices = choices_of(engine.space)
    used = choices.columns.device_bytes + engine.own_bytes * (choices.columns.device_bytes > 0)
    fitting = [choices.settings(int(i)) for i in np.flatnonzero(used <= engine.wall_bytes)]
    ttft_s, token_s = engine.seconds(Columns.of(engine.space.facts, fitting), fitting)
    return fitting, ttft_s, token_s


def best_of(space: Space, results: Sequence[TrialResult]) -> TrialResult:
    return min(candidates(space, results), key=lambda one: result_rank(space, one))


@pytest.mark.parametrize("times", [lambda _: (1.0, 1.0), slow_large_batches], ids=["as the law", "a surprise"])
def test_the_fastest_within_the_limit_is_found_though_others_are_faster(times: Times) -> None:
    """Larger ubatches read faster, and take room that layers need to write as fast."""
    space = limited_space(NO_LIMITS, Goal.TTFT)
    engine = LawfulEngine(space=space, wall_bytes=1200 * MIB, times=times)
    _, ttft_s, token_s = truths(engine)
    floor = 1 / (1.03 * token_s.min())
    least_s = ttft_s[1 / token_s >= floor].min()
    assert least_s > 1.02 * ttft_s.min()
    limited = dataclasses.replace(space, limits=Limits(min_tok_per_s=floor))
    engine = LawfulEngine(space=limited, wall_bytes=1200 * MIB, times=times)
    found = best_of(limited, engine.carry_out())
    assert keeps_limits(limited, found)
    assert found.visits[0].ttft_s <= 1.03 * least_s


def test_a_value_that_always_misses_the_limit_is_given_up_though_it_is_believed_to_keep_it() -> None:
    """No trait says that a ubatch makes tokens slower, so each that is larger would be tried."""
    space = limited_space(NO_LIMITS, Goal.TTFT)
    token_s = truths(LawfulEngine(space=space, wall_bytes=1200 * MIB, times=slow_large_batches))[2]
    limited = dataclasses.replace(space, limits=Limits(min_tok_per_s=1 / (1.2 * token_s.min())))
    engine = LawfulEngine(space=limited, wall_bytes=1200 * MIB, times=slow_large_batches)
    found = best_of(limited, engine.carry_out())
    assert keeps_limits(limited, found)
    assert found.trial.settings.n_ubatch <= 512


def test_a_limit_that_nothing_keeps_is_missed_by_the_least() -> None:
    limits = Limits(min_tok_per_s=1e5)
    space = limited_space(limits, Goal.TTFT)
    engine = LawfulEngine(space=space, wall_bytes=1200 * MIB, times=slow_large_batches)
    results = engine.carry_out()
    _, _, token_s = truths(engine)
    assert 1 / best_of(space, results).visits[0].token_s >= 0.97 / token_s.min()


def fastest_tok_per_s(space: Space, n_ctx: int, wall_mib: int) -> float:
    """By the truth, over all settings that fit with so much context."""
    engine = LawfulEngine(space=dataclasses.replace(space, n_ctx=n_ctx), wall_bytes=wall_mib * MIB)
    return float(1 / truths(engine)[2].min())


def test_the_largest_context_that_is_still_fast_enough_is_found() -> None:
    """Without the floor layers are given up down to the last; with it they are not."""
    facts = made_up_facts((20 * MIB,) * 12, n_ctx_train=1 << 15)
    space = lawful_space(facts, device_mib=150, goal=Goal.CONTEXT)
    speeds = {n_ctx: fastest_tok_per_s(space, n_ctx, 150) for n_ctx in range(1024, facts.n_ctx_train + 1, 512)}
    floor = math.sqrt(min(speeds.values()) * max(speeds.values()))
    possible = max(n_ctx for n_ctx, speed in speeds.items() if speed >= floor)
    assert space.n_ctx < possible < facts.n_ctx_train
    limited = dataclasses.replace(space, limits=Limits(min_tok_per_s=floor))
    results = LawfulEngine(space=limited, wall_bytes=150 * MIB).carry_out()
    found = best_of(limited, results)
    assert keeps_limits(limited, found)
    assert possible * 15 / 16 - 512 <= found.trial.settings.n_ctx < possible + 512
    assert found.trial.settings in {one.settings for one in finalists(limited, results)}


def test_where_no_context_is_fast_enough_none_is_looked_for() -> None:
    facts = made_up_facts((20 * MIB,) * 12, n_ctx_train=1 << 15)
    space = lawful_space(facts, device_mib=150, goal=Goal.CONTEXT)
    limited = dataclasses.replace(space, limits=Limits(min_tok_per_s=1e6))
    results = LawfulEngine(space=limited, wall_bytes=150 * MIB).carry_out()
    assert max(one.trial.settings.n_ctx for one in results) == space.n_ctx
    nearest = 1 / best_of(limited, results).visits[0].token_s
    assert nearest >= 0.97 * fastest_tok_per_s(space, space.n_ctx, 150)


def test_what_main_memory_may_not_hold_is_never_tried() -> None:
    limit = least_host_bytes(FACTS, placed(20).replace(n_ctx=4096))
    space = limited_space(Limits(host_bytes=limit), device_mib=4000)
    engine = LawfulEngine(space=space, wall_bytes=4000 * MIB)
    results = engine.carry_out()
    assert results
    assert all(can_hold(space, one.trial.settings) for one in results)
    assert any(one.trial.settings.offloads for one in results)


def test_what_took_too_much_of_main_memory_bars_what_takes_as_much() -> None:
    """The process itself takes more than arithmetic knows: what ran over the limit shows it."""
    space = space_of(Limits(host_bytes=1 << 30))
    columns = Columns.of(SMALL, [placed(k) for k in range(14)])
    over, within = (ran(placed(k), 1, 1, host_peak=peak) for k, peak in ((5, (1 << 30) + 1), (9, 1 << 30)))
    assert over_ram(space, columns, [over, within]).tolist() == [k <= 5 for k in range(14)]
    assert not over_ram(space, columns, [within]).any()
    assert not over_ram(space_of(), columns, [over]).any()
    odd = ran(placed(12), 1, 1, host_peak=(1 << 30) + 1)  # what takes less by arithmetic than one within says nothing
    assert not over_ram(space, columns, [odd, within]).any()


def test_nothing_at_all_is_tried_where_main_memory_may_hold_nothing() -> None:
    space = space_of(Limits(host_bytes=1), device_bytes=0)
    assert next_trial(space, []) is None


def test_what_fits_between_two_limits_of_memory_is_found() -> None:
    """The ladder goes down in strides, and would step over what the device holds and main memory may."""
    settings = start_settings(space_of())
    engine = SyntheticEngine(facts=SMALL, wall_bytes=0)
    between = settings.replace(n_gpu_layers=9)
    engine = dataclasses.replace(engine, wall_bytes=engine.used_bytes(between))
    space = space_of(Limits(host_bytes=least_host_bytes(SMALL, between)), device_bytes=8 << 30)
    found = best_of(space, carry_out(space, engine))
    assert found.trial.settings.n_gpu_layers == 9

"""The fixed script: what a context allows, and which measure is visited next."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import visit

from offloadtune.bench import N_VISITS_WANTED, Attempt, Pace, measures_of, next_measure, pace_of, too_dear, too_long
from offloadtune.bench.script import expected_s
from offloadtune.benches import Measure, MeasureKind
from offloadtune.records import WORKLOADS, Workload

ALL = measures_of(None)
FAST = Pace(read_s=1e-6, write_s=1e-6)
BY_NAME = {measure.name: measure for measure in ALL}


def attempts_of(
    cost_s: dict[str, float], budget_s: float, disturbed: frozenset[str] = frozenset(), pace: Pace = FAST
) -> list[Attempt]:
    """The visits that a run makes when every visit of a measure takes `cost_s`."""
    attempts: list[Attempt] = []
    while (one := next_measure(ALL, attempts, pace, budget_s - sum(a.wall_s for a in attempts))) is not None:
        cost = cost_s[one.name]
        attempts.append(Attempt(measure=one, wall_s=cost, timed_s=cost, counts=one.name not in disturbed))
        assert len(attempts) < 10_000
    return attempts


def by_tokens(tok_per_s: float) -> dict[str, float]:
    """Reading and writing alike."""
    return {one.name: (one.n_prefix_cached + one.n_prompt_new + one.n_steps + 1) / tok_per_s for one in ALL}


def test_the_script_is_the_curve_a_second_turn_and_writing_by_depth() -> None:
    assert list(BY_NAME) == [
        "ttft 512",
        "ttft 1024",
        "ttft 2048",
        "ttft 4096",
        "ttft 8192",
        "second turn 1920+128",
        "decode at 0",
        "decode at 1024",
        "decode at 4096",
        "decode at 16384",
    ]


def test_the_second_turn_is_the_same_prompt_as_one_of_the_curve() -> None:
    second = BY_NAME["second turn 1920+128"]
    assert second.n_prefix_cached + second.n_prompt_new == BY_NAME["ttft 2048"].n_prompt_new


def test_a_workload_adds_its_own_turn() -> None:
    own = measures_of(WORKLOADS["code"])[-1]
    assert (own.kind, own.n_prefix_cached, own.n_prompt_new) == (MeasureKind.TURN, 6144, 512)
    short = measures_of(Workload(name="", n_prefix_cached=0, n_prompt_new=9, n_gen=1))[-1]
    assert short.n_steps == 1


def test_names_are_unique() -> None:
    names = [one.name for one in measures_of(WORKLOADS["chat"])]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("n_ctx", "is_allowed"), [(514, True), (513, False)])
def test_a_measure_needs_its_prompt_and_what_is_written_after_it(n_ctx: int, is_allowed: bool) -> None:  # noqa: FBT001
    why = too_long(BY_NAME["ttft 512"], n_ctx)
    assert (why == "") is is_allowed
    assert is_allowed or why == "It needs a context of 514, and the settings have 513."


def test_every_measure_is_visited_once_before_any_is_again() -> None:
    attempts = attempts_of(by_tokens(1000), budget_s=300)
    firsts = [attempt.measure.name for attempt in attempts[: len(ALL)]]
    assert sorted(firsts) == sorted(BY_NAME)
    assert firsts[0] == "decode at 0"  # the cheapest


def test_time_not_visits_is_shared_evenly() -> None:
    attempts = attempts_of(by_tokens(1000), budget_s=120)
    n_visits = {name: sum(a.measure.name == name for a in attempts) for name in BY_NAME}
    assert n_visits["ttft 512"] == N_VISITS_WANTED
    assert 1 <= n_visits["ttft 8192"] <= 2
    assert n_visits["ttft 1024"] > n_visits["ttft 4096"] > n_visits["ttft 8192"]


def test_it_ends_when_all_have_what_they_want() -> None:
    attempts = attempts_of(dict.fromkeys(BY_NAME, 0.01), budget_s=1e6)
    assert len(attempts) == len(ALL) * N_VISITS_WANTED


def test_a_disturbed_visit_is_replaced_but_not_for_ever() -> None:
    attempts = attempts_of(dict.fromkeys(BY_NAME, 0.01), 1e6, disturbed=frozenset({"ttft 512"}))
    n_visits = {name: sum(a.measure.name == name for a in attempts) for name in BY_NAME}
    assert n_visits["ttft 512"] == 2 * N_VISITS_WANTED
    assert n_visits["ttft 1024"] == N_VISITS_WANTED


def test_what_costs_more_than_is_left_is_never_begun() -> None:
    attempts = attempts_of(by_tokens(100), budget_s=30, pace=Pace(read_s=0.01, write_s=0.01))
    visited = {attempt.measure.name for attempt in attempts}
    assert "ttft 512" in visited
    assert "ttft 8192" not in visited
    assert sum(attempt.wall_s for attempt in attempts) <= 30
    why = too_dear(BY_NAME["ttft 8192"], Pace(read_s=0.01, write_s=0.01), 30)
    assert why == "The time was too short: it takes about 2 min 03 s. Allow 9 times the budget."


@given(tok_per_s=st.floats(1, 1e5), budget_s=st.floats(0, 500))
def test_the_budget_is_kept_where_the_pace_is_known(tok_per_s: float, budget_s: float) -> None:
    pace = Pace(read_s=1 / tok_per_s, write_s=1 / tok_per_s)
    attempts = attempts_of(by_tokens(tok_per_s), budget_s, pace=pace)
    assert sum(attempt.wall_s for attempt in attempts) <= budget_s


def test_the_cost_of_a_measure_not_yet_visited_follows_from_its_tokens() -> None:
    long = Measure(kind=MeasureKind.TTFT, n_prefix_cached=0, n_prompt_new=200, n_steps=1)
    pace = Pace(read_s=0.01, write_s=0.5)
    assert expected_s(long, [], pace) == pytest.approx(1.5 * 2 + 1)
    assert expected_s(long, [Attempt(measure=long, wall_s=3.0, timed_s=2.0, counts=False)], pace) == 3.0


def test_filling_the_cache_for_a_depth_is_not_charged_to_it() -> None:
    """The first visit of a depth reads thousands of tokens that no later one does."""
    deep, short = BY_NAME["decode at 4096"], BY_NAME["ttft 512"]
    attempts = [
        Attempt(measure=short, wall_s=1.0, timed_s=1.0, counts=True),
        Attempt(measure=deep, wall_s=30.0, timed_s=0.5, counts=True),
    ]
    assert next_measure([short, deep], attempts, FAST, 40.0) == deep
    again = [*attempts, Attempt(measure=deep, wall_s=0.8, timed_s=0.5, counts=True)]
    assert expected_s(deep, again, FAST) == 0.8


def test_disturbed_visits_cost_their_measure_as_much_as_others() -> None:
    attempts = attempts_of(by_tokens(1000), 120, disturbed=frozenset({"ttft 8192"}))
    n_visits = {name: sum(a.measure.name == name for a in attempts) for name in BY_NAME}
    assert n_visits["ttft 8192"] <= 2
    assert n_visits["ttft 512"] == N_VISITS_WANTED


def paced(*of_visits: tuple[float, float, int, bool]) -> Pace:
    return pace_of(
        [
            dataclasses.replace(visit(ttft_s=ttft_s, token_s=token_s, is_warmup=is_warmup), n_prompt_new=n_new)
            for ttft_s, token_s, n_new, is_warmup in of_visits
        ]
    )


def test_the_pace_is_that_of_the_longest_prompt_and_the_last_tokens() -> None:
    found = paced((1.0, 0.1, 1, False), (2.0, 0.2, 100, False), (3.0, 0.3, 10, False))
    assert found == Pace(read_s=0.02, write_s=0.3)


def test_the_pace_is_not_that_of_the_visit_that_compiled() -> None:
    assert paced((30.0, 1.0, 512, True)).read_s == pytest.approx(30 / 512)
    assert paced((30.0, 1.0, 512, True), (0.4, 0.1, 400, False)).read_s == pytest.approx(0.001)
    assert paced((30.0, 1.0, 512, False), (0.512, 0.1, 512, False)).read_s == pytest.approx(0.001)

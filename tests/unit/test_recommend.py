"""From made-up results to an answer in words: who wins, what is said of it, and what is never said."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import MIB, WORKLOAD, SyntheticEngine, carry_out, made_up_facts, made_up_space, ok_result, visit

from offloadtune.recommend import Round, are_used_up, counted_visits, figures, is_decided, losers, n_changes, recommend
from offloadtune.recommend.evidence import Case
from offloadtune.recommend.looks import N_LOOKS_MOST, confidence_at
from offloadtune.records import (
    Goal,
    Outcome,
    Recommendation,
    Settings,
    Trial,
    TrialResult,
    Verdict,
    Visit,
)
from offloadtune.search import Space, baseline_trials, next_trial

PLENTY = 8 << 30
FACTS = made_up_facts()
SPACE = made_up_space(FACTS, device_bytes=PLENTY)
EVERYTHING = 13
DEFAULTS = "llama_cpp_python's own defaults with n_ctx set to 1024"
JITTER = (1.0, 1.02, 0.99, 1.01, 0.98, 1.0)


def settings_of(space: Space, name: str) -> Settings:
    return baseline_trials(space)[name].settings


def full(space: Space = SPACE) -> Settings:
    trial = next_trial(space, [])
    assert trial is not None
    return trial.settings


DEFAULT, CPU_ONLY, FULL = settings_of(SPACE, "default"), settings_of(SPACE, "cpu_only"), full()


def turn_visit(turn_s: float) -> Visit:
    """A visit of a turn of `turn_s`, half of it to the first token."""
    return visit(ttft_s=turn_s / 2, token_s=turn_s / 2 / (WORKLOAD.n_gen - 1))


def ran(settings: Settings, turn_s: float, *, peak_bytes: int = 0) -> TrialResult:
    trial = Trial(settings=settings, target=SPACE.target, why="a test")
    return ok_result(trial, (turn_visit(turn_s),), peak_bytes=peak_bytes)


def failed(settings: Settings, outcome: Outcome = Outcome.OUT_OF_MEMORY_DEVICE) -> TrialResult:
    trial = Trial(settings=settings, target=SPACE.target, why="a test")
    return TrialResult(trial=trial, outcome=outcome, reason="the made-up memory ran out")


def rounds_of(costs: Mapping[Settings, Sequence[float]]) -> list[Round]:
    """Rounds in which each of the settings took the turns given, in seconds."""
    return [
        {settings: (turn_visit(turn_s),) for settings, turn_s in zip(costs, one, strict=True)}
        for one in zip(*costs.values(), strict=True)
    ]


def steady(costs: Mapping[Settings, float], n_rounds: int = 6) -> list[Round]:
    """Rounds that differ by 2 % or less, not together: the session's noise."""
    return rounds_of(
        {
            settings: [turn_s * JITTER[(i + shift) % len(JITTER)] for i in range(n_rounds)]
            for shift, (settings, turn_s) in enumerate(costs.items())
        }
    )


def answer(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round] = ()) -> Recommendation:
    found = recommend(space, results, rounds)
    assert found is not None
    return found


def verdicts(found: Recommendation) -> dict[str, Verdict]:
    """Verdicts without that against the --fit rule, which on this card is everything on the device."""
    return {one.against: one.verdict for one in found.versus if one.against != "fit"}


# --- who wins ------------------------------------------------------------------------------------------------------


def test_nothing_feasible_gives_no_answer() -> None:
    assert recommend(SPACE, [], ()) is None
    assert recommend(SPACE, [failed(FULL), failed(DEFAULT, Outcome.CRASHED)], ()) is None


def test_a_clear_winner_wins_and_is_said_to_be_faster() -> None:
    costs = {FULL: 1.0, DEFAULT: 2.0, CPU_ONLY: 3.0}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == FULL
    assert verdicts(found) == {"default": Verdict.FASTER, "cpu_only": Verdict.FASTER}
    ratios = {one.against: one.ratio for one in found.versus}
    assert ratios["default"].low < 2.0 < ratios["default"].high
    assert ratios["cpu_only"].p50 == pytest.approx(3.0, rel=0.02)
    assert {found.trial.trial_id} < set(found.evidence_trial_ids)


def test_inside_the_noise_the_settings_that_change_least_win() -> None:
    tuned = FULL.replace(n_ubatch=256, n_threads=2)
    costs = {tuned: 1.0, FULL: 1.005, DEFAULT: 2.0}
    assert n_changes(FULL, DEFAULT) < n_changes(tuned, DEFAULT)
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == FULL
    assert any("2 of the settings compared are not told apart beyond the noise" in reason for reason in found.reasons)


def test_what_is_measured_to_be_slower_is_no_tie_for_its_being_lost_in_the_noise() -> None:
    """Nobody can tell 4 % where rounds differ by a fifth; but a few changes are no price for what is likely there."""
    tuned = FULL.replace(n_ubatch=256, n_threads=2)
    costs = {tuned: 1.0, FULL: 1.04, DEFAULT: 3.0}
    results, rounds = [ran(s, c) for s, c in costs.items()], restless(costs, 7)
    case = Case(space=SPACE, results=results, rounds=rounds)
    assert case.pairs(FULL, tuned).verdict is Verdict.SAME
    found = answer(SPACE, results, rounds)
    assert found.trial.settings == tuned
    assert not any("noise; these change the least" in reason for reason in found.reasons)


def test_outside_the_noise_even_many_changes_win() -> None:
    tuned = FULL.replace(n_ubatch=256, n_threads=2)
    costs = {tuned: 1.0, FULL: 1.15, DEFAULT: 2.0}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == tuned
    assert not any("noise; these change the least" in reason for reason in found.reasons)


def test_a_default_as_good_as_the_best_is_the_answer_and_said_to_be_the_same() -> None:
    costs = {FULL: 1.0, DEFAULT: 1.004, CPU_ONLY: 3.0}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == DEFAULT
    assert verdicts(found) == {"default": Verdict.SAME, "cpu_only": Verdict.FASTER}
    assert any(
        f"settings of {DEFAULTS}: nothing compared side by side was better beyond the noise" in r for r in found.reasons
    )


def test_one_round_does_not_choose_the_default_over_a_quarter_better_one() -> None:
    costs = {FULL: 1.0, DEFAULT: 1.25}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], rounds_of({FULL: [1.0], DEFAULT: [1.25]}))
    assert found.trial.settings == FULL
    assert verdicts(found) == {"default": Verdict.SAME}  # one round proves nothing
    assert not any("interval" in reason or "inf" in reason for reason in found.reasons)
    assert f"1.25x as long with {DEFAULTS}, by a single round: too few to tell." in found.reasons


def test_two_rounds_give_no_verdict_and_three_do() -> None:
    costs = {FULL: 1.0, DEFAULT: 3.0}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs, 2))
    assert found.trial.settings == FULL
    assert verdicts(found) == {"default": Verdict.SAME}
    assert any("by two rounds: too few to tell." in reason for reason in found.reasons)
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs, 3))
    assert verdicts(found) == {"default": Verdict.FASTER}


def test_before_any_round_the_best_visit_answers_and_compares_nothing() -> None:
    found = answer(SPACE, [ran(DEFAULT, 1.25), ran(FULL, 1.0)])
    assert found.trial.settings == FULL
    assert verdicts(found) == {}
    assert set(found.evidence_trial_ids) == {ran(DEFAULT, 1).trial.trial_id, ran(FULL, 1).trial.trial_id}


def test_rounds_overrule_the_first_visits() -> None:
    results = [ran(FULL, 9.0), ran(DEFAULT, 2.0)]
    found = answer(SPACE, results, steady({FULL: 1.0, DEFAULT: 2.0}))
    assert found.trial.settings == FULL


def test_the_larger_context_wins_its_goal_though_it_is_slower_and_that_is_said() -> None:
    space = made_up_space(FACTS, device_bytes=PLENTY, goal=Goal.CONTEXT)
    large = FULL.replace(n_ctx=4096)
    costs = {FULL: 1.0, large: 2.0, DEFAULT: 1.5}
    found = answer(space, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == large
    assert verdicts(found) == {"default": Verdict.SLOWER}
    assert any(f"1.34x slower than {DEFAULTS}" in reason for reason in found.reasons)


def test_more_context_than_asked_for_is_not_chosen_but_its_cost_is_said() -> None:
    large = FULL.replace(n_ctx=2048)
    found = answer(SPACE, [ran(large, 0.5), ran(FULL, 1.0), ran(DEFAULT, 2.0)])
    assert found.trial.settings == FULL
    assert any("A context of 2048 runs too: 500 ms" in reason and "1.00 s" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.OUT_OF_MEMORY_DEVICE, "A context of 2048 does not fit: the made-up memory ran out."),
        (Outcome.CRASHED, "A context of 2048 did not run: the made-up memory ran out."),
        (Outcome.LOAD_FAILED, "A context of 2048 did not run: the made-up memory ran out."),
        (Outcome.TIMED_OUT, "A context of 2048 was not finished in its time."),
        (Outcome.CANCELLED, None),
    ],
)
def test_of_more_context_that_is_not_to_be_had_the_reason_is_said(outcome: Outcome, words: str | None) -> None:
    found = answer(SPACE, [failed(FULL.replace(n_ctx=2048), outcome), ran(FULL, 1.0)])
    assert [reason for reason in found.reasons if reason.startswith("A context of")] == ([words] if words else [])


def test_more_context_over_the_users_limit_is_said_to_be_that() -> None:
    space = made_up_space(FACTS, device_bytes=100 * MIB, limit_bytes=100 * MIB)
    large = ran(FULL.replace(n_ctx=2048), 1.0, peak_bytes=120 * MIB)
    said = reasons_of(space, [large, ran(FULL, 1.0, peak_bytes=90 * MIB)])
    assert "A context of 2048 ran, but took 120 MiB, over your limit of 100 MiB." in said


@pytest.mark.parametrize(
    ("goal", "winner"), [(Goal.TTFT, "first"), (Goal.DECODE, "steps"), (Goal.TURN, "steps"), (Goal.THROUGHPUT, "steps")]
)
def test_each_goal_has_its_own_winner(goal: Goal, winner: str) -> None:
    space = made_up_space(FACTS, device_bytes=PLENTY, goal=goal)
    contestants = {"first": FULL, "steps": FULL.replace(n_ubatch=256)}
    visits = {"first": visit(ttft_s=0.1, token_s=0.1), "steps": visit(ttft_s=1.0, token_s=0.01)}
    trials = {name: Trial(settings=s, target=space.target, why="a test") for name, s in contestants.items()}
    found = answer(space, [ok_result(trials[name], (visits[name],)) for name in contestants])
    assert found.trial.settings == contestants[winner]
    assert found.goal is goal


def test_the_limit_of_the_user_is_respected() -> None:
    space = made_up_space(FACTS, device_bytes=100 * MIB, limit_bytes=100 * MIB)
    small = FULL.replace(n_gpu_layers=4)
    results = [ran(FULL, 1.0, peak_bytes=100 * MIB + 1), ran(small, 2.0, peak_bytes=100 * MIB), ran(DEFAULT, 3.0)]
    found = answer(space, results, steady({FULL: 1.0, small: 2.0, DEFAULT: 3.0}))
    assert found.trial.settings == small
    assert sum(peak for _, peak in found.peak_bytes) <= 100 * MIB
    assert recommend(space, results[:1], ()) is None


# --- failures on the way -------------------------------------------------------------------------------------------


def test_a_finalist_that_fails_in_a_later_round_is_out_and_the_rest_goes_on() -> None:
    """Rounds after its failure lack it, and may hold another instead."""
    lost, late = FULL.replace(n_ubatch=256), FULL.replace(n_ubatch=128)
    rounds = [*steady({lost: 0.5, FULL: 1.0, DEFAULT: 2.0}, 1), *steady({late: 0.1, FULL: 1.0, DEFAULT: 2.0}, 4)]
    found = answer(SPACE, [failed(lost), ran(late, 0.9), ran(FULL, 1.0), ran(DEFAULT, 2.0)], rounds)
    assert found.trial.settings == FULL
    assert verdicts(found) == {"default": Verdict.FASTER}
    assert found.versus[0].ratio.n_samples == 5


def test_when_all_that_were_compared_fail_the_first_visits_answer() -> None:
    rounds = steady({FULL: 1.0, DEFAULT: 2.0}, 2)
    found = answer(SPACE, [failed(FULL), failed(DEFAULT), ran(CPU_ONLY, 3.0)], rounds)
    assert found.trial.settings == CPU_ONLY
    assert list(verdicts(found)) == ["cpu_only"]


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.lists(st.floats(0.1, 10), min_size=4, max_size=4))
def test_any_mixture_of_rounds_gives_an_answer_that_ran(presence: list[bool], costs: list[float]) -> None:
    contestants = (FULL, FULL.replace(n_ubatch=256), DEFAULT, CPU_ONLY)
    rounds = [
        {s: (turn_visit(cost),) for s, cost, here in zip(contestants, costs, present, strict=True) if here}
        for present in (presence[i : i + 4] for i in range(0, 12, 4))
    ]
    results = [ran(s, cost) for s, cost in zip(contestants, costs, strict=True)]
    found = answer(SPACE, results, [one for one in rounds if one])
    assert found.trial.settings in contestants


# --- looks ---------------------------------------------------------------------------------------------------------

SWING = (1.0, 1.3, 0.8, 1.2, 0.7, 1.1, 0.9)


def restless(costs: Mapping[Settings, float], n_rounds: int) -> list[Round]:
    """Rounds that differ by a fifth and more, not together."""
    return rounds_of(
        {
            settings: [turn_s * SWING[i * (1 + shift) % len(SWING)] for i in range(n_rounds)]
            for shift, (settings, turn_s) in enumerate(costs.items())
        }
    )


def test_all_looks_together_err_in_5_percent() -> None:
    """The level of a look against a random walk: any look beyond it, over 200 000 walks."""
    critical = statistics.NormalDist().inv_cdf((1 + confidence_at(7)) / 2)
    walks = np.random.default_rng(1).normal(size=(200_000, N_LOOKS_MOST)).cumsum(axis=1)
    beyond = (np.abs(walks) / np.sqrt(np.arange(1, N_LOOKS_MOST + 1)) > critical).any(axis=1)
    assert beyond.mean() == pytest.approx(0.05, abs=0.002)


def test_the_level_depends_on_the_rounds_alone() -> None:
    assert {confidence_at(n) for n in range(1, 7)} == {0.95}  # before the first look: judged once
    assert len({confidence_at(n) for n in range(7, 36)}) == 1
    assert [n for n in range(40) if are_used_up(n)] == [35, 36, 37, 38, 39]


def test_rounds_end_at_the_first_look_that_decides() -> None:
    costs = {FULL: 1.0, DEFAULT: 2.0, CPU_ONLY: 3.0}
    results, rounds = [ran(s, c) for s, c in costs.items()], steady(costs, 35)
    decided = [n for n in range(36) if is_decided(SPACE, results, rounds[:n])]
    assert decided == [7, 14, 21, 28, 35]


def test_rounds_that_leave_the_verdict_open_decide_nothing() -> None:
    costs = {FULL: 1.0, DEFAULT: 1.3}
    results, rounds = [ran(s, c) for s, c in costs.items()], restless(costs, 14)
    assert not any(is_decided(SPACE, results, rounds[:n]) for n in range(15))


def test_a_clear_loser_leaves_the_rounds_and_keeps_its_verdict() -> None:
    results = [ran(FULL, 1.0), ran(CPU_ONLY, 6.0), ran(DEFAULT, 1.1)]
    turns_s = {FULL: [1.0, 1.1, 0.95, 1.0, 1.02, 0.97, 1.0], DEFAULT: [1.15, 1.05, 1.1, 1.12, 1.05, 1.1, 1.15]}
    first = rounds_of({**{one: turns[:3] for one, turns in turns_s.items()}, CPU_ONLY: [6.0, 6.1, 6.05]})
    assert losers(SPACE, results, first) == {CPU_ONLY}
    assert losers(SPACE, results, first[:2]) == set()
    found = answer(SPACE, results, [*first, *rounds_of({one: turns[3:] for one, turns in turns_s.items()})])
    versus = {one.against: one for one in found.versus}
    assert (versus["cpu_only"].verdict, versus["cpu_only"].ratio.n_samples) == (Verdict.FASTER, 3)
    assert versus["default"].ratio.n_samples == 7


def test_who_only_was_in_the_first_rounds_and_no_clear_loser_has_no_verdict() -> None:
    results = [ran(FULL, 1.0), ran(CPU_ONLY, 1.01), ran(DEFAULT, 1.02)]
    first = steady({FULL: 1.0, CPU_ONLY: 1.01, DEFAULT: 1.02}, n_rounds=3)
    found = answer(SPACE, results, [*first, *steady({FULL: 1.0, DEFAULT: 1.02}, n_rounds=4)])
    assert "cpu_only" not in {one.against for one in found.versus}


def test_who_is_alike_hardly_ever_leaves() -> None:
    chance, n_left = np.random.default_rng(5), 0
    for _ in range(60):
        swings = np.exp(chance.normal(0, 0.03, (2, 35)))
        rounds = rounds_of({FULL: swings[0].tolist(), DEFAULT: swings[1].tolist()})
        results = [ran(FULL, 1.0), ran(DEFAULT, 1.0)]
        n_left += any(losers(SPACE, results, rounds[:n]) for n in (3, 4, 5, 7, 10, 14, 21, 35))
    assert n_left <= 3


def test_the_two_best_are_to_be_told_apart_too() -> None:
    tuned = FULL.replace(n_ubatch=256)
    costs = {FULL: 1.0, tuned: 1.3, DEFAULT: 90.0, CPU_ONLY: 80.0}
    results, rounds = [ran(s, c) for s, c in costs.items()], restless(costs, 7)
    assert not is_decided(SPACE, results, rounds)
    without = [{settings: one[settings] for settings in (FULL, DEFAULT, CPU_ONLY)} for one in rounds]
    assert is_decided(SPACE, results, without)


def test_when_all_that_were_compared_failed_nothing_is_decided() -> None:
    rounds = steady({FULL: 1.0, DEFAULT: 2.0}, 7)
    assert not is_decided(SPACE, [failed(FULL), failed(DEFAULT), ran(CPU_ONLY, 3.0)], rounds)


# --- disturbed rounds ----------------------------------------------------------------------------------------------


def disturbed(rounds: Sequence[Round], settings: Settings, i_rounds: Collection[int], slower: float) -> list[Round]:
    """`rounds`, in some of which something else ran beside `settings`."""

    def worse(visits: tuple[Visit, ...]) -> tuple[Visit, ...]:
        cost = slower * visits[0].turn_s(WORKLOAD.n_gen)
        return (dataclasses.replace(turn_visit(cost), disturbed_by=("Another program ran.",)),)

    return [{**one, settings: worse(one[settings])} if i in i_rounds else one for i, one in enumerate(rounds)]


@pytest.mark.parametrize("n_disturbed", [4, 11])
def test_disturbed_rounds_do_not_count_where_enough_others_do(n_disturbed: int) -> None:
    costs = {FULL: 1.0, DEFAULT: 1.5}
    results = [ran(s, c) for s, c in costs.items()]
    rounds = disturbed(restless(costs, 14), FULL, range(n_disturbed), slower=9.0)
    assert answer(SPACE, results, rounds).versus == answer(SPACE, results, rounds[n_disturbed:]).versus


def test_where_hardly_any_round_was_undisturbed_all_count() -> None:
    costs = {FULL: 1.0, DEFAULT: 9.0}
    results, rounds = [ran(s, c) for s, c in costs.items()], steady(costs, 7)
    assert answer(SPACE, results, disturbed(rounds, FULL, range(5), slower=1.0)).versus[0].ratio.n_samples == 7


def test_a_look_is_due_after_as_many_undisturbed_rounds() -> None:
    costs = {FULL: 1.0, DEFAULT: 2.0}
    results, rounds = [ran(s, c) for s, c in costs.items()], disturbed(steady(costs, 14), FULL, [3], slower=1.0)
    assert [n for n in range(15) if is_decided(SPACE, results, rounds[:n])] == [14]


# --- what is said --------------------------------------------------------------------------------------------------


def reasons_of(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round] = ()) -> str:
    return "\n".join(answer(space, results, rounds).reasons)


def test_reasons_name_the_numbers() -> None:
    costs = {FULL: 1.0, DEFAULT: 2.0, CPU_ONLY: 2.0}
    results = [ran(s, c, peak_bytes=512 * MIB if s == FULL else 0) for s, c in costs.items()]
    found = answer(SPACE, results, steady(costs))
    assert found.reasons[0] == "All 13 layers are on the device, 512 MiB of 8.00 GiB."
    assert found.reasons[1].startswith("2.01x faster than the CPU alone for the whole turn (95 % ")
    assert found.reasons[2].startswith(f"1.99x faster than {DEFAULTS} for the whole turn (95 % ")
    assert "6 rounds" in found.reasons[2]
    assert found.reasons[3].startswith(
        "These are the settings of llama.cpp's --fit rule as we estimate it (13 of 13 layers)"
    )
    assert found.reasons[4].startswith("Flash attention is on: it changes the order of the arithmetic")
    assert found.reasons[5].startswith("Noise of this sweep: the same settings differ by 2.")
    assert len(found.reasons) == 6


def test_experts_in_main_memory_are_named() -> None:
    away = FULL.replace(n_cpu_moe=3)
    found = answer(SPACE, [ran(away, 1.0, peak_bytes=512 * MIB)])
    expected = "All 13 layers are on the device, the experts of 3 blocks in main memory; 512 MiB of 8.00 GiB."
    assert found.reasons[0] == expected


def test_feed_forward_weights_in_main_memory_are_named() -> None:
    found = answer(SPACE, [ran(FULL.replace(n_cpu_ffn=1), 1.0, peak_bytes=512 * MIB)])
    away = "the feed-forward weights of 1 block in main memory"
    assert found.reasons[0] == f"All 13 layers are on the device, {away}; 512 MiB of 8.00 GiB."


def test_what_another_cache_changes_besides_time_is_said() -> None:
    sliding = dataclasses.replace(SPACE, facts=dataclasses.replace(SPACE.facts, is_swa=(True,) * SPACE.facts.n_layer))
    other = FULL.replace(offload_kqv=False, swa_full=False)
    said = reasons_of(sliding, [ran(other, 1.0)])
    assert "Keys and values stay in main memory: that leaves the device room for weights." in said
    assert "a conversation that goes back to an earlier point is read anew." in said
    held = dataclasses.replace(sliding, fixed={"offload_kqv": False, "swa_full": False})
    for space, settings in ((sliding, FULL), (held, other)):
        quiet = reasons_of(space, [ran(settings, 1.0)])
        assert "Keys and values" not in quiet
        assert "read anew" not in quiet


def test_an_open_verdict_says_how_many_more_rounds_would_decide_it() -> None:
    costs = {FULL: 1.0, DEFAULT: 1.6}
    said = reasons_of(SPACE, [ran(s, c) for s, c in costs.items()], restless(costs, 5))
    assert re.search(
        r"^No difference from .* shown beyond the noise \(95 % interval .*, 5 rounds\): "
        r"about \d+ more rounds? would decide it, with a larger --budget\.$",
        said,
        re.MULTILINE,
    )


def test_an_open_verdict_against_a_baseline_is_not_called_the_same() -> None:
    costs = {DEFAULT: 1.0, CPU_ONLY: 1.1}
    said = reasons_of(SPACE, [ran(s, c) for s, c in costs.items()], restless(costs, 7))
    assert re.search(
        r"^No difference from the CPU alone shown beyond the noise \(95 % interval .*, 7 rounds\): ", said, re.MULTILINE
    )
    assert "Same as" not in said


def test_what_35_rounds_would_not_show_is_said_to_be_that() -> None:
    costs = {DEFAULT: 1.0, CPU_ONLY: 1.28}
    said = reasons_of(SPACE, [ran(s, c) for s, c in costs.items()], restless(costs, 7))
    assert ": 35 rounds would hardly decide it." in said


def test_what_is_shown_to_lie_inside_the_noise_is_the_same() -> None:
    costs = {DEFAULT: 1.0, CPU_ONLY: 1.0}
    said = reasons_of(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs, 28))
    assert re.search(r"^Same as the CPU alone within the noise \(95 % interval .*, 28 rounds\)\.$", said, re.MULTILINE)


def test_do_not_offload_is_said_with_both_speeds() -> None:
    costs = {CPU_ONLY: 1.0, FULL: 4.0, DEFAULT: 2.0}
    said = reasons_of(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert said.startswith("Do not offload: the CPU alone reads 1024 tok/s and writes 126 tok/s, a turn of 1.00 s; ")
    assert "with 13 of 13 layers on the device it reads 256 tok/s and writes 31.5 tok/s, a turn of 4.00 s." in said


def test_where_the_cpu_is_only_as_good_offloading_gains_nothing_but_is_not_advised_against() -> None:
    costs = {FULL: 1.0, DEFAULT: 1.005, CPU_ONLY: 1.5}
    said = reasons_of(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert said.startswith("Offloading gains nothing beyond the noise: with every layer on the CPU it reads 10")
    assert "with 13 of 13 layers on the device it reads 10" in said
    assert "Do not offload" not in said


def test_the_rival_of_the_cpu_is_the_best_placement_of_the_rounds() -> None:
    """A placement that looked best at first sight and lost in the rounds, or is not in them, is not what decides."""
    others = {FULL.replace(n_gpu_layers=k): cost for k, cost in ((4, 0.2), (5, 3.0))}
    results = [ran(s, c) for s, c in ({CPU_ONLY: 1.0, FULL: 1.2} | others).items()]
    said = reasons_of(SPACE, results, steady({CPU_ONLY: 1.0, FULL: 2.0, FULL.replace(n_gpu_layers=5): 3.0}))
    assert said.startswith("Do not offload: ")
    assert "with 13 of 13 layers on the device it reads 512 tok/s" in said


def test_a_placement_that_did_not_come_into_the_rounds_is_a_rival_by_its_one_visit() -> None:
    costs = {CPU_ONLY: 1.0, DEFAULT: 2.0}
    said = reasons_of(SPACE, [ran(FULL, 4.0), *(ran(s, c) for s, c in costs.items())], steady(costs))
    assert "a turn of 4.00 s, by one visit." in said.splitlines()[0]
    assert said.startswith("Do not offload: ")


def test_the_cpu_that_wins_by_its_context_is_not_said_to_be_faster() -> None:
    space = made_up_space(FACTS, device_bytes=PLENTY, goal=Goal.CONTEXT)
    large = CPU_ONLY.replace(n_ctx=4096)
    said = reasons_of(space, [failed(FULL.replace(n_ctx=4096)), ran(FULL, 1.0), ran(large, 9.0)])
    assert said.startswith("Nothing is offloaded: no placement on the device ran with a context of 4096.")


def test_without_a_placement_within_the_limit_that_is_the_reason() -> None:
    space = made_up_space(FACTS, device_bytes=100 * MIB, limit_bytes=100 * MIB)
    said = reasons_of(space, [ran(FULL, 1.0, peak_bytes=101 * MIB), ran(CPU_ONLY, 2.0)])
    assert said.startswith("Nothing is offloaded: no placement on the device stayed within your limit of 100 MiB.")


def test_offloading_nothing_for_lack_of_a_placement_that_runs_is_another_matter() -> None:
    said = reasons_of(SPACE, [failed(FULL), failed(FULL.replace(n_gpu_layers=1)), ran(CPU_ONLY, 1.0)])
    assert said.startswith("Nothing is offloaded: no placement on the device ran to the end.")


def test_without_devices_nothing_is_said_of_offloading() -> None:
    space = made_up_space(FACTS, device_bytes=0)
    said = reasons_of(space, [ran(settings_of(space, "cpu_only"), 1.0)])
    assert said.startswith("Everything runs on the CPU: the engine lists no other device.")


def layers(n_gpu_layers: int) -> Settings:
    return FULL.replace(n_gpu_layers=n_gpu_layers)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([failed(layers(6)), failed(FULL)], "one more does not fit: 6 were tried and ran out of memory."),
        ([failed(layers(6), Outcome.CRASHED)], "one more does not fit: 6 were tried and crashed."),
        ([failed(layers(6), Outcome.OUT_OF_MEMORY_HOST)], "one more does not fit: 6 were tried and ran out of memory."),
        ([failed(layers(9)), failed(FULL)], "; 9 were tried and ran out of memory."),
        ([failed(layers(6), Outcome.TIMED_OUT)], "; 6 were not finished in their time."),
        ([failed(layers(6), Outcome.CANCELLED)], "; one more would need about "),
        ([failed(layers(6), Outcome.CANCELLED), failed(layers(7))], "; 7 were tried and ran out of memory."),
        ([failed(layers(6), Outcome.LOAD_FAILED)], "; 6 were tried and did not run: the made-up memory ran out."),
        ([failed(FULL), ran(layers(9), 3.0)], "; 9 run too, but not faster beyond the noise."),
        ([failed(layers(6).replace(n_ctx=4096))], "; one more would need about "),  # it asked for more besides
        ([failed(layers(6).replace(n_threads=2))], "one more does not fit: 6 were tried and ran out of memory."),
        ([], "; one more would need about "),
    ],
)
def test_of_more_layers_only_what_was_tried_is_said(others: list[TrialResult], words: str) -> None:
    said = reasons_of(SPACE, [ran(layers(5), 1.0, peak_bytes=64 * MIB), *others])
    assert said.startswith("5 of 13 layers are on the device, 64.0 MiB of 8.00 GiB; ")
    assert words in said.splitlines()[0]


@pytest.mark.parametrize("limit_bytes", [None, 49 * MIB])
def test_one_more_layer_that_the_arithmetic_excludes_is_said_to_be_excluded_by_it(limit_bytes: int | None) -> None:
    space = made_up_space(FACTS, device_bytes=49 * MIB, limit_bytes=limit_bytes)
    said = reasons_of(space, [ran(layers(4), 1.0, peak_bytes=48 * MIB)]).splitlines()[0]
    verb = "does not fit" if limit_bytes is None else "is over your limit"
    assert said.endswith(f"; one more {verb}: by the file's sizes it needs at least 50.0 MiB.")


def test_more_layers_over_the_users_limit_are_said_to_be_that() -> None:
    space = made_up_space(FACTS, device_bytes=100 * MIB, limit_bytes=100 * MIB)
    results = [ran(layers(5), 1.0, peak_bytes=90 * MIB), ran(layers(6), 0.9, peak_bytes=101 * MIB)]
    said = reasons_of(space, results).splitlines()[0]
    assert said.endswith("; 6 ran, but took 101 MiB, over your limit of 100 MiB.")
    assert "fit" not in said


# --- a verdict that is missing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([], "it was not tried, the sweep ended first"),
        ([failed(DEFAULT)], "it does not fit: the made-up memory ran out"),
        ([failed(DEFAULT, Outcome.CRASHED)], "it did not run: the made-up memory ran out"),
        ([failed(DEFAULT, Outcome.TIMED_OUT)], "it was not finished in its time"),
        ([failed(DEFAULT, Outcome.CANCELLED)], "it was not finished, the sweep was stopped"),
        ([ran(DEFAULT, 1.0, peak_bytes=PLENTY)], "it ran, but took 8.00 GiB, over your limit of 1.00 GiB"),
        ([ran(DEFAULT, 1.0)], "it was not in every round"),
    ],
)
def test_a_missing_verdict_is_never_silent(others: list[TrialResult], why: str) -> None:
    space = made_up_space(FACTS, device_bytes=1 << 30, limit_bytes=1 << 30)
    costs = {FULL: 1.0, CPU_ONLY: 3.0}
    found = answer(space, [*(ran(s, c) for s, c in costs.items()), *others], steady(costs))
    assert verdicts(found) == {"cpu_only": Verdict.FASTER}
    missing = [reason for reason in found.reasons if reason.startswith("No verdict") and "--fit" not in reason]
    assert missing == [f"No verdict against {DEFAULTS}: {why}."]


def test_the_rule_of_llama_cpp_gets_its_own_verdict() -> None:
    space = made_up_space(FACTS, device_bytes=(1 << 30) + 60 * MIB)
    fit = settings_of(space, "fit")
    assert 0 < fit.n_gpu_layers < EVERYTHING
    costs = {FULL: 1.0, fit: 2.0}
    found = answer(space, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert {one.against: one.verdict for one in found.versus} == {"fit": Verdict.FASTER}
    words = (
        f"1.99x faster than llama.cpp's --fit rule as we estimate it ({fit.n_gpu_layers} of 13 layers) for the whole"
    )
    assert any(reason.startswith(words) for reason in found.reasons)


def test_that_the_front_end_as_shipped_refuses_is_said() -> None:
    shipped = baseline_trials(SPACE)["as_shipped"]
    refused = TrialResult(trial=shipped, outcome=Outcome.UNSUPPORTED, reason="it refuses: it is too long")
    words = "As shipped, llama_cpp_python does not serve this workload: it refuses: it is too long."
    assert words in answer(SPACE, [ran(FULL, 1.0), refused]).reasons
    assert not any("shipped" in reason for reason in answer(SPACE, [ran(FULL, 1.0)]).reasons)


def test_without_rounds_what_ran_is_said_to_lack_them_and_the_rest_its_own_reason() -> None:
    found = answer(SPACE, [ran(FULL, 1.0), ran(DEFAULT, 2.0), failed(CPU_ONLY, Outcome.TIMED_OUT)])
    assert "No verdict against the CPU alone: it was not finished in its time." in found.reasons
    assert sum("No verdict" in reason for reason in found.reasons) == 1
    assert any(reason.startswith("No comparison side by side was finished") for reason in found.reasons)


def test_with_nothing_to_compare_nobody_is_told_to_take_more_time() -> None:
    found = answer(SPACE, [ran(FULL, 1.0), failed(DEFAULT), failed(CPU_ONLY)])
    assert not any("No comparison" in reason for reason in found.reasons)


def test_without_devices_the_cpu_alone_needs_no_verdict() -> None:
    space = made_up_space(FACTS, device_bytes=0)
    start = settings_of(space, "cpu_only")
    costs = {start.replace(n_threads=2): 1.0, settings_of(space, "default"): 2.0}
    said = reasons_of(space, [ran(start, 1.5), *(ran(s, c) for s, c in costs.items())], steady(costs))
    assert "No verdict" not in said


@pytest.mark.parametrize(
    ("n_gpu_layers", "words"), [(5, "5 of 13 layers are on the device"), (0, "Nothing is offloaded")]
)
def test_layers_the_user_fixed_are_said_to_be_asked_for(n_gpu_layers: int, words: str) -> None:
    space = made_up_space(FACTS, device_bytes=PLENTY, fixed={"n_gpu_layers": n_gpu_layers})
    said = reasons_of(space, [ran(FULL.replace(n_gpu_layers=n_gpu_layers), 1.0)]).splitlines()[0]
    assert said.startswith(words)
    assert said.endswith(", as you asked.")


def test_settings_the_user_fixed_are_never_given_up() -> None:
    space = made_up_space(FACTS, device_bytes=PLENTY, fixed={"n_gpu_layers": 5})
    five, cpu_only = FULL.replace(n_gpu_layers=5), settings_of(space, "cpu_only")
    costs = {five: 2.0, cpu_only: 1.0}
    found = answer(space, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == five
    assert verdicts(found) == {"cpu_only": Verdict.SLOWER}


def test_what_the_self_test_keeps_is_said() -> None:
    space = made_up_space(FACTS, device_bytes=PLENTY, kept={"use_extra_bufts": False})
    said = reasons_of(space, [ran(full(space), 1.0)])
    assert "Kept for the sake of this engine build: use_extra_bufts=False." in said


@pytest.mark.parametrize("wall_mib", [1, 60, 120, 250, 8000])
@pytest.mark.parametrize("host_bytes_per_s", [1e9, 20e9, 900e9])
def test_the_whole_made_up_sweep_ends_in_the_best_there_is(wall_mib: int, host_bytes_per_s: float) -> None:
    engine = SyntheticEngine(facts=FACTS, wall_bytes=wall_mib * MIB, host_bytes_per_s=host_bytes_per_s)
    space = made_up_space(FACTS, device_bytes=wall_mib * MIB)
    results = carry_out(space, engine)
    found = answer(space, results)
    chosen_s = found.figures.turn_s.p50
    runs = [r for r in results if r.outcome is Outcome.OK and r.trial.settings.n_ctx == space.n_ctx]
    assert chosen_s == min(r.visits[-1].turn_s(WORKLOAD.n_gen) for r in runs)
    if host_bytes_per_s > engine.device_bytes_per_s:
        assert found.reasons[0].startswith(("Do not offload: ", "Nothing is offloaded: "))


# --- figures -------------------------------------------------------------------------------------------------------


def test_figures_leave_warm_ups_out() -> None:
    visits = (visit(ttft_s=90.0, token_s=9.0, is_warmup=True), visit(ttft_s=0.5, token_s=0.01))
    found = figures(visits, WORKLOAD)
    assert found.ttft_s.p50 == pytest.approx(0.5)
    assert found.decode_tok_per_s.p50 == pytest.approx(100)
    assert found.prefill_tok_per_s.p50 == pytest.approx(1024)
    assert found.turn_s.p50 == pytest.approx(0.5 + 63 * 0.01)
    assert found.turn_s.n_samples == 1


def test_figures_of_warm_ups_alone_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="no visit"):
        figures((visit(ttft_s=1.0, token_s=0.1, is_warmup=True),), WORKLOAD)


@pytest.mark.parametrize(("n_rounds", "n_samples"), [(0, 1), (1, 2), (2, 2), (6, 6)])
def test_figures_are_those_of_the_rounds_once_there_are_two(n_rounds: int, n_samples: int) -> None:
    """First visits are warmer; a single round is too little to do without them."""
    costs = {FULL: 1.0, DEFAULT: 2.0}
    results = [ran(s, c) for s, c in costs.items()]
    rounds = steady(costs, n_rounds)
    found = answer(SPACE, results, rounds)
    assert found.figures.turn_s.n_samples == n_samples
    default = figures(counted_visits(results[1], rounds), WORKLOAD)
    assert default.turn_s.n_samples == n_samples
    assert default.turn_s.p50 == pytest.approx(2.0, rel=0.02)
    assert all(one.ratio.n_samples == n_rounds for one in found.versus if one.against != "fit")


def test_the_first_visit_counts_no_more_once_there_are_rounds() -> None:
    found = answer(SPACE, [ran(FULL, 0.1), ran(DEFAULT, 2.0)], steady({FULL: 1.0, DEFAULT: 2.0}))
    assert found.figures.turn_s.low > 0.9
    assert not math.isinf(found.versus[0].ratio.high)

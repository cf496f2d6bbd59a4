"""From made-up results to an answer in words: who wins, what is said of it, and what is never said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import MIB, WORKLOAD, SyntheticEngine, carry_out, made_up_facts, made_up_space, ok_result, visit

from offloadtune.recommend import Round, figures, n_changes, recommend
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
    return {one.against: one.verdict for one in found.versus}


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
    assert any("2 of the settings compared are the same within the noise" in reason for reason in found.reasons)


def test_outside_the_noise_even_many_changes_win() -> None:
    tuned = FULL.replace(n_ubatch=256, n_threads=2)
    costs = {tuned: 1.0, FULL: 1.15, DEFAULT: 2.0}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == tuned
    assert not any("within the noise; these" in reason for reason in found.reasons)


def test_a_default_as_good_as_the_best_is_the_answer_and_said_to_be_the_same() -> None:
    costs = {FULL: 1.0, DEFAULT: 1.01, CPU_ONLY: 3.0}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.trial.settings == DEFAULT
    assert verdicts(found) == {"default": Verdict.SAME, "cpu_only": Verdict.FASTER}
    assert any("settings of llama_cpp_python's own defaults: nothing tried was better" in r for r in found.reasons)


def test_one_round_does_not_choose_the_default_over_a_quarter_better_one() -> None:
    costs = {FULL: 1.0, DEFAULT: 1.25}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], rounds_of({FULL: [1.0], DEFAULT: [1.25]}))
    assert found.trial.settings == FULL
    assert verdicts(found) == {"default": Verdict.SAME}  # one round proves nothing
    assert not any("interval" in reason or "inf" in reason for reason in found.reasons)
    assert "1.25x as long with llama_cpp_python's own defaults, by a single round: too few to tell." in found.reasons


def test_before_any_round_the_best_visit_answers_and_compares_nothing() -> None:
    found = answer(SPACE, [ran(DEFAULT, 1.25), ran(FULL, 1.0)])
    assert found.trial.settings == FULL
    assert found.versus == ()
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
    assert any("1.33x slower than llama_cpp_python's own defaults" in reason for reason in found.reasons)


def test_more_context_than_asked_for_is_not_chosen_but_its_cost_is_said() -> None:
    large = FULL.replace(n_ctx=2048)
    found = answer(SPACE, [ran(large, 0.5), ran(FULL, 1.0), ran(DEFAULT, 2.0)])
    assert found.trial.settings == FULL
    assert any("A context of 2048 runs too: 500 ms" in reason and "1.00 s" in reason for reason in found.reasons)
    found = answer(SPACE, [failed(large), ran(FULL, 1.0)])
    assert "A context of 2048 does not run: the made-up memory ran out." in found.reasons


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
    assert [one.against for one in found.versus] == ["cpu_only"]


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


# --- what is said --------------------------------------------------------------------------------------------------


def reasons_of(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round] = ()) -> str:
    return "\n".join(answer(space, results, rounds).reasons)


def test_reasons_name_the_numbers() -> None:
    costs = {FULL: 1.0, DEFAULT: 2.0}
    found = answer(SPACE, [ran(FULL, 1.0, peak_bytes=512 * MIB), ran(DEFAULT, 2.0)], steady(costs))
    assert found.reasons[0] == "All 13 layers are on the device, 512 MiB of 8.00 GiB."
    assert found.reasons[1].startswith("2.00x faster than llama_cpp_python's own defaults for the whole turn (95 % ")
    assert "6 rounds" in found.reasons[1]
    assert found.reasons[2].startswith("Flash attention is on: it changes the order of the arithmetic")
    assert found.reasons[3].startswith("Noise of this session: the same settings differ by 2.")
    assert len(found.reasons) == 4


def test_do_not_offload_is_said_with_both_speeds() -> None:
    costs = {CPU_ONLY: 1.0, FULL: 4.0, DEFAULT: 2.0}
    said = reasons_of(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert said.startswith("Do not offload: the CPU alone reads 1024 tok/s and writes 126 tok/s, a turn of 1.00 s; ")
    assert "with 13 of 13 layers on the device it reads 256 tok/s and writes 31.5 tok/s, a turn of 4.00 s." in said


def test_offloading_nothing_for_lack_of_a_placement_that_runs_is_another_matter() -> None:
    said = reasons_of(SPACE, [failed(FULL), failed(FULL.replace(n_gpu_layers=1)), ran(CPU_ONLY, 1.0)])
    assert said.startswith("Nothing is offloaded: no placement on the device ran to the end.")


def test_without_devices_nothing_is_said_of_offloading() -> None:
    space = made_up_space(FACTS, device_bytes=0)
    said = reasons_of(space, [ran(settings_of(space, "cpu_only"), 1.0)])
    assert said.startswith("Everything runs on the CPU: the engine lists no other device.")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([failed(FULL.replace(n_gpu_layers=6)), failed(FULL)], "one more does not fit: 6 were tried and did not run."),
        ([failed(FULL.replace(n_gpu_layers=9)), failed(FULL)], "; 9 were tried and did not run."),
        ([failed(FULL), ran(FULL.replace(n_gpu_layers=9), 3.0)], "; 9 run too, but not faster beyond the noise."),
        ([], "; one more would need about "),
    ],
)
def test_of_more_layers_only_what_was_tried_is_said(others: list[TrialResult], words: str) -> None:
    said = reasons_of(SPACE, [ran(FULL.replace(n_gpu_layers=5), 1.0, peak_bytes=64 * MIB), *others])
    assert said.startswith("5 of 13 layers are on the device, 64.0 MiB of 8.00 GiB; ")
    assert words in said


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


def test_figures_of_the_answer_hold_the_rounds_too() -> None:
    costs = {FULL: 1.0, DEFAULT: 2.0}
    found = answer(SPACE, [ran(s, c) for s, c in costs.items()], steady(costs))
    assert found.figures.turn_s.n_samples == 7
    assert not math.isinf(found.versus[0].ratio.high)

"""Which candidate is next: gain for the time it takes, what it teaches, and when there is nothing more to gain."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from lawful import LawfulEngine, Times, lawful_space, with_experts
from synthetic import MIB, made_up_facts

from offloadtune.records import Goal, Outcome, Settings, TrialResult
from offloadtune.search import baseline_trials, candidates, next_trial, result_cost
from offloadtune.search.acquire import LOADS_PER_PLACEMENT, Loads, expected_gain, next_best
from offloadtune.search.grid import choices_of
from offloadtune.search.room import dominated
from offloadtune.search.space import Space, start_settings
from offloadtune.search.surrogate import Belief

GOALS = st.sampled_from([Goal.TURN, Goal.TTFT, Goal.DECODE])


def belief(log_ratio: list[float], spread: list[float]) -> Belief:
    n = len(log_ratio)
    return Belief(
        i_best=0,
        log_ratio=np.array(log_ratio),
        spread=np.array(spread),
        spread_untried=np.zeros(n),
        log_s=np.zeros(n),
        visit_s=np.ones(n),
        own=np.zeros(n),
        loadings=lambda rows: np.zeros((len(rows), 1)),
    )


def none_special(_: Settings) -> tuple[float, float]:
    return 1.0, 1.0


def slow_kernel(settings: Settings) -> tuple[float, float]:
    return (2.5 if settings.n_ubatch == 512 and settings.offloads else 1.0), 1.0


def collapse(settings: Settings) -> tuple[float, float]:
    return (3.0 if settings.n_threads_batch > 4 else 1.0), (3.0 if settings.n_threads > 4 else 1.0)


def better_without_flash(settings: Settings) -> tuple[float, float]:
    """By what is on the device."""
    times = 0.7 ** (settings.n_gpu_layers / 25) if settings.flash_attn_type == "disabled" else 1.0
    return times, times


# --- gain ----------------------------------------------------------------------------------------------------------


@given(st.floats(-0.5, 0.5), st.floats(0.001, 0.5))
def test_the_expected_gain_is_the_mean_of_what_would_be_saved(log_ratio: float, spread: float) -> None:
    found = float(expected_gain(belief([log_ratio], [spread]))[0])
    z = np.linspace(-8, 8, 20_001)
    saved = np.maximum(-(log_ratio + spread * z), 0.0) * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    assert found == pytest.approx(float(np.trapezoid(saved, z)), abs=1e-4)


def test_what_is_certain_gains_what_it_saves_or_nothing() -> None:
    found = expected_gain(belief([-0.1, 0.1], [0.0, 0.0]))
    assert found.tolist() == pytest.approx([0.1, 0.0], abs=1e-6)


# --- loads ---------------------------------------------------------------------------------------------------------


def ended(space: Space, settings: Settings, outcome: Outcome = Outcome.OK) -> TrialResult:
    return TrialResult(trial=space.trial(settings, "a test"), outcome=outcome, reason="as the test wants")


def test_a_placement_that_was_left_is_come_back_to_only_for_the_sake_of_few_loads() -> None:
    space = lawful_space()
    one = [start_settings(space).replace(n_gpu_layers=k) for k in range(8)]
    choices = choices_of(space)

    def allowed(results: list[TrialResult], k: int) -> bool:
        i = choices.index_of(one[k])
        assert i is not None
        return bool(Loads.of(choices, results).are_allowed[i])

    few = [ended(space, one[k]) for k in (1, 2)]
    assert [allowed(few, k) for k in (1, 2, 3)] == [True, True, True]
    once = [*few, ended(space, one[1].replace(n_ubatch=64))]
    assert [allowed(once, k) for k in (1, 2, 3)] == [True, False, True]
    more = [ended(space, one[k]) for k in (1, 2, 3, 4, 5)]
    assert [allowed(more, k) for k in (1, 5, 6)] == [True, True, True]
    again = [*more, ended(space, one[1].replace(n_ubatch=64))]
    assert [allowed(again, k) for k in (1, 2, 6)] == [True, False, True]


def test_after_a_failure_a_load_is_due_whatever_comes_next_so_every_placement_may() -> None:
    space = lawful_space()
    one = [start_settings(space).replace(n_gpu_layers=k) for k in range(8)]
    choices = choices_of(space)

    def allowed(results: list[TrialResult]) -> list[bool]:
        loads = Loads.of(choices, results)
        return [bool(loads.are_allowed[i]) for k in (1, 2, 3, 4) if (i := choices.index_of(one[k])) is not None]

    out_of_memory = ended(space, one[2], Outcome.OUT_OF_MEMORY_DEVICE)
    assert allowed([ended(space, one[1]), out_of_memory]) == [True, True, True, True]
    back = [ended(space, one[1]), out_of_memory, ended(space, one[1].replace(n_ubatch=64))]
    assert allowed(back) == [True, True, True, True]  # coming back after the failure was no return of those allowed
    # the second placement was never had: to ask for it with smaller buffers is no return
    later = [*back, ended(space, one[4]), ended(space, one[1].replace(n_ubatch=128))]
    assert allowed(later) == [True, True, True, False]


def test_after_a_failure_nothing_is_loaded() -> None:
    space = lawful_space()
    settings = start_settings(space).replace(n_gpu_layers=3)
    choices = choices_of(space)
    assert Loads.of(choices, [ended(space, settings)]).is_loaded.any()
    assert not Loads.of(choices, [ended(space, settings, Outcome.OUT_OF_MEMORY_DEVICE)]).is_loaded.any()


@how(deadline=None, max_examples=15)
@given(
    st.sampled_from([none_special, slow_kernel, collapse, better_without_flash]),
    st.integers(300, 2600),
    GOALS,
    st.integers(0, 99),
)
def test_whatever_the_machine_the_best_is_found_in_few_loads_and_trials(
    times: Times, device_mib: int, goal: Goal, seed: int
) -> None:
    space = lawful_space(device_mib=device_mib, goal=goal)
    engine = LawfulEngine(
        space=space, wall_bytes=space.device_bytes, own_bytes=30 * MIB, times=times, noise_frac=0.01, seed=seed
    )
    results = engine.carry_out()
    tried = [one.trial.settings for one in results]
    assert len(tried) == len(set(tried)) <= 40
    n_ended = sum(one.outcome is Outcome.OUT_OF_MEMORY_DEVICE for one in results)
    n_placements = len({one.placement for one in tried})
    assert engine.n_loads <= max(LOADS_PER_PLACEMENT * n_placements, n_placements + 1) + n_ended
    best = min(candidates(space, results), key=lambda one: result_cost(one, goal, space.workload))
    assert engine.cost(best.trial.settings) <= 1.05 * engine.least_cost()


WIDE = dataclasses.replace(made_up_facts((100 * MIB,) * 24), n_vocab=100_000)
"""The logits of a batch take as much as a layer for every 256 tokens."""


def best_of(space: Space, results: list[TrialResult]) -> Settings:
    found = min(candidates(space, results), key=lambda one: result_cost(one, space.goal, space.workload))
    return found.trial.settings


@pytest.mark.parametrize("noise_frac", [0.0, 0.01])
def test_layers_are_given_up_for_a_larger_batch_where_that_reads_the_prompt_faster(noise_frac: float) -> None:
    space = lawful_space(WIDE, device_mib=2000, goal=Goal.TTFT, n_prompt_new=3000, n_ctx=4096)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes, noise_frac=noise_frac)
    most_at_512 = engine.fastest(n_ubatch=512)
    assert engine.least_cost() < 0.8 * engine.cost(most_at_512)
    best = best_of(space, engine.carry_out())
    assert engine.cost(best) <= 1.03 * engine.least_cost()
    assert best.n_ubatch > 512
    assert best.n_gpu_layers < most_at_512.n_gpu_layers


@pytest.mark.parametrize("noise_frac", [0.0, 0.01])
def test_a_smaller_batch_makes_room_for_more_layers_where_only_tokens_count(noise_frac: float) -> None:
    space = lawful_space(WIDE, device_mib=2000, goal=Goal.DECODE, n_prompt_new=3000, n_ctx=4096)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes, noise_frac=noise_frac)
    at_512 = engine.fastest(n_ubatch=512)
    best = best_of(space, engine.carry_out())
    assert engine.cost(best) <= 1.03 * engine.least_cost()
    assert best.n_ubatch < 512
    assert best.n_gpu_layers > at_512.n_gpu_layers


def test_experts_of_more_blocks_are_given_up_for_a_larger_batch() -> None:
    facts = dataclasses.replace(with_experts((100 * MIB,) * 24), n_vocab=100_000)
    space = lawful_space(facts, device_mib=2000, goal=Goal.TTFT, n_prompt_new=3000, n_ctx=4096)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes)
    at_512 = engine.fastest(n_ubatch=512)
    best = best_of(space, engine.carry_out())
    assert engine.cost(best) <= 1.03 * engine.least_cost() < engine.cost(at_512)
    assert best.n_ubatch > 512
    assert 0 < at_512.n_cpu_moe < best.n_cpu_moe


def test_settings_are_tried_in_the_loaded_placement_before_another_load() -> None:
    """Loads are the expensive part: after the baselines most trials need none."""
    space = lawful_space(facts=made_up_facts((400 * MIB,) * 24), device_mib=5000)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes, times=better_without_flash)
    results = engine.carry_out()
    placements = [one.trial.settings.placement for one in results]
    n_changes = sum(a != b for a, b in itertools.pairwise(placements))
    assert n_changes <= len(results) / 2 + len(baseline_trials(space))


# --- what is left out -------------------------------------------------------------------------------------------------


@how(deadline=None, max_examples=15)
@given(st.integers(100, 2600), st.floats(0.6, 1.0), st.integers(0, 200))
def test_nothing_that_takes_as_much_as_what_ended_out_of_memory_is_tried(
    device_mib: int, true_frac: float, own_mib: int
) -> None:
    space = lawful_space(device_mib=device_mib)
    engine = LawfulEngine(space=space, wall_bytes=int(space.device_bytes * true_frac), own_bytes=own_mib * MIB)
    results: list[TrialResult] = []
    choices = choices_of(space)
    while (trial := next_trial(space, results)) is not None:
        i = choices.index_of(trial.settings)
        is_planned = trial.settings not in {one.settings for one in baseline_trials(space).values()}
        if i is not None and is_planned and any(one.outcome is Outcome.OK for one in results):
            assert not dominated(space, choices.columns, results)[i]
            assert choices.columns.least_bytes[i] <= space.device_bytes
        results.append(engine.run(trial))
        assert len(results) < 80
    n_ended = sum(one.outcome is Outcome.OUT_OF_MEMORY_DEVICE for one in results)
    assert n_ended <= 8


def test_free_memory_that_lies_does_not_keep_the_most_that_runs_from_being_found() -> None:
    """A quarter less is free than is said."""
    space = lawful_space(device_mib=2000)
    engine = LawfulEngine(space=space, wall_bytes=1500 * MIB)
    results = engine.carry_out()
    best = min(candidates(space, results), key=lambda one: result_cost(one, space.goal, space.workload))
    assert engine.cost(best.trial.settings) <= 1.05 * engine.least_cost()


def test_a_value_that_only_ever_fails_is_left_out() -> None:
    space = lawful_space(device_mib=600)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes)
    results: list[TrialResult] = []
    while (trial := next_trial(space, results)) is not None:
        dies = trial.settings.flash_attn_type == "disabled" and trial.settings.n_ctx >= space.n_ctx
        results.append(ended(space, trial.settings, Outcome.TIMED_OUT) if dies else engine.run(trial))
    failed = [one for one in results if one.outcome is Outcome.TIMED_OUT]
    assert 1 <= len(failed) <= 3


def test_nothing_is_promised_before_anything_ran() -> None:
    space = lawful_space()
    assert next_best(space, [ended(space, start_settings(space), Outcome.CRASHED)]) is None


def test_words_say_what_is_new() -> None:
    space = lawful_space(device_mib=600)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes)
    results = engine.carry_out()
    baselines = {one.settings for one in baseline_trials(space).values()}
    later = [one.trial for one in results[1:] if one.trial.settings not in baselines]
    assert later
    for trial in later:
        assert trial.why
        if "flash attention disabled" in trial.why:
            assert trial.settings.flash_attn_type == "disabled"
        if "n_ubatch" in trial.why:
            assert f"n_ubatch {trial.settings.n_ubatch}" in trial.why


@pytest.mark.parametrize("goal", [Goal.TURN, Goal.DECODE])
def test_the_search_ends_where_all_is_known(goal: Goal) -> None:
    """Everything on the device: only few settings are left, and the law is right about them."""
    space = lawful_space(device_mib=8000, goal=goal)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes)
    results = engine.carry_out()
    assert len(results) <= 16
    assert dataclasses.replace(space, laws=None) == space

"""What a sweep has time for: baselines that wait, visits that are worth repeating, rounds that are kept time for."""

from __future__ import annotations

import dataclasses

from lawful import LawfulEngine, lawful_space
from synthetic import MIB, made_up_facts, ok_result, visit

from offloadtune.records import Outcome, Settings, TrialResult
from offloadtune.search import baseline_trials, must_compare, n_visits, next_trial, round_s
from offloadtune.search.pacing import baseline_due, baseline_put_off, expected_s
from offloadtune.search.space import start_settings

PLENTY_S = 1e9
SPACE = lawful_space(made_up_facts((400 * MIB,) * 24), device_mib=8000)
BASELINES = {name: trial.settings for name, trial in baseline_trials(SPACE).items()}
CPU_S = expected_s(SPACE, BASELINES["cpu_only"], ())


def first_result() -> TrialResult:
    trial = next_trial(SPACE, [])
    assert trial is not None
    return LawfulEngine(space=SPACE, wall_bytes=SPACE.device_bytes).run(trial)


def result_of(settings: Settings, duration_s: float = 1.0) -> TrialResult:
    found = ok_result(SPACE.trial(settings, "a test"), (visit(ttft_s=1.0, token_s=0.1),))
    return dataclasses.replace(found, duration_s=duration_s)


def test_a_cpu_that_would_take_much_of_the_time_waits_and_comes_last_or_never() -> None:
    first = first_result()
    dear_s, cheap_s = 5 * CPU_S, 100 * CPU_S
    due = {s: baseline_due(SPACE, [first], s) for s in (dear_s, cheap_s)}
    assert BASELINES["cpu_only"] in {one.settings for one in due.values() if one}
    others = [result_of(one) for name, one in BASELINES.items() if name != "cpu_only"]
    assert baseline_due(SPACE, [first, *others], dear_s) is None
    put_off = baseline_put_off(SPACE, [first, *others], dear_s)
    assert put_off is not None
    assert put_off.settings == BASELINES["cpu_only"]
    assert baseline_put_off(SPACE, [first, *others], 1.1 * CPU_S) is None


def test_before_anything_ran_a_baseline_may_take_all_there_is() -> None:
    failed = dataclasses.replace(first_result(), outcome=Outcome.OUT_OF_MEMORY_DEVICE, visits=())
    assert baseline_due(SPACE, [failed], 1e-3) is not None


def test_a_baseline_that_needs_no_load_comes_first() -> None:
    fit = BASELINES["fit"]
    loaded = result_of(fit.replace(n_ubatch=64))
    due = baseline_due(SPACE, [loaded], PLENTY_S)
    assert due is not None
    assert due.settings == fit
    failed = dataclasses.replace(loaded, outcome=Outcome.CRASHED)
    due = baseline_due(SPACE, [loaded, failed], PLENTY_S)
    assert due is not None
    assert due.settings == BASELINES["cpu_only"]


def test_visits_are_repeated_where_a_load_makes_them_cheap() -> None:
    settings = start_settings(SPACE).replace(n_gpu_layers=5)
    short = dataclasses.replace(SPACE.workload, n_prefix_cached=400, n_prompt_new=8)
    space, other = dataclasses.replace(SPACE, workload=short), settings.replace(n_ubatch=64)
    assert n_visits(space, other, [], n_steps=1) == 3
    assert n_visits(space, other, [], n_steps=10_000) == 1
    assert n_visits(space, other, [result_of(settings)], n_steps=1) == 1


def test_the_time_of_three_rounds_is_kept_but_not_before_the_defaults_ran() -> None:
    done = [result_of(one, duration_s=2.0) for one in BASELINES.values()]
    compared = [one.trial for one in done]
    needed_s = 3 * round_s(done, compared)
    assert not must_compare(SPACE, done, compared, 3, needed_s + 2.1)
    assert must_compare(SPACE, done, compared, 3, needed_s + 1.9)
    some = [one for one in done if one.trial.settings != BASELINES["default"]]
    assert not must_compare(SPACE, some, [one.trial for one in some], 3, 100 * CPU_S)


def test_a_round_takes_each_visit_once_however_many_there_were() -> None:
    one = result_of(BASELINES["cpu_only"])
    thrice = dataclasses.replace(one, visits=one.visits * 3)
    assert round_s([one], [one.trial]) == round_s([thrice], [thrice.trial])

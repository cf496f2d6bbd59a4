"""The rounds of a sweep: in which order, how many, and what recall makes of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bare_sweep import bare_sweep
from hypothesis import given
from hypothesis import strategies as st
from sample_records import MACHINE
from synthetic import WORKLOAD, made_up_facts, made_up_space, ok_result, visit

from offloadtune.cli.progress import left_words
from offloadtune.pipeline.devices import abreast
from offloadtune.pipeline.ending import least_left_s, left_of_rounds, why_ended
from offloadtune.pipeline.measuring import shuffled
from offloadtune.records import MemoryUse, Outcome, Settings, Trial, TrialResult, Verdict, Visit
from offloadtune.search import baseline_trials, round_s

SPACE = made_up_space(made_up_facts(), device_bytes=8 << 30)
(CARD,) = MACHINE.offload_devices
FREE = CARD.free_bytes
DEFAULT, FIT = (baseline_trials(SPACE)[name] for name in ("default", "fit"))


def turn_visit(turn_s: float) -> Visit:
    return visit(ttft_s=turn_s / 2, token_s=turn_s / 2 / (WORKLOAD.n_gen - 1))


def compared(turn_s: Callable[[Settings], float], n_affordable: int, **earlier: Any) -> Any:
    """A sweep whose trials are done, after its rounds; each visit takes what `turn_s` says, in no time at all.

    The budget looks to be enough for so many rounds.
    """
    sweep, loads = bare_sweep(), itertools.count()
    sweep.space = SPACE
    sweep.results = [ok_result(trial, (turn_visit(1.0),), peak_bytes=0) for trial in (FIT, DEFAULT)]
    sweep.start_s = time.monotonic()
    sweep.told = []
    sweep.listen = sweep.told.append

    def revisit(trial: Trial, _plan: object, *, timeout_s: float) -> tuple[Visit, ...]:
        assert timeout_s > 0
        return (dataclasses.replace(turn_visit(turn_s(trial.settings)), i_load=next(loads)),)

    sweep.undisturbed = SimpleNamespace(revisit=revisit, is_interrupted=False, overslept="")
    sweep.journal = SimpleNamespace(append_round=lambda _visits: None)
    sweep.request = SimpleNamespace(budget_s=(n_affordable + 0.5) * round_s(sweep.results, (FIT, DEFAULT)))
    for name, value in earlier.items():
        setattr(sweep, name, value)
    sweep._compare()
    return sweep


def clearly(times: float = 1.06) -> Callable[[Settings], float]:
    """The defaults take so many times as long, but for a few percent."""
    jitter = itertools.cycle([1.0, 1.03, 0.98, 1.01, 0.99])
    return lambda settings: next(jitter) * (times if settings == DEFAULT.settings else 1.0)


def evenly() -> Callable[[Settings], float]:
    """The defaults take as long, and visits differ by a quarter."""
    swings = iter(np.exp(np.random.default_rng(3).normal(0, 0.25, 1000)).tolist())
    return lambda _settings: float(next(swings))


def test_rounds_end_at_the_first_look_that_decides() -> None:
    sweep = compared(clearly(), n_affordable=300)
    assert len(sweep.rounds) == len(sweep.told) == 7


def test_a_clear_loser_is_not_waited_for_and_its_verdict_stands() -> None:
    sweep = compared(clearly(times=3.0), n_affordable=300)
    assert len(sweep.rounds) == 3
    (versus,) = (one for one in sweep.best().versus if one.against == "default")
    assert (versus.verdict, versus.ratio.n_samples) == (Verdict.FASTER, 3)


def test_what_stays_open_takes_all_looks() -> None:
    assert len(compared(evenly(), n_affordable=300).rounds) == 35


def test_what_is_decided_is_not_measured_again_and_what_is_open_goes_on_up_to_the_last_look() -> None:
    done = compared(clearly(), n_affordable=300)
    again = compared(clearly(), n_affordable=300, all_rounds=list(done.rounds))
    assert again.rounds == done.rounds
    whole = compared(evenly(), n_affordable=300)
    longer = compared(evenly(), n_affordable=300, all_rounds=whole.rounds[:7])
    assert len(longer.rounds) > 7
    assert compared(evenly(), n_affordable=300, all_rounds=list(whole.rounds)).told == []


def test_no_time_no_round() -> None:
    sweep = compared(clearly(), n_affordable=0)
    assert (sweep.rounds, sweep.told) == ([], [])


def trials(n_placements: int, n_each: int) -> list[Trial]:
    return [
        SPACE.trial(FIT.settings.replace(n_gpu_layers=layers, n_ubatch=64 << i), "a test")
        for layers in range(n_placements)
        for i in range(n_each)
    ]


def test_why_it_ended_is_said() -> None:
    assert compared(clearly(), n_affordable=300).ended == "decided after 7 rounds"
    nothing: dict[str, Any] = {"is_gone": False, "is_decided": False, "is_plan_done": False, "left_frac": 0.09}
    assert why_ended(35, **nothing) == "35 rounds are the most there are, and something is still open"
    assert why_ended(0, **{**nothing, "is_plan_done": True, "left_frac": 0.5}) == "nothing is left worth its time"
    assert why_ended(3, **nothing) == "the budget is used up"
    assert compared(evenly(), n_affordable=0).ended == "what is left of the budget is too little for more"
    assert compared(clearly(), n_affordable=3, is_gone=True).ended == "what it needs stayed away"


def test_what_is_left_is_told_between_the_next_look_and_the_last() -> None:
    for event in compared(evenly(), n_affordable=300).told:
        assert 0 <= event.least_s <= event.remaining_s


@given(n_rounds=st.integers(0, 34), round_s=st.floats(0.01, 100), remaining_s=st.floats(-5, 1e4))
def test_the_ends_of_what_is_left(n_rounds: int, round_s: float, remaining_s: float) -> None:
    least_s, most_s = left_of_rounds(n_rounds, round_s, remaining_s)
    assert 0 <= least_s <= most_s <= max(0.0, remaining_s)
    assert least_s <= 7 * round_s
    assert most_s <= (35 - n_rounds) * round_s + 1e-9


def test_a_first_trial_tells_nothing_of_what_is_left() -> None:
    assert least_left_s((), 1.0, 100.0) is None
    one = dataclasses.replace(ok_result(FIT, (turn_visit(1.0),)), duration_s=5.0)
    assert least_left_s((one,), 2.0, 100.0) == 5 + 7 * 2
    assert least_left_s((one,), 2.0, 6.0) == 6


@pytest.mark.parametrize(
    ("least_s", "most_s", "words"),
    [
        (None, 108.2, "at most 1 min 48 s left"),
        (None, math.inf, "no limit"),
        (20.0, math.inf, "at least 20 s left"),
        (39.0, 41.2, "about 41 s left"),
        (20.4, 96.0, "20 s to 96 s left"),
        (-3.0, 96.0, "at most 96 s left"),
        (50.0, 40.0, "about 40 s left"),
        (0.0, -1.0, "about 0 s left"),
    ],
)
def test_words_for_what_is_left(least_s: float | None, most_s: float, words: str) -> None:
    assert left_words(least_s, most_s) == words


# --- side by side ------------------------------------------------------------------------------------------------


def placed(n_gpu_layers: int, *, device_bytes: int = 0, host_bytes: int = 0, rest_bytes: int = 0) -> TrialResult:
    """A trial whose weights lie so, with `rest_bytes` of cache and buffers on the device."""
    rows = (
        memory_row(CARD.name, device_bytes, is_host=False, compute_bytes=rest_bytes),
        memory_row("CPU", host_bytes, is_host=True),
    )
    trial = SPACE.trial(FIT.settings.replace(n_gpu_layers=n_gpu_layers), "a test")
    peaks = ((CARD.name, device_bytes + rest_bytes),)
    return TrialResult(trial=trial, outcome=Outcome.OK, reason="", memory=rows, device_peak_bytes=peaks)


def memory_row(device: str, weights_bytes: int, *, is_host: bool, compute_bytes: int = 0) -> MemoryUse:
    return MemoryUse(
        device=device, is_host=is_host, weights_bytes=weights_bytes, kv_cache_bytes=0, compute_bytes=compute_bytes
    )


def test_placements_stay_loaded_where_all_have_room_at_once() -> None:
    some = [placed(n, device_bytes=FREE // 4, rest_bytes=FREE // 8) for n in (1, 2, 3)]
    assert abreast(some, MACHINE) == {one.trial.settings.placement for one in some}
    assert abreast([*some, placed(4, device_bytes=FREE // 4, rest_bytes=FREE // 8)], MACHINE) == frozenset()
    same = dataclasses.replace(
        some[0], trial=SPACE.trial(some[0].trial.settings.replace(n_ubatch=64), "another context")
    )
    assert abreast([*some, same], MACHINE) == {one.trial.settings.placement for one in some}  # its weights count once


def test_main_memory_bounds_it_too_and_what_is_not_known_does_not_count() -> None:
    available = MACHINE.host.ram.available_bytes
    half = [placed(n, host_bytes=available // 2) for n in (1, 2)]
    assert abreast(half, MACHINE) == frozenset()
    assert abreast(half[:1], MACHINE)
    assert abreast([dataclasses.replace(half[0], memory=())], MACHINE) == frozenset()


def test_a_failure_beside_others_is_tried_alone_and_not_held_against_anybody() -> None:
    """They stay loaded for want of time, and it fails as long as they do: the rounds that follow hold them all."""
    kept: list[int] = []
    sweep = compared(clearly(), n_affordable=300)
    results = [
        dataclasses.replace(one, memory=(memory_row("CPU", 1, is_host=True),), device_peak_bytes=())
        for one in sweep.results
    ]
    offloaded = FIT.settings.replace(n_gpu_layers=1)
    results[0] = dataclasses.replace(results[0], trial=SPACE.trial(offloaded, "offloaded"))

    def revisit(trial: Trial, _plan: object, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        assert timeout_s > 0
        if kept[-1] > 1 and trial.settings.offloads:
            return TrialResult(trial=trial, outcome=Outcome.OUT_OF_MEMORY_DEVICE, reason="made up")
        return (turn_visit(1.0 if trial.settings.offloads else 2.0),)

    runner = SimpleNamespace(n_model_loads=0, loaded=frozenset(), keep_abreast=lambda some: kept.append(len(some)))
    sweep = compared(
        clearly(),
        n_affordable=5,
        results=results,
        runner=runner,
        machine=MACHINE,
        may_be_abreast=True,
        undisturbed=SimpleNamespace(revisit=revisit, is_interrupted=False, overslept=""),
    )
    assert (kept[0], kept[1:]) == (2, [0] * (len(kept) - 1))
    assert len(sweep.rounds) >= 3
    assert all(len(one) == 2 for one in sweep.rounds)
    assert {result.outcome for result in sweep.results} == {Outcome.OK}


def test_what_is_kept_loaded_is_not_unloaded_to_see_what_is_free() -> None:
    looked: list[Settings] = []
    memory = SimpleNamespace(free_bytes={}, look=lambda settings, **_how: looked.append(settings))
    placements = frozenset({FIT.settings.placement, DEFAULT.settings.placement})
    loaded = SimpleNamespace(n_model_loads=0, loaded=placements, keep_abreast=lambda _placements: None)
    sweep = compared(clearly(), n_affordable=300, free_memory=memory)
    assert len(looked) == 2 * len(sweep.rounds)
    looked.clear()
    sweep.runner, sweep.abreast = loaded, placements
    assert sweep._round((FIT, DEFAULT)) is not None
    assert looked == []


@pytest.mark.parametrize(("n_placements", "n_each"), [(1, 2), (1, 5), (2, 1), (3, 2)])
def test_the_order_of_a_round_is_by_chance_and_each_placement_is_loaded_once(n_placements: int, n_each: int) -> None:
    finalists = trials(n_placements, n_each)
    orders = [shuffled(finalists, seed) for seed in range(400)]
    assert orders == [shuffled(finalists, seed) for seed in range(400)]
    for order in orders:
        assert set(order) == set(finalists)
        assert len([key for key, _ in itertools.groupby(order, lambda t: t.settings.placement)]) == n_placements
    for one, other in itertools.combinations(finalists, 2):
        n_first = sum(order.index(one) < order.index(other) for order in orders)
        assert 150 < n_first < 250

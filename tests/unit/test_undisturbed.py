"""What a sweep does with a disturbed trial: marks it, measures again, and gives up when that cannot help.

The engine and the machine are made up; the watch of a real machine has tests of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from sample_records import ENGINE, MACHINE
from synthetic import WORKLOAD, made_up_facts, made_up_space, ok_result, visit

from offloadtune.engine import VisitPlan
from offloadtune.pipeline import undisturbed
from offloadtune.pipeline.undisturbed import Undisturbed
from offloadtune.pipeline.warming import Warmth
from offloadtune.pipeline.watching import cards_of
from offloadtune.records import Outcome, Settings, Trial, TrialResult, Visit
from offloadtune.search import baseline_trials, measured
from offloadtune.sweeps import Event, Said

TRIAL = baseline_trials(made_up_space(made_up_facts(), device_bytes=8 << 30))["default"]
PLAN = VisitPlan(workload=WORKLOAD, n_steps=3, n_visits=1)
SLEPT = ("The machine slept for 41.0 s.",)
BUSY = ("Other programs took 1.0 of 2 CPUs.",)


class MadeUpRunner:
    pids = ()

    def __init__(self) -> None:
        self.n_visits = 0
        self.fails = self.is_stopped = False
        self.around_visits: Callable[[], AbstractContextManager[None]] = nullcontext

    def kill(self) -> None:
        """Nothing to end."""

    def run(self, trial: Trial, _plan: VisitPlan, *, timeout_s: float) -> TrialResult:
        assert timeout_s > 0
        return ok_result(trial, self._visits())

    def revisit(self, trial: Trial, _plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        assert timeout_s > 0
        if self.is_stopped:
            raise KeyboardInterrupt
        if self.fails:
            return TrialResult(trial=trial, outcome=Outcome.CRASHED, reason="made up")
        return self._visits()

    def _visits(self) -> tuple[Visit, ...]:
        self.n_visits += 1
        with self.around_visits():
            pass
        return (visit(ttft_s=9.0, token_s=9.0, is_warmup=True), visit(ttft_s=self.n_visits, token_s=1.0))


class MadeUpWatch:
    """Says of each stretch what it was told to, and in the end that nothing disturbed."""

    def __init__(self, found: Sequence[tuple[str, ...]]) -> None:
        self._found = list(found)
        self.too_busy: str | None = None

    def begin(self) -> None:
        """Nothing to remember."""

    def end_and_tell(self, _tell: object) -> tuple[str, ...]:
        return self._found.pop(0) if self._found else ()


def watched(*found: tuple[str, ...], is_warm: bool = True) -> tuple[Undisturbed, MadeUpRunner, list[Event]]:
    events: list[Event] = []
    runner: Any = MadeUpRunner()
    if is_warm:
        Warmth(MACHINE, ENGINE, offloads=TRIAL.settings.offloads).keep()
    one = Undisturbed(runner, MACHINE, ENGINE, (), events.append)
    one._watch = MadeUpWatch(found)  # type: ignore[assignment]
    return one, runner, events


def ttfts(visits: Sequence[Visit]) -> list[float]:
    return [one.ttft_s for one in measured(visits)]


def test_what_nothing_disturbed_is_measured_once() -> None:
    one, runner, events = watched()
    assert ttfts(one.run(TRIAL, PLAN, timeout_s=9).visits) == [1.0]
    assert (runner.n_visits, events) == (1, [])


def test_a_disturbed_trial_keeps_its_visits_marked_and_gets_others() -> None:
    one, runner, events = watched(BUSY)
    visits = one.run(TRIAL, PLAN, timeout_s=9).visits
    assert ttfts(visits) == [2.0]
    assert [v.disturbed_by for v in visits if not v.is_warmup] == [BUSY, ()]
    assert runner.n_visits == 2
    assert events == [Said(text=f"Disturbed, and measured again: {BUSY[0]}")]


def test_a_disturbed_visit_of_a_round_is_replaced() -> None:
    one, _, _ = watched(BUSY)
    visits = one.revisit(TRIAL, PLAN, timeout_s=9)
    assert isinstance(visits, tuple)
    assert ttfts(visits) == [2.0]


def test_twice_disturbed_counts_for_want_of_better() -> None:
    one, runner, _ = watched(BUSY, BUSY)
    visits = one.revisit(TRIAL, PLAN, timeout_s=9)
    assert isinstance(visits, tuple)
    assert ttfts(visits) == [1.0, 2.0]
    assert runner.n_visits == 2


def test_a_machine_too_busy_is_not_asked_again_and_again() -> None:
    one, runner, _ = watched(BUSY)
    one._watch.too_busy = "The machine is too busy to measure."  # type: ignore[misc]
    visits = one.revisit(TRIAL, PLAN, timeout_s=9)
    assert isinstance(visits, tuple)
    assert visits[-1].disturbed_by == BUSY
    assert runner.n_visits == 1


def test_repeats_are_not_without_end() -> None:
    one, runner, _ = watched(*[BUSY] * 200)
    for _ in range(50):
        one.revisit(TRIAL, PLAN, timeout_s=9)
    assert runner.n_visits == 50 + 12


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_repeat_that_fails_leaves_what_there_was_with_its_mark(is_warm: bool) -> None:  # noqa: FBT001
    one, runner, events = watched(BUSY, BUSY, is_warm=is_warm)
    runner.fails = True
    visits = one.run(TRIAL, PLAN, timeout_s=9).visits
    assert ttfts(visits) == [1.0]
    assert "thrown away" not in str(events)  # it counts for want of another
    assert visits[-1].disturbed_by == BUSY


def test_ctrl_c_in_a_repeat_loses_nothing() -> None:
    one, runner, _ = watched(BUSY)
    runner.is_stopped = True
    assert ttfts(one.run(TRIAL, PLAN, timeout_s=9).visits) == [1.0]
    assert one.is_interrupted


def test_no_time_no_repeat() -> None:
    one, runner, _ = watched(BUSY)
    assert isinstance(one.revisit(TRIAL, PLAN, timeout_s=1e-9), tuple)
    assert runner.n_visits == 1


@pytest.mark.parametrize("fails", [True, False])
def test_what_the_machine_slept_over_counts_only_through_a_repeat(
    fails: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without one it says nothing of its settings; and a sleep that no visit fell into spoils nothing."""
    asleep_s = itertools.count(0.0, 41.0)
    monkeypatch.setattr(undisturbed, "slept_s", lambda: next(asleep_s))
    one, runner, _ = watched(SLEPT)
    runner.fails = fails
    one.run(TRIAL, PLAN, timeout_s=9)
    assert one.overslept == (SLEPT[0] if fails else "")
    runner.fails = False
    one.run(TRIAL, PLAN, timeout_s=9)
    assert one.overslept == ""
    runner.fails = True
    one.revisit(TRIAL, PLAN, timeout_s=9)
    assert one.overslept == SLEPT[0]


@pytest.mark.parametrize("found", [(), (BUSY,)])
def test_the_first_visit_of_a_new_build_is_thrown_away_once(found: tuple[tuple[str, ...], ...]) -> None:
    one, _, events = watched(*found, is_warm=False)
    assert ttfts(one.run(TRIAL, PLAN, timeout_s=9).visits) == [2.0]
    assert "thrown away" in str(events)
    assert ttfts(one.run(TRIAL, PLAN, timeout_s=9).visits) == [3.0]


def test_only_the_cards_in_use_are_watched() -> None:
    device = MACHINE.offload_devices[0]
    card = MACHINE.nvml_of(device)
    assert card is not None
    assert cards_of(MACHINE, Settings(n_gpu_layers=0)) == ()
    assert cards_of(MACHINE, Settings(n_gpu_layers=9)) == (card.pci_bus_id,)
    assert cards_of(MACHINE, Settings(n_gpu_layers=9, devices=("CUDA7",))) == ()

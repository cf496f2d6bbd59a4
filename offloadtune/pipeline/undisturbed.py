"""Undisturbed: what is measured again when something else ran meanwhile, or when this engine build never ran before."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

from offloadtune.engine import Runner, VisitPlan
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.warming import Warmth
from offloadtune.pipeline.watching import Watch, asleep, cards_of
from offloadtune.probe import local_servers, slept_s
from offloadtune.records import EngineBuild, Machine, Outcome, Trial, TrialResult, Visit
from offloadtune.sweeps import Listener, Said

_N_REPEATS_MOST = 12  # a sweep; beyond, the time is better spent on what a busy machine does show


class Undisturbed:
    """A runner's `run` and `revisit`, watched. Disturbed visits are marked, kept, and followed by others.

    `is_interrupted`: the user stopped while something was measured again; what was measured first was returned.
    `overslept` is the sentence on a sleep of the machine that took all of what `run` or `revisit` returned last, or
    ended it: that says nothing of the settings. "" where there was none.
    """

    def __init__(
        self, runner: Runner, machine: Machine, engine: EngineBuild, endpoints: Sequence[str], listen: Listener
    ) -> None:
        self._runner, self._machine, self._engine, self._listen = runner, machine, engine, listen
        self._cards: tuple[str, ...] = ()
        self._watch = Watch(lambda: (*runner.pids, *local_servers(endpoints)), cards=lambda: self._cards)
        self._disturbed_by: tuple[str, ...] = ()
        self._n_repeats = 0
        self.is_interrupted = False
        self.overslept = ""
        runner.around_visits = self._watched

    def run(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> TrialResult:
        """As `Runner.run`."""
        before_s = slept_s()
        result = self._run(trial, plan, timeout_s)
        self._note_sleep(before_s, result.visits)
        return result

    def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        """As `Runner.revisit`."""
        before_s = slept_s()
        visits = self._revisit(trial, plan, timeout_s)
        self._note_sleep(before_s, () if isinstance(visits, TrialResult) else visits)
        return visits

    def _run(self, trial: Trial, plan: VisitPlan, timeout_s: float) -> TrialResult:
        deadline, self._cards = time.monotonic() + timeout_s, cards_of(self._machine, trial.settings)
        result = self._runner.run(trial, plan, timeout_s=timeout_s)
        if result.outcome is not Outcome.OK:
            return result
        first = self._marked(result.visits)
        warmth = Warmth(self._machine, self._engine, offloads=trial.settings.offloads)
        if not warmth.is_warm:
            warmth.keep()
            if again := self._again(trial, plan, deadline):
                first = tuple(dataclasses.replace(visit, is_warmup=True) for visit in first)
                self._tell("This engine build is new here: its first visit was thrown away.")
        else:
            again = self._again(trial, plan, deadline) if self._is_worth_repeating(first) else ()
        return dataclasses.replace(result, visits=(*first, *again))

    def _revisit(self, trial: Trial, plan: VisitPlan, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        deadline, self._cards = time.monotonic() + timeout_s, cards_of(self._machine, trial.settings)
        visits = self._runner.revisit(trial, plan, timeout_s=timeout_s)
        if isinstance(visits, TrialResult):
            return visits
        visits = self._marked(visits)
        return (*visits, *self._again(trial, plan, deadline)) if self._is_worth_repeating(visits) else visits

    def _note_sleep(self, before_s: float | None, visits: Sequence[Visit]) -> None:
        found = () if any(visit.counts for visit in visits) else asleep(before_s, slept_s())
        self.overslept = found[0].words if found else ""

    def _again(self, trial: Trial, plan: VisitPlan, deadline: float) -> tuple[Visit, ...]:
        """Further visits where there is time for them; () where they cannot be had: what there is must not be lost."""
        timeout_s = deadline - time.monotonic()
        if timeout_s <= 0:
            return ()
        try:
            visits = self._runner.revisit(trial, plan, timeout_s=timeout_s)
        except KeyboardInterrupt:
            with deaf():
                self.is_interrupted = True
                self._runner.kill()
            return ()
        return () if isinstance(visits, TrialResult) else self._marked(visits)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self._watch.begin()
        yield
        self._disturbed_by = self._watch.end_and_tell(self._tell)

    def _marked(self, visits: Sequence[Visit]) -> tuple[Visit, ...]:
        return tuple(dataclasses.replace(visit, disturbed_by=self._disturbed_by) for visit in visits)

    def _is_worth_repeating(self, visits: Sequence[Visit]) -> bool:
        disturbed_by = visits[-1].disturbed_by
        if not disturbed_by or self._watch.too_busy or self._n_repeats >= _N_REPEATS_MOST:
            return False
        self._n_repeats += 1
        self._tell(f"Disturbed, and measured again: {disturbed_by[0]}")
        return True

    def _tell(self, text: str) -> None:
        self._listen(Said(text=text))

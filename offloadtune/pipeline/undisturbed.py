"""Undisturbed: what is measured again when something else ran meanwhile, or when this engine build never ran before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from offloadtune.engine import Runner, VisitPlan
from offloadtune.pipeline.warming import Warmth
from offloadtune.pipeline.watching import Watch
from offloadtune.probe import local_servers
from offloadtune.records import EngineBuild, Machine, Outcome, Trial, TrialResult, Visit
from offloadtune.sweeps import Listener, Said

_N_REPEATS_MOST = 12  # a sweep; beyond, the time is better spent on what a busy machine does show


class Undisturbed:
    """A runner's `run` and `revisit`, watched. Disturbed visits are marked, kept, and followed by others."""

    def __init__(
        self, runner: Runner, machine: Machine, engine: EngineBuild, endpoints: Sequence[str], listen: Listener
    ) -> None:
        self._runner, self._machine, self._engine, self._listen = runner, machine, engine, listen
        self._watch = Watch(lambda: (*runner.pids, *local_servers(endpoints)))
        self._n_repeats = 0

    def run(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> TrialResult:
        """As `Runner.run`."""
        self._watch.begin()
        result = self._runner.run(trial, plan, timeout_s=timeout_s)
        disturbed_by = self._watch.end_and_tell(self._tell)
        if result.outcome is not Outcome.OK:
            return result
        warmth = Warmth(self._machine, self._engine, offloads=trial.settings.offloads)
        if not warmth.is_warm:
            self._tell("This engine build is new here: its first visit is thrown away.")
            warmth.keep()
            return self._again(result, plan, timeout_s, {"is_warmup": True})
        if self._is_worth_repeating(disturbed_by):
            return self._again(result, plan, timeout_s, {"disturbed_by": disturbed_by})
        return dataclasses.replace(result, visits=_marked(result.visits, {"disturbed_by": disturbed_by}))

    def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        """As `Runner.revisit`."""
        visits, disturbed_by = self._revisit(trial, plan, timeout_s)
        if isinstance(visits, TrialResult):
            return visits
        visits = _marked(visits, {"disturbed_by": disturbed_by})
        if not self._is_worth_repeating(disturbed_by):
            return visits
        again, disturbed_by = self._revisit(trial, plan, timeout_s)
        return visits if isinstance(again, TrialResult) else (*visits, *_marked(again, {"disturbed_by": disturbed_by}))

    def _again(self, result: TrialResult, plan: VisitPlan, timeout_s: float, mark: dict[str, object]) -> TrialResult:
        """`result` with its visits marked and others after them, where these can be had."""
        again, disturbed_by = self._revisit(result.trial, plan, timeout_s)
        if isinstance(again, TrialResult):
            return result
        visits = (*_marked(result.visits, mark), *_marked(again, {"disturbed_by": disturbed_by}))
        return dataclasses.replace(result, visits=visits)

    def _revisit(
        self, trial: Trial, plan: VisitPlan, timeout_s: float
    ) -> tuple[tuple[Visit, ...] | TrialResult, tuple[str, ...]]:
        self._watch.begin()
        visits = self._runner.revisit(trial, plan, timeout_s=timeout_s)
        return visits, self._watch.end_and_tell(self._tell)

    def _is_worth_repeating(self, disturbed_by: tuple[str, ...]) -> bool:
        if not disturbed_by or self._watch.was_too_busy or self._n_repeats >= _N_REPEATS_MOST:
            return False
        self._n_repeats += 1
        self._tell(f"Disturbed, and measured again: {disturbed_by[0]}")
        return True

    def _tell(self, text: str) -> None:
        self._listen(Said(text=text))


def _marked(visits: Sequence[Visit], mark: dict[str, object]) -> tuple[Visit, ...]:
    return tuple(dataclasses.replace(visit, **mark) for visit in visits)  # type: ignore[arg-type]

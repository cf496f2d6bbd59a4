"""A sweep as the conductor runs it, on a simulated clock and without a journal.

The order of things is that of `pipeline.measuring`: screening, then rounds side by side until a look decides.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import cast

from simulated_laws import LawsInMemory
from simulated_rivals import Answer, Task

from offloadtune import search
from offloadtune.pipeline.foresight import Foresight
from offloadtune.pipeline.journals import side_by_side
from offloadtune.pipeline.measuring import shuffled
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.recommend import N_ROUNDS_LEAST, are_used_up, is_decided, recommend
from offloadtune.records import Outcome, Settings, Trial, TrialResult, Visit

_ROUND_MARGIN = 1.5
_TRIAL_SHARE = 0.4


def todays_sweep(task: Task) -> Answer:
    """What a sweep of that budget recommends."""
    sweep = _Sweep(task)
    sweep.screen()
    sweep.compare()
    best = recommend(task.space, sweep.results, sweep.rounds)
    if best is None:
        return Answer(settings=None, n_trials=len(sweep.results))
    return Answer(settings=best.trial.settings, n_trials=len(sweep.results), versus=best.versus)


class _Sweep:
    """What is known so far."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.foresight = Foresight(cast("SpeedMemory", LawsInMemory(task.case)), lambda _said: None)
        self.results: list[TrialResult] = []
        self.all_rounds: list[dict[Settings, tuple[Visit, ...]]] = []
        self.rounds: list[dict[Settings, tuple[Visit, ...]]] = []

    def screen(self) -> None:
        task = self.task
        while trial := search.next_trial(self.foresight.beside(task.space), self.results):
            if task.remaining_s <= 0 or self._must_compare_now():
                return
            expected = self.foresight.expected(task.space, trial.settings)
            is_first = recommend(task.space, self.results, ()) is None
            timeout_s = task.remaining_s * (1.0 if is_first else _TRIAL_SHARE)
            result = task.runner.run(trial, task.plan, timeout_s=timeout_s)
            result = dataclasses.replace(result, expected=expected)
            self.results.append(result)
            self.foresight.learn(result)

    def compare(self) -> None:
        task, finalists = self.task, self._finalists()
        round_s = self._round_s(finalists)
        while len(finalists) > 1 and self._wants_rounds() and task.remaining_s > round_s:
            start_s = task.runner.clock_s
            one = self._round(shuffled(finalists, seed=len(self.rounds)))
            if one is None:
                finalists = self._finalists()
                continue
            self.rounds.append(one)
            self.all_rounds.append(one)
            round_s = task.runner.clock_s - start_s

    def _wants_rounds(self) -> bool:
        return not are_used_up(len(self.rounds)) and not is_decided(self.task.space, self.results, self.rounds)

    def _round(self, order: Sequence[Trial]) -> dict[Settings, tuple[Visit, ...]] | None:
        task, one = self.task, {}
        for trial in order:
            visits = task.runner.revisit(trial, task.plan, timeout_s=max(0.0, task.remaining_s))
            if isinstance(visits, TrialResult):
                if visits.outcome is not Outcome.TIMED_OUT or task.remaining_s > 0:
                    self.results = [r for r in self.results if r.trial.settings != trial.settings]
                    self.results.append(visits)
                return None
            one[trial.settings] = visits
        return one

    def _finalists(self) -> tuple[Trial, ...]:
        finalists, rounds = side_by_side(self.task.space, self.results, self.all_rounds)
        self.rounds = list(rounds)
        return finalists

    def _must_compare_now(self) -> bool:
        tried, baselines = {r.trial.settings for r in self.results}, search.baseline_trials(self.task.space)
        if not all(baselines[name].settings in tried for name in ("cpu_only", "default")):
            return False
        n_ctx_needed = self.task.case.workload.n_ctx_needed
        next_s = statistics.median(r.duration_s for r in self.results if r.trial.settings.n_ctx >= n_ctx_needed)
        rounds_s = N_ROUNDS_LEAST * self._round_s(search.finalists(self.task.space, self.results))
        return self.task.remaining_s - next_s < rounds_s

    def _round_s(self, finalists: Sequence[Trial]) -> float:
        by_settings = {result.trial.settings: result for result in self.results}
        results = [by_settings[trial.settings] for trial in finalists]
        loads = {result.trial.settings.placement: result.load_ns or 0 for result in results}
        loads_s = sum(loads.values()) / 1e9 if len(loads) > 1 else 0.0
        visits = [visit for result in results for visit in search.measured(result.visits)]
        return loads_s + _ROUND_MARGIN * sum(visit.ttft_s + sum(visit.step_ns) / 1e9 for visit in visits)

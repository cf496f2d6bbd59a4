"""A sweep as the conductor runs it, on a simulated clock and without a journal.

The order of things is that of `pipeline.measuring`: screening, then rounds side by side until a look decides.
"""

from __future__ import annotations

import dataclasses
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


def todays_sweep(task: Task) -> Answer:
    """What a sweep of that budget recommends."""
    sweep = _Sweep(task)
    sweep.screen()
    n_loads, n_placements = task.runner.n_model_loads, len({r.trial.settings.placement for r in sweep.results})
    sweep.compare()
    best = recommend(task.space, sweep.results, sweep.rounds)
    return Answer(
        settings=best.trial.settings if best else None,
        n_trials=len(sweep.results),
        n_loads=n_loads,
        n_placements=n_placements,
        versus=best.versus if best else (),
    )


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
        while trial := search.next_trial(self._space, self.results, task.remaining_s):
            if task.remaining_s <= 0 or self._must_compare_now():
                return
            expected = self.foresight.expected(task.space, trial.settings)
            is_first = recommend(task.space, self.results, ()) is None
            timeout_s = task.remaining_s * (1.0 if is_first else search.TRIAL_SHARE)
            n_visits = search.n_visits(self._space, trial.settings, self.results, task.plan.n_steps)
            plan = dataclasses.replace(task.plan, n_visits=n_visits)
            result = task.runner.run(trial, plan, timeout_s=timeout_s)
            result = dataclasses.replace(result, expected=expected)
            self.results.append(result)
            self.foresight.learn(result)

    def compare(self) -> None:
        task, finalists = self.task, self._finalists()
        round_s = search.round_s(self.results, finalists)
        while len(finalists) > 1 and self._wants_rounds() and task.remaining_s > round_s:
            start_s = task.runner.clock_s
            one = self._round(shuffled(finalists, seed=len(self.rounds)))
            if one is None:
                finalists = self._finalists()
                continue
            self.rounds.append(one)
            self.all_rounds.append(one)
            n_compared, finalists = len(finalists), self._finalists()
            is_same = len(finalists) == n_compared
            round_s = task.runner.clock_s - start_s if is_same else search.round_s(self.results, finalists)

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

    @property
    def _space(self) -> search.Space:
        return self.foresight.beside(self.task.space)

    def _finalists(self) -> tuple[Trial, ...]:
        finalists, rounds = side_by_side(self.task.space, self.results, self.all_rounds)
        self.rounds = list(rounds)
        return finalists

    def _must_compare_now(self) -> bool:
        compared = search.finalists(self.task.space, self.results)
        return search.must_compare(self._space, self.results, compared, N_ROUNDS_LEAST, self.task.remaining_s)

"""What else could choose settings, given the same simulated machine and the same time.

Each measures one visit a setting and ends with the best it measured, without comparing finalists. Once something ran, a
trial may take the same share of the time left as in our own search; the last hundredth of the time is not used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from simulated_grid import Exhaustive, Point
from simulated_machines import Case

from offloadtune.engine import VisitPlan
from offloadtune.engine.synthetic import SyntheticRunner
from offloadtune.records import Comparison, Goal, Outcome, Settings, Trial
from offloadtune.search import TRIAL_SHARE, Space, result_cost

_N_TRIALS_MOST = 400
_LAST_FRAC = 0.01
_N_UBATCH = 512
_UNFIT_TIMES = 10.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """One machine and one goal, with the runner whose clock ends at `budget_s`."""

    case: Case
    goal: Goal
    space: Space
    grid: Exhaustive
    runner: SyntheticRunner
    plan: VisitPlan
    budget_s: float
    seed: int

    @property
    def remaining_s(self) -> float:
        return self.budget_s - self.runner.clock_s

    @property
    def is_over(self) -> bool:
        """Whether a rival's time is over."""
        return self.remaining_s <= _LAST_FRAC * self.budget_s


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was chosen, None where nothing ran; `versus` are the verdicts beside the baselines, where any were made.

    `n_loads` are those of the search itself, before settings were compared side by side, for so many `n_placements`.
    """

    settings: Settings | None
    n_trials: int
    n_loads: int = 0
    n_placements: int = 0
    versus: tuple[Comparison, ...] = ()


Strategy = Callable[[Task], Answer]


@dataclass(kw_only=True)
class _Measured:
    """Settings measured so far and what each cost; none is measured twice."""

    task: Task
    costs: dict[Settings, float] = field(default_factory=dict)

    def cost(self, settings: Settings) -> float:
        """Infinite for what does not run, or has no time left."""
        task = self.task
        if settings not in self.costs:
            trial = Trial(settings=settings, target=task.case.target, why="a rival's")
            share = TRIAL_SHARE if any(map(math.isfinite, self.costs.values())) else 1.0
            result = task.runner.run(trial, task.plan, timeout_s=max(share * task.remaining_s, 0.0))
            is_ok = result.outcome is Outcome.OK
            self.costs[settings] = result_cost(result, task.goal, task.case.workload)[1] if is_ok else math.inf
        return self.costs[settings]

    @property
    def answer(self) -> Answer:
        ran = {settings: cost for settings, cost in self.costs.items() if math.isfinite(cost)}
        return Answer(settings=min(ran, key=lambda one: ran[one]) if ran else None, n_trials=len(self.costs))


def bisect_then_axes(task: Task) -> Answer:
    """The most layers that run, or the fewest experts away, by halving; then each axis in full, one after the other."""
    measured, axes = _Measured(task=task), task.grid.axes
    cores = task.case.machine.host.n_cores
    start = Point(0, 0, min(_N_UBATCH, task.case.n_ctx), cores, cores, axes.flash[0], axes.op_offload[0])
    best = start.settings(task.grid.base)
    best = best.replace(**_most_that_runs(task, measured, best))
    names = ("n_ubatch", "n_threads", "n_threads", "flash", "op_offload")
    fields = ("n_ubatch", "n_threads", "n_threads_batch", "flash_attn_type", "op_offload")
    for name, one in zip(names, fields, strict=True):
        values: Iterable[object] = getattr(axes, name)
        for value in values:
            if task.is_over:
                return measured.answer
            changed = best.replace(**{one: value})
            changed = changed.replace(n_batch=max(task.grid.base.n_batch, changed.n_ubatch))
            if measured.cost(changed) < measured.cost(best):
                best = changed
    return measured.answer


def _most_that_runs(task: Task, measured: _Measured, start: Settings) -> dict[str, int]:
    """Layers on the card; of a mixture all of them, with the experts of as few blocks away as run."""
    axes = task.grid.axes
    if len(axes.placements) == 1:
        return {"n_gpu_layers": 0}
    everything = max(layers for layers, _ in axes.placements)
    if task.case.facts.n_expert:
        ladder = [{"n_gpu_layers": everything, "n_cpu_moe": n} for n in range(task.case.facts.n_layer, -1, -1)]
    else:
        ladder = [{"n_gpu_layers": n, "n_cpu_moe": 0} for n in range(everything + 1)]
    low, high = -1, len(ladder)
    while high - low > 1 and not task.is_over:
        middle = (low + high) // 2
        runs = math.isfinite(measured.cost(start.replace(**ladder[middle])))
        low, high = (middle, high) if runs else (low, middle)
    return ladder[max(low, 0)] if low >= 0 else {"n_gpu_layers": 0, "n_cpu_moe": 0}


def at_random(task: Task) -> Answer:
    """Points of the grid by chance, feasible or not."""
    measured, axes, chance = _Measured(task=task), task.grid.axes, random.Random(task.seed)  # noqa: S311 - no secret
    for _ in range(_N_TRIALS_MOST):
        if task.is_over:
            break
        point = Point(
            *chance.choice(axes.placements),
            chance.choice(axes.n_ubatch),
            chance.choice(axes.n_threads),
            chance.choice(axes.n_threads),
            chance.choice(axes.flash),
            chance.choice(axes.op_offload),
        )
        measured.cost(point.settings(task.grid.base))
    return measured.answer


def by_tpe(task: Task) -> Answer:
    """Optuna's tree-structured Parzen estimator over the same axes; what does not run is told as far worse than all."""
    import optuna  # noqa: PLC0415 - slow to load, and the others do without

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    measured, axes = _Measured(task=task), task.grid.axes
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=task.seed % (1 << 32)))
    worst = 1.0
    for _ in range(_N_TRIALS_MOST):
        if task.is_over:
            break
        trial = study.ask()
        point = Point(
            *axes.placements[trial.suggest_int("i_placement", 0, len(axes.placements) - 1)],
            axes.n_ubatch[trial.suggest_int("i_ubatch", 0, len(axes.n_ubatch) - 1)],
            axes.n_threads[trial.suggest_int("i_threads", 0, len(axes.n_threads) - 1)],
            axes.n_threads[trial.suggest_int("i_threads_batch", 0, len(axes.n_threads) - 1)],
            trial.suggest_categorical("flash", axes.flash),
            trial.suggest_categorical("op_offload", axes.op_offload),
        )
        cost = measured.cost(point.settings(task.grid.base))
        worst = max(worst, cost if math.isfinite(cost) else worst)
        study.tell(trial, math.log(cost if math.isfinite(cost) else _UNFIT_TIMES * worst))
    return measured.answer

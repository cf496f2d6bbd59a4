"""What is reckoned of steps from an answer, beside the truth of simulated machines, which has another form."""

from __future__ import annotations

import importlib
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from offloadtune.engine import VisitPlan
from offloadtune.engine.synthetic import SyntheticRunner
from offloadtune.recommend import explain, recommend
from offloadtune.records import Basis, Goal

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

machines: Any = importlib.import_module("simulated_machines")
grids: Any = importlib.import_module("simulated_grid")
rivals: Any = importlib.import_module("simulated_rivals")
sweeps: Any = importlib.import_module("simulated_sweep")

N_MACHINES, SEED = 8, 3
_BUDGET_S = 300.0


def steps_of(case: Any, goal: Goal) -> list[tuple[bool, float]]:
    """Of each step that was reckoned: whether the truth lies in its interval, and how far from the middle, as a log."""
    runner = SyntheticRunner(case.machine, seed=case.seed)
    space = case.space(goal, runner)
    plan = VisitPlan(workload=case.workload, n_steps=min(case.workload.n_gen - 1, 32), n_visits=1)
    task = rivals.Task(
        case=case, goal=goal, space=space, grid=None, runner=runner, plan=plan, budget_s=_BUDGET_S, seed=case.seed
    )
    sweep = sweeps._Sweep(task)
    sweep.screen()
    answer = recommend(space, sweep.results, ())
    if answer is None:
        return []

    def cost(settings: Any) -> float | None:
        found = grids.truth_of(case, settings)
        return float(grids.costs(found, goal, case.workload.n_gen)[0]) if found.fits[0] else None

    here, found = cost(answer.trial.settings), []
    for one in explain(sweep.foresight.beside(space), sweep.results, (), answer).neighbours:
        ratio, there = one.cost_ratio, cost(one.settings)
        if ratio and here and there and ratio.basis is not Basis.MEASURED:
            truth = there / here
            found.append((ratio.low <= truth <= ratio.high, abs(math.log(ratio.p50 / truth))))
    return found


def test_the_truth_lies_where_it_is_said_to_nine_times_out_of_ten() -> None:
    found = [
        step
        for i in range(N_MACHINES)
        for step in steps_of(machines.draw_machine(i, SEED), (Goal.TURN, Goal.TTFT, Goal.DECODE)[i % 3])
    ]
    assert len(found) >= 30
    assert statistics.fmean(is_inside for is_inside, _ in found) >= 0.8
    assert statistics.median(off for _, off in found) <= 0.05

"""How often a sweep finds a winner where nothing differs: all settings of a simulated machine are alike, but for noise.

The noise is what real visits of unchanged settings showed (data/visit_noise.csv), played from a place by chance.
Ends with 1 where more than 5 % of the sweeps say that what they recommend is faster than anything.

    python benchmarks/simulated_equal.py --runs 1000 --jobs 2
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys

import numpy as np
from record_noise import read_noise
from simulated_grid import N_STEPS_MOST, exhaustive
from simulated_machines import Case, draw_machine
from simulated_rivals import Task
from simulated_sweep import todays_sweep
from simulated_workers import workers

from offloadtune.engine import VisitPlan
from offloadtune.engine.synthetic import Curve, MemoryTaken, Noise, SyntheticRunner
from offloadtune.records import Goal, Target, Verdict

_BAR_FRAC = 0.05
_BUDGET_S = 3600.0
_LEVEL = Curve(x=(1.0,), y=(1.0,))


def recorded_noise() -> Noise:
    """Log times of prompt and token beside their session's median, one session after the other."""
    logs: list[tuple[float, float]] = []
    for session in read_noise():
        prompts = [math.log(visit.ttft_ns) for visit in session]
        tokens = [math.log(visit.token_ns) for visit in session]
        middles = statistics.median(prompts), statistics.median(tokens)
        logs += [(prompt - middles[0], token - middles[1]) for prompt, token in zip(prompts, tokens, strict=True)]
    return dataclasses.replace(Noise.none(), recorded=tuple(logs))


def equal_case(i: int, seed: int) -> Case:
    """A processor on which threads, sizes and attention change nothing: all time is that of the products."""
    case = draw_machine(i, seed)
    blocks, host = case.machine.blocks, case.machine.host
    none = np.zeros(blocks.n_layer)
    blocks = dataclasses.replace(
        blocks, dense_bytes=none, expert_bytes=none, cache_values=none, attention_flop=none, output_bytes=0.0
    )
    host = dataclasses.replace(
        host, reads_by_threads=_LEVEL, multiplies_by_threads=_LEVEL, multiplies=_LEVEL, barrier_s=0.0
    )
    machine = dataclasses.replace(
        case.machine,
        card=None,
        blocks=blocks,
        host=host,
        surprises=(),
        memory=lambda settings: MemoryTaken(
            device_bytes=np.zeros(len(settings), dtype=np.int64), host_bytes=np.zeros(len(settings), dtype=np.int64)
        ),
    )
    rig = dataclasses.replace(case.rig, devices=(), shares=())
    return dataclasses.replace(case, machine=machine, rig=rig, target=Target.LLAMA_CPP_PYTHON)


def has_winner(i: int, seed: int) -> bool:
    """Whether the sweep of one machine says that its answer is faster than a baseline."""
    case, goal = equal_case(i, seed), list(Goal)[i % 3]
    runner = SyntheticRunner(case.machine, seed=case.seed, noise=recorded_noise())
    plan = VisitPlan(workload=case.workload, n_steps=max(1, min(case.workload.n_gen - 1, N_STEPS_MOST)), n_visits=1)
    task = Task(
        case=case,
        goal=goal,
        space=case.space(goal, runner),
        grid=exhaustive(case),
        runner=runner,
        plan=plan,
        budget_s=_BUDGET_S,
        seed=case.seed,
    )
    return any(one.verdict is Verdict.FASTER for one in todays_sweep(task).versus)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--jobs", type=int, default=1)
    given = options.parse_args()
    with workers(given.jobs) as pool:
        n_won = sum(pool.map(has_winner, range(given.runs), [given.seed] * given.runs, chunksize=4))
    print(f"Simulated, with recorded noise: {n_won} of {given.runs} sweeps over equal settings end with a winner.")
    sys.exit(n_won > _BAR_FRAC * given.runs)


if __name__ == "__main__":
    main()

"""One setting against itself on this machine: what a comparison of real visits says where nothing differs.

Each repeat visits the same settings twice a pair, as A and as B, each in a context of its own, in an order by chance.
Printed are the ratio with its interval, the verdict, the noise of the whole series against itself, and the drift of the
session (* where it is beyond chance); in the end how many of the repeats were called faster or slower.

To be run where nothing else runs.

    python benchmarks/aa_pairs.py --pairs 40 --repeats 5
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass

from record_noise import MODEL, N_STEPS, WORKLOAD, trial_of

from offloadtune import stats
from offloadtune.engine import Runner, VisitPlan
from offloadtune.records import Trial, TrialResult, Verdict
from offloadtune.search import measured

_VISIT_S = 120.0
_N_LEAST = 6


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Seconds of the turns of A and of B, and when each visit ended, A and B in the order they were made."""

    a_s: list[float]
    b_s: list[float]
    at_s: list[float]
    in_order_s: list[float]


def visit_pairs(runner: Runner, trial: Trial, n_pairs: int, chance: random.Random) -> Pairs:
    """Ends the program with a sentence where a visit fails."""
    plan = VisitPlan(workload=WORKLOAD, n_steps=N_STEPS, n_visits=1)
    turns_s: dict[str, list[float]] = {"a": [], "b": []}
    at_s, in_order_s = [], []
    for _ in range(n_pairs):
        for name in chance.sample("ab", 2):
            found = runner.revisit(trial, plan, timeout_s=_VISIT_S)
            if isinstance(found, TrialResult):
                raise SystemExit(f"A visit ended: {found.reason}.")
            (visit,) = measured(found)
            turns_s[name].append(visit.turn_s(WORKLOAD.n_gen))
            at_s.append(time.monotonic())
            in_order_s.append(turns_s[name][-1])
    return Pairs(a_s=turns_s["a"], b_s=turns_s["b"], at_s=at_s, in_order_s=in_order_s)


def comparison_line(pairs: Pairs) -> tuple[str, Verdict]:
    """What would be said of B, and how noisy it was."""
    noise_frac = stats.session_noise_frac([pairs.a_s, pairs.b_s])
    found = stats.compare_pairs(pairs.a_s, pairs.b_s, noise_frac)
    strict = stats.compare_pairs(pairs.a_s, pairs.b_s, 0.0).verdict
    drift = stats.estimate_drift(pairs.at_s, pairs.in_order_s)
    words = [
        f"B/A {found.ratio.p50:.4f} ({found.ratio.low:.4f} to {found.ratio.high:.4f})",
        f"{found.verdict}{'' if found.is_decided else ', open'}, by the interval alone {strict}",
        f"one visit differs by {noise_frac:.1%}",
        f"drift {drift.session_frac:+.1%} in {drift.span_s:.0f} s{' *' if drift.is_significant else ''}",
    ]
    if len(pairs.in_order_s) >= 2 * _N_LEAST:
        words.insert(2, f"A/A noise of {len(pairs.a_s)} pairs {stats.aa_noise(pairs.in_order_s):.1%}")
    return "; ".join(words), strict


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=40)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    if asked.pairs < 2 or asked.repeats < 1:
        options.error("2 pairs and 1 repeat are the least")
    chance, verdicts = random.Random(asked.seed), Counter[Verdict]()  # noqa: S311 - no secret
    with Runner(MODEL) as runner:
        visit_pairs(runner, trial_of(asked.threads), 1, chance)  # the file comes from the disk but once
        for i in range(1, asked.repeats + 1):
            line, verdict = comparison_line(visit_pairs(runner, trial_of(asked.threads), asked.pairs, chance))
            verdicts[verdict] += 1
            print(f"{i}: {line}", flush=True)
    print(
        f"By their intervals alone {verdicts[Verdict.FASTER]} of {asked.repeats} comparisons of a setting with itself "
        f"were called faster and {verdicts[Verdict.SLOWER]} slower; 2.5 % of each are promised."
    )


if __name__ == "__main__":
    main()

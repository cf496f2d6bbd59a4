"""How often `offloadtune history --check` cries wolf, and how often it finds the slowdown that it says it finds.

Made-up trends: runs that shift as a whole by 3 % from one to the next, of eight visits a measure that swing by 20 %.
Of each kind of noise: the share of checks with an alarm, and of trends with any, over 20 unchanged runs in a row after
the first five; then, after 5, 10 and 20 earlier runs, the median of the printed detectable slowdown, and how many of
true slowdowns once and twice as large are found.

Ends with 1 when more than 1 % of checks alarm, or fewer than 70 % of the slowdowns printed as detectable are found.

    python benchmarks/trend_check.py [trends of each kind, 100 unless said]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sample_runs import noisy_runs

from offloadtune.bench.trend import check
from offloadtune.benches import BenchRun
from offloadtune.records import Verdict

N_UNCHANGED = 20
KINDS: dict[str, dict[str, Any]] = {
    "independent visits": {},
    "swings that last (rho 0.9)": {"rho": 0.9},
    "stalls": {"law": "stalls"},
    "heavy tails": {"law": "t3"},
    "anchor follows": {"anchor_follows": True, "rho": 0.9},
}
FALSE_ALARM_BAR_FRAC = 0.01
POWER_BAR_FRAC = 0.7


def alarms(random: np.random.Generator, kind: dict[str, Any]) -> list[bool]:
    """Whether each of twenty unchanged runs, one after the other, is taken for slower."""
    runs = noisy_runs(random, N_UNCHANGED + 5, **kind)
    return [bool(check(runs[: i + 1]).slower) for i in range(5, len(runs))]


def findings(random: np.random.Generator, kind: dict[str, Any], n_earlier: int) -> Iterator[tuple[float, bool, bool]]:
    """Of a few figures: the detectable slowdown, and whether one as large, and twice as large, is found."""
    runs = noisy_runs(random, n_earlier + 1, **kind)
    for figure in check(runs).figures[::3]:
        assert figure.detectable_frac is not None
        found = []
        for times in (1, 2):
            slowed = slowed_down(runs[-1], 1 + times * figure.detectable_frac)
            verdicts = {one.name: one.verdict for one in check([*runs[:-1], slowed]).figures}
            found.append(verdicts[figure.name] is Verdict.SLOWER)
        yield figure.detectable_frac, found[0], found[1]


def slowed_down(run: BenchRun, factor: float) -> BenchRun:
    """`run` with every time of its visits `factor` times as long."""
    visits = []
    for one in run.visits:
        changed: dict[str, Any] = {
            name: round(getattr(one.visit, name) * factor)
            for name in ("tokenize_ns", "prefill_ns", "first_sample_ns", "first_decode_ns")
        }
        for name in ("step_ns", "sample_ns"):
            changed[name] = tuple(round(value * factor) for value in getattr(one.visit, name))
        visits.append(replace(one, visit=replace(one.visit, **changed)))
    return replace(run, visits=tuple(visits))


def main() -> int:
    n_trends = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    random = np.random.default_rng(20)
    is_missed = False
    print(f"{'noise':28}{'alarms a check':>16}{'in 20 checks':>14}   after: detectable, found at 1x, at 2x")
    for name, kind in KINDS.items():
        unchanged = [alarms(random, kind) for _ in range(n_trends)]
        a_check = statistics.fmean(alarm for one in unchanged for alarm in one)
        a_trend = statistics.fmean(any(one) for one in unchanged)
        cells = []
        for n_earlier in (5, 10, 20):
            found = [one for _ in range(n_trends) for one in findings(random, kind, n_earlier)]
            detectable = statistics.median(one[0] for one in found)
            once, twice = (statistics.fmean(one[i] for one in found) for i in (1, 2))
            cells.append(f"{n_earlier}: {detectable:.0%}, {once:.0%}, {twice:.0%}")
            is_missed |= once < POWER_BAR_FRAC
        is_missed |= a_check > FALSE_ALARM_BAR_FRAC
        print(f"{name:28}{a_check:>16.2%}{a_trend:>14.1%}   {'   '.join(cells)}", flush=True)
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())

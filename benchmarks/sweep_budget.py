"""Real sweeps of a small model with several budgets: when is there a first answer, and when and why does it end?

Each sweep begins with nothing known, on the CPU alone and with the virtual card of the tests beside it. Printed are the
seconds until the first usable answer and until the end, why it ended, and the loads of the file beside the placements
that were tried: those of trials, and those of the rounds side by side, which load each finalist's placement anew.

With --check it ends with 1 where the first answer takes more than a minute, a sweep lasts longer than a tenth beyond
its budget, ends earlier without a decision, or where trials load the file more often than 1.3 times a placement. One
return to a placement is always allowed: the baselines are tried between the first placement and all that is found to
do in it.

To be run where nothing else runs.

    python benchmarks/sweep_budget.py --budgets 30 60 120 --check
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from conftest import MIB, VirtualCard

from offloadtune import pipeline
from offloadtune.errors import BudgetError
from offloadtune.records import WORKLOADS
from offloadtune.search.acquire import LOADS_PER_PLACEMENT
from offloadtune.sweeps import Event, RoundFinished, SweepRequest, TrialFinished, TrialStarted

MODEL = Path(__file__).parents[1] / "gguf_models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FIRST_ANSWER_MOST_S = 60.0
OVERRUN_MOST = 1.1
_CARD_BYTES = 600 * MIB
_EARLY_FRAC = 0.75
"""Of the budget: whoever ends before for want of time had time for another round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """How one sweep went. `first_s` is None where there was no answer; loads are of trials, then of rounds."""

    name: str
    budget_s: float
    first_s: float | None
    end_s: float
    ended: str
    n_rounds: int
    n_trial_loads: int
    n_round_loads: int
    n_placements: int

    @property
    def faults(self) -> Iterator[str]:
        """Why this misses a bar, a few words each."""
        if self.first_s is None or self.first_s > FIRST_ANSWER_MOST_S:
            yield f"no answer within {FIRST_ANSWER_MOST_S:.0f} s"
        if self.end_s > OVERRUN_MOST * self.budget_s:
            yield f"it lasted {self.end_s / self.budget_s:.2f} times its budget"
        if self.end_s < _EARLY_FRAC * self.budget_s and "the budget" in self.ended:
            yield f"it gave up after {self.end_s:.0f} s"
        if self.n_trial_loads > max(self.n_placements + 1, LOADS_PER_PLACEMENT * self.n_placements):
            yield f"{self.n_trial_loads} loads of {self.n_placements} placements"

    @property
    def line(self) -> str:
        first = "none" if self.first_s is None else f"{self.first_s:.1f} s"
        loads = f"{self.n_trial_loads} + {self.n_round_loads} / {self.n_placements}"
        return (
            f"{self.name:13} {self.budget_s:6.0f} s {first:>9} {self.end_s:8.1f} s {loads:>12} "
            f"{self.n_rounds:6d}  {self.ended}"
        )


def swept(name: str, budget_s: float, endpoints: tuple[str, ...], workload: str) -> Swept:
    """One sweep in a home of its own."""
    events: list[tuple[float, Event]] = []
    request = SweepRequest(path=MODEL, workload=WORKLOADS[workload], budget_s=budget_s, endpoints=endpoints)
    start_s = time.monotonic()
    with _home_of_its_own():
        try:
            report = pipeline.sweep(request, lambda event: events.append((time.monotonic() - start_s, event)))
        except BudgetError as error:
            ended, n_rounds, n_loads = str(error), 0, 0
        else:
            ended, n_rounds, n_loads = report.ended, report.n_rounds, report.n_model_loads
    end_s = time.monotonic() - start_s
    answers = (at_s for at_s, event in events if isinstance(event, TrialFinished | RoundFinished) and event.best)
    order = [event.trial.settings.placement for _, event in events if isinstance(event, TrialStarted)]
    n_trial_loads = min(n_loads, _n_loads(order, events))
    return Swept(
        name=name,
        budget_s=budget_s,
        first_s=next(answers, None),
        end_s=end_s,
        ended=ended,
        n_rounds=n_rounds,
        n_trial_loads=n_trial_loads,
        n_round_loads=n_loads - n_trial_loads,
        n_placements=len(set(order)),
    )


def _n_loads(order: list[tuple[object, ...]], events: list[tuple[float, Event]]) -> int:
    """Loads that the trials needed: where the placement changes, and after each failure."""
    failed = [event.result for _, event in events if isinstance(event, TrialFinished)]
    n_failed = sum(result.evidence is not None for result in failed[:-1])
    return sum(i == 0 or placement != order[i - 1] for i, placement in enumerate(order)) + n_failed


@contextmanager
def _home_of_its_own() -> Iterator[None]:
    before = os.environ.get("OFFLOADTUNE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OFFLOADTUNE_HOME"] = folder
        try:
            yield
        finally:
            del os.environ["OFFLOADTUNE_HOME"]
            if before is not None:
                os.environ["OFFLOADTUNE_HOME"] = before


def main() -> int:
    """Print a line a sweep, then what misses a bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budgets", type=float, nargs="+", default=[30.0, 60.0, 120.0], metavar="SECONDS")
    parser.add_argument("--on", nargs="+", choices=("cpu", "virtual card"), default=("cpu", "virtual card"))
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="chat")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    options = parser.parse_args()
    print(f"{'':13} {'budget':>8} {'first':>9} {'end':>10} {'loads':>12} {'rounds':>6}  ended", flush=True)
    faults = []
    for name in options.on:
        for budget_s in options.budgets:
            card = VirtualCard(2, _CARD_BYTES, driver_bytes=0) if name == "virtual card" else None
            try:
                one = swept(name, budget_s, (card.endpoint,) if card else (), options.workload)
            finally:
                if card:
                    card.close()
            print(one.line, flush=True)
            faults += [f"{name}, {budget_s:.0f} s: {fault}" for fault in one.faults]
    print("\n".join(faults) or "every bar is met")
    return int(options.check and bool(faults))


if __name__ == "__main__":
    sys.exit(main())

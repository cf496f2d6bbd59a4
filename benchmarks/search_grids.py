"""A sweep against an exhaustive grid, with the real engine on virtual cards of three sizes for each of three files.

Each case measures a grid of at least 120 settings that fit, in one worker, a load a placement, placements in an order
by chance; then a sweep has 15 % of the time that the grid took. What it chose and the three best of the grid are then
visited side by side in rounds, with a copy of what was chosen: regret is how much longer the chosen takes than the
quickest of the three. The bar of a case: regret of at most 3 % beyond what the copy differs (A/A), in at most 15 % of
the grid's time.

    python benchmarks/search_grids.py                     shows and judges what is recorded in data/search_grids.json
    python benchmarks/search_grids.py --measure           measures all nine cases, an hour, where nothing else runs
    python benchmarks/search_grids.py --measure --only smollm2:third --only mixture:all

With --check it ends with 1 where a case is missing or misses its bar.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_cases import (
    CAPS,
    CHOSEN,
    COPY,
    MIB,
    N_GRID_LEAST,
    N_ROUNDS,
    QUICK_WORKLOAD,
    REGRET_MOST_FRAC,
    SAMPLES,
    Regret,
    Sample,
    card_bytes_of,
    grid_of,
    regret_of,
    settings_words,
)
from search_measuring import (
    N_CARD_THREADS,
    SideFailedError,
    about,
    facts_of,
    read_rows,
    record_row,
    runner_of,
    side_by_side,
    swept,
    timed,
    turns,
    virtual_card,
)

from offloadtune.engine import Runner
from offloadtune.errors import OffloadTuneError
from offloadtune.records import GgufFacts, Settings, TrialResult
from offloadtune.report.words import printable
from offloadtune.sweeps import SweepReport
from offloadtune.units import format_seconds

RESULT = Path(__file__).parent / "data" / "search_grids.json"
NAMES = tuple(f"{name}:{cap}" for name in SAMPLES for cap in CAPS)
BUDGET_FRAC = 0.15
NOISE_MOST_FRAC = 0.1
"""Where a copy may differ by more, nothing is shown."""

N_VISITS = 2
N_RIVALS = 3
_OUTSIDE_S = 2.0
"""What a sweep takes beside its budget: it starts a worker and hashes the file."""

_OPEN_S = 0.1
_N_KEPT = 10
_N_QUICK, _N_QUICK_ROUNDS, _QUICK_BUDGET_S = 4, 2, 90.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One file on one card, and the grid of settings that fit."""

    name: str
    sample: Sample
    facts: GgufFacts
    card_bytes: int
    grid: tuple[Settings, ...]
    n_rounds: int = N_ROUNDS
    least_budget_s: float = 0.0
    n_card_threads: int = N_CARD_THREADS

    @property
    def expected_s(self) -> float:
        """What all of it will take where nothing else runs."""
        sample, n_loads = self.sample, len({one.placement for one in self.grid})
        grid_s = n_loads * sample.load_s + len(self.grid) * (_OPEN_S + (1 + N_VISITS) * sample.turn_s)
        visit_s = sample.load_s + _OPEN_S + 2 * sample.turn_s
        return (1 + BUDGET_FRAC) * grid_s + self.n_rounds * (2 + N_RIVALS) * visit_s


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The median turn of each setting of a grid, the quickest first, how many failed, and what it all took."""

    turns_s: dict[Settings, float]
    n_failed: int
    took_s: float


def case_of(name: str, folder: Path, *, is_quick: bool) -> Case:
    """With `is_quick` a few settings by chance, few rounds, and a card of one thread, which bears company."""
    sample, share = SAMPLES[name.partition(":")[0]], CAPS[name.partition(":")[2]]
    facts = facts_of(sample, folder)
    card_bytes = card_bytes_of(facts, sample, share)
    case = Case(name=name, sample=sample, facts=facts, card_bytes=card_bytes, grid=grid_of(facts, sample, card_bytes))
    if not is_quick:
        return case
    few = tuple(random.Random(1).sample(case.grid, _N_QUICK))  # noqa: S311 - no secret
    return dataclasses.replace(
        case,
        sample=dataclasses.replace(sample, workload=QUICK_WORKLOAD),
        grid=few,
        n_rounds=_N_QUICK_ROUNDS,
        least_budget_s=_QUICK_BUDGET_S,
        n_card_threads=1,
    )


def measured_grid(runner: Runner, case: Case, chance: random.Random) -> Measured:
    """Every setting of the grid, those of a placement together."""
    start_s = time.monotonic()
    found: dict[Settings, float] = {}
    for settings in in_order(case.grid, chance):
        visits = timed(runner, settings, case.sample.plan(N_VISITS))
        if not isinstance(visits, TrialResult):
            found[settings] = statistics.median(one.turn_s(case.sample.workload.n_gen) for one in visits)
    ranked = dict(sorted(found.items(), key=lambda one: one[1]))
    return Measured(turns_s=ranked, n_failed=len(case.grid) - len(found), took_s=time.monotonic() - start_s)


def in_order(grid: Sequence[Settings], chance: random.Random) -> Iterator[Settings]:
    """Placements by chance, and the settings of each."""
    placements = list(dict.fromkeys(one.placement for one in grid))
    for placement in chance.sample(placements, len(placements)):
        there = [one for one in grid if one.placement == placement]
        yield from chance.sample(there, len(there))


def measure(case: Case, chance: random.Random) -> dict[str, Any]:
    """Grid, sweep and rounds, as the row that is recorded; with "failure" where there is nothing to compare."""
    with virtual_card(case.card_bytes, case.n_card_threads) as endpoint:
        with runner_of(case.facts, [endpoint]) as runner:
            grid = measured_grid(runner, case, chance)
        row = grid_columns(case, grid)
        if not grid.turns_s:
            return {**row, "failure": "no setting of the grid ran"}
        budget_s = max(BUDGET_FRAC * grid.took_s - _OUTSIDE_S, case.least_budget_s)
        start_s = time.monotonic()
        try:
            report = swept(case.facts, case.sample, budget_s, endpoints=[endpoint])
            row |= sweep_columns(report, grid, time.monotonic() - start_s)
            sides = sides_of(report, grid)
            with runner_of(case.facts, [endpoint]) as runner:
                visits = side_by_side(dict.fromkeys(sides, runner), sides, case.sample.plan(1), case.n_rounds, chance)
        except (OffloadTuneError, SideFailedError) as error:
            return {**row, "failure": printable(str(error))}
    turns_s = turns(visits, case.sample.workload)
    regret = regret_of(turns_s)
    return {
        **row,
        "rival": settings_words(sides[regret.rival]),
        "regret": dataclasses.asdict(regret),
        "turns_s": {name: [round(one, 5) for one in each] for name, each in turns_s.items()},
    }


def sides_of(report: SweepReport, grid: Measured) -> dict[str, Settings]:
    """What was chosen, twice, and the quickest of the grid."""
    chosen, rivals = report.recommendation.trial.settings, list(grid.turns_s)[:N_RIVALS]
    return {CHOSEN: chosen, COPY: chosen, **{f"{i + 1} of the grid": one for i, one in enumerate(rivals)}}


def grid_columns(case: Case, grid: Measured) -> dict[str, Any]:
    best = list(grid.turns_s.items())[:_N_KEPT]
    return {
        "card_bytes": case.card_bytes,
        "file_bytes": case.facts.file_bytes,
        "n_grid": len(grid.turns_s),
        "n_failed": grid.n_failed,
        "grid_s": round(grid.took_s, 1),
        "best_of_grid_s": {settings_words(settings): round(turn_s, 4) for settings, turn_s in best},
    }


def sweep_columns(report: SweepReport, grid: Measured, took_s: float) -> dict[str, Any]:
    return {
        "sweep_s": round(took_s, 1),
        "sweep_frac": round(took_s / grid.took_s, 4),
        "n_trials": len(report.results),
        "n_rounds_of_sweep": report.n_rounds,
        "n_loads": report.n_model_loads,
        "n_placements": len({one.trial.settings.placement for one in report.results}),
        "chosen": settings_words(report.recommendation.trial.settings),
    }


# --- telling ---------------------------------------------------------------------------------------------------------


def missed(row: Mapping[str, Any]) -> list[str]:
    """What of its bar a case misses, in a few words each."""
    if "failure" in row:
        return [row["failure"]]
    found = []
    if not (regret := Regret(**row["regret"])).is_met:
        found.append(f"regret above {REGRET_MOST_FRAC:.0%} + {regret.noise_frac:.1%}")
    if regret.noise_frac > NOISE_MOST_FRAC:
        found.append(f"a copy differed by {regret.noise_frac:.0%}: measure where nothing else runs")
    if row["sweep_frac"] > BUDGET_FRAC:
        found.append(f"the sweep took more than {BUDGET_FRAC:.0%} of the grid's time")
    if row["n_grid"] < N_GRID_LEAST:
        found.append(f"only {row['n_grid']} settings of the grid ran")
    return found


def table(cases: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """A line a case, and a second one for what was chosen and what was best."""
    columns = f"{'sweep':>6} {'share':>6} {'loads':>5} {'places':>6}  regret"
    yield f"{'case':<19} {'card':>8} {'grid':>4} {'took':>6} {columns}"
    for name in sorted(cases, key=NAMES.index):
        row = cases[name]
        verdict = "; ".join(missed(row))
        line = f"{name:<19} {row['card_bytes'] / MIB:>4.0f} MiB {row['n_grid']:>4} {row['grid_s']:>4.0f} s"
        if "regret" not in row:
            yield f"{line}  MISSED: {verdict}"
            continue
        yield (
            f"{line} {row['sweep_s']:>4.0f} s {row['sweep_frac']:>6.1%} {row['n_loads']:>5} {row['n_placements']:>6}  "
            f"{Regret(**row['regret']).words}: {f'MISSED, {verdict}' if verdict else 'met'}"
        )
        best = next(iter(row["best_of_grid_s"]))
        yield f"    chose {row['chosen']}; the grid's best {best}, beside it the best {row['rival']}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--measure", action="store_true", help="measure and record")
    options.add_argument("--only", action="append", choices=NAMES, metavar="FILE:CARD", help="one case; again for more")
    options.add_argument("--check", action="store_true", help="end with 1 where a case is missing or misses its bar")
    options.add_argument("--quick", action="store_true", help="few settings: whether it works, not what it shows")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    wanted = tuple(asked.only or NAMES)
    rows: dict[str, Any] = {}
    if asked.measure or asked.quick:
        rows = measured_rows(wanted, seed=asked.seed, is_quick=asked.quick)
    elif recorded := read_rows(RESULT):
        print("; ".join(recorded["about"].values()))
        rows = {name: row for name, row in recorded["cases"].items() if name in wanted}
    print("\n".join(table(rows)) if rows else f"Nothing is recorded in {RESULT}: --measure records it.")
    is_met = len(rows) == len(wanted) and not any(map(missed, rows.values()))
    return int(asked.check and not is_met)


def measured_rows(wanted: Sequence[str], *, seed: int, is_quick: bool) -> dict[str, Any]:
    """Each case as it is measured is recorded and printed; quick ones are not recorded."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = [case_of(name, Path(folder), is_quick=is_quick) for name in wanted]
        expected_s = sum(case.expected_s for case in cases)
        print(f"{len(cases)} cases will take about {format_seconds(expected_s)} where nothing else runs.", flush=True)
        where = about(cases[0].facts)
        for case in cases:
            chance = random.Random(f"{seed} {case.name}")  # noqa: S311 - no secret
            start_s = time.monotonic()
            rows[case.name] = measure(case, chance)
            if not is_quick:
                record_row(RESULT, where, case.name, rows[case.name])
            took = format_seconds(time.monotonic() - start_s)
            print(f"{case.name} took {took} of {format_seconds(case.expected_s)} expected", flush=True)
            print("\n".join(list(table({case.name: rows[case.name]}))[1:]), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())

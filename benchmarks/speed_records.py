"""How far the speed law is from published speeds (data/speed_records.csv), and that its constants are those of the fit.

Constants of one half of the authors predict the rows of the other half, 20 random halves both ways round; then each
card and each author by all others; then three published sweeps, calibrated by two of their points. What rows leave
unsaid is read as speed_cases.py says; old builds and other engines are judged as if they were llama.cpp of today, but
llamafile's rows, which have a slow mode of their own, are told apart: "all" has them, the bars do not.

    python benchmarks/speed_records.py              all tables; the errors of each card go to data/speed_errors.csv
    python benchmarks/speed_records.py --constants  the constants of all rows, as speed/constants.py freezes them

Ends with 1 when a bar is missed (`BARS`, `SWEEP_BARS`), or when the frozen constants are not those of the fit.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from speed_cases import Case, read_cases
from speed_fit import Known, fitted
from speed_guesses import FLAT
from speed_judging import (
    SWEEP_OF_2023,
    SWEEPS,
    Judged,
    Tally,
    by_others,
    halves,
    of_today,
    swept,
    tallied,
    without_each,
)

from offloadtune.speed.constants import CONSTANTS, Constant
from offloadtune.speeds import Phase

ERRORS = Path(__file__).parent / "data" / "speed_errors.csv"

BARS = {"decode full": 0.10, "decode offload": 0.20, "prefill full": 0.25, "prefill offload": 0.25}
"""What half of the predictions may be off by at most."""

INSIDE = (0.85, 0.95)
"""The part of measured speeds that intervals of 90 % should hold, on rows the constants were not fitted on."""

SWEEP_BARS = (0.023, 0.054)
"""Median and 90th percentile of decode in sweeps that two points calibrate."""

FROZEN_WITHIN = 0.05
"""Of a constant, rounded as it is."""

_FAMILY_DIFFERS = 0.03
"""Families nearer to the value of all are not written down."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", action="store_true", help="print the constants of all rows and stop")
    arguments = parser.parse_args()
    every, left_out = read_cases()
    cases = of_today(every)
    constants, known = fitted(cases)
    if arguments.constants:
        print("\n".join(lines_of(constants)))
        return 0
    print(f"{len(every)} rows of grades A and B; {sum(left_out.values())} more say too little:")
    print("\n".join(f"  {n:3d}  {why}" for why, n in left_out.most_common()))
    misses = [*frozen_otherwise(constants)]
    misses += _report_splits(cases, known)
    misses += _report_sweeps(every, known)
    for miss in misses:
        print(f"missed: {miss}")
    return 1 if misses else 0


# --- tables --------------------------------------------------------------------------------------------------------


def _report_splits(cases: Sequence[Case], known: Known) -> Iterator[str]:
    some = list(halves(cases, known))
    rows = list(by_others(cases, some))
    proper = _but_llamafile(rows)
    _print("Halves of the authors by the other halves", tallied(proper, _placed))
    _print("... all, with llamafile", tallied(rows, _placed))
    current = [row for row in proper if row.case.date >= "2024-07"]
    _print("... builds since July 2024", tallied(current, _placed))
    asked = of_today(read_cases(is_flash_on=True)[0])
    flash = _but_llamafile(by_others(asked, some))
    _print("... asked with flash attention on, as plans by name do", tallied(flash, _placed))
    flat = _but_llamafile(by_others(cases, list(halves(cases, known, FLAT))))
    _print("... starting from guesses that are the same for all families", tallied(flat, _placed))
    for title, key in (("card", lambda case: case.card), ("author", lambda case: case.author)):
        one_out = _but_llamafile(without_each(cases, known, key))
        _print(f"Each {title} by all others", tallied(one_out, _placed))
    offload = [row for row in proper if not row.case.placed.endswith("full")]
    _print("Weights in main memory, by rig", tallied(offload, lambda case: (case.placed, case.author, case.gpu)))
    _print("By card, model and kind", tallied(proper, _card_model_kind))
    _write(tallied(rows, _card_model_kind))
    return iter(missed_bars(tallied(proper, _placed)))


def _report_sweeps(every: Sequence[Case], known: Known) -> list[str]:
    print("\nSweeps by two of their points")
    misses = []
    for phase in Phase:
        rows = [row for sweep in SWEEPS for row in swept(every, sweep, phase, known)]
        apart = swept(every, SWEEP_OF_2023, phase, known)
        for before, after in (*rows, *apart):
            name = f"{after.case.gpu}, {after.case.n_gpu_layers} layers ({after.case.date[:4]})"
            words = f"{np.expm1(before.off):+7.1%} before, {np.expm1(after.off):+7.2%} after"
            print(f"  {phase.value:8s}{name:42s}{words}{'' if after.is_inside else ', outside'}")
        tally = Tally.of([after for _, after in rows])
        print(f"  {phase.value:8s}all but those of 2023: {_words(tally)}")
        if phase is Phase.DECODE:
            misses = missed_sweep_bars(tally)
    return misses


def _but_llamafile(rows: Iterable[Judged]) -> list[Judged]:
    return [row for row in rows if row.case.engine != "llamafile"]


def _placed(case: Case) -> tuple[str, ...]:
    return (case.placed,)


def _card_model_kind(case: Case) -> tuple[str, ...]:
    return (case.card or "CPU", case.shape, case.kind, case.phase.value, case.engine or "llama.cpp")


def _print(title: str, tallies: Mapping[tuple[str, ...], Tally]) -> None:
    print(f"\n{title}")
    for name, tally in tallies.items():
        print(f"  {', '.join(name):75s} {_words(tally)}")


def _words(tally: Tally) -> str:
    return (
        f"n {tally.n:5d}  median {tally.median_frac:6.1%}  p90 {tally.p90_frac:6.1%}  "
        f"lean {tally.lean_frac:+6.1%}  inside {tally.inside_frac:4.0%}"
    )


def _write(tallies: Mapping[tuple[str, ...], Tally]) -> None:
    with ERRORS.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["card", "model", "kind", "phase", "engine", "n", "median", "p90", "lean", "inside"])
        for name, one in tallies.items():
            figures = (one.median_frac, one.p90_frac, one.lean_frac, one.inside_frac)
            table.writerow([*name, one.n, *(f"{figure:.3f}" for figure in figures)])


# --- bars ----------------------------------------------------------------------------------------------------------


def missed_bars(tallies: Mapping[tuple[str, ...], Tally]) -> Iterator[str]:
    for (placed,), tally in tallies.items():
        if placed not in BARS:
            continue
        if tally.median_frac > BARS[placed]:
            yield f"{placed}: the median error is {tally.median_frac:.1%}, more than {BARS[placed]:.0%}"
        if not INSIDE[0] <= tally.inside_frac <= INSIDE[1]:
            yield f"{placed}: intervals of 90 % hold {tally.inside_frac:.0%}"


def missed_sweep_bars(tally: Tally) -> list[str]:
    figures = ((tally.median_frac, SWEEP_BARS[0], "median"), (tally.p90_frac, SWEEP_BARS[1], "90th percentile"))
    return [f"sweeps: the {name} is {value:.1%}, more than {bar:.1%}" for value, bar, name in figures if value > bar]


def frozen_otherwise(constants: Mapping[str, Constant]) -> Iterator[str]:
    """Which frozen constants are not those of the fit."""
    for name, fit in constants.items():
        frozen = CONSTANTS[name]
        for family, theirs in {"": fit.value, **fit.by_family}.items():
            ours = frozen.by_family.get(family, frozen.value)
            if abs(ours / theirs - 1.0) > FROZEN_WITHIN:
                yield f"{name}{f' of {family}' if family else ''} is frozen as {ours:.3g}, the fit says {theirs:.3g}"


def lines_of(constants: Mapping[str, Constant]) -> Iterator[str]:
    """Constants as the table in speed/constants.py has them."""
    for name, constant in constants.items():
        differing = {
            family: _rounded(value)
            for family, value in sorted(constant.by_family.items())
            if abs(value / constant.value - 1.0) > _FAMILY_DIFFERS
        }
        given = [f"value={_rounded(constant.value)}", f"width={constant.width}"]
        given += [f"spread={constant.spread}"] if constant.spread else []
        given += [f"by_family={differing}"] if differing else []
        given += [] if constant.is_share else ["is_share=False"]
        yield f'    "{name}": Constant({", ".join(given)}),'.replace("'", '"')


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


if __name__ == "__main__":
    sys.exit(main())

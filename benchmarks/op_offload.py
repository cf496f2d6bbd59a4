"""Op offload on a device that has it: what is copied for it, and what the copies cost. On software Vulkan, opt-in.

A prompt of 128 tokens of SmolLM2 at n_gpu_layers 0, half and all, with and without op offload, at n_ubatch 64 and 128,
in random order (op_offload_runs.py, op_offload_bench.py). The law that is fitted to the medians of undisturbed visits:

    device flop / A + bytes of weights the device reads / B + streamed bytes / C + host flop / D + ubatches x E

by non-negative least squares on relative errors; standard errors by what is left of them. Blocks that are streamed are
computed by the device like those that lie there, so C alone tells the two apart.

llvmpipe copies within main memory, so what a streamed byte costs is hardly the byte: each copied tensor ends a split,
and the waiting around a split is what takes long. In one file bytes and splits go together. Pairs of visits that
differ in bytes alone tell them apart: with no flash attention values lie transposed, and the view of 256 cells that is
copied reaches over a whole context of 512 cells, or of 131072.

    python benchmarks/op_offload.py             compares bytes and fits, from data/op_offload_vulkan.json
    python benchmarks/op_offload.py --measure   adds to what is recorded until it is enough; 15 minutes at most

Ends with 1 where log and rule differ, or where the interval of the streaming term holds 0.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from op_offload_bench import measure
from op_offload_runs import TERMS, Configuration, Session, read_session
from streamed_bytes import Streamed

from offloadtune.stats import estimate_quantile

Floats = NDArray[np.float64]

DATA = Path(__file__).parent / "data" / "op_offload_vulkan.json"
INTERVAL_FRAC = 0.9
_SHOWN = {
    "device_flop": ("device computes", 1e9, "GFLOP/s"),
    "device_bytes": ("device reads weights", 1e9, "GB/s"),
    "streamed_bytes": ("streaming to the device", 1e9, "GB/s"),
    "host_flop": ("host computes", 1e9, "GFLOP/s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """Seconds per unit of a term, and between which bounds they lie in 90 of 100 cases; 0 where the fit left it out."""

    term: str
    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """`error_frac` is the standard deviation of what the law leaves of the times; `residuals` one a configuration."""

    coefficients: tuple[Coefficient, ...]
    error_frac: float
    residuals: tuple[float, ...]

    def __getitem__(self, term: str) -> Coefficient:
        return next(one for one in self.coefficients if one.term == term)


def fit_law(amounts: Floats, seconds: Floats) -> Fit:
    """Coefficients of at least 0 for `amounts` (n_configurations, n_terms in the order of TERMS)."""
    from scipy.optimize import nnls  # noqa: PLC0415 - half a second to load
    from scipy.stats import t as student  # noqa: PLC0415

    size = amounts.max(axis=0)  # all terms of one size
    rows = amounts / size / seconds[:, None]
    found, _ = nnls(rows, np.ones_like(seconds))
    inside = found > 0
    residuals = rows @ found - 1.0
    n_left = len(seconds) - int(inside.sum())
    error_frac = math.sqrt(float(residuals @ residuals) / n_left)
    spread = np.zeros_like(found)
    spread[inside] = error_frac * np.sqrt(np.diag(np.linalg.inv(rows[:, inside].T @ rows[:, inside])))
    reach = float(student.ppf((1 + INTERVAL_FRAC) / 2, n_left)) * spread
    return Fit(
        coefficients=tuple(
            Coefficient(term=term, value=float(value), low=float(low), high=float(high))
            for term, value, low, high in zip(
                TERMS, found / size, (found - reach) / size, (found + reach) / size, strict=True
            )
        ),
        error_frac=error_frac,
        residuals=tuple(map(float, residuals)),
    )


def seconds_of(one: Configuration) -> float:
    """The median of the visits that tell."""
    return statistics.median(visit.seconds for visit in one.telling)


def fit_grid(grid: Sequence[Configuration]) -> Fit:
    """The law of the recorded medians."""
    amounts = np.array([[one.work[term] for term in TERMS] for one in grid])
    return fit_law(amounts, np.array([seconds_of(one) for one in grid]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesAlone:
    """How much longer `n_bytes` more took, in as many copies: a median of `n_pairs`, and its interval."""

    n_bytes: int
    seconds: float
    low_s: float
    high_s: float
    n_pairs: int


def bytes_alone(narrow: Configuration, wide: Configuration) -> BytesAlone | None:
    """By the ratios within each round, of undisturbed visits; None where they are too few for an interval."""
    by_round = {visit.i_round: visit.seconds for visit in narrow.visits if visit.is_quiet}
    quiet = [visit for visit in wide.visits if visit.is_quiet and visit.i_round in by_round]
    if len(quiet) < 2:
        return None
    ratio = estimate_quantile([visit.seconds / by_round[visit.i_round] for visit in quiet], 0.5, INTERVAL_FRAC)
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return None
    narrow_s = statistics.median(by_round.values())
    seconds, low_s, high_s = ((one - 1) * narrow_s for one in (ratio.value, ratio.low, ratio.high))
    n_bytes = _streamed_bytes(wide) - _streamed_bytes(narrow)
    return BytesAlone(n_bytes=n_bytes, seconds=seconds, low_s=low_s, high_s=high_s, n_pairs=len(quiet))


def _streamed_bytes(one: Configuration) -> int:
    return sum(ubatch.weights_bytes + ubatch.cache_bytes for ubatch in one.by_rule)


# --- telling ---------------------------------------------------------------------------------------------------------


def tell_bytes(configurations: Sequence[Configuration]) -> int:
    """A line a configuration; returns how many differ from the rule."""
    print(f"{'streamed a prompt':<62} {'copies':>6} {'weights':>12} {'cache':>12}  log and rule")
    n_wrong = 0
    for one in configurations:
        n_wrong += bool(one.differences)
        verdict = "not seen yet" if one.by_log is None else "DIFFER" if one.differences else "agree"
        n_copies, weights_bytes, cache_bytes = _sums(one.by_rule)
        print(f"{one.name:<62} {n_copies:>6} {weights_bytes:>12} {cache_bytes:>12}  {verdict}")
        for difference in one.differences:
            print(f"  {difference}")
    return n_wrong


def _sums(ubatches: Sequence[Streamed]) -> tuple[int, int, int]:
    return (
        sum(one.n_copies for one in ubatches),
        sum(one.weights_bytes for one in ubatches),
        sum(one.cache_bytes for one in ubatches),
    )


def tell_times(grid: Sequence[Configuration], fit: Fit) -> None:
    print(f"\n{'seconds a prompt':<46} {'median':>8} {'law':>7}   each visit (* disturbed)")
    for one, residual in zip(grid, fit.residuals, strict=True):
        each = " ".join(f"{visit.seconds:.2f}{'' if visit.is_quiet else '*'}" for visit in one.visits)
        print(f"{one.name:<46} {seconds_of(one):>8.2f} {residual:>+7.1%}   {each}")
    print(f"\nthe law, wrong by {fit.error_frac:.1%} (standard deviation):")
    for coefficient in fit.coefficients:
        print(f"  {_told(coefficient)}")


def _told(one: Coefficient) -> str:
    zero = "excludes 0" if one.excludes_zero else "holds 0"
    if one.term not in _SHOWN:
        return f"{'each ubatch':<26} {one.value:.3g} s ({one.low:.3g} to {one.high:.3g}); {zero}"
    name, unit, text = _SHOWN[one.term]
    slowest, value, fastest = (
        1 / seconds / unit if seconds > 0 else math.inf for seconds in (one.high, one.value, one.low)
    )
    return f"{name:<26} {value:.3g} {text} ({slowest:.3g} to {fastest:.3g}); {zero}"


def tell_bytes_alone(session: Session, fit: Fit) -> None:
    """What the pairs say of a byte, and so what is left for a copy."""
    found = bytes_alone(*session.wide)
    if found is None:
        print("\nbytes alone: too few undisturbed pairs")
        return
    zero = "excludes 0" if found.low_s > 0 else "holds 0"
    print(
        f"\n{found.n_bytes / 1e9:.2f} GB more, in as many copies, take {found.seconds:.3f} s longer "
        f"({found.low_s:.3f} to {found.high_s:.3f}, {found.n_pairs} pairs); {zero}"
    )
    streamed = max(session.grid, key=_streamed_bytes)
    n_copies, n_bytes = _sums(streamed.by_rule)[0], _streamed_bytes(streamed)
    of_bytes_s, all_s = n_bytes * found.seconds / found.n_bytes, n_bytes * fit["streamed_bytes"].value
    print(
        f"so of {all_s:.2f} s that streaming takes in {streamed.name}, {of_bytes_s:.3f} s are for its bytes, "
        f"and {(all_s - of_bytes_s) / n_copies * 1e3:.2f} ms for each of its {n_copies} copies"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--measure", action="store_true", help="add to what is recorded until it is enough")
    options.add_argument("--visits", type=int, default=3, help="undisturbed, of each configuration")
    options.add_argument("--pairs", type=int, default=8)
    options.add_argument("--minutes", type=float, default=15, help="the most it may take, within a visit")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    if asked.measure:
        measure(DATA, asked.visits, asked.pairs, asked.minutes, random.Random(asked.seed))  # noqa: S311 - no secret
    if not DATA.exists():
        print(f"Nothing is recorded in {DATA}: --measure records it.")
        return
    session = read_session(DATA)
    print(f"{session.device}; {session.cpu}; {session.libraries}; {session.file}; {session.measured_at}\n")
    n_wrong = tell_bytes(session.configurations)
    if n_wrong:
        sys.exit(f"In {n_wrong} configurations the log and the rule differ.")
    if n_unseen := sum(not one.visits for one in session.grid):
        print(f"{n_unseen} of {len(session.grid)} are not measured yet: --measure goes on")
        return
    fit = fit_grid(session.grid)
    tell_times(session.grid, fit)
    tell_bytes_alone(session, fit)
    if n_disturbed := sum(not one.quiet for one in session.grid):
        print(f"{n_disturbed} of {len(session.grid)} were never measured undisturbed: measure where nothing else runs")
    if not fit["streamed_bytes"].excludes_zero:
        sys.exit("The interval of the streaming term holds 0.")


if __name__ == "__main__":
    main()

"""How far the law's word lies from published speeds: on rows it was fitted on, and on those it was not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from speed_cases import OLD_ENGINE, Case
from speed_fit import Known, fitted
from speed_guesses import GUESSES, Guess

from offloadtune.speed.constants import Constant
from offloadtune.speed.law import N_SIGMA_90, Law, calibrated, run_of
from offloadtune.speed.priors import prior_of
from offloadtune.speeds import Phase, Rig

N_SPLITS = 20


@dataclass(frozen=True, slots=True)
class Judged:
    """A row and its prediction: `off` is the logarithm of predicted by measured speed, `spread` what was expected."""

    case: Case
    off: float
    spread: float

    @property
    def error_frac(self) -> float:
        return abs(float(np.expm1(self.off)))

    @property
    def is_inside(self) -> bool:
        """Whether the measured speed lies in the 90 % interval."""
        return abs(self.off) <= N_SIGMA_90 * self.spread


@dataclass(frozen=True, slots=True)
class Tally:
    """Many rows in a line: how many, median and 90th percentile of errors, the side they lean to, those inside."""

    n: int
    median_frac: float
    p90_frac: float
    lean_frac: float
    inside_frac: float

    @classmethod
    def of(cls, rows: Sequence[Judged]) -> Tally:
        errors = [row.error_frac for row in rows]
        return cls(
            n=len(rows),
            median_frac=float(np.median(errors)),
            p90_frac=float(np.percentile(errors, 90)),
            lean_frac=float(np.expm1(np.median([row.off for row in rows]))),
            inside_frac=float(np.mean([row.is_inside for row in rows])),
        )


def tallied(rows: Sequence[Judged], key: Callable[[Case], tuple[str, ...]]) -> dict[tuple[str, ...], Tally]:
    """A tally for each key, in its order."""
    groups: dict[tuple[str, ...], list[Judged]] = {}
    for row in rows:
        groups.setdefault(key(row.case), []).append(row)
    return {name: Tally.of(groups[name]) for name in sorted(groups)}


# --- predictions ---------------------------------------------------------------------------------------------------


def judged(cases: Sequence[Case], constants: Mapping[str, Constant] | None = None) -> Iterator[Judged]:
    """Each case by the law of its rig with `constants`, the frozen ones if left out."""
    laws: dict[tuple[Phase, Rig, bool], Law] = {}
    for case in cases:
        key = (case.phase, case.rig, case.is_float)
        if key not in laws:
            laws[key] = prior_of(case.phase, case.rig, is_float=case.is_float, constants=constants)
        amounts = np.stack([part.amounts for part in case.parts], axis=1)
        tokens = np.array([part.weight * part.n_tokens for part in case.parts])
        tok_per_s = float((tokens / laws[key].seconds(amounts)).sum())
        spread = float(laws[key].spread_frac(amounts).mean())
        yield Judged(case, float(np.log(tok_per_s / case.tok_per_s)), spread)


def of_today(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.engine != OLD_ENGINE]


Half = tuple[set[str], dict[str, Constant]]
"""Authors, and the constants that their rows say."""


def halves(
    cases: Sequence[Case], known: Known, guesses: Mapping[str, Guess] = GUESSES, *, n_splits: int = N_SPLITS
) -> Iterator[Half]:
    """Both halves of the authors, `n_splits` times at random."""
    authors = sorted({case.author for case in cases})
    for seed in range(n_splits):
        shuffled = random.Random(seed).sample(authors, len(authors))  # noqa: S311 - no secret
        half = set(shuffled[: len(authors) // 2])
        for some in (half, set(authors) - half):
            yield some, fitted([case for case in cases if case.author in some], guesses, known)[0]


def by_others(cases: Sequence[Case], some: Sequence[Half]) -> Iterator[Judged]:
    """Every row by the constants of each half that its author is not in."""
    for authors, constants in some:
        yield from judged([case for case in cases if case.author not in authors], constants)


def without_each(cases: Sequence[Case], known: Known, key: Callable[[Case], str]) -> Iterator[Judged]:
    """The rows of each key, a card or an author, by constants of all others; llamafile alone is no card's word."""
    for name in sorted({key(case) for case in cases if case.engine != "llamafile"}):
        constants, _ = fitted([case for case in cases if key(case) != name], known=known)
        yield from judged([case for case in cases if key(case) == name], constants)


# --- sweeps, calibrated by two of their points ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A published series over layers on the card, and the two of its points that calibrate the law."""

    author: str
    gpu: str
    shape: str
    points: tuple[str, str]

    @property
    def name(self) -> str:
        return f"{self.gpu}, {self.shape}"


SWEEPS = (
    Sweep(author="GitHub tutorial", gpu="RTX 5050 Laptop", shape="Mistral-7B", points=("0", "all")),
    Sweep(author="inventivehq.com", gpu="RTX 5060 Ti 16GB", shape="Qwen2.5-14B", points=("0", "all")),
    Sweep(author="llama.cpp #255", gpu="RTX 4090", shape="Qwen2.5-32B", points=("0", "64")),
)
SWEEP_OF_2023 = Sweep(author="github.com/ggml-org", gpu="RTX 3090 Ti", shape="Llama-2-7B", points=("10", "all"))
NOISE_FRAC = 0.01
"""Of a published mean of several repetitions."""


def swept(cases: Sequence[Case], sweep: Sweep, phase: Phase, known: Known) -> list[tuple[Judged, Judged]]:
    """Each other point of a sweep before and after its two points are known; constants without the sweep's author."""
    others = [case for case in of_today(cases) if case.author != sweep.author and case.phase is phase]
    constants, _ = fitted(others, known=known)
    by_layers: dict[str, Case] = {}
    for case in cases:
        is_of_it = (case.author, case.gpu, case.phase) == (sweep.author, sweep.gpu, phase)
        if is_of_it and case.shape.startswith(sweep.shape) and "sweep" not in case.notes:
            by_layers.setdefault(case.n_gpu_layers, case)
    points = [by_layers.pop(name) for name in sweep.points if name in by_layers]
    if len(points) < len(sweep.points):
        return []
    prior = prior_of(phase, points[0].rig, is_float=points[0].is_float, constants=constants)
    runs = [
        run_of(prior, case.parts[0].amounts, case.parts[0].n_tokens / case.tok_per_s, NOISE_FRAC) for case in points
    ]
    posterior = calibrated(prior, runs)
    return [(_by(prior, case), _by(posterior, case)) for case in by_layers.values()]


def _by(law: Law, case: Case) -> Judged:
    part = case.parts[0]
    seconds = float(law.seconds(part.amounts[:, None])[0])
    spread = float(law.spread_frac(part.amounts[:, None])[0])
    return Judged(case, float(np.log(part.n_tokens / seconds / case.tok_per_s)), spread)

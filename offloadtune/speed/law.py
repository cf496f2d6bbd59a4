"""The law: seconds are a sum of terms, each an amount times a coefficient, and what is known of the coefficients.

    seconds = sum over terms of  amount [bytes, flop or count] x coefficient [seconds per unit]

A coefficient is physical: its inverse is a bandwidth or a rate of computing. A law is what is believed of all of them
together, their means and their covariance: first by a prior for machines of the kind, then by runs, which
`calibrated` adds. So one run teaches what it can, and what no run has touched stays as uncertain as it was.

`calibrated` minimises, over coefficients of at least 0 (non-negative least squares, scipy's nnls),

    sum over runs of ((predicted - measured) / (measured x noise))^2  +  d' C^-1 d

with C the prior's covariance as parts of its means, and d how far each coefficient is from its mean: theta / mean - 1
below it, log(theta / mean) above. Where d' C^-1 d is more than the runs' number warrants, the prior is wrong here (a
device that nobody knows), and C is widened until it is not, for all that a place does together: where reading weights
takes a hundred times as long as believed, so may reading the cache.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offloadtune.records import Basis
from offloadtune.speed.terms import Term
from offloadtune.speeds import Figure, Phase, Run

Floats = NDArray[np.float64]

N_SIGMA_90 = 1.6449
"""Half of a 90 % interval of a normal distribution, in standard deviations."""

CONTRADICTION_FRAC = 0.15
"""A run this far from what all runs together say means that the law does not hold here."""

_N_PRIOR_RUNS = 4
"""The prior's word on the law's own error counts as much as so many runs."""

_ENOUGH_TIMES = 3.0
"""Terms are known well enough when together they are no more uncertain than so many times the law itself."""

WIDEST_SPREAD = 3.0
"""An interval that ends a hundred times as far says all that there is to say."""

_TINY = 1e-12
_MOST_DOUBT, _N_DOUBTS = 100.0, 6
_TOGETHER_FRAC = 0.8
_N_STEPS_MOST = 50
_N_PIVOTS_MOST = 1000
_STEP = 10.0
"""A coefficient changes by no more than so many times in a step."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """What is believed of one phase's coefficients: `mean` (n_terms,) in seconds per unit, `covariance` (n_terms,)^2.

    `noise_frac` is the law's own error (standard deviation, as a part of the time) with all coefficients known.
    `calibrated_noise_frac` is what it is expected to be once runs of the machine itself are added. `runs` are those
    added so far.
    """

    phase: Phase
    terms: tuple[Term, ...]
    mean: Floats
    covariance: Floats
    noise_frac: float
    calibrated_noise_frac: float
    runs: tuple[Run, ...] = ()

    @property
    def basis(self) -> Basis:
        return Basis.CALIBRATED if self.runs else Basis.CATALOGUE

    def seconds(self, amounts: Floats) -> Floats:
        """Expected seconds of queries with `amounts` (n_terms, n_queries)."""
        return np.asarray(self.mean @ amounts)

    def spread_frac(self, amounts: Floats) -> Floats:
        """Standard deviation of the truth around `seconds`, as a part of it."""
        seconds = np.maximum(self.seconds(amounts), _TINY)
        root = np.ascontiguousarray(_root(self.covariance).T) @ amounts
        variance: Floats = np.einsum("ij,ij->j", root, root) / seconds**2
        return np.sqrt(variance + self.noise_frac**2)

    def interval(self, amounts: Floats) -> tuple[Floats, Floats, Floats]:
        """Seconds expected, and between which they lie in 90 of 100 cases; alike in ratio above and below."""
        spread = np.minimum(self.spread_frac(amounts), WIDEST_SPREAD)
        seconds, factor = self.seconds(amounts), np.exp(N_SIGMA_90 * spread)
        return seconds, seconds / factor, seconds * factor

    def figure(self, amounts: Floats, n_tokens: float) -> Figure:
        """Tokens a second of one query, shape (n_terms,), that makes `n_tokens`."""
        seconds, low, high = (float(part[0]) for part in self.interval(amounts[:, None]))
        return Figure(value=n_tokens / seconds, low=n_tokens / high, high=n_tokens / low, basis=self.basis)

    def shares(self, amounts: Floats) -> dict[Term, float]:
        """What part of the time of one query each of its terms takes."""
        parts = self.mean * amounts
        return {term: float(part / parts.sum()) for term, part in zip(self.terms, parts, strict=True) if part > 0}

    def least_known(self, amounts: Floats) -> Term | None:
        """The term that makes one query, shape (n_terms,), uncertain; None where what the runs showed is enough.

        It is one that no run had, or had enough of: a cache of which the runs filled little, say.
        """
        parts = amounts * (self.covariance @ amounts) / max(float(self.mean @ amounts), _TINY) ** 2
        is_enough = parts.sum() <= (_ENOUGH_TIMES * self.calibrated_noise_frac) ** 2
        return None if is_enough else self.terms[int(parts.argmax())]


def amounts_of_run(law: Law, run: Run) -> Floats:
    """The amounts of a run in the order of the law's terms; 0 for those it does not name."""
    by_name: Mapping[str, float] = dict(run.amounts)
    return np.array([by_name.get(term.name, 0.0) for term in law.terms])


def run_of(law: Law, amounts: Floats, seconds: float, noise_frac: float, label: str = "") -> Run:
    """A run with `amounts`, shape (n_terms,), by name."""
    named = tuple((term.name, float(one)) for term, one in zip(law.terms, amounts, strict=True) if one)
    return Run(phase=law.phase, amounts=named, seconds=seconds, noise_frac=noise_frac, label=label)


def calibrated(prior: Law, runs: Sequence[Run]) -> Law:
    """`prior` with what `runs` of its phase teach; `prior` itself where there are none."""
    runs = tuple(run for run in runs if run.phase is prior.phase and run.seconds > 0)
    if not runs:
        return prior
    rows = np.stack([amounts_of_run(prior, run) / run.seconds for run in runs])
    noise = np.array([math.hypot(prior.calibrated_noise_frac, run.noise_frac) for run in runs])
    weighted = rows / noise[:, None]
    doubt = _MOST_DOUBT
    for _ in range(_N_DOUBTS):
        mean, covariance = _solved(_doubted(prior, doubt), weighted, 1.0 / noise)
        doubt = max(1.0, (_N_PRIOR_RUNS + _strain(prior, mean)) / (_N_PRIOR_RUNS + len(runs)))
    residuals = weighted @ mean - 1.0 / noise
    n_learnt = float(np.einsum("ij,jk,ik->", weighted, covariance, weighted))  # of what the runs say, used up by now
    scale = (_N_PRIOR_RUNS + float(residuals @ residuals)) / (_N_PRIOR_RUNS + len(runs) - n_learnt)
    worst = max(scale, 1.0)
    return dataclasses.replace(
        prior,
        mean=mean,
        covariance=covariance * worst,
        noise_frac=prior.calibrated_noise_frac * math.sqrt(scale),
        runs=runs,
    )


def residuals_of(law: Law, runs: Sequence[Run]) -> Floats:
    """How far the law's word lies from each measured run, as a part of it: 0.1 is 10 % too slow."""
    return np.array([float(law.mean @ amounts_of_run(law, run)) / run.seconds - 1.0 for run in runs])


def contradiction(law: Law) -> str:
    """The sentence that says which of the law's own runs it cannot explain, "" where it explains them all."""
    if not law.runs:
        return ""
    residuals = residuals_of(law, law.runs)
    worst = int(np.abs(residuals).argmax())
    run, beyond = law.runs[worst], abs(residuals[worst])
    if beyond <= max(CONTRADICTION_FRAC, 3.0 * run.noise_frac):
        return ""
    return (
        f"The runs contradict each other: {run.label or law.phase.value} took {run.seconds:.3g} s, and the others "
        f"together say {run.seconds * (1 + residuals[worst]):.3g} s."
    )


def misses(law: Law, run: Run) -> bool:
    """Whether a run that had no say in the law lies outside the law's 90 % interval."""
    _, low, high = law.interval(amounts_of_run(law, run)[:, None])
    slack = math.exp(N_SIGMA_90 * run.noise_frac)
    return not low[0] / slack <= run.seconds <= high[0] * slack


def _solved(prior: Law, rows: Floats, ones: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance of the coefficients by runs (`rows` times them is `ones`) and prior together.

    Solved in coefficients relative to the prior's, so that all are of one size; where one is more than was believed it
    is the logarithm that counts: of a device that nobody knows it may be a hundred times as much. That makes it a
    problem to be solved in steps, each linear, from all coefficients being off alike.
    """
    from scipy.optimize import nnls  # noqa: PLC0415 - half a second to load, and most laws are never solved

    size = _sizes(prior)
    whitened = _whitening(prior)
    relative = np.full(len(size), float(np.median(ones / np.maximum(rows @ size, _TINY))))
    for _ in range(_N_STEPS_MOST):
        above = relative > 1
        slope = np.where(above, 1 / np.maximum(relative, 1), 1.0)
        target = whitened @ (slope * relative - _beyond(relative))
        design = np.vstack([rows * size, whitened * slope])
        try:
            found, _ = nnls(design, np.concatenate([ones, target]), maxiter=_N_PIVOTS_MOST)
        except RuntimeError:  # it goes in circles between coefficients that hardly matter
            break
        before, relative = relative, np.clip(found, relative / _STEP * above, np.maximum(relative, 1) * _STEP)
        if np.allclose(relative, before, rtol=1e-3, atol=1e-6):
            break
    covariance = np.linalg.inv(design.T @ design)  # a coefficient held at 0 stays as uncertain as if it were free
    return relative * size, covariance * np.outer(size, size)


def _doubted(prior: Law, doubt: float) -> Law:
    """`prior` believed less: what is unknown of a place is then mostly one thing, how fast it is altogether."""
    width = np.sqrt(np.diag(prior.covariance))
    places = np.array([term.place or term.kind for term in prior.terms])
    together = np.where(places[:, None] == places, _TOGETHER_FRAC, 0.0) + (1 - _TOGETHER_FRAC) * np.eye(len(width))
    covariance = prior.covariance + (doubt - 1) * together * np.outer(width, width)
    return dataclasses.replace(prior, covariance=covariance)


def _strain(prior: Law, mean: Floats) -> float:
    """How far coefficients are from the prior's, squared and in its standard deviations."""
    away = _whitening(prior) @ _beyond(mean / _sizes(prior))
    return float(away @ away)


def _beyond(relative: Floats) -> Floats:
    """How far coefficients are from what was believed, as parts of it."""
    return np.where(relative > 1, np.log(np.maximum(relative, 1)), relative - 1)


def _sizes(prior: Law) -> Floats:
    return np.maximum(prior.mean, _TINY * np.max(prior.mean))


def _whitening(prior: Law) -> Floats:
    size = _sizes(prior)
    return np.asarray(np.linalg.inv(_root(prior.covariance / np.outer(size, size))))


def _root(covariance: Floats) -> Floats:
    """The lower triangular root of a covariance that may have zeros on its diagonal."""
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    unit = np.where(size > 0, size, 1.0)
    correlation = covariance / np.outer(unit, unit)
    return unit[:, None] * np.linalg.cholesky(correlation + np.eye(len(size)) * 1e-9)

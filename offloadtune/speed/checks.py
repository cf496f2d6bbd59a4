"""What a law has learnt and how far it can be believed: its coefficients with their ranges, and runs held out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from offloadtune.speed.law import N_SIGMA_90, WIDEST_SPREAD, Floats, Law, amounts_of_run, calibrated, misses
from offloadtune.speed.terms import Term
from offloadtune.speeds import Coefficient, Run, RunCheck

_SHOWN_FRAC = 0.9
"""A coefficient whose uncertainty is still more than so much of what it was has not been shown."""


def checked(law: Law, run: Run) -> RunCheck:
    """A run against a law in which it has no say."""
    seconds, low, high = (float(part[0]) for part in law.interval(amounts_of_run(law, run)[:, None]))
    return RunCheck(
        phase=run.phase,
        label=run.label,
        measured_s=run.seconds,
        expected_s=seconds,
        low_s=low,
        high_s=high,
        is_miss=misses(law, run),
    )


def held_out(prior: Law, law: Law, asked: Collection[Run]) -> tuple[RunCheck, ...]:
    """Each of the runs asked about that is of the law's phase against what the law's others say together.

    Those that the law left out for contradicting the rest are among them; where it holds none at all there is nothing
    to be said.
    """
    if len(law.runs) < 2:
        return ()
    return tuple(
        checked(calibrated(prior, [other for other in law.runs if other.amounts != run.amounts]), run)
        for run in asked
        if run.phase is law.phase
    )


def coefficients_of(prior: Law, law: Law, asked: Floats, devices: Sequence[str]) -> tuple[Coefficient, ...]:
    """What `law` believes of the terms that any of the passages with amounts `asked` has, in their order.

    `devices` are the names of those of its rig.
    """
    return tuple(_coefficients(prior, law, asked, devices))


def _coefficients(prior: Law, law: Law, asked: Floats, devices: Sequence[str]) -> Iterator[Coefficient]:
    before, after = (np.sqrt(np.diag(one.covariance)) / np.maximum(one.mean, 1e-300) for one in (prior, law))
    for i in np.flatnonzero((asked > 0).any(axis=1)).tolist():
        mean, width = float(law.mean[i]), float(after[i])
        factor = math.exp(N_SIGMA_90 * min(width, WIDEST_SPREAD)) if mean > 0 else 1.0
        yield Coefficient(
            phase=law.phase,
            words=_words_of(law.terms[i], devices),
            unit=law.terms[i].unit,
            seconds=mean,
            low_s=mean / factor,
            high_s=mean * factor,
            is_shown=bool(law.runs) and (mean <= 0 or width < _SHOWN_FRAC * float(before[i])),
        )


def _words_of(term: Term, devices: Sequence[str]) -> str:
    where = {"": "", "host": ", host"} | {str(i): f", {name}" for i, name in enumerate(devices)}
    return f"{term.what}{where[term.place]}"

"""Foresight: what a sweep expects of each trial's speed, and whether that proves right."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator

import numpy as np

from offloadtune import search
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.records import Basis, Estimate, Expected, Outcome, Settings, TrialResult
from offloadtune.speed import N_SIGMA_90
from offloadtune.speed.flags import strange
from offloadtune.sweeps import Said, Teller

_N_MISSES = 3
_N_SIGMA_OUT = 3.0
_LEAST_OUT = math.log(1.25)
_NUMERICAL = (ArithmeticError, ValueError, np.linalg.LinAlgError)
_USUAL_SCATTER_FRAC = 0.05
_MISSES_FRAC = 1 / 3
"""Of ten trials one may lie outside its 90 % interval by chance; three, and a third of all, are the law's fault."""


class Foresight:
    """The speed law in a sweep: it foretells and learns, and where it is wrong too often that is said.

    The search goes by it all the same, corrected by what trials showed: a law that is wrong on this machine is still
    right about what changes little with each setting.
    """

    def __init__(self, speeds: SpeedMemory, listen: Teller) -> None:
        self._speeds, self._listen = speeds, listen
        self._n_foretold = self._n_missed = 0
        self.is_trusted = self.is_computable = True
        self._said: set[str] = set()
        self._say(speeds.words)

    def beside(self, space: search.Space) -> search.Space:
        """`space` with what is believed now of the speed of settings, unless that cannot be computed."""
        return dataclasses.replace(space, laws=self._speeds.laws if self.is_computable else None)

    def expected(self, space: search.Space, settings: Settings) -> Expected | None:
        """What the trial of `settings` should reach, whether it is heeded or not."""
        try:
            return search.expected(dataclasses.replace(space, laws=self._speeds.laws), settings)
        except _NUMERICAL:
            self._give_up()
            return None

    def learn(self, result: TrialResult) -> None:
        """Compare, say what cannot be, and add what the trial showed to what is kept."""
        if result.outcome is not Outcome.OK:
            return
        visits = search.measured(result.visits)
        for sentence in strange(result, visits):
            self._listen(Said(text=sentence))
        self._tally(result)
        if _is_out_of_law(result):
            return
        try:
            self._speeds.learn(result)
            self._speeds.laws(result.trial.settings)
        except _NUMERICAL:
            self._give_up()
        self._say(self._speeds.words)

    def _give_up(self) -> None:
        """A sweep does not end because what was to be foretold cannot be computed."""
        self.is_trusted = self.is_computable = False
        self._say(("What was measured before cannot be made a law of: only what is measured now decides.",))

    def _tally(self, result: TrialResult) -> None:
        slack = math.exp(N_SIGMA_90 * _scatter_frac(result))
        for foretold, measured in _beside(result):
            if foretold.basis is Basis.CALIBRATED:
                self._n_foretold += 1
                self._n_missed += not foretold.low / slack <= measured <= foretold.high * slack
        if self.is_trusted and self._n_missed >= max(_N_MISSES, _MISSES_FRAC * self._n_foretold):
            self.is_trusted = False
            missed = f"{self._n_missed} of {self._n_foretold} speeds lay outside what the law foretold"
            self._listen(Said(text=f"{missed}: from here what is measured counts for more than the law."))

    def _say(self, words: tuple[str, ...]) -> None:
        for sentence in words:
            if sentence not in self._said:
                self._said.add(sentence)
                self._listen(Said(text=sentence))


def _is_out_of_law(result: TrialResult) -> bool:
    """Whether it took so much longer than runs of this machine foretold that something else must have slowed it.

    Memory that spilled, a kernel that is slow for one size: a law that learnt from that would be wrong of all the rest.
    """
    return any(
        foretold.basis is Basis.CALIBRATED and _times_slower(foretold, measured, is_rate=is_rate) > 1.0
        for (foretold, measured), is_rate in zip(_beside(result), (False, True), strict=False)
    )


def _times_slower(foretold: Estimate, measured: float, *, is_rate: bool) -> float:
    """How much longer it took, beside what is too long to be believed."""
    log_slower = math.log(foretold.p50 / measured if is_rate else measured / foretold.p50)
    width = math.log(foretold.high / foretold.low) / 2 / N_SIGMA_90
    return log_slower / max(_N_SIGMA_OUT * width, _LEAST_OUT)


def _scatter_frac(result: TrialResult) -> float:
    """How far a measured median may lie from the truth: the scatter of its visits, a usual one of a single visit."""
    times = [visit.ttft_s for visit in search.measured(result.visits)]
    return _USUAL_SCATTER_FRAC if len(times) < 2 else statistics.stdev(times) / statistics.fmean(times)


def _beside(result: TrialResult) -> Iterator[tuple[Estimate, float]]:
    """What was foretold of a trial, and what its median visit took."""
    visits = search.measured(result.visits)
    if result.expected is not None and visits:
        yield result.expected.ttft_s, statistics.median(visit.ttft_s for visit in visits)
        yield result.expected.decode_tok_per_s, 1.0 / statistics.median(visit.token_s for visit in visits)

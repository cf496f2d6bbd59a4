"""Constants of the law from published speeds: non-linear least squares on the logarithm of each speed.

    log speed = log(prediction of the law) + effects of its author, card, engine and age + noise

Every constant has a value for all families and a deviation for each, drawn towards the guesses (a ridge). Effects are
drawn towards 0, so that an author of hundreds of rows counts as one voice, and a card of many as one card; they are
left out of what is frozen. Beyond some noises a row's pull stays the same (soft_l1's loss).

A coefficient is a product of powers of parameters, so the time of a passage is a sum of exponentials:

    t = sum over terms k of  amount_k unit_k exp(+-(theta_constant + theta_family) + theta_age)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from speed_cases import Case
from speed_guesses import GUESSES, Guess

from offloadtune.speed.constants import CONSTANTS, Constant
from offloadtune.speed.priors import beliefs_of
from offloadtune.speed.terms import terms_of
from offloadtune.speeds import Phase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NOISE = {Phase.DECODE: 0.04, Phase.PREFILL: 0.08}
_SOFT = 4.0
_N_STEPS = 60
_OFF = {
    "author": 0.08,
    "card": 0.06,
    "card prefill": 0.09,
    "host": 0.15,
    "host prefill": 0.4,
    "engine": 0.3,
    "age": 0.5,
}
"""How far effects lie from 0, in logarithms."""

_AGES = (
    ("no graphs", "2024-07", {"block"}),
    ("compute 2023", "2024-01", {"compute", "compute_float"}),
    ("attention 2023", "2024-01", {"plain_attention", "plain_cache"}),
)
"""What older builds were slower at: before when, and in which constants."""

_LAUNCHES = {"block", "ubatch_block"}
"""What a run bound by its CPU is slower at, as many of llamafile's are."""


class Problem:
    """Rows, and the parameters on which their predictions depend."""

    def __init__(self, cases: Sequence[Case], guesses: Mapping[str, Guess]) -> None:
        self.guesses = guesses
        self.index: dict[str, int] = {}
        self._centres: list[float] = []
        self._offs: list[float] = []
        entries = [entry for i, case in enumerate(cases) for entry in self._entries(i, case)]
        parts = [(i, part) for i, case in enumerate(cases) for part in case.parts]
        first = np.cumsum([0, *(len(case.parts) for case in cases)])
        self.row = np.array([i for i, _ in parts])
        self.tokens = np.array([part.weight * part.n_tokens for _, part in parts])
        self.part = np.array([first[i] + j for i, j, *_ in entries])
        self.seconds = np.array([seconds for _, _, seconds, _, _ in entries])
        self.sign = np.array([sign for *_, sign, _ in entries])
        self.parameters = np.full((len(entries), max(len(entry[4]) for entry in entries)), -1)
        for j, entry in enumerate(entries):
            self.parameters[j, : len(entry[4])] = entry[4]
        effects = [(i, j) for i, case in enumerate(cases) for j in self._effects(case)]
        self.effects = np.zeros((len(cases), len(self.index)))
        self.effects[tuple(np.array(effects).T)] = 1.0
        self.measured = np.log([case.tok_per_s for case in cases])
        self.noise = np.array([_NOISE[case.phase] for case in cases])
        self.centre, self.off = np.array(self._centres), np.array(self._offs)

    def _parameter(self, name: str, off: float, centre: float = 0.0) -> int:
        if name not in self.index:
            self.index[name] = len(self.index)
            self._centres.append(centre)
            self._offs.append(off)
        return self.index[name]

    def _entries(self, i: int, case: Case) -> Iterator[tuple[int, int, float, int, list[int]]]:
        """For each term of each part: row, part, seconds at a share of 1, and the coefficient's sign and parameters."""
        beliefs = {belief.term: belief for belief in beliefs_of(case.phase, case.rig, is_float=case.is_float)}
        for j, part in enumerate(case.parts):
            for term, amount in zip(terms_of(case.phase, len(case.rig.devices)), part.amounts, strict=True):
                if amount <= 0:
                    continue
                belief = beliefs[term]
                name, family, guess = belief.constant, belief.family, self.guesses[belief.constant]
                found = [self._parameter(name, guess.off, float(np.log(guess.value)))]
                if guess.spread and family:
                    centre = float(np.log(guess.by_family.get(family, guess.value) / guess.value))
                    found.append(self._parameter(f"{name}/{family}", guess.spread, centre))
                found += [self._parameter(age, _OFF["age"]) for age in _ages(case, name)]
                yield i, j, float(amount * belief.unit), -1 if guess.is_share else 1, found

    def _effects(self, case: Case) -> Iterator[int]:
        """Parameters that all of a row's speed depends on."""
        phase = case.phase.value
        yield self._parameter(f"author {phase} {case.author}", _OFF["author"])
        if case.kind == "full":
            yield self._parameter(f"card {phase} {case.gpu}", _OFF.get(f"card {phase}", _OFF["card"]))
        elif case.kind == "cpu" and (case.phase is Phase.DECODE or not case.rig.devices):
            yield self._parameter(f"host {phase} {case.gpu} {case.rig.host}", _OFF.get(f"host {phase}", _OFF["host"]))
        where = "full" if case.kind == "full" else "offload"
        if case.engine:
            yield self._parameter(f"engine {phase} {where} {case.engine} {case.maker}", _OFF["engine"])
        elif where == "full" and case.maker == "nvidia" and case.rig.devices[0].name.startswith("Vulkan"):
            yield self._parameter(f"engine {phase} Vulkan", _OFF["engine"])

    def predicted(self, theta: Floats) -> tuple[Floats, Floats]:
        """The logarithm of each row's speed by the law, and seconds of each entry."""
        seconds = self.seconds * np.exp(self.sign * np.append(theta, 0.0)[self.parameters].sum(axis=1))
        time = np.bincount(self.part, weights=seconds)
        return np.log(np.bincount(self.row, weights=self.tokens / time)), seconds

    def slopes(self, log_speed: Floats, seconds: Floats) -> Floats:
        """The derivative of `predicted` by each parameter."""
        time, n = np.bincount(self.part, weights=seconds), len(self.index) + 1
        speed = self.tokens / time / np.exp(log_speed)[self.row]
        share = -self.sign * seconds / time[self.part] * speed[self.part]
        found = np.zeros(len(log_speed) * n)
        for column in self.parameters.T:  # -1 of entries with fewer is the last column, which is dropped
            where = self.row[self.part] * n + column % n
            found += np.bincount(where, weights=share, minlength=len(found))
        return found.reshape(len(log_speed), n)[:, :-1]

    def misses(self, log_speed: Floats, theta: Floats) -> Floats:
        return np.asarray((log_speed + self.effects @ theta - self.measured) / self.noise)

    def loss(self, theta: Floats) -> float:
        misses = self.misses(self.predicted(theta)[0], theta)
        rows = _SOFT * (np.sqrt(1 + misses**2 / _SOFT) - 1).sum()
        return float(rows + (((theta - self.centre) / self.off) ** 2).sum() / 2)

    def solve(self, start: Floats) -> Floats:
        """Parameters of least loss from `start` on: Gauss's and Newton's steps, shortened while they do not help."""
        theta, loss, damping = start, self.loss(start), 1e-3
        for _ in range(_N_STEPS):
            log_speed, seconds = self.predicted(theta)
            misses = self.misses(log_speed, theta)
            design = (self.slopes(log_speed, seconds) + self.effects) / self.noise[:, None]
            pull = 1.0 / np.sqrt(1.0 + misses**2 / _SOFT)
            downhill = design.T @ (pull * misses) + (theta - self.centre) / self.off**2
            curvature = design.T @ (pull[:, None] * design) + np.diag(1.0 / self.off**2)
            while (tried := theta - _step(curvature, downhill, damping)) is not None and self.loss(tried) > loss:
                damping *= 10.0
                if damping > 1e6:
                    return theta
            gained, theta = loss - self.loss(tried), tried
            loss, damping = loss - gained, damping / 10.0
            if gained < 1e-4:
                break
        return theta


def _step(curvature: Floats, downhill: Floats, damping: float) -> Floats:
    return np.asarray(np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill))


def _ages(case: Case, constant: str) -> Iterator[str]:
    if case.engine == "llamafile" and constant in _LAUNCHES:
        yield f"llamafile {constant}"
    for age, until, constants in _AGES:
        if not case.engine and case.date < until and constant in constants:
            yield age


Known = dict[str, float]
"""Parameters by name: where a fit on part of the rows starts from, to be quick."""


def fitted(
    cases: Sequence[Case], guesses: Mapping[str, Guess] = GUESSES, known: Known | None = None
) -> tuple[dict[str, Constant], Known]:
    """Constants by the speeds of `cases`, with the widths of the frozen ones, and all parameters by name."""
    constants: dict[str, Constant] = {}
    found: Known = {}
    for phase in Phase:
        rows = [case for case in cases if case.phase is phase]
        if rows:
            problem = Problem(rows, guesses)
            start = [(known or {}).get(name, problem.centre[i]) for name, i in problem.index.items()]
            found |= dict(zip(problem.index, problem.solve(np.array(start)).tolist(), strict=True))
    for name, guess in guesses.items():
        value = float(np.exp(found[name])) if name in found else guess.value
        families = {family: value * one / guess.value for family, one in guess.by_family.items()}
        for parameter, deviation in found.items():
            if parameter.startswith(f"{name}/"):
                families[parameter.partition("/")[2]] = value * float(np.exp(deviation))
        constants[name] = dataclasses.replace(CONSTANTS[name], value=value, by_family=families)
    return constants, found

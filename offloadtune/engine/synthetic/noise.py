"""How visits of the same settings differ: from one to the next, from load to load, and slowly with time.

By records of real machines: one visit differs from the next by 1.0 %, and a session drifted by 4.1 % in 38 s (40 pairs
of a small model with itself, two cores, nothing else running); loads of one file on one card differ by 1 to 3 %. On a
shared machine some visits in a hundred are held up by what else runs, by a tenth or more (benchmarks/data,
visit_noise.csv). Prompts and tokens of one visit are slow together: their logs correlate by 0.8 to 0.9 there.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations as parts of the time; `stall_frac` of visits take longer by `stall_size_frac` on average.

    `recorded` are log times of prompt and token of neighbouring real visits, about 0: where there are any they are
    played from a place by chance instead of what is drawn for visits and drift.
    """

    visit_frac: float = 0.007
    load_frac: float = 0.02
    drift_frac: float = 0.03
    drift_s: float = 60.0
    stall_frac: float = 0.03
    stall_size_frac: float = 0.10
    together: float = 0.85
    recorded: tuple[tuple[float, float], ...] = ()

    @classmethod
    def none(cls) -> Noise:
        """Every visit takes its true time."""
        return cls(visit_frac=0.0, load_frac=0.0, drift_frac=0.0, stall_frac=0.0)


class NoiseSource:
    """Draws factors of time; the same seed and the same questions give the same ones."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self._noise, self._chance = noise, random.Random(seed)  # noqa: S311 - no secret
        self._load = (0.0, 0.0)
        self._drift, self._drift_at_s = self._chance.gauss(0.0, noise.drift_frac), 0.0
        self._i_recorded = self._chance.randrange(len(noise.recorded)) if noise.recorded else 0

    def loaded(self) -> None:
        """The file was loaded anew: its pages lie elsewhere."""
        width = self._noise.load_frac
        both = self._chance.gauss(0.0, width)
        self._load = tuple(self._part(both, width) for _ in range(2))  # type: ignore[assignment]

    def visit(self, at_s: float) -> tuple[float, float]:
        """Factors of a visit's prompt and of its tokens."""
        prompt, token = self._recorded() if self._noise.recorded else self._drawn(at_s)
        return math.exp(prompt + self._load[0]), math.exp(token + self._load[1])

    def step(self) -> float:
        """Factor of one token within its visit."""
        return math.exp(self._chance.gauss(0.0, self._noise.visit_frac))

    def _recorded(self) -> tuple[float, float]:
        found = self._noise.recorded[self._i_recorded % len(self._noise.recorded)]
        self._i_recorded += 1
        return found

    def _drawn(self, at_s: float) -> tuple[float, float]:
        noise, drift = self._noise, self._drifted(at_s)
        stall = self._chance.expovariate(1.0) * noise.stall_size_frac
        both = self._chance.gauss(0.0, noise.visit_frac) + stall * (self._chance.random() < noise.stall_frac)
        return drift + self._part(both, noise.visit_frac), drift + self._part(both, noise.visit_frac)

    def _part(self, both: float, width: float) -> float:
        """What is shared by prompt and tokens, with something of its own, as wide as before."""
        share = self._noise.together
        return math.sqrt(share) * both + math.sqrt(1 - share) * self._chance.gauss(0.0, width)

    def _drifted(self, at_s: float) -> float:
        """An Ornstein-Uhlenbeck process: it wanders, and forgets within `drift_s`."""
        kept = math.exp(-max(at_s - self._drift_at_s, 0.0) / self._noise.drift_s)
        own = self._noise.drift_frac * math.sqrt(1 - kept**2)
        self._drift, self._drift_at_s = self._drift * kept + self._chance.gauss(0.0, own), at_s
        return self._drift

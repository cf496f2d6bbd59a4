"""What would help most: the same turn with more of a machine, or with less to read, and how sure the law is of it.

A turn reads a prompt and writes N_GEN tokens. What a change brings is a ratio of two times of one law, whose errors
are mostly shared: with amounts a before and b after, seconds s = theta a and t = theta b, C the covariance of theta,

    variance of log(s / t)  =  (a/s - b/t)' C (a/s - b/t)  +  noise^2

A gain that is not beyond the half of its 90 % interval is noise, and none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from offloadtune.records import GgufFacts, Settings
from offloadtune.speed.law import N_SIGMA_90, Law
from offloadtune.speed.predicting import N_PROMPT_USUAL, Laws, amounts_for
from offloadtune.speed.terms import Floats
from offloadtune.speeds import Gain, Phase

N_GEN = 256
"""Tokens that a turn writes."""

BITS_OF_QUANTS = {
    "Q8_0": 8.5,
    "Q6_K": 6.6,
    "Q5_K_M": 5.7,
    "Q4_K_M": 4.9,
    "Q3_K_M": 4.0,
    "Q2_K": 3.35,
}
"""Quantisations that most makers publish, and bits a weight of a whole file of 8 billion."""

_SMALLER_FRAC = 0.9
"""The next one down has at most so many of the bits."""

_HOST_BYTES = {"host.weights", "host.cache", "host.plain_cache"}
_COPIED_WEIGHTS = {"link_pinned", "link_pageable"}
_LINK_BYTES = {"link"} | _COPIED_WEIGHTS


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Amounts of a prompt and of one step, each (n_terms,), by the laws they belong to."""

    laws: Laws
    prompt: Floats
    step: Floats

    @property
    def seconds(self) -> float:
        return float(self.laws.prefill.mean @ self.prompt + N_GEN * (self.laws.decode.mean @ self.step))

    def with_faster_memory(self, ratio: float) -> Turn:
        """Where main memory moves `ratio` times as much."""
        return self._scaled(_HOST_BYTES, 1.0 / ratio)

    def with_faster_link(self, ratio: float) -> Turn:
        """Where the link to the first device moves `ratio` times as much."""
        return self._scaled(_LINK_BYTES, 1.0 / ratio)

    def with_smaller_weights(self, ratio: float, laws: Laws) -> Turn:
        """Where weights take `ratio` of their bytes, by the laws of such weights."""
        names = {term.name for law in (self.laws.decode, self.laws.prefill) for term in law.terms}
        weights = {name for name in names if name.endswith(".weights")}
        return dataclasses.replace(self._scaled(weights | _COPIED_WEIGHTS, ratio), laws=laws)

    def _scaled(self, names: Collection[str], factor: float) -> Turn:
        prompt, step = (
            amounts * np.array([factor if term.name in names else 1.0 for term in law.terms])
            for law, amounts in ((self.laws.prefill, self.prompt), (self.laws.decode, self.step))
        )
        return Turn(laws=self.laws, prompt=prompt, step=step)


def turn_of(facts: GgufFacts, settings: Settings, laws: Laws, *, n_prompt: int | None = None, depth: int = 0) -> Turn:
    """The turn of `settings`, its prompt and depth as in `predict`."""
    n_read, decode_depth = n_prompt or N_PROMPT_USUAL, depth + (n_prompt or 0)
    prompt = amounts_for(Phase.PREFILL, facts, (settings,), laws.rig, n_prompt=n_read, depth=depth)
    step = amounts_for(Phase.DECODE, facts, (settings,), laws.rig, n_prompt=1, depth=decode_depth)
    return Turn(laws=laws, prompt=prompt[:, 0], step=step[:, 0])


def gain_of(what: str, before: Turn, after: Turn) -> Gain | None:
    """What the change called `what` brings, None where that is nothing or within the noise in both phases."""
    prompt = _log_ratio(before.laws.prefill, before.prompt, after.laws.prefill, after.prompt)
    step = _log_ratio(before.laws.decode, before.step, after.laws.decode, after.step)
    if after.seconds >= before.seconds or not (_is_sure(*prompt) or _is_sure(*step)):
        return None
    return Gain(what=what, decode_frac=math.expm1(step[0]), ttft_frac=-math.expm1(-prompt[0]))


def best_first(before: Turn, found: Iterable[tuple[Gain | None, Turn]]) -> tuple[Gain, ...]:
    """The gains there are, by how much of a turn each saves."""
    known = [(after.seconds / before.seconds, gain) for gain, after in found if gain is not None]
    return tuple(gain for _, gain in sorted(known, key=lambda one: one[0]))


def next_quant_down(name: str, bits_per_weight: float) -> tuple[str, float] | None:
    """The next of the usual quantisations below one, and its bytes as a part of the other's; None where there is none.

    Of a usual one it is the next by name, however large its embeddings are; else the first that is clearly smaller.
    """
    now = BITS_OF_QUANTS.get(name, _SMALLER_FRAC * bits_per_weight)
    lower = next((one for one, bits in BITS_OF_QUANTS.items() if bits < now), None)
    if lower is None or not bits_per_weight:
        return None
    return lower, BITS_OF_QUANTS[lower] / BITS_OF_QUANTS.get(name, bits_per_weight)


def _log_ratio(law: Law, before: Floats, later: Law, after: Floats) -> tuple[float, float]:
    """Logarithm of how many times faster it gets, and its standard deviation."""
    seconds, seconds_after = float(law.mean @ before), float(later.mean @ after)
    ratio = math.log(seconds / seconds_after)
    if later is not law:  # of other weights: nothing is shared
        apart = [float(one.spread_frac(amounts[:, None])[0]) for one, amounts in ((law, before), (later, after))]
        return ratio, math.hypot(*apart)
    lean = before / seconds - after / seconds_after
    return ratio, math.sqrt(float(lean @ law.covariance @ lean) + law.noise_frac**2)


def _is_sure(log_ratio: float, sigma: float) -> bool:
    return log_ratio > N_SIGMA_90 * sigma

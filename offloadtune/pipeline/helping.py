"""Helping: what more of a machine, or smaller weights, would bring to a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint import COMPUTE_BAND_FRAC, Footprints, fits, is_mapped
from offloadtune.pipeline.expecting import LawsFor, at_work, uses_host
from offloadtune.pipeline.questions import Ints, Question
from offloadtune.plans import PlanRequest
from offloadtune.records import GgufFacts
from offloadtune.speed import Laws, Turn, best_first, gain_of, next_quant_down, turn_of
from offloadtune.speeds import Gain
from offloadtune.units import GIB, format_bytes, format_bytes_per_s, format_count

_STEP_BYTES = 2 * GIB
"""Device memory is added in such steps, or all that is lacking where that is not twice as much."""

_RAM_STEP_BYTES_PER_S = 20e9
_QUANTISED = "Q4_K"
"""Stands for any type that is not plain numbers."""


def gains_of(question: Question, request: PlanRequest, laws_for: LawsFor) -> tuple[Gain, ...]:
    """What would help most, best first; only what the law is sure of. Layers that fit for nothing stand alone."""
    asked = _Asked(question=question, request=request, laws=laws_for(question.facts))
    before = asked.turn_of(question.settings.n_gpu_layers)
    ladder = _Ladder.of(question) if question.place.room.is_known else None
    if ladder and (most := ladder.most()) > question.settings.n_gpu_layers:
        after = asked.turn_of(most)
        return best_first(before, [(gain_of(f"n_gpu_layers={most}, which fits", before, after), after)])
    found = [*_more_memory(asked, ladder), *_faster_parts(asked, before), *_smaller_weights(asked, ladder, laws_for)]
    return best_first(before, ((gain_of(what, before, after), after) for what, after in found))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A question with the laws that answer it."""

    question: Question
    request: PlanRequest
    laws: Laws

    def turn_of(self, n_gpu_layers: int) -> Turn:
        question, request = self.question.with_layers(n_gpu_layers), self.request
        settings = at_work(question.settings, self.laws.rig, request)
        return turn_of(question.facts, settings, self.laws, n_prompt=request.n_prompt or None, depth=request.depth)


@dataclass(frozen=True, kw_only=True)
class _Ladder:
    """What each n_gpu_layers takes of devices whose size is known."""

    question: Question
    layers: Ints
    footprints: Footprints

    @classmethod
    def of(cls, question: Question) -> _Ladder:
        layers = np.arange(question.facts.n_layer + 2)
        footprints = question.footprints(None, layers, np.full_like(layers, question.settings.n_ctx))
        return cls(question=question, layers=layers, footprints=footprints)

    def most(self, weights_ratio: float = 1.0) -> int:
        """The most layers that fit, with weights of `weights_ratio` of their bytes."""
        found = dataclasses.replace(
            self.footprints,
            weights_bytes=(self.footprints.weights_bytes * weights_ratio).astype(np.int64),
            host_weights_bytes=(self.footprints.host_weights_bytes * weights_ratio).astype(np.int64),
        )
        ok = fits(found, self.question.place.room, is_mapped=is_mapped(self.question.settings))
        return int(self.layers[ok].max(initial=0))

    def more(self) -> tuple[int, int] | None:
        """The layers that a little more device memory would hold, and how much more that is; None where all fit."""
        room, n_now = self.question.place.room, self.question.settings.n_gpu_layers
        if n_now >= self.layers[-1]:
            return None
        needed = self.footprints.device_bytes + np.ceil(self.footprints.compute_bytes * COMPUTE_BAND_FRAC)
        beside = np.array(room.runtime_bytes) + np.array(room.margin_bytes) - np.array(room.free_bytes, dtype=np.int64)
        short = np.maximum(needed + beside[:, None], 0)[:, n_now + 1 :]
        lacking = short.max(axis=0) * len(room.names)  # devices of one size
        within = np.flatnonzero(lacking <= (_STEP_BYTES if lacking[-1] > 2 * _STEP_BYTES else lacking[-1]))
        i = int(within[-1]) if within.size else 0
        return (n_now + 1 + i, math.ceil(lacking[i])) if lacking[i] > 0 else None


def _more_memory(asked: _Asked, ladder: _Ladder | None) -> Iterator[tuple[str, Turn]]:
    more = ladder.more() if ladder else None
    if more:
        n_layers, n_bytes = more
        added = format_count(n_layers - asked.question.settings.n_gpu_layers, "more layer")
        yield f"the next {format_bytes(n_bytes)} of device memory ({added})", asked.turn_of(n_layers)


def _faster_parts(asked: _Asked, before: Turn) -> Iterator[tuple[str, Turn]]:
    rig = asked.laws.rig
    memory = rig.host.peak_bytes_per_s or rig.host.read_bytes_per_s
    if memory and uses_host(asked.question):
        faster = memory + _RAM_STEP_BYTES_PER_S
        what = f"main memory of {format_bytes_per_s(faster)} instead of {format_bytes_per_s(memory)}"
        yield what, before.with_faster_memory(faster / memory)
    link = rig.devices[0].link_bytes_per_s if rig.devices else None
    if link:
        speeds = f"{format_bytes_per_s(2 * link)} instead of {format_bytes_per_s(link)}"
        what = f"a link of {speeds} to the device (twice the lanes, or a generation more)"
        yield what, before.with_faster_link(2.0)


def _smaller_weights(asked: _Asked, ladder: _Ladder | None, laws_for: LawsFor) -> Iterator[tuple[str, Turn]]:
    """The next quantisation down, with the layers that then fit; its bytes are these in the ratio of usual files."""
    facts, n_layers = asked.question.facts, asked.question.settings.n_gpu_layers
    lower = next_quant_down(facts.quantisation, 8 * facts.tensor_bytes / max(facts.n_params, 1))
    if lower is None:
        return
    quant, ratio = lower
    most = max(ladder.most(ratio), n_layers) if ladder else n_layers
    added = f", with {format_count(most - n_layers, 'more layer')}" if most > n_layers else ""
    what = f"other weights, {quant} instead of {facts.quantisation}{added}"
    yield what, asked.turn_of(most).with_smaller_weights(ratio, laws_for(_quantised(facts)))


def _quantised(facts: GgufFacts) -> GgufFacts:
    """A file like this one, of quantised weights."""
    return dataclasses.replace(facts, type_bytes=((_QUANTISED, facts.tensor_bytes),))

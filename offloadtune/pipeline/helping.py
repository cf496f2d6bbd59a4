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
from offloadtune.records import GgufFacts, Settings
from offloadtune.speed import Laws, Turn, best_first, gain_of, is_float_file, next_quant_down, turn_of
from offloadtune.speeds import Gain
from offloadtune.units import GIB, format_bytes, format_bytes_per_s, format_count

_STEP_BYTES = 2 * GIB
"""Device memory is added in such steps, or all that is lacking where that is not twice as much."""

_RAM_STEP_BYTES_PER_S = 20e9
_QUANTISED = "Q4_K"
"""Stands for any type that is not plain numbers."""


def gains_of(question: Question, request: PlanRequest, laws_for: LawsFor) -> tuple[Gain, ...]:
    """What would help most, best first; only what the law is sure of. What fits for nothing stands alone."""
    asked = _Asked(question=question, request=request, laws=laws_for(question.facts))
    before, ladder = asked.turn_of(question.settings), _Ladder.of(question)
    if ladder and (most := ladder.most()) > ladder.i_now:
        rung = ladder.settings_at(most)
        after, what = asked.turn_of(rung), f"{ladder.name}={getattr(rung, ladder.name)}, which fits"
        return best_first(before, [(gain_of(what, before, after), after)])
    found = [*_more_memory(asked, ladder), *_faster_parts(asked, before), *_smaller_weights(asked, ladder, laws_for)]
    return best_first(before, ((gain_of(what, before, after), after) for what, after in found))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A question with the laws that answer it."""

    question: Question
    request: PlanRequest
    laws: Laws

    def turn_of(self, settings: Settings) -> Turn:
        request = self.request
        working = at_work(settings, self.laws.rig, request)
        return turn_of(self.question.facts, working, self.laws, n_prompt=request.n_prompt, depth=request.depth)


@dataclass(frozen=True, kw_only=True)
class _Ladder:
    """What devices of known size take, rung by rung: with more layers, or with the experts of more blocks.

    `rungs` are the values of the setting called `name`, and `i_now` is where the question stands.
    """

    question: Question
    name: str
    rungs: Ints
    i_now: int
    footprints: Footprints

    @classmethod
    def of(cls, question: Question) -> _Ladder | None:
        """None where no size is known, or all is on the devices."""
        facts, settings = question.facts, question.settings
        if not question.place.room.is_known:
            return None
        if settings.n_gpu_layers <= facts.n_layer:
            name, rungs, i_now = "n_gpu_layers", np.arange(facts.n_layer + 2), settings.n_gpu_layers
        elif settings.n_cpu_moe and facts.n_expert:
            name, rungs, i_now = "n_cpu_moe", np.arange(settings.n_cpu_moe, -1, -1), 0
        else:
            return None
        footprints = question.footprints(None, np.full_like(rungs, settings.n_ctx), **{name: rungs})
        return cls(question=question, name=name, rungs=rungs, i_now=i_now, footprints=footprints)

    def settings_at(self, i: int) -> Settings:
        return self.question.settings.replace(**{self.name: int(self.rungs[i])})

    def words_to(self, i: int) -> str:
        """What rung `i` has on the devices that the question has not."""
        n = i - self.i_now
        of_experts = f"the experts of {format_count(n, 'more block')}"
        return format_count(n, "more layer") if self.name == "n_gpu_layers" else of_experts

    def most(self, weights_ratio: float = 1.0) -> int:
        """The highest rung that fits, with weights of `weights_ratio` of their bytes; where we stand for none."""
        found = dataclasses.replace(
            self.footprints,
            weights_bytes=(self.footprints.weights_bytes * weights_ratio).astype(np.int64),
            host_weights_bytes=(self.footprints.host_weights_bytes * weights_ratio).astype(np.int64),
        )
        ok = fits(found, self.question.place.room, is_mapped=is_mapped(self.question.settings))
        return max(int(np.flatnonzero(ok).max(initial=0)), self.i_now)

    def more(self) -> tuple[int, int]:
        """A rung above ours that a little more device memory would hold, and how much more that is."""
        room = self.question.place.room
        needed = self.footprints.device_bytes + np.ceil(self.footprints.compute_bytes * COMPUTE_BAND_FRAC)
        beside = np.array(room.runtime_bytes) + np.array(room.margin_bytes) - np.array(room.free_bytes, dtype=np.int64)
        short = np.maximum(needed + beside[:, None], 0)[:, self.i_now + 1 :]
        lacking = short.max(axis=0) * len(room.names)  # devices of one size
        within = np.flatnonzero(lacking <= (_STEP_BYTES if lacking[-1] > 2 * _STEP_BYTES else lacking[-1]))
        i = int(within[-1]) if within.size else 0
        return self.i_now + 1 + i, math.ceil(lacking[i])


def _more_memory(asked: _Asked, ladder: _Ladder | None) -> Iterator[tuple[str, Turn]]:
    if ladder:
        i, n_bytes = ladder.more()
        what = f"the next {format_bytes(n_bytes)} of device memory ({ladder.words_to(i)})"
        yield what, asked.turn_of(ladder.settings_at(i))


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
    """The next quantisation down, with what then fits; its bytes are these in the ratio of usual files."""
    facts, settings, added = asked.question.facts, asked.question.settings, ""
    lower = next_quant_down(facts.quantisation, 8 * facts.tensor_bytes / max(facts.n_params, 1))
    if lower is None:
        return
    quant, ratio = lower
    if ladder and (most := ladder.most(ratio)) > ladder.i_now:
        settings, added = ladder.settings_at(most), f", with {ladder.words_to(most)}"
    what = f"other weights, {quant} instead of {facts.quantisation}{added}"
    laws = laws_for(_quantised(facts)) if is_float_file(facts) else asked.laws
    yield what, asked.turn_of(settings).with_smaller_weights(ratio, laws)


def _quantised(facts: GgufFacts) -> GgufFacts:
    """A file like this one, of quantised weights."""
    return dataclasses.replace(facts, type_bytes=((_QUANTISED, facts.tensor_bytes),))

"""Predictions: settings and a prompt to seconds, by the laws of a rig; one at a time or a million.

time to first token = seconds of the prompt        tokens a second = sequences / seconds of a step
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint import Grid, is_mapped
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import GgufFacts, Settings
from offloadtune.speed.blocks import Floats
from offloadtune.speed.bounds import least_seconds
from offloadtune.speed.law import Law, calibrated, contradiction
from offloadtune.speed.priors import prior_of
from offloadtune.speed.terms import N_AT_ONCE, Placed, Work, amounts_of
from offloadtune.speeds import Figure, HostRates, Phase, Prediction, Rig, Run

N_PROMPT_USUAL = 512
"""Tokens of the prompt that a prediction is for, where none was named."""

_FLOAT_TYPES = {"F32", "F16", "BF16"}


@dataclass(frozen=True, kw_only=True)
class Laws:
    """What is believed of a rig in both phases, for files of one kind of weights."""

    rig: Rig
    decode: Law
    prefill: Law
    is_float: bool

    def of(self, phase: Phase) -> Law:
        return self.decode if phase is Phase.DECODE else self.prefill

    def with_runs(self, runs: Sequence[Run]) -> Laws:
        """These laws with what more runs teach."""
        prior = laws_of_kind(self.rig, is_float=self.is_float)
        return dataclasses.replace(
            self,
            decode=calibrated(prior.decode, [*self.decode.runs, *runs]),
            prefill=calibrated(prior.prefill, [*self.prefill.runs, *runs]),
        )


def laws_of(rig: Rig, facts: GgufFacts) -> Laws:
    """What is believed of `rig` before any run, for weights like those of `facts`."""
    return laws_of_kind(rig, is_float=is_float_file(facts))


def laws_of_kind(rig: Rig, *, is_float: bool) -> Laws:
    """The laws before any run, for plain or for quantised weights."""
    decode, prefill = (prior_of(phase, rig, is_float=is_float) for phase in (Phase.DECODE, Phase.PREFILL))
    return Laws(rig=rig, decode=decode, prefill=prefill, is_float=is_float)


def is_float_file(facts: GgufFacts) -> bool:
    """Whether most of a file's bytes are plain numbers, not quantised ones."""
    return bool(facts.type_bytes) and facts.type_bytes[0][0].upper() in _FLOAT_TYPES


def work_of(phase: Phase, settings: Sequence[Settings], host: HostRates, *, n_prompt: int, depth: int) -> Work:
    """The same prompt for each of `settings`, whose threads count where the host's cores are known.

    With fewer threads than cores computing takes longer in proportion, and reading once there are fewer than half.
    A token of one sequence has `n_threads` to it, all else `n_threads_batch` (llama-context.cpp).
    """
    is_single = [phase is Phase.DECODE and one.n_seq_max == 1 for one in settings]
    threads = np.array(
        [one.n_threads if single else one.n_threads_batch for one, single in zip(settings, is_single, strict=True)],
        dtype=np.float64,
    )
    n_seq = np.array([one.n_seq_max for one in settings])
    is_pinned = np.array([not is_mapped(one) for one in settings])
    return work_with_threads(threads, host, n_prompt=n_prompt, depth=depth, n_seq=n_seq, is_pinned=is_pinned)


def work_with_threads(  # noqa: PLR0913 - all that a question consists of
    n_threads: Floats | Ints,
    host: HostRates,
    *,
    n_prompt: int,
    depth: int,
    n_seq: Ints | int = 1,
    is_pinned: Bools | bool = False,
) -> Work:
    """`work_of` from arrays, one entry a setting: the threads that work on this phase."""
    n_cores = host.n_cores
    return Work.over(
        len(n_threads),
        n_prompt=n_prompt,
        depth=depth,
        n_seq=n_seq,
        slower_memory=np.maximum(n_cores / 2 / np.maximum(n_threads, 1), 1.0) if n_cores else 1.0,
        slower_compute=np.maximum(n_cores / np.maximum(n_threads, 1), 1.0) if n_cores else 1.0,
        is_pinned=is_pinned,
    )


def amounts_for(  # noqa: PLR0913 - all that a question consists of
    phase: Phase, facts: GgufFacts, settings: Sequence[Settings], rig: Rig, *, n_prompt: int, depth: int
) -> Floats:
    """Amounts of each term, shape (n_terms, n_settings): of a prompt after `depth` tokens, or of a step at `depth`."""
    work = work_of(phase, settings, rig.host, n_prompt=n_prompt, depth=depth)
    return amounts_of(phase, facts, Grid.of(settings, facts.n_layer), work, rig)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Of many queries: seconds of the prompt (which is the time to the first token) and of a step.

    Each has shape (3, n_queries): expected, and between which it lies in 90 of 100 cases.
    """

    prompt_s: Floats
    step_s: Floats


def predict_many(facts: GgufFacts, grid: Grid, prompt: Work, step: Work, laws: Laws) -> Predictions:
    """Every setting of `grid` with its own `prompt` and `step`; about a microsecond each."""
    seconds: dict[Phase, list[Floats]] = {phase: [] for phase in Phase}
    for i in range(0, max(len(grid), 1), N_AT_ONCE):
        part = slice(i, i + N_AT_ONCE)
        placed = Placed(facts, grid[part], laws.rig)
        for phase, work in ((Phase.PREFILL, prompt), (Phase.DECODE, step)):
            seconds[phase].append(np.stack(laws.of(phase).interval(placed.amounts(phase, work[part]))))
    prompt_s, step_s = (np.concatenate(seconds[phase], axis=1) for phase in (Phase.PREFILL, Phase.DECODE))
    return Predictions(prompt_s=prompt_s, step_s=step_s)


def predict(
    facts: GgufFacts, settings: Settings, laws: Laws, *, n_prompt: int | None = None, depth: int = 0
) -> Prediction:
    """What is expected of `settings`: for a prompt after `depth` cached tokens, and for tokens after that prompt.

    Where no prompt is named it is a usual one, and tokens are generated at `depth`, as llama-bench does.
    """
    n_read, decode_depth = n_prompt or N_PROMPT_USUAL, depth + (n_prompt or 0)
    rig = laws.rig
    prompt = amounts_for(Phase.PREFILL, facts, (settings,), rig, n_prompt=n_read, depth=depth)
    step = amounts_for(Phase.DECODE, facts, (settings,), rig, n_prompt=1, depth=decode_depth)
    decode = laws.decode.figure(step[:, 0], settings.n_seq_max)
    prefill = laws.prefill.figure(prompt[:, 0], n_read)
    ttft = Figure(
        value=n_read / prefill.value, low=n_read / prefill.high, high=n_read / prefill.low, basis=prefill.basis
    )
    return Prediction(
        n_prompt_tokens=n_read,
        depth=depth,
        decode_depth=decode_depth,
        decode_tok_per_s=decode,
        prefill_tok_per_s=prefill,
        ttft_s=ttft,
        bound_tok_per_s=_bound(Phase.DECODE, facts, settings, rig, n_tokens=settings.n_seq_max, depth=decode_depth),
        bound_prefill_tok_per_s=_bound(Phase.PREFILL, facts, settings, rig, n_tokens=n_read, depth=depth),
        words=tuple(_words(laws, step[:, 0], prompt[:, 0])),
    )


def _words(laws: Laws, step: Floats, prompt: Floats) -> list[str]:
    """On what the figures rest, and what makes them uncertain."""
    words = []
    for law, amounts in ((laws.decode, step), (laws.prefill, prompt)):
        if sentence := contradiction(law):
            words.append(sentence)
        if law.runs and (term := law.least_known(amounts)):
            what = f"No run here has shown well enough what {term.words} takes"
            words.append(f"{what}, so the {law.phase.value} is less certain.")
    return words


def _bound(  # noqa: PLR0913 - all that a question consists of
    phase: Phase, facts: GgufFacts, settings: Settings, rig: Rig, *, n_tokens: int, depth: int
) -> float | None:
    """Tokens a second at most, None where that is not known: however few threads there are, memory has one peak."""
    any_threads = dataclasses.replace(rig, host=dataclasses.replace(rig.host, n_cores=None))
    n_prompt = 1 if phase is Phase.DECODE else n_tokens
    amounts = amounts_for(phase, facts, (settings,), any_threads, n_prompt=n_prompt, depth=depth)
    seconds = float(least_seconds(phase, amounts, rig)[0])
    return None if math.isnan(seconds) or seconds <= 0 else n_tokens / seconds

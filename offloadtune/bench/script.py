"""The fixed script: which measures a context allows, and which of them is visited next.

Prompts are beginnings of one text, lengths and numbers of tokens written are the same every time, nothing is sampled
by chance. Only how often each measure is visited depends on the time there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune.benches import Measure, MeasureKind
from offloadtune.records import Visit, Workload
from offloadtune.units import format_seconds

TTFT_LENGTHS = (512, 1024, 2048, 4096, 8192)
DEPTHS = (0, 1024, 4096, 16384)
N_STEPS = 32
N_VISITS_WANTED = 20
"""A P95 needs 20 samples to be a figure at all."""
_N_SECOND_TURN_NEW = 128
_N_SECOND_TURN = 2048
_N_STEPS_TTFT = 1
_DEARER = 1.5
_N_TELLING = 64  # fewer tokens at once are read at another pace
_N_VISITS_EXTRA = 20  # in place of disturbed ones; beyond, the machine is too busy for this measure


def measures_of(workload: Workload | None) -> tuple[Measure, ...]:
    """All of the script: the curve of first tokens, a second turn, writing at several depths, the user's own turn.

    The second turn is the prompt of `ttft 2048` with all but its end in the cache, so that the two compare.
    """
    curve = [_measure(MeasureKind.TTFT, n_new=n, n_steps=_N_STEPS_TTFT) for n in TTFT_LENGTHS]
    n_cached = _N_SECOND_TURN - _N_SECOND_TURN_NEW
    second = _measure(MeasureKind.SECOND_TURN, n_prefix=n_cached, n_new=_N_SECOND_TURN_NEW, n_steps=_N_STEPS_TTFT)
    depths = [_measure(MeasureKind.DECODE, n_prefix=depth, n_new=1, n_steps=N_STEPS) for depth in DEPTHS]
    own = []
    if workload is not None:
        n_steps = max(1, min(workload.n_gen - 1, N_STEPS))
        n_prefix = workload.n_prefix_cached
        own.append(_measure(MeasureKind.TURN, n_prefix=n_prefix, n_new=workload.n_prompt_new, n_steps=n_steps))
    return (*curve, second, *depths, *own)


def too_long(measure: Measure, n_ctx: int) -> str:
    """Why the context does not allow the measure, "" where it does."""
    if measure.n_ctx_needed <= n_ctx:
        return ""
    return f"It needs a context of {measure.n_ctx_needed}, and the settings have {n_ctx}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A visit that was made: how long all of it took, how long what was timed of it, and whether it counts."""

    measure: Measure
    wall_s: float
    timed_s: float
    counts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds a token takes to be read and to be written, as visits so far show."""

    read_s: float
    write_s: float


def pace_of(visits: Sequence[Visit]) -> Pace:
    """By the last of the longest prompts read and the last tokens written: the first ones may have compiled."""
    timed = [visit for visit in visits if not visit.is_warmup and visit.n_prompt_new >= _N_TELLING] or list(visits)
    read = max(reversed(timed), key=lambda visit: visit.n_prompt_new)
    return Pace(read_s=read.prefill_ns / 1e9 / read.n_prompt_new, write_s=visits[-1].token_s)


def timed_s(visit: Visit) -> float:
    """What was timed of a visit."""
    return visit.ttft_s + (visit.first_decode_ns + sum(visit.step_ns) + sum(visit.sample_ns)) / 1e9


def next_measure(
    measures: Sequence[Measure], attempts: Sequence[Attempt], pace: Pace, remaining_s: float
) -> Measure | None:
    """The measure to visit now, None when all have what they want or no time is left for any.

    Each once, the cheapest first, so that the costs of the dear are known before they are risked; then always the one
    that has had the least time, so that short prompts get many visits and long ones some, spread over the whole run.
    """
    visited = {attempt.measure for attempt in attempts}
    payable = [one for one in measures if expected_s(one, attempts, pace) <= remaining_s]
    fresh = [one for one in payable if one not in visited]
    if fresh:
        return min(fresh, key=lambda one: expected_s(one, attempts, pace))
    wanting = [one for one in payable if _wants_more(one, attempts)]
    return min(wanting, key=lambda one: _spent_s(one, attempts), default=None)


def expected_s(measure: Measure, attempts: Sequence[Attempt], pace: Pace) -> float:
    """Seconds the next visit will take: as long as the last, for a measure not yet visited by its tokens.

    Tokens of the prompt are counted half as much again, for longer prompts than those seen take longer a token.
    """
    its_own = [attempt.wall_s for attempt in attempts if attempt.measure == measure]
    if its_own:
        return its_own[-1]
    n_read, n_written = measure.n_prefix_cached + measure.n_prompt_new, measure.n_steps + 1
    return _DEARER * n_read * pace.read_s + n_written * pace.write_s


def too_dear(measure: Measure, pace: Pace, budget_s: float) -> str:
    """Why a measure that the context allows was never visited."""
    expected = expected_s(measure, (), pace)
    factor = max(2, math.ceil(2 * expected / max(budget_s, 1)))
    return f"The time was too short: it takes about {format_seconds(expected)}. Allow {factor} times the budget."


def n_wanted(measures: Sequence[Measure]) -> int:
    return len(measures) * N_VISITS_WANTED


def _wants_more(measure: Measure, attempts: Sequence[Attempt]) -> bool:
    its_own = [attempt for attempt in attempts if attempt.measure == measure]
    n_counting = sum(attempt.counts for attempt in its_own)
    return n_counting < N_VISITS_WANTED and len(its_own) < N_VISITS_WANTED + _N_VISITS_EXTRA


def _spent_s(measure: Measure, attempts: Sequence[Attempt]) -> float:
    """What was timed, disturbed or not; filling the cache for a depth is done once and not charged."""
    return sum(attempt.timed_s for attempt in attempts if attempt.measure == measure)


def _measure(kind: MeasureKind, *, n_new: int, n_steps: int, n_prefix: int = 0) -> Measure:
    return Measure(kind=kind, n_prefix_cached=n_prefix, n_prompt_new=n_new, n_steps=n_steps)

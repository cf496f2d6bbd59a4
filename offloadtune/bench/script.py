"""The fixed script: which measures a context allows, and which of them is visited next.

Prompts are beginnings of one text, lengths and numbers of tokens written are the same every time, nothing is sampled
by chance. Only how often each measure is visited depends on the time there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune.benches import Measure, MeasureKind
from offloadtune.records import Workload

TTFT_LENGTHS = (512, 1024, 2048, 4096, 8192)
DEPTHS = (0, 1024, 4096, 16384)
N_STEPS = 32
N_VISITS_WANTED = 20
"""A P95 needs 20 samples to be a figure at all."""
_N_SECOND_TURN_NEW = 128
_N_SECOND_TURN = 2048
_N_STEPS_TTFT = 1
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
    """A visit that was made: how long all of it took, untimed parts included, and whether it counts."""

    measure: Measure
    wall_s: float
    counts: bool


def next_measure(measures: Sequence[Measure], attempts: Sequence[Attempt], remaining_s: float) -> Measure | None:
    """The measure to visit now, None when all have what they want or no time is left for any.

    Each once, the cheapest first, so that the costs of the dear are known before they are risked; then always the one
    that has had the least time, so that short prompts get many visits and long ones some, spread over the whole run.
    """
    fresh = [one for one in measures if not any(attempt.measure == one for attempt in attempts)]
    for one in sorted(fresh, key=_n_tokens):
        if expected_s(one, attempts) <= remaining_s:
            return one
    wanting = [one for one in measures if one not in fresh and _wants_more(one, attempts)]
    payable = [one for one in wanting if expected_s(one, attempts) <= remaining_s]
    return min(payable, key=lambda one: _spent_s(one, attempts), default=None)


def expected_s(measure: Measure, attempts: Sequence[Attempt]) -> float:
    """Seconds the next visit will take at most: the longest so far, for a measure not yet visited by its tokens.

    Reading gets dearer with length, so the dearest token of the nearest measure counts, half as much again. 0 as long
    as nothing was visited.
    """
    its_own = [attempt.wall_s for attempt in attempts if attempt.measure == measure]
    if its_own:
        return max(its_own)
    if not attempts:
        return 0.0
    nearest = max(attempts, key=lambda attempt: (_n_tokens(attempt.measure), attempt.wall_s))
    return 1.5 * nearest.wall_s * _n_tokens(measure) / _n_tokens(nearest.measure)


def too_dear(measure: Measure, attempts: Sequence[Attempt], budget_s: float) -> str:
    """Why a measure that the context allows was never visited."""
    if not attempts:
        return "No time was left after loading and warming up."
    expected = expected_s(measure, attempts)
    factor = max(2, math.ceil(2 * expected / max(budget_s, 1)))
    return f"The time was too short: it takes about {expected:.0f} s. Allow {factor} times the budget."


def n_wanted(measures: Sequence[Measure]) -> int:
    return len(measures) * N_VISITS_WANTED


def _wants_more(measure: Measure, attempts: Sequence[Attempt]) -> bool:
    its_own = [attempt for attempt in attempts if attempt.measure == measure]
    n_counting = sum(attempt.counts for attempt in its_own)
    return n_counting < N_VISITS_WANTED and len(its_own) < N_VISITS_WANTED + _N_VISITS_EXTRA


def _spent_s(measure: Measure, attempts: Sequence[Attempt]) -> float:
    return sum(attempt.wall_s for attempt in attempts if attempt.measure == measure and attempt.counts)


def _n_tokens(measure: Measure) -> int:
    return measure.n_prefix_cached + measure.n_prompt_new + measure.n_steps


def _measure(kind: MeasureKind, *, n_new: int, n_steps: int, n_prefix: int = 0) -> Measure:
    return Measure(kind=kind, n_prefix_cached=n_prefix, n_prompt_new=n_new, n_steps=n_steps)

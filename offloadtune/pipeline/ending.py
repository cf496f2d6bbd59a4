"""Ending: why a sweep ends, and how long it takes until then at least and at most."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from offloadtune.recommend import looks
from offloadtune.records import TrialResult
from offloadtune.units import format_count

_USED_UP_FRAC = 0.1


def why_ended(n_rounds: int, *, is_gone: bool, is_decided: bool, is_plan_done: bool, left_frac: float) -> str:
    """In a few words; `is_plan_done` where nothing is left to try, nor to be compared, `left_frac` of the budget."""
    rounds = format_count(n_rounds, "round")
    if is_gone:
        return "what it needs stayed away"
    if is_decided:
        return f"decided after {rounds}"
    if looks.are_used_up(n_rounds):
        return f"{rounds} are the most there are, and something is still open"
    if left_frac < _USED_UP_FRAC:
        return "the budget is used up"
    return "nothing is left worth its time" if is_plan_done else "what is left of the budget is too little for more"


def left_of_rounds(n_rounds: int, round_s: float, remaining_s: float) -> tuple[float, float]:
    """Seconds until the next look, which may decide, and until the last; no more than the budget leaves."""
    n_to_look = looks.N_ROUNDS_A_LOOK - n_rounds % looks.N_ROUNDS_A_LOOK
    n_most = max(looks.N_LOOKS_MOST * looks.N_ROUNDS_A_LOOK - n_rounds, n_to_look)
    least_s, most_s = (max(0.0, min(remaining_s, n * round_s)) for n in (n_to_look, n_most))
    return least_s, most_s


def least_left_s(results: Sequence[TrialResult], round_s: float, remaining_s: float) -> float | None:
    """Seconds that a trial like those before and the rounds up to the first look take; None where none was before."""
    if not results or remaining_s <= 0:
        return None
    trial_s = statistics.median(result.duration_s for result in results)
    return min(remaining_s, trial_s + looks.N_ROUNDS_A_LOOK * round_s)

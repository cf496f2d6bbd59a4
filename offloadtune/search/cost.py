"""What a goal asks for, as one number to make small."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from offloadtune.records import Goal, Outcome, TrialResult, Visit, Workload


def visit_cost(visit: Visit, goal: Goal, workload: Workload) -> float:
    """Seconds to make small: of the turn, to the first token, or of one token; `context` breaks ties by the turn."""
    if goal is Goal.TTFT:
        return visit.ttft_s
    if goal is Goal.DECODE:
        return visit.token_s
    return visit.turn_s(workload.n_gen)


def measured(visits: Iterable[Visit]) -> tuple[Visit, ...]:
    """The visits that count: no warm-ups, and disturbed ones only where there are no others."""
    timed = tuple(visit for visit in visits if not visit.is_warmup)
    return tuple(visit for visit in timed if visit.counts) or timed


def result_cost(result: TrialResult, goal: Goal, workload: Workload) -> tuple[float, float]:
    """Sorting key of a feasible result: for the goal `context` the largest context first, else the median cost."""
    cost = statistics.median(visit_cost(visit, goal, workload) for visit in measured(result.visits))
    return (-result.trial.settings.n_ctx if goal is Goal.CONTEXT else 0, cost)


def is_feasible(result: TrialResult, limit_bytes: int | None) -> bool:
    """Ran to the end of its context, was measured, and stayed within the user's limit on every device together."""
    if result.outcome is not Outcome.OK or not measured(result.visits):
        return False
    return limit_bytes is None or sum(peak for _, peak in result.device_peak_bytes) <= limit_bytes


def ran_out(result: TrialResult, limit_bytes: int | None) -> bool:
    """Whether it showed that its settings take more memory than there is, or than the user allows.

    A crash of what offloads counts: that is how memory ends on a remote card.
    """
    if result.outcome is Outcome.CRASHED:
        return result.trial.settings.offloads
    return result.outcome.is_out_of_memory or is_over_limit(result, limit_bytes)


def is_over_limit(result: TrialResult, limit_bytes: int | None) -> bool:
    """Whether it ran, but took more than the user allows."""
    return is_feasible(result, None) and not is_feasible(result, limit_bytes)

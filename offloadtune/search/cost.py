"""What a goal asks for, as one number to make small, and what the user does not allow.

Memory that is limited is like memory that ends: what took more did not run. What is slower than allowed ranks after all
that is fast enough, by how far it misses that, so that the best of several that all miss it is the nearest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from offloadtune.records import Goal, LimitReached, Limits, Outcome, TrialResult, Visit, Workload
from offloadtune.search.space import Space
from offloadtune.stats import quantile

N_VISITS_OF_P95 = 20
"""Of fewer not one is expected beyond the 95th percentile."""


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


def result_rank(space: Space, result: TrialResult) -> tuple[float, float, float]:
    """Sorting key of a feasible result: how far it misses the limits, then its cost."""
    return (shortfall(result.visits, space.limits), *result_cost(result, space.goal, space.workload))


# --- limits of speed -----------------------------------------------------------------------------------------------


def limits_reached(visits: Sequence[Visit], limits: Limits) -> Iterator[LimitReached]:
    """What `visits` reach of each limit of speed: the median of what they write, the 95th percentile of the TTFT.

    Where they are too few for one, the longest stands for it: the percentile may be longer still.
    """
    counted = measured(visits)
    if limits.min_tok_per_s is not None:
        reached = statistics.median(1 / visit.token_s for visit in counted)
        yield LimitReached(
            limit="min_tok_per_s",
            allowed=limits.min_tok_per_s,
            reached=reached,
            n_visits=len(counted),
            is_kept=reached >= limits.min_tok_per_s,
        )
    if limits.ttft_p95_s is not None:
        seconds = [visit.ttft_s for visit in counted]
        reached = quantile(seconds, 0.95) if len(seconds) >= N_VISITS_OF_P95 else max(seconds)
        yield LimitReached(
            limit="ttft_p95_s",
            allowed=limits.ttft_p95_s,
            reached=reached,
            n_visits=len(counted),
            is_kept=reached <= limits.ttft_p95_s,
        )


def shortfall(visits: Sequence[Visit], limits: Limits) -> float:
    """By what factor limits of speed are missed, as a logarithm, all together; 0 where they are kept."""
    if not limits.are_of_speed:
        return 0.0
    missed = (one for one in limits_reached(visits, limits) if not one.is_kept)
    return math.fsum(abs(math.log(one.reached / one.allowed)) for one in missed)


def keeps_limits(space: Space, result: TrialResult) -> bool:
    """Whether a feasible result is as fast as the user wants at least."""
    return shortfall(result.visits, space.limits) == 0


# --- memory --------------------------------------------------------------------------------------------------------


def is_allowed(space: Space, result: TrialResult) -> bool:
    """Whether it ran, was measured, and took no more memory than the user allows, of devices and of the host."""
    return is_feasible(result, space.limit_bytes) and not is_over_ram(space, result)


def is_feasible(result: TrialResult, limit_bytes: int | None) -> bool:
    """Ran to the end of its context, was measured, and stayed within the user's limit on every device together."""
    if result.outcome is not Outcome.OK or not measured(result.visits):
        return False
    return limit_bytes is None or sum(peak for _, peak in result.device_peak_bytes) <= limit_bytes


def is_over_ram(space: Space, result: TrialResult) -> bool:
    """Whether it ran, but took more main memory than the user allows, where the system told how much it took."""
    limit, peak = space.limits.host_bytes, result.host_peak_rss_bytes
    return limit is not None and peak is not None and peak > limit and is_feasible(result, None)


def ran_out(result: TrialResult, limit_bytes: int | None) -> bool:
    """Whether it showed that its settings take more memory than there is, or than the user allows.

    A crash of what offloads counts: that is how memory ends on a remote card.
    """
    if result.outcome is Outcome.CRASHED:
        return result.trial.settings.offloads
    return result.outcome.is_out_of_memory or is_over_limit(result, limit_bytes)


def is_over_limit(result: TrialResult, limit_bytes: int | None) -> bool:
    """Whether it ran, but took more device memory than the user allows."""
    return is_feasible(result, None) and not is_feasible(result, limit_bytes)

"""What is said of the speeds that the user wants at least: reached, or how near the nearest settings come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offloadtune.recommend.evidence import Case, counted_visits
from offloadtune.records import Goal, LimitReached, TrialResult
from offloadtune.search import N_VISITS_OF_P95, limits_reached
from offloadtune.units import format_count, format_seconds, format_tok_per_s


def reached(case: Case, result: TrialResult) -> tuple[LimitReached, ...]:
    """What a result reached of each limit of speed, by the visits that its figures are taken from."""
    return tuple(limits_reached(counted_visits(result, case.rounds), case.space.limits))


def can_judge_limits(case: Case, chosen: TrialResult) -> bool:
    """Whether there are visits enough for what limits ask, so that no more rounds are wanted for them."""
    return all(one.limit != "ttft_p95_s" or one.n_visits >= N_VISITS_OF_P95 for one in reached(case, chosen))


def limit_reasons(case: Case, chosen: TrialResult) -> Iterator[str]:
    """Whether the limits of speed are kept, and at which depth these speeds were measured."""
    found = reached(case, chosen)
    if missed := [one for one in found if not one.is_kept]:
        nearest = " and ".join(_figure_words(one) for one in missed)
        yield f"{_nobody_words(case, found)}; the nearest, recommended here, {nearest}."
    for one in found:
        if one.is_kept:
            yield f"It {_figure_words(one)}: within your limit of {_limit_words(one)}."
    workload, n_ctx = case.space.workload, chosen.trial.settings.n_ctx
    if found and case.space.goal is Goal.CONTEXT:
        depth = format_count(workload.n_prefix_cached + workload.n_prompt_new, "token")
        yield (
            f"Speeds are measured with {depth} in the context, as the workload {workload.name} has it, "
            f"not at the end of {n_ctx}: there it is slower."
        )


def _nobody_words(case: Case, found: Sequence[LimitReached]) -> str:
    """Who misses the limits: all that were tried, but where others keep them by a first visit those compared."""
    is_any_within = any(case.shortfall(one) == 0 for one in case.feasible.values())
    who = "None of the settings compared side by side" if is_any_within else "No settings tried"
    if len(found) > 1:
        return f"{who} keep both limits, {' and '.join(map(_limit_words, found))}"
    return f"{who} {_wish_words(found[0])}"


def _wish_words(one: LimitReached) -> str:
    if one.limit == "min_tok_per_s":
        return f"write {format_tok_per_s(one.allowed)}"
    return f"have their first token within {format_seconds(one.allowed)} in 95 of 100 turns"


def _limit_words(one: LimitReached) -> str:
    if one.limit == "min_tok_per_s":
        return f"{format_tok_per_s(one.allowed)} at least"
    return f"{format_seconds(one.allowed)} to the first token in 95 of 100 turns"


def _figure_words(one: LimitReached) -> str:
    if one.limit == "min_tok_per_s":
        return f"writes {format_tok_per_s(one.reached)}"
    within, visits = f"has its first token within {format_seconds(one.reached)}", format_count(one.n_visits, "visit")
    if one.n_visits >= N_VISITS_OF_P95:
        return f"{within} (95th percentile of {visits})"
    longest = "the only visit" if one.n_visits == 1 else f"the longest of {visits}"
    return f"{within} ({longest}; a 95th percentile takes {N_VISITS_OF_P95})"

"""Which trial is next: pure functions of what is known so far."""

from offloadtune.search.cost import is_feasible, measured, result_cost, visit_cost
from offloadtune.search.plan import Space, baseline_trials, candidates, finalists, next_trial, skipped

__all__ = [
    "Space",
    "baseline_trials",
    "candidates",
    "finalists",
    "is_feasible",
    "measured",
    "next_trial",
    "result_cost",
    "skipped",
    "visit_cost",
]

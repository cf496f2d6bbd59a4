"""Which trial is next: pure functions of what is known so far."""

from offloadtune.search.cost import is_feasible, is_over_limit, measured, ran_out, result_cost, visit_cost
from offloadtune.search.expecting import expected
from offloadtune.search.plan import candidates, finalists, next_trial, skipped
from offloadtune.search.space import (
    FIT_MARGIN_BYTES,
    N_CTX_SHIPPED,
    Space,
    baseline_trials,
    can_fit,
    llama_defaults,
    sane,
    settings_of_target,
    settings_to_fit,
)

__all__ = [
    "FIT_MARGIN_BYTES",
    "N_CTX_SHIPPED",
    "Space",
    "baseline_trials",
    "can_fit",
    "candidates",
    "expected",
    "finalists",
    "is_feasible",
    "is_over_limit",
    "llama_defaults",
    "measured",
    "next_trial",
    "ran_out",
    "result_cost",
    "sane",
    "settings_of_target",
    "settings_to_fit",
    "skipped",
    "visit_cost",
]

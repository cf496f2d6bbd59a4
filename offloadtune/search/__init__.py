"""Which trial is next: pure functions of what is known so far.

space      what may be tried, where the search begins, what its answer is compared with
cost       what a goal makes small
columns    settings as arrays, with the bytes that they take
grid       all settings that may be tried together: axes, and rules with their reasons
expecting  what the speed law says of them
traits     what of settings may have an effect that the law does not know
surrogate  what is believed of their cost: the law, and what trials showed that it does not know
room       where memory ends: which of them have room
acquire    which is worth its time most
ladder     placements until one runs; to the most that runs where no law says what layers are worth
pacing     what there is time for: baselines that wait, visits of a trial, rounds
contexts   the largest context, for the goal that asks for it
plan       all of it together: the next trial, and who is compared in the end
"""

from offloadtune.search.cost import is_feasible, is_over_limit, measured, ran_out, result_cost, visit_cost
from offloadtune.search.expecting import expected
from offloadtune.search.pacing import TRIAL_SHARE, must_compare, n_visits, round_s
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
    "TRIAL_SHARE",
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
    "must_compare",
    "n_visits",
    "next_trial",
    "ran_out",
    "result_cost",
    "round_s",
    "sane",
    "settings_of_target",
    "settings_to_fit",
    "skipped",
    "visit_cost",
]

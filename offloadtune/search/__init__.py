"""Which trial is next: pure functions of what is known so far.

words      what some settings have otherwise than others
space      what may be tried, where the search begins, what its answer is compared with
cost       what a goal makes small, and what limits allow
columns    settings as arrays, with the bytes that they take of each device
caches     what of the cache may be tried
splits     how several devices divide the layers
lending    from how many tokens on a device works for main memory
pinning    main memory pinned for a device, or as the CPU likes it
axes       what may be tried of each setting
mesh       combinations of them, and rules with their reasons that leave some out
grid       all settings that may be tried together
expecting  what the speed law says of them
traits     what of settings may have an effect that the law does not know
surrogate  what is believed of their cost: the law, and what trials showed that it does not know
keeping    which settings are likely to be as fast as the user wants at least
room       where memory ends: which of them have room
acquire    which is worth its time most
ladder     placements until one runs; to the most that runs where no law says what layers are worth
pacing     what there is time for: baselines that wait, visits of a trial, rounds
contexts   the largest context, for the goal that asks for it
neighbours what lies one step from settings
plan       all of it together: the next trial, and who is compared in the end
skipping   what is left out, with reasons
remedies   what would make settings fit that have no room
"""

from offloadtune.search.acquire import is_as_fixed
from offloadtune.search.cost import (
    N_VISITS_OF_P95,
    is_allowed,
    is_feasible,
    is_over_limit,
    is_over_ram,
    keeps_limits,
    limits_reached,
    measured,
    ran_out,
    result_cost,
    result_rank,
    shortfall,
    visit_cost,
)
from offloadtune.search.expecting import expected
from offloadtune.search.pacing import TRIAL_SHARE, most_s, must_compare, n_visits, round_s
from offloadtune.search.plan import candidates, finalists, next_trial
from offloadtune.search.remedies import Lack, Remedy, remedies
from offloadtune.search.skipping import skipped
from offloadtune.search.space import (
    FIT_MARGIN_BYTES,
    N_CTX_SHIPPED,
    Space,
    baseline_trials,
    can_fit,
    can_hold,
    least_host_bytes,
    llama_defaults,
    sane,
    settings_of_target,
    settings_to_fit,
    start_settings,
)
from offloadtune.search.words import differences

__all__ = [
    "FIT_MARGIN_BYTES",
    "N_CTX_SHIPPED",
    "N_VISITS_OF_P95",
    "TRIAL_SHARE",
    "Lack",
    "Remedy",
    "Space",
    "baseline_trials",
    "can_fit",
    "can_hold",
    "candidates",
    "differences",
    "expected",
    "finalists",
    "is_allowed",
    "is_as_fixed",
    "is_feasible",
    "is_over_limit",
    "is_over_ram",
    "keeps_limits",
    "least_host_bytes",
    "limits_reached",
    "llama_defaults",
    "measured",
    "most_s",
    "must_compare",
    "n_visits",
    "next_trial",
    "ran_out",
    "remedies",
    "result_cost",
    "result_rank",
    "round_s",
    "sane",
    "settings_of_target",
    "settings_to_fit",
    "shortfall",
    "skipped",
    "start_settings",
    "visit_cost",
]

"""The largest context that runs, for the goal that asks for it: doubled until one does not run, then halved between.

A context is asked for in the placement that is loaded, where that has room, else with the fastest settings that have.
Where the user wants a speed at least, settings must be likely to reach it too, and what ran more slowly did not do.
Doubling first: to prove a context it is filled to its end, and the largest that a model was trained for may take hours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from offloadtune.footprint import pad_256
from offloadtune.records import Outcome, Trial, TrialResult
from offloadtune.search.acquire import Loads, is_as_fixed, is_open
from offloadtune.search.cost import is_allowed, keeps_limits
from offloadtune.search.grid import choices_of
from offloadtune.search.keeping import chance_of_keeping
from offloadtune.search.room import wall_of
from offloadtune.search.space import Space
from offloadtune.search.surrogate import believe

_N_TRIES_MOST = 2
_NEAR_FRAC = 1 / 16
"""So near to one that does not run a context is the largest."""
_CHANCE_WANTED, _CHANCE_LEAST = 0.5, 0.1


def largest_context(space: Space, results: Sequence[TrialResult]) -> int:
    """The largest context that ran and kept the limits, that asked for where none did."""
    ran = [one for one in results if is_allowed(space, one) and is_as_fixed(space, one) and keeps_limits(space, one)]
    return max([space.n_ctx, *(one.trial.settings.n_ctx for one in ran)])


def next_context(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """The next context to ask for, None where the largest is known well enough. Needs one that kept the limits."""
    low, most = largest_context(space, results), space.facts.n_ctx_train // 256 * 256
    high = min((n for n in _failed(results, low) if n > low), default=None)
    while low < most:
        if high is None:
            n_ctx = min(2 * low, most)
        elif high - low > max(256, low * _NEAR_FRAC):
            n_ctx = pad_256((low + high) // 2)
        else:
            return None
        trial = _trial_of(dataclasses.replace(space, n_ctx=n_ctx), results)
        if trial is not None:
            return trial
        high = n_ctx
    return None


def _failed(results: Sequence[TrialResult], low: int) -> list[int]:
    """Contexts above `low` that were tried often enough."""
    tried = [one.trial.settings.n_ctx for one in results if one.outcome is not Outcome.CANCELLED]
    return [n for n in set(tried) if n > low and tried.count(n) >= _N_TRIES_MOST]


def _trial_of(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """A trial of the space's context, None where nothing has room for it."""
    choices = choices_of(space)
    ran = [one for one in results if is_allowed(space, one)]
    rated = [True] * len(ran)
    chance = wall_of(space, results).chance_of(choices.columns) * is_open(space, choices, results)
    chance *= chance_of_keeping(space, space.limits, choices, ran, rated)
    belief = believe(space, choices, ran, rated)
    likely = chance >= _CHANCE_WANTED
    for rows in (likely & Loads.of(choices, results).is_loaded, likely, chance >= _CHANCE_LEAST):
        if rows.any():
            i = int(np.where(rows, belief.log_ratio, math.inf).argmin())
            return space.trial(choices.settings(i), f"more context, {space.n_ctx}")
    return None

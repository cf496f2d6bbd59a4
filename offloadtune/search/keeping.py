"""Limits of speed in the search: what it goes after while nothing keeps them, and what will keep them most likely."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint.anatomy import Bools
from offloadtune.records import Goal, Limits, TrialResult
from offloadtune.search.cost import limits_reached, shortfall
from offloadtune.search.grid import Choices
from offloadtune.search.space import Space
from offloadtune.search.surrogate import believe
from offloadtune.speed.blocks import Floats

_TRIAL_NOISE = 0.02
_N_MISSED_MOST = 6
"""So often may a value miss a limit, without ever keeping it, before it is left out."""
_GOALS = {"min_tok_per_s": Goal.DECODE, "ttft_p95_s": Goal.TTFT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What the search goes after: the goal of `space`, beside the best of those that are `rated`, within `limits`."""

    space: Space
    rated: list[bool]
    limits: Limits


def aim_of(space: Space, ran: Sequence[TrialResult], rated: Sequence[bool]) -> Aim:
    """The user's goal once something keeps the limits; before that whatever is farthest from its limit.

    `rated` are those of `ran` that may be the answer, one at least.
    """
    kept = _those_within(space.limits, ran, rated)
    if not space.limits.are_of_speed or any(kept):
        return Aim(space=space, rated=kept, limits=space.limits)
    nearest = min(
        (one for one, is_rated in zip(ran, rated, strict=True) if is_rated),
        key=lambda one: shortfall(one.visits, space.limits),
    )
    missed = [one for one in limits_reached(nearest.visits, space.limits) if not one.is_kept]
    worst = max(missed, key=lambda one: abs(math.log(one.reached / one.allowed))).limit
    others = dataclasses.replace(space.limits, **{worst: None})
    within = _those_within(others, ran, rated)
    return Aim(
        space=dataclasses.replace(space, goal=_GOALS[worst]),
        rated=within if any(within) else list(rated),
        limits=others if any(within) else Limits(),
    )


def chance_of_keeping(
    space: Space, limits: Limits, choices: Choices, ran: Sequence[TrialResult], rated: Sequence[bool]
) -> Floats:
    """The chance that each candidate is as fast as `limits` ask, as its phases are believed after `ran`."""
    from scipy.special import ndtr  # noqa: PLC0415 - slow to load, and only a sweep that is under way asks

    chance = np.where(_never_kept(limits, choices, ran), 0.0, 1.0)
    for goal, most_s in _most_seconds(limits):
        belief = believe(dataclasses.replace(space, goal=goal), choices, ran, rated)
        chance *= ndtr((math.log(most_s) - belief.log_s) / np.hypot(belief.spread, _TRIAL_NOISE))
    return chance


def _never_kept(limits: Limits, choices: Choices, ran: Sequence[TrialResult]) -> Bools:
    """Candidates with a value that missed the limits often and never kept them, whatever is believed of it."""
    found = np.zeros(len(choices), dtype=np.bool_)
    is_missed = [(one.trial.settings, shortfall(one.visits, limits) > 0) for one in ran]
    for name, column in choices.axes.items():
        missed = Counter(getattr(settings, name) for settings, is_one in is_missed if is_one)
        kept = {getattr(settings, name) for settings, is_one in is_missed if not is_one}
        for value, n in missed.items():
            if n >= _N_MISSED_MOST and value not in kept:
                found |= column == value
    return found


def _most_seconds(limits: Limits) -> Iterator[tuple[Goal, float]]:
    """What each limit allows, as seconds of the goal that makes them small."""
    if limits.min_tok_per_s is not None:
        yield Goal.DECODE, 1 / limits.min_tok_per_s
    if limits.ttft_p95_s is not None:
        yield Goal.TTFT, limits.ttft_p95_s


def _those_within(limits: Limits, ran: Sequence[TrialResult], rated: Sequence[bool]) -> list[bool]:
    return [is_rated and not shortfall(one.visits, limits) for one, is_rated in zip(ran, rated, strict=True)]

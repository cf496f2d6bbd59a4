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
_CHANCE_LEAST = 0.25
"""What most likely misses a limit is not tried, however fast it may be otherwise: it would take a load's turn."""
_N_MISSED_MOST = 3
"""So often may a value miss a limit that others keep, without ever keeping it, before it is left out."""
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
    """The chance that each candidate is as fast as `limits` ask, as believed after `ran`; none where it is small."""
    from scipy.special import ndtr  # noqa: PLC0415 - slow to load, and only a sweep that is under way asks

    chance = np.where(_never_kept(limits, choices, ran), 0.0, 1.0)
    for goal, most_s in _most_seconds(limits):
        belief = believe(dataclasses.replace(space, goal=goal), choices, ran, rated)
        chance *= ndtr((math.log(most_s) - belief.log_s) / np.hypot(belief.spread, _TRIAL_NOISE))
    return np.where(chance >= _CHANCE_LEAST, chance, 0.0)


def _never_kept(limits: Limits, choices: Choices, ran: Sequence[TrialResult]) -> Bools:
    """Candidates with a value that missed the limits where another kept them, and never kept them itself.

    Beside settings of the same placement only: where the others miss them too it may be for want of layers.
    """
    found = np.zeros(len(choices), dtype=np.bool_)
    kept = [one.trial.settings for one in ran if not shortfall(one.visits, limits)]
    missed = [one.trial.settings for one in ran if shortfall(one.visits, limits)]
    beside = [one for one in missed if any(one.placement == other.placement for other in kept)]
    for name, column in choices.axes.items():
        fine = {getattr(one, name) for one in kept}
        for value, n in Counter(getattr(one, name) for one in beside).items():
            if n >= _N_MISSED_MOST and value not in fine:
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

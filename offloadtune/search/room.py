"""The wall: how much of the devices' memory settings may take, as far as arithmetic and trials tell.

Bytes here are those predicted. The wall lies where the devices' free memory ends, less what the driver takes for
itself; free memory may be less than is said, and then lies anywhere below. What ran puts the wall above it, what ended
out of memory puts it below, so that trying the middle of what is left halves the doubt.

Of several devices the fullest sets the pace: settings count as the bytes that all would take if each were as full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint import COMPUTE_BAND_FRAC
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Outcome, TrialResult
from offloadtune.search.columns import Cards, Columns, cards_of
from offloadtune.search.cost import is_feasible, is_over_ram, ran_out
from offloadtune.search.space import Space
from offloadtune.speed.blocks import Floats

_N_WALLS = 400
_LIE_CHANCE = 0.1
_LIES_FRAC = 0.4
"""Free memory may be less than is said by so much, and any less alike."""
_LOWEST_FRAC = 1 - _LIES_FRAC
_UNKNOWN_FRAC = 0.02
"""What the driver takes where no trial has told, as a part of the device, give or take half."""
_KNOWN_FRAC = 0.003
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True, eq=False)
class Wall:
    """Where the wall may be, with the chance of each place: settings that take no more have room.

    `usable_bytes` of each device are what its driver leaves for them, and `full_bytes` all that they may take together.
    """

    at_bytes: Floats
    chance: Floats
    usable_bytes: Floats
    full_bytes: float

    def chance_of(self, columns: Columns) -> Floats:
        """The chance that settings have room; 1 for what puts nothing on a device."""
        taken = _as_full_everywhere(columns, self.usable_bytes, self.full_bytes)
        beyond = np.concatenate([np.cumsum(self.chance[::-1])[::-1], [0.0]])
        return np.where(taken > 0, np.minimum(beyond[np.searchsorted(self.at_bytes, taken)], 1.0), 1.0)


def wall_of(space: Space, results: Sequence[TrialResult]) -> Wall:
    """What is believed after `results`."""
    cards, device_bytes = cards_of(space), max(float(space.device_bytes), 1.0)
    told = [one for one in results if one.trial.settings.offloads]
    ran = [one for one in told if is_feasible(one, space.limit_bytes)]
    ended = [one for one in told if ran_out(one, space.limit_bytes)]
    of_ran, of_ended = (Columns.of(space.facts, [one.trial.settings for one in some], cards) for some in (ran, ended))
    free = np.maximum(np.array(cards.free_bytes, dtype=np.float64), 1.0)
    own = (space.runtime_bytes or _UNKNOWN_FRAC * device_bytes) * free / free.sum()
    width = _UNKNOWN_FRAC / 2 * device_bytes
    peaks = np.array([_peaks(cards, one) for one in ran], dtype=np.float64).reshape(len(ran), len(cards)).T
    if peaks.any():  # the one that took most tells best
        i = int(np.argmax(np.where(peaks.any(axis=0), of_ran.device_bytes, -1)))
        own = np.where(peaks[:, i] > 0, peaks[:, i] - of_ran.bytes_of_each[:, i], own)
        width = _KNOWN_FRAC * device_bytes + COMPUTE_BAND_FRAC / 2 * float(of_ran.compute_bytes[i])
    middle, usable = device_bytes - float(own.sum()), np.maximum(np.minimum(free, device_bytes) - own, 1.0)
    taken, taken_of_ended = (_as_full_everywhere(one, usable, middle) for one in (of_ran, of_ended))
    low = float(taken.max(initial=0))
    # what takes less than some that ran ended for another reason
    high = float(taken_of_ended[taken_of_ended > low].min(initial=2**62))
    low = max(low, min(_LOWEST_FRAC * device_bytes, high / 2))
    high = max(min(high, max(device_bytes, middle + 4 * width)), low + 1)
    at = np.linspace(low, high, _N_WALLS, endpoint=False)
    told_so = (1 - _LIE_CHANCE) * np.exp(-0.5 * ((at - middle) / width) ** 2) / width / math.sqrt(2 * math.pi)
    a_lie = _LIE_CHANCE / (_LIES_FRAC * device_bytes) * (at < max(middle, low + 1))
    chance = (told_so + a_lie) / max(float((told_so + a_lie).max()), _TINY)
    return Wall(at_bytes=at, chance=chance / chance.sum(), usable_bytes=usable, full_bytes=middle)


def _as_full_everywhere(columns: Columns, usable_bytes: Floats, full_bytes: float) -> Floats:
    """What settings would take of all devices if each were as full as the fullest; no less than they do take."""
    if len(usable_bytes) == 1:
        return columns.device_bytes.astype(np.float64)
    fullest = (columns.bytes_of_each / usable_bytes[:, None]).max(axis=0)
    return np.asarray(np.maximum(fullest * full_bytes, columns.device_bytes))


def _peaks(cards: Cards, result: TrialResult) -> list[int]:
    """What a trial took of each device, 0 where that is not known."""
    if len(cards) == 1:
        return [sum(peak for _, peak in result.device_peak_bytes)]
    by_name = dict(result.device_peak_bytes)
    return [by_name.get(name, 0) for name in cards.names]


def dominated(space: Space, columns: Columns, results: Sequence[TrialResult]) -> Bools:
    """Whether settings take as much everywhere as some that ended out of memory.

    What took no more than settings that ran ended for another reason, and says nothing of memory.
    """
    found = np.zeros(len(columns), dtype=np.bool_)
    ended = [r for r in results if ran_out(r, space.limit_bytes)]
    if not ended:
        return found
    cards, feasible = cards_of(space), [one for one in results if is_feasible(one, space.limit_bytes)]
    ran, theirs = (Columns.of(space.facts, [r.trial.settings for r in some], cards) for some in (feasible, ended))
    for i, result in enumerate(ended):
        is_of_host = result.outcome is Outcome.OUT_OF_MEMORY_HOST and not result.trial.settings.offloads
        taken = _taken_of_host if is_of_host else _taken_of_devices
        limits = taken(theirs)[:, [i]]
        if not (taken(ran) >= limits).all(axis=0).any():
            found |= (taken(columns) >= limits).all(axis=0)
    return found


def over_ram(space: Space, columns: Columns, results: Sequence[TrialResult]) -> Bools:
    """Whether settings take more main memory than the user allows, by arithmetic or as trials showed.

    What takes as much as some that took too much does too, unless others that take as much did not.
    """
    limit = space.limits.host_bytes
    if limit is None:
        return np.zeros(len(columns), dtype=np.bool_)
    ran = [one for one in results if is_feasible(one, None) and one.host_peak_rss_bytes is not None]
    tried = [one.trial.settings for one in ran]
    predicted = Columns.of(space.facts, tried, cards_of(space)).host_bytes if ran else np.array([])
    is_over = np.array([is_over_ram(space, one) for one in ran], dtype=np.bool_)
    most_within = predicted[~is_over].max(initial=0)
    least_over = predicted[is_over & (predicted > most_within)].min(initial=2**62)
    return np.asarray((columns.least_host_bytes > limit) | (columns.host_bytes >= least_over))


def _taken_of_host(columns: Columns) -> Ints:
    return np.vstack([columns.host_bytes, columns.device_bytes])


def _taken_of_devices(columns: Columns) -> Ints:
    """On each device: which of them ended a trial is not known."""
    return np.vstack([columns.least_of_each, columns.compute_of_each])

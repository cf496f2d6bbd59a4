"""How many layers go to the device: a ladder of placements sorted by predicted bytes, and which rung is tried next."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune.footprint import estimate_footprints
from offloadtune.records import Settings, Trial, TrialResult
from offloadtune.search.cost import is_allowed, ran_out
from offloadtune.search.space import Space, n_that_can_fit, start_settings

_UNLISTED_FRAC = 0.02
"""Of the device's memory, kept free in the first guess where no trial has told what the driver takes."""

_N_UBATCH_LEAST = 64
_N_UNTOLD_MAX = 2
"""Rungs that told nothing before the climb ends: a third would most likely end in the same way."""


def next_placement(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """The rung to try next, or None when the most that runs is known; a rung costs a load, so few are tried.

    First everything, unless the file's sizes exclude it. Then the rung most likely to be the last that fits, a margin
    below the wall. If that does not run, 1, 2, 4... rungs below it until one does; if it does, 1, 2, 4... rungs above
    it, or further where the memory measured leaves more room, until one ends out of memory or the aim is past what can
    be. Between the highest that ran and the lowest that did not: where the memory measured points to, else half-way.

    Only memory bounds the ladder (`ran_out`): a rung that timed out, was stopped or was refused tells nothing of the
    others and is passed over, and after a few such rungs the climb ends.
    """
    ladder = _ladder(space)
    known = _Known.of(space, ladder, {result.trial.settings: result for result in results})
    top = len(ladder) - 1
    if known.high > top and top not in known.ran and top not in known.untold:
        return space.trial(ladder[top], "every layer on the device")
    left = [i for i in range(known.low + 1, known.high) if i not in known.untold]
    if not left or len(known.untold) > _N_UNTOLD_MAX:
        return None
    aim = _aim(space, ladder, known)
    chosen = ladder[min(left, key=lambda i: abs(i - aim))]
    return space.trial(chosen, f"{chosen.n_gpu_layers} of {space.everything} layers on the device")


def smaller_buffers(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """The fewest layers that ended out of memory, with half the ubatch of before, where nothing on the device ran.

    On a small card, or one that much of the vocabulary's logits must go to, memory may end at the buffers of a context.
    None where the ubatch is held, or the smallest was tried.
    """
    tried = {one.trial.settings: one for one in results if one.trial.settings.offloads}
    ended = [settings for settings, one in tried.items() if ran_out(one, space.limit_bytes)]
    if not ended or len(ended) < len(tried) or "n_ubatch" in {**space.kept, **space.fixed}:
        return None
    least = min(ended, key=lambda one: (one.n_gpu_layers, one.n_ubatch))
    smaller = least.replace(n_ubatch=least.n_ubatch // 2)
    if smaller.n_ubatch < _N_UBATCH_LEAST:
        return None
    return space.trial(smaller, f"{smaller.n_gpu_layers} layers on the device, with n_ubatch {smaller.n_ubatch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of the rungs, each list in rising order.

    `n_possible` of them may fit by the file's sizes; the highest that ran took `taken_bytes`, 0 when not known.
    """

    ran: list[int]
    ended: list[int]
    untold: list[int]
    n_possible: int
    taken_bytes: int

    @classmethod
    def of(cls, space: Space, ladder: Sequence[Settings], by_settings: dict[Settings, TrialResult]) -> _Known:
        tried = {i: by_settings[settings] for i, settings in enumerate(ladder) if settings in by_settings}
        ran = [i for i, result in tried.items() if is_allowed(space, result)]
        ended = [i for i, result in tried.items() if ran_out(result, space.limit_bytes)]
        return cls(
            ran=ran,
            ended=ended,
            untold=[i for i in tried if i not in ran and i not in ended],
            n_possible=n_that_can_fit(space, ladder),
            taken_bytes=sum(peak for _, peak in tried[ran[-1]].device_peak_bytes) if ran else 0,
        )

    @property
    def low(self) -> int:
        """The highest rung that ran, -1 for none."""
        return max(self.ran, default=-1)

    @property
    def high(self) -> int:
        """The lowest rung that ended out of memory or cannot fit, one beyond the ladder for none."""
        return min([*self.ended, self.n_possible])


def _ladder(space: Space) -> list[Settings]:
    base = start_settings(space)
    rungs = [base.replace(n_gpu_layers=k) for k in range(1, space.everything + 1)]
    sizes = [one.bytes for one in estimate_footprints(space.facts, rungs)]
    return [settings for _, settings in sorted(zip(sizes, rungs, strict=True), key=lambda pair: pair[0])]


def _aim(space: Space, ladder: Sequence[Settings], known: _Known) -> int:
    """Where the next try belongs; see `next_placement`."""
    fell = [i for i in known.ended if i < len(ladder) - 1]
    sizes = [one.bytes for one in estimate_footprints(space.facts, ladder)]
    if known.ran:
        spare_bytes = space.device_bytes - known.taken_bytes if known.taken_bytes else 0
        measured = bisect.bisect(sizes, sizes[known.low] + spare_bytes) - 1
        if not fell:
            measured = max(measured, known.low + 1, known.ran[0] + (1 << len(known.ran) - 1))
        return measured if known.low < measured < known.high else (known.low + known.high) // 2
    if fell:
        return max(fell[-1] - (1 << len(fell) - 1), 0)
    one_below = bisect.bisect(sizes, space.device_bytes) - 2
    unlisted = space.runtime_bytes or space.device_bytes * _UNLISTED_FRAC
    with_margin = bisect.bisect(sizes, space.device_bytes - unlisted) - 1
    return max(min(one_below, with_margin), 0)

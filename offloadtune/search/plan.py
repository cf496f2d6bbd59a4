"""The plan of a sweep: which trial is next, and who is compared in the end.

Order: placements until the first that runs (ladder.py); what is worth a cheap look in it; what the answer is compared
with, the CPU alone and what the target would do unasked, but for what would take much of the time (pacing.py); then
whatever promises most for its time among all settings together (acquire.py), by the speed law and by what trials showed
(surrogate.py); the next larger placement than the best; and baselines that waited, where there is time. Where no law
says what more layers are worth the ladder is climbed to its end before. Settings that lower the stored precision of the
cache are proposed only where the user allows it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from offloadtune.records import Goal, Outcome, Settings, Trial, TrialResult
from offloadtune.search.acquire import is_as_fixed, is_open, next_best, one_larger
from offloadtune.search.contexts import largest_context, next_context
from offloadtune.search.cost import is_allowed, keeps_limits, result_rank
from offloadtune.search.grid import choices_of
from offloadtune.search.ladder import next_placement, smaller_buffers
from offloadtune.search.pacing import baseline_due, baseline_put_off, in_time
from offloadtune.search.room import wall_of
from offloadtune.search.space import Space, baseline_trials, can_fit, can_hold, start_settings
from offloadtune.search.words import what_is_new

_N_BEST_FINALISTS = 3
_CHANCE_LEAST, _CHANCE_SURE = 0.1, 0.9
_N_WITHOUT_ANY_MOST = 12
"""So many trials that all failed are enough where the user fixed the layers."""


def next_trial(space: Space, results: Sequence[TrialResult], remaining_s: float = math.inf) -> Trial | None:
    """The next trial worth its time, of which `remaining_s` are left, or None when the plan is done."""
    ran = {result.trial.settings for result in results if is_allowed(space, result)}
    placement = _next_placement(space, results)
    if not any(settings.offloads for settings in ran) and (first := placement or smaller_buffers(space, results)):
        return first
    if baseline := baseline_due(space, results, remaining_s):
        return _cheap_look(space, results, remaining_s) or baseline
    if placement is not None and space.laws is None:
        return placement
    found = _next_of_all(space, results, remaining_s) if candidates(space, results) else _what_has_room(space, results)
    return found or baseline_put_off(space, results, remaining_s)


def _cheap_look(space: Space, results: Sequence[TrialResult], remaining_s: float) -> Trial | None:
    """What is worth a look where it is loaded, before a baseline takes its place: coming back would cost a load."""
    if space.goal is Goal.CONTEXT or not results or not results[-1].trial.settings.offloads:
        return None
    return next_best(space, results, remaining_s, is_cheap=True)


def _next_of_all(space: Space, results: Sequence[TrialResult], remaining_s: float) -> Trial | None:
    """The most promising of all settings; for the goal `context` the next context, once the limits are kept at all."""
    if space.goal is not Goal.CONTEXT:
        best = min(candidates(space, results), key=lambda one: result_rank(space, one))
        return (
            next_best(space, results, remaining_s)
            or in_time(space, one_larger(space, results, best.trial.settings), results, remaining_s)
            or in_time(space, _price_of_context(space, results), results, remaining_s)
        )
    if not any(keeps_limits(space, one) for one in candidates(space, results)):
        return next_best(space, results, remaining_s)
    return in_time(space, next_context(space, results), results, remaining_s) or next_best(
        dataclasses.replace(space, n_ctx=largest_context(space, results)), results, remaining_s
    )


def _what_has_room(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """What has room most likely, where what the user fixed or allows leaves out all that a search begins with."""
    is_bound = space.limits.host_bytes is not None
    if not is_bound and ("n_gpu_layers" not in space.fixed or len(results) >= _N_WITHOUT_ANY_MOST):
        return None
    choices = choices_of(space)
    chance = wall_of(space, results).chance_of(choices.columns) * is_open(space, choices, results)
    if not (chance >= _CHANCE_LEAST).any():
        return None
    if is_bound:
        taken = np.where(chance >= _CHANCE_LEAST, choices.columns.host_bytes, np.iinfo(np.int64).max)
        return space.trial(choices.settings(int(taken.argmin())), "what takes the least main memory")
    settings = choices.settings(int(np.lexsort((-choices.columns.device_bytes, np.minimum(chance, _CHANCE_SURE)))[-1]))
    return space.trial(settings, what_is_new(settings, start_settings(space), space.everything))


def candidates(space: Space, results: Sequence[TrialResult]) -> list[TrialResult]:
    """Results that may be recommended: feasible, as the user fixed them, and with the context wanted.

    With the goal `context` a larger one will do too: the user names the least.
    """
    return [
        result
        for result in results
        if is_allowed(space, result) and _has_context(space, result.trial.settings.n_ctx) and is_as_fixed(space, result)
    ]


def _has_context(space: Space, n_ctx: int) -> bool:
    return n_ctx >= space.n_ctx if space.goal is Goal.CONTEXT else n_ctx == space.n_ctx


def finalists(space: Space, results: Sequence[TrialResult]) -> tuple[Trial, ...]:
    """Who is compared side by side: the best few and the baselines that ran."""
    feasible = candidates(space, results)
    ranked = sorted(feasible, key=lambda result: result_rank(space, result))
    first_of_kind = {_counted(space, result.trial.settings): result.trial for result in reversed(ranked)}
    chosen = [result.trial for result in ranked if result.trial in first_of_kind.values()][:_N_BEST_FINALISTS]
    ran = {result.trial.settings for result in results if is_allowed(space, result)}
    rivals = baseline_trials(space)
    if not space.has_devices:
        del rivals["cpu_only"]
    chosen += [trial for trial in rivals.values() if trial.settings in ran]
    unique = {trial.settings: trial for trial in chosen}
    return tuple(sorted(unique.values(), key=lambda trial: repr(trial.settings.placement)))  # neighbours share a load


def _counted(space: Space, settings: Settings) -> Settings:
    """What counts of settings, for the goal or a limit: those that differ in nothing else are one finalist."""
    if not space.counts_reading:
        return settings.replace(n_batch=1, n_ubatch=1, n_threads_batch=1, op_offload=True)
    return settings if space.counts_writing else settings.replace(n_threads=1)


def _price_of_context(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """Twice the context with the best settings, where they are loaded: what it would cost is good to know."""
    best = min(candidates(space, results), key=lambda one: result_rank(space, one)).trial.settings
    more = best.replace(n_ctx=2 * best.n_ctx)
    is_new = all(result.trial.settings != more for result in results)
    is_loaded = results[-1].outcome is Outcome.OK and results[-1].trial.settings.placement == best.placement
    if is_new and is_loaded and more.n_ctx <= space.facts.n_ctx_train and _can_be(space, more):
        return space.trial(more, f"more context, {more.n_ctx}")
    return None


def _next_placement(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    if not space.has_devices:
        return None
    if "n_gpu_layers" not in space.fixed:
        placement = next_placement(space, results)
        return placement if placement and can_hold(space, placement.settings) else None
    fixed = space.trial(start_settings(space), "the layers you asked for")
    was_tried = any(result.trial.settings == fixed.settings for result in results)
    return None if was_tried or not can_fit(space, fixed.settings) else fixed


def _can_be(space: Space, settings: Settings) -> bool:
    return can_fit(space, settings) and can_hold(space, settings)

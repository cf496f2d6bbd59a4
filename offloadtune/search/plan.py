"""The plan of a sweep: which trial is next, who is compared in the end, and what is left out.

Order: placements until the first that runs (ladder.py); what is worth a cheap look in it; what the answer is compared
with, the CPU alone and what the target would do unasked, but for what would take much of the time (pacing.py); then
whatever promises most for its time among all settings together (acquire.py), by the speed law and by what trials showed
(surrogate.py); the next larger placement than the best; and baselines that waited, where there is time. Where no law
says what more layers are worth the ladder is climbed to its end before. Only settings that leave the stored precision
of weights and cache alone are ever proposed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from offloadtune.footprint import estimate_footprint
from offloadtune.records import Goal, Outcome, Settings, Trial, TrialResult
from offloadtune.search.acquire import is_as_fixed, next_best, one_larger
from offloadtune.search.contexts import largest_context, next_context
from offloadtune.search.cost import is_feasible, result_cost
from offloadtune.search.grid import IDLE, ruled_out
from offloadtune.search.ladder import next_placement, smaller_buffers
from offloadtune.search.pacing import baseline_due, baseline_put_off
from offloadtune.search.space import Space, baseline_trials, can_fit, start_settings
from offloadtune.units import format_bytes

_N_BEST_FINALISTS = 3
_NEVER_VARIED = ("load_mode", "offload_kqv", "swa_full", "use_extra_bufts")


def next_trial(space: Space, results: Sequence[TrialResult], remaining_s: float = math.inf) -> Trial | None:
    """The next trial worth its time, of which `remaining_s` are left, or None when the plan is done."""
    ran = {result.trial.settings for result in results if is_feasible(result, space.limit_bytes)}
    placement = _next_placement(space, results)
    if not any(settings.offloads for settings in ran) and (first := placement or smaller_buffers(space, results)):
        return first
    if baseline := baseline_due(space, results, remaining_s):
        return _cheap_look(space, results, remaining_s) or baseline
    if placement is not None and space.laws is None:
        return placement
    return _next_candidate(space, results, remaining_s) or baseline_put_off(space, results, remaining_s)


def _cheap_look(space: Space, results: Sequence[TrialResult], remaining_s: float) -> Trial | None:
    """What is worth a look where it is loaded, before a baseline takes its place: coming back would cost a load."""
    if space.goal is Goal.CONTEXT or not results or not results[-1].trial.settings.offloads:
        return None
    return next_best(space, results, remaining_s, is_cheap=True)


def _next_candidate(space: Space, results: Sequence[TrialResult], remaining_s: float) -> Trial | None:
    if not candidates(space, results):
        return None
    if space.goal is not Goal.CONTEXT:
        best = min(candidates(space, results), key=lambda one: result_cost(one, space.goal, space.workload))
        return (
            next_best(space, results, remaining_s)
            or one_larger(space, results, best.trial.settings)
            or _price_of_context(space, results)
        )
    return next_context(space, results) or next_best(
        dataclasses.replace(space, n_ctx=largest_context(space, results)), results, remaining_s
    )


def candidates(space: Space, results: Sequence[TrialResult]) -> list[TrialResult]:
    """Results that may be recommended: feasible, as the user fixed them, and with the context wanted.

    With the goal `context` a larger one will do too.
    """
    return [
        result
        for result in results
        if is_feasible(result, space.limit_bytes)
        and (space.goal is Goal.CONTEXT or result.trial.settings.n_ctx == space.n_ctx)
        and is_as_fixed(space, result)
    ]


def finalists(space: Space, results: Sequence[TrialResult]) -> tuple[Trial, ...]:
    """Who is compared side by side: the best few and the baselines that ran."""
    feasible = candidates(space, results)
    ranked = sorted(feasible, key=lambda result: result_cost(result, space.goal, space.workload))
    first_of_kind = {_counted(result.trial.settings, space.goal): result.trial for result in reversed(ranked)}
    chosen = [result.trial for result in ranked if result.trial in first_of_kind.values()][:_N_BEST_FINALISTS]
    ran = {result.trial.settings for result in results if is_feasible(result, space.limit_bytes)}
    rivals = baseline_trials(space)
    if not space.has_devices:
        del rivals["cpu_only"]
    chosen += [trial for trial in rivals.values() if trial.settings in ran]
    unique = {trial.settings: trial for trial in chosen}
    return tuple(sorted(unique.values(), key=lambda trial: repr(trial.settings.placement)))  # neighbours share a load


def _counted(settings: Settings, goal: Goal) -> Settings:
    """What the goal counts of settings: those that differ in nothing else are one finalist."""
    if goal is Goal.DECODE:
        return settings.replace(n_batch=1, n_ubatch=1, n_threads_batch=1, op_offload=True)
    return settings.replace(n_threads=1) if goal is Goal.TTFT else settings


def skipped(space: Space) -> tuple[str, ...]:
    """What is left out, each with its reason."""
    reasons = []
    full = start_settings(space).replace(n_gpu_layers=space.everything)
    if space.has_devices and not can_fit(space, full):
        needed = estimate_footprint(space.facts, full).least_bytes
        whose = "you allow" if space.limit_bytes == space.device_bytes else "the device has"
        reasons.append(
            f"all {space.everything} layers on the device: by the header's arithmetic they need at least "
            f"{format_bytes(needed)}, {whose} {format_bytes(space.device_bytes)}"
        )
    if space.goal is Goal.DECODE:
        reasons.append(
            f"n_ubatch above {start_settings(space).n_ubatch}: where only tokens count it could but take room"
        )
    elif space.workload.n_prompt_new <= 512:
        reasons.append(f"n_ubatch above 512: a prompt of {space.workload.n_prompt_new} new tokens is one batch already")
    if idle := IDLE.get(space.goal):
        reasons.append(f"other values of {' and '.join(idle)}: they change nothing that the goal {space.goal} counts")
    reasons += ruled_out(space)
    if not space.has_devices:
        reasons.append("n_gpu_layers, n_cpu_moe and op_offload: the engine lists no device")
    elif not space.facts.n_expert:
        reasons.append("n_cpu_moe: the model has no experts")
    reasons.append(f"{', '.join(_NEVER_VARIED)}: they stay as the front end has them, or as you or the self-test say")
    if space.n_devices > 1:
        reasons.append("tensor_split: the engine divides layers by the free memory of its devices")
    reasons.append("quantised KV cache: it changes the stored precision")
    return tuple(reasons)


def _price_of_context(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """Twice the context with the best settings, where they are loaded: what it would cost is good to know."""
    best = min(candidates(space, results), key=lambda one: result_cost(one, space.goal, space.workload)).trial.settings
    more = best.replace(n_ctx=2 * best.n_ctx)
    is_new = all(result.trial.settings != more for result in results)
    is_loaded = results[-1].outcome is Outcome.OK and results[-1].trial.settings.placement == best.placement
    if is_new and is_loaded and more.n_ctx <= space.facts.n_ctx_train and can_fit(space, more):
        return space.trial(more, f"more context, {more.n_ctx}")
    return None


def _next_placement(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    if not space.has_devices:
        return None
    if "n_gpu_layers" not in space.fixed:
        return next_placement(space, results)
    fixed = space.trial(start_settings(space), "the layers you asked for")
    return None if any(result.trial.settings == fixed.settings for result in results) else fixed

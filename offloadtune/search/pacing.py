"""What a sweep has time for: how long trials and rounds will take, and what gives way where the budget is short.

The law's word on seconds is all there is before a trial: it is good enough to tell what takes minutes from what takes
hours, as reading a whole context does on a CPU alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any

from offloadtune.records import Goal, Outcome, Settings, Trial, TrialResult
from offloadtune.search.columns import Columns
from offloadtune.search.cost import is_allowed, measured, result_cost
from offloadtune.search.expecting import foretold, laws_for
from offloadtune.search.space import Space, baseline_trials, can_hold, start_settings
from offloadtune.speeds import Phase

TRIAL_SHARE = 0.4
"""Of the time left a trial may take so much, once there is an answer: no loser is to eat the rest."""

_LAST_SHARE = 0.8
"""A baseline may take so much of the time left where nothing else is to be done with it."""
_BASELINE_SHARE = 0.1
"""A baseline that takes more of the time left waits until nothing better is to be done with it."""
_SURE_TIMES = 2.0
"""The law may be off so far of what nothing like it was tried of."""
_READ_BYTES_PER_S = 1e9
_N_VISITS = 3
_MORE_VISITS_FRAC = 0.25
_ROUND_MARGIN = 1.5


def baseline_due(space: Space, results: Sequence[TrialResult], remaining_s: float) -> Trial | None:
    """A baseline not tried yet whose turn it is, first what needs no load.

    One that would take much of the time waits, unless it may be the answer: before anything ran any may be.
    """
    tried = {result.trial.settings for result in results}
    due = [
        trial
        for trial in baseline_trials(space).values()
        if trial.settings not in tried
        and can_hold(space, trial.settings)
        and (
            expected_s(space, trial.settings, results) <= _BASELINE_SHARE * remaining_s
            or _may_be_best(space, trial.settings, results)
        )
    ]
    return min(due, key=lambda trial: not is_loaded(trial.settings, results), default=None)


def _may_be_best(space: Space, settings: Settings, results: Sequence[TrialResult]) -> bool:
    """Whether the law does not hold `settings` to be clearly slower than what ran."""
    workload = space.workload
    ran = [result_cost(one, space.goal, workload)[1] for one in results if is_allowed(space, one)]
    prompt_s, step_s = _foretold_s(space, settings)
    cost = {Goal.TTFT: prompt_s, Goal.DECODE: step_s}.get(space.goal, prompt_s + (workload.n_gen - 1) * step_s)
    return not ran or cost < _SURE_TIMES * min(ran)


def in_time(space: Space, trial: Trial | None, results: Sequence[TrialResult], remaining_s: float) -> Trial | None:
    """`trial` where it can end in the time that it may take, None else."""
    if trial is None or expected_s(space, trial.settings, results) > TRIAL_SHARE * remaining_s:
        return None
    return trial


def baseline_put_off(space: Space, results: Sequence[TrialResult], remaining_s: float) -> Trial | None:
    """A baseline not tried yet that can still end in the time left, where nothing else is worth it."""
    tried = {result.trial.settings for result in results}
    left = {
        trial: seconds
        for trial in baseline_trials(space).values()
        if trial.settings not in tried
        and can_hold(space, trial.settings)
        and (seconds := expected_s(space, trial.settings, results)) < _LAST_SHARE * remaining_s
    }
    return min(left, key=lambda trial: left[trial], default=None)


def most_s(space: Space, trial: Trial, results: Sequence[TrialResult], remaining_s: float) -> float:
    """What `trial` may take of the time left, once there is an answer: most of it where a baseline is all there is."""
    is_baseline = any(trial.settings == one.settings for one in baseline_trials(space).values())
    is_last = is_baseline and baseline_due(space, results, remaining_s) is None
    return remaining_s * (_LAST_SHARE if is_last else TRIAL_SHARE)


def expected_s(space: Space, settings: Settings, results: Sequence[TrialResult]) -> float:
    """About how long the first trial of `settings` takes: a load, the context read to its end, and a visit."""
    workload = space.workload
    prompt_s, step_s = _foretold_s(space, settings)
    n_read = settings.n_ctx + workload.n_prefix_cached + workload.n_prompt_new
    return load_s(space, results) + prompt_s * n_read / workload.n_prompt_new + workload.n_gen * step_s


def _foretold_s(space: Space, settings: Settings) -> tuple[float, float]:
    """Seconds of the workload's prompt and of a token, by the law."""
    columns, laws_of = Columns.of(space.facts, (settings.replace(n_seq_max=1),)), laws_for(space)
    prompt_s, step_s = (
        math.exp(float(foretold(space, laws_of, start_settings(space), columns, phase).log_s[0]))
        for phase in (Phase.PREFILL, Phase.DECODE)
    )
    return prompt_s, step_s


def load_s(space: Space, results: Sequence[TrialResult]) -> float:
    """About what a load takes."""
    told = [one.load_ns / 1e9 for one in results if one.load_ns]
    return statistics.median(told) if told else space.facts.file_bytes / _READ_BYTES_PER_S


def is_loaded(settings: Settings, results: Sequence[TrialResult]) -> bool:
    """Whether a trial of `settings` now would find its placement loaded."""
    return (
        bool(results)
        and (results[-1].outcome in {Outcome.OK, Outcome.UNSUPPORTED})
        and (results[-1].trial.settings.placement == settings.placement)
    )


def n_visits(space: Space, settings: Settings, results: Sequence[TrialResult], n_steps: int) -> int:
    """Three where they take little beside the load and the context to be read, else one.

    A single visit that something held up would speak against a whole placement.
    """
    if is_loaded(settings, results):
        return 1
    prompt_s, step_s = _foretold_s(space, settings)
    more_s = (_N_VISITS - 1) * (prompt_s + n_steps * step_s)
    return _N_VISITS if more_s <= _MORE_VISITS_FRAC * expected_s(space, settings, results) else 1


def must_compare(
    space: Space, results: Sequence[TrialResult], compared: Sequence[Trial], n_rounds: int, remaining_s: float
) -> bool:
    """Whether one more trial would take the time of `n_rounds`, those that a verdict needs.

    Not before the CPU alone and the defaults ran, unless there is no time for them; the other baselines are tried where
    there is.
    """
    if len(compared) < 2:
        return False
    due = baseline_due(space, results, remaining_s)
    baselines = baseline_trials(space)
    if due is not None and due.settings in {baselines[name].settings for name in ("cpu_only", "default")}:
        return False
    n_ctx_needed = space.workload.n_ctx_needed  # what refuses for want of context takes no time
    usual = [one.duration_s for one in results if one.trial.settings.n_ctx >= n_ctx_needed]
    next_s = statistics.median(usual) if usual else 0.0
    return remaining_s - next_s < n_rounds * round_s(results, compared)


def round_s(
    results: Sequence[TrialResult], compared: Sequence[Trial], kept: Collection[tuple[Any, ...]] | None = None
) -> float:
    """About what a round will take: a load and the counted visits of each, and as much again for what is around.

    `kept` are placements that are loaded already and stay so beside each other; None where each takes the place of the
    one before.
    """
    by_settings = {result.trial.settings: result for result in results}
    ran = [by_settings[trial.settings] for trial in compared]
    loads = {result.trial.settings.placement: result.load_ns or 0 for result in ran}
    if kept is not None:
        loads = {placement: ns for placement, ns in loads.items() if placement not in kept}
    loads_s = sum(loads.values()) / 1e9 if len(loads) > 1 or kept is not None else 0.0
    passages = [
        statistics.fmean(visit.ttft_s + sum(visit.step_ns) / 1e9 for visit in measured(result.visits)) for result in ran
    ]
    return loads_s + _ROUND_MARGIN * sum(passages)

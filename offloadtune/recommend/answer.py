"""Who is recommended. "Simple" is the number of settings a user would have to change from the target's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune.recommend import looks
from offloadtune.recommend.evidence import Case, Round
from offloadtune.recommend.limits import can_judge_limits, reached
from offloadtune.recommend.reasons import reasons
from offloadtune.records import Recommendation, Settings, TrialResult
from offloadtune.search import Space, baseline_trials


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """`chosen` is the simplest of the `tied`, of which `best` is the fastest; `left` were entrants in the beginning."""

    chosen: Settings
    best: Settings
    tied: list[Settings]
    entrants: list[Settings]
    left: list[Settings]


def recommend(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round]) -> Recommendation | None:
    """The answer so far, or None when no feasible trial has been measured. `rounds` may be empty."""
    case = Case(space=space, results=results, rounds=rounds)
    choice = _choose(case)
    if choice is None:  # nothing ran, or all that were compared have failed since
        return recommend(space, results, ()) if rounds else None
    result = case.feasible[choice.chosen]
    versus = tuple(
        case.compare(name, settings, choice.chosen) for name, settings in _compared(case, choice.chosen).items()
    )
    return Recommendation(
        goal=space.goal,
        workload=space.workload,
        trial=result.trial,
        figures=case.figures(result),
        peak_bytes=result.device_peak_bytes,
        host_peak_rss_bytes=result.host_peak_rss_bytes,
        versus=versus,
        reasons=tuple(reasons(case, result, versus, best=choice.best, n_tied=len(choice.tied))),
        evidence_trial_ids=tuple(
            case.feasible[settings].trial.trial_id for settings in (*choice.entrants, *choice.left)
        ),
        limits=reached(case, result),
    )


def is_decided(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round]) -> bool:
    """Whether a look is due after these rounds and decides all that is said of the best.

    That is the comparison with each baseline and with the fastest, of the two fastest with each other, and a percentile
    that the user set a limit to. Disturbed rounds that were left out do not make a look.
    """
    if not rounds or len(rounds) % looks.N_ROUNDS_A_LOOK:
        return False
    case = Case(space=space, results=results, rounds=rounds)
    choice = _choose(case)
    if choice is None:
        return False
    best, *others = sorted(choice.entrants, key=case.rank)
    pairs = {(settings, choice.chosen) for settings in _compared(case, choice.chosen).values()}
    pairs |= {(choice.chosen, best)}
    pairs |= {(second, best) for second in others[:1] if case.rank(second)[:-1] == case.rank(best)[:-1]}
    if not can_judge_limits(case, case.feasible[choice.chosen]):
        return False
    found = [case.pairs(other, ours) for other, ours in pairs if other != ours and not case.has_left(other)]
    return all(one.is_decided and one.ratio.n_samples >= looks.N_ROUNDS_A_LOOK for one in found)


def n_changes(settings: Settings, defaults: Settings) -> int:
    """How many settings differ from `defaults`."""
    ours, theirs = dataclasses.asdict(settings), dataclasses.asdict(defaults)
    return sum(ours[name] != theirs[name] for name in ours)


def _choose(case: Case) -> _Choice | None:
    entrants = [settings for settings in case.feasible if case.is_in_rounds(settings)]
    left = [settings for settings in case.feasible if case.has_left(settings)]
    if not entrants:
        return None
    best = min(entrants, key=case.rank)
    tied = case.tied_with(best, entrants)
    defaults = baseline_trials(case.space)["default"].settings
    chosen = min(tied, key=lambda settings: (n_changes(settings, defaults), case.rank(settings)))
    return _Choice(chosen=chosen, best=best, tied=tied, entrants=entrants, left=left)


def _compared(case: Case, chosen: Settings) -> dict[str, Settings]:
    """The baselines that the rounds say something of, by name."""
    return {
        name: trial.settings
        for name, trial in baseline_trials(case.space).items()
        if trial.settings == chosen
        or (case.rounds and (case.is_in_rounds(trial.settings) or case.has_left(trial.settings)))
    }


def losers(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round]) -> set[Settings]:
    """What all rounds held and no further one need hold: it is clearly slower than the best."""
    return Case(space=space, results=results, rounds=rounds).losers

"""Why the recommended settings won: what lies one step from them, what limits them, and who came next.

A step is answered by the best there is: the rounds, a visit each, how its own trial ended, whether the devices have
room; else by the speed law with what the trials showed that it does not know (surrogate.py), as a ratio to the
recommended settings themselves, so that what is uncertain of both cancels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint import estimate_footprints
from offloadtune.recommend.evidence import Case, Round
from offloadtune.records import Basis, Estimate, Outcome, Recommendation, Settings, TrialResult, Verdict
from offloadtune.search import Space, differences, is_allowed, is_over_limit, ran_out
from offloadtune.search.columns import Columns, cards_of
from offloadtune.search.expecting import LawsOf
from offloadtune.search.grid import Choices
from offloadtune.search.neighbours import neighbours_of
from offloadtune.search.room import dominated
from offloadtune.search.space import start_settings
from offloadtune.search.surrogate import believe, weights_of
from offloadtune.speed import N_SIGMA_90, limits_of, turn_of
from offloadtune.speed.blocks import Floats
from offloadtune.stats import inverse
from offloadtune.sweeps import Explanation, Neighbour, RunnerUp, TimeShare
from offloadtune.units import format_bytes

_COVERAGE_FRAC = 0.9
_NUMERICAL = (ArithmeticError, ValueError, np.linalg.LinAlgError)
_TINY_S = 1e-12
_FORM_FRAC = 0.3
"""How far the law's form may be wrong (standard deviation) where the time is made up otherwise altogether.

With it at least eight of ten steps lie inside their intervals on simulated machines, whose truth has another form than
the law (tests/unit/test_simulated_steps.py).
"""

_NO_LAW = "there is no law of this machine's speed that could be reckoned with"


def explain(
    space: Space, results: Sequence[TrialResult], rounds: Sequence[Round], answer: Recommendation
) -> Explanation:
    """Why `answer`, which is of these results. What cannot be reckoned without `space.laws` stays unknown."""
    case = Case(space=space, results=results, rounds=rounds)
    chosen = case.feasible.get(answer.trial.settings)
    if chosen is None:
        return Explanation(unknown="the recommended settings are not among what was measured")
    limits, unknown = _limits(space, chosen.trial.settings)
    return Explanation(
        neighbours=tuple(_neighbours(case, chosen)),
        limits=limits,
        runner_up=_runner_up(case, chosen),
        unknown=unknown,
    )


def _limits(space: Space, settings: Settings) -> tuple[tuple[TimeShare, ...], str]:
    """What takes the time, or why nobody knows."""
    if space.laws is None:
        return (), _NO_LAW
    try:
        found = limits_of(
            space.facts,
            settings,
            space.laws(settings),
            n_prompt=space.workload.n_prompt_new,
            depth=space.workload.n_prefix_cached,
        )
    except _NUMERICAL:
        return (), _NO_LAW
    return found, ""


# --- who came next -------------------------------------------------------------------------------------------------


def _runner_up(case: Case, chosen: TrialResult) -> RunnerUp | None:
    """The next best of the rounds; before any, of the first visits. None where nothing else ran."""
    ours = chosen.trial.settings
    rivals = [settings for settings in case.feasible if settings != ours and case.is_in_rounds(settings)]
    if not rivals or not case.is_in_rounds(ours):
        return None
    second = min(rivals, key=case.rank)
    if case.rounds:
        found = case.compare("the runner-up", second, ours)
        ratio, verdict = found.ratio, found.verdict
    else:
        ratio, verdict = _by_visits(case, case.feasible[second], chosen), Verdict.SAME
    return RunnerUp(trial=case.feasible[second].trial, changes=differences(second, ours), ratio=ratio, verdict=verdict)


def _by_visits(case: Case, other: TrialResult, chosen: TrialResult) -> Estimate:
    """How many times as long `other` took by its first visits: a figure without an interval."""
    ratio = case.first_cost(other) / case.first_cost(chosen)
    return Estimate(p50=ratio, low=0.0, high=math.inf, n_samples=1, coverage_frac=1.0)


# --- one step away -------------------------------------------------------------------------------------------------


def _neighbours(case: Case, chosen: TrialResult) -> list[Neighbour]:
    ours = chosen.trial.settings
    others = neighbours_of(case.space, ours)
    ratios, sizes = _reckoned(case, ours, others), estimate_footprints(case.space.facts, [ours, *others])
    room, is_beyond = _Room.of(case, chosen, sizes[0].bytes), _ran_out_with_less(case, others)
    ended = (one for one in case.results if one.outcome is not Outcome.CANCELLED)
    tried = {**{one.trial.settings: one for one in ended}, **case.feasible}
    found = []
    for settings, reckoned, size, beyond in zip(others, ratios, sizes[1:], is_beyond, strict=True):
        result = tried.get(settings)
        ratio = _measured(case, result, chosen) if result else None
        lacking = "" if ratio else _no_room(case, result) or room.lacking(settings, size.bytes) or beyond
        why = "" if ratio or lacking or not result else _end_words(result)
        ratio = ratio or (None if lacking or why else reckoned)
        found.append(
            Neighbour(
                settings=settings,
                words=", ".join(differences(settings, ours)),
                cost_ratio=ratio,
                more_device_bytes=size.bytes - sizes[0].bytes,
                no_room=lacking,
                unknown="" if ratio or lacking else why or _NO_LAW,
            )
        )
    return sorted(found, key=lambda one: _order(one, ours))


def _order(neighbour: Neighbour, ours: Settings) -> tuple[bool, float]:
    """Those first that a little more or less memory would allow, then what is better, then what matters most."""
    settings, ratio = neighbour.settings, neighbour.cost_ratio
    n_layers = settings.n_gpu_layers - ours.n_gpu_layers
    n_away = settings.n_cpu_moe - ours.n_cpu_moe or settings.n_cpu_ffn - ours.n_cpu_ffn
    if abs(n_layers) == 1 or n_away or settings.n_ctx != ours.n_ctx:
        return False, 0.0
    if ratio is None:
        return True, 1.0
    return True, -math.inf if ratio.high < 1 else -abs(math.log(ratio.p50))


def _measured(case: Case, result: TrialResult, chosen: TrialResult) -> Estimate | None:
    """What the sweep itself showed of them, None where they did not run."""
    if not is_allowed(case.space, result):
        return None
    theirs, ours = result.trial.settings, chosen.trial.settings
    shared = dataclasses.replace(case, rounds=[one for one in case.rounds if theirs in one and ours in one])
    return inverse(shared.pairs(theirs, ours).ratio) if shared.rounds else _by_visits(case, result, chosen)


def _no_room(case: Case, result: TrialResult | None) -> str:
    """What their own trial said of memory."""
    limit_bytes = case.space.limit_bytes
    if result is None or not ran_out(result, limit_bytes):
        return ""
    if is_over_limit(result, limit_bytes):
        took = format_bytes(_peak_bytes(result))
        return f"it took {took}, and you allow {format_bytes(limit_bytes or 0)}"
    return f"it {'crashed' if result.outcome is Outcome.CRASHED else 'ran out of memory'} when tried"


def _peak_bytes(result: TrialResult) -> int:
    return sum(n_bytes for _, n_bytes in result.device_peak_bytes)


def _ran_out_with_less(case: Case, others: Sequence[Settings]) -> list[str]:
    """What trials of other settings said of memory."""
    if not others:
        return []
    is_beyond = dominated(case.space, Columns.of(case.space.facts, others, cards_of(case.space)), case.results)
    return ["settings that take no more ran out of memory" if one else "" for one in is_beyond.tolist()]


def _end_words(result: TrialResult) -> str:
    """How a trial ended that says nothing of memory."""
    if result.outcome is Outcome.TIMED_OUT:
        return "it was not finished when tried"
    reason = result.reason.rstrip(".")
    return f"it did not run when tried: {reason}" if reason else "it gave no figures when tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What the devices give, which is no less than what ran took of them, and what they hold beyond any footprint."""

    given_bytes: int
    beyond_bytes: int
    is_limit: bool

    @classmethod
    def of(cls, case: Case, chosen: TrialResult, footprint_bytes: int) -> _Room:
        space = case.space
        peak = _peak_bytes(chosen)
        is_told = chosen.trial.settings.offloads and peak > 0
        return cls(
            given_bytes=max([space.device_bytes, *map(_peak_bytes, case.feasible.values())]),
            beyond_bytes=peak - footprint_bytes if is_told else space.runtime_bytes,
            is_limit=space.limit_bytes == space.device_bytes,
        )

    def lacking(self, settings: Settings, footprint_bytes: int) -> str:
        needed = footprint_bytes + self.beyond_bytes
        if not settings.offloads or needed <= self.given_bytes:
            return ""
        given = format_bytes(self.given_bytes)
        whose = f"you allow {given}" if self.is_limit else f"there are {given}"
        return f"needs about {format_bytes(needed)}, {whose}"


def _reckoned(case: Case, ours: Settings, others: Sequence[Settings]) -> list[Estimate | None]:
    """How many times as long as `ours` each of `others` should take, by the law and all trials; None without a law."""
    space = case.space
    if space.laws is None or not others:
        return [None] * len(others)
    ran = [one for one in case.results if is_allowed(space, one)]
    choices = Choices(base=start_settings(space), columns=Columns.of(space.facts, others, cards_of(space)))
    try:
        law, apart = space.laws(ours), _apart(space, space.laws, ours, others)
        belief = believe(space, choices, ran, [one.trial.settings == ours for one in ran])
    except _NUMERICAL:
        return [None] * len(others)
    basis = Basis.CALIBRATED if law.decode.runs or law.prefill.runs else Basis.CATALOGUE
    loadings = belief.loadings(np.arange(len(others)))  # the belief's own spread leaves out what cannot win
    spread = np.sqrt((loadings**2).sum(axis=1) + belief.own**2 + (_FORM_FRAC * apart) ** 2)
    return [
        Estimate(
            p50=math.exp(middle),
            low=math.exp(middle - reach),
            high=math.exp(middle + reach),
            n_samples=0,
            coverage_frac=_COVERAGE_FRAC,
            basis=basis,
        )
        for middle, reach in zip(belief.log_ratio.tolist(), (N_SIGMA_90 * spread).tolist(), strict=True)
    ]


def _apart(space: Space, laws_of: LawsOf, ours: Settings, others: Sequence[Settings]) -> Floats:
    """How otherwise the time of each of `others` is made up than that of `ours`, as a part of it, 1 at most.

    0 where all terms take as long, 1 where other terms do, or others altogether.
    """

    def seconds(settings: Settings) -> Floats:
        laws, workload = laws_of(settings), space.workload
        turn = turn_of(
            space.facts,
            settings.replace(n_seq_max=1),
            laws,
            n_prompt=workload.n_prompt_new,
            depth=workload.n_prefix_cached,
        )
        prompt, step = weights_of(space)
        return np.concatenate([prompt * laws.prefill.mean * turn.prompt, step * laws.decode.mean * turn.step])

    here, there = seconds(ours), [seconds(one) for one in others]
    return np.array(
        [
            min(float(np.abs(one - here).sum() / max(here.sum(), _TINY_S)), 1.0) if len(one) == len(here) else 1.0
            for one in there
        ]
    )

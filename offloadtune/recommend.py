"""From results to an answer in words: pure. The simplest settings inside the noise of the best win.

"Simple" is the number of settings a user would have to change from the target's own defaults.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from offloadtune import stats
from offloadtune.footprint import estimate_footprint
from offloadtune.records import (
    Comparison,
    Estimate,
    Figures,
    Goal,
    Outcome,
    Recommendation,
    Settings,
    Target,
    TrialResult,
    Verdict,
    Visit,
    Workload,
)
from offloadtune.search import (
    N_CTX_SHIPPED,
    Space,
    baseline_trials,
    can_fit,
    candidates,
    is_feasible,
    is_over_limit,
    measured,
    ran_out,
    result_cost,
    visit_cost,
)
from offloadtune.units import format_bytes, format_ratio, format_seconds, format_tok_per_s

Round = Mapping[Settings, tuple[Visit, ...]]
"""One round of the side-by-side comparison: the visits of each finalist."""

_ONE = Estimate(p50=1.0, low=1.0, high=1.0, n_samples=0, coverage_frac=1.0)
_GOAL_WORDS = {
    Goal.TURN: "the whole turn",
    Goal.TTFT: "the first token",
    Goal.DECODE: "each token",
    Goal.THROUGHPUT: "the whole turn",
    Goal.CONTEXT: "the whole turn",
}


def figures(visits: Sequence[Visit], workload: Workload) -> Figures:
    """What `visits` say of the workload, warm-ups left out. Raises ValueError without any other."""
    counted = measured(visits)
    if not counted:
        message = "no visit to take figures from"
        raise ValueError(message)
    return Figures(
        ttft_s=stats.estimate_median([visit.ttft_s for visit in counted]),
        decode_tok_per_s=stats.estimate_median([1 / visit.token_s for visit in counted]),
        prefill_tok_per_s=stats.estimate_median([visit.prefill_tok_per_s for visit in counted]),
        turn_s=stats.estimate_median([visit.turn_s(workload.n_gen) for visit in counted]),
    )


def counted_visits(result: TrialResult, rounds: Sequence[Round]) -> tuple[Visit, ...]:
    """The visits its figures are taken from: those of the rounds, once two hold it; before that its first ones too.

    First visits follow right after the feasibility run, so they are warmer than those of the rounds.
    """
    held = [one[result.trial.settings] for one in rounds if result.trial.settings in one]
    later = tuple(visit for visits in held for visit in visits)
    return later if len(held) > 1 else (*result.visits, *later)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The whole evidence of one sweep, and what is computed of it again and again."""

    space: Space
    results: Sequence[TrialResult]
    rounds: Sequence[Round]

    @property
    def noise_frac(self) -> float:
        """A/A noise of this sweep: how much the same settings differ from one round to the next."""
        everywhere = [settings for settings in (self.rounds or [{}])[0] if self.is_in_rounds(settings)]
        return stats.session_noise_frac([self.round_costs(settings) for settings in everywhere])

    @property
    def feasible(self) -> dict[Settings, TrialResult]:
        return {result.trial.settings: result for result in candidates(self.space, self.results)}

    def is_in_rounds(self, settings: Settings) -> bool:
        """Whether every round holds `settings`: a finalist that fails later is in the first ones only."""
        return all(settings in one for one in self.rounds)

    def round_costs(self, settings: Settings) -> list[float]:
        goal, workload = self.space.goal, self.space.workload
        return [
            statistics.median(visit_cost(visit, goal, workload) for visit in measured(one[settings]))
            for one in self.rounds
        ]

    def figures(self, result: TrialResult) -> Figures:
        return figures(counted_visits(result, self.rounds), self.space.workload)

    def first_cost(self, result: TrialResult) -> float:
        return result_cost(result, self.space.goal, self.space.workload)[1]

    def rank(self, settings: Settings) -> tuple[float, float]:
        first, cost = result_cost(self.feasible[settings], self.space.goal, self.space.workload)
        return first, statistics.median(self.round_costs(settings)) if self.rounds else cost

    def compare(self, name: str, other: Settings, chosen: Settings) -> Comparison:
        """`other` against `chosen`; the same settings need no measuring to be the same."""
        if other == chosen:
            return Comparison(against=name, ratio=_ONE, verdict=Verdict.SAME)
        ratio = stats.estimate_ratio(self.round_costs(other), self.round_costs(chosen))
        return Comparison(against=name, ratio=ratio, verdict=stats.judge(ratio, self.noise_frac))

    def tied_with(self, best: Settings, entrants: Sequence[Settings]) -> list[Settings]:
        """`best` and every entrant that the rounds cannot tell from it."""
        if not self.rounds:
            return [best]
        if self.space.goal is Goal.CONTEXT:
            entrants = [settings for settings in entrants if settings.n_ctx == best.n_ctx]
        return [s for s in entrants if stats.is_tie(self.compare("", s, best).ratio, self.noise_frac)]


def recommend(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round]) -> Recommendation | None:
    """The answer so far, or None when no feasible trial has been measured. `rounds` may be empty."""
    case = _Case(space=space, results=results, rounds=rounds)
    feasible = case.feasible
    if not feasible:
        return None
    entrants = [settings for settings in feasible if case.is_in_rounds(settings)]
    if not entrants:  # all that were compared have failed since
        return recommend(space, results, ())
    best = min(entrants, key=case.rank)
    tied = case.tied_with(best, entrants)
    baselines = baseline_trials(space)
    defaults = baselines["default"].settings
    chosen = min(tied, key=lambda settings: (n_changes(settings, defaults), case.rank(settings)))
    result = feasible[chosen]
    versus = tuple(
        case.compare(name, trial.settings, chosen)
        for name, trial in baselines.items()
        if trial.settings == chosen or (rounds and case.is_in_rounds(trial.settings))
    )
    return Recommendation(
        goal=space.goal,
        workload=space.workload,
        trial=result.trial,
        figures=case.figures(result),
        peak_bytes=result.device_peak_bytes,
        host_peak_rss_bytes=result.host_peak_rss_bytes,
        versus=versus,
        reasons=tuple(_reasons(case, result, versus, n_tied=len(tied) if chosen != best else 1)),
        evidence_trial_ids=tuple(feasible[settings].trial.trial_id for settings in entrants),
    )


def n_changes(settings: Settings, defaults: Settings) -> int:
    """How many settings differ from `defaults`."""
    ours, theirs = dataclasses.asdict(settings), dataclasses.asdict(defaults)
    return sum(ours[name] != theirs[name] for name in ours)


def _reasons(case: _Case, chosen: TrialResult, versus: Sequence[Comparison], n_tied: int) -> Iterator[str]:
    space, settings = case.space, chosen.trial.settings
    yield _placement_reason(case, chosen)
    for one in versus:
        yield _versus_reason(space, one, has_rounds=bool(case.rounds))
    yield from _missing_reasons(case, versus)
    if n_tied > 1:
        yield f"{n_tied} of the settings compared are the same within the noise; these change the least."
    if settings.flash_attn_type == "enabled" and "flash_attn_type" not in space.fixed:
        yield "Flash attention is on: it changes the order of the arithmetic, not the precision stored."
    for name, value in ((name, value) for name, value in space.kept.items() if name not in space.fixed):
        yield f"Kept for the sake of this engine build: {name}={value}."
    yield from _context_reasons(case, chosen)
    others = (r for r in case.results if r.trial.settings != settings)
    if not case.rounds and any(is_feasible(result, space.limit_bytes) for result in others):
        yield "No comparison side by side was finished: one visit of each decided. A larger budget gives a verdict."
    if len(case.rounds) > 1:
        noise = f"{case.noise_frac:.1%}"
        yield f"Noise of this sweep: the same settings differ by {noise} (median) from one round to the next."


def _missing_reasons(case: _Case, versus: Sequence[Comparison]) -> Iterator[str]:
    """Why there is no verdict against a baseline; where only the rounds are missing, that is said for all at once."""
    compared, by_settings = {one.against for one in versus}, {r.trial.settings: r for r in case.results}
    for name, trial in baseline_trials(case.space).items():
        result = by_settings.get(trial.settings)
        if name == "as_shipped":
            if result is not None and result.outcome is Outcome.UNSUPPORTED:
                yield f"As shipped, {case.space.target.value} does not serve this workload: {result.reason}."
            continue
        if name in compared or (name == "cpu_only" and not case.space.has_devices):
            continue
        if result is None:
            why = "it was not tried, the sweep ended first"
        elif not is_feasible(result, case.space.limit_bytes):
            why = f"it {_end_words(case, result)}"
        elif case.rounds:
            why = "it was not in every round"
        else:
            continue
        yield f"No verdict against {_baseline_words(case.space, name)}: {why}."
    if case.space.no_fit and case.space.target is Target.LLAMA_CPP_PYTHON:
        yield f"No verdict against llama.cpp's --fit rule: {case.space.no_fit}."


def _context_reasons(case: _Case, chosen: TrialResult) -> Iterator[str]:
    """What more context would have cost, where that was tried."""
    settings, goal = chosen.trial.settings, case.space.goal
    for result in case.results:
        n_ctx = result.trial.settings.n_ctx
        is_larger = n_ctx > settings.n_ctx and result.trial.settings.replace(n_ctx=settings.n_ctx) == settings
        if not is_larger or result.outcome is Outcome.CANCELLED:
            continue
        if is_feasible(result, case.space.limit_bytes):
            more, less = format_seconds(case.first_cost(result)), format_seconds(case.first_cost(chosen))
            yield f"A context of {n_ctx} runs too: {more} for {_GOAL_WORDS[goal]} against {less}, one visit each."
        else:
            yield f"A context of {n_ctx} {_end_words(case, result)}."


def _end_words(case: _Case, result: TrialResult) -> str:
    """How a trial ended that cannot be recommended: what follows after "it"."""
    reason = result.reason.rstrip(".")
    if is_over_limit(result, case.space.limit_bytes):
        return f"ran, but took {_limit_words(case.space, sum(peak for _, peak in result.device_peak_bytes))}"
    if result.outcome is Outcome.TIMED_OUT:
        return "was not finished in its time"
    if result.outcome is Outcome.CANCELLED:
        return "was not finished, the sweep was stopped"
    if result.outcome.is_out_of_memory:
        return f"does not fit: {reason}"
    return f"did not run: {reason}" if reason else "gave no figures"


def _limit_words(space: Space, n_bytes: int) -> str:
    return f"{format_bytes(n_bytes)}, over your limit of {format_bytes(space.limit_bytes or 0)}"


def _placement_reason(case: _Case, chosen: TrialResult) -> str:
    space, settings = case.space, chosen.trial.settings
    if not space.has_devices:
        return "Everything runs on the CPU: the engine lists no other device."
    is_fixed = "n_gpu_layers" in space.fixed
    if not settings.offloads:
        return "Nothing is offloaded, as you asked." if is_fixed else _no_offload_reason(case, chosen)
    took = f"{format_bytes(sum(peak for _, peak in chosen.device_peak_bytes))} of {format_bytes(space.device_bytes)}"
    if settings.n_gpu_layers >= space.everything:
        return f"All {space.everything} layers are on the device, {took}."
    layers = f"{settings.n_gpu_layers} of {space.everything} layers are on the device, {took}"
    return f"{layers}, as you asked." if is_fixed else f"{layers}; {_more_layers_words(case, settings)}."


def _more_layers_words(case: _Case, settings: Settings) -> str:
    """What is known of more layers on the device than the settings chosen have."""
    space, n_layers = case.space, settings.n_gpu_layers
    more = [r for r in case.results if r.trial.settings.n_gpu_layers > n_layers and r.outcome is not Outcome.CANCELLED]
    runs = [r.trial.settings for r in more if is_feasible(r, space.limit_bytes)]
    ran = [one.n_gpu_layers for one in runs if one.n_ctx >= settings.n_ctx]
    if ran:
        return f"{max(ran)} run too, but not faster beyond the noise"
    one_more = settings.replace(n_gpu_layers=n_layers + 1)
    needed = estimate_footprint(space.facts, one_more)
    if not can_fit(space, one_more):
        verb = "is over your limit" if space.limit_bytes == space.device_bytes else "does not fit"
        return f"one more {verb}: by the file's sizes it needs at least {format_bytes(needed.least_bytes)}"
    ended = [r for r in more if r.trial.settings not in runs and _asks_no_more(case, r.trial.settings, settings)]
    if not ended:
        return f"one more would need about {format_bytes(needed.bytes)}"
    return _ended_words(case, min(ended, key=lambda r: r.trial.settings.n_gpu_layers), n_layers)


def _asks_no_more(case: _Case, other: Settings, settings: Settings) -> bool:
    """Whether, with as many layers, `other` would not need more than `settings`: only then its end says something."""
    sizes = [
        estimate_footprint(case.space.facts, one.replace(n_gpu_layers=settings.n_gpu_layers)).bytes
        for one in (other, settings)
    ]
    return sizes[0] <= sizes[1]


def _ended_words(case: _Case, result: TrialResult, n_layers: int) -> str:
    """How the nearest trial with more than `n_layers` on the device ended."""
    tried = result.trial.settings.n_gpu_layers
    if is_over_limit(result, case.space.limit_bytes):
        took = _limit_words(case.space, sum(peak for _, peak in result.device_peak_bytes))
        return f"{tried} ran, but took {took}"
    if ran_out(result, case.space.limit_bytes):
        end = "crashed" if result.outcome is Outcome.CRASHED else "ran out of memory"
        words = f"{tried} were tried and {end}"
        return f"one more does not fit: {words}" if tried == n_layers + 1 else words
    if result.outcome is Outcome.TIMED_OUT:
        return f"{tried} were not finished in their time"
    return f"{tried} were tried and {_end_words(case, result)}"


def _no_offload_reason(case: _Case, chosen: TrialResult) -> str:
    space, ours = case.space, chosen.trial.settings
    rivals = [r for s, r in case.feasible.items() if s.offloads and s.n_ctx >= ours.n_ctx]
    one_layer = ours.replace(devices=None, n_gpu_layers=1)
    if not rivals and not can_fit(space, one_layer):
        return f"Nothing is offloaded: {_no_room_words(space, one_layer)}."
    if not rivals:
        return f"Nothing is offloaded: no placement on the device {_no_rival_words(case, ours)}."
    in_rounds = [result for result in rivals if case.rounds and case.is_in_rounds(result.trial.settings)]
    if in_rounds:
        rival = min(in_rounds, key=lambda result: case.rank(result.trial.settings))
        ratio = case.compare("", rival.trial.settings, ours).ratio
    else:
        rival = min(rivals, key=case.first_cost)
        ratio = stats.estimate_ratio([case.first_cost(rival)], [case.first_cost(chosen)])
    is_tie = stats.is_tie(ratio, case.noise_frac)
    opening = "Offloading gains nothing beyond the noise" if is_tie else "Do not offload"
    how = "the CPU alone" if ours.devices == () else "with every layer on the CPU it"
    layers = f"with {rival.trial.settings.n_gpu_layers} of {space.everything} layers on the device it"
    once = ", by one visit" if case.rounds and not in_rounds else ""
    return f"{opening}: {how} {_speed_words(case.figures(chosen))}; {layers} {_speed_words(case.figures(rival))}{once}."


def _no_room_words(space: Space, one_layer: Settings) -> str:
    """Why not even one layer was tried on the device."""
    is_limit = space.device_bytes == space.limit_bytes
    if space.device_bytes == 0:
        return "you allow no device memory" if is_limit else "no device memory is free, another program may hold it"
    needed, given = estimate_footprint(space.facts, one_layer).least_bytes, format_bytes(space.device_bytes)
    whose = f"you allow {given}" if is_limit else f"the device has {given} free"
    return f"even one layer needs at least {format_bytes(needed)}, and {whose}"


def _no_rival_words(case: _Case, ours: Settings) -> str:
    """What no placement on the device did."""
    limit_bytes = case.space.limit_bytes
    if any(settings.offloads for settings in case.feasible):
        return f"ran with a context of {ours.n_ctx}"
    if any(is_over_limit(r, limit_bytes) for r in case.results if r.trial.settings.offloads):
        return f"stayed within your limit of {format_bytes(limit_bytes or 0)}"
    return "ran to the end"


def _speed_words(figures: Figures) -> str:
    reads, writes = format_tok_per_s(figures.prefill_tok_per_s.p50), format_tok_per_s(figures.decode_tok_per_s.p50)
    return f"reads {reads} and writes {writes}, a turn of {format_seconds(figures.turn_s.p50)}"


def _baseline_words(space: Space, name: str) -> str:
    settings = baseline_trials(space)[name].settings
    raised = f" with n_ctx set to {settings.n_ctx}" if settings.n_ctx != N_CTX_SHIPPED else ""
    return {
        "cpu_only": "the CPU alone",
        "default": f"{space.target.value}'s own defaults" + raised * (space.target is Target.LLAMA_CPP_PYTHON),
        "fit": f"llama.cpp's --fit rule{space.fit_basis} ({settings.n_gpu_layers} of {space.everything} layers)",
    }[name]


def _versus_reason(space: Space, comparison: Comparison, *, has_rounds: bool) -> str:
    name, ratio = _baseline_words(space, comparison.against), comparison.ratio
    if ratio.n_samples == 0:  # the same settings
        compared = ": nothing compared side by side was better beyond the noise" if has_rounds else ""
        return f"These are the settings of {name}{compared}."
    if comparison.verdict is Verdict.SLOWER:
        ratio = dataclasses.replace(ratio, p50=1 / ratio.p50, low=1 / ratio.high, high=1 / ratio.low)
    if ratio.n_samples == 1:
        return f"{format_ratio(ratio.p50)} as long with {name}, by a single round: too few to tell."
    interval = f"95 % interval {format_ratio(ratio.low)} to {format_ratio(ratio.high)}, {ratio.n_samples} rounds"
    if comparison.verdict is Verdict.SAME:
        return f"Same as {name} within the noise ({interval})."
    return f"{format_ratio(ratio.p50)} {comparison.verdict} than {name} for {_GOAL_WORDS[space.goal]} ({interval})."

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
    Recommendation,
    Settings,
    TrialResult,
    Verdict,
    Visit,
    Workload,
)
from offloadtune.search import Space, baseline_trials, candidates, is_feasible, measured, result_cost, visit_cost
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The whole evidence of one sweep, and what is computed of it again and again."""

    space: Space
    results: Sequence[TrialResult]
    rounds: Sequence[Round]

    @property
    def noise_frac(self) -> float:
        """A/A noise of this session: how much the same settings differ from one round to the next."""
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

    def visits(self, result: TrialResult) -> tuple[Visit, ...]:
        """Those of the trial itself and of the rounds."""
        return (*result.visits, *(visit for one in self.rounds for visit in one.get(result.trial.settings, ())))

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
        figures=figures(case.visits(result), space.workload),
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
        yield _versus_reason(space, one)
    if n_tied > 1:
        yield f"{n_tied} of the settings compared are the same within the noise; these change the least."
    if settings.flash_attn_type == "enabled" and "flash_attn_type" not in space.fixed:
        yield "Flash attention is on: it changes the order of the arithmetic, not the precision stored."
    for name, value in space.kept.items():
        yield f"Kept for the sake of this engine build: {name}={value}."
    yield from _context_reasons(case, chosen)
    if not case.rounds:
        yield "There was no time to compare side by side: one visit of each decided. A larger budget gives a verdict."
    if len(case.rounds) > 1:
        noise = f"{case.noise_frac:.1%}"
        yield f"Noise of this session: the same settings differ by {noise} (median) from one round to the next."


def _context_reasons(case: _Case, chosen: TrialResult) -> Iterator[str]:
    """What more context would have cost, where that was measured."""
    settings, goal, workload = chosen.trial.settings, case.space.goal, case.space.workload
    for result in case.results:
        n_ctx = result.trial.settings.n_ctx
        if n_ctx > settings.n_ctx and result.trial.settings.replace(n_ctx=settings.n_ctx) == settings:
            if is_feasible(result, case.space.limit_bytes):
                more = format_seconds(result_cost(result, goal, workload)[1])
                less = format_seconds(result_cost(chosen, goal, workload)[1])
                yield f"A context of {n_ctx} runs too: {more} for {_GOAL_WORDS[goal]} against {less}, one visit each."
            else:
                yield f"A context of {n_ctx} does not run: {result.reason}."


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
    n_layers, limit_bytes = settings.n_gpu_layers, case.space.limit_bytes
    more = [result for result in case.results if result.trial.settings.n_gpu_layers > n_layers]
    runs = [result for result in more if is_feasible(result, limit_bytes)]
    ran = [result.trial.settings.n_gpu_layers for result in runs if result.trial.settings.n_ctx >= settings.n_ctx]
    if ran:
        return f"{max(ran)} run too, but not faster beyond the noise"
    failed = min((result.trial.settings.n_gpu_layers for result in more if result not in runs), default=None)
    if failed is not None:
        tried = f"{failed} were tried and did not run"
        return f"one more does not fit: {tried}" if failed == n_layers + 1 else tried
    needed = estimate_footprint(case.space.facts, settings.replace(n_gpu_layers=n_layers + 1))
    return f"one more would need about {format_bytes(needed.bytes)}"


def _no_offload_reason(case: _Case, chosen: TrialResult) -> str:
    workload, everything = case.space.workload, case.space.everything
    rivals = [result for settings, result in case.feasible.items() if settings.offloads]
    if not rivals:
        return "Nothing is offloaded: no placement on the device ran to the end."
    rival = min(rivals, key=lambda result: result_cost(result, case.space.goal, workload))
    ours, theirs = figures(case.visits(chosen), workload), figures(case.visits(rival), workload)
    how = "the CPU alone" if chosen.trial.settings.devices == () else "with every layer on the CPU it"
    return (
        f"Do not offload: {how} {_speed_words(ours)}; with {rival.trial.settings.n_gpu_layers} of {everything} "
        f"layers on the device it {_speed_words(theirs)}."
    )


def _speed_words(figures: Figures) -> str:
    reads, writes = format_tok_per_s(figures.prefill_tok_per_s.p50), format_tok_per_s(figures.decode_tok_per_s.p50)
    return f"reads {reads} and writes {writes}, a turn of {format_seconds(figures.turn_s.p50)}"


def _versus_reason(space: Space, comparison: Comparison) -> str:
    names = {"cpu_only": "the CPU alone", "default": f"{space.target.value}'s own defaults"}
    name, ratio = names[comparison.against], comparison.ratio
    if ratio.n_samples == 0:  # the same settings
        return f"These are the settings of {name}: nothing tried was better."
    if comparison.verdict is Verdict.SLOWER:
        ratio = dataclasses.replace(ratio, p50=1 / ratio.p50, low=1 / ratio.high, high=1 / ratio.low)
    if ratio.n_samples == 1:
        return f"{format_ratio(ratio.p50)} as long with {name}, by a single round: too few to tell."
    interval = f"95 % interval {format_ratio(ratio.low)} to {format_ratio(ratio.high)}, {ratio.n_samples} rounds"
    if comparison.verdict is Verdict.SAME:
        return f"Same as {name} within the noise ({interval})."
    return f"{format_ratio(ratio.p50)} {comparison.verdict} than {name} for {_GOAL_WORDS[space.goal]} ({interval})."

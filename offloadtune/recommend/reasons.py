"""Why these settings, in sentences: what was found, what it is compared with, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offloadtune.footprint import estimate_footprint
from offloadtune.recommend.evidence import Case
from offloadtune.recommend.limits import limit_reasons
from offloadtune.recommend.looks import N_ROUNDS_LEAST, N_ROUNDS_MOST
from offloadtune.records import Comparison, Figures, Goal, Outcome, Settings, Target, TrialResult, Verdict
from offloadtune.search import (
    N_CTX_SHIPPED,
    Space,
    baseline_trials,
    can_fit,
    can_hold,
    is_allowed,
    is_over_limit,
    is_over_ram,
    least_host_bytes,
    ran_out,
    settings_of_target,
)
from offloadtune.stats import PairedComparison, inverse
from offloadtune.units import format_bytes, format_count, format_ratio, format_seconds, format_tok_per_s

_GOAL_WORDS = {
    Goal.TURN: "the whole turn",
    Goal.TTFT: "the first token",
    Goal.DECODE: "each token",
    Goal.THROUGHPUT: "the whole turn",
    Goal.CONTEXT: "the whole turn",
}


def reasons(
    case: Case, chosen: TrialResult, versus: Sequence[Comparison], *, best: Settings, n_tied: int
) -> Iterator[str]:
    """What is to be said of the choice; `n_tied` may stand for the fastest, `best`, as far as the rounds tell."""
    space, settings = case.space, chosen.trial.settings
    yield from limit_reasons(case, chosen)
    yield _placement_reason(case, chosen)
    for one in versus:
        yield _versus_reason(case, one, settings)
    yield from _missing_reasons(case, versus)
    if settings != best:
        yield _tie_reason(case, settings, best, n_tied)
    if settings.flash_attn_type == "enabled" and "flash_attn_type" not in space.fixed:
        yield "Flash attention is on: it changes the order of the arithmetic, not the precision stored."
    yield from _cache_reasons(space, settings)
    for name, value in ((name, value) for name, value in space.kept.items() if name not in space.fixed):
        yield f"Kept for the sake of this engine build: {name}={value}."
    yield from _context_reasons(case, chosen)
    others = (r for r in case.results if r.trial.settings != settings)
    if not case.rounds and any(is_allowed(space, result) for result in others):
        yield "No comparison side by side was finished: one visit of each decided. A larger budget gives a verdict."
    if len(case.rounds) > 1:
        noise = f"{case.noise_frac:.1%}"
        yield f"Noise of this sweep: the same settings differ by {noise} (median) from one round to the next."


def _cache_reasons(space: Space, settings: Settings) -> Iterator[str]:
    """What a cache that is not the front end's own changes besides time."""
    own = settings_of_target(space.target)
    if settings.offloads and settings.offload_kqv != own.offload_kqv and "offload_kqv" not in space.fixed:
        yield "Keys and values stay in main memory: that leaves the device room for weights."
    if any(space.facts.is_swa) and settings.swa_full < own.swa_full and "swa_full" not in space.fixed:
        yield (
            "Blocks with a sliding window keep what it shows and no more: a conversation that goes back to an earlier "
            "point is read anew."
        )


def _tie_reason(case: Case, ours: Settings, best: Settings, n_tied: int) -> str:
    found = case.pairs(ours, best)
    if found.is_decided:
        return f"{n_tied} of the settings compared are the same within the noise; these change the least."
    tied = f"{n_tied} of the settings compared are not told apart beyond the noise; these change the least"
    return f"{tied}{_more_words(found)}."


def _missing_reasons(case: Case, versus: Sequence[Comparison]) -> Iterator[str]:
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
        if result is None and not can_hold(case.space, trial.settings):
            needed = least_host_bytes(case.space.facts, trial.settings)
            why = f"main memory would hold at least {_ram_words(case.space, needed)}"
        elif result is None:
            why = "it was not tried, the sweep ended first"
        elif not is_allowed(case.space, result):
            why = f"it {_end_words(case, result)}"
        elif case.rounds:
            why = "it was not in every round"
        else:
            continue
        yield f"No verdict against {_baseline_words(case.space, name)}: {why}."
    if case.space.no_fit and case.space.target is Target.LLAMA_CPP_PYTHON:
        yield f"No verdict against llama.cpp's --fit rule: {case.space.no_fit}."


def _context_reasons(case: Case, chosen: TrialResult) -> Iterator[str]:
    """What more context would have cost, where that was tried."""
    settings, goal = chosen.trial.settings, case.space.goal
    for result in case.results:
        n_ctx = result.trial.settings.n_ctx
        is_larger = n_ctx > settings.n_ctx and result.trial.settings.replace(n_ctx=settings.n_ctx) == settings
        if not is_larger or result.outcome is Outcome.CANCELLED:
            continue
        if is_allowed(case.space, result):
            more, less = format_seconds(case.first_cost(result)), format_seconds(case.first_cost(chosen))
            missed = ", but not within your limits" * (case.shortfall(result) > 0)
            costs = f"{more} for {_GOAL_WORDS[goal]} against {less}, one visit each"
            yield f"A context of {n_ctx} runs too{missed}: {costs}."
        else:
            yield f"A context of {n_ctx} {_end_words(case, result)}."


def _end_words(case: Case, result: TrialResult) -> str:
    """How a trial ended that cannot be recommended: what follows after "it"."""
    reason = result.reason.rstrip(".")
    if is_over_limit(result, case.space.limit_bytes):
        return f"ran, but took {_limit_words(case.space, sum(peak for _, peak in result.device_peak_bytes))}"
    if is_over_ram(case.space, result):
        return f"ran, but main memory held {_ram_words(case.space, result.host_peak_rss_bytes or 0)}"
    if result.outcome is Outcome.TIMED_OUT:
        return "was not finished in its time"
    if result.outcome is Outcome.CANCELLED:
        return "was not finished, the sweep was stopped"
    if result.outcome.is_out_of_memory:
        return f"does not fit: {reason}"
    return f"did not run: {reason}" if reason else "gave no figures"


def _limit_words(space: Space, n_bytes: int) -> str:
    return f"{format_bytes(n_bytes)}, over your limit of {format_bytes(space.limit_bytes or 0)}"


def _ram_words(space: Space, n_bytes: int) -> str:
    return f"{format_bytes(n_bytes)}, over your limit of {format_bytes(space.limits.host_bytes or 0)}"


def _placement_reason(case: Case, chosen: TrialResult) -> str:
    space, settings = case.space, chosen.trial.settings
    if not space.has_devices:
        return "Everything runs on the CPU: the engine lists no other device."
    is_fixed = "n_gpu_layers" in space.fixed
    if not settings.offloads:
        return "Nothing is offloaded, as you asked." if is_fixed else _no_offload_reason(case, chosen)
    took = f"{format_bytes(sum(peak for _, peak in chosen.device_peak_bytes))} of {format_bytes(space.device_bytes)}"
    if settings.n_cpu_moe:
        took = f"the experts of {format_count(settings.n_cpu_moe, 'block')} in main memory; {took}"
    if settings.n_cpu_ffn:
        took = f"the feed-forward weights of {format_count(settings.n_cpu_ffn, 'block')} in main memory; {took}"
    if settings.n_gpu_layers >= space.everything:
        return f"All {space.everything} layers are on the device, {took}."
    layers = f"{settings.n_gpu_layers} of {space.everything} layers are on the device, {took}"
    return f"{layers}, as you asked." if is_fixed else f"{layers}; {_more_layers_words(case, settings)}."


def _more_layers_words(case: Case, settings: Settings) -> str:
    """What is known of more layers on the device than the settings chosen have."""
    space, n_layers = case.space, settings.n_gpu_layers
    more = [r for r in case.results if r.trial.settings.n_gpu_layers > n_layers and r.outcome is not Outcome.CANCELLED]
    runs = [r.trial.settings for r in more if is_allowed(space, r)]
    ran = [one.n_gpu_layers for one in runs if one.n_ctx >= settings.n_ctx]
    if ran:
        or_limits = " or not within your limits" * space.limits.are_of_speed
        return f"{max(ran)} run too, but not faster beyond the noise{or_limits}"
    one_more = settings.replace(n_gpu_layers=n_layers + 1)
    needed = estimate_footprint(space.facts, one_more)
    if not can_fit(space, one_more):
        verb = "is over your limit" if space.limit_bytes == space.device_bytes else "does not fit"
        return f"one more {verb}: by the file's sizes it needs at least {format_bytes(needed.least_bytes)}"
    ended = [r for r in more if r.trial.settings not in runs and _asks_no_more(case, r.trial.settings, settings)]
    if not ended:
        return f"one more would need about {format_bytes(needed.bytes)}"
    return _ended_words(case, min(ended, key=lambda r: r.trial.settings.n_gpu_layers), n_layers)


def _asks_no_more(case: Case, other: Settings, settings: Settings) -> bool:
    """Whether, with as many layers, `other` would not need more than `settings`: only then its end says something."""
    sizes = [
        estimate_footprint(case.space.facts, one.replace(n_gpu_layers=settings.n_gpu_layers)).bytes
        for one in (other, settings)
    ]
    return sizes[0] <= sizes[1]


def _ended_words(case: Case, result: TrialResult, n_layers: int) -> str:
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


def _no_offload_reason(case: Case, chosen: TrialResult) -> str:
    space, ours = case.space, chosen.trial.settings
    rivals = [r for s, r in case.feasible.items() if s.offloads and s.n_ctx >= ours.n_ctx]
    one_layer = ours.replace(devices=None, n_gpu_layers=1)
    if not rivals and not can_fit(space, one_layer):
        return f"Nothing is offloaded: {_no_room_words(space, one_layer)}."
    if not rivals:
        return f"Nothing is offloaded: no placement on the device {_no_rival_words(case, ours)}."
    compared = {s for s in case.feasible if case.rounds and (case.is_in_rounds(s) or case.has_left(s))}
    in_rounds = [result for result in rivals if result.trial.settings in compared]
    if in_rounds:
        rival = min(in_rounds, key=lambda result: case.rank(result.trial.settings))
        is_tie = case.is_tie(rival.trial.settings, ours)
    else:
        rival = min(rivals, key=case.first_cost)
        is_tie = case.first_cost(rival) <= (1 + case.noise_frac) * case.first_cost(chosen)
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


def _no_rival_words(case: Case, ours: Settings) -> str:
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


def _versus_reason(case: Case, comparison: Comparison, ours: Settings) -> str:
    name, ratio = _baseline_words(case.space, comparison.against), comparison.ratio
    if ratio.n_samples == 0:  # the same settings
        within = " within your limits" * case.space.limits.are_of_speed
        better = f": nothing compared side by side{within} was better beyond the noise"
        return f"These are the settings of {name}{better * bool(case.rounds)}."
    if comparison.verdict is Verdict.SLOWER:
        ratio = inverse(ratio)
    if ratio.n_samples < N_ROUNDS_LEAST:
        rounds = {1: "a single round", 2: "two rounds"}[ratio.n_samples]
        return f"{format_ratio(ratio.p50)} as long with {name}, by {rounds}: too few to tell."
    interval = f"95 % interval {format_ratio(ratio.low)} to {format_ratio(ratio.high)}, {ratio.n_samples} rounds"
    if comparison.verdict is not Verdict.SAME:
        faster = f"{format_ratio(ratio.p50)} {comparison.verdict} than {name}"
        return f"{faster} for {_GOAL_WORDS[case.space.goal]} ({interval})."
    found = case.pairs(baseline_trials(case.space)[comparison.against].settings, ours)
    if found.is_decided:
        return f"Same as {name} within the noise ({interval})."
    return f"No difference from {name} shown beyond the noise ({interval}){_more_words(found)}."


def _more_words(found: PairedComparison) -> str:
    """How many more rounds would decide what is open, where a sweep may have as many."""
    n_more = found.n_more_pairs
    if n_more is None or found.ratio.n_samples + n_more > N_ROUNDS_MOST:
        return f": {N_ROUNDS_MOST} rounds would hardly decide it"
    return f": about {format_count(n_more, 'more round')} would decide it, with a larger --budget"

"""The plan of a sweep, first cut: placements by predicted bytes, then one step at a time around the best.

Order: everything on the device; where that cannot be, the largest n_gpu_layers that can, found by bisection over
predicted bytes (compute buffers are not monotone in layers, so layers are never what is compared); the CPU alone;
what the target would do unasked; then neighbours of the best so far, nearest the expected gain first. Only settings
that leave the stored precision of weights and cache alone are ever proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offloadtune.footprint import estimate_footprint, pad_256
from offloadtune.records import GgufFacts, Goal, Settings, Target, Trial, TrialResult, Workload
from offloadtune.search.cost import is_feasible, result_cost
from offloadtune.units import format_bytes, format_count

_SMALLEST_UBATCH = 64
_N_BEST_FINALISTS = 3
_FIT_MARGIN_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried. `device_bytes` is what the offload devices together have to give, 0 without any.

    `fixed` are settings the user named, `kept` those the self-test needs to stay alive; both hold everywhere, in
    the baselines too, but for n_gpu_layers of the CPU alone. `limit_bytes` is the user's own limit on device memory.
    """

    facts: GgufFacts
    workload: Workload
    goal: Goal
    target: Target
    n_ctx: int
    device_bytes: int
    limit_bytes: int | None
    n_physical_cores: int
    n_logical_cores: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def everything(self) -> int:
        """n_gpu_layers that puts every layer, the output too, on the device."""
        return self.facts.n_layer + 1

    @property
    def has_devices(self) -> bool:
        return self.device_bytes > 0

    def hold(self, settings: Settings) -> Settings:
        """`settings` with what the self-test keeps and the user fixed; n_batch gives way to a larger fixed n_ubatch."""
        held = {**self.kept, **self.fixed}
        n_batch = max(settings.n_batch, held.get("n_ubatch", 0))
        return settings.replace(**{"n_batch": n_batch, **held})


def start_settings(space: Space) -> Settings:
    """Where the search begins on the CPU: the target's constraints, one thread a core, flash attention."""
    common = Settings(
        n_ctx=space.n_ctx,
        n_threads=space.n_physical_cores,
        n_threads_batch=space.n_physical_cores,
        flash_attn_type="enabled",
    )
    if space.target is Target.LLAMA_SERVER:
        common = common.replace(n_batch=2048, flash_attn_type="auto", swa_full=False, n_outputs_max=1)
    return space.hold(_sane(common))


def default_settings(space: Space) -> Settings:
    """What the target does unasked, only n_ctx raised so that the workload runs.

    llama-cpp-python: Llama.__init__ (CPU, half of the logical cores, no flash attention). llama-server: arg.cpp
    (four slots, all layers) with its --fit rule for the number of layers: one GiB stays free.
    """
    if space.target is Target.LLAMA_CPP_PYTHON:
        settings = Settings(
            n_ctx=space.n_ctx,
            n_threads=max(space.n_logical_cores // 2, 1),
            n_threads_batch=space.n_logical_cores,
            flash_attn_type="disabled",
        )
        return space.hold(_sane(settings))
    settings = start_settings(space).replace(n_seq_max=4, n_outputs_max=4, kv_unified=True)
    return space.hold(settings.replace(n_gpu_layers=_fit_rule(space, settings)))


def baseline_trials(space: Space) -> dict[str, Trial]:
    """What the recommendation is compared with, by name; without devices "cpu_only" is where the search begins."""
    cpu_only = start_settings(space)
    if space.has_devices:
        cpu_only = cpu_only.replace(n_gpu_layers=0, devices=())
    return {
        "cpu_only": _trial(space, cpu_only, "the CPU alone"),
        "default": _trial(space, default_settings(space), f"{space.target.value} with its own defaults"),
    }


def next_trial(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """The next trial worth its time, or None when the plan is done."""
    tried = {result.trial.settings for result in results}
    if space.has_devices and "n_gpu_layers" not in space.fixed:
        trial = _next_placement(space, results)
        if trial is not None:
            return trial
    elif space.has_devices:
        fixed = _trial(space, start_settings(space), "the layers you asked for")
        if fixed.settings not in tried:
            return fixed
    for trial in baseline_trials(space).values():
        if trial.settings not in tried:
            return trial
    feasible = candidates(space, results)
    if not feasible:
        return None
    best = min(feasible, key=lambda result: result_cost(result, space.goal, space.workload))
    for settings, why in _neighbours(space, best.trial.settings):
        if settings not in tried and _can_fit(space, settings):
            return _trial(space, settings, why)
    return None


def candidates(space: Space, results: Sequence[TrialResult]) -> list[TrialResult]:
    """Results that may be recommended: feasible, as the user fixed them, and with the context wanted.

    With the goal `context` a larger one will do too.
    """
    return [
        result
        for result in results
        if is_feasible(result, space.limit_bytes)
        and (space.goal is Goal.CONTEXT or result.trial.settings.n_ctx == space.n_ctx)
        and all(getattr(result.trial.settings, name) == value for name, value in space.fixed.items())
    ]


def finalists(space: Space, results: Sequence[TrialResult]) -> tuple[Trial, ...]:
    """Who is compared side by side: the best few and the baselines that ran."""
    feasible = candidates(space, results)
    ranked = sorted(feasible, key=lambda result: result_cost(result, space.goal, space.workload))
    chosen = [result.trial for result in ranked[:_N_BEST_FINALISTS]]
    ran = {result.trial.settings for result in results if is_feasible(result, space.limit_bytes)}
    rivals = baseline_trials(space)
    if not space.has_devices:
        del rivals["cpu_only"]
    chosen += [trial for trial in rivals.values() if trial.settings in ran]
    unique = {trial.settings: trial for trial in chosen}
    return tuple(sorted(unique.values(), key=lambda trial: repr(trial.settings.placement)))  # neighbours share a load


def skipped(space: Space) -> tuple[str, ...]:
    """What is left out, each with its reason."""
    reasons = []
    full = start_settings(space).replace(n_gpu_layers=space.everything)
    if space.has_devices and not _can_fit(space, full):
        needed = estimate_footprint(space.facts, full).least_bytes
        reasons.append(
            f"all {space.everything} layers on the device: weights and cache alone need {format_bytes(needed)}, "
            f"it has {format_bytes(space.device_bytes)}"
        )
    if space.workload.n_prompt_new <= 512:
        reasons.append(f"n_ubatch above 512: a prompt of {space.workload.n_prompt_new} new tokens is one batch already")
    reasons.append("quantised KV cache: it changes the stored precision")
    return tuple(reasons)


def _next_placement(space: Space, results: Sequence[TrialResult]) -> Trial | None:
    """Everything, else bisection: `low` ran, `high` did not or cannot; both are places on a ladder sorted by bytes."""
    base = start_settings(space)
    ladder = sorted(
        (base.replace(n_gpu_layers=k) for k in range(1, space.everything + 1)),
        key=lambda settings: estimate_footprint(space.facts, settings).bytes,
    )
    by_settings = {result.trial.settings: result for result in results}
    low, high = -1, len(ladder)
    for i, settings in enumerate(ladder):
        result = by_settings.get(settings)
        if result is not None and is_feasible(result, space.limit_bytes):
            low = max(low, i)
        elif result is not None or not _can_fit(space, settings):
            high = min(high, i)
    if high - low <= 1:
        return None
    if high == len(ladder):
        return _trial(space, ladder[-1], "every layer on the device")
    likely = [i for i in range(low + 1, high) if estimate_footprint(space.facts, ladder[i]).bytes <= space.device_bytes]
    untouched = low == -1 and not any(settings in by_settings for settings in ladder[:-1])
    i = likely[-1] if untouched and likely else (low + high) // 2
    return _trial(space, ladder[i], f"{ladder[i].n_gpu_layers} of {space.everything} layers on the device")


def _neighbours(space: Space, best: Settings) -> Iterator[tuple[Settings, str]]:
    """One step from `best` in each direction that can matter, none that the user or the self-test fixed."""
    steps: list[tuple[dict[str, Any], str]] = []
    other = "disabled" if best.flash_attn_type != "disabled" else "enabled"
    steps.append(({"flash_attn_type": other}, f"flash attention {other}"))
    for n_ubatch in (best.n_ubatch * 2, best.n_ubatch // 2):
        useful = n_ubatch < 2 * space.workload.n_prompt_new or n_ubatch < best.n_ubatch
        if n_ubatch >= _SMALLEST_UBATCH and useful:
            changes = {"n_ubatch": n_ubatch, "n_batch": max(best.n_batch, n_ubatch)}
            steps.append((changes, f"n_ubatch {n_ubatch}"))
    if best.n_gpu_layers < space.everything or best.devices == ():
        for n_threads in sorted({max(space.n_physical_cores // 2, 1), space.n_physical_cores, space.n_logical_cores}):
            steps.append(({"n_threads": n_threads}, f"{format_count(n_threads, 'thread')} for decoding"))
            steps.append(({"n_threads_batch": n_threads}, f"{format_count(n_threads, 'thread')} for prompts"))
    n_ctx = best.n_ctx * 2
    if space.goal is Goal.CONTEXT:  # the last step may be a short one
        n_ctx = min(n_ctx, space.facts.n_ctx_train // 256 * 256)
    if best.n_ctx < n_ctx <= space.facts.n_ctx_train:
        steps.append(({"n_ctx": n_ctx}, f"more context, {n_ctx}"))
    held = {**space.kept, **space.fixed}
    for changes, why in steps:
        if not any(name in held for name in changes):
            yield space.hold(_sane(best.replace(**changes))), why


def _sane(settings: Settings) -> Settings:
    """As the engine will round it: contexts in blocks of 256, a batch no larger than the context."""
    n_ctx = pad_256(settings.n_ctx)
    n_batch = min(settings.n_batch, n_ctx)
    return settings.replace(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(settings.n_ubatch, n_batch))


def _can_fit(space: Space, settings: Settings) -> bool:
    """False only when weights and cache alone are more than there is; without devices nothing goes there."""
    return not space.has_devices or estimate_footprint(space.facts, settings).least_bytes <= space.device_bytes


def _fit_rule(space: Space, settings: Settings) -> int:
    """Largest n_gpu_layers that leaves the margin of llama.cpp's --fit free, by our estimate."""
    available = space.device_bytes - _FIT_MARGIN_BYTES
    for k in range(space.everything, 0, -1):
        if estimate_footprint(space.facts, settings.replace(n_gpu_layers=k)).bytes <= available:
            return k
    return 0


def _trial(space: Space, settings: Settings, why: str) -> Trial:
    return Trial(settings=settings, target=space.target, why=why)

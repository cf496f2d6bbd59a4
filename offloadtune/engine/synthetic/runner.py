"""Trials on a simulated clock: what `engine.Runner` is asked, answered at once by the truth and by noise.

No process, no sleeping, no file. One placement is loaded at a time, as there, and all that takes time there moves
`clock_s` here: starting, loading, opening, the feasibility run to the end of the context, the warm-up, the visits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from offloadtune.engine.classify import classify
from offloadtune.engine.runner import VisitPlan
from offloadtune.engine.synthetic.machines import SyntheticMachine
from offloadtune.engine.synthetic.noise import Noise, NoiseSource
from offloadtune.engine.synthetic.truth import Truth, most_bytes, prompt_s, truth
from offloadtune.records import Device, EngineBuild, Evidence, MemoryUse, Outcome, Settings, Trial, TrialResult, Visit

_N_WARMUP_STEPS = 2
_TOKENIZE_S = 2e-6
_START_S = 1.5
_DRAIN_S = 0.4
_REFUSED_PART = 0.6
"""Of a load, when an allocation that cannot be had is asked for."""


class _EndedError(Exception):
    """A trial's time was over, or its memory."""

    def __init__(self, evidence: Evidence, *, timed_out: bool = False) -> None:
        super().__init__(evidence.abort_text)
        self.evidence, self.timed_out = evidence, timed_out


class SyntheticRunner:
    """A context manager, as `engine.Runner` is. The same seed and the same calls give the same answers."""

    pids: tuple[int, ...] = ()

    def __init__(self, machine: SyntheticMachine, *, seed: int = 0, noise: Noise | None = None) -> None:
        self.machine = machine
        self.clock_s = 0.0
        self.n_model_loads = 0
        self.around_visits: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._source = NoiseSource(Noise() if noise is None else noise, seed)
        self._placement: tuple[Any, ...] | None = None
        self._load_ns = 0
        self._busy_s = 0.0
        self._is_cached = self._is_started = False
        self._saved: set[tuple[Any, ...]] = set()
        self._truths: dict[tuple[Any, ...], Truth] = {}
        self._deadline_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what is loaded."""
        self.kill()

    def kill(self) -> None:
        """The next call starts anew."""
        self._forget()
        self._is_started = False

    def unload(self) -> None:
        """Free the placement."""
        if self._placement is not None:
            self._forget()
            self.clock_s += _DRAIN_S

    def _forget(self) -> None:
        self._placement = None
        self._saved.clear()

    def describe(self) -> tuple[EngineBuild, tuple[Device, ...]]:
        """An engine that is none, and the card as its driver describes it."""
        card = self.machine.card
        build = EngineBuild(version="synthetic 1", build_id="synthetic", system_info="simulated", library_dir="")
        if card is None:
            return build, ()
        device = Device(
            name=card.name,
            description=f"{card.description} (synthetic)",
            kind="gpu",
            total_bytes=card.total_bytes,
            free_bytes=said_free_bytes(self.machine),
        )
        return build, (device,)

    def fit_layers(self, settings: Settings, margin_bytes: int, *, timeout_s: float) -> tuple[int | None, bool]:  # noqa: ARG002 - as there
        """The most layers that leave `margin_bytes` of what the driver says is free."""
        if self.machine.card is None:
            return None, False
        ladder = [settings.replace(n_gpu_layers=k) for k in range(self.machine.blocks.n_layer + 2)]
        taken = self.machine.memory(ladder).device_bytes + margin_bytes
        fitting = np.flatnonzero(taken <= said_free_bytes(self.machine))
        most = int(fitting[-1]) if len(fitting) else 0
        return (-1 if most > self.machine.blocks.n_layer else most), True

    def try_tiny(self, settings: Settings, *, timeout_s: float) -> tuple[Outcome, str, Evidence | None]:
        """A simulated build needs nothing to live."""
        del settings, timeout_s
        return Outcome.OK, "", None

    def run(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> TrialResult:
        """Everything one trial shows; see `engine.Runner.run`."""
        start_s, self._deadline_s = self.clock_s, self.clock_s + timeout_s
        seen: dict[str, Any] = {}
        outcome, reason, evidence = Outcome.OK, "", None
        try:
            if refusal := self._run_into(seen, trial.settings, plan):
                outcome, reason = Outcome.UNSUPPORTED, refusal
        except _EndedError as error:
            outcome, reason, evidence = self._failed(error, trial.settings)
        duration_s = self.clock_s - start_s
        return TrialResult(
            trial=trial, outcome=outcome, reason=reason, evidence=evidence, duration_s=round(duration_s, 3), **seen
        )

    def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        """More visits of a trial that was feasible; a TrialResult when its time is over."""
        self._deadline_s = self.clock_s + timeout_s
        try:
            self._place(trial.settings)
            self._open(trial.settings)
            return self._visits(trial.settings, plan)
        except _EndedError as error:
            outcome, reason, evidence = self._failed(error, trial.settings)
            return TrialResult(trial=trial, outcome=outcome, reason=reason, evidence=evidence)

    # --- what takes time -----------------------------------------------------------------------------------------

    def _run_into(self, seen: dict[str, Any], settings: Settings, plan: VisitPlan) -> str:
        """Fill `seen` as things become known; returns why the workload is not for this context, "" where it is."""
        self._place(settings)
        seen["load_ns"] = self._load_ns
        device_bytes, host_bytes = self._open(settings)
        seen["memory"] = self._memory(device_bytes, host_bytes)
        n_ubatch = min(settings.n_ubatch, settings.n_batch)
        seen["effective"] = (("n_ubatch", n_ubatch),) if n_ubatch != settings.n_ubatch else ()
        workload = plan.workload
        if settings.n_ctx < workload.n_ctx_needed:
            return f"its context of {settings.n_ctx} ends before the turn"
        self._reach(settings, settings.n_ctx - 1 - n_ubatch)
        self._spend(self._prompt_s(settings, n_ubatch, settings.n_ctx - 1 - n_ubatch), is_busy=True)
        if self.machine.card is not None:
            peak = min(device_bytes, self.machine.card.free_bytes)  # free memory cannot fall by more
            seen["device_peak_bytes"] = ((self.machine.card.name, peak),)
        seen["host_peak_rss_bytes"] = host_bytes
        seen["visits"] = self._visits(settings, plan)
        return ""

    def _place(self, settings: Settings) -> None:
        if not self._is_started:
            self._is_started = True
            self._spend(_START_S)
        if self._placement == settings.placement:
            return
        if self._placement is not None:
            self._forget()
            self._spend(_DRAIN_S)
        self.n_model_loads += 1
        host, blocks = self.machine.host, self.machine.blocks
        taken = self.machine.memory((settings.replace(n_ctx=256, n_batch=32, n_ubatch=32),))
        device_bytes, host_bytes = int(taken.device_bytes[0]), int(taken.host_bytes[0])
        rate = host.cached_bytes_per_s if self._is_cached else host.disk_bytes_per_s
        load_s = host.load_s + blocks.file_bytes / rate
        if self.machine.card is not None:
            load_s = max(load_s, device_bytes / self.machine.card.link_bytes_per_s)
        is_refused = device_bytes > most_bytes(self.machine)
        self._spend(load_s * (_REFUSED_PART if is_refused else 1.0))
        if is_refused:
            raise _EndedError(_out_of_memory("load", device_bytes))
        if host_bytes > host.ram_bytes:
            raise _EndedError(Evidence(phase="load", abort_text="synthetic: std::bad_alloc"))
        self._is_cached = blocks.file_bytes <= host.ram_bytes
        self._source.loaded()
        self._placement, self._load_ns = settings.placement, round(load_s * 1e9)

    def _open(self, settings: Settings) -> tuple[int, int]:
        """Bytes that the card and main memory then hold."""
        self._spend(self.machine.host.open_s)
        taken = self.machine.memory((settings,))
        device_bytes, host_bytes = int(taken.device_bytes[0]), int(taken.host_bytes[0])
        if device_bytes > most_bytes(self.machine):
            raise _EndedError(_out_of_memory("open", device_bytes))
        return device_bytes, host_bytes

    def _reach(self, settings: Settings, depth: int) -> None:
        """Bring the cache to `depth`; what a longer text left behind is restored in no time."""
        if depth <= 0:
            return
        key = (settings.type_k, settings.type_v, settings.flash_attn_type, settings.swa_full)
        saved = max((one[-1] for one in self._saved if one[:-1] == key and one[-1] <= depth), default=0)
        if depth > saved:
            self._spend(self._prompt_s(settings, depth - saved, saved), is_busy=True)
            self._saved.add((*key, depth))

    def _visits(self, settings: Settings, plan: VisitPlan) -> tuple[Visit, ...]:
        """A warm-up of one ubatch, then the visits that count."""
        workload = plan.workload
        n_warmup = min(workload.n_prompt_new, settings.n_ubatch, settings.n_batch)
        with self.around_visits():
            first = self._visit(settings, 0, n_warmup, _N_WARMUP_STEPS, is_warmup=True)
            work = (workload.n_prefix_cached, workload.n_prompt_new, plan.n_steps)
            return (first, *(self._visit(settings, *work) for _ in range(plan.n_visits)))

    def _visit(self, settings: Settings, n_prefix: int, n_new: int, n_steps: int, *, is_warmup: bool = False) -> Visit:
        self._reach(settings, n_prefix)
        found, host = self._truth(settings, n_new, n_prefix), self.machine.host
        prompt_times, token_times = self._source.visit(self.clock_s)
        heat = self._heat()
        prefill_s = (float(found.ttft_s[0]) - host.sample_s) * prompt_times * heat
        token_s = (float(found.token_s[0]) - host.sample_s) * token_times * heat
        steps_s = [token_s * self._source.step() for _ in range(n_steps + 1)]
        tokenize_s = _TOKENIZE_S * (n_prefix + n_new)
        self._spend(tokenize_s + prefill_s + sum(steps_s) + (n_steps + 1) * host.sample_s, is_busy=True)
        sample_ns = _ns(host.sample_s)
        return Visit(
            is_warmup=is_warmup,
            i_load=self.n_model_loads,
            n_prefix_cached=n_prefix,
            n_prompt_new=n_new,
            tokenize_ns=_ns(tokenize_s),
            prefill_ns=_ns(prefill_s),
            first_sample_ns=sample_ns,
            first_decode_ns=_ns(steps_s[0]) + sample_ns,
            step_ns=tuple(_ns(one) for one in steps_s[1:]),
            sample_ns=(sample_ns,) * n_steps,
        )

    def _spend(self, seconds: float, *, is_busy: bool = False) -> None:
        """Move the clock. Raises _EndedError where the trial's time is over before."""
        self._busy_s += seconds * is_busy
        if self.clock_s + seconds > self._deadline_s:
            self.clock_s = max(self._deadline_s, self.clock_s)
            raise _EndedError(Evidence(phase="visit", abort_text="synthetic: time is over"), timed_out=True)
        self.clock_s += seconds

    # --- what is known -------------------------------------------------------------------------------------------

    def _truth(self, settings: Settings, n_prompt: int, depth: int) -> Truth:
        key = (settings, n_prompt, depth)
        if key not in self._truths:
            self._truths[key] = truth(self.machine, (settings,), n_prompt=n_prompt, depth=depth)
        return self._truths[key]

    def _prompt_s(self, settings: Settings, n_prompt: int, depth: int) -> float:
        """Seconds of a prompt that nobody times."""
        if n_prompt <= 0:
            return 0.0
        return float(prompt_s(self.machine, (settings,), n_prompt=n_prompt, depth=max(depth, 0))[0]) * self._heat()

    def _heat(self) -> float:
        times = 1.0
        for one in self.machine.surprises:
            times *= one.heat_times(self._busy_s)
        return times

    def _memory(self, device_bytes: int, host_bytes: int) -> tuple[MemoryUse, ...]:
        """Bytes by place, all told as weights: a simulated engine counts no closer."""
        rest = {"kv_cache_bytes": 0, "compute_bytes": 0}
        host = MemoryUse(device="CPU", is_host=True, weights_bytes=host_bytes, **rest)
        if self.machine.card is None:
            return (host,)
        return (MemoryUse(device=self.machine.card.name, is_host=False, weights_bytes=device_bytes, **rest), host)

    def _failed(self, error: _EndedError, settings: Settings) -> tuple[Outcome, str, Evidence]:
        self.kill()
        outcome, reason = classify(error.evidence, offloads=settings.offloads, timed_out=error.timed_out)
        return outcome, reason, error.evidence


def said_free_bytes(machine: SyntheticMachine) -> int:
    """What the driver says is free."""
    free = machine.card.free_bytes if machine.card else 0
    for one in machine.surprises:
        free = one.said_free_bytes(free)
    return free


def _out_of_memory(phase: str, n_bytes: int) -> Evidence:
    text = f"synthetic: cudaMalloc failed: out of memory ({n_bytes} bytes)"
    return Evidence(phase=phase, abort_text=text)


def _ns(seconds: float) -> int:
    return max(1, round(seconds * 1e9))

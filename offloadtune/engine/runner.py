"""Run trials: load what is not loaded, open, prove it feasible, visit, and tell what happened.

One placement is loaded at a time, so that the feasibility run (the canary) sees the card as the user's program will;
only those that were said to have room side by side stay loaded between revisits.
Decides nothing: which trial is next, and whether a result is good, is asked and answered elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from offloadtune.engine.classify import classify
from offloadtune.engine.forecasting import forecasts_of, is_misreading, unforetold
from offloadtune.engine.placing import Loaded, PlacingWorker
from offloadtune.engine.process import WORKER_COMMAND, WorkerDiedError, WorkerRefusedError
from offloadtune.engine.ruler import RulerFailedError, RulerRep, RulerTest
from offloadtune.errors import EngineError
from offloadtune.plans import Forecast
from offloadtune.records import (
    Divergence,
    Evidence,
    MemoryUse,
    Outcome,
    Settings,
    Trial,
    TrialResult,
    Visit,
    Workload,
)

_N_TINY_CTX = 512
_FIT_S = 30.0
_N_WARMUP_STEPS = 2
_MEMORY = TypeAdapter(tuple[MemoryUse, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitPlan:
    """How a trial is measured: the workload, generated tokens timed a visit, visits after the warm-up."""

    workload: Workload
    n_steps: int
    n_visits: int


class TrialFailedError(Exception):
    """What was asked of a trial ended otherwise than well; see `result`."""

    def __init__(self, result: TrialResult) -> None:
        super().__init__(result.reason)
        self.result = result


@dataclass(frozen=True, slots=True)
class OpenedTrial:
    """A context that stays open between visits."""

    runner: Runner
    opened: dict[str, Any]

    @property
    def n_ctx(self) -> int:
        n_ctx: int = self.opened["effective"]["n_ctx"]
        return n_ctx

    @property
    def n_ubatch(self) -> int:
        n_ubatch: int = self.opened["effective"]["n_ubatch"]
        return n_ubatch

    def visit(self, n_prefix: int, n_new: int, n_steps: int, *, timeout_s: float, is_warmup: bool = False) -> Visit:
        """One visit; what it raises, `Runner.opened` turns into TrialFailedError."""
        deadline, work = time.monotonic() + timeout_s, {"n_prefix": n_prefix, "n_new": n_new, "n_steps": n_steps}
        return self.runner.visit_opened(self.opened, deadline, is_warmup=is_warmup, **work)


Arguments = Callable[[Trial], dict[str, Any] | None]
"""What `Llama` of llama-cpp-python is told for a trial; None where another front end is the target."""


class Runner(PlacingWorker):
    """Trials of one file on one set of devices. A context manager: leaving it leaves no process behind.

    Trials for which `arguments` has an answer are visited through `Llama`, the rest through the engine itself.
    """

    def __init__(
        self,
        path: Path,
        endpoints: Sequence[str] = (),
        command: Sequence[str] = WORKER_COMMAND,
        arguments: Arguments = lambda _trial: None,
    ) -> None:
        super().__init__(path, endpoints, command)
        self._arguments = arguments
        self._forecasts_by_log = False
        self.around_visits: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Entered for the timed part of a trial, when it is loaded, opened and proven."""

    def fit_layers(self, settings: Settings, margin_bytes: int, *, timeout_s: float) -> tuple[int | None, bool]:
        """n_gpu_layers by llama.cpp's --fit rule with the memory free now, -1 for all, and whether that is all it says.

        None where it cannot be asked. Nothing is loaded for it. `margin_bytes` stay free on each device.
        """
        asked = {"path": str(self._path), "settings": dataclasses.asdict(settings), "margin_bytes": margin_bytes}
        self._want(settings.environment)
        try:
            self._living()
            found = self._ask("fit_layers", time.monotonic() + min(_FIT_S, timeout_s), **asked)
        except (
            EngineError,
            WorkerDiedError,
            WorkerRefusedError,
        ):  # the sweep can do without, and will see for itself what is wrong
            self.kill()
            return None, False
        return found["n_gpu_layers"], found["is_whole"]

    def forecast(self, contexts: Sequence[Settings], *, timeout_s: float) -> tuple[Forecast, ...]:
        """What each of `contexts`, all of one placement, would take, by the engine's own word; in the order given.

        Loads nothing, and leaves alone what is loaded unless that began in another environment. Raises EngineError when
        the engine dies of it, stays silent or does not take the file, EngineMissingError when there is none; a context
        that it would not open is no error, see `Forecast`.
        """
        if len({settings.placement for settings in contexts}) > 1:
            message = "a forecast is of one placement"
            raise ValueError(message)
        if not contexts:
            return ()
        self._want(contexts[0].environment)
        deadline = time.monotonic() + timeout_s
        asked = {"path": str(self._path), "contexts": [dataclasses.asdict(settings) for settings in contexts]}
        while True:
            try:
                self._respawn(deadline)
                found = self._ask("forecast", deadline, **asked, by_log=self._forecasts_by_log)
            except WorkerDiedError as error:
                self.kill()
                if self._forecasts_by_log or not is_misreading(error):
                    raise unforetold(error, contexts[0]) from None
                self._forecasts_by_log = True
            except WorkerRefusedError as error:
                raise unforetold(error, contexts[0]) from None
            else:
                return forecasts_of(contexts, found["forecasts"])

    def try_tiny(self, settings: Settings, *, timeout_s: float) -> tuple[Outcome, str, Evidence | None]:
        """How a turn of a few tokens in a small context ends; leaves the placement loaded when it lives."""
        deadline = time.monotonic() + timeout_s
        small = settings.replace(
            n_ctx=_N_TINY_CTX, n_batch=min(settings.n_batch, _N_TINY_CTX), n_ubatch=min(settings.n_ubatch, _N_TINY_CTX)
        )
        try:
            loaded = self._place(small, deadline)
            with self._opened(loaded, small, None, deadline) as opened:
                self._ask("tiny", deadline, context=opened["handle"])
        except (WorkerDiedError, WorkerRefusedError) as error:
            return self._failed(error, settings)
        return Outcome.OK, "", None

    def run(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> TrialResult:
        """Everything one trial shows. Never raises for what the trial does; see `Outcome`."""
        started_at, start_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        deadline = start_s + timeout_s
        seen: dict[str, Any] = {}
        outcome, reason, evidence = Outcome.OK, "", None
        try:
            refusal = self._run_into(seen, trial, plan, deadline)
            if refusal:
                outcome, reason = Outcome.UNSUPPORTED, refusal
        except (WorkerDiedError, WorkerRefusedError) as error:
            outcome, reason, evidence = self._failed(error, trial.settings)
        return TrialResult(
            trial=trial,
            outcome=outcome,
            reason=reason,
            evidence=evidence,
            started_at=started_at,
            duration_s=round(time.monotonic() - start_s, 3),
            **seen,
        )

    def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        """More visits of a trial that was feasible; a TrialResult when it fails this time."""
        deadline = time.monotonic() + timeout_s
        try:
            loaded = self._place(trial.settings, deadline)
            with self._opened(loaded, trial.settings, self._arguments(trial), deadline) as opened:
                return self._visits(opened, plan, deadline)
        except (WorkerDiedError, WorkerRefusedError) as error:
            outcome, reason, evidence = self._failed(error, trial.settings)
            return TrialResult(trial=trial, outcome=outcome, reason=reason, evidence=evidence)

    @contextlib.contextmanager
    def opened(self, trial: Trial, *, timeout_s: float) -> Iterator[OpenedTrial]:
        """A context of `trial`, open for visits of any length. Raises TrialFailedError, from inside the block too."""
        deadline = time.monotonic() + timeout_s
        with self._failing(trial):
            loaded = self._place(trial.settings, deadline)
            with self._opened(loaded, trial.settings, self._arguments(trial), deadline) as opened:
                yield OpenedTrial(self, opened)

    def time_load(self, trial: Trial, *, timeout_s: float) -> tuple[int, int]:
        """Nanoseconds to load the file anew, and until it had also read a few tokens in a small context.

        The placement stays loaded. Raises TrialFailedError.
        """
        with self._failing(trial):
            self.unload()
            start_ns = time.perf_counter_ns()
            outcome, reason, evidence = self.try_tiny(trial.settings, timeout_s=timeout_s)
            ready_ns = time.perf_counter_ns() - start_ns
        if outcome is not Outcome.OK:
            raise TrialFailedError(TrialResult(trial=trial, outcome=outcome, reason=reason, evidence=evidence))
        return self._held[trial.settings.placement].load_ns, ready_ns

    def divergence(self, trial: Trial, n_prompt: int, n_last: int, *, timeout_s: float) -> Divergence:
        """How answers with the trial's cache part from those with one of f16, in the prompt's last tokens.

        The trial's placement is loaded, with contexts as large as the prompt needs. Raises TrialFailedError.
        """
        deadline, n_ctx = time.monotonic() + timeout_s, (n_prompt + 255) // 256 * 256
        n_batch = min(trial.settings.n_batch, n_ctx)
        ours = trial.settings.replace(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(trial.settings.n_ubatch, n_batch))
        asked = {"settings": ours, "against": ours.replace(type_k="f16", type_v="f16")}
        contexts = {name: dataclasses.asdict(one) for name, one in asked.items()}
        with self._failing(trial):
            loaded = self._place(trial.settings, deadline)
            value = self._ask(
                "divergence", deadline, loaded=loaded.handle, n_prompt=n_prompt, n_last=n_last, **contexts
            )
        return Divergence(**value)

    @contextlib.contextmanager
    def _failing(self, trial: Trial) -> Iterator[None]:
        try:
            yield
        except (WorkerDiedError, WorkerRefusedError) as error:
            outcome, reason, evidence = self._failed(error, trial.settings)
            result = TrialResult(trial=trial, outcome=outcome, reason=reason, evidence=evidence)
            raise TrialFailedError(result) from None

    def ruler(self, settings: Settings, test: RulerTest, n_reps: int, *, timeout_s: float) -> Iterator[RulerRep]:
        """llama-bench's test: its warm-up, then `n_reps` repetitions in a row, as llama-bench has them.

        Asked for one by one each would begin with sleeping threads, a millisecond or two. The context is as large as
        llama-bench makes it, whatever `settings` say. Raises RulerFailedError.
        """
        deadline = time.monotonic() + timeout_s
        settings = settings.replace(n_ctx=test.n_ctx)
        work = dataclasses.asdict(test)
        try:
            loaded = self._place(settings, deadline)
            with self._opened(loaded, settings, None, deadline) as opened:
                context = opened["handle"]
                yield RulerRep(is_warmup=True, **self._ask("ruler", deadline, context=context, n_reps=0, **work))
                value = self._ask("ruler", deadline, context=context, n_reps=n_reps, **work)
                yield from (RulerRep(is_warmup=False, ns=ns) for ns in value["ns"])
        except (WorkerDiedError, WorkerRefusedError) as error:
            if error.evidence.phase == "ruler":
                error.evidence = dataclasses.replace(error.evidence, phase="visit")
            raise RulerFailedError(*self._failed(error, settings)) from None

    def _run_into(self, seen: dict[str, Any], trial: Trial, plan: VisitPlan, deadline: float) -> str:
        """Fill `seen` with fields of TrialResult as they become known, so that a failure keeps what came before.

        Returns why the workload is not for the context it gets, "" where it is.
        """
        settings, workload = trial.settings, plan.workload
        loaded = self._place(settings, deadline)
        seen["load_ns"] = loaded.load_ns
        with self._opened(loaded, settings, self._arguments(trial), deadline) as opened:
            seen["memory"] = _MEMORY.validate_python(opened["memory"])
            asked = dataclasses.asdict(settings)
            seen["effective"] = tuple(
                (name, value) for name, value in opened["effective"].items() if asked[name] != value
            )
            if opened["effective"]["n_ctx"] < workload.n_ctx_needed:
                return self._refusal(opened, workload, deadline)
            canary = self._ask("canary", deadline, context=opened["handle"], n_prefix=workload.n_prefix_cached)
            seen["device_peak_bytes"] = self._device_peaks(canary["min_free_bytes"], seen["memory"])
            if canary["host_peak_rss_bytes"] is not None:
                seen["host_peak_rss_bytes"] = max(0, canary["host_peak_rss_bytes"] - canary["saved_state_bytes"])
            seen["visits"] = self._visits(opened, plan, deadline)
        return ""

    def _refusal(self, opened: dict[str, Any], workload: Workload, deadline: float) -> str:
        """What a context that is too small for the workload does to it, in the front end's words where it has some."""
        n_ctx, n_prompt = opened["effective"]["n_ctx"], workload.n_prefix_cached + workload.n_prompt_new
        if n_prompt < n_ctx:
            return f"its context of {n_ctx} ends after {n_ctx - n_prompt} of {workload.n_gen} tokens of the answer"
        words = self._ask("refusal", deadline, context=opened["handle"], n_prompt=n_prompt)["refusal"]
        return f"it refuses: {words.rstrip('.')}" if words else f"its context of {n_ctx} ends before the prompt"

    def _device_peaks(self, min_free: dict[str, int], memory: Sequence[MemoryUse]) -> tuple[tuple[str, int], ...]:
        """The fall of each device's free memory since before the load, and never less than the engine itself counts.

        A driver that reports the same free memory whatever happens would otherwise read as nothing used.
        """
        counted = dict.fromkeys(self._drained_bytes, 0)
        for row in memory:
            if row.device in counted:
                counted[row.device] += row.total_bytes
        return tuple(
            (name, max(n_bytes, self._drained_bytes[name] - min_free.get(name, self._drained_bytes[name])))
            for name, n_bytes in counted.items()
        )

    def _visits(self, opened: dict[str, Any], plan: VisitPlan, deadline: float) -> tuple[Visit, ...]:
        """A warm-up of one ubatch, kept and marked, then the visits that count."""
        workload, effective = plan.workload, opened["effective"]
        n_warmup = min(workload.n_prompt_new, effective["n_ubatch"], effective["n_ctx"] - 1 - _N_WARMUP_STEPS)
        work = {"n_prefix": workload.n_prefix_cached, "n_new": workload.n_prompt_new, "n_steps": plan.n_steps}
        warmup = {"n_prefix": 0, "n_new": n_warmup, "n_steps": _N_WARMUP_STEPS}
        with self.around_visits():
            first = self.visit_opened(opened, deadline, is_warmup=True, **warmup)
            timed = [self.visit_opened(opened, deadline, is_warmup=False, **work) for _ in range(plan.n_visits)]
        return (first, *timed)

    def visit_opened(self, opened: dict[str, Any], deadline: float, *, is_warmup: bool, **work: int) -> Visit:
        """One visit in an open context, of `n_prefix` restored, `n_new` read and `n_steps` + 1 written tokens."""
        value = self._ask("visit", deadline, context=opened["handle"], **work)
        return visit_of(value, is_warmup=is_warmup, i_load=opened["i_load"])

    @contextlib.contextmanager
    def _opened(
        self, loaded: Loaded, settings: Settings, arguments: dict[str, Any] | None, deadline: float
    ) -> Iterator[dict[str, Any]]:
        asked = {"loaded": loaded.handle, "settings": dataclasses.asdict(settings), "arguments": arguments}
        opened = {**self._ask("open", deadline, **asked), "i_load": loaded.i_load}
        yield opened
        self._ask("close", deadline, handle=opened["handle"])

    def _failed(self, error: WorkerDiedError | WorkerRefusedError, settings: Settings) -> tuple[Outcome, str, Evidence]:
        """Classify, and leave no half-open state behind: a worker that refused is replaced like one that died."""
        self.kill()
        timed_out = isinstance(error, WorkerDiedError) and error.timed_out
        outcome, reason = classify(error.evidence, offloads=settings.offloads, timed_out=timed_out)
        return outcome, reason, error.evidence


def visit_of(value: dict[str, Any], *, is_warmup: bool, i_load: int) -> Visit:
    """A visit as the worker tells it."""
    steps, samples = tuple(value["step_ns"]), tuple(value["sample_ns"])
    return Visit(**{**value, "step_ns": steps, "sample_ns": samples}, is_warmup=is_warmup, i_load=i_load)

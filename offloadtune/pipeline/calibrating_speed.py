"""Calibrating the speed law: the few short runs that teach it most about this machine and a file."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from offloadtune import search, store
from offloadtune.engine import WORKER_COMMAND, VisitPlan, is_gone, self_test
from offloadtune.errors import (
    BudgetError,
    EngineMissingError,
    InterruptedSweepError,
    NothingWorksError,
    OffloadTuneError,
)
from offloadtune.footprint import Grid, fits, is_mapped, pad_256, reckon
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.checking import check_calibration, check_memory
from offloadtune.pipeline.devices import machine_place
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.marking import standin_sentence
from offloadtune.pipeline.probing import standing_now
from offloadtune.pipeline.rebuilding import rebuild_line, rebuild_words
from offloadtune.pipeline.rooms import check_split
from offloadtune.pipeline.spaces import SelfTestMemory
from offloadtune.pipeline.speed_memory import SpeedMemory, runs_of, where_words
from offloadtune.pipeline.sweeping import llama_arguments, unbreakable
from offloadtune.pipeline.undisturbed import Undisturbed
from offloadtune.probe import probe_host
from offloadtune.records import GgufFacts, Machine, Outcome, Settings, Target, Trial, TrialResult, Workload
from offloadtune.speed import Laws
from offloadtune.speed.checks import checked, coefficients_of, held_out
from offloadtune.speed.design import (
    N_PASSAGES_MOST,
    N_STEPS,
    Asked,
    asked_of,
    candidates_of,
    is_known,
    next_passage,
    opening_passage,
    queries_of,
    seconds_of,
)
from offloadtune.speeds import (
    CalibrationEvent,
    CalibrationReport,
    CalibrationRequest,
    PassageMeasured,
    Phase,
    Run,
    RunCheck,
)
from offloadtune.sweeps import Said
from offloadtune.units import format_seconds

_N_CTX = 2560
_N_CHECKED_LEAST = 2
"""Passages that run even where all is known: what was known is checked."""

_N_VISITS, _SHORT_VISIT_S = 3, 5.0
_READ_BYTES_PER_S = 1e9
"""Of a file being loaded, before one was."""


def calibrate(request: CalibrationRequest, listen: Callable[[CalibrationEvent], None]) -> CalibrationReport:
    """Measure, keep, and tell what the law of this machine's speed has learnt.

    Raises GgufError, UsageError, EngineMissingError, EngineError, BusyError, BudgetError, NothingWorksError, and
    InterruptedSweepError when the user stopped before anything was measured.
    """
    listen = unbreakable(listen)
    facts = read_gguf(request.path)
    n_ctx = pad_256(min(_N_CTX, facts.n_ctx_train or _N_CTX))
    check_calibration(request, facts, n_ctx=n_ctx)
    with (
        store.measuring_alone(store.data_dir(), facts.path.name),
        GuardedRunner(
            facts,
            rebuild_line,
            endpoints=request.endpoints,
            command=request.worker_command or WORKER_COMMAND,
            arguments=llama_arguments,
        ) as runner,
    ):
        try:
            calibrating = CalibratingSpeed(request, facts, n_ctx, runner, listen)
        except EngineMissingError as error:
            raise EngineMissingError(str(error), hint=rebuild_line()) from None
        except KeyboardInterrupt:
            raise _stopped() from None
        calibrating.measure()
        with deaf():
            runner.close()
        return calibrating.report()


class CalibratingSpeed:
    """One calibration under way: what ran, and what is left of the budget."""

    def __init__(
        self,
        request: CalibrationRequest,
        facts: GgufFacts,
        n_ctx: int,
        runner: GuardedRunner,
        listen: Callable[[CalibrationEvent], None],
    ) -> None:
        self.request, self.facts, self.runner, self.listen = request, facts, runner, listen
        self.start_s = time.monotonic()
        if words := standin_sentence(facts):
            listen(Said(text=words))
        for one in standing_now(request.endpoints):
            listen(Said(text=one.words))
        self.engine, devices = runner.describe()
        self.machine = Machine(host=probe_host(), devices=devices)
        check_memory(request.fixed, facts, self.machine, n_ctx=n_ctx)
        check_split(request.fixed.get("tensor_split"), len(self.machine.offload_devices))
        self.undisturbed = Undisturbed(
            runner,
            self.machine,
            self.engine,
            request.endpoints,
            lambda event: listen(event) if isinstance(event, Said) else None,
        )
        self.memory = SpeedMemory(facts, self.machine, self.engine, is_fresh=request.is_fresh)
        cpu = self.machine.host.cpu
        n_threads = cpu.n_physical_cores or cpu.n_logical_cores
        base = search.settings_of_target(Target.LLAMA_CPP_PYTHON)
        batch = {"n_ctx": n_ctx, "n_batch": min(base.n_batch, n_ctx)}
        threads = {"n_threads": n_threads, "n_threads_batch": n_threads}
        self.settings = base.replace(**{**batch, **threads, **request.fixed})
        self.candidates: Asked
        self.n_done = 0
        self.is_unknown = True
        self.runs: list[Run] = []
        self.failures: list[TrialResult] = []
        self.out: set[int] = set()
        self.loaded: tuple[object, ...] | None = None
        self.load_s = facts.file_bytes / _READ_BYTES_PER_S
        self.is_interrupted = self.is_gone = False

    def measure(self) -> None:
        """Passages until all that may be asked is known, or their number, the time or the user's patience ends."""
        try:
            self._heed_self_tests()
            self._measure()
        except KeyboardInterrupt:
            with deaf():
                self.is_interrupted = True
                self.runner.kill()

    def report(self) -> CalibrationReport:
        """What was learnt. Raises what kept all passages from running."""
        if not self.n_done:
            raise self._nothing()
        laws, prior = self.memory.laws(self.settings), self.memory.prior(self.settings)
        both = ((prior.decode, laws.decode), (prior.prefill, laws.prefill))
        names = tuple(device.name for device in laws.rig.devices)
        checks = tuple(one for before, law in both for one in held_out(before, law, self.runs))
        return CalibrationReport(
            machine_id=self.machine.machine_id,
            engine_version=self.engine.version,
            path=self.facts.path,
            type_name=self.facts.type_bytes[0][0] if self.facts.type_bytes else "",
            devices=names,
            n_passages=self.n_done,
            n_loads=self.runner.n_model_loads,
            n_timings=len(laws.decode.runs) + len(laws.prefill.runs),
            coefficients=tuple(
                one
                for before, law in both
                for one in coefficients_of(before, law, self.candidates.of(law.phase), names)
            ),
            checks=checks,
            failures=tuple(f"{result.trial.why}: {result.reason}." for result in self.failures),
            words=(*self.memory.words, *how_far_off(checks)),
            store_path=store.speed_path(self.machine),
            is_interrupted=self.is_interrupted,
            duration_s=round(time.monotonic() - self.start_s, 3),
            n_layer=self.facts.n_layer,
            stands_for=self.facts.stands_for,
        )

    def _heed_self_tests(self) -> None:
        """Find what this engine build needs to live, with the devices and without, unless an earlier test has."""
        memory = SelfTestMemory(self.facts, self.machine, self.engine)
        for offloads in (True, False) if self.machine.offload_devices else (False,):
            knobs = memory.get(offloads=offloads)
            if knobs is None:
                settings = self.settings.replace(n_gpu_layers=self._most_layers() if offloads else 0)
                if settings.offloads is not offloads:
                    continue
                found = self_test(self.runner, settings, timeout_s=self._remaining_s())
                if found.sentence:
                    self._tell(f"{found.sentence}{rebuild_words(found, self.machine)}")
                if found.is_conclusive and found.knobs is not None:
                    memory.put(found.knobs, offloads=offloads)
                knobs = found.knobs
            self.settings = self.settings.replace(**{**(knobs or {}), **self.request.fixed})

    def _measure(self) -> None:
        most, laws = self._most_layers(), self.memory.laws(self.settings)
        self.is_unknown = not laws.decode.runs
        lends = laws.rig.lender is not None and "op_offload" not in self.request.fixed
        base, may = (self.facts, self.settings, most), self._may_split_experts
        self.candidates = asked_of(self.facts, laws, candidates_of(*base, lends=lends, may_split_experts=may))
        queries = asked_of(self.facts, laws, queries_of(*base, may_split_experts=may))
        while self.n_done < N_PASSAGES_MOST and self._remaining_s() > 0 and not self.is_gone:
            laws = self.memory.laws(self.settings)
            if is_known(laws, queries) and self.n_done >= _N_CHECKED_LEAST:
                return
            i = self._next(laws, queries)
            if i is None:
                return
            self.out.add(i)
            self._run(i, laws)
            if self.undisturbed.is_interrupted:
                raise KeyboardInterrupt

    def _next(self, laws: Laws, queries: Asked) -> int | None:
        """The passage that teaches most for its time, of those that the budget allows."""
        if self.is_unknown and (i := opening_passage(self.candidates, self.out, self.n_done)) is not None:
            return i
        seconds = seconds_of(laws, self.candidates, _N_VISITS, self.loaded, self.load_s)
        too_long = set(np.flatnonzero(seconds > self._remaining_s()).tolist())
        return next_passage(laws, self.candidates, queries, seconds, self.out | too_long)

    def _run(self, i: int, laws: Laws) -> None:
        """Run a passage and learn from it, or from its failure."""
        passage = self.candidates.passages[i]
        settings, n_gen = passage.settings, N_STEPS + 1
        usual_s, _, most_s = laws.prefill.interval(self.candidates.prefill[:, [i]])
        visit_s = (usual_s if laws.prefill.runs else most_s)[0]
        workload = Workload(name="", n_prefix_cached=passage.depth, n_prompt_new=passage.n_prompt, n_gen=n_gen)
        plan = VisitPlan(workload=workload, n_steps=N_STEPS, n_visits=_N_VISITS if visit_s < _SHORT_VISIT_S else 1)
        trial = Trial(
            settings=settings,
            target=Target.LLAMA_CPP_PYTHON,
            why=f"{passage.depth}+{passage.n_prompt} tokens {where_words(settings)}",
        )
        start_s = time.monotonic()
        visits = self.undisturbed.revisit(trial, plan, timeout_s=self._remaining_s())
        if isinstance(visits, TrialResult):
            self.loaded = None
            self._heed_failure(visits)
            return
        if settings.placement != self.loaded:
            self.load_s = max(0.0, time.monotonic() - start_s - sum(visit.turn_s(n_gen) for visit in visits))
        self.loaded = settings.placement
        self._learn(TrialResult(trial=trial, outcome=Outcome.OK, reason="", visits=visits), laws)

    def _learn(self, result: TrialResult, laws: Laws) -> None:
        runs = runs_of(self.facts, laws, result)
        self.memory.learn(result)
        self.runs += runs
        self.n_done += 1
        self.listen(
            PassageMeasured(
                label=result.trial.why,
                n_done=self.n_done,
                n_most=N_PASSAGES_MOST,
                remaining_s=self._remaining_s(),
                checks=tuple(checked(laws.of(run.phase), run) for run in runs),
            )
        )

    def _heed_failure(self, result: TrialResult) -> None:
        """Keep the reason, and try nothing more that would end alike.

        That is what asks the same memory for as much or more where it ran out, else all of that placement; anything,
        where a device stayed away for good.
        """
        self.failures.append(result)
        self.is_gone = is_gone(result.evidence)
        if self.is_gone:
            self._tell(f"The calibration ends here: {result.reason}. What was measured before stands.")
            return
        self._tell(f"{result.trial.why}: {result.outcome.value.replace('_', ' ')} - {result.reason}")
        failed, ran_out = result.trial.settings, result.outcome.is_out_of_memory
        is_of_placement = not ran_out and result.outcome is not Outcome.TIMED_OUT
        for i, passage in enumerate(self.candidates.passages):
            less, more = failed, passage.settings
            if result.outcome is Outcome.OUT_OF_MEMORY_HOST:
                less, more = more, less
            is_more = more.n_gpu_layers >= less.n_gpu_layers and more.n_cpu_moe <= less.n_cpu_moe
            if (ran_out and is_more) or (is_of_placement and more.placement == less.placement):
                self.out.add(i)

    def _most_layers(self) -> int:
        """The largest n_gpu_layers that the devices have memory for, by arithmetic."""
        if not self.machine.offload_devices or self.settings.devices == ():
            return 0
        layers = range(self.facts.n_layer + 1, -1, -1)
        ok = self._have_room([self.settings.replace(n_gpu_layers=k) for k in layers])
        return layers[int(ok.argmax())] if ok.any() else 0

    def _may_split_experts(self, settings: Settings) -> bool:
        """Whether `settings`, with experts in main memory, fit and are not fixed otherwise."""
        return "n_cpu_moe" not in self.request.fixed and bool(self._have_room([settings])[0])

    def _have_room(self, asked: Sequence[Settings]) -> NDArray[np.bool_]:
        """Which settings there is memory for, by arithmetic."""
        room = machine_place(self.machine, self.engine, self.request.vram_limit_bytes).room
        found = reckon(self.facts, Grid.of(asked, self.facts.n_layer), room.backends, room.shares)
        return fits(found, room, is_mapped=is_mapped(self.settings))

    def _nothing(self) -> OffloadTuneError:
        """Why no passage ran to its end."""
        if self.is_interrupted:
            return _stopped()
        if self.failures and self.failures[-1].outcome is not Outcome.TIMED_OUT:
            message = f"{self.facts.path.name} ran with none of the settings tried: {self.failures[-1].reason}."
            hint = f"find settings that do: offloadtune sweep {shlex.quote(str(self.facts.path))}"
            if self.is_gone:
                hint = "bring back what is gone, and run the same command again"
            return NothingWorksError(message, hint=hint)
        message = f"The budget of {format_seconds(self.request.budget_s)} ended before anything was measured."
        return BudgetError(message, hint=f"allow more time: --budget {max(60, round(self.request.budget_s * 4))}s")

    def _tell(self, text: str) -> None:
        self.listen(Said(text=text))

    def _remaining_s(self) -> float:
        return max(0.0, self.request.budget_s - (time.monotonic() - self.start_s))


def how_far_off(checks: Sequence[RunCheck]) -> list[str]:
    """What runs that were left out one by one say of the law."""
    words = []
    for phase, noun in ((Phase.DECODE, "tokens written"), (Phase.PREFILL, "prompts read")):
        of_phase = [one for one in checks if one.phase is phase]
        if len(of_phase) > 1:
            off = [abs(one.off_frac) for one in of_phase]
            words.append(
                f"Left out one by one, {noun} lie {statistics.median(off):.1%} from what the other runs say in the "
                f"median, and {max(off):.0%} at most."
            )
    missed = [one for one in checks if one.is_miss]
    if missed:
        lie = "lies outside its range" if len(missed) == 1 else "lie outside their range, first"
        words.append(
            f"{len(missed)} of {len(checks)} {lie}: {missed[0].label}. Where a prediction and a measurement differ, "
            "trust the measurement."
        )
    return words


def _stopped() -> InterruptedSweepError:
    message = "Stopped before anything was measured."
    return InterruptedSweepError(message, hint="run the same command again")

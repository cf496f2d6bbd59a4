"""Benching: one run of the fixed script, from the choice of settings to its line in the trend."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import offloadtune
from offloadtune import bench, store
from offloadtune.benches import (
    SCRIPT,
    AnchorReading,
    BenchListener,
    BenchReport,
    BenchRequest,
    BenchRun,
    BenchVisit,
    LoadTimes,
    Measure,
    MeasureVisited,
)
from offloadtune.conditions import Disturbance
from offloadtune.engine import WORKER_COMMAND, AnchorProcess, OpenedTrial, TrialFailedError
from offloadtune.errors import (
    BudgetError,
    BusyError,
    EngineMissingError,
    InterruptedSweepError,
    NothingWorksError,
    OffloadTuneError,
    StoreError,
    UsageError,
)
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.checking import check_bench
from offloadtune.pipeline.choosing import Chosen, choose
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.loading import time_loads
from offloadtune.pipeline.marking import standin_sentence
from offloadtune.pipeline.probing import standing_now
from offloadtune.pipeline.rebuilding import rebuild_line
from offloadtune.pipeline.sweeping import llama_arguments, unbreakable
from offloadtune.pipeline.trending import keep_run
from offloadtune.pipeline.warming import Warmth
from offloadtune.pipeline.watching import Watch, cards_of
from offloadtune.probe import local_servers, probe_host
from offloadtune.records import GgufFacts, Machine, Outcome, TrialResult
from offloadtune.sweeps import Said
from offloadtune.units import format_seconds

_ANCHOR_BEAT_S = 2.0
_N_WARMUP, _N_WARMUP_STEPS = 64, 2
_N_THROWN_AWAY = 2
_LEAST_DEADLINE_S = 60.0
_LOAD_S = 1800.0


def bench_file(request: BenchRequest, listen: BenchListener) -> BenchReport:
    """Run the script once and append it to the trend.

    Raises GgufError, UsageError, EngineMissingError, EngineError, BusyError, BudgetError, NothingWorksError,
    StoreError, and InterruptedSweepError when the user stopped before anything was measured.
    """
    listen = unbreakable(listen)
    facts = read_gguf(request.path)
    check_bench(request, facts)
    chosen = choose(request, facts, listen)
    with store.measuring_alone(store.data_dir(), facts.path.name):
        if words := standin_sentence(facts):
            listen(Said(text=words))
        run, path = _run(request, facts, chosen, listen)
    figures = bench.figures_of(run)
    return BenchReport(run=run, figures=figures, notes=tuple(bench.notes_of(run)), trend_path=path)


def _run(
    request: BenchRequest, facts: GgufFacts, chosen: Chosen, listen: BenchListener
) -> tuple[BenchRun, Path | None]:
    with GuardedRunner(
        facts,
        rebuild_line,
        endpoints=chosen.endpoints,
        command=request.worker_command or WORKER_COMMAND,
        arguments=llama_arguments,
    ) as runner:
        try:
            benching = Benching(request, facts, chosen, runner, listen)
        except EngineMissingError as error:
            raise EngineMissingError(str(error), hint=rebuild_line()) from None
        except KeyboardInterrupt:
            raise _stopped() from None
        benching.measure()
        with deaf():
            runner.close()
            run = benching.finished()
            return run, _kept(run, listen)


def _kept(run: BenchRun, listen: BenchListener) -> Path | None:
    """Where the run is kept; figures that cannot be kept are shown all the same."""
    try:
        return keep_run(run)
    except StoreError as error:
        listen(Said(text=f"Warning: this run is not in the trend. {error}"))
        return None


def _stopped() -> InterruptedSweepError:
    message = "Stopped before anything was measured."
    return InterruptedSweepError(message, hint="run the same command again")


class Benching:
    """One run under way: the visits so far, and what is left of the budget."""

    def __init__(
        self, request: BenchRequest, facts: GgufFacts, chosen: Chosen, runner: GuardedRunner, listen: BenchListener
    ) -> None:
        self.request, self.facts, self.chosen, self.runner, self.listen = request, facts, chosen, runner, listen
        self.start_s = self.budget_since_s = time.monotonic()
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.engine, devices = runner.describe()
        self.machine = Machine(host=probe_host(), devices=devices)
        self.warmth = Warmth(self.machine, self.engine, offloads=chosen.trial.settings.offloads)
        self.visits: list[BenchVisit] = []
        self.attempts: list[bench.Attempt] = []
        self.skipped: dict[str, str] = {}
        self.loads: LoadTimes | None = None
        self.measures = bench.measures_of(request.workload)
        self.is_interrupted, self.ended_by = False, ""
        self.n_ctx: int | None = None
        self.anchor: AnchorProcess | None = None
        self.last_reading: AnchorReading | None = None
        self.anchored_at_s = -_ANCHOR_BEAT_S

    def measure(self) -> None:
        """Loads, then visits until all have enough of them, the budget ends or the user stops.

        Raises OffloadTuneError where nothing could be measured because the settings do not run.
        """
        cards = cards_of(self.machine, self.chosen.trial.settings)
        n_threads = self.machine.host.cpu.n_physical_cores or self.machine.host.cpu.n_logical_cores
        try:
            self._tell_first(standing_now(self.chosen.endpoints, cards))
            with AnchorProcess(n_threads) as anchor:
                self.anchor, self.watch = anchor, Watch(self._pids, cards=lambda: cards)
                self._measure()
        except KeyboardInterrupt:
            with deaf():
                self.is_interrupted = True
                self.runner.kill()
        except TrialFailedError as error:
            self.runner.check(error.result.evidence)
            if not self._counting():
                raise self._refusal(error.result) from None
            self.ended_by = f"The engine ended the run before its time: {error.result.reason}."

    def finished(self) -> BenchRun:
        """The run as it is kept. Raises GgufError when the file was exchanged meanwhile, or what kept all from it."""
        self.runner.check()
        if not self._counting():
            raise self._nothing()
        for measure in self.measures:
            if measure.name not in self.skipped and not any(one.measure == measure for one in self.attempts):
                self.skipped[measure.name] = self._why_not(measure)
        return BenchRun(
            script=SCRIPT,
            started_at=self.started_at,
            offloadtune_version=offloadtune.__version__,
            gguf_path=self.facts.path.absolute(),
            gguf_id=self.facts.gguf_id,
            machine=self.machine,
            engine=self.engine,
            settings=self.chosen.trial.settings,
            target=self.chosen.trial.target,
            settings_from=self.chosen.settings_from,
            workload=self.request.workload,
            endpoints=self.chosen.endpoints,
            measures=self.measures,
            visits=tuple(self.visits),
            loads=self.loads,
            skipped=tuple(self.skipped.items()),
            duration_s=round(self._elapsed_s(), 3),
            is_interrupted=self.is_interrupted,
            ended_by=self.ended_by,
            n_layer=self.facts.n_layer,
            stands_for=self.facts.stands_for,
        )

    def _tell_first(self, standing: Sequence[Disturbance]) -> None:
        self._tell(f"Measuring with {self.chosen.settings_from}.")
        if self.chosen.machine_id not in {None, self.machine.machine_id}:
            self._tell(f"That was made on another machine, {self.chosen.machine_id}.")
        for one in standing:
            self._tell(one.words)

    def _measure(self) -> None:
        trial, timeout_s = self.chosen.trial, max(_LOAD_S, self._deadline_s())
        self.loads = time_loads(self.runner, self.facts, trial, self.request.budget_s, timeout_s)
        self.budget_since_s = time.monotonic()
        with self.runner.opened(trial, timeout_s=self._deadline_s()) as opened:
            self.n_ctx = opened.n_ctx
            reasons = {measure: bench.too_long(measure, opened.n_ctx) for measure in self.measures}
            self.skipped = {measure.name: why for measure, why in reasons.items() if why}
            if allowed := [measure for measure, why in reasons.items() if not why]:
                self._warm_up(opened, allowed)
                self._visit_all(opened, allowed)

    def _warm_up(self, opened: OpenedTrial, allowed: Sequence[Measure]) -> None:
        """A few tokens; then, with a build or driver that never ran here, the first visits: they compile shaders."""
        cheapest = sorted(allowed, key=lambda measure: measure.n_ctx_needed)
        self._visit(opened, cheapest[0], 0, _N_WARMUP, _N_WARMUP_STEPS, is_warmup=True)
        if self.warmth.is_warm:
            return
        self._tell("This engine build is new here: its first visits are thrown away.")
        for measure in cheapest[:_N_THROWN_AWAY]:
            if bench.expected_s(measure, (), self._pace()) < self._remaining_s() / 4:
                self._visit(opened, measure, *_work(measure), is_warmup=True)
        self.warmth.keep()

    def _visit_all(self, opened: OpenedTrial, allowed: Sequence[Measure]) -> None:
        while measure := bench.next_measure(allowed, self.attempts, self._pace(), self._remaining_s()):
            anchor = self._anchor_reading()
            start_s = time.monotonic()
            one = self._visit(opened, measure, *_work(measure), anchor=anchor)
            wall_s, timed_s = time.monotonic() - start_s, bench.timed_s(one.visit)
            self.attempts.append(
                bench.Attempt(measure=measure, wall_s=wall_s, timed_s=timed_s, counts=one.visit.counts)
            )
            n_done, n_wanted, remaining_s = len(self._counting()), bench.n_wanted(allowed), self._remaining_s()
            self.listen(MeasureVisited(visit=one, n_done=n_done, n_wanted=n_wanted, remaining_s=remaining_s))

    def _why_not(self, measure: Measure) -> str:
        if self.is_interrupted:
            return "The run was stopped before."
        return self.ended_by or bench.too_dear(measure, self._pace(), self.request.budget_s)

    def _pace(self) -> bench.Pace:
        return bench.pace_of([one.visit for one in self.visits])

    def _visit(
        self,
        opened: OpenedTrial,
        measure: Measure,
        *work: int,
        is_warmup: bool = False,
        anchor: AnchorReading | None = None,
    ) -> BenchVisit:
        self.watch.begin()
        visit = opened.visit(*work, timeout_s=self._deadline_s(), is_warmup=is_warmup)
        visit = dataclasses.replace(visit, disturbed_by=self.watch.end_and_tell(self._tell))
        one = BenchVisit(measure=measure.name, at_s=round(self._elapsed_s(), 3), visit=visit, anchor=anchor)
        self.visits.append(one)
        return one

    def _anchor_reading(self) -> AnchorReading | None:
        """The anchor now, read anew when the last reading is older than two seconds."""
        if time.monotonic() - self.anchored_at_s > _ANCHOR_BEAT_S:
            had_reading, self.last_reading = self.last_reading, self.anchor.read() if self.anchor else None
            self.anchored_at_s = time.monotonic()
            if self.anchor and self.last_reading is None and (had_reading or not self.attempts):
                self._tell(f"From here on no anchor is read: {self.anchor.reason}.")
        return self.last_reading

    def _pids(self) -> tuple[int, ...]:
        """The processes that do the measuring, besides this one; those of devices on this machine too."""
        anchor = (self.anchor.pid,) if self.anchor else ()
        return (*self.runner.pids, *anchor, *local_servers(self.chosen.endpoints))

    def _counting(self) -> list[BenchVisit]:
        return [one for one in self.visits if one.visit.counts]

    def _refusal(self, result: TrialResult) -> OffloadTuneError:
        if result.outcome is Outcome.TIMED_OUT:
            message = f"The budget of {format_seconds(self.request.budget_s)} ended before anything was measured."
            return BudgetError(message, hint=f"allow more time: --budget {round(self.request.budget_s * 4)}s")
        message = f"{self.facts.path.name} does not run with {self.chosen.settings_from}: {result.reason}."
        file = shlex.quote(str(self.facts.path))
        return NothingWorksError(message, hint=f"find settings that do: offloadtune sweep {file}")

    def _nothing(self) -> OffloadTuneError:
        if self.is_interrupted:
            return _stopped()
        if any(one.visit.disturbed_by for one in self.visits):
            message = "The machine is too busy to be measured: every visit was disturbed."
            first = next(one.visit.disturbed_by[0] for one in self.visits if one.visit.disturbed_by)
            return BusyError(message, hint=f"end what else runs and try again ({first.rstrip('.')})")
        if self.n_ctx is not None and all(bench.too_long(measure, self.n_ctx) for measure in self.measures):
            message = f"A context of {self.n_ctx} holds nothing of the script."
            return UsageError(message, hint="open a larger one: --n-ctx 2304")
        message = f"The budget of {format_seconds(self.request.budget_s)} was used up before anything was measured."
        return BudgetError(message, hint=f"allow more time: --budget {round(self.request.budget_s * 4)}s")

    def _tell(self, text: str) -> None:
        self.listen(Said(text=text))

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def _remaining_s(self) -> float:
        """Of the budget, which begins when the file is loaded: what loading takes is not ours to shorten."""
        return self.request.budget_s - (time.monotonic() - self.budget_since_s)

    def _deadline_s(self) -> float:
        """What one step may take before the worker counts as hung: the budget twice over."""
        return max(_LEAST_DEADLINE_S, 2 * self.request.budget_s)


def _work(measure: Measure) -> tuple[int, int, int]:
    return measure.n_prefix_cached, measure.n_prompt_new, measure.n_steps

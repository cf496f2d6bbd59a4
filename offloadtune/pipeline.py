"""The conductor: probe -> plan -> run -> store -> recommend -> export. The only module that knows both wings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import offloadtune
from offloadtune import export, search, store
from offloadtune.engine import WORKER_COMMAND, Runner, VisitPlan, self_test
from offloadtune.errors import BudgetError, EngineMissingError, InterruptedSweepError, NothingWorksError, UsageError
from offloadtune.footprint import pad_256
from offloadtune.gguf import identify, read_gguf, sha256_of
from offloadtune.probe import probe_host
from offloadtune.recommend import figures, recommend
from offloadtune.records import (
    EngineBuild,
    Figures,
    GgufFacts,
    Machine,
    Note,
    Outcome,
    Recommendation,
    Settings,
    Target,
    Trial,
    TrialResult,
    Verdict,
    Visit,
)
from offloadtune.sweeps import (
    Listener,
    RoundFinished,
    Said,
    SweepReport,
    SweepRequest,
    TrialFinished,
    TrialStarted,
)
from offloadtune.units import format_bytes, format_count, format_seconds

_N_STEPS = 32
_SCREENING_SHARE = 0.6
_N_ROUNDS_MAX = 8
_N_ROUNDS_TO_DECIDE = 3


def probe(endpoints: Sequence[str] = (), *, measure: bool = True) -> tuple[Machine, EngineBuild | None]:
    """The machine, and the engine when it is installed; without one the devices are unknown and a note says so.

    Raises EngineError when an endpoint does not answer.
    """
    host = probe_host(measure=measure)
    try:
        with Runner(Path(), endpoints) as runner:
            build, devices = runner.describe()
    except EngineMissingError as error:
        note = Note(subject="devices", reason=f"{error} {error.hint}")
        return Machine(host=host, devices=None, notes=(note,)), None
    return Machine(host=host, devices=devices), build


def inspect(path: Path) -> GgufFacts:
    """What the header of the file says. Raises GgufError."""
    return read_gguf(path)


def sweep(request: SweepRequest, listen: Listener) -> SweepReport:
    """Measure, choose, write the profile.

    Raises GgufError, EngineMissingError, EngineError, BudgetError, NothingWorksError, StoreError, ExportError, and
    InterruptedSweepError when the user stopped before anything was measured.
    """
    facts = read_gguf(request.path)
    _check(request, facts)
    sha256_before = _sha256(facts, listen, force=True) if request.prove else None
    with Runner(facts.path, request.endpoints, request.worker_command or WORKER_COMMAND) as runner:
        run = _Sweep(request, facts, runner, listen)
        run.measure()
    return run.report(sha256_before)


class _Sweep:
    """One sweep under way: what is known so far and what is left of the budget."""

    def __init__(self, request: SweepRequest, facts: GgufFacts, runner: Runner, listen: Listener) -> None:
        self.request, self.facts, self.runner, self.listen = request, facts, runner, listen
        self.start_s = time.monotonic()
        self.started_at = datetime.now(UTC)
        self.results: list[TrialResult] = []
        self.rounds: list[dict[Settings, tuple[Visit, ...]]] = []
        self.is_interrupted = False
        self.engine, devices = runner.describe()
        self.machine = Machine(host=probe_host(), devices=devices)
        self.space = self._space()
        self.plan = VisitPlan(
            workload=request.workload, n_steps=max(1, min(request.workload.n_gen - 1, _N_STEPS)), n_visits=1
        )
        self.tested: set[bool] = set()
        self.journal = self._open_journal()

    # --- measuring -------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Screen, then compare side by side, until done, out of budget or interrupted; every trial is kept."""
        try:
            self._screen()
            self._compare()
        except KeyboardInterrupt:
            self.is_interrupted = True
            self.runner.kill()

    def _screen(self) -> None:
        while trial := search.next_trial(self.space, self.results):
            if self._elapsed_s() > self.request.budget_s * _SCREENING_SHARE and self._best() is not None:
                return
            if self._remaining_s() <= 0:
                return
            trial = self._after_self_test(trial)
            self.listen(
                TrialStarted(
                    trial=trial,
                    n_done=len(self.results),
                    elapsed_s=self._elapsed_s(),
                    remaining_s=self._remaining_s(),
                )
            )
            self._keep(self.runner.run(trial, self.plan, timeout_s=max(0.0, self._remaining_s())))

    def _compare(self) -> None:
        """Rounds over the finalists in alternating order, so that drift falls on all of them alike."""
        finalists = search.finalists(self.space, self.results)
        round_s = sum(self._visit_s(trial) for trial in finalists)
        while len(finalists) > 1 and len(self.rounds) < _N_ROUNDS_MAX and self._remaining_s() > round_s:
            start_s = time.monotonic()
            order = finalists if len(self.rounds) % 2 == 0 else tuple(reversed(finalists))
            one = self._round(order)
            if one is None:
                finalists = search.finalists(self.space, self.results)
                continue
            self.rounds.append(one)
            self.journal.append_round([(trial.trial_id, one[trial.settings]) for trial in order])
            round_s = time.monotonic() - start_s
            self.listen(
                RoundFinished(
                    n_rounds=len(self.rounds),
                    n_finalists=len(finalists),
                    remaining_s=self._remaining_s(),
                    best=self._best(),
                )
            )
            if self._is_decided():
                return

    def _round(self, order: Sequence[Trial]) -> dict[Settings, tuple[Visit, ...]] | None:
        """Visits of every finalist once; None when one failed, which from now on counts as its result."""
        one = {}
        for trial in order:
            visits = self.runner.revisit(trial, self.plan, timeout_s=max(0.0, self._remaining_s()))
            if isinstance(visits, TrialResult):
                if visits.outcome is not Outcome.TIMED_OUT or self._remaining_s() > 0:
                    self.results = [r for r in self.results if r.trial.settings != trial.settings]
                    self._keep(visits)
                return None
            one[trial.settings] = visits
        return one

    def _visit_s(self, trial: Trial) -> float:
        """What the counted visits of `trial` took before: about what one more in a round will take."""
        result = next(result for result in self.results if result.trial.settings == trial.settings)
        visits = search.measured(result.visits)
        return sum(visit.ttft_s + sum(visit.step_ns) / 1e9 for visit in visits) + (result.load_ns or 0) / 1e9

    def _is_decided(self) -> bool:
        best = self._best()
        if len(self.rounds) < _N_ROUNDS_TO_DECIDE or best is None:
            return False
        return all(one.verdict is not Verdict.SAME for one in best.versus)

    def _after_self_test(self, trial: Trial) -> Trial:
        """`trial`, or what it becomes once the self-test has found what this engine build needs to live."""
        offloads = trial.settings.offloads
        if offloads in self.tested:
            return trial
        self.tested.add(offloads)
        memory = store.FactFile(store.data_dir() / "self_tests.json")
        device_names = ",".join(device.name for device in self.machine.devices or () if device.is_offload_target)
        types = ",".join(sorted(name for name, _ in self.facts.type_bytes))
        key = "|".join((self.engine.build_id, self.machine.machine_id, device_names if offloads else "", types))
        knobs = memory.get(key)
        if knobs is None:
            found = self_test(self.runner, trial.settings, timeout_s=max(1.0, self._remaining_s()))
            if found.sentence:
                self.listen(Said(text=found.sentence))
            if found.knobs is None or self._remaining_s() <= 0:
                return trial
            knobs = found.knobs
            memory.put(key, knobs)
        elif knobs:
            words = ", ".join(f"{name}={value}" for name, value in knobs.items())
            self.listen(Said(text=f"This engine build needs {words} here, as an earlier self-test found."))
        if not knobs:
            return trial
        self.space = dataclasses.replace(self.space, kept={**self.space.kept, **knobs})
        return search.next_trial(self.space, self.results) or trial

    def _keep(self, result: TrialResult) -> None:
        self.results.append(result)
        self.journal.append_trial(result)
        self.listen(TrialFinished(result=result, best=self._best()))

    # --- answering -------------------------------------------------------------------------------------------

    def report(self, sha256_before: str | None) -> SweepReport:
        """The answer, written as a profile. Raises when there is none."""
        answer = self._best()
        self.journal.append_end(answer)
        self.journal.close()
        if answer is None:
            raise self._nothing()
        sha256 = None if self.is_interrupted else _sha256(self.facts, self.listen, force=self.request.prove)
        self._check_untouched(sha256_before, sha256)
        apply_text = _apply_text(answer.trial, self.facts.path, self.request.endpoints)
        profile = export.Profile(
            offloadtune_version=offloadtune.__version__,
            machine=self.machine,
            engine=self.engine,
            facts=self.facts,
            sha256=sha256,
            recommendation=answer,
            apply_text=apply_text,
            journal_path=self.journal.path,
            measured_at=self.started_at.isoformat(timespec="seconds"),
        )
        profile_path = store.profiles_dir() / self.machine.machine_id / f"{self.facts.path.stem}.toml"
        export.write_text(profile_path, export.render_profile(profile))
        return SweepReport(
            machine=self.machine,
            engine=self.engine,
            facts=self.facts,
            sha256=sha256,
            results=tuple(self.results),
            n_rounds=len(self.rounds),
            n_model_loads=self.runner.n_model_loads,
            baselines=self._baselines(),
            recommendation=answer,
            skipped=search.skipped(self.space),
            apply_text=apply_text,
            profile_path=profile_path.resolve(),
            journal_path=self.journal.path,
            is_interrupted=self.is_interrupted,
            duration_s=self._elapsed_s(),
        )

    def _best(self) -> Recommendation | None:
        return recommend(self.space, self.results, self.rounds)

    def _baselines(self) -> dict[str, Figures]:
        by_settings = {r.trial.settings: r for r in self.results if search.is_feasible(r, None)}
        found = {}
        for name, trial in search.baseline_trials(self.space).items():
            if trial.settings in by_settings:
                later = [visit for one in self.rounds for visit in one.get(trial.settings, ())]
                visits = (*by_settings[trial.settings].visits, *later)
                found[name] = figures(visits, self.request.workload)
        return found

    def _nothing(self) -> Exception:
        if self.is_interrupted:
            return InterruptedSweepError("Stopped before the first trial had finished; nothing was measured.")
        timed_out = [result for result in self.results if result.outcome is Outcome.TIMED_OUT]
        if not self.results or len(timed_out) == len(self.results):
            suggestion = max(60, round(self.request.budget_s * 4))
            return BudgetError(
                f"The budget of {format_seconds(self.request.budget_s)} ended before the first trial had finished.",
                hint=f"allow more time: --budget {suggestion}s",
            )
        reasons = "; ".join(dict.fromkeys(result.reason for result in self.results))
        failed = format_count(len(self.results), "trial")
        return NothingWorksError(
            f"None of {failed} ran to the end: {reasons}.",
            hint=f"try a smaller --n-ctx than {self.space.n_ctx}, or read {self.journal.path}",
        )

    def _check_untouched(self, sha256_before: str | None, sha256_after: str | None) -> None:
        """The file must be what it was: size and identity always, the whole hash with --prove."""
        same = identify(self.facts.shard_paths) == self.facts.gguf_id
        if not same or (sha256_before and sha256_after and sha256_before != sha256_after):
            self.listen(Said(text=f"Warning: {self.facts.path.name} was changed by somebody while it was measured."))

    # --- beginnings ------------------------------------------------------------------------------------------

    def _space(self) -> search.Space:
        request, host = self.request, self.machine.host
        free = sum(device.free_bytes for device in self.machine.devices or () if device.is_offload_target)
        if request.vram_limit_bytes is not None:
            free = min(free, request.vram_limit_bytes)
        return search.Space(
            facts=self.facts,
            workload=request.workload,
            goal=request.goal,
            target=request.target,
            n_ctx=pad_256(request.n_ctx or request.workload.n_ctx_needed),
            device_bytes=free,
            limit_bytes=request.vram_limit_bytes,
            n_physical_cores=host.cpu.n_physical_cores or host.cpu.n_logical_cores,
            n_logical_cores=host.cpu.n_logical_cores,
            fixed=request.fixed,
        )

    def _open_journal(self) -> store.Journal:
        name = f"{self.started_at.strftime('%Y%m%dT%H%M%S.%f')}-{self.facts.path.stem}.jsonl"
        header = store.SweepHeader(
            offloadtune_version=offloadtune.__version__,
            machine_id=self.machine.machine_id,
            machine=self.machine,
            engine=self.engine,
            gguf_id=self.facts.gguf_id,
            gguf_path=self.facts.path.resolve(),
            file_bytes=self.facts.file_bytes,
            workload=self.request.workload,
            goal=self.request.goal,
            target=self.request.target,
            n_ctx=self.space.n_ctx,
            fixed=self.request.fixed,
            limit_bytes=self.request.vram_limit_bytes,
            started_at=self.started_at.isoformat(timespec="seconds"),
        )
        return store.Journal(store.data_dir() / "sweeps" / self.machine.machine_id / name, header)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def _remaining_s(self) -> float:
        return self.request.budget_s - self._elapsed_s()


def _check(request: SweepRequest, facts: GgufFacts) -> None:
    if request.workload.n_parallel != 1:
        message = f"Workload {request.workload.name} asks for {request.workload.n_parallel} sequences at once."
        raise UsageError(message, hint="measure one sequence: this version does not measure several")
    needed = request.workload.n_ctx_needed
    if request.n_ctx is not None and request.n_ctx < needed:
        message = f"--n-ctx {request.n_ctx} cannot hold the workload {request.workload.name}: it fills {needed} tokens."
        raise UsageError(message, hint=f"use --n-ctx {pad_256(needed)} or a smaller --workload")
    if facts.n_ctx_train and max(needed, request.n_ctx or 0) > facts.n_ctx_train:
        asked = max(needed, request.n_ctx or 0)
        message = f"{facts.path.name} was trained for {facts.n_ctx_train} tokens of context; this asks for {asked}."
        raise UsageError(message, hint=f"stay within it: a smaller --workload or --n-ctx {facts.n_ctx_train}")


def _apply_text(trial: Trial, path: Path, endpoints: Sequence[str]) -> str:
    if trial.target is Target.LLAMA_SERVER:
        return export.render_command(trial.settings, path.resolve(), endpoints)
    return export.render_snippet(trial.settings, path.resolve(), endpoints)


def _sha256(facts: GgufFacts, listen: Listener, *, force: bool) -> str | None:
    """SHA-256 over the file (its shards in order), remembered by path, inode, size and time; None when stopped."""
    stats = [path.stat() for path in facts.shard_paths]
    key = "|".join(
        f"{path.resolve()}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        for path, stat in zip(facts.shard_paths, stats, strict=True)
    )
    memory = store.FactFile(store.data_dir() / "sha256.json")
    known: str | None = memory.get(key)
    if known and not force:
        return known
    if facts.file_bytes > 1 << 30:
        listen(Said(text=f"Hashing {format_bytes(facts.file_bytes)} to prove the weights untouched; Ctrl-C skips it."))
    try:
        digest: str = sha256_of(facts.shard_paths)
    except KeyboardInterrupt:
        return None
    memory.put(key, digest)
    return digest

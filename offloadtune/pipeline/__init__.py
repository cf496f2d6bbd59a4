"""The conductor: probe -> plan -> run -> store -> recommend -> export. The only package that knows both wings.

planning     what settings take, before anything is loaded
batches      the same for every line of a file
foretelling  what the engine itself says of them
rooms        what there is to plan on
shapes       a model by name instead of by file
calibrating  what trials taught of the devices
checking     what cannot be measured is refused first
measuring    one sweep under way: self-test, trials, rounds side by side
resuming     what the same sweep measured before
spaces       what it may try
rebuilding   when another engine build would do more
guarding     when the file itself is not, or no longer, what can be measured
answering    its report and profile, or why there is none
recalling    the stored sweep that answers a question
likeness     whether it was made on what is here now
missing      what has to be measured where none answers
using        its answer again, its settings as text, and the target's own server started with them
summing      all journals, in short
interrupts   when Ctrl-C must wait
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offloadtune import export, store
from offloadtune.engine import WORKER_COMMAND, Runner
from offloadtune.errors import EngineError, EngineMissingError, InterruptedSweepError, UsageError
from offloadtune.gguf import read_gguf
from offloadtune.pipeline import planning
from offloadtune.pipeline.answering import answer_sweep, sha256
from offloadtune.pipeline.batches import plan_lines
from offloadtune.pipeline.checking import check
from offloadtune.pipeline.guarding import GuardedRunner
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.measuring import Measuring
from offloadtune.pipeline.rebuilding import missing_backend, rebuild_line
from offloadtune.pipeline.rooms import machine_place, named_place
from offloadtune.pipeline.summing import history
from offloadtune.pipeline.using import export_stored, recommend_stored, serve_stored, server_command, write_export
from offloadtune.plans import PlanReport, PlanRequest
from offloadtune.probe import probe_host
from offloadtune.records import EngineBuild, GgufFacts, Machine, Note, Target, Trial
from offloadtune.sweeps import Event, Listener, Said, SweepReport, SweepRequest

__all__ = [
    "crash_path",
    "export_stored",
    "history",
    "inspect",
    "plan",
    "plan_lines",
    "probe",
    "recommend_stored",
    "serve_stored",
    "server_command",
    "sweep",
    "write_export",
]


def probe(endpoints: Sequence[str] = (), *, measure: bool = True) -> tuple[Machine, EngineBuild | None]:
    """The machine, and the engine when it runs; without one the devices are unknown and a note says why.

    Raises EngineError when an endpoint does not answer.
    """
    host = probe_host(measure=measure)
    try:
        with Runner(Path(), endpoints) as runner:
            build, devices = runner.describe()
    except (EngineMissingError, EngineError) as error:
        if endpoints and isinstance(error, EngineError):
            raise
        note = Note(subject="devices", reason=f"{error} To install it: {rebuild_line()}")
        return Machine(host=host, devices=None, notes=(note,)), None
    machine = Machine(host=host, devices=devices)
    if advice := missing_backend(machine, build):
        machine = Machine(host=host, devices=devices, notes=(Note(subject="devices", reason=advice),))
    return machine, build


def crash_path() -> Path:
    """Where the traceback of a mistake of our own is to be kept."""
    return store.data_dir() / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S}.txt"


def inspect(path: Path) -> GgufFacts:
    """What the header of the file says. Raises GgufError."""
    return read_gguf(path)


def plan(request: PlanRequest) -> PlanReport:
    """What settings would take: on cards by name, else on the devices of this machine, or on its CPU without an engine.

    Raises GgufError, UnknownNameError, UsageError; EngineError where an endpoint or an exact answer fails.
    """
    if request.card or request.n_devices > 1 or (request.limit_bytes is not None and not request.endpoints):
        if request.is_exact:
            message = "--exact asks this machine's engine about this machine's devices."
            raise UsageError(message, hint="leave out --card and --vram-limit, or leave out --exact")
        return planning.plan(request, named_place(request), None)
    if request.is_exact and request.path is None:
        raise UsageError("--exact needs a file that the engine can open.", hint="name a GGUF file instead of --shape")
    with Runner(request.path or Path(), request.endpoints) as runner:
        try:
            engine, devices = runner.describe()
        except (EngineMissingError, EngineError) as error:
            if request.is_exact or request.endpoints:
                raise
            machine, engine_here = Machine(host=probe_host(measure=False), devices=None), None
            place = machine_place(request, machine, engine_here)
            said = f"No device is planned for: {error} Name a card with --card, or install an engine: {rebuild_line()}"
            return planning.plan(request, dataclasses.replace(place, warnings=(*place.warnings, said)), None)
        machine = Machine(host=probe_host(measure=False), devices=devices)
        place = machine_place(request, machine, engine)
        return planning.plan(request, place, runner if request.is_exact else None)


def sweep(request: SweepRequest, listen: Listener) -> SweepReport:
    """Measure, choose, write the profile.

    Raises GgufError, EngineMissingError, EngineError, BusyError, BudgetError, NothingWorksError, StoreError,
    ExportError, and InterruptedSweepError when the user stopped before anything was measured.
    """
    listen = _unbreakable(listen)
    facts = read_gguf(request.path)
    check(request, facts)
    with store.measuring_alone(store.data_dir(), facts.path.name):
        return _measure_and_answer(request, facts, listen)


def _unbreakable(listen: Listener) -> Listener:
    """`listen` whose display may vanish (a closed terminal, a broken pipe) without ending the sweep."""

    def heard_or_not(event: Event) -> None:
        with contextlib.suppress(OSError):
            listen(event)

    return heard_or_not


def _measure_and_answer(request: SweepRequest, facts: GgufFacts, listen: Listener) -> SweepReport:
    sha256_before = sha256(facts, listen, force=True) if request.prove else None
    with GuardedRunner(
        facts,
        rebuild_line,
        endpoints=request.endpoints,
        command=request.worker_command or WORKER_COMMAND,
        arguments=_llama_arguments,
    ) as runner:
        try:
            measuring = Measuring(request, facts, runner, listen)
        except EngineMissingError as error:
            raise EngineMissingError(str(error), hint=rebuild_line()) from None
        except KeyboardInterrupt:
            message = "Stopped before the first trial had begun; nothing was measured."
            raise InterruptedSweepError(message, hint="run the same command again") from None
        if advice := missing_backend(measuring.machine, measuring.engine):
            listen(Said(text=advice))
        try:
            measuring.measure()
        except BaseException:
            measuring.journal.close()
            raise
        with deaf():
            runner.close()
    return answer_sweep(measuring, sha256_before)


def _llama_arguments(trial: Trial) -> dict[str, Any] | None:
    """What the trial's snippet tells `Llama`: what is measured is what is handed over."""
    return export.llama_kwargs(trial.settings, trial.told) if trial.target is Target.LLAMA_CPP_PYTHON else None

"""Here: planning on this machine's own devices, with what was learnt of them, and with its engine's own word."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from offloadtune import store
from offloadtune.engine import Runner
from offloadtune.errors import BusyError, EngineError, EngineMissingError, UsageError
from offloadtune.footprint import probes_of
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.calibrating import Calibrations
from offloadtune.pipeline.devices import machine_place
from offloadtune.pipeline.foretelling import Foretold, foretold
from offloadtune.pipeline.journals import last_results, read_all
from offloadtune.pipeline.planning import report_of
from offloadtune.pipeline.rebuilding import rebuild_line
from offloadtune.pipeline.rigs import host_of_request, rig_of_machine
from offloadtune.pipeline.rooms import Place, named_place
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.plans import PlanReport, PlanRequest
from offloadtune.probe import probe_host
from offloadtune.records import EngineBuild, GgufFacts, Machine, Outcome, Settings
from offloadtune.speed import Laws
from offloadtune.speeds import Rig

_FORECAST_S = 120.0


def plan_here(request: PlanRequest) -> PlanReport:
    """A plan on this machine's devices. Raises as `planning.plan` does."""
    if request.is_exact and request.path is None:
        raise UsageError("--exact needs a file that the engine can open.", hint="name a GGUF file instead of --shape")
    if (owner := store.owner_now(store.data_dir())) is not None:
        return _plan_beside(request, owner)
    with Runner(request.path or Path(), request.endpoints) as runner:
        try:
            engine, devices = runner.describe()
        except (EngineMissingError, EngineError) as error:
            if isinstance(error, EngineMissingError) and (request.is_exact or request.endpoints):
                raise EngineMissingError(str(error), hint=rebuild_line()) from None
            if request.is_exact or request.endpoints:
                raise
            return _plan_without_engine(request, error)
        machine = Machine(host=probe_host(measure=False), devices=devices)
        rig = _rig(request, machine)
        if not machine.offload_devices and request.limit_bytes is not None:
            return report_of(request, named_place(request, rig.host), None)
        place = machine_place(machine, engine, request.limit_bytes, request.ram_limit_bytes)
        place = dataclasses.replace(place, rig=rig)

        def ask(facts: GgufFacts, settings: Settings, place: Place) -> Foretold:
            forecasts = runner.forecast(probes_of(settings), timeout_s=_FORECAST_S)
            Calibrations(engine).learn_refused(devices, forecasts[-1].refused)
            return foretold(facts, settings, place, forecasts)

        laws_for = None if _names_memory(request) else _LawsHere(machine, engine)
        report = report_of(request, place, ask if request.is_exact else None, laws_for)
    warnings = (*report.plan.warnings, *(laws_for.words if laws_for else ()))
    return dataclasses.replace(
        report,
        plan=dataclasses.replace(report.plan, warnings=warnings),
        measured=_measured(request, report.plan.settings, machine, engine),
    )


class _LawsHere:
    """What ran on this machine, as laws for a file; `words` on the runs, once they were asked for."""

    def __init__(self, machine: Machine, engine: EngineBuild) -> None:
        self._machine, self._engine = machine, engine
        self._last: tuple[GgufFacts, Laws] | None = None
        self.words: tuple[str, ...] = ()

    def __call__(self, facts: GgufFacts) -> Laws:
        if self._last is None or self._last[0] is not facts:
            memory = SpeedMemory(facts, self._machine, self._engine)
            self._last = facts, memory.laws()
            self.words = tuple(dict.fromkeys((*self.words, *memory.words)))
        return self._last[1]


def _measured(
    request: PlanRequest, settings: Settings, machine: Machine, engine: EngineBuild
) -> tuple[tuple[str, int], ...]:
    """The device peaks of the newest trial of this file with these settings here, threads aside."""
    if request.path is None:
        return ()
    gguf_id = read_gguf(request.path).gguf_id
    here = (gguf_id, machine.machine_id, engine.build_id)
    stored, _ = read_all(lambda header: (header.gguf_id, header.machine_id, header.engine.build_id) == here)
    found: tuple[tuple[str, int], ...] = ()
    for one in sorted(stored, key=lambda one: one.written_at):
        for result in last_results(one.content):
            if result.outcome is Outcome.OK and _alike(result.trial.settings) == _alike(settings):
                found = result.device_peak_bytes
    return found


def _alike(settings: Settings) -> Settings:
    """`settings` without what changes no byte on a device."""
    return settings.replace(n_threads=1, n_threads_batch=1, use_extra_bufts=True, load_mode="mmap")


def _plan_beside(request: PlanRequest, owner: store.Owner) -> PlanReport:
    """A plan while a sweep measures: a second process on its devices would disturb what it measures."""
    if request.is_exact or request.endpoints:
        message = f"{owner.what} is being measured now, and its devices must not be asked meanwhile."
        raise BusyError(message, hint="wait for the sweep to end, or plan for a card by name with --card")
    machine = Machine(host=probe_host(measure=False), devices=None)
    said = f"No device is planned for: {owner.what} is being measured on them now. Name a card with --card."
    return report_of(request, _place_of_host(request, machine, said), None)


def _plan_without_engine(request: PlanRequest, error: EngineMissingError | EngineError) -> PlanReport:
    machine = Machine(host=probe_host(measure=False), devices=None)
    if request.limit_bytes is not None:
        return report_of(request, named_place(request, _rig(request, machine).host), None)
    said = f"No device is planned for: {error} Name a card with --card, or install an engine: {rebuild_line()}"
    return report_of(request, _place_of_host(request, machine, said), None)


def _place_of_host(request: PlanRequest, machine: Machine, said: str) -> Place:
    """The CPU and main memory alone, and why."""
    place = machine_place(machine, None, None, request.ram_limit_bytes)
    return dataclasses.replace(place, warnings=(*place.warnings, said), rig=_rig(request, machine))


def _names_memory(request: PlanRequest) -> bool:
    """Whether the plan is for other main memory than this machine's, with which nothing ran."""
    return request.ram is not None or request.ram_bytes_per_s is not None


def _rig(request: PlanRequest, machine: Machine) -> Rig:
    """What this machine does at best; main memory as the request names it, where it does."""
    rig = rig_of_machine(machine)
    if not _names_memory(request):
        return rig
    named = host_of_request(request).peak_bytes_per_s
    return dataclasses.replace(rig, host=dataclasses.replace(rig.host, peak_bytes_per_s=named, read_bytes_per_s=None))

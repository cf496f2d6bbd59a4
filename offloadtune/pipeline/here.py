"""Here: planning on this machine's own devices, with what was learnt of them, and with its engine's own word."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from offloadtune.engine import Runner
from offloadtune.errors import EngineError, EngineMissingError, UsageError
from offloadtune.footprint import Room, backend_of, probes_of
from offloadtune.pipeline.calibrating import Calibration, Calibrations
from offloadtune.pipeline.foretelling import Foretold, foretold
from offloadtune.pipeline.planning import report_of
from offloadtune.pipeline.rebuilding import rebuild_line
from offloadtune.pipeline.rooms import Place
from offloadtune.plans import PlanReport, PlanRequest, RuntimeBasis
from offloadtune.probe import probe_host
from offloadtune.records import Device, EngineBuild, GgufFacts, Machine, Settings
from offloadtune.units import MIB, format_bytes

_FORECAST_S = 120.0
_TAKEN_WORTH_SAYING_BYTES = 32 * MIB


def plan_here(request: PlanRequest) -> PlanReport:
    """A plan on this machine's devices. Raises as `planning.plan` does."""
    if request.is_exact and request.path is None:
        raise UsageError("--exact needs a file that the engine can open.", hint="name a GGUF file instead of --shape")
    with Runner(request.path or Path(), request.endpoints) as runner:
        try:
            engine, devices = runner.describe()
        except (EngineMissingError, EngineError) as error:
            if isinstance(error, EngineMissingError) and (request.is_exact or request.endpoints):
                raise EngineMissingError(str(error), hint=rebuild_line()) from None
            if request.is_exact or request.endpoints:
                raise
            return _plan_without_engine(request, error)
        place = machine_place(request, Machine(host=probe_host(measure=False), devices=devices), engine)

        def ask(facts: GgufFacts, settings: Settings, place: Place) -> Foretold:
            forecasts = runner.forecast(probes_of(settings), timeout_s=_FORECAST_S)
            Calibrations(engine).learn_refused(devices, forecasts[-1].refused)
            return foretold(facts, settings, place, forecasts)

        return report_of(request, place, ask if request.is_exact else None)


def _plan_without_engine(request: PlanRequest, error: EngineMissingError | EngineError) -> PlanReport:
    place = machine_place(request, Machine(host=probe_host(measure=False), devices=None), None)
    said = f"No device is planned for: {error} Name a card with --card, or install an engine: {rebuild_line()}"
    return report_of(request, dataclasses.replace(place, warnings=(*place.warnings, said)), None)


def machine_place(request: PlanRequest, machine: Machine, engine: EngineBuild | None) -> Place:
    """The room of this machine's own devices, with what trials taught of them."""
    devices = machine.offload_devices
    memory = Calibrations(engine) if engine else None
    if memory:
        memory.learn_free(devices)
    known = [memory.of(device) if memory else Calibration() for device in devices]
    available = machine.host.ram.available_bytes
    if request.ram_limit_bytes is not None:
        available = min(available, request.ram_limit_bytes)
    free = [
        one.free_bytes if request.limit_bytes is None else min(one.free_bytes, request.limit_bytes) for one in devices
    ]
    room = Room(
        names=tuple(device.name for device in devices),
        backends=tuple(
            dataclasses.replace(backend_of(device.name), refuses=frozenset(one.refused_types))
            for device, one in zip(devices, known, strict=True)
        ),
        free_bytes=tuple(free),
        runtime_bytes=tuple(one.runtime_bytes or 0 for one in known),
        shares=tuple(float(device.free_bytes) for device in devices),
        available_bytes=available,
    )
    bases = tuple(RuntimeBasis.UNKNOWN if one.runtime_bytes is None else RuntimeBasis.CALIBRATED for one in known)
    return Place(room=room, bases=bases, warnings=_taken(devices, known))


def _taken(devices: tuple[Device, ...], known: list[Calibration]) -> tuple[str, ...]:
    """What other programs, the desktop among them, hold now of what was once free."""
    sentences = []
    for device, one in zip(devices, known, strict=True):
        taken = (one.idle_free_bytes or 0) - device.free_bytes
        if taken > _TAKEN_WORTH_SAYING_BYTES:
            was = format_bytes(one.idle_free_bytes or 0)
            sentences.append(
                f"Other programs hold {format_bytes(taken)} of {device.name} now: {was} were free at idle."
            )
    return tuple(sentences)

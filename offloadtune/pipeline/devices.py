"""Devices: those of this machine as a room to plan in, with what trials taught of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from offloadtune.footprint import Grid, Room, backend_of, margin_of, reckon
from offloadtune.pipeline.calibrating import Calibration, Calibrations
from offloadtune.pipeline.rooms import Place
from offloadtune.plans import RuntimeBasis
from offloadtune.records import Device, EngineBuild, GgufFacts, Machine, Settings, TrialResult
from offloadtune.units import MIB, format_bytes

_TAKEN_WORTH_SAYING_BYTES = 32 * MIB
_DEVICE_FRAC, _RAM_FRAC = 0.9, 0.8
"""Of what is free, that placements side by side may take: memory in pieces holds less than it says."""


class DeviceMemory:
    """What a sweep expects of each device's memory, and learns of it trial by trial."""

    def __init__(self, facts: GgufFacts, machine: Machine, engine: EngineBuild) -> None:
        self._facts, self._machine, self._engine = facts, machine, engine
        self._calibrations = Calibrations(engine)
        self._calibrations.learn_free(machine.offload_devices)
        self._sweep = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"

    def predicted(self, settings: Settings) -> tuple[tuple[str, int], ...]:
        """Bytes that each device should take at its peak, by arithmetic and what was learnt so far.

        Where no trial has told what its driver takes, that is left out.
        """
        if not settings.offloads:
            return ()
        chosen = self._machine.devices or ()
        if settings.devices is not None:
            by_name = {device.name: device for device in chosen}
            devices = tuple(by_name[name] for name in settings.devices if name in by_name)
        else:
            devices = self._machine.offload_devices
        room = machine_place(dataclasses.replace(self._machine, devices=devices), self._engine).room
        if not room.names:
            return ()
        found = reckon(self._facts, Grid.of((settings,), self._facts.n_layer), room.backends, room.shares)
        used = found.device_bytes[:, 0].tolist()
        return tuple(
            (name, n_bytes + runtime if n_bytes else 0)
            for name, n_bytes, runtime in zip(room.names, used, room.runtime_bytes, strict=True)
        )

    def go_on_with(self, machine: Machine) -> None:
        """The same machine with other memory free."""
        self._machine = machine

    def learn(self, result: TrialResult) -> None:
        """Keep what the trial took beyond the engine's own breakdown."""
        self._calibrations.learn_trial(self._machine.offload_devices, result, self._sweep)


def abreast(results: Sequence[TrialResult], machine: Machine) -> frozenset[tuple[Any, ...]]:
    """The placements of `results` where all of them may be loaded at once, one of them with a context; else none.

    Of each placement the weights count, of the rest the most that any trial took. Main memory that the file is mapped
    into is counted as often as it is mapped, which is too much.
    """
    if len({result.trial.settings.op_offload_min_batch for result in results}) > 1:  # each needs a worker of its own
        return frozenset()
    rooms = {device.name: _DEVICE_FRAC * device.free_bytes for device in machine.offload_devices}
    rooms[""] = _RAM_FRAC * machine.host.ram.available_bytes
    weights: dict[tuple[Any, ...], dict[str, int]] = {}
    beside = dict.fromkeys(rooms, 0)
    for result in results:
        if not result.memory:
            return frozenset()
        ours = dict.fromkeys(rooms, 0)
        peaks = {**dict(result.device_peak_bytes), "": 0}
        for row in result.memory:
            name = row.device if row.device in rooms and not row.is_host else ""
            ours[name] += row.weights_bytes
            peaks[""] += 0 if name else row.total_bytes
        weights[result.trial.settings.placement] = ours
        beside = {name: max(n_bytes, peaks.get(name, 0) - ours[name]) for name, n_bytes in beside.items()}
    needed = {name: beside[name] + sum(ours[name] for ours in weights.values()) for name in rooms}
    return frozenset(weights) if all(needed[name] <= room for name, room in rooms.items()) else frozenset()


def runtime_bytes(machine: Machine, engine: EngineBuild) -> int:
    """What all devices together take beyond any breakdown, 0 where no trial has told yet."""
    calibrations = Calibrations(engine)
    return sum(calibrations.of(device).runtime_bytes or 0 for device in machine.offload_devices)


def machine_place(
    machine: Machine, engine: EngineBuild | None, limit_bytes: int | None = None, ram_limit_bytes: int | None = None
) -> Place:
    """The room of this machine's own devices, with what trials taught of them."""
    devices = machine.offload_devices
    memory = Calibrations(engine) if engine else None
    if memory:
        memory.learn_free(devices)
    known = [memory.of(device) if memory else Calibration() for device in devices]
    available = machine.host.ram.available_bytes
    if ram_limit_bytes is not None:
        available = min(available, ram_limit_bytes)
    free = [one.free_bytes if limit_bytes is None else min(one.free_bytes, limit_bytes) for one in devices]
    room = Room(
        names=tuple(device.name for device in devices),
        backends=tuple(
            dataclasses.replace(backend_of(device.name), refuses=frozenset(one.refused_types))
            for device, one in zip(devices, known, strict=True)
        ),
        free_bytes=tuple(free),
        runtime_bytes=tuple(one.runtime_bytes or 0 for one in known),
        margin_bytes=tuple(
            margin_of(n_bytes) if one.runtime_bytes is None else 0 for n_bytes, one in zip(free, known, strict=True)
        ),
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

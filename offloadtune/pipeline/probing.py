"""Probing: the machine and its engine's devices, a file's header, and where a mistake of ours is written down."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from offloadtune import store
from offloadtune.conditions import Disturbance
from offloadtune.doctor.joining import card_of
from offloadtune.engine import Runner
from offloadtune.errors import EngineError, EngineMissingError
from offloadtune.gguf import read_gguf
from offloadtune.hardware import DeviceSpeed, GpuHardware, Hardware, MachineProfile
from offloadtune.interference import on_cards, standing
from offloadtune.pipeline.linking import with_link
from offloadtune.pipeline.rebuilding import missing_backend, rebuild_line
from offloadtune.plans import CacheCost
from offloadtune.probe import local_servers, probe_host, read_conditions
from offloadtune.probe.inventory import memory_speeds
from offloadtune.records import Device, EngineBuild, GgufFacts, Host, Machine, Note, Settings

PROBE_S = 4.5
"""Time for a whole probe, the devices' transfers last: they have what the rest left of it."""

_LEAST_TRANSFER_S = 1.5
"""What it takes to open a device and to measure all its rates."""

_N_CTX_BLOCK = 256
_UNTIMED = "ram.read_bytes_per_s"


def probe(endpoints: Sequence[str] = (), *, measure: bool = True) -> tuple[Machine, EngineBuild | None]:
    """The machine, and the engine when it runs; without one the devices are unknown and a note says why.

    Raises EngineError when an endpoint does not answer.
    """
    host = probe_host(measure=measure)
    with Runner(Path(), endpoints) as runner:
        return _machine(host, _engine_of(runner, endpoints))


def probe_machine(
    endpoints: Sequence[str] = (), *, measure: bool = True, start_s: float | None = None
) -> MachineProfile:
    """The machine in depth; `measure` times its memory and what its devices move, and asks what takes seconds to tell.

    It is done about PROBE_S after `start_s` of time.monotonic(), None for now, where the engine starts in that time.
    While a sweep measures, nothing is timed and no engine started: both would disturb it. Raises EngineError when an
    endpoint does not answer.
    """
    deadline = (time.monotonic() if start_s is None else start_s) + PROBE_S
    if (owner := measured_now()) is not None:
        return machine_beside(owner, may_be_slow=measure)
    return machine_alone(endpoints, measure=measure, transfer_s=None, deadline=deadline, may_be_slow=measure)


def machine_alone(
    endpoints: Sequence[str],
    *,
    measure: bool,
    transfer_s: float | None,
    deadline: float = math.inf,
    may_be_slow: bool = True,
) -> MachineProfile:
    """The same where it is known that no sweep measures.

    Each device has `transfer_s`, None for its share of what is left until `deadline` of time.monotonic().
    """
    from offloadtune.probe import read_hardware  # noqa: PLC0415 - only where the whole machine is asked for

    measured_at = _now()
    with Runner(Path(), endpoints) as runner, ThreadPoolExecutor(1) as beside:
        reading = beside.submit(lambda: (probe_host(measure=False), read_hardware(may_be_slow=may_be_slow)))
        found = _engine_of(runner, endpoints)  # it takes as long to start as the machine to be read
        host, hardware = reading.result()
        machine, engine = _machine(host, found)
        if measure:
            memory_deadline = deadline - _LEAST_TRANSFER_S * len(machine.offload_devices)
            host, hardware = _timed_memory(host, hardware, memory_deadline)
            machine = dataclasses.replace(machine, host=host)
        profile = MachineProfile(
            machine=machine, engine=engine, hardware=hardware, device_speeds=(), measured_at=measured_at
        )
        if not measure:
            return profile
        cards = {device.name: card_of(device, profile) for device in machine.offload_devices}
        speeds = _timed_devices(runner, machine.offload_devices, deadline, transfer_s, cards)
    return dataclasses.replace(profile, device_speeds=speeds)


def measured_now() -> str | None:
    """What a sweep or a bench measures on this machine now, None where nothing is being measured."""
    owner = store.owner_now(store.data_dir())
    return owner.what if owner else None


def machine_beside(owner: str, *, may_be_slow: bool = True) -> MachineProfile:
    """The machine in depth, as far as it can be told without disturbing who measures `owner` on it."""
    from offloadtune.probe import read_hardware  # noqa: PLC0415 - only where the whole machine is asked for

    host = _untimed(probe_host(measure=False), untimed_words(owner))
    reason = f"{owner} is being measured now, and the engine and its devices must not be asked beside it."
    machine, engine = _machine(host, Note(subject="devices", reason=reason))
    hardware = read_hardware(may_be_slow=may_be_slow)
    return MachineProfile(machine=machine, engine=engine, hardware=hardware, device_speeds=(), measured_at=_now())


def untimed_words(owner: str) -> str:
    """Why nothing was timed."""
    return f"{owner} is being measured now, so nothing was timed beside it."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _engine_of(runner: Runner, endpoints: Sequence[str]) -> tuple[EngineBuild, tuple[Device, ...]] | Note:
    """The engine and its devices, or why there is none. Raises EngineError when an endpoint does not answer."""
    try:
        return runner.describe()
    except (EngineMissingError, EngineError) as error:
        if endpoints and isinstance(error, EngineError):
            raise
        return Note(subject="devices", reason=f"{error} To install it: {rebuild_line()}")


def _machine(host: Host, found: tuple[EngineBuild, tuple[Device, ...]] | Note) -> tuple[Machine, EngineBuild | None]:
    """`host` with the engine's devices, and a note where they are not all they could be."""
    if isinstance(found, Note):
        return Machine(host=host, devices=None, notes=(found,)), None
    build, devices = found
    machine = Machine(host=host, devices=devices)
    if advice := missing_backend(machine, build):
        machine = Machine(host=host, devices=devices, notes=(Note(subject="devices", reason=advice),))
    return machine, build


def _timed_memory(host: Host, hardware: Hardware, deadline: float) -> tuple[Host, Hardware]:
    """Both with what threads read; of the host that of as many threads as it has cores."""
    speeds = memory_speeds(host, deadline=deadline)
    if isinstance(speeds, Note):
        return _untimed(host, speeds.reason), hardware
    last = max(speeds, key=lambda one: one.n_threads)
    ram = dataclasses.replace(host.ram, read_bytes_per_s=last.read_bytes_per_s, n_threads_read=last.n_threads)
    notes = tuple(note for note in host.notes if note.subject != _UNTIMED)
    memory = dataclasses.replace(hardware.memory, speeds=speeds)
    return dataclasses.replace(host, ram=ram, notes=notes), dataclasses.replace(hardware, memory=memory)


def _untimed(host: Host, reason: str) -> Host:
    """`host` with why its memory was not timed."""
    kept = tuple(note for note in host.notes if note.subject != _UNTIMED)
    return dataclasses.replace(host, notes=(*kept, Note(subject=_UNTIMED, reason=reason)))


def _timed_devices(
    runner: Runner,
    devices: Sequence[Device],
    deadline: float,
    transfer_s: float | None,
    cards: Mapping[str, GpuHardware | None] = MappingProxyType({}),
) -> tuple[DeviceSpeed, ...]:
    """What each device moves, in `transfer_s`, or else in its share of the time that is left.

    Where time is short the first ones have enough of it, and the others none; nor has any time for another start of the
    engine. `cards` are the cards behind them, whose links are looked at meanwhile.
    """
    found = []
    for i, device in enumerate(devices):
        left_s = deadline - time.monotonic()
        n_timed = min(len(devices) - i, left_s / _LEAST_TRANSFER_S)
        if transfer_s is None and (n_timed < 1 or not runner.pids):
            found.append(_no_time(device.name))
        else:
            transfer = partial(runner.transfers, device.name, timeout_s=transfer_s or left_s / int(n_timed))
            found.append(with_link(transfer, cards.get(device.name)))
    return tuple(found)


def _no_time(device: str) -> DeviceSpeed:
    return DeviceSpeed(
        device=device,
        to_pageable_bytes_per_s=None,
        from_pageable_bytes_per_s=None,
        to_pinned_bytes_per_s=None,
        from_pinned_bytes_per_s=None,
        memory_bytes_per_s=None,
        reason="No time was left of that of a probe; offloadtune doctor takes more.",
    )


def standing_now(endpoints: Sequence[str] = (), cards: Collection[str] | None = None) -> tuple[Disturbance, ...]:
    """What stands against measuring now, of the cards those with these PCI bus ids (None: all).

    To be asked before an engine of ours runs; a server at `endpoints` may.
    """
    return standing(on_cards(read_conditions(local_servers(endpoints)), cards))


def standing_here(endpoints: Sequence[str] = ()) -> tuple[Disturbance, ...]:
    """The same for who only looks on: beside a sweep it would be the sweep's own doing, and is left out."""
    return () if measured_now() is not None else standing_now(endpoints)


def crash_path() -> Path:
    """Where the traceback of a mistake of our own is to be kept."""
    return store.data_dir() / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S}.txt"


def inspect(path: Path) -> GgufFacts:
    """What the header of the file says. Raises GgufError."""
    return read_gguf(path)


def cache_cost(facts: GgufFacts) -> CacheCost | None:
    """What a context costs in cache: f16, every block, one sequence, blocks that slide keeping no more than they must.

    None where the header's counts are absurd.
    """
    from offloadtune.footprint import contradiction, kv_cache_bytes  # noqa: PLC0415 - numpy is slow to import

    n_ctx = (facts.n_swa // _N_CTX_BLOCK + 8) * _N_CTX_BLOCK  # past the window and a batch
    settings = Settings(n_ctx=n_ctx, swa_full=False)
    if contradiction(facts, settings):
        return None
    small, large = (kv_cache_bytes(facts, settings.replace(n_ctx=n)) for n in (n_ctx, n_ctx + _N_CTX_BLOCK))
    per_token = (large - small) // _N_CTX_BLOCK
    return CacheCost(bytes_per_token=per_token, fixed_bytes=small - per_token * n_ctx)

"""Rooms: what there is to plan on, this machine's devices with what was learnt of them, or a card by its name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from offloadtune import catalogue
from offloadtune.errors import UsageError
from offloadtune.footprint import CUDA, GENERIC, Room, backend_of
from offloadtune.pipeline.calibrating import Calibration, Calibrations
from offloadtune.plans import PlanRequest, RuntimeBasis
from offloadtune.records import Device, EngineBuild, Machine
from offloadtune.units import MIB, format_bytes

PUBLISHED_CUDA_RUNTIME_BYTES = 330 * MIB
"""CUDA context of one process on one card, by published logs of llama.cpp (320 to 330 MiB)."""

USABLE_FRAC = 0.98
"""Of a card's nominal memory what its driver lets programs have, nothing else running (24 GB cards: 24080 MiB)."""

_PREFIXES = {"NVIDIA": "CUDA", "AMD": "ROCm", "Intel": "SYCL", "Apple": "MTL"}
_N_DEVICES_MAX = 16  # llama_max_devices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A room with what is to be said of it. `machine` and `engine` are None where the room is not here."""

    room: Room
    bases: tuple[RuntimeBasis, ...]
    warnings: tuple[str, ...] = ()
    machine: Machine | None = None
    engine: EngineBuild | None = None
    devices: tuple[Device, ...] = field(default=())


def named_place(request: PlanRequest) -> Place:
    """The room of cards by name, or of devices of a given size. Raises UnknownNameError, UsageError."""
    if not 1 <= request.n_devices <= _N_DEVICES_MAX:
        raise UsageError(f"{request.n_devices} devices cannot be planned for.", hint=f"use 1 to {_N_DEVICES_MAX}")
    n = request.n_devices
    card = catalogue.find_card(request.card) if request.card else None
    free = int(card.vram_bytes * USABLE_FRAC) if card and card.vram_bytes else None
    if request.limit_bytes is not None:
        free = request.limit_bytes if free is None else min(free, request.limit_bytes)
    prefix = _PREFIXES.get(card.vendor, "GPU") if card else "GPU"
    is_cuda = prefix in {"CUDA", "ROCm"}
    runtime = PUBLISHED_CUDA_RUNTIME_BYTES if prefix == "CUDA" else 0
    basis = RuntimeBasis.PUBLISHED if prefix == "CUDA" else RuntimeBasis.UNKNOWN
    room = Room(
        names=tuple(f"{prefix}{i}" for i in range(n)),
        backends=(CUDA if is_cuda else GENERIC,) * n,
        free_bytes=(free,) * n,
        runtime_bytes=(runtime,) * n,
        shares=(1.0,) * n,
        available_bytes=request.ram_limit_bytes,
    )
    return Place(room=room, bases=(basis,) * n, warnings=_unknown_size(card, request.limit_bytes))


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
    return Place(
        room=room, bases=bases, warnings=_taken(devices, known), machine=machine, engine=engine, devices=devices
    )


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


_TAKEN_WORTH_SAYING_BYTES = 32 * MIB


def _unknown_size(card: catalogue.Card | None, limit_bytes: int | None) -> tuple[str, ...]:
    if card is None:
        return ()
    if card.vram_bytes is None and limit_bytes is None:
        return (f"{card.name} has no memory of its own: name what it may use with --vram-limit.",)
    usable = f"{USABLE_FRAC:.0%} of its nominal memory, as drivers leave it"
    return (f"{card.name} is reckoned with {usable}; a desktop shown by it takes its part.",)

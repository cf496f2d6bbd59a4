"""Rooms: what there is to plan on, here or on cards by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune import catalogue
from offloadtune.errors import UsageError
from offloadtune.footprint import CUDA, GENERIC, Room, margin_of
from offloadtune.pipeline.rigs import host_of_request, rig_of_cards
from offloadtune.plans import PlanRequest, RuntimeBasis
from offloadtune.speeds import HostRates, Rig
from offloadtune.units import MIB, format_count, format_split

PUBLISHED_CUDA_RUNTIME_BYTES = 330 * MIB
"""CUDA context of one process on one card, by published logs of llama.cpp (320 to 330 MiB)."""

_USABLE_FRAC = 0.98
"""Of a card's nominal memory what its driver lets programs have, nothing else running (24 GB cards: 24080 MiB)."""

_USABLE_OF_APPLE_FRAC = 0.67
"""Of unified memory what Metal gives a program by default, on machines of up to 36 GB; larger ones give more."""

_USABLE_WITH_ECC_FRAC = 0.935
_ERROR_CORRECTING = {"A2", "A10", "A10G", "A40", "L4", "L40", "L40S", "T4"}
"""Cards whose error correction takes a sixteenth of their GDDR memory (T4: 15360 of 16384 MiB)."""


_PREFIXES = {"NVIDIA": "CUDA", "AMD": "ROCm", "Intel": "SYCL", "Apple": "MTL"}
_N_DEVICES_MAX = 16  # llama_max_devices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A room, where each device's runtime bytes come from, and what is to be said of it.

    `rig` is what its devices and main memory do at best, None where no speed is asked for.
    """

    room: Room
    bases: tuple[RuntimeBasis, ...]
    warnings: tuple[str, ...] = ()
    rig: Rig | None = None


def named_place(request: PlanRequest, host: HostRates | None = None) -> Place:
    """The room of cards by name, or of devices of a given size; `host` where they are in a machine that is known.

    Raises UnknownNameError, UsageError.
    """
    if not 1 <= request.n_devices <= _N_DEVICES_MAX:
        raise UsageError(f"{request.n_devices} devices cannot be planned for.", hint=f"use 1 to {_N_DEVICES_MAX}")
    n = request.n_devices
    card = catalogue.find_card(request.card) if request.card else None
    free = int(card.vram_bytes * _usable_frac(card)) if card and card.vram_bytes else None
    if request.limit_bytes is not None:
        free = request.limit_bytes if free is None else min(free, request.limit_bytes)
    prefix = _PREFIXES.get(card.vendor, "GPU") if card else "GPU"
    is_cuda = prefix in {"CUDA", "ROCm"}
    runtime = PUBLISHED_CUDA_RUNTIME_BYTES if prefix == "CUDA" else 0
    basis = RuntimeBasis.PUBLISHED if prefix == "CUDA" else RuntimeBasis.UNKNOWN
    backend, names = CUDA if is_cuda else GENERIC, tuple(f"{prefix}{i}" for i in range(n))
    room = Room(
        names=names,
        backends=(backend,) * n,
        free_bytes=(free,) * n,
        runtime_bytes=(runtime,) * n,
        margin_bytes=(0 if basis is RuntimeBasis.PUBLISHED else margin_of(free),) * n,
        shares=(1.0,) * n,
        available_bytes=request.ram_limit_bytes,
    )
    rig = rig_of_cards(card, names, host or host_of_request(request), offloads_ops=backend.offloads_ops)
    return Place(room=room, bases=(basis,) * n, warnings=_unknown_size(card, request.limit_bytes), rig=rig)


def check_split(shares: Sequence[float] | None, n_devices: int) -> None:
    """Refuse a tensor_split for more devices than there are. Raises UsageError."""
    if shares is not None and len(shares) > n_devices:
        there_are = f"there {'is' if n_devices == 1 else 'are'} {format_count(n_devices, 'device')}"
        message = f"tensor_split {format_split(shares)} has {format_count(len(shares), 'share')}, and {there_are}."
        raise UsageError(message, hint="name one share a device, in the engine's order, or leave it out")


def _unknown_size(card: catalogue.Card | None, limit_bytes: int | None) -> tuple[str, ...]:
    if card is None:
        return ()
    if card.vram_bytes is None and limit_bytes is None:
        return (f"{card.name} has no memory of its own: name what it may use with --vram-limit.",)
    usable = f"{_usable_frac(card):.0%} of its nominal memory"
    return (f"{card.name} is reckoned with {usable}; a desktop shown by it takes its part.",)


def _usable_frac(card: catalogue.Card) -> float:
    if card.vendor == "Apple":
        return _USABLE_OF_APPLE_FRAC
    is_correcting = card.name.removeprefix("Tesla ").partition(" ")[0] in _ERROR_CORRECTING
    return _USABLE_WITH_ECC_FRAC if is_correcting else _USABLE_FRAC

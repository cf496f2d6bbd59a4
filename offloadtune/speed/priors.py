"""What is believed of a machine before any run on it: coefficients from what makers say, and how far off they may be.

A device reads weights at a share of its memory's bandwidth, pays a fixed time a block, and computes at a share of its
peak; the shares are those of its family, fitted on published speeds (benchmarks/speed_records.py, which prints how
well they do on sources they were not fitted on). Where nobody says what a device or the memory does, a typical figure
stands, and the interval shows that it is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from offloadtune.speed.law import Law
from offloadtune.speed.terms import Term, terms_of
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Shares of the peaks that llama.cpp reaches on cards of one family, and seconds a block takes besides.

    `read_frac` of the memory's bandwidth when decoding; `quantised_frac` and `float_frac` of the peak of
    half-precision products when reading prompts; `block_s` for each block of one decode step.
    """

    read_frac: float = 0.80
    block_s: float = 70e-6
    quantised_frac: float = 0.30
    float_frac: float = 0.40


FAMILIES = {
    "": Family(),
    "ampere": Family(read_frac=0.87, block_s=90e-6, quantised_frac=0.35, float_frac=0.42),
    "ada": Family(read_frac=0.88, block_s=80e-6, quantised_frac=0.30, float_frac=0.35),
    "blackwell": Family(read_frac=0.85, block_s=60e-6, quantised_frac=0.48, float_frac=0.45),
    "ampere_hbm": Family(read_frac=0.70, block_s=120e-6, quantised_frac=0.30, float_frac=0.30),
    "hopper": Family(read_frac=0.75, block_s=150e-6, quantised_frac=0.14, float_frac=0.18),
    "apple": Family(read_frac=0.88, block_s=76e-6, quantised_frac=0.54, float_frac=0.65),
}

_TYPICAL_READ = 400e9
_TYPICAL_FLOP = 80e12
_TYPICAL_LINK = 16e9
_TYPICAL_RAM = 60e9
_WIDTH_TYPICAL = 0.6
"""Of what nobody says: the truth may be twice as much, or half."""

_HOST_FLOP = 25e9
"""Of one core reading quantised prompts."""


def prior_of(phase: Phase, rig: Rig, *, is_float: bool = False) -> Law:
    """The law of `rig` before any run; `is_float` for weights that are not quantised."""
    terms = terms_of(phase, len(rig.devices))
    beliefs = {term.name: belief for term, belief in _beliefs(phase, rig, is_float=is_float)}
    mean = np.array([beliefs[term.name][0] for term in terms])
    width = np.array([beliefs[term.name][1] for term in terms])
    return Law(
        phase=phase,
        terms=terms,
        mean=mean,
        covariance=np.diag((mean * width) ** 2),
        noise_frac=0.05,
        calibrated_noise_frac=0.03,
    )


_Belief = tuple[float, float]
"""Seconds per unit, and their relative standard deviation."""


def _beliefs(phase: Phase, rig: Rig, *, is_float: bool) -> Iterator[tuple[Term, _Belief]]:
    for i, device in enumerate(rig.devices):
        of_device = _decode_of(device) if phase is Phase.DECODE else _prefill_of(device, is_float=is_float)
        yield from ((Term(str(i), kind), belief) for kind, belief in of_device.items())
    of_host = _decode_on_host(rig.host) if phase is Phase.DECODE else _prefill_on_host(rig.host)
    yield from ((Term("host", kind), belief) for kind, belief in of_host.items())
    link = rig.devices[0].link_bytes_per_s if rig.devices else None
    per_byte = 1.0 / (link or _TYPICAL_LINK)
    width = 0.2 if link else _WIDTH_TYPICAL
    rest: dict[str, _Belief] = {
        "link": (per_byte / 0.75, width),
        "link_pinned": (per_byte / 0.78, width),
        "link_pageable": (per_byte / 0.5, width + 0.1),
        "handovers": (80e-6, 0.5),
        "mixed": (1e-3, 0.8),
        "streamed_blocks": (100e-6, 0.7),
        "steps": (300e-6, 0.7),
        "ubatches": (500e-6, 0.7),
        "prompts": (1e-3, 0.7),
    }
    yield from ((Term("", kind), belief) for kind, belief in rest.items())


def _decode_of(device: DeviceRates) -> dict[str, _Belief]:
    family = FAMILIES.get(device.family, FAMILIES[""])
    per_byte = 1.0 / (device.read_bytes_per_s or _TYPICAL_READ)
    width = 0.08 if device.read_bytes_per_s else _WIDTH_TYPICAL
    return {
        "weights": (per_byte / family.read_frac, width),
        "cache": (per_byte / 0.7, width + 0.2),
        "plain_cache": (per_byte / 0.3, width + 0.3),
        "blocks": (family.block_s, 0.3),
    }


def _prefill_of(device: DeviceRates, *, is_float: bool) -> dict[str, _Belief]:
    family = FAMILIES.get(device.family, FAMILIES[""])
    per_flop = 1.0 / (device.flop_per_s or _TYPICAL_FLOP)
    width = 0.2 if device.flop_per_s else _WIDTH_TYPICAL
    per_byte = 1.0 / (device.read_bytes_per_s or _TYPICAL_READ)
    return {
        "flop": (per_flop / (family.float_frac if is_float else family.quantised_frac), width),
        "attention": (per_flop / 0.25, width + 0.3),
        "plain_attention": (per_flop / 0.08, width + 0.3),
        "weights": (per_byte / 0.5, 0.5),
        "blocks": (60e-6, 0.5),
    }


def _read_per_byte(host: HostRates) -> _Belief:
    if host.read_bytes_per_s:
        return 1.0 / (0.9 * host.read_bytes_per_s), 0.2
    if host.peak_bytes_per_s:
        return 1.0 / (0.65 * host.peak_bytes_per_s), 0.25
    return 1.0 / (0.65 * _TYPICAL_RAM), _WIDTH_TYPICAL


def _decode_on_host(host: HostRates) -> dict[str, _Belief]:
    per_byte, width = _read_per_byte(host)
    return {
        "weights": (per_byte, width),
        "cache": (per_byte * 4.0, width + 0.5),
        "plain_cache": (per_byte * 4.0, width + 0.5),
        "blocks": (20e-6, 0.7),
    }


def _prefill_on_host(host: HostRates) -> dict[str, _Belief]:
    per_byte, width = _read_per_byte(host)
    per_flop = 1.0 / (_HOST_FLOP * (host.n_cores or 8))
    width_flop = 0.6 if host.n_cores else 0.9
    return {
        "flop": (per_flop, width_flop),
        "attention": (per_flop * 2.0, width_flop + 0.3),
        "plain_attention": (per_flop * 2.0, width_flop + 0.3),
        "weights": (per_byte, width + 0.3),
        "blocks": (50e-6, 0.7),
    }

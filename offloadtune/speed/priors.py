"""What is believed of a machine before any run on it: coefficients from what makers say, and how far off they may be.

    coefficient = unit / share  or  unit x time,    unit = 1 / peak of what the term uses, or 1 for counts

A device reads weights at a share of its memory's bandwidth, pays a fixed time a block, and computes at a share of its
peak; the shares and times are those of its family (constants.py). A family of which nothing was published has the
values of all, and a wider interval. Where nobody says what a device or the memory does, a typical figure stands, and
the interval shows that it is one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from offloadtune.speed.blocks import Floats
from offloadtune.speed.constants import CONSTANTS, Constant
from offloadtune.speed.law import Law
from offloadtune.speed.terms import Term, terms_of
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig


@dataclass(frozen=True, slots=True)
class Belief:
    """A term's coefficient before its constant is known: `unit` seconds per amount at a share of 1, or times seconds.

    `width` is what the unit itself may be off by, `least` what the coefficient cannot be below.
    """

    term: Term
    constant: str
    family: str
    unit: float
    width: float = 0.0
    least: float = 0.0


_NOISE_FRAC = {Phase.DECODE: 0.05, Phase.PREFILL: 0.08}
"""The law's own error with all coefficients known: what is left of a card with many published speeds."""

_CALIBRATED_NOISE_FRAC = {Phase.DECODE: 0.02, Phase.PREFILL: 0.04}
"""What is left of published sweeps after two of their points."""

_TYPICAL_READ = 400e9
_TYPICAL_FLOP = 80e12
_TYPICAL_LINK = 16e9
_TYPICAL_RAM = 60e9
_TYPICAL_CORES = 8
FLOAT_READS_FASTER = 1.07
"""Weights that need no unpacking are read at so much more of the bandwidth."""

_READ_AT_MOST_FRAC = 0.98
"""Of what the maker says: refreshes of the memory take the rest."""

_PAGEABLE_AT_MOST = 32e9
"""Whatever the link: memory that is not pinned is copied by the CPU first."""

_TWINS_FRAC = 0.95
"""Of what is uncertain of one device so much is the same of another of its make."""

_WIDTH_TYPICAL = 0.6
"""Of what nobody says: the truth may be twice as much, or half."""


def prior_of(phase: Phase, rig: Rig, *, is_float: bool = False, constants: Mapping[str, Constant] | None = None) -> Law:
    """The law of `rig` before any run; `is_float` for weights that are not quantised."""
    constants = CONSTANTS if constants is None else constants
    terms = terms_of(phase, len(rig.devices))
    found = {belief.term.name: _coefficient(belief, constants) for belief in beliefs_of(phase, rig, is_float=is_float)}
    mean = np.array([found[term.name][0] for term in terms])
    width = np.array([found[term.name][1] for term in terms])
    return Law(
        phase=phase,
        terms=terms,
        mean=mean,
        covariance=_correlations(terms, rig) * np.outer(mean * width, mean * width),
        noise_frac=_NOISE_FRAC[phase],
        calibrated_noise_frac=_CALIBRATED_NOISE_FRAC[phase],
    )


def _correlations(terms: tuple[Term, ...], rig: Rig) -> Floats:
    """1 on the diagonal, and nearly that between the same terms of devices of which the same is known."""
    makes = {str(i): dataclasses.replace(device, name="") for i, device in enumerate(rig.devices)}
    known = {place: make for place, make in makes.items() if make.family or make.read_bytes_per_s}
    groups = [(term.kind, known.get(term.place, term.place)) for term in terms]
    are_twins = np.array([[one == other for other in groups] for one in groups], dtype=np.bool_)
    return np.asarray(np.where(are_twins, _TWINS_FRAC, 0.0) + (1 - _TWINS_FRAC) * np.eye(len(terms)))


def _coefficient(belief: Belief, constants: Mapping[str, Constant]) -> tuple[float, float]:
    """Seconds per amount, and their relative standard deviation."""
    constant = constants[belief.constant]
    value, width = constant.of(belief.family)
    coefficient = belief.unit / value if constant.is_share else belief.unit * value
    return max(coefficient, belief.least), math.hypot(width, belief.width)


def beliefs_of(phase: Phase, rig: Rig, *, is_float: bool) -> Iterator[Belief]:
    """Which constant each term has, and its unit on this rig."""
    for i, device in enumerate(rig.devices):
        yield from (_decode_of if phase is Phase.DECODE else _prefill_of)(str(i), device, is_float=is_float)
    yield from (_decode_on_host if phase is Phase.DECODE else _prefill_on_host)(rig.host)
    device = DeviceRates(name="") if rig.lender is None else rig.devices[rig.lender]
    family = device.family
    link, width = _unit(device.link_bytes_per_s, _TYPICAL_LINK)
    copies = device.name.startswith("Vulkan")  # in pieces, through a buffer of its own, whatever the memory
    rest = {
        "link": ("link", link, width),
        "handovers": ("handover", 1.0, 0.0),
        "mixed": ("mixed" if phase is Phase.DECODE else "mixed_ubatch", 1.0, 0.0),
        "steps": ("step", 1.0, 0.0),
        "link_pinned": ("vulkan_copy" if copies else "pinned", link, width),
        "link_pageable": ("vulkan_copy" if copies else "pageable", max(link, 1.0 / _PAGEABLE_AT_MOST), width),
        "streamed_blocks": ("streamed_block", 1.0, 0.0),
        "ubatches": ("ubatch", 1.0, 0.0),
        "prompts": ("prompt", 1.0, 0.0),
    }
    known = {term.kind for term in terms_of(phase, 0) if not term.place}
    for kind, (constant, unit, off) in rest.items():
        if kind in known:
            yield Belief(Term("", kind), constant, family, unit, off)


def _unit(peak: float | None, typical: float) -> tuple[float, float]:
    return (1.0 / peak, 0.0) if peak else (1.0 / typical, _WIDTH_TYPICAL)


def peak_of(device: DeviceRates, *, is_float: bool) -> float | None:
    """Operations a second of the products that reading prompts is made of: of 8-bit ones, unless weights are floats.

    A card without fast halves multiplies floats in single precision, a quarter of its 8-bit rate.
    """
    int8 = (device.int8_op_per_s or 0.0) / (4 if is_float else 2)
    return max(device.flop_per_s or 0.0, int8) or None


def _decode_of(place: str, device: DeviceRates, *, is_float: bool) -> Iterator[Belief]:
    read, width = _unit(device.read_bytes_per_s, _TYPICAL_READ)
    family = device.family
    unit = read / (FLOAT_READS_FASTER if is_float else 1.0)
    yield Belief(Term(place, "weights"), "read", family, unit, width, least=read / _READ_AT_MOST_FRAC)
    yield Belief(Term(place, "cache"), "cache", family, read, width)
    yield Belief(Term(place, "plain_cache"), "plain_cache", family, read, width)
    yield Belief(Term(place, "blocks"), "block", family, 1.0)
    flop, width_flop = _unit(peak_of(device, is_float=is_float), _TYPICAL_FLOP)
    yield Belief(Term(place, "flop"), "compute_float" if is_float else "compute", family, flop, width_flop)


def _prefill_of(place: str, device: DeviceRates, *, is_float: bool) -> Iterator[Belief]:
    flop, width = _unit(peak_of(device, is_float=is_float), _TYPICAL_FLOP)
    read, width_read = _unit(device.read_bytes_per_s, _TYPICAL_READ)
    family = device.family
    yield Belief(Term(place, "flop"), "compute_float" if is_float else "compute", family, flop, width)
    yield Belief(Term(place, "attention"), "attention", family, flop, width)
    # without flash attention the scores go to memory and back
    yield Belief(Term(place, "plain_attention"), "plain_attention", family, read, width_read)
    yield Belief(Term(place, "weights"), "reread_float" if is_float else "reread", family, read, width_read)
    yield Belief(Term(place, "activations"), "pass", family, read, width_read)
    yield Belief(Term(place, "blocks"), "ubatch_block", family, 1.0)


def _host_read(host: HostRates) -> tuple[str, float, float]:
    if host.read_bytes_per_s:
        return "host_read_measured", 1.0 / host.read_bytes_per_s, 0.0
    unit, width = _unit(host.peak_bytes_per_s, _TYPICAL_RAM)
    return "host_read", unit, width


def _decode_on_host(host: HostRates) -> Iterator[Belief]:
    constant, read, width = _host_read(host)
    yield Belief(Term("host", "weights"), constant, "", read, width)
    yield Belief(Term("host", "cache"), "host_cache", "", read, width)
    yield Belief(Term("host", "plain_cache"), "host_plain_cache", "", read, width)
    yield Belief(Term("host", "blocks"), "host_block", "", 1.0)
    flop, width_flop = _flop_of_host(host)
    yield Belief(Term("host", "flop"), "host_compute", "", flop, width_flop)


def _flop_of_host(host: HostRates) -> tuple[float, float]:
    """Seconds an operation if each core made one a second, and how far off that may be."""
    return (1.0 / host.n_cores, 0.0) if host.n_cores else (1.0 / _TYPICAL_CORES, _WIDTH_TYPICAL)


def _prefill_on_host(host: HostRates) -> Iterator[Belief]:
    _, read, width_read = _host_read(host)
    flop, width = _flop_of_host(host)
    yield Belief(Term("host", "flop"), "host_compute", "", flop, width)
    yield Belief(Term("host", "attention"), "host_attention", "", flop, width)
    yield Belief(Term("host", "plain_attention"), "host_attention", "", flop, width)
    yield Belief(Term("host", "weights"), "host_reread", "", read, width_read)
    yield Belief(Term("host", "activations"), "host_pass", "", read, width_read)
    yield Belief(Term("host", "blocks"), "host_ubatch_block", "", 1.0)

"""Rigs: what this machine, or cards by name, can do at best, for the speed law.

A device is what the catalogue says of its card; else what its driver says, or what `doctor` measured. Where neither
says anything a figure is None, and the law takes a typical one whose interval is wide.
"""

from __future__ import annotations

import dataclasses

from offloadtune import catalogue, store
from offloadtune.errors import OffloadTuneError, UnknownNameError, UsageError
from offloadtune.footprint import backend_of
from offloadtune.hardware import DeviceSpeed, MachineProfile
from offloadtune.plans import PlanRequest
from offloadtune.records import Device, Machine, Ram
from offloadtune.speeds import DeviceRates, HostRates, Rig

_MUCH_SLOWER_FRAC = 0.6
"""A device that moves less than this of what its card could is throttled, a slice of it, or another card."""

_N_CHANNELS_SURE = 2
"""So many modules or fewer have a channel each; of more, two may share one."""


def rig_of_machine(machine: Machine) -> Rig:
    """The engine's own devices and this host, with what `doctor` wrote down of them."""
    known = _profile_of(machine)
    devices = machine.offload_devices
    memory = known.hardware.memory if known else None
    speeds = {one.device: one for one in known.device_speeds} if known else {}
    ram, cpu = machine.host.ram, machine.host.cpu
    fastest = memory.fastest if memory else None
    read = ram.read_bytes_per_s or (fastest.read_bytes_per_s if fastest else None)
    peak = (memory.theoretical_bytes_per_s if memory else None) or _peak_of_modules(ram)
    if peak and read and peak < read:  # the modules cannot be what they say
        peak = None
    host = HostRates(
        peak_bytes_per_s=peak,
        read_bytes_per_s=read,
        n_cores=cpu.n_physical_cores,
        last_level_bytes=cpu.l3_bytes,
    )
    return Rig(
        devices=tuple(_rates_of_device(device, host, known, speeds.get(device.name)) for device in devices),
        host=host,
        shares=tuple(float(device.free_bytes) for device in devices),
    )


def rig_of_cards(card: catalogue.Card | None, names: tuple[str, ...], host: HostRates, *, offloads_ops: bool) -> Rig:
    """Devices by `names`, each such a card, or one of which nothing is known."""
    one = rates_of_card(card) if card else DeviceRates(name="")
    if card and card.vram_bytes is None and one.read_bytes_per_s is None:  # it works in main memory
        one = dataclasses.replace(one, read_bytes_per_s=host.peak_bytes_per_s)
    devices = tuple(dataclasses.replace(one, name=name, offloads_ops=offloads_ops) for name in names)
    return Rig(devices=devices, host=host, shares=(1.0,) * len(names))


def rates_of_card(card: catalogue.Card) -> DeviceRates:
    """What the maker of a card says that it does at best."""
    return DeviceRates(
        name=card.name,
        family=card.family,
        read_bytes_per_s=card.mem_bandwidth_bytes_per_s or None,
        flop_per_s=card.fp16_flop_per_s or None,
        int8_op_per_s=card.int8_op_per_s or None,
        link_bytes_per_s=card.pcie_bytes_per_s or None,
        last_level_bytes=card.l2_bytes,
    )


def host_of_request(request: PlanRequest) -> HostRates:
    """Main memory as the request names it; nothing is known of it where it does not. Raises UsageError."""
    if request.ram is not None and request.ram_bytes_per_s is not None:
        raise UsageError("Main memory is named twice, as a text and as a bandwidth.", hint="leave out one of them")
    if request.ram is not None:
        return HostRates(peak_bytes_per_s=catalogue.find_ram(request.ram).bandwidth_bytes_per_s)
    return HostRates(peak_bytes_per_s=request.ram_bytes_per_s)


def _profile_of(machine: Machine) -> MachineProfile | None:
    """What `doctor` wrote down of this machine, None where it did not or the file is damaged."""
    try:
        return store.read_machine(store.machine_path(machine))
    except (OffloadTuneError, OSError):
        return None


def _rates_of_device(
    device: Device, host: HostRates, known: MachineProfile | None, speed: DeviceSpeed | None
) -> DeviceRates:
    """By its card's maker; what its driver says or was measured fills in, and goes before where it contradicts."""
    try:
        rates = rates_of_card(catalogue.find_card(device.description, vram_bytes=device.total_bytes))
    except UnknownNameError:
        rates = DeviceRates(name="")
    card = known.hardware.card_at(device.device_id) if known else None
    read = rates.read_bytes_per_s or (card.memory_theoretical_bytes_per_s if card else None)
    measured = speed.memory_bytes_per_s if speed else None
    if read is None and device.kind == "igpu":
        read = host.peak_bytes_per_s or host.read_bytes_per_s
    if measured and not (read and _MUCH_SLOWER_FRAC * read <= measured <= read):
        read = measured
    return dataclasses.replace(
        rates,
        name=device.name,
        read_bytes_per_s=read,
        link_bytes_per_s=_link_of(rates, speed),
        offloads_ops=backend_of(device.name).offloads_ops,
    )


def _link_of(rates: DeviceRates, speed: DeviceSpeed | None) -> float | None:
    """Peak of the device's link: as it was while data moved, else by its card; no less than what was moved."""
    peak = rates.link_bytes_per_s
    if speed is None:
        return peak
    if speed.pcie_generation and speed.n_pcie_lanes:
        peak = catalogue.PCIE_LANE_BYTES_PER_S.get(speed.pcie_generation, 0.0) * speed.n_pcie_lanes or peak
    return max(peak or 0.0, speed.to_pinned_bytes_per_s or 0.0, speed.to_pageable_bytes_per_s or 0.0) or None


def _peak_of_modules(ram: Ram) -> float | None:
    """What main memory promises, where the number of its modules says how many channels it has."""
    if ram.n_modules is None or ram.configured_mt_per_s is None or ram.n_modules > _N_CHANNELS_SURE:
        return None
    if not (ram.kind or "").startswith("DDR"):
        return None
    return ram.n_modules * 8 * ram.configured_mt_per_s * 1e6

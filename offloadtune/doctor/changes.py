"""What changed of a machine since it was written down: sentences with both figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from offloadtune.hardware import GpuHardware, MachineProfile, MemoryHardware
from offloadtune.units import format_bytes, format_bytes_per_s

NOISE_FRAC = 0.15
"""Two measurements of a machine that did not change differ by less."""

SIZE_NOISE_FRAC = 0.02
"""Kernel and firmware keep a part of main memory to themselves, now more, now less."""

_DEVICE_FIGURES = (
    ("memory_bytes_per_s", "The memory of {}"),
    ("to_pinned_bytes_per_s", "The link to {} (pinned)"),
    ("from_pinned_bytes_per_s", "The link from {} (pinned)"),
    ("to_pageable_bytes_per_s", "The link to {}"),
    ("from_pageable_bytes_per_s", "The link from {}"),
)


def changes(old: MachineProfile, new: MachineProfile, *, with_measured: bool = True) -> tuple[str, ...]:
    """What is otherwise in `new`; a measured figure only where it differs by more than measurements scatter.

    What one of the two does not know is no change.
    """
    measured = _measured(old, new) if with_measured else ()
    return (*_system(old, new), *_memory(old, new), *_cards(old, new), *_engine(old, new), *measured)


def _system(old: MachineProfile, new: MachineProfile) -> Iterator[str]:
    before, after = old.machine.host, new.machine.host
    yield from _differ("The processor", before.cpu.brand, after.cpu.brand)
    yield from _differ("The system", before.os, after.os)
    yield from _differ("The number of CPUs", before.cpu.n_logical_cores, after.cpu.n_logical_cores)


def _memory(old: MachineProfile, new: MachineProfile) -> Iterator[str]:
    before, after = old.hardware.memory, new.hardware.memory
    was, is_ = (one.machine.host.ram.total_bytes for one in (old, new))
    if abs(is_ - was) > SIZE_NOISE_FRAC * was:
        yield f"Main memory is {format_bytes(is_)}, it was {format_bytes(was)}."
    if before.modules is not None and after.modules is not None:
        gone, come = _modules(before) - _modules(after), _modules(after) - _modules(before)
        if gone or come:
            said = [f"{verb} {_counted(which)}" for verb, which in (("came", come), ("went", gone)) if which]
            yield f"Memory modules changed: {', '.join(said)}."
    speeds = (f"{one} MT/s" if one else None for one in (before.configured_mt_per_s, after.configured_mt_per_s))
    yield from _differ("The speed of memory", *speeds)
    yield from _differ("The number of memory channels used", before.n_channels, after.n_channels)


def _cards(old: MachineProfile, new: MachineProfile) -> Iterator[str]:
    before, after = _by_place(old), _by_place(new)
    yield from (f"{gpu.name} is gone ({_where(gpu)})." for place, gpu in before.items() if place not in after)
    yield from (f"{gpu.name} was added ({_where(gpu)})." for place, gpu in after.items() if place not in before)
    drivers: list[str] = []
    for place in (place for place in before if place in after):
        was, is_ = before[place], after[place]
        drivers += _differ(f"The driver of {is_.vendor} cards", was.driver, is_.driver)
        yield from _differ(f"The PCIe link that {is_.name} could have", _link(was), _link(is_))
        limits = (f"{one:.0f} W" if one else None for one in (was.power_limit_w, is_.power_limit_w))
        yield from _differ(f"The power limit of {is_.name}", *limits)
    yield from dict.fromkeys(drivers)
    links_before = {one.device: _loaded_link(one.pcie_generation, one.n_pcie_lanes) for one in old.device_speeds}
    for one in new.device_speeds:
        now = _loaded_link(one.pcie_generation, one.n_pcie_lanes)
        yield from _differ(f"The PCIe link to {one.device} under load", links_before.get(one.device), now)


def _engine(old: MachineProfile, new: MachineProfile) -> Iterator[str]:
    before, after = old.engine, new.engine
    if before is None or after is None:
        if before != after:
            there = after or before
            yield f"The engine {there.version if there else ''} {'was installed' if after else 'is gone'}."
        return
    yield from _differ("The engine", before.version, after.version)
    if before.version == after.version and before.build_id != after.build_id:
        yield f"The engine was built anew: its build is {after.build_id}, it was {before.build_id}."


def _measured(old: MachineProfile, new: MachineProfile) -> Iterator[str]:
    before, after = old.hardware.memory.fastest, new.hardware.memory.fastest
    if before and after:
        yield from _faster("Main memory", before.read_bytes_per_s, after.read_bytes_per_s)
    speeds = {one.device: one for one in old.device_speeds}
    for one in new.device_speeds:
        for field, words in _DEVICE_FIGURES:
            if one.device in speeds:
                was, is_ = getattr(speeds[one.device], field), getattr(one, field)
                yield from _faster(words.format(one.device), was, is_)


def _differ(what: str, before: object, after: object) -> Iterator[str]:
    if before is not None and after is not None and before != after:
        yield f"{what} is {after}, it was {before}."


def _faster(what: str, before: float | None, after: float | None) -> Iterator[str]:
    if before and after and not 1 / (1 + NOISE_FRAC) <= after / before <= 1 + NOISE_FRAC:
        change = f"{abs(after / before - 1):.0%} {'faster' if after > before else 'slower'}"
        yield f"{what} is {change}: {format_bytes_per_s(after)}, it was {format_bytes_per_s(before)}."


def _modules(memory: MemoryHardware) -> Counter[tuple[int, str]]:
    """By size and type, whatever the slot."""
    return Counter((one.n_bytes or 0, one.kind or "") for one in memory.modules or ())


def _counted(modules: Counter[tuple[int, str]]) -> str:
    return ", ".join(
        f"{count} x {format_bytes(n_bytes) if n_bytes else 'unknown size'} {kind}".strip()
        for (n_bytes, kind), count in sorted(modules.items())
    )


def _by_place(profile: MachineProfile) -> dict[tuple[str, str], GpuHardware]:
    """Cards by name and place, so that another card in the same slot is one gone and one added."""
    return {(gpu.name, (gpu.pci_bus_id or str(gpu.index)).lower()): gpu for gpu in profile.hardware.gpus}


def _where(gpu: GpuHardware) -> str:
    return gpu.pci_bus_id or f"number {gpu.index}"


def _link(gpu: GpuHardware) -> str | None:
    return _loaded_link(gpu.pcie_generation_most, gpu.n_pcie_lanes_most)


def _loaded_link(generation: int | None, n_lanes: int | None) -> str | None:
    return f"PCIe {generation} x{n_lanes}" if generation and n_lanes else None

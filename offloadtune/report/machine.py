"""What is shown of the machine: its parts, what they can do, and the reasons for what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from offloadtune.conditions import Disturbance
from offloadtune.hardware import (
    UNNAMED_HYPERVISOR,
    DeviceSpeed,
    GpuHardware,
    Hardware,
    Limits,
    MemoryHardware,
    Surroundings,
)
from offloadtune.records import Cpu, Device, EngineBuild, Machine, Note, NvmlGpu, Ram
from offloadtune.report.json_values import plain
from offloadtune.report.terminal import facts_table
from offloadtune.report.words import printable
from offloadtune.units import format_bytes, format_bytes_per_s, format_count

NOT_KNOWN = "not known, as said below"
"""The note on devices says why the engine did not answer."""

_FIGURES = (
    ("memory_bytes_per_s", "its memory"),
    ("to_pinned_bytes_per_s", "to it"),
    ("from_pinned_bytes_per_s", "from it"),
    ("to_pageable_bytes_per_s", "to it unpinned"),
    ("from_pageable_bytes_per_s", "from it unpinned"),
)

_N_SUBJECTS = 4

_Row = tuple[str, str]


def probe_view(
    machine: Machine,
    engine: EngineBuild | None,
    now: Sequence[Disturbance] = (),
    hardware: Hardware | None = None,
    device_speeds: Sequence[DeviceSpeed] = (),
) -> RenderableType:
    """The machine as probed, with the reasons for what is unknown, and what stands against measuring `now`."""
    table = facts_table()
    for title, words in (
        *_machine_rows(machine, engine, hardware, device_speeds),
        *_titled("now", [one.words for one in now]),
    ):
        table.add_row(printable(title), printable(words))
    lines = [*_note_lines((*machine.host.notes, *(hardware.notes if hardware else ()), *machine.notes))]
    lines += hardware.root_would_add if hardware else ()
    return Group(table, *(Text(printable(words), style="dim") for words in lines))


def probe_json(
    machine: Machine,
    engine: EngineBuild | None,
    now: Sequence[Disturbance] = (),
    hardware: Hardware | None = None,
    device_speeds: Sequence[DeviceSpeed] = (),
) -> dict[str, Any]:
    """The machine as probed; unknown is null, and `notes` say why. Devices name their card in `host.nvml_gpus`.

    `now` lists what stands against measuring, each with its kind, a sentence, and whether it passes.
    """
    machine_id = machine.machine_id if machine.devices is not None else None  # it is made of the devices too
    value = {"machine_id": machine_id, **plain(machine), "engine": plain(engine)}
    value["now"] = [plain(one) for one in now]
    for device, described in zip(machine.devices or (), value["devices"] or (), strict=True):
        gpu = machine.nvml_of(device)
        described["nvml_index"] = gpu.index if gpu else None
    value["hardware"] = plain(hardware)
    value["device_speeds"] = plain(tuple(device_speeds))
    return value


def _machine_rows(
    machine: Machine, engine: EngineBuild | None, hardware: Hardware | None, device_speeds: Sequence[DeviceSpeed]
) -> Iterator[_Row]:
    """Title and words; a row without a title goes on with the one above."""
    yield "machine", machine.machine_id if machine.devices is not None else NOT_KNOWN
    yield "system", machine.host.os + (_around_words(hardware.surroundings) if hardware else "")
    yield from _cpu_rows(machine.host.cpu, hardware)
    yield from _memory_rows(machine.host.ram, hardware.memory if hardware else None)
    yield from _titled("limits", tuple(_limit_words(hardware.limits)) if hardware else ())
    yield "engine", engine.version if engine else NOT_KNOWN
    yield from _card_rows(machine, hardware, {one.device: one for one in device_speeds})


# --- processor and memory ------------------------------------------------------------------------------------------


def _cpu_rows(cpu: Cpu, hardware: Hardware | None) -> Iterator[_Row]:
    cores = "unknown cores" if cpu.n_physical_cores is None else format_count(cpu.n_physical_cores, "core")
    yield "cpu", f"{cpu.brand or 'unknown'}, {cores}, {format_count(cpu.n_logical_cores, 'thread')}"
    if hardware is None:
        return
    deep = hardware.cpu
    words = []
    if deep.n_performance_cores and deep.n_efficiency_cores:
        words.append(f"{deep.n_performance_cores} fast and {deep.n_efficiency_cores} saving cores")
    if (deep.n_online_cpus or 0) > len(deep.allowed_cpus):
        words.append(f"{len(deep.allowed_cpus)} of the machine's {deep.n_online_cpus} CPUs may be used")
    if cpu.l3_bytes:
        words.append(f"{format_bytes(cpu.l3_bytes)} of third-level cache")
    if deep.instruction_sets:
        words.append(" ".join(deep.instruction_sets))
    if words:
        yield "", ", ".join(words)


def _memory_rows(ram: Ram, memory: MemoryHardware | None) -> Iterator[_Row]:
    words = [f"{format_bytes(ram.total_bytes)}, {format_bytes(ram.available_bytes)} available"]
    words.append((memory.kind if memory else None) or ram.kind or "type unknown")
    configured = (memory.configured_mt_per_s if memory else None) or ram.configured_mt_per_s
    rated = memory.rated_mt_per_s if memory else None
    if configured:
        words.append(f"{configured} MT/s" + (f" (rated {rated})" if rated and rated != configured else ""))
    if memory is None or not memory.speeds:
        words += _read_words(ram)
    yield "ram", ", ".join(words)
    if memory is None:
        return
    yield from _titled("", [line for line in (_module_words(memory), _channel_words(memory)) if line])
    yield from _titled("", [line for line in (_speed_words(memory),) if line])
    if len(memory.numa_nodes) > 1:
        sizes = [_size(one.total_bytes) + f" by {format_count(len(one.cpus), 'CPU')}" for one in memory.numa_nodes]
        yield "", f"{len(memory.numa_nodes)} NUMA nodes: {', '.join(sizes)}"


def _read_words(ram: Ram) -> Iterator[str]:
    if ram.read_bytes_per_s and ram.n_threads_read:
        threads = format_count(ram.n_threads_read, "thread")
        yield f"reads {format_bytes_per_s(ram.read_bytes_per_s)} with {threads} (measured)"


def _module_words(memory: MemoryHardware) -> str:
    if not memory.modules:
        return ""
    each = ", ".join(f"{_size(one.n_bytes)} in {one.slot or 'a slot without a name'}" for one in memory.modules)
    slots = f" of {format_count(memory.n_slots, 'slot')} filled" if memory.n_slots else ""
    return f"{format_count(len(memory.modules), 'module')}{slots}: {each}"


def _channel_words(memory: MemoryHardware) -> str:
    words = []
    if memory.n_channels:
        of = f"{memory.n_channels} of " if memory.n_channels_most else ""
        words.append(f"{of}{format_count(memory.n_channels_most or memory.n_channels, 'channel')}")
    if memory.theoretical_bytes_per_s:
        words.append(f"{format_bytes_per_s(memory.theoretical_bytes_per_s)} in theory")
    return ", ".join(words)


def _speed_words(memory: MemoryHardware) -> str:
    """Bandwidth by threads, with its share of theory."""
    theory = memory.theoretical_bytes_per_s
    each = [
        f"{format_bytes_per_s(one.read_bytes_per_s)} with {format_count(one.n_threads, 'thread')}"
        + (f" ({one.read_bytes_per_s / theory:.0%} of theory)" if theory else "")
        for one in memory.speeds
    ]
    copy = next((one.copy_bytes_per_s for one in reversed(memory.speeds) if one.copy_bytes_per_s), None)
    copied = f"; copies {format_bytes_per_s(copy)}, both ways counted" if copy else ""
    return f"reads {', '.join(each)}{copied} (measured)" if each else ""


# --- cards ---------------------------------------------------------------------------------------------------------


def _card_rows(machine: Machine, hardware: Hardware | None, speeds: dict[str, DeviceSpeed]) -> Iterator[_Row]:
    """The engine's devices, each with its card, then the cards that it lists no device for."""
    joined = [machine.nvml_of(device) for device in machine.devices or ()]
    used: list[GpuHardware | None] = []
    for device, gpu in zip(machine.devices or (), joined, strict=True):
        card = _card_of(device, machine, hardware) if hardware else None
        used.append(card)
        nvml = _nvml_words(gpu) if gpu and card is None else ""
        yield f"device {device.name}", _device_words(device) + nvml
        lines = [
            *_link_lines(card, speeds.get(device.name)),
            *_state_lines(card),
            *_moved_lines(speeds.get(device.name)),
        ]
        yield from _titled("", lines)
    missing = " - the engine lists no device at its address" if machine.devices else ""
    for card in hardware.gpus if hardware else ():
        if card not in used:
            memory = f", {_size(card.total_bytes)}" if card.total_bytes else ""
            yield f"{card.vendor} {card.index}", f"{card.name}, {card.kind}{memory}{missing if card.pci_bus_id else ''}"
            yield from _titled("", [*_link_lines(card, None), *_state_lines(card)])
    told = {card.pci_bus_id for card in hardware.gpus} if hardware else set()
    for gpu in machine.host.nvml_gpus or ():
        if gpu not in joined and gpu.pci_bus_id not in told:
            yield f"nvidia {gpu.index}", f"{gpu.name}{_nvml_words(gpu)}{missing}"


def _card_of(device: Device, machine: Machine, hardware: Hardware) -> GpuHardware | None:
    """The card behind `device`, by its PCI address; where it has none, as on a Mac, the only card there is."""
    if device.device_id:
        return hardware.card_at(device.device_id)
    local = [one for one in machine.offload_devices if not one.name.startswith("RPC")]
    return hardware.gpus[0] if local == [device] and len(hardware.gpus) == 1 else None


def _device_words(device: Device) -> str:
    memory = f"{format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}"
    return f"{device.description}, {device.kind}" + (f", {memory}" if device.is_offload_target else "")


def _nvml_words(gpu: NvmlGpu) -> str:
    return f", driver {_known(gpu.driver)}, PCIe {_known(gpu.pcie_generation)} x{_known(gpu.n_pcie_lanes)}"


def _link_lines(card: GpuHardware | None, speed: DeviceSpeed | None) -> Iterator[str]:
    """Driver and link; while nothing moves a link sleeps, so that what it does then is not shown."""
    if card is None:
        return
    words = [f"driver {_known(card.driver)}"]
    if card.compute_capability:
        words.append(f"compute capability {card.compute_capability}")
    if card.pcie_generation_most or card.n_pcie_lanes_most:
        words.append(f"PCIe {_known(card.pcie_generation_most)} x{_known(card.n_pcie_lanes_most)} at most")
    if speed and speed.pcie_generation and speed.n_pcie_lanes:
        words.append(f"{speed.pcie_generation} x{speed.n_pcie_lanes} while data moved")
    if card.bar1_bytes:
        words.append(f"BAR1 {format_bytes(card.bar1_bytes)}")
    yield ", ".join(words)


def _state_lines(card: GpuHardware | None) -> Iterator[str]:
    """Memory, power, clocks, and who else is there."""
    if card is None:
        return
    if words := [*_card_memory_words(card), *_power_words(card)]:
        yield ", ".join(words)
    if card.processes:
        each = (f"{one.name} {_size(one.n_bytes)}" for one in card.processes)
        yield f"other programs: {', '.join(each)}"


def _card_memory_words(card: GpuHardware) -> Iterator[str]:
    if card.memory_theoretical_bytes_per_s:
        yield f"memory {format_bytes_per_s(card.memory_theoretical_bytes_per_s)} in theory"
    for bounds, n_bytes in (("may have", card.working_set_bytes), ("may share", card.shared_bytes)):
        if n_bytes:
            yield f"{bounds} {format_bytes(n_bytes)} of main memory"


def _power_words(card: GpuHardware) -> Iterator[str]:
    if card.power_limit_w:
        usual = f" (by default {card.power_limit_default_w:.0f} W)" if card.power_limit_default_w else ""
        yield f"power limit {card.power_limit_w:.0f} W{usual}"
    if card.clock_mhz:
        yield f"clock {card.clock_mhz} MHz" + (f" of {card.most_clock_mhz}" if card.most_clock_mhz else "")
    if card.temperature_c is not None:
        yield f"{card.temperature_c} °C"
    if card.throttle_reasons:
        yield f"held down by {', '.join(card.throttle_reasons).replace('_', ' ')}"


def _moved_lines(speed: DeviceSpeed | None) -> Iterator[str]:
    if speed is None:
        return
    moved = [(words, getattr(speed, field)) for field, words in _FIGURES]
    each = [f"{words} {format_bytes_per_s(figure)}" for words, figure in moved if figure]
    if each:
        yield f"moves {', '.join(each)} (measured)"
    if speed.reason:
        yield f"not measured: {speed.reason}"


# --- the rest ------------------------------------------------------------------------------------------------------


def _limit_words(limits: Limits) -> Iterator[str]:
    words = [
        f"{what} {format_bytes(n_bytes)}"
        for what, n_bytes in (
            ("memory", limits.memory_bytes),
            ("address space", limits.address_space_bytes),
            ("locked memory", limits.locked_bytes),
        )
        if n_bytes is not None
    ]
    if limits.cpus is not None:
        words.append(f"{limits.cpus:g} CPUs")
    if words:
        yield ", ".join(words)


def _around_words(around: Surroundings) -> str:
    words = ["WSL"] if around.is_wsl else []
    words += [f"in {around.container}"] if around.container else []
    if around.hypervisor and not around.is_wsl:
        name = f" ({around.hypervisor})" if around.hypervisor != UNNAMED_HYPERVISOR else ""
        words.append(f"on a virtual machine{name}")
    return f", {', '.join(words)}" if words else ""


def _titled(title: str, lines: Sequence[str]) -> Iterator[_Row]:
    """The title beside the first line only."""
    return ((title if i == 0 else "", line) for i, line in enumerate(lines))


def _note_lines(notes: Sequence[Note]) -> Iterator[str]:
    """One line a reason, with what is unknown for it."""
    subjects: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        subjects.setdefault(note.reason, []).append(note.subject)
    for reason, about in subjects.items():
        n_more = len(about) - _N_SUBJECTS
        more = f" and {n_more} more" if n_more > 0 else ""
        yield f"{', '.join(about[:_N_SUBJECTS])}{more}: {reason}"


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)


def _size(n_bytes: int | None) -> str:
    return "unknown size" if n_bytes is None else format_bytes(n_bytes)

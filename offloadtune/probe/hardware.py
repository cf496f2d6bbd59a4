"""The machine in depth, without any speed measured: `read_hardware() -> Hardware`."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from offloadtune.hardware import GpuHardware, Hardware, MemoryHardware, Surroundings
from offloadtune.probe.cores import read_cores
from offloadtune.probe.cpu import read_flags
from offloadtune.probe.dmi import Slots
from offloadtune.probe.gpu_hardware import read_gpu_hardware
from offloadtune.probe.host import THIS_MACHINE, Door, System
from offloadtune.probe.limits import read_limits
from offloadtune.probe.memory import read_memory
from offloadtune.probe.modules import read_slots, root_would_add
from offloadtune.probe.ram import parse_meminfo
from offloadtune.probe.surroundings import read_surroundings
from offloadtune.records import Note


def read_hardware(door: Door = THIS_MACHINE, *, may_be_slow: bool = True) -> Hardware:
    """The computer at hand, or the recorded one `door` opens on.

    Linux answers in milliseconds. Windows and macOS are asked for memory modules, and Windows for GPUs, by programs of
    theirs which take a second or more: only where it `may_be_slow`. Whatever cannot be read is None, with a Note that
    says why.
    """
    system, flags = door.system(), read_flags(door)
    found, (gpus, gpu_notes) = _read_slots_and_gpus(door, system, may_be_slow=may_be_slow)
    memory, memory_notes = read_memory(door, system, found)
    cpu, cpu_notes = read_cores(door, system, flags)
    total_bytes = parse_meminfo(door.text("/proc/meminfo") or "").get("MemTotal", system.total_bytes)
    limits, limit_notes = read_limits(door, system, total_bytes)
    surroundings, surroundings_notes = read_surroundings(door, system, flags)
    memory, made_up_notes = _without_made_up(memory, surroundings)
    return Hardware(
        memory=memory,
        cpu=cpu,
        gpus=gpus,
        limits=limits,
        surroundings=surroundings,
        notes=memory_notes + made_up_notes + cpu_notes + gpu_notes + limit_notes + surroundings_notes,
        root_would_add=root_would_add(door, found),
    )


def _read_slots_and_gpus(
    door: Door, system: System, *, may_be_slow: bool
) -> tuple[Slots | str, tuple[tuple[GpuHardware, ...], tuple[Note, ...]]]:
    """Side by side, as Windows takes a PowerShell for each. A record in the making takes one question at a time."""
    slots = partial(read_slots, door, system, may_be_slow=may_be_slow)
    gpus = partial(read_gpu_hardware, door, may_be_slow=may_be_slow)
    if door.is_recorded:
        return slots(), gpus()
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(gpus)
        return slots(), reading.result()


def _without_made_up(memory: MemoryHardware, surroundings: Surroundings) -> tuple[MemoryHardware, tuple[Note, ...]]:
    """The modules that a virtual machine shows are made up: what they could move says nothing of the real ones."""
    if surroundings.hypervisor is None or memory.theoretical_bytes_per_s is None:
        return memory, ()
    reason = "This is a virtual machine, whose memory modules are made up by the program that runs it."
    note = Note(subject="memory.theoretical_bytes_per_s", reason=reason)
    return dataclasses.replace(memory, theoretical_bytes_per_s=None), (note,)

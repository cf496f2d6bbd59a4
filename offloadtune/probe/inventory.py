"""The whole computer in one record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from offloadtune.hardware import MemorySpeed
from offloadtune.probe.cpu import read_cpu
from offloadtune.probe.facts import Fact
from offloadtune.probe.gpu import read_gpus
from offloadtune.probe.host import THIS_MACHINE, Door, System
from offloadtune.probe.ram import read_ram
from offloadtune.records import Cpu, Host, Note, Ram

LEAST_TIMES_AVAILABLE = 8
"""Memory must be free this many times over what the measurement takes: it must not push anything out to swap."""

_RECORDED = "The machine is a recorded one; only a live one can be timed."


def probe_host(*, measure: bool = True, door: Door = THIS_MACHINE) -> Host:
    """The computer at hand, or the recorded one `door` opens on. `measure` times its memory, in under half a second.

    Whatever cannot be read is None, with a Note that says why; ProbeError when not even the size of memory is known.
    """
    system = door.system()
    cpu, cpu_notes = read_cpu(door, system)
    ram, ram_notes = read_ram(door, system)
    speed = _read_speed(cpu, ram, door) if measure else _not_measured("Measuring was not asked for.")
    if isinstance(speed, Note):
        ram_notes += (speed,)
    else:
        n_threads, bytes_per_s = speed
        ram = dataclasses.replace(ram, read_bytes_per_s=bytes_per_s, n_threads_read=n_threads)
    gpus, gpu_notes = read_gpus(door)
    return Host(os=os_name(door, system), cpu=cpu, ram=ram, nvml_gpus=gpus, notes=cpu_notes + ram_notes + gpu_notes)


def memory_speeds(
    host: Host, door: Door = THIS_MACHINE, *, deadline: float = math.inf
) -> Fact[tuple[MemorySpeed, ...]]:
    """What 1, 2, 4, ... and all cores of `host` read and copy; see `measure_speeds` for `deadline`."""
    if door.is_recorded:
        return _not_measured(_RECORDED)
    from offloadtune.probe.bandwidth import measure_speeds  # noqa: PLC0415 - numpy is slow to load

    speeds = measure_speeds(_n_cores(host.cpu), host.cpu.l3_bytes, _most_bytes(host.ram), deadline)
    return speeds or _not_measured("Too little memory is free to read more than the caches hold, or threads ran out.")


def os_name(door: Door, system: System) -> str:
    """The operating system in words: "Linux 6.1 Debian 12", "macOS 14.5", "Windows 11"."""
    if system.name != "Linux":
        return f"{system.name} {system.release}".strip()
    kernel = ".".join(system.release.split(".")[:2])
    release = parse_os_release(door.text("/etc/os-release") or door.text("/usr/lib/os-release") or "")
    distribution = release.get("NAME", "").removesuffix(" GNU/Linux")
    return " ".join(("Linux", kernel, distribution, release.get("VERSION_ID", ""))).strip()


def parse_os_release(text: str) -> Mapping[str, str]:
    """Variable -> value, quotes off, from the text of /etc/os-release."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, equals, value in pairs if equals}


def _read_speed(cpu: Cpu, ram: Ram, door: Door) -> Fact[tuple[int, float]]:
    """Threads and bytes per second."""
    if door.is_recorded:
        return _not_measured(_RECORDED)
    # numpy takes longer to load than all the rest of the probe
    from offloadtune.probe.bandwidth import bytes_to_read, measure_read  # noqa: PLC0415

    n_threads = _n_cores(cpu)
    n_bytes = bytes_to_read(n_threads, cpu.l3_bytes, _most_bytes(ram))
    if n_bytes is None:
        return _not_measured("Too little memory is free to read more than the caches hold.")
    bytes_per_s = measure_read(n_threads, n_bytes)
    if bytes_per_s is None:
        return _not_measured("Memory or threads ran out while reading.")
    return n_threads, bytes_per_s


def _n_cores(cpu: Cpu) -> int:
    return cpu.n_physical_cores or cpu.n_logical_cores


def _most_bytes(ram: Ram) -> int:
    return ram.available_bytes // LEAST_TIMES_AVAILABLE


def _not_measured(reason: str) -> Note:
    return Note(subject="ram.read_bytes_per_s", reason=reason)

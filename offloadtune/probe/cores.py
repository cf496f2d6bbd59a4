"""The processor's cores: which CPUs share one, and which are the fast ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from offloadtune.hardware import CpuHardware
from offloadtune.probe.cpu import CPU_FOLDER, core_lists
from offloadtune.probe.facts import Fact, known, notes_in, parse_cpu_list, parse_int, parse_positive
from offloadtune.probe.host import Door, System
from offloadtune.probe.instructions import cpu_instruction_sets, parse_mac_flags
from offloadtune.records import Note

INTEL_FAST = "/sys/devices/cpu_core/cpus"
INTEL_SLOW = ("/sys/devices/cpu_atom/cpus", "/sys/devices/cpu_lowpower/cpus")

SLOW_CAPACITY_FRAC = 0.75
"""Of the strongest core: below it a core is an efficiency one. Two cores of one design differ by a few per cent."""

SLOW_CLOCK_FRAC, SAME_CLOCK_FRAC = 0.8, 0.9
"""Of the highest clock: a core that is slower than the first is clearly another one, than the second may be."""

_MOST_CORES = 2**16


def read_cores(door: Door, system: System, flags: Collection[str]) -> tuple[CpuHardware, tuple[Note, ...]]:
    """What the system tells of its CPUs, `flags` among it, and a Note for each field that stays unknown."""
    fast, slow = _mac_cores(door, system) if system.name == "macOS" else _linux_cores(door, system)
    has_smt = _has_smt(door, system)
    n_online = _n_online_cpus(door, system)
    instruction_sets = _instruction_sets(door, system, flags)
    cpu = CpuHardware(
        n_performance_cores=known(fast),
        n_efficiency_cores=known(slow),
        has_smt=known(has_smt),
        n_online_cpus=known(n_online),
        allowed_cpus=system.allowed_cpus,
        instruction_sets=known(instruction_sets) or (),
    )
    return cpu, notes_in(fast, slow, has_smt, n_online, instruction_sets)


def _linux_cores(door: Door, system: System) -> tuple[Fact[int], Fact[int]]:
    """Cores of each kind among the allowed CPUs."""
    if system.name != "Linux":
        return _unranked(f"{system.name} is not asked which cores are performance and which efficiency cores.")
    kinds = _kinds(door, system.allowed_cpus)
    if isinstance(kinds, str):
        return _unranked(kinds)
    cores = [core_lists(door, cpus) for cpus in kinds]
    if None in cores:
        return _unranked("The operating system does not say which CPUs share a core.")
    fast, slow = (len(set(lists or ())) for lists in cores)
    return fast, slow


def _unranked(reason: str) -> tuple[Note, Note]:
    return Note(subject="cpu.n_performance_cores", reason=reason), Note(subject="cpu.n_efficiency_cores", reason=reason)


def _kinds(door: Door, allowed: Sequence[int]) -> tuple[list[int], list[int]] | str:
    """The fast and the slow ones of the `allowed` CPUs, or a sentence that says why that is not known.

    Intel's mixed processors have a folder for each kind, ARM's a capacity for each core. Where there is neither, the
    highest clocks are looked at: they tell cores apart only when they differ by more than between one design's better
    and worse cores.
    """
    by_intel = parse_cpu_list(door.text(INTEL_FAST))
    if by_intel:
        slow = {cpu for path in INTEL_SLOW for cpu in parse_cpu_list(door.text(path))}
        return _split(allowed, slow)
    cpus = sorted({*allowed, *parse_cpu_list(door.text(f"{CPU_FOLDER}/online"))})  # slow ones alone look all alike
    capacities = _numbers(door, cpus, "cpu_capacity")
    if capacities:
        least = SLOW_CAPACITY_FRAC * max(capacities.values())
        return _split(allowed, {cpu for cpu, capacity in capacities.items() if capacity < least})
    clocks = _numbers(door, cpus, "cpufreq/cpuinfo_max_freq")
    if not clocks:
        return "The operating system tells neither kinds of cores nor their highest clocks."
    fracs = {cpu: clock / max(clocks.values()) for cpu, clock in clocks.items()}
    if any(SLOW_CLOCK_FRAC <= frac < SAME_CLOCK_FRAC for frac in fracs.values()):
        return "The cores' highest clocks differ, but too little to tell efficiency cores by them."
    return _split(allowed, {cpu for cpu, frac in fracs.items() if frac < SLOW_CLOCK_FRAC})


def _split(allowed: Sequence[int], slow: set[int]) -> tuple[list[int], list[int]]:
    return [cpu for cpu in allowed if cpu not in slow], [cpu for cpu in allowed if cpu in slow]


def _numbers(door: Door, cpus: Sequence[int], name: str) -> Mapping[int, int]:
    """A number each CPU has in a file, none at all when one of them has none."""
    read = {cpu: parse_positive(door.text(f"{CPU_FOLDER}/cpu{cpu}/{name}"), most=2**40) for cpu in cpus}
    numbers = {cpu: number for cpu, number in read.items() if number is not None}
    return numbers if len(numbers) == len(read) else {}


def _mac_cores(door: Door, system: System) -> tuple[Fact[int], Fact[int]]:
    """Level 0 is the fastest. Macs with Intel processors have no levels: their cores are all alike."""
    fast, slow = (
        parse_positive(door.command("sysctl", "-n", f"hw.perflevel{level}.physicalcpu"), most=_MOST_CORES)
        for level in (0, 1)
    )
    if fast:
        return fast, slow or 0
    if system.arch == "x86_64" and system.n_physical_cores:
        return system.n_physical_cores, 0
    return _unranked("macOS does not say how many cores of each kind this chip has.")


def _has_smt(door: Door, system: System) -> Fact[bool]:
    """Whether a core has more than one hardware thread in use now."""
    active = parse_int(door.text(f"{CPU_FOLDER}/smt/active"))
    if active is not None:
        return active == 1
    lists = core_lists(door, system.allowed_cpus)
    if lists:
        return any(len(parse_cpu_list(siblings)) > 1 for siblings in lists)
    if system.n_physical_cores:
        n_online = known(_n_online_cpus(door, system))
        if max(n_online or 0, len(system.allowed_cpus)) > system.n_physical_cores:
            return True
        if n_online:
            return False
    return Note(subject="cpu.has_smt", reason="The operating system does not say which CPUs share a core.")


def _n_online_cpus(door: Door, system: System) -> Fact[int]:
    listed = parse_cpu_list(door.text(f"{CPU_FOLDER}/online"))
    if listed:
        return len(listed)
    if system.name == "macOS" and system.n_online_cpus is None:
        return len(system.allowed_cpus)  # without affinity every CPU is allowed
    return system.n_online_cpus or Note(
        subject="cpu.n_online_cpus", reason="The operating system does not list the CPUs that are online."
    )


def _instruction_sets(door: Door, system: System, flags: Collection[str]) -> Fact[tuple[str, ...]]:
    if not flags and system.name == "macOS":
        flags = parse_mac_flags(door.command("sysctl", "hw.optional") or "")
    return cpu_instruction_sets(flags) or Note(
        subject="cpu.instruction_sets",
        reason=f"{system.name} lists no instruction sets of this processor that llama.cpp has a name for.",
    )

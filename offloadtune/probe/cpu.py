"""The processor: what it is, and how much of it this process may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offloadtune import units
from offloadtune.probe.cgroup import cpu_quota
from offloadtune.probe.facts import Fact, known, notes_in, parse_int
from offloadtune.probe.host import Door, System
from offloadtune.records import Cpu, Note

CPU_FOLDER = "/sys/devices/system/cpu"
BRAND_KEYS = ("model name", "Model", "Hardware")  # x86; Raspberry Pi; telephones
FLAG_KEYS = ("flags", "Features")  # x86; ARM


def read_cpu(door: Door, system: System) -> tuple[Cpu, tuple[Note, ...]]:
    """The processor and a Note for each field that stays None."""
    blocks = parse_cpuinfo(door.text("/proc/cpuinfo") or "")
    quota = cpu_quota(door)
    n_logical = _n_usable(len(system.allowed_cpus), quota)
    brand = _brand(door, system, blocks)
    n_physical = _n_physical_cores(door, system, blocks)
    l3_bytes = _l3_bytes(door, system)
    cpu = Cpu(
        brand=known(brand),
        arch=system.arch,
        n_physical_cores=None if isinstance(n_physical, Note) else min(n_physical, n_logical),
        n_logical_cores=n_logical,
        flags=_flags(blocks),
        l3_bytes=known(l3_bytes),
    )
    return cpu, notes_in(brand, n_physical, l3_bytes)


def parse_cpuinfo(text: str) -> tuple[Mapping[str, str], ...]:
    """The blocks of /proc/cpuinfo, mostly one a logical CPU, as key -> value."""
    return tuple(
        {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
        for lines in (block.splitlines() for block in text.split("\n\n"))
    )


def parse_cache_bytes(text: str) -> int | None:
    """Bytes of a cache as sysfs writes them ("32768K"), None for anything else."""
    try:
        return units.parse_bytes(text)
    except (ValueError, OverflowError):
        return None


def read_flags(door: Door) -> tuple[str, ...]:
    """Flags of /proc/cpuinfo that every CPU has."""
    return _flags(parse_cpuinfo(door.text("/proc/cpuinfo") or ""))


def core_lists(door: Door, cpus: Sequence[int]) -> tuple[str, ...] | None:
    """For each of `cpus` the list of its core's hardware threads, None where one is not told.

    A core is named by that list: core_id alone repeats between dies and ARM clusters.
    """
    folders = [f"{CPU_FOLDER}/cpu{cpu}/topology" for cpu in cpus]
    lists = [door.text(f"{f}/core_cpus_list") or door.text(f"{f}/thread_siblings_list") for f in folders]
    told = tuple(siblings for siblings in lists if siblings)
    return told if len(told) == len(lists) else None


def _n_usable(n_allowed: int, quota: float | None) -> int:
    """Threads worth starting. A quota is rounded down: threads that spin at a barrier starve on the last half CPU."""
    return max(1, n_allowed if quota is None else min(n_allowed, int(quota)))


def _brand(door: Door, system: System, blocks: Sequence[Mapping[str, str]]) -> Fact[str]:
    named = (block[key] for key in BRAND_KEYS for block in blocks if block.get(key))
    brand = next(named, None) or _brand_elsewhere(door, system)
    return brand or Note(subject="cpu.brand", reason="The operating system does not name the processor.")


def _brand_elsewhere(door: Door, system: System) -> str | None:
    if system.name == "macOS":
        return (door.command("sysctl", "-n", "machdep.cpu.brand_string") or "").strip() or None
    return system.processor


def _flags(blocks: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Instruction sets every CPU has: on mixed cores a thread may land on any of them."""
    per_cpu = [block[key].split() for block in blocks for key in FLAG_KEYS if key in block]
    shared = set.intersection(*map(set, per_cpu)) if per_cpu else set()
    return tuple(sorted(shared))


def _n_physical_cores(door: Door, system: System, blocks: Sequence[Mapping[str, str]]) -> Fact[int]:
    """Distinct cores among the allowed CPUs."""
    siblings = core_lists(door, system.allowed_cpus)
    if siblings:
        return len(set(siblings))
    allowed = {str(cpu) for cpu in system.allowed_cpus}
    cores = [
        (block["physical id"], block["core id"])
        for block in blocks
        if block.get("processor") in allowed and {"physical id", "core id"} <= block.keys()
    ]
    if cores:
        return len(set(cores))
    if system.n_physical_cores is not None:
        return system.n_physical_cores
    return Note(subject="cpu.n_physical_cores", reason="The operating system does not say which CPUs share a core.")


def _l3_bytes(door: Door, system: System) -> Fact[int]:
    """Sum of the third-level caches that serve the allowed CPUs; one that several CPUs share counts once."""
    caches: dict[str, int] = {}
    for cpu in system.allowed_cpus:
        folder = f"{CPU_FOLDER}/cpu{cpu}/cache"
        for name in door.names(folder):
            if parse_int(door.text(f"{folder}/{name}/level")) == 3:
                size = parse_cache_bytes(door.text(f"{folder}/{name}/size") or "")
                caches[door.text(f"{folder}/{name}/shared_cpu_list") or str(cpu)] = size or 0
    total = sum(caches.values())
    return total or Note(subject="cpu.l3_bytes", reason="The operating system lists no third-level cache.")

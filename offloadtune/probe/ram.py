"""Main memory: how much this process may use, and which modules it is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping

from offloadtune.errors import ProbeError
from offloadtune.probe.cgroup import memory_bounds
from offloadtune.probe.facts import Fact, known, notes_in
from offloadtune.probe.host import Door, System
from offloadtune.probe.modules import configured_fact, kind_fact, read_slots
from offloadtune.records import Note, Ram


def read_ram(door: Door, system: System) -> tuple[Ram, tuple[Note, ...]]:
    """Memory without its measured speed, and a Note for each field that stays None."""
    meminfo = parse_meminfo(door.text("/proc/meminfo") or "")
    memory = usable_memory(
        door, meminfo.get("MemTotal", system.total_bytes), meminfo.get("MemAvailable", system.available_bytes)
    )
    if memory is None:
        message = "The operating system does not say how much memory this machine has."
        raise ProbeError(message, hint="report this, please, with the name of your system")
    total_bytes, available_bytes = memory
    found = read_slots(door, system, may_be_slow=False)
    kind = kind_fact("ram.kind", found)
    configured_mt_per_s = configured_fact("ram.configured_mt_per_s", found)
    n_modules: Fact[int] = Note(subject="ram.n_modules", reason=found) if isinstance(found, str) else len(found.filled)
    ram = Ram(
        total_bytes=total_bytes,
        available_bytes=available_bytes,
        kind=known(kind),
        configured_mt_per_s=known(configured_mt_per_s),
        n_modules=known(n_modules),
        read_bytes_per_s=None,
        n_threads_read=None,
    )
    return ram, notes_in(kind, configured_mt_per_s, n_modules)


def usable_memory(door: Door, total_bytes: int | None, available_bytes: int | None) -> tuple[int, int] | None:
    """What this process's groups leave of the machine's total and available memory, None when that is not known."""
    if not total_bytes or available_bytes is None:
        return None
    bounds = memory_bounds(door)
    return (
        min((total_bytes, *(bound.limit_bytes for bound in bounds))),
        min((available_bytes, *(bound.available_bytes for bound in bounds))),
    )


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Name -> bytes, from the text of /proc/meminfo; lines of another form are left out."""
    matches = re.finditer(r"^([^:\n]+):\s*([0-9]{1,18}) kB\s*$", text, re.MULTILINE)
    return {match[1]: int(match[2]) * 1024 for match in matches}

"""Main memory: how much this process may use, and which modules it is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offloadtune.errors import ProbeError
from offloadtune.probe.cgroup import memory_bounds
from offloadtune.probe.facts import Fact, known, notes_in, parse_int
from offloadtune.probe.host import Door, System
from offloadtune.records import Note, Ram

DMI_FOLDER = "/sys/devices/virtual/dmi/id"
DDR5_BEFORE_SYSTEMD_256 = "<OUT OF SPEC>"

_DEVICE_LINE = re.compile(r"MEMORY_DEVICE_(\d+)_([A-Z_]+)=(.*)")
_KIND = re.compile(r"(LP)?DDR\d?|HBM\d?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One memory module that is in its slot, as the firmware describes it."""

    kind: str | None
    configured_mt_per_s: int | None


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
    modules = parse_modules(door.command("udevadm", "info", "-q", "property", "-p", DMI_FOLDER) or "")
    kind = _kind(modules, system)
    configured_mt_per_s = _configured_mt_per_s(modules, system)
    n_modules = len(modules) or _no_modules("ram.n_modules", system)
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


def parse_modules(text: str) -> tuple[Module, ...]:
    """Modules that are present, from the udev properties of the DMI device."""
    slots: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = _DEVICE_LINE.fullmatch(line.strip())
        if match:
            slots.setdefault(match[1], {})[match[2]] = match[3]
    filled = (slot for slot in slots.values() if slot.get("PRESENT") != "0" and parse_int(slot.get("SIZE")))
    return tuple(
        Module(kind=slot.get("TYPE"), configured_mt_per_s=parse_int(slot.get("CONFIGURED_SPEED_MTS")))
        for slot in filled
    )


def _kind(modules: Sequence[Module], system: System) -> Fact[str]:
    subject = "ram.kind"
    if not modules:
        return _no_modules(subject, system)
    kinds = sorted({module.kind for module in modules if module.kind})
    if DDR5_BEFORE_SYSTEMD_256 in kinds:
        return Note(
            subject=subject,
            reason="udev reports the memory type as out of specification: systemd before 256 does so for DDR5.",
        )
    if len(kinds) == 1 and _KIND.fullmatch(kinds[0]):
        return kinds[0]
    named = ", ".join(kinds) or "nothing"
    return Note(subject=subject, reason=f"The firmware names the memory type as {named}, which is not one DDR type.")


def _configured_mt_per_s(modules: Sequence[Module], system: System) -> Fact[int]:
    """The slowest module's speed: all of a machine's channels run at it."""
    subject = "ram.configured_mt_per_s"
    if not modules:
        return _no_modules(subject, system)
    speeds = [module.configured_mt_per_s for module in modules if module.configured_mt_per_s]
    return min(speeds, default=0) or Note(subject=subject, reason="The firmware gives no configured memory speed.")


def _no_modules(subject: str, system: System) -> Note:
    if system.name == "Linux":
        reason = "udev lists no memory modules: virtual machines, containers and systemd before 248 have no such list."
    else:
        reason = f"Memory modules are not read on {system.name} yet."
    return Note(subject=subject, reason=reason)

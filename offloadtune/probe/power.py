"""What holds a CPU's clock down: battery, power profile, governor. Linux's files."""

from __future__ import annotations

from collections.abc import Sequence

from offloadtune.probe.cpu import CPU_FOLDER
from offloadtune.probe.host import Door

SUPPLY_FOLDER = "/sys/class/power_supply"
GOVERNORS_SLOWEST_FIRST = ("powersave", "conservative", "userspace", "ondemand", "schedutil", "performance")
SLOW_PROFILES = ("low-power", "quiet")
SLOW_HINT = "power"


def on_battery(door: Door) -> bool | None:
    """Whether the battery is what feeds the machine; None without one, and where it does not say."""
    states = []
    for name in door.names(SUPPLY_FOLDER):
        folder = f"{SUPPLY_FOLDER}/{name}"
        kind = _word(door, f"{folder}/type") or ""
        if kind == "Mains" or kind.startswith("USB"):
            if _word(door, f"{folder}/online") == "1":
                return False
        elif kind == "Battery" and _word(door, f"{folder}/scope") != "Device":  # a mouse has one too
            states.append(_word(door, f"{folder}/status"))
    known = [state for state in states if state not in {None, "Unknown"}]
    return "Discharging" in known if known else None


def power_profile(door: Door, cpus: Sequence[int]) -> str | None:
    """The firmware's profile; where that is not slow and the CPU's own hint is to save power, that hint."""
    profile = _word(door, "/sys/firmware/acpi/platform_profile")
    hint = _word(door, f"{_frequency_folder(cpus)}/energy_performance_preference") if cpus else None
    return hint if hint == SLOW_HINT and profile not in SLOW_PROFILES else profile


def governor(door: Door, cpus: Sequence[int]) -> tuple[str | None, str | None]:
    """The slowest governor of `cpus`, and the driver that it governs with."""
    folders = [_frequency_folder([cpu]) for cpu in cpus]
    names = {name for folder in folders if (name := _word(door, f"{folder}/scaling_governor"))}
    slowest = min(names, key=_rank, default=None)
    return slowest, _word(door, f"{folders[0]}/scaling_driver") if slowest else None


def _rank(name: str) -> int:
    known = GOVERNORS_SLOWEST_FIRST
    return known.index(name) if name in known else len(known)


def _frequency_folder(cpus: Sequence[int]) -> str:
    return f"{CPU_FOLDER}/cpu{cpus[0]}/cpufreq"


def _word(door: Door, path: str) -> str | None:
    return (door.text(path) or "").strip() or None

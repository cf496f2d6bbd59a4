"""NVIDIA cards at a moment, from what NVML answered; every field stands or falls alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from offloadtune.conditions import GpuConditions, GpuProcess
from offloadtune.probe.host import UNSEEN_PID, Door

IDLE, SET_BY_USER = 0x1, 0x2
THROTTLE_REASONS: Mapping[int, str] = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that say that something else than the user slows the clock."""

_PROCESS_CALLS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_N_NAME = 60


def read_cards(door: Door, ours: Collection[int]) -> tuple[GpuConditions, ...]:
    """The cards that answer, () where there is no driver."""
    devices = door.nvml_moment().get("devices")
    listed = enumerate(devices if isinstance(devices, list) else ())
    return tuple(_card(door, ours, index, one) for index, one in listed if isinstance(one, dict) and "error" not in one)


def _card(door: Door, ours: Collection[int], index: int, answers: Mapping[str, Any]) -> GpuConditions:
    reasons = _read(answers, "nvmlDeviceGetCurrentClocksThrottleReasons", int)
    by_pid = None if UNSEEN_PID in ours else _processes(answers)
    used_bytes = _read(answers, "nvmlDeviceGetMemoryInfo", lambda memory: int(memory["used"]))
    of_ours = [n_bytes for pid, n_bytes in (by_pid or {}).items() if pid in ours]
    ours_bytes = sum(n_bytes or 0 for n_bytes in of_ours)
    return GpuConditions(
        index=index,
        name=_printable(_read(answers, "nvmlDeviceGetName", str) or "NVIDIA GPU"),
        clock_mhz=_read(answers, "nvmlDeviceGetClockInfo", int),
        most_clock_mhz=_read(answers, "nvmlDeviceGetMaxClockInfo", int),
        temperature_c=_read(answers, "nvmlDeviceGetTemperature", int),
        throttle_reasons=None if reasons is None else tuple(n for bit, n in THROTTLE_REASONS.items() if reasons & bit),
        other_processes=None if by_pid is None else _others(door, ours, by_pid),
        others_bytes=None if used_bytes is None else max(0, used_bytes - ours_bytes),
        clock_is_free=None if reasons is None else not reasons & (IDLE | SET_BY_USER),
        ours_bytes=ours_bytes if of_ours and None not in of_ours else None,
        hot_ns=_read(answers, "nvmlDeviceGetViolationStatus", lambda status: int(status["violationTime"])),
        pci_bus_id=_read(answers, "nvmlDeviceGetPciInfo", lambda pci: str(pci["busId"])),
    )


def _others(door: Door, ours: Collection[int], by_pid: Mapping[int, int | None]) -> tuple[GpuProcess, ...]:
    """Those that are seen from here: in a container the driver counts processes otherwise, and ours among them."""
    named = ((pid, door.process_name(pid), n_bytes) for pid, n_bytes in sorted(by_pid.items()) if pid not in ours)
    return tuple(GpuProcess(pid=pid, name=_printable(name), n_bytes=n_bytes) for pid, name, n_bytes in named if name)


def _processes(answers: Mapping[str, Any]) -> dict[int, int | None] | None:
    """Process -> bytes of the card, None when neither list was given. One that draws and computes is in both."""
    lists = [_read(answers, call, _parse_processes) for call in _PROCESS_CALLS]
    if all(one is None for one in lists):
        return None
    return {pid: n_bytes for one in lists for pid, n_bytes in (one or {}).items()}


def _parse_processes(rows: Any) -> dict[int, int | None]:
    read = ((int(row["pid"]), row.get("usedGpuMemory")) for row in rows)
    return {pid: n_bytes if isinstance(n_bytes, int) else None for pid, n_bytes in read}


def _read(answers: Mapping[str, Any], call: str, read: Callable[[Any], Any]) -> Any:
    answer = answers.get(call)
    if answer is None or (isinstance(answer, Mapping) and "error" in answer):
        return None
    try:
        return read(answer)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
        return None


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:_N_NAME]

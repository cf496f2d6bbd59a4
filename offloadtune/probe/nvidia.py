"""What NVML's answers about a card mean: one reader for each answer, and every answer stands or falls alone.

An answer is JSON, as `nvml.read_nvml` describes it: the value, or `{"error": NAME}` where NVML refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offloadtune.probe.facts import Fact, known, label
from offloadtune.records import Note

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

_N_SHOWN = 80
_N_COUNT_BITS = 63  # what a TOML or JSON reader takes; NVML's "not available" has all 64 bits set


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not 0 <= int(value) < 1 << _N_COUNT_BITS:
        raise ValueError
    return int(value)


def _positive(value: Any) -> int:
    """A 0 stands for "not told": of memory, lanes, watts or bits no card has none."""
    if not _count(value):
        raise ValueError
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not label(value):
        raise ValueError
    return label(value)


def _processes(rows: Any) -> dict[int, int | None]:
    """Process -> bytes of the card it has, None where the driver does not say."""
    read = ((_count(row["pid"]), row.get("usedGpuMemory")) for row in rows)
    return {pid: n_bytes if isinstance(n_bytes, int) and n_bytes >= 0 else None for pid, n_bytes in read}


READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("nvmlDeviceGetName", _text),
    "uuid": ("nvmlDeviceGetUUID", _text),
    "pci_bus_id": ("nvmlDeviceGetPciInfo", lambda pci: _text(pci["busId"])),
    "total_bytes": ("nvmlDeviceGetMemoryInfo", lambda memory: _positive(memory["total"])),
    "free_bytes": ("nvmlDeviceGetMemoryInfo", lambda memory: _count(memory["free"])),
    "used_bytes": ("nvmlDeviceGetMemoryInfo", lambda memory: _count(memory["used"])),
    "compute_capability": (
        "nvmlDeviceGetCudaComputeCapability",
        lambda pair: f"{_count(pair[0])}.{_count(pair[1])}",
    ),
    # an idle link drops its generation to save power, its width it keeps; the maximum width is often the card's own,
    # whatever the slot gives
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", _positive),
    "pcie_generation_most": ("nvmlDeviceGetMaxPcieLinkGeneration", _positive),
    "n_pcie_lanes": ("nvmlDeviceGetCurrPcieLinkWidth", _positive),
    "n_pcie_lanes_most": ("nvmlDeviceGetMaxPcieLinkWidth", _positive),
    "bar1_bytes": ("nvmlDeviceGetBAR1MemoryInfo", lambda memory: _positive(memory["bar1Total"])),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", lambda mw: _positive(mw) / 1e3),
    "power_limit_default_w": ("nvmlDeviceGetPowerManagementDefaultLimit", lambda mw: _positive(mw) / 1e3),
    "clock_mhz": ("nvmlDeviceGetClockInfo", _count),
    "most_clock_mhz": ("nvmlDeviceGetMaxClockInfo", _positive),
    "memory_clock_mhz": ("nvmlDeviceGetMaxClockInfo:memory", _positive),
    "n_memory_bits": ("nvmlDeviceGetMemoryBusWidth", _positive),
    "temperature_c": ("nvmlDeviceGetTemperature", _count),
    "throttle_bits": ("nvmlDeviceGetCurrentClocksThrottleReasons", _count),
    "hot_ns": ("nvmlDeviceGetViolationStatus", lambda status: _count(status["violationTime"])),
    "computing": ("nvmlDeviceGetComputeRunningProcesses", _processes),
    "drawing": ("nvmlDeviceGetGraphicsRunningProcesses", _processes),
}
"""What is asked of a card -> the call that answers it, as in `nvml.py`, and how to read the answer."""


def answer(answers: Mapping[str, Any], asked: str) -> Any | None:
    """One of READERS as it was answered, None where it was not."""
    return known(fact("", answers, asked))


def fact(subject: str, answers: Mapping[str, Any], asked: str) -> Fact[Any]:
    """One of READERS as it was answered, or the Note about `subject` that says why it was not."""
    return read_answer(subject, answers, *READERS[asked])


def read_answer(subject: str, answers: Mapping[str, Any], call: str, read: Callable[[Any], Any]) -> Fact[Any]:
    """What `call` answered, or the Note about `subject` that says why it did not."""
    given = answers.get(call)
    error = error_in(given)
    if error is not None:
        return Note(subject=subject, reason=f"{call} failed: {error}.")
    if given is None:
        return Note(subject=subject, reason=f"{call} gave no answer.")
    try:
        return read(given)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
        return Note(subject=subject, reason=f"{call} gave an answer that cannot be read: {given!r:.{_N_SHOWN}}.")


def error_in(given: Any) -> str | None:
    """The name of NVML's refusal, None where it answered."""
    return label(str(given["error"])) if isinstance(given, Mapping) and "error" in given else None


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """NVML's names, without "idle" and what the user set."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)

"""NVIDIA cards at a moment, from what NVML answered; every field stands or falls alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from offloadtune.conditions import GpuConditions, GpuProcess
from offloadtune.probe.facts import label
from offloadtune.probe.host import UNSEEN_PID, Door
from offloadtune.probe.nvidia import IDLE, SET_BY_USER, answer, throttle_reasons


def read_cards(door: Door, ours: Collection[int]) -> tuple[GpuConditions, ...]:
    """The cards that answer, () where there is no driver."""
    devices = door.nvml_moment().get("devices")
    listed = enumerate(devices if isinstance(devices, list) else ())
    return tuple(_card(door, ours, index, one) for index, one in listed if isinstance(one, dict) and "error" not in one)


def _card(door: Door, ours: Collection[int], index: int, answers: Mapping[str, Any]) -> GpuConditions:
    bits = answer(answers, "throttle_bits")
    by_pid = None if UNSEEN_PID in ours else _processes(answers)
    used_bytes = answer(answers, "used_bytes")
    of_ours = [n_bytes for pid, n_bytes in (by_pid or {}).items() if pid in ours]
    ours_bytes = sum(n_bytes or 0 for n_bytes in of_ours)
    return GpuConditions(
        index=index,
        name=answer(answers, "name") or "NVIDIA GPU",
        clock_mhz=answer(answers, "clock_mhz"),
        most_clock_mhz=answer(answers, "most_clock_mhz"),
        temperature_c=answer(answers, "temperature_c"),
        throttle_reasons=None if bits is None else throttle_reasons(bits),
        other_processes=None if by_pid is None else seen_processes(door, by_pid, ours),
        others_bytes=None if used_bytes is None else max(0, used_bytes - ours_bytes),
        clock_is_free=None if bits is None else not bits & (IDLE | SET_BY_USER),
        ours_bytes=ours_bytes if of_ours and None not in of_ours else None,
        hot_ns=answer(answers, "hot_ns"),
        pci_bus_id=answer(answers, "pci_bus_id"),
    )


def seen_processes(door: Door, by_pid: Mapping[int, int | None], ours: Collection[int] = ()) -> tuple[GpuProcess, ...]:
    """Those that are not `ours` and seen from here: in a container the driver counts processes otherwise."""
    named = (
        (pid, label(door.process_name(pid)), n_bytes) for pid, n_bytes in sorted(by_pid.items()) if pid not in ours
    )
    return tuple(GpuProcess(pid=pid, name=name, n_bytes=n_bytes) for pid, name, n_bytes in named if name)


def _processes(answers: Mapping[str, Any]) -> dict[int, int | None] | None:
    """Process -> bytes of the card, None when neither list was given. One that draws and computes is in both."""
    lists = [answer(answers, "computing"), answer(answers, "drawing")]
    if all(one is None for one in lists):
        return None
    return {pid: n_bytes for one in lists for pid, n_bytes in (one or {}).items()}

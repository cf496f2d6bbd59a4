"""AMD's cards and integrated GPUs as their driver, amdgpu, describes them in sysfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from offloadtune.probe.drm import PciCard, Told, count_in
from offloadtune.probe.host import Door
from offloadtune.units import GIB

_LEVEL = re.compile(r"^\s*\w+:\s*([0-9]{1,6})\s*mhz\s*(\*?)", re.IGNORECASE | re.MULTILINE)
_LARGEST_CARVE_OUT_BYTES = 4 * GIB
_SOURCES: Mapping[str, str] = {
    "total_bytes": "mem_info_vram_total",
    "free_bytes": "mem_info_vram_used",
    "shared_bytes": "mem_info_gtt_total",
    "bar1_bytes": "mem_info_vis_vram_total",
    "clock_mhz": "pp_dpm_sclk",
    "most_clock_mhz": "pp_dpm_sclk",
    "memory_clock_mhz": "pp_dpm_mclk",
    "power_limit_w": "power1_cap",
    "power_limit_default_w": "power1_cap_default",
    "temperature_c": "temp1_input",
}
"""Field of GpuHardware -> the file of amdgpu that tells it."""


def read_amd(door: Door, card: PciCard) -> Told:
    """What amdgpu tells. It has no word for how many bits memory moves in a clock, hence none for its speed."""
    sensors = next((f"hwmon/{name}" for name in door.names(f"{card.folder}/hwmon")), "hwmon")
    total = count_in(door, card, "mem_info_vram_total")
    used = count_in(door, card, "mem_info_vram_used")
    shared = count_in(door, card, "mem_info_gtt_total")
    levels, memory_levels = _levels(door, card, "pp_dpm_sclk"), _levels(door, card, "pp_dpm_mclk")
    limit = count_in(door, card, f"{sensors}/power1_cap")
    default = count_in(door, card, f"{sensors}/power1_cap_default")
    heat = count_in(door, card, f"{sensors}/temp1_input")
    kind = _kind(door, card, sensors, total or 0, shared or 0)
    fields: dict[str, Any] = {
        "total_bytes": total or None,
        "free_bytes": max(0, total - used) if total and used is not None else None,
        "clock_mhz": next((mhz for mhz, is_now in levels if is_now), None),
        "most_clock_mhz": max((mhz for mhz, _ in levels), default=None),
        "memory_clock_mhz": max((mhz for mhz, _ in memory_levels), default=None),
        "power_limit_w": limit / 1e6 if limit else None,
        "power_limit_default_w": default / 1e6 if default else None,
        "temperature_c": None if heat is None else heat // 1000,
    }
    if kind == "integrated":
        fields["shared_bytes"] = shared or None
    else:
        fields["bar1_bytes"] = count_in(door, card, "mem_info_vis_vram_total") or None
    reasons = {
        field: f"The driver does not tell: {_SOURCES[field]} is missing, or cannot be read."
        for field, value in fields.items()
        if value is None
    }
    if kind == "discrete":
        reasons["memory_theoretical_bytes_per_s"] = "The driver does not say how many bits memory moves in a clock."
    return Told(kind=kind, fields=fields, reasons=reasons)


def _kind(door: Door, card: PciCard, sensors: str, total_bytes: int, shared_bytes: int) -> str:
    """Integrated is what shows a voltage "vddnb", of the processor's north bridge: amdgpu does so for no card.

    Sizes tell less, and only where no voltage is shown: an old card of 4 GiB beside much memory looks the same.
    """
    voltages = {door.text(f"{card.folder}/{sensors}/in{number}_label") for number in (0, 1)} - {None}
    if voltages:
        is_integrated = any((one or "").strip() == "vddnb" for one in voltages)
    else:
        is_integrated = total_bytes <= _LARGEST_CARVE_OUT_BYTES and shared_bytes >= 2 * total_bytes > 0
    return "integrated" if is_integrated else "discrete"


def _levels(door: Door, card: PciCard, name: str) -> list[tuple[int, bool]]:
    """The clocks a part of the card can take, in MHz, and whether it is the one of now: lines "1: 2304Mhz *"."""
    return [(int(mhz), bool(star)) for mhz, star in _LEVEL.findall(door.text(f"{card.folder}/{name}") or "")]

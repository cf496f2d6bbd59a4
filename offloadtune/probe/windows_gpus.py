"""The GPUs that Windows lists, by name: its figure for their memory ends at 4 GiB, and is not used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from offloadtune.hardware import GpuHardware
from offloadtune.probe.drm import INTEL, NVIDIA, VENDORS
from offloadtune.probe.facts import label
from offloadtune.probe.host import Door
from offloadtune.probe.modules import SLOW_COMMAND_DEADLINE_S
from offloadtune.records import Note

NOT_ASKED = "Windows lists its video controllers only where the whole machine is examined: it takes seconds."

_QUESTION = "Get-CimInstance Win32_VideoController | Select-Object Name,DriverVersion,PNPDeviceID | ConvertTo-Json"

_VENDOR = re.compile(r"PCI\\VEN_([0-9A-F]{4})", re.IGNORECASE)
_IN_THE_PROCESSOR = re.compile(r"\\3&[0-9A-F]+&[0-9A-F]+&10\Z", re.IGNORECASE)  # bus 0, device 2: all of Intel's
_AMD_CARDS = re.compile(r"\b(?:RX|Pro|PRO|VII|Instinct|FirePro)\b")


def read_video_controllers(
    door: Door, n_first: int, *, with_nvidia: bool
) -> tuple[tuple[GpuHardware, ...], tuple[Note, ...]]:
    """The GPUs by their names; NVIDIA's where the NVIDIA driver told of none."""
    rows = _rows(door.command("powershell", "-NoProfile", "-Command", _QUESTION, deadline_s=SLOW_COMMAND_DEADLINE_S))
    if rows is None:
        return (), (Note(subject="gpus.windows", reason="Windows gave no list of its video controllers."),)
    told = [(vendor, row) for row in rows if (vendor := _vendor(row)) in VENDORS]
    wanted = [(vendor, row) for vendor, row in told if with_nvidia or vendor != NVIDIA]
    read = [_read_controller(n_first + i, vendor, row) for i, (vendor, row) in enumerate(wanted)]
    return tuple(gpu for gpu, _ in read), tuple(note for _, notes in read for note in notes)


def _rows(text: str | None) -> list[Mapping[str, Any]] | None:
    """One controller is an object, several are a list of them."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return [row for row in (value if isinstance(value, list) else [value]) if isinstance(row, Mapping)]


def _vendor(row: Mapping[str, Any]) -> int:
    """0 for what is no card: the screens of remote sessions are listed too."""
    found = _VENDOR.match(str(row.get("PNPDeviceID")))
    return int(found[1], 16) if found else 0


def _kind(vendor: int, name: str, place: str) -> str:
    """Windows does not say. Intel's tell by their place, AMD's by their name ("Radeon RX Vega 11 Graphics" is none)."""
    if vendor == INTEL:
        is_card = not _IN_THE_PROCESSOR.search(place)
    else:
        is_card = vendor == NVIDIA or (_AMD_CARDS.search(name) is not None and not name.endswith("Graphics"))
    return "discrete" if is_card else "integrated"


def _read_controller(index: int, vendor: int, row: Mapping[str, Any]) -> tuple[GpuHardware, tuple[Note, ...]]:
    name = label(str(row.get("Name") or "")) or f"{VENDORS[vendor]} GPU"
    gpu = GpuHardware(
        vendor=VENDORS[vendor],
        index=index,
        name=name,
        kind=_kind(vendor, name, str(row.get("PNPDeviceID"))),
        driver=label(str(row.get("DriverVersion") or "")) or None,
    )
    reasons = {"total_bytes": "Windows lists this GPU, but gives no sizes over 4 GiB of its memory."}
    if vendor == NVIDIA:
        reasons["driver"] = "Windows lists this card, but the NVIDIA driver does not tell of it."
    elif gpu.driver is None:
        reasons["driver"] = "Windows names no driver of this GPU."
    return gpu, tuple(Note(subject=f"gpus[{index}].{field}", reason=reason) for field, reason in reasons.items())

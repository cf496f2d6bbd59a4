"""The slots of main memory, from whoever tells of them: udev, the SMBIOS tables, Windows, macOS.

Keys of udev's properties: systemd, src/udev/dmi_memory_id/dmi_memory_id.c. Those of Windows: class
Win32_PhysicalMemory. What Windows and macOS call MHz are mega-transfers per second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from offloadtune.probe.dmi import KINDS, NOT_MAIN_MEMORY, Slot, Slots, parse_tables
from offloadtune.probe.facts import Fact, parse_positive, printable
from offloadtune.probe.host import Door, System
from offloadtune.records import Note

DMI_FOLDER = "/sys/devices/virtual/dmi/id"
TABLES_FOLDER = "/sys/firmware/dmi/tables"
DDR5_BEFORE_SYSTEMD_256 = "<OUT OF SPEC>"
SLOW_COMMAND_DEADLINE_S = 15.0

_WINDOWS_FIELDS = "DeviceLocator,BankLabel,SMBIOSMemoryType,Capacity,Speed,ConfiguredClockSpeed,DataWidth,TotalWidth"
_WINDOWS_MODULES = f"Get-CimInstance Win32_PhysicalMemory | Select-Object {_WINDOWS_FIELDS}"
_WINDOWS_ARRAYS = "Get-CimInstance Win32_PhysicalMemoryArray | Select-Object MemoryDevices"
WINDOWS_COMMAND = f"@{{modules=@({_WINDOWS_MODULES});arrays=@({_WINDOWS_ARRAYS})}} | ConvertTo-Json -Depth 3"

_DEVICE_LINE = re.compile(r"MEMORY_DEVICE_(\d{1,4})_([A-Z_]+)=(.*)")
_N_DEVICES_LINE = re.compile(r"^MEMORY_ARRAY_NUM_DEVICES=(\d{1,5})\s*$", re.MULTILINE)
_KIND = re.compile(r"(LP)?DDR\d?|HBM\d?")
_MAC_SIZE = re.compile(r"(\d{1,6}) ?(MB|GB|TB)")
_MAC_UNITS = {"MB": 2**20, "GB": 2**30, "TB": 2**40}
_MAC_SPEED = re.compile(r"(\d{1,6}) ?(?:MHz|MT/s)")
_MOST_BYTES, _MOST_MT_PER_S, _MOST_BITS = 2**60, 10**6, 2**16


def read_slots(door: Door, system: System, *, may_be_slow: bool) -> Slots | str:
    """The slots, at least one of them filled, or a full sentence that says why they are not known.

    Linux answers at once; Windows and macOS take a program that needs a second or more.
    """
    if system.name == "Linux":
        return _linux_slots(door)
    if system.name not in {"Windows", "macOS"}:
        return f"Memory modules are not read on {system.name} yet."
    if not may_be_slow:
        return f"On {system.name} memory modules are read only where the whole machine is examined: it takes seconds."
    if system.name == "Windows":
        words = ("powershell", "-NoProfile", "-Command", WINDOWS_COMMAND)
        slots = parse_windows(door.command(*words, deadline_s=SLOW_COMMAND_DEADLINE_S) or "")
        return slots or "PowerShell gave no list of Win32_PhysicalMemory."
    told = door.command("system_profiler", "SPMemoryDataType", "-json", deadline_s=SLOW_COMMAND_DEADLINE_S)
    return parse_mac(told or "") or "system_profiler did not describe the memory."


def root_would_add(door: Door, found: Slots | str) -> tuple[str, ...]:
    """What the SMBIOS tables, which only root may read, would add to what was found."""
    if "DMI" not in door.names(TABLES_FOLDER) or door.bytes(f"{TABLES_FOLDER}/DMI"):  # empty in a record
        return ()
    if isinstance(found, str):
        return (f"With root's rights {TABLES_FOLDER} would tell the memory modules.",)
    if _is_out_of_spec(found):
        return (f"With root's rights {TABLES_FOLDER} would tell the kind of the memory.",)
    return ()


def kind_fact(subject: str, found: Slots | str) -> Fact[str]:
    """The one kind all modules are of."""
    if isinstance(found, str):
        return Note(subject=subject, reason=found)
    if found.soldered_kind:
        return found.soldered_kind
    if _is_out_of_spec(found):
        return Note(
            subject=subject,
            reason="udev reports the memory type as out of specification: "
            "systemd before 256 does so for DDR5 and LPDDR5.",
        )
    kinds = sorted({slot.kind for slot in found.filled if slot.kind})
    if len(kinds) == 1 and _KIND.fullmatch(kinds[0]):
        return kinds[0]
    named = ", ".join(kinds) or "nothing"
    return Note(subject=subject, reason=f"The firmware names the memory type as {named}, which is not one DDR type.")


def configured_fact(subject: str, found: Slots | str) -> Fact[int]:
    """The slowest module's speed: all of a machine's channels run at it.

    Half of the rating is not taken for it. Some firmware gives the clock here, and memory moves data twice a beat.
    """
    if isinstance(found, str):
        return Note(subject=subject, reason=found)
    for slot in found.filled:
        rated, configured = slot.rated_mt_per_s, slot.configured_mt_per_s
        if rated and configured and abs(2 * configured - rated) <= rated // 100:
            reason = f"The firmware gives {configured} for memory rated {rated} MT/s: half, which may be its clock."
            return Note(subject=subject, reason=reason)
    speeds = [slot.configured_mt_per_s for slot in found.filled if slot.configured_mt_per_s]
    return min(speeds, default=0) or Note(subject=subject, reason="The firmware gives no configured memory speed.")


def parse_udev(text: str) -> Slots | None:
    """From the udev properties of the DMI device, None when they list no filled slot."""
    devices: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = _DEVICE_LINE.fullmatch(line.strip())
        if match:
            devices.setdefault(match[1], {})[match[2]] = match[3]
    described = tuple(_udev_slot(device) for device in devices.values())
    slots = _main_memory(described)
    # of several arrays udev keeps the last one's number, and it may count what is not main memory
    numbers = [int(number) - (len(described) - len(slots)) for number in _N_DEVICES_LINE.findall(text)]
    return _if_filled(Slots(source="udev", slots=slots, n_slots=max([len(slots), *numbers])))


def parse_windows(text: str) -> Slots | None:
    """From JSON of Win32_PhysicalMemory: its rows alone, or beside those of Win32_PhysicalMemoryArray."""
    told = _json(text)
    rows = told.get("modules", told) if isinstance(told, Mapping) else told
    arrays = told.get("arrays") if isinstance(told, Mapping) else None
    n_places = [parse_positive(row.get("MemoryDevices"), most=2**16) or 0 for row in _rows(arrays)]
    slots = _main_memory(tuple(_windows_slot(row) for row in _rows(rows)))
    n_slots = max(len(slots), sum(n_places)) if n_places else None
    return _if_filled(Slots(source="Windows", slots=slots, n_slots=n_slots))


def parse_mac(text: str) -> Slots | None:
    """From system_profiler's SPMemoryDataType as JSON. Apple's own chips list no slots, only the kind of memory."""
    told = _json(text)
    tops = _rows(told.get("SPMemoryDataType") if isinstance(told, Mapping) else None)
    slots = tuple(_mac_slot(item) for top in tops for item in _rows(top.get("_items")))
    if slots:
        return _if_filled(Slots(source="macOS", slots=slots, n_slots=len(slots)))
    kinds = {kind for top in tops if _KIND.fullmatch(kind := str(top.get("dimm_type")))}
    return Slots(source="macOS", slots=(), soldered_kind=kinds.pop()) if len(kinds) == 1 else None


def _linux_slots(door: Door) -> Slots | str:
    by_udev = parse_udev(door.command("udevadm", "info", "-q", "property", "-p", DMI_FOLDER) or "")
    if by_udev and not _is_out_of_spec(by_udev):
        return by_udev
    slots = _if_filled(parse_tables(door.bytes(f"{TABLES_FOLDER}/DMI") or b"")) or by_udev
    if slots:
        return slots
    board = printable(door.text("/proc/device-tree/model"))
    if board:
        return f"The device tree of this board ({board}) lists no memory modules."
    return "udev lists no memory modules: virtual machines, containers and systemd before 248 have no such list."


def _udev_slot(device: Mapping[str, str]) -> Slot:
    return Slot(
        locator=printable(device.get("LOCATOR")),
        bank=printable(device.get("BANK_LOCATOR")),
        kind=printable(device.get("TYPE")),
        n_bytes=parse_positive(device.get("SIZE"), most=_MOST_BYTES),
        rated_mt_per_s=parse_positive(device.get("SPEED_MTS"), most=_MOST_MT_PER_S),
        configured_mt_per_s=parse_positive(device.get("CONFIGURED_SPEED_MTS"), most=_MOST_MT_PER_S),
        n_bits=_first_positive(device, ("DATA_WIDTH", "TOTAL_WIDTH"), most=_MOST_BITS),
    )


def _windows_slot(row: Mapping[str, Any]) -> Slot:
    return Slot(
        locator=_text(row.get("DeviceLocator")),
        bank=_text(row.get("BankLabel")),
        kind=KINDS.get(parse_positive(row.get("SMBIOSMemoryType"), most=2**16) or 0),
        n_bytes=parse_positive(row.get("Capacity"), most=_MOST_BYTES),
        rated_mt_per_s=parse_positive(row.get("Speed"), most=_MOST_MT_PER_S),
        configured_mt_per_s=parse_positive(row.get("ConfiguredClockSpeed"), most=_MOST_MT_PER_S),
        n_bits=_first_positive(row, ("DataWidth", "TotalWidth"), most=_MOST_BITS),
    )


def _mac_slot(item: Mapping[str, Any]) -> Slot:
    size = _MAC_SIZE.fullmatch(str(item.get("dimm_size")))
    speed = _MAC_SPEED.fullmatch(str(item.get("dimm_speed")))
    return Slot(
        locator=_text(item.get("_name")),
        bank=None,
        kind=_text(item.get("dimm_type")),
        n_bytes=int(size[1]) * _MAC_UNITS[size[2]] if size else None,
        configured_mt_per_s=int(speed[1]) or None if speed else None,
    )


def _is_out_of_spec(found: Slots) -> bool:
    return any(slot.kind == DDR5_BEFORE_SYSTEMD_256 for slot in found.filled)


def _main_memory(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    return tuple(slot for slot in slots if slot.kind not in NOT_MAIN_MEMORY)


def _if_filled(slots: Slots | None) -> Slots | None:
    return slots if slots and slots.filled else None


def _first_positive(fields: Mapping[str, Any], names: tuple[str, ...], *, most: int) -> int | None:
    numbers = (parse_positive(fields.get(name), most=most) for name in names)
    return next((number for number in numbers if number is not None), None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _rows(value: Any) -> tuple[Mapping[str, Any], ...]:
    """The objects in a list; PowerShell writes a list of one as that one."""
    values = value if isinstance(value, list) else [value]
    return tuple(one for one in values if isinstance(one, Mapping))


def _text(value: Any) -> str | None:
    return printable(value) if isinstance(value, str) else None

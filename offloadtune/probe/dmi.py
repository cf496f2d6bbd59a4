"""The slots of main memory as SMBIOS describes them, and the tables of SMBIOS themselves as bytes.

udev, Windows and macOS all pass on what stands in these tables. Source: DMTF DSP0134, structures 16 and 17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offloadtune.probe.facts import printable

KINDS: Mapping[int, str] = {
    0x01: "Other",
    0x02: "Unknown",
    0x03: "DRAM",
    0x07: "RAM",
    0x08: "ROM",
    0x09: "Flash",
    0x0F: "SDRAM",
    0x12: "DDR",
    0x13: "DDR2",
    0x14: "DDR2 FB-DIMM",
    0x18: "DDR3",
    0x1A: "DDR4",
    0x1B: "LPDDR",
    0x1C: "LPDDR2",
    0x1D: "LPDDR3",
    0x1E: "LPDDR4",
    0x1F: "Logical non-volatile device",
    0x20: "HBM",
    0x21: "HBM2",
    0x22: "DDR5",
    0x23: "LPDDR5",
    0x24: "HBM3",
}
"""Code of a memory device's type -> its name, as udev spells it. Those left out are no computer's main memory."""

NOT_MAIN_MEMORY = ("ROM", "EEPROM", "FEPROM", "EPROM", "Flash", "Logical non-volatile device")

_ARRAY, _DEVICE, _END = 16, 17, 127
_SYSTEM_MEMORY = 0x03
_LEAST_ARRAY, _LEAST_DEVICE = 0x0F, 0x15
_NOT_TOLD, _SEE_EXTENDED = 0xFFFF, 0x7FFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One place for a module. `n_bytes` is None when it is empty, `kind` the word the firmware has for the module."""

    locator: str | None
    bank: str | None
    kind: str | None = None
    n_bytes: int | None = None
    rated_mt_per_s: int | None = None
    configured_mt_per_s: int | None = None
    n_bits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """All places, those that were described; the board may say it has more: `n_slots`.

    `soldered_kind` is that of memory which is no module at all, as in Apple's chips.
    """

    source: str
    slots: tuple[Slot, ...]
    n_slots: int | None = None
    soldered_kind: str | None = None

    @property
    def filled(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.n_bytes)


def parse_tables(table: bytes) -> Slots | None:
    """From the content of /sys/firmware/dmi/tables/DMI, None when it describes no main memory."""
    found = tuple(_structures(table))
    arrays = {_word(body, 2): body for body, _ in found if body[0] == _ARRAY and len(body) >= _LEAST_ARRAY}
    elsewhere = {handle for handle, body in arrays.items() if body[5] != _SYSTEM_MEMORY}  # of a video card, of the BIOS
    n_slots = sum(_word(body, 0x0D) for handle, body in arrays.items() if handle not in elsewhere)
    devices = ((body, texts) for body, texts in found if body[0] == _DEVICE and len(body) >= _LEAST_DEVICE)
    slots = tuple(_slot(body, texts) for body, texts in devices if _word(body, 4) not in elsewhere)
    slots = tuple(slot for slot in slots if slot.kind not in NOT_MAIN_MEMORY)
    return Slots(source="DMI tables", slots=slots, n_slots=max(n_slots, len(slots))) if slots else None


def _structures(table: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """Each structure's fixed part and its texts. What is cut off or shorter than a header ends the table."""
    start = 0
    while start + 4 <= len(table) and table[start] != _END:
        end = start + max(4, table[start + 1])
        end_of_texts = table.find(b"\0\0", end)
        if table[start + 1] < 4 or end_of_texts < 0:
            return
        yield table[start:end], table[end:end_of_texts].split(b"\0")
        start = end_of_texts + 2


def _slot(body: bytes, texts: list[bytes]) -> Slot:
    total_bits, data_bits = _told(_word(body, 8)), _told(_word(body, 0x0A))
    return Slot(
        locator=_text(body[0x10], texts),
        bank=_text(body[0x11], texts),
        kind=KINDS.get(body[0x12]),
        n_bytes=_n_bytes(body),
        rated_mt_per_s=_mt_per_s(body, 0x15, 0x54),
        configured_mt_per_s=_mt_per_s(body, 0x20, 0x58),
        n_bits=data_bits or total_bits,
    )


def _n_bytes(body: bytes) -> int | None:
    size = _word(body, 0x0C)
    if size == _SEE_EXTENDED and len(body) >= 0x20:
        return (_double_word(body, 0x1C) & 0x7FFFFFFF) * 2**20 or None
    if size == _NOT_TOLD:
        return None
    return (size & 0x7FFF) * (2**10 if size & 0x8000 else 2**20) or None


def _mt_per_s(body: bytes, place: int, place_of_large: int) -> int | None:
    speed = _word(body, place)
    return (_double_word(body, place_of_large) if speed == _NOT_TOLD else speed) or None


def _told(number: int) -> int | None:
    return None if number in {0, _NOT_TOLD} else number


def _text(number: int, texts: list[bytes]) -> str | None:
    """Texts are counted from 1; 0 is none."""
    return printable(texts[number - 1].decode("latin-1")) if 0 < number <= len(texts) else None


def _word(body: bytes, place: int) -> int:
    return int.from_bytes(body[place : place + 2], "little") if len(body) >= place + 2 else 0


def _double_word(body: bytes, place: int) -> int:
    return int.from_bytes(body[place : place + 4], "little") if len(body) >= place + 4 else 0

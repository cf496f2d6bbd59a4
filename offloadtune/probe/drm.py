"""Graphics cards as Linux lists them, whoever drives them: names, drivers and the slot's link, by sysfs alone.

Cards are those of /sys/class/drm and, where no driver has taken them, those of /sys/bus/pci/devices. Everything is a
plain file at a path without links above it, so that a machine can be recorded file by file; the bridges above a card
are found by `secondary_bus_number`, the number of the bus below a bridge, in /sys/bus/pci/devices/*.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from offloadtune.probe.facts import label, parse_int
from offloadtune.probe.host import Door

AMD, INTEL, NVIDIA = 0x1002, 0x8086, 0x10DE
VENDORS: Mapping[int, str] = {AMD: "amd", INTEL: "intel", NVIDIA: "nvidia"}
VENDOR_WORDS: Mapping[int, str] = {AMD: "AMD", INTEL: "Intel", NVIDIA: "NVIDIA"}

_DRM_FOLDER, _PCI_FOLDER = "/sys/class/drm", "/sys/bus/pci/devices"
_CARD = re.compile(r"card[0-9]+")  # others are outputs ("card0-DP-1") and render nodes
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):[0-9a-f]{2}\.[0-7]")
_DISPLAY_CLASS, _ACCELERATOR_CLASS = "0x03", "0x12"
_PCI_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
_AMD_IDS = "/usr/share/libdrm/amdgpu.ids"

_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9])?) GT/s")
_GENERATIONS: Mapping[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_SPEEDS: Mapping[int, float] = {generation: speed for speed, generation in _GENERATIONS.items()}
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)  # a card that sleeps reads as 63, one without a link as 0
_N_BRIDGES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PciCard:
    """A card: where its files lie, what it is, and who drives it, None where nobody does or it is not told."""

    folder: str
    address: str | None
    vendor_id: int
    device_id: int | None
    driver: str | None
    is_driven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A PCIe link."""

    generation: int
    n_lanes: int

    @property
    def speed(self) -> float:
        """What to compare by: transfers over all lanes."""
        return _SPEEDS[self.generation] * self.n_lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a driver tells of a card: fields of GpuHardware, and for those that stay None the reason."""

    kind: str
    fields: Mapping[str, Any]
    reasons: Mapping[str, str]


def pci_cards(door: Door) -> tuple[PciCard, ...]:
    """The cards of the vendors in VENDORS, by address: the number of a /sys/class/drm/cardN changes with each start."""
    folders = [f"{_DRM_FOLDER}/{name}/device" for name in door.names(_DRM_FOLDER) if _CARD.fullmatch(name)]
    drm = [card for folder in folders if (card := _read_card(door, folder))]
    listed = [f"{_PCI_FOLDER}/{address}" for address in door.names(_PCI_FOLDER)]
    pci = [card for folder in listed if _is_display(door, folder) and (card := _read_card(door, folder))]
    by_address = {card.address or card.folder: card for card in (*pci, *drm)}
    return tuple(card for _, card in sorted(by_address.items()))


def card_name(door: Door, card: PciCard) -> str:
    """The board's own name, else that of a table this system has, else "AMD GPU [1002:744c]"."""
    told = label(door.text(f"{card.folder}/product_name"))
    if not told and card.device_id is not None:
        revision = hexadecimal(door.text(f"{card.folder}/revision"))
        amd = _in_amdgpu_ids(door.text(_AMD_IDS) or "", card.device_id, revision) if card.vendor_id == AMD else None
        tables = (door.text(path) or "" for path in _PCI_IDS)
        told = label(amd or next((n for t in tables if (n := _in_pci_ids(t, card.vendor_id, card.device_id))), None))
    device = "????" if card.device_id is None else f"{card.device_id:04x}"
    return told or f"{VENDOR_WORDS[card.vendor_id]} GPU [{card.vendor_id:04x}:{device}]"


def card_links(door: Door, card: PciCard) -> tuple[Link | None, Link | None]:
    """The link of the card's slot now, and at most; of several links in a row the narrowest.

    AMD and Intel put a switch of their own on a card. The GPU's own files then tell of the link inside, 16 lanes of
    the highest generation on AMD, one lane of the first on Intel, both whatever the slot gives: it is left out.
    """
    chain = [card.folder, *(f"{_PCI_FOLDER}/{address}" for address in _bridges_above(door, card.address))]
    links = list(zip_longest(chain[0::2], chain[1::2]))  # each from its lower end to its upper one
    if len(links) > 1 and _vendor(door, chain[1]) == _vendor(door, chain[2]) == card.vendor_id:
        del links[0]
    told = [(_ends(door, link, "current")[:1], _ends(door, link, "max")) for link in links]
    now = [current[0] for current, _ in told if current]
    most = [_at_most(current, ends) for current, ends in told if ends]
    return (
        min(now, key=lambda link: link.speed, default=None),
        min(most, key=lambda link: link.speed, default=None),
    )


def is_outside(door: Door, card: PciCard) -> bool:
    """Whether a card hangs at a socket such as Thunderbolt's, whose links read as generation 1, whatever they move."""
    return (door.text(f"{card.folder}/removable") or "").strip() == "removable"


def hexadecimal(text: str | None) -> int | None:
    """The number of sysfs's "0x1002", None for anything else."""
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def count_in(door: Door, card: PciCard, name: str) -> int | None:
    """The number that is all of a card's file, None for anything else, and for what no reader of records takes."""
    value = parse_int(door.text(f"{card.folder}/{name}"))
    return value if value is not None and 0 <= value < 1 << 63 else None


def _read_card(door: Door, folder: str) -> PciCard | None:
    vendor_id = _vendor(door, folder)
    if vendor_id is None or vendor_id not in VENDORS:
        return None
    text = door.text(f"{folder}/uevent") or ""
    told = {key: label(value) for key, _, value in (line.partition("=") for line in text.splitlines())}
    address = told.get("PCI_SLOT_NAME") or folder.rpartition("/")[2]
    return PciCard(
        folder=folder,
        address=address.lower() if _ADDRESS.fullmatch(address.lower()) else None,
        vendor_id=vendor_id,
        device_id=hexadecimal(door.text(f"{folder}/device")),
        driver=told.get("DRIVER") or None,
        is_driven=bool(told.get("DRIVER")) or folder.startswith(_DRM_FOLDER),
    )


def _is_display(door: Door, folder: str) -> bool:
    """AMD's largest cards are listed as accelerators; of others' accelerators none is a card that llama.cpp uses."""
    kind = door.text(f"{folder}/class") or ""
    return kind.startswith(_DISPLAY_CLASS) or (kind.startswith(_ACCELERATOR_CLASS) and _vendor(door, folder) == AMD)


def _vendor(door: Door, folder: str) -> int | None:
    return hexadecimal(door.text(f"{folder}/vendor"))


# --- names ---------------------------------------------------------------------------------------------------------


def _in_amdgpu_ids(text: str, device_id: int, revision: int | None) -> str | None:
    """The name in libdrm's table: lines "744C, C8, AMD Radeon RX 7900 XTX"."""
    rows = ([cell.strip() for cell in line.split(",", 2)] for line in text.splitlines() if line.count(",") >= 2)
    keyed = {(hexadecimal(row[0]), hexadecimal(row[1])): row[2] for row in rows}
    return None if revision is None else keyed.get((device_id, revision))


def _in_pci_ids(text: str, vendor_id: int, device_id: int) -> str | None:
    """The name in the table of lspci: a vendor's line, and below it, after a tab, its devices."""
    is_vendor = False
    for line in text.splitlines():
        if line[:1] not in {"", "#", "\t"}:
            is_vendor = line.startswith(f"{vendor_id:04x}  ")
        elif is_vendor and line.startswith(f"\t{device_id:04x}  "):
            return line[len("\t1234  ") :]
    return None


# --- links ---------------------------------------------------------------------------------------------------------


def _bridges_above(door: Door, address: str | None) -> tuple[str, ...]:
    """The bridges between a card and the processor, the nearest first."""
    below = {}
    for bridge in door.names(_PCI_FOLDER):
        number = parse_int(door.text(f"{_PCI_FOLDER}/{bridge}/secondary_bus_number"))
        if number is not None:
            below[bridge.partition(":")[0], number] = bridge
    above: list[str] = []
    while address and (place := _ADDRESS.fullmatch(address)) and len(above) < _N_BRIDGES:
        address = below.get((place[1], int(place[2], 16)))
        above.extend([address] if address else [])
    return tuple(above)


def _ends(door: Door, folders: Sequence[str | None], when: str) -> list[Link]:
    """What the ends of a link tell of it, the lower one first: the upper may be the virtual slot of a guest."""
    return [link for folder in folders if folder and (link := _link(door, folder, when))]


def _link(door: Door, folder: str, when: str) -> Link | None:
    speed = _SPEED.match(door.text(f"{folder}/{when}_link_speed") or "")
    generation = _GENERATIONS.get(float(speed[1])) if speed else None
    n_lanes = parse_int(door.text(f"{folder}/{when}_link_width"))
    if generation is None or n_lanes is None or n_lanes not in _WIDTHS:
        return None
    return Link(generation=generation, n_lanes=n_lanes)


def _at_most(now: Sequence[Link], ends: Sequence[Link]) -> Link:
    """What all ends can do, and not less than is done: a virtual slot promises too little."""
    return Link(
        generation=max([min(end.generation for end in ends), *(link.generation for link in now)]),
        n_lanes=max([min(end.n_lanes for end in ends), *(link.n_lanes for link in now)]),
    )

"""Every GPU of the machine in depth, whoever made it: `read_gpu_hardware`.

NVIDIA by its driver (gpu.py), the others by Linux's sysfs (drm.py, amd.py), by macOS (apple.py) or by Windows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from offloadtune.hardware import GpuHardware
from offloadtune.probe import drm
from offloadtune.probe.amd import read_amd
from offloadtune.probe.apple import read_apple
from offloadtune.probe.drm import AMD, INTEL, NVIDIA, PciCard, Told
from offloadtune.probe.facts import label
from offloadtune.probe.gpu import read_nvidia_hardware
from offloadtune.probe.host import Door
from offloadtune.probe.windows_gpus import NOT_ASKED, read_video_controllers
from offloadtune.records import Note

_DRIVERS: Mapping[int, Sequence[str]] = {AMD: ("amdgpu",), INTEL: ("i915", "xe"), NVIDIA: ("nvidia",)}
"""Drivers through which llama.cpp can use a card."""

_INTEGRATED_INTEL = re.compile(r"[0-9a-f]+:00:02\.0")  # where all of Intel's processors have theirs
_LOCAL_MEMORY_BAR = 2  # of the regions that an Intel card's file `resource` lists
_LINK_FIELDS = ("pcie_generation", "n_pcie_lanes", "pcie_generation_most", "n_pcie_lanes_most")


def read_gpu_hardware(door: Door, *, may_be_slow: bool = True) -> tuple[tuple[GpuHardware, ...], tuple[Note, ...]]:
    """The cards, each once, and why fields are None. Windows is asked for its list only where it `may_be_slow`.

    `index` is the NVIDIA driver's for its cards, and counts on from there for the others; it is the one in the
    subjects of the notes ("gpus[0].total_bytes").
    """
    nvidia, notes = read_nvidia_hardware(door)
    n_first = max((gpu.index + 1 for gpu in nvidia or ()), default=0)
    system = door.system().name
    if system == "macOS":
        others, more = read_apple(door, n_first)
    elif system == "Windows" and not may_be_slow:
        others, more = (), (Note(subject="gpus.windows", reason=NOT_ASKED),)
    elif system == "Windows":
        others, more = read_video_controllers(door, n_first, with_nvidia=nvidia is None)
    else:
        others, more = _read_pci_cards(door, n_first, nvidia)
    return (*(nvidia or ()), *others), (*notes, *more)


def _read_pci_cards(
    door: Door, n_first: int, nvidia: Sequence[GpuHardware] | None
) -> tuple[tuple[GpuHardware, ...], tuple[Note, ...]]:
    known = {_place(gpu.pci_bus_id) for gpu in nvidia or ()} - {None}
    left = [card for card in drm.pci_cards(door) if _place(card.address) not in known]
    if nvidia is not None:  # its driver has told of those it drives
        left = [card for card in left if card.vendor_id != NVIDIA or _is_left_out(card)]
    read = [_read_pci_card(door, n_first + i, card) for i, card in enumerate(left)]
    return tuple(gpu for gpu, _ in read), tuple(note for _, notes in read for note in notes)


def _place(address: str | None) -> tuple[int, str] | None:
    """A PCI address to compare by: NVML writes the domain with eight digits, Linux with four."""
    domain, _, rest = (address or "").lower().partition(":")
    number = drm.hexadecimal(domain)
    return None if number is None else (number, rest)


def _is_left_out(card: PciCard) -> bool:
    return not card.is_driven or (card.driver is not None and card.driver not in _DRIVERS[NVIDIA])


def _read_pci_card(door: Door, index: int, card: PciCard) -> tuple[GpuHardware, tuple[Note, ...]]:
    told = _told(door, card)
    fields: dict[str, Any] = {"driver": _driver_words(door, card), **told.fields}
    reasons = dict(told.reasons)
    problem = _driver_problem(card)
    if problem:
        reasons["driver"] = problem
    if told.kind == "discrete":
        links, reason = _read_links(door, card)
        fields |= links
        reasons |= {field: reason for field, value in links.items() if value is None}
    gpu = GpuHardware(
        vendor=drm.VENDORS[card.vendor_id],
        index=index,
        name=drm.card_name(door, card),
        kind=told.kind,
        pci_bus_id=card.address,
        **fields,
    )
    return gpu, tuple(Note(subject=f"gpus[{index}].{field}", reason=reason) for field, reason in reasons.items())


def _read_links(door: Door, card: PciCard) -> tuple[dict[str, int | None], str]:
    """Fields of the link, and the reason for those that are None."""
    if drm.is_outside(door, card):
        return dict.fromkeys(
            _LINK_FIELDS
        ), "The card is outside of this machine, and such links do not tell their speed."
    now, most = drm.card_links(door, card)
    told = [end for link in (now, most) for end in ((link.generation, link.n_lanes) if link else (None, None))]
    return dict(zip(_LINK_FIELDS, told, strict=True)), "The kernel does not tell the link of this card's slot."


def _told(door: Door, card: PciCard) -> Told:
    is_usable = card.driver is None or card.driver in _DRIVERS[card.vendor_id]
    if card.vendor_id == INTEL:
        return _read_intel(door, card)
    if card.vendor_id == AMD and card.is_driven and is_usable:
        return read_amd(door, card)
    return Told(kind="discrete", fields={}, reasons={"total_bytes": "Only the card's own driver tells its memory."})


def _driver_words(door: Door, card: PciCard) -> str | None:
    """The driver's name, and its version where it has one of its own and not the kernel's."""
    version = label(door.text(f"/sys/module/{card.driver}/version")) if card.driver else ""
    return f"{card.driver} {version}".strip() if card.driver else None


def _driver_problem(card: PciCard) -> str | None:
    """Why llama.cpp cannot use a card, or cannot be known to."""
    if not card.is_driven:
        return "No driver has taken this card."
    if card.driver is None:
        return "The kernel does not name the driver of this card."
    if card.vendor_id == NVIDIA:
        if card.driver in _DRIVERS[NVIDIA]:
            return "The NVIDIA driver drives this card, but its library NVML does not tell of it here."
        return f"The NVIDIA driver is not loaded; {card.driver} drives it."
    if card.driver not in _DRIVERS[card.vendor_id]:
        return f"The driver {card.driver} has this card, and llama.cpp cannot use it through that."
    return None


def _read_intel(door: Door, card: PciCard) -> Told:
    """A card's memory is in no file of Linux's own drivers; the window to it is a region of the card."""
    if card.address is None or _INTEGRATED_INTEL.fullmatch(card.address):
        reason = "The kernel does not tell how much memory Intel's integrated GPU may take."
        return Told(kind="integrated", fields={}, reasons={"shared_bytes": reason})
    reason = "The kernel does not tell the memory of an Intel card; the engine's list of devices does."
    reasons = dict.fromkeys(("total_bytes", "free_bytes"), reason)
    bar1_bytes = _region_bytes(door, card, _LOCAL_MEMORY_BAR)
    if bar1_bytes is None:
        reasons["bar1_bytes"] = "The kernel does not tell the regions of this card."
    return Told(kind="discrete", fields={"bar1_bytes": bar1_bytes}, reasons=reasons)


def _region_bytes(door: Door, card: PciCard, n: int) -> int | None:
    """Size of a region of the card's addresses: lines "0x6000000000 0x63ffffffff 0x14220c", first, last, flags."""
    lines = (door.text(f"{card.folder}/resource") or "").splitlines()
    ends = [drm.hexadecimal(word) for word in lines[n].split()[:2]] if n < len(lines) else []
    first, last = ends if len(ends) == 2 else (None, None)
    return last - first + 1 if first and last and last > first else None

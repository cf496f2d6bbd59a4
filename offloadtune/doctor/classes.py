"""Classes of media and the bandwidths usually seen of them, in bytes per second: what a measured figure stands beside.

Of memory the ranges are what programs reach, of links what a copy from pinned memory reaches. They are no promise of a
single machine: a server with twelve channels of DDR5 is above the range, an old module below.
"""

from __future__ import annotations

import re

from offloadtune.hardware import Disk

Range = tuple[float, float]

_GB = 1e9

MOST_OF_LINK = 1.1
"""Of the high end of a link's class; no copy is faster."""

GDDR: Range = (80 * _GB, 1800 * _GB)
APPLE: Range = (55 * _GB, 820 * _GB)
REMOTE: Range = (20 * _GB, 3000 * _GB)

_HBM_CARDS: tuple[tuple[re.Pattern[str], str, Range], ...] = (
    (
        re.compile(r"\b(H20|H200|B[123]00|G[BH][23]00|MI3\d\d[AX]?)\b", re.IGNORECASE),
        "HBM3 to HBM3e",
        (3000 * _GB, 8000 * _GB),
    ),
    (
        re.compile(r"\b([AH][18]00X?|MI[12]\d\dX?|GPU Max 1\d\d0)\b", re.IGNORECASE),
        "HBM2 to HBM3",
        (900 * _GB, 3500 * _GB),
    ),
    (
        re.compile(
            r"\b(G?P100|G?V100S?|TITAN V|MI25|MI[56]0|A30X?|Radeon VII|Radeon Pro VII|WX [89][12]00"
            r"|Vega (?:56|64|Frontier|II)|RX Vega(?! \d)|Vega[12]0)\b",
            re.IGNORECASE,
        ),
        "HBM2",
        (300 * _GB, 900 * _GB),
    ),
)
"""Vega 3 to Vega 11 are left out: these are parts of processors, and share main memory."""

MAIN_MEMORY: dict[str, Range] = {
    "DDR5": (50 * _GB, 200 * _GB),
    "DDR4": (20 * _GB, 50 * _GB),
    "DDR3": (10 * _GB, 30 * _GB),
    "LPDDR5X": (60 * _GB, 270 * _GB),
    "LPDDR5": (40 * _GB, 200 * _GB),
    "LPDDR4X": (15 * _GB, 70 * _GB),
    "LPDDR4": (12 * _GB, 60 * _GB),
}
UNKNOWN_MEMORY: Range = (10 * _GB, 270 * _GB)

_PCIE_X16: dict[int, Range] = {
    1: (2.5 * _GB, 3.2 * _GB),
    2: (5 * _GB, 6.4 * _GB),
    3: (10 * _GB, 13 * _GB),
    4: (25 * _GB, 26 * _GB),
    5: (52 * _GB, 56 * _GB),
    6: (104 * _GB, 112 * _GB),
}
UNKNOWN_LINK: Range = (2.5 * _GB, 56 * _GB)
NETWORK_LINK: Range = (0.1 * _GB, 12 * _GB)

DISKS: dict[str, tuple[str, Range]] = {
    "nvme": ("NVMe SSD", (1 * _GB, 7 * _GB)),
    "ssd": ("SATA SSD", (0.4 * _GB, 0.55 * _GB)),
    "hdd": ("hard disk", (0.1 * _GB, 0.25 * _GB)),
    "network": ("network drive", (0.05 * _GB, 1.2 * _GB)),
    "wsl_mount": ("Windows drive seen from WSL", (0.1 * _GB, 1 * _GB)),
    "memory": ("main memory as a drive", (2 * _GB, 20 * _GB)),
}
FASTEST_HARD_DISK_BYTES_PER_S = 0.3 * _GB
UNKNOWN_DISK = ("drive of unknown kind", (0.1 * _GB, 7 * _GB))


def card_class(name: str) -> tuple[str, Range]:
    """The class of a discrete card's own memory, by the card's name."""
    found = next(((title, range_) for pattern, title, range_ in _HBM_CARDS if pattern.search(name)), None)
    return found or ("GDDR5 to GDDR7", GDDR)


def memory_class(kind: str | None) -> tuple[str, Range]:
    """The class of main memory, by its type."""
    if kind in MAIN_MEMORY:
        return kind, MAIN_MEMORY[kind]
    return (kind or "memory of unknown type"), UNKNOWN_MEMORY


def pcie_class(generation: int | None, n_lanes: int | None) -> tuple[str, Range]:
    """The class of a link: of x8 half of what x16 has, and so on."""
    if generation not in _PCIE_X16 or not n_lanes:
        return "PCIe link of unknown width", UNKNOWN_LINK
    low, high = _PCIE_X16[generation]
    share = min(n_lanes, 16) / 16
    return f"PCIe {generation} x{n_lanes}", (low * share, high * share)


def disk_kind(disk: Disk) -> str | None:
    """As the system has it; but Linux takes many USB drives for rotating ones: what is too fast for a disk is none."""
    is_faster = (disk.cold_bytes_per_s or 0) > FASTEST_HARD_DISK_BYTES_PER_S
    return None if disk.kind == "hdd" and is_faster else disk.kind


def disk_class(kind: str | None) -> tuple[str, Range]:
    return DISKS.get(kind or "", UNKNOWN_DISK)

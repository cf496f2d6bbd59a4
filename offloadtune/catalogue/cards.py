"""Graphics cards and other accelerators: the rows of cards.csv, and how they are found by name."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from offloadtune.catalogue.names import folded, unknown
from offloadtune.errors import UnknownNameError
from offloadtune.units import format_count

_GIB = 1024**3
_PART = re.compile(r"[a-z]+|[0-9]+")
_IN_BRACKETS = re.compile(r"\(.*?\)")
_APPLE_CORES = re.compile(r"(?:\d+p\+)?(?:\d+e\+)?(\d+)gpu\b")
_MAKERS = {"nvidia", "geforce", "amd", "radeon", "intel", "apple"}
_SAYING_NOTHING = {*_MAKERS, "gpu", "graphics", "generation", "edition", "workstation", "with", "design", "tm", "r"}
_SAME_WORDS = {"laptop": "mobile"}
_SERIES = {"rtx", "gtx", "rx", "tesla", "arc"}
_SIZE_FRACS = (0.85, 1.02)
"""What drivers say of a card's memory, of the nominal size: 22.5 GiB of an A10's 24 and 15 of 16 GB are usual."""

PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9}
"""Peak of one lane in one direction, by generation, after the link's encoding."""

FAMILIES = {
    "pascal": "NVIDIA GTX 10, Quadro P, Tesla P",
    "volta": "NVIDIA V100, TITAN V",
    "turing": "NVIDIA RTX 20, Quadro RTX, T4",
    "turing_no_tensor": "NVIDIA GTX 16, T400 to T1000",
    "ampere": "NVIDIA RTX 30, RTX A, A10, A40",
    "ampere_hbm": "NVIDIA A100, A30",
    "ada": "NVIDIA RTX 40, RTX Ada, L4, L40",
    "hopper": "NVIDIA H100, H200",
    "blackwell": "NVIDIA RTX 50, RTX PRO, GB10",
    "gcn": "AMD RX 400 and 500",
    "vega": "AMD Vega, MI25 to MI60",
    "cdna": "AMD MI100 and later",
    "rdna1": "AMD RX 5000",
    "rdna2": "AMD RX 6000",
    "rdna3": "AMD RX 7000",
    "rdna4": "AMD RX 9000",
    "amd_igpu": "AMD graphics in a processor",
    "intel_arc": "Intel Arc A and B cards",
    "intel_igpu": "Intel graphics in a processor",
    "apple": "Apple M",
}
"""Cards of a family have the same units and the same rates of one to the other: what they reach is alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the maker says of a card; None where it says nothing or it does not apply.

    `family` is one of FAMILIES. `vram_bytes` is the nominal size: what programs can use is some percent less; None for
    what shares the system's memory, whose bandwidth is then the system's unless it is soldered. Rates are peaks:
    reading memory, products in half and in single precision, half-precision products added up in single precision,
    and 8-bit products.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    family: str
    vram_bytes: int | None
    mem_bandwidth_bytes_per_s: float | None
    mem_bus_bits: int | None
    mem_mt_per_s: float | None
    fp16_flop_per_s: float | None
    fp32_flop_per_s: float | None
    fp16_flop_f32acc_per_s: float | None
    int8_op_per_s: float | None
    pcie_generation: int | None
    n_pcie_lanes: int | None
    l2_bytes: int | None
    source: str
    notes: str

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """Peak of its link in one direction; None without a link of its own."""
        if self.pcie_generation is None or self.n_pcie_lanes is None:
            return None
        return PCIE_LANE_BYTES_PER_S[self.pcie_generation] * self.n_pcie_lanes


def find_card(name: str, *, vram_bytes: int | None = None) -> Card:
    """The card called `name`, as people or drivers write it ("NVIDIA GeForce RTX 3090", "rtx3090", "3090").

    Series and memory size may be left out where only one card is left to mean; `vram_bytes`, what a driver says of its
    memory, chooses among cards that differ in their size. Raises UnknownNameError with the nearest names, or with those
    to choose from.
    """
    asked = _parts(name)
    extras: dict[Card, frozenset[str]] = {}
    for card, spellings in _spelt():
        unsaid = [parts - asked for parts in spellings if asked and asked <= parts]
        if unsaid:
            extras[card] = min(unsaid, key=len)
    sized = [card for card, extra in extras.items() if _says_its_size(extra) and _has_about(card, vram_bytes)]
    if len(sized) == 1:
        return sized[0]
    for kind in (_says_nothing_more, _says_its_size, lambda _: "gb" not in asked):  # a size names the card it is of
        found = [card for card, extra in extras.items() if kind(extra)]
        if len(found) == 1:
            return found[0]
    if extras:
        hint = f"Choose one of these: {', '.join(card.name for card in extras)}."
        raise UnknownNameError(f"{name!r} may mean {format_count(len(extras), 'card')} of the catalogue.", hint=hint)
    raise unknown(name, {folded(card.name): card.name for card in cards()}, "card")


def card_names() -> tuple[str, ...]:
    """Every card's name, in the order of the table."""
    return tuple(card.name for card in cards())


@functools.cache
def cards() -> tuple[Card, ...]:
    """Every row of cards.csv."""
    text = files("offloadtune.catalogue").joinpath("cards.csv").read_text(encoding="utf-8")
    return tuple(_card(row) for row in csv.DictReader(text.splitlines()))


def _card(row: dict[str, str]) -> Card:
    return Card(
        name=row["name"],
        aliases=tuple(part.strip() for part in row["aliases"].split("/") if part.strip()),
        vendor=row["vendor"],
        family=row["family"],
        vram_bytes=_whole(row["vram_gb"], _GIB),
        mem_bandwidth_bytes_per_s=_scaled(row["mem_bw_gbs"], 1e9),
        mem_bus_bits=_whole(row["mem_bus_bits"]),
        mem_mt_per_s=_scaled(row["mem_mt_per_s"]),
        fp16_flop_per_s=_scaled(row["fp16_tflops"], 1e12),
        fp32_flop_per_s=_scaled(row["fp32_tflops"], 1e12),
        fp16_flop_f32acc_per_s=_scaled(row["fp16_tflops_f32acc"], 1e12),
        int8_op_per_s=_scaled(row["int8_tops_dense"], 1e12),
        pcie_generation=_whole(row["pcie_gen"]) if row["pcie_gen"][:1].isdigit() else None,
        n_pcie_lanes=_whole(row["pcie_lanes"]),
        l2_bytes=_whole(row["l2_mb"], 1024**2),
        source=row["source"],
        notes=row["notes"],
    )


def _scaled(text: str, unit: float = 1.0) -> float | None:
    """A figure of the table in base units, None where the cell is blank."""
    return float(text) * unit if text else None


def _whole(text: str, unit: int = 1) -> int | None:
    return round(float(text) * unit) if text else None


@functools.cache
def _spelt() -> tuple[tuple[Card, tuple[frozenset[str], ...]], ...]:
    return tuple((card, tuple(_spellings(card))) for card in cards())


def _spellings(card: Card) -> Iterator[frozenset[str]]:
    """The words of each of the card's names, without and with its memory size."""
    size = _parts(f"{card.vram_bytes // _GIB} GB" if card.vram_bytes else "")
    for name in (card.name, *card.aliases):
        yield _parts(name)
        yield _parts(name) | size


def _parts(name: str) -> frozenset[str]:
    """Words and numbers of `name` without makers' words; "RTX4060Ti 16GB" and "RTX 4060 Ti 16 GB" are alike.

    So are "Apple M1 Max 8P+2E+24GPU" and "Apple M1 Max 24-core".
    """
    plain = _APPLE_CORES.sub(r"\1 core", _IN_BRACKETS.sub(" ", name.lower()))
    parts = _PART.findall(plain)
    return frozenset(_SAME_WORDS.get(part, part) for part in parts) - _SAYING_NOTHING


def _says_nothing_more(extra: frozenset[str]) -> bool:
    return extra <= _SERIES


def _says_its_size(extra: frozenset[str]) -> bool:
    return all(part in _SERIES or part == "gb" or part.isdigit() for part in extra)


def _has_about(card: Card, vram_bytes: int | None) -> bool:
    """Whether a driver that says `vram_bytes` may mean this card's memory."""
    if not vram_bytes or not card.vram_bytes:
        return False
    low, high = _SIZE_FRACS
    return low <= vram_bytes / card.vram_bytes <= high

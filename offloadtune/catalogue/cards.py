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
_SAYING_NOTHING = {"nvidia", "geforce", "amd", "radeon", "intel", "apple", "gpu", "graphics", "edition", "tm", "r"}
_SAME_WORDS = {"laptop": "mobile"}
_SERIES = {"rtx", "gtx", "rx", "tesla", "arc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the maker says of a card; None where it does not apply, as memory of its own for integrated ones.

    `vram_bytes` is the nominal size: what programs can use is some percent less. Rates are peaks: reading memory,
    half-precision products added up in single precision, and 8-bit products.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    vram_bytes: int | None
    mem_bandwidth_bytes_per_s: float
    fp16_flop_per_s: float
    fp16_flop_f32acc_per_s: float
    int8_op_per_s: float
    pcie_generation: int | None
    n_pcie_lanes: int | None
    l2_bytes: int | None
    source: str
    notes: str


def find_card(name: str) -> Card:
    """The card called `name`, as people or drivers write it ("NVIDIA GeForce RTX 3090", "rtx3090", "3090").

    Series and memory size may be left out where only one card is left to mean. Raises UnknownNameError with the
    nearest names, or with those to choose from.
    """
    asked = _parts(name)
    extras: dict[Card, frozenset[str]] = {}
    for card, spellings in _spelt():
        unsaid = [parts - asked for parts in spellings if asked and asked <= parts]
        if unsaid:
            extras[card] = min(unsaid, key=len)
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
        vram_bytes=round(float(row["vram_gb"]) * _GIB) if row["vram_gb"] else None,
        mem_bandwidth_bytes_per_s=float(row["mem_bw_gbs"]) * 1e9,
        fp16_flop_per_s=float(row["fp16_tflops"]) * 1e12,
        fp16_flop_f32acc_per_s=float(row["fp16_tflops_f32acc"]) * 1e12,
        int8_op_per_s=float(row["int8_tops_dense"]) * 1e12,
        pcie_generation=int(float(row["pcie_gen"])) if row["pcie_gen"][:1].isdigit() else None,
        n_pcie_lanes=int(row["pcie_lanes"]) if row["pcie_lanes"] else None,
        l2_bytes=round(float(row["l2_mb"]) * 1024**2) if row["l2_mb"] else None,
        source=row["source"],
        notes=row["notes"],
    )


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
    """Words and numbers of `name` without makers' words; "RTX4060Ti 16GB" and "RTX 4060 Ti 16 GB" are alike."""
    parts = _PART.findall(_IN_BRACKETS.sub(" ", name.lower()))
    return frozenset(_SAME_WORDS.get(part, part) for part in parts) - _SAYING_NOTHING


def _says_nothing_more(extra: frozenset[str]) -> bool:
    return extra <= _SERIES


def _says_its_size(extra: frozenset[str]) -> bool:
    return all(part in _SERIES or part == "gb" or part.isdigit() for part in extra)

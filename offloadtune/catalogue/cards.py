"""Graphics cards and other accelerators: the rows of cards.csv, and how they are found by name."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib.resources import files

from offloadtune.catalogue.names import folded, unknown

_GIB = 1024**3
_PREFIXES = ("nvidia", "geforce", "amd", "radeon", "intel", "apple")
_SUFFIXES = {"laptop": "mobile", "gpu": "", "graphics": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the maker says of a card; None where it does not apply, as memory of its own for integrated ones.

    `vram_bytes` is the nominal size: what programs can use is some percent less. Rates are peaks: reading memory,
    half-precision products added up in single precision, and 8-bit products.
    """

    name: str
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
    """The card called `name`, maker and series words, case and punctuation aside ("NVIDIA GeForce RTX 3090").

    A name without its memory size means the only card so called, or the one whose row has no size either. Raises
    UnknownNameError with the nearest names, or with the sizes to choose from.
    """
    asked = _plain(name)
    rows = {_plain(card.name): card for card in cards()}
    if asked in rows:
        return rows[asked]
    sized = [
        card for plain, card in rows.items() if asked and plain.startswith(asked) and _is_size(plain[len(asked) :])
    ]
    if len(sized) == 1:
        return sized[0]
    raise unknown(name, {plain: card.name for plain, card in rows.items()}, "card")


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


def _plain(name: str) -> str:
    fold = folded(name.partition("(")[0])
    for word in (*_PREFIXES, *_SUFFIXES):
        fold = fold.replace(word, _SUFFIXES.get(word, ""))
    return fold


def _is_size(text: str) -> bool:
    return text.removesuffix("gb").isdigit()

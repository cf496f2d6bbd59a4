"""The figures of every card: those that follow from one another do, and what nobody says is None."""

from __future__ import annotations

import csv
import dataclasses
import re
from importlib.resources import files

import pytest

from offloadtune.catalogue import FAMILIES, Card
from offloadtune.catalogue.cards import cards

CARDS = {card.name: card for card in cards()}
RATES = ("fp16_flop_per_s", "fp32_flop_per_s", "fp16_flop_f32acc_per_s", "int8_op_per_s")

FP16_OF_FP32 = {
    "pascal": (1 / 64, 2),  # GP100 alone has a half-precision rate worth its name
    "volta": (8,),
    "turing": (8,),
    "turing_no_tensor": (2,),
    "ampere": (2, 4),  # A10G has half the matrix rate of its siblings
    "ampere_hbm": (16,),
    "ada": (2, 4),  # L40 has half that of L40S
    "hopper": (13.9, 14.8),
    "blackwell": (4,),
    "gcn": (1,),
    "vega": (2,),
    "cdna": (8,),
    "rdna1": (2,),
    "rdna2": (2,),
    "rdna3": (2,),
    "rdna4": (4,),
    "amd_igpu": (2,),
    "intel_arc": (7, 8, 9),
    "intel_igpu": (2,),
    "apple": (1,),
}
"""Peak rate in half precision over that in single precision, matrix units included."""


def is_near(value: float, aims: tuple[float, ...], rel: float) -> bool:
    return any(value == pytest.approx(aim, rel=rel) for aim in aims)


@pytest.mark.parametrize("name", CARDS)
def test_bandwidth_is_that_of_the_bus(name: str) -> None:
    card = CARDS[name]
    assert (card.mem_bus_bits is None) == (card.mem_mt_per_s is None)
    if card.mem_bandwidth_bytes_per_s is None:
        assert card.family in {"amd_igpu", "intel_igpu"}, "only what shares the system's memory may say none"
        return
    assert 2e10 < card.mem_bandwidth_bytes_per_s < 1e13
    if card.mem_bus_bits and card.mem_mt_per_s:
        of_the_bus = card.mem_bus_bits * card.mem_mt_per_s * 1e6 / 8
        assert card.mem_bandwidth_bytes_per_s == pytest.approx(of_the_bus, rel=0.01)


def test_most_cards_say_their_bus() -> None:
    assert sum(card.mem_bus_bits is not None for card in CARDS.values()) > 200


@pytest.mark.parametrize("name", CARDS)
def test_rates_are_those_of_the_family(name: str) -> None:
    card = CARDS[name]
    assert card.family in FAMILIES
    rates = [getattr(card, rate) for rate in RATES]
    if None in rates:
        assert rates == [None] * 4, "all or none are known"
        return
    fp16, fp32, fp16_f32acc, int8 = rates
    assert 2e11 < fp32 < 2e14
    assert is_near(fp16 / fp32, FP16_OF_FP32[card.family], 0.06)
    is_geforce = re.match(r"RTX [2345]0[5-9]0\b", card.name) is not None  # which alone adds up in fp32 at half rate
    assert fp16_f32acc / fp16 == pytest.approx(0.5 if is_geforce else 1, rel=0.02)
    assert 0.7 * fp32 < int8 < 33 * fp32


@pytest.mark.parametrize("name", CARDS)
def test_the_link_is_one_that_exists(name: str) -> None:
    card = CARDS[name]
    assert (card.pcie_generation is None) == (card.n_pcie_lanes is None) == (card.pcie_bytes_per_s is None)
    if card.pcie_bytes_per_s is None:
        assert card.vendor == "Apple" or card.family.endswith("igpu") or "GB10" in card.name
        return
    assert card.pcie_generation in {3, 4, 5}
    assert card.n_pcie_lanes in {4, 8, 16}
    assert 3e9 < card.pcie_bytes_per_s < 64e9
    assert card.mem_bandwidth_bytes_per_s is not None
    assert card.mem_bandwidth_bytes_per_s > 2 * card.pcie_bytes_per_s


@pytest.mark.parametrize(
    ("generation", "n_lanes", "gb_per_s"), [(2, 16, 8.0), (3, 16, 15.76), (4, 8, 15.752), (5, 16, 63.008)]
)
def test_a_link_moves_what_its_lanes_do(generation: int, n_lanes: int, gb_per_s: float) -> None:
    card = dataclasses.replace(CARDS["RTX 3090"], pcie_generation=generation, n_pcie_lanes=n_lanes)
    assert card.pcie_bytes_per_s == pytest.approx(gb_per_s * 1e9)


@pytest.mark.parametrize("name", CARDS)
def test_every_figure_has_a_source(name: str) -> None:
    assert re.search(r"https://\S+\.\S+", CARDS[name].source)


def test_every_family_has_cards_and_every_name_is_one_cards() -> None:
    assert {card.family for card in CARDS.values()} == set(FAMILIES)
    assert len(CARDS) == len(cards())
    said = [name.lower() for card in cards() for name in {card.name, *card.aliases}]
    assert len(said) == len(set(said))


def test_a_blank_cell_is_unknown_and_never_zero() -> None:
    text = files("offloadtune.catalogue").joinpath("cards.csv").read_text(encoding="utf-8")
    blank = [row["name"] for row in csv.DictReader(text.splitlines()) if not row["fp16_tflops"]]
    assert blank
    assert all(CARDS[name].fp16_flop_per_s is None for name in blank)
    figures = [
        figure
        for card in CARDS.values()
        for figure in (getattr(card, field.name) for field in dataclasses.fields(Card))
        if isinstance(figure, int | float)
    ]
    assert min(figures) > 0

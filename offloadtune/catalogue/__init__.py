"""Published models and cards by name, for planning without a file or a card at hand.

Hands of floor 1: reads its own tables (shapes.csv, cards.csv) and decides nothing. From the names up:

    names       what people write -> what is compared
    shapes      name -> `Shape`, a published model without its weights
    cards       name -> `Card`
    ram         text -> `RamText`, main memory and the bytes a second that it moves at most
    quants      name -> `Quant`, a mixture of tensor types
    tensors     shape -> names and shapes of its tensors
    quantising  tensors and a mixture -> the type of each
    describing  shape and mixture -> `Described`, what the file's header would say
"""

from offloadtune.catalogue.cards import FAMILIES, PCIE_LANE_BYTES_PER_S, Card, card_names, find_card
from offloadtune.catalogue.describing import Described, described, key_values_of
from offloadtune.catalogue.quants import QUANTS, Quant, find_quant
from offloadtune.catalogue.ram import RamText, find_ram
from offloadtune.catalogue.shapes import Shape, find_shape, shape_names

__all__ = [
    "FAMILIES",
    "PCIE_LANE_BYTES_PER_S",
    "QUANTS",
    "Card",
    "Described",
    "Quant",
    "RamText",
    "Shape",
    "card_names",
    "described",
    "find_card",
    "find_quant",
    "find_ram",
    "find_shape",
    "key_values_of",
    "shape_names",
]

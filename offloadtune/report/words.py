"""Text of strangers, made safe to show, and what of a long list is shown."""

from __future__ import annotations

from offloadtune.records import GgufFacts, TensorFacts

_N_TENSORS = 5


def largest_tensors(facts: GgufFacts) -> list[TensorFacts]:
    """The few largest, the first of the file first among equals."""
    return sorted(facts.tensors, key=lambda tensor: -tensor.n_bytes)[:_N_TENSORS]


def printable(text: str | None) -> str:
    """Text of a stranger's file without what a terminal would obey."""
    return "".join(character for character in text or "" if character.isprintable())

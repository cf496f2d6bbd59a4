"""Marking: what is said before a stand-in is measured, so that nobody takes its figures for those of a real file."""

from __future__ import annotations

from offloadtune.records import GgufFacts
from offloadtune.report.standins import STANDIN_LIMITS, standin_words
from offloadtune.report.words import printable


def standin_sentence(facts: GgufFacts) -> str:
    """What the file is and what its figures do not tell; "" for a real one."""
    words = standin_words(facts.stands_for, facts.n_layer)
    return f"{printable(facts.path.name)} is a {words}: it {STANDIN_LIMITS}." if words else ""

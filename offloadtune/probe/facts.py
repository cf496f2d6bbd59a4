"""A fact about the machine: its value, or the `Note` that says why it is not known."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

from offloadtune.records import Note

T = TypeVar("T")
Fact: TypeAlias = T | Note


def known(fact: Fact[T]) -> T | None:
    """The value, None when there is only a Note."""
    return None if isinstance(fact, Note) else fact


def notes_in(*facts: object) -> tuple[Note, ...]:
    """The Notes among `facts`, in order."""
    return tuple(fact for fact in facts if isinstance(fact, Note))


def parse_int(text: str | None) -> int | None:
    """The integer that is all of `text`; None for anything else ("max", "", a missing file)."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None

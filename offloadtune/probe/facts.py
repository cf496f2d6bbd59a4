"""A fact about the machine: its value, or the `Note` that says why it is not known."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

from offloadtune.records import Note

T = TypeVar("T")
Fact: TypeAlias = T | Note

_MOST_CPUS = 2**16
_MOST_OF_A_TEXT = 60


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


def parse_positive(value: object, *, most: int) -> int | None:
    """The integer from 1 to `most` that `value` is or spells; None for anything else."""
    number = parse_int(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return number if 0 < number <= most else None


def parse_cpu_list(text: str | None) -> tuple[int, ...]:
    """The CPUs of a list as the kernel writes it ("0-3,8"); () for anything else, and for more than Linux can have."""
    cpus: set[int] = set()
    for part in (text or "").strip().split(","):
        first, dash, last = part.partition("-")
        low, high = parse_int(first), parse_int(last if dash else first)
        if low is None or high is None or not 0 <= low <= high < _MOST_CPUS:
            return ()
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def label(text: str | None) -> str:
    """A name that firmware or a driver wrote, without what a terminal would obey, cut to what fits a line; or ""."""
    return "".join(character for character in text or "" if character.isprintable()).strip()[:_MOST_OF_A_TEXT]


def printable(text: str | None) -> str | None:
    """The same, None when nothing is left."""
    return label(text) or None

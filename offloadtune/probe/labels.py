"""Names that a driver, a file or a command gives, made safe to show."""

from __future__ import annotations

_N_CHARACTERS = 60


def label(text: str | None) -> str:
    """`text` without what a terminal would obey, cut to what fits a line; "" where nothing is left."""
    return "".join(character for character in text or "" if character.isprintable()).strip()[:_N_CHARACTERS]

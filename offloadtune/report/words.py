"""Text of strangers, made safe to show."""


def printable(text: str | None) -> str:
    """Text of a stranger's file without what a terminal would obey."""
    return "".join(character for character in text or "" if character.isprintable())

"""What the shell offers for an option's value."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def one_of(values: Iterable[str]) -> Callable[[str], list[str]]:
    """A completion with those of `values` that begin with what was typed."""
    names = [str(value) for value in values]
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]

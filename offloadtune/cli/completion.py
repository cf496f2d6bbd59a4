"""What the shell offers for an option's value."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def name_of(list_names: str) -> Callable[[str], list[str]]:
    """A completion with names of the catalogue, which `pipeline` has under `list_names`; loaded when first asked.

    Shells split at spaces, so names have hyphens there, which are read the same; names with brackets are left out.
    """

    def names(incomplete: str) -> list[str]:
        from offloadtune import pipeline  # noqa: PLC0415 - kept out of --help

        known: tuple[str, ...] = getattr(pipeline, list_names)()
        spelt = [name.replace(" ", "-") for name in known if "(" not in name]
        # what was typed stays as it was typed, or shells take the name for another
        return [incomplete + name[len(incomplete) :] for name in spelt if name.lower().startswith(incomplete.lower())]

    return names


def one_of(values: Iterable[str]) -> Callable[[str], list[str]]:
    """A completion with those of `values` that begin with what was typed."""
    names = [str(value) for value in values]
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]

"""Names as people write them: case, spaces and punctuation aside."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from offloadtune.errors import UnknownNameError

_SEPARATORS = re.compile(r"[^a-z0-9.]+|(?<![0-9])\.|\.(?![0-9])")


def folded(name: str) -> str:
    """The form in which names are compared: "RTX 3090" and "rtx-3090" and "RTX3090" are all "rtx3090".

    A point between digits stays, because 3.1 is not 31.
    """
    return _SEPARATORS.sub("", name.lower())


def unknown(name: str, labels: Mapping[str, str], what: str) -> UnknownNameError:
    """The error for a `name` of a `what`; `labels` maps folded names to how they are shown."""
    near = difflib.get_close_matches(folded(name), labels, n=8, cutoff=0.0)
    shown = list(dict.fromkeys(labels[fold] for fold in near))[:4]
    hint = f"Choose one of these, which come nearest: {', '.join(shown)}."
    return UnknownNameError(f"The catalogue has no {what} called {name!r}.", hint=hint)

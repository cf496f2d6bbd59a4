"""A stand-in that was written, for the terminal and as JSON values."""

from __future__ import annotations

import shlex
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from offloadtune.records import GgufFacts
from offloadtune.report.json_values import plain
from offloadtune.report.words import printable
from offloadtune.units import format_bytes


def standin_view(facts: GgufFacts) -> RenderableType:
    """What was written, what it is good for, and the next step."""
    path, real = str(facts.path), facts.stands_for
    is_whole = real is None or facts.n_layer == real.n_layer
    like = "It takes the memory and the time of the real file" if is_whole else "A layer takes what the real one takes"
    return Group(
        Text(f"{printable(path)}: {format_bytes(facts.file_bytes)}, {printable(facts.standin_words)}", style="bold"),
        Text(f"{like}; what it writes means nothing."),
        Text(f"measure it: offloadtune sweep {shlex.quote(path)}", style="dim"),
    )


def standin_json(facts: GgufFacts) -> dict[str, Any]:
    """What was written."""
    return {
        "path": str(facts.path),
        "file_bytes": facts.file_bytes,
        "gguf_id": facts.gguf_id,
        "arch": facts.arch,
        "n_layer": facts.n_layer,
        "stands_for": plain(facts.stands_for),
        "type_bytes": dict(facts.type_bytes),
    }

"""A stand-in that was written, for the terminal and as JSON values; and the words for what was measured on one."""

from __future__ import annotations

import shlex
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from offloadtune.records import GgufFacts, StandsFor
from offloadtune.report.json_values import plain
from offloadtune.report.words import printable
from offloadtune.units import format_bytes

STANDIN_LIMITS = "says nothing of text quality, draft models or a trained router"


def standin_words(real: StandsFor | None, n_layer: int | None) -> str:
    """What a file of `n_layer` layers stands for, None where they are not known; "" for a real file."""
    return printable(real.words(n_layer)) if real else ""


def standin_lines(real: StandsFor | None, n_layer: int | None) -> tuple[Text, ...]:
    """The line that stands above figures of a stand-in; none for a real file."""
    words = standin_words(real, n_layer)
    return (Text(f"{words}: {STANDIN_LIMITS}", style="bold yellow"),) if words else ()


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

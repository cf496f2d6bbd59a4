"""`offloadtune inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    file: Annotated[Path, typer.Argument(help="A GGUF model file, or any shard of one.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a GGUF file holds, read from its header alone."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    facts = pipeline.inspect(file)
    cache = pipeline.cache_cost(facts)
    if json:
        console.show_json(report.inspect_json(facts, cache))
    else:
        console.show(report.inspect_view(facts, cache))

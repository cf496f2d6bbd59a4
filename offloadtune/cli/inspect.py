"""`offloadtune inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from offloadtune.cli import asking


def inspect(
    file: asking.ModelFile,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a GGUF file holds, read from its header alone."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, files  # noqa: PLC0415

    facts = pipeline.inspect(files.path_of(file))
    cache = pipeline.cache_cost(facts)
    if json:
        console.show_json(report.inspect_json(facts, cache))
    else:
        console.show(report.inspect_view(facts, cache))

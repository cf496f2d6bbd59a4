"""`offloadtune history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking


def history(
    file: Annotated[Path | None, typer.Argument(help="Only what was measured of this GGUF model file.")] = None,
    json: asking.AsJson = False,
) -> None:
    """List every sweep made so far, newest first."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    journals = pipeline.history(file)
    if json:
        console.show_json(report.history_json(journals))
    else:
        console.show(report.history_view(journals, file.name if file else None))

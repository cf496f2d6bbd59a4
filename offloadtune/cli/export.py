"""`offloadtune export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli.completion import one_of
from offloadtune.records import Target


def export(
    file: Annotated[Path, typer.Argument(help="A GGUF model file that was measured.", show_default=False)],
    target: Annotated[
        str | None, typer.Option(help=f"The front end: {', '.join(Target)}.", autocompletion=one_of(Target))
    ] = None,
    of: Annotated[
        str | None, typer.Option(metavar="NAME", help="A baseline instead, like cpu_only or default.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
) -> None:
    """Print the settings as a Python program or a command."""
    from offloadtune import pipeline  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, options  # noqa: PLC0415
    from offloadtune.recalls import Question  # noqa: PLC0415

    text = pipeline.export_stored(Question(path=file, target=options.target(target)), of, console.tell)
    if output is None:
        typer.echo(text, nl=False)
    else:
        pipeline.write_export(output, text, console.tell)

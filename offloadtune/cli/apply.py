"""`offloadtune apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli.completion import one_of
from offloadtune.records import Target


def apply(
    file: Annotated[Path, typer.Argument(help="A GGUF model file that was measured.", show_default=False)],
    extra: Annotated[
        list[str] | None, typer.Argument(help="After --, what the server is told besides, like -- --port 8080.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help=f"The front end: {', '.join(Target)}.", autocompletion=one_of(Target))
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command and do not run it.")] = False,
) -> None:
    """Start the front end's own server with the settings."""
    import shlex  # noqa: PLC0415 - kept out of --help

    from offloadtune import pipeline  # noqa: PLC0415
    from offloadtune.cli import console, options  # noqa: PLC0415
    from offloadtune.recalls import Question  # noqa: PLC0415

    question = Question(path=file, target=options.target(target))
    command = pipeline.server_command(question, extra or (), console.tell)
    typer.echo(shlex.join(command), err=not only_print)
    if not only_print:
        raise typer.Exit(pipeline.serve_stored(command))

"""`offloadtune apply`."""

from __future__ import annotations

from typing import Annotated

import typer

from offloadtune.cli import asking


def apply(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: asking.File,
    extra: Annotated[
        list[str] | None, typer.Argument(help="After --, what the server is told besides, like -- --port 8080.")
    ] = None,
    goal: asking.GoalText = None,
    workload: asking.WorkloadText = None,
    target: asking.TargetText = None,
    n_ctx: asking.ContextSize = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command and do not run it.")] = False,
) -> None:
    """Start the front end's own server with the settings.

    What is not said is taken as in the newest sweep of FILE.
    """
    import shlex  # noqa: PLC0415 - kept out of --help

    from offloadtune import pipeline  # noqa: PLC0415
    from offloadtune.cli import console  # noqa: PLC0415

    question = asking.question(file, goal, workload, target, n_ctx)
    command = pipeline.server_command(question, extra or (), console.tell)
    typer.echo(shlex.join(command), err=not only_print)
    if not only_print:
        raise typer.Exit(pipeline.serve_stored(command))

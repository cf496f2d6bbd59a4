"""`offloadtune export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking


def export(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: asking.File,
    goal: asking.GoalText = None,
    workload: asking.WorkloadText = None,
    target: asking.TargetText = None,
    n_ctx: asking.ContextSize = None,
    of: Annotated[
        str | None, typer.Option(metavar="NAME", help="A baseline instead, like cpu_only or default.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="FILE may be a stand-in: settings for the real file.")] = False,
) -> None:
    """Print the settings as a Python program or a command.

    What is not said is taken as in the newest sweep of FILE.
    """
    from offloadtune import pipeline  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    question = asking.question(file, goal, workload, target, n_ctx)
    text = pipeline.export_stored(question, of, console.tell, may_be_standin=yes)
    if output is None:
        typer.echo(text, nl=False)
    else:
        pipeline.write_export(output, text, console.tell)

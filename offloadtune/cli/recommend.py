"""`offloadtune recommend`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli.completion import one_of
from offloadtune.records import WORKLOADS, Goal, Target


def recommend(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: Annotated[Path, typer.Argument(help="A GGUF model file that was measured.", show_default=False)],
    goal: Annotated[
        str | None, typer.Option(help=f"What best means: {', '.join(Goal)}.", autocompletion=one_of(Goal))
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="chat, rag, code, long, CACHED/NEW/GENERATED/SEQUENCES, or a TOML file.",
            autocompletion=one_of(WORKLOADS),
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help=f"The front end: {', '.join(Target)}.", autocompletion=one_of(Target))
    ] = None,
    n_ctx: Annotated[int | None, typer.Option("--n-ctx", min=1, help="Context wanted.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer at once from what was measured before.

    What is not said is taken as in the newest sweep of FILE.
    """
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, options  # noqa: PLC0415
    from offloadtune.recalls import Question  # noqa: PLC0415

    question = Question(
        path=file,
        goal=Goal(options.choice("--goal", goal, list(Goal))) if goal else None,
        workload=options.workload(workload) if workload else None,
        target=options.target(target),
        n_ctx=n_ctx,
    )
    found = pipeline.recommend_stored(question, console.tell)
    if json:
        console.show_json(report.recall_json(found))
    else:
        console.show(report.recall_view(found))

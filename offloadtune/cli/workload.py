"""`offloadtune workload`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli.completion import one_of
from offloadtune.workloads import WorkloadRequest, WorkloadRule


def workload(  # noqa: PLR0913, PLR0917 - one parameter an option
    log: Annotated[
        Path, typer.Argument(help="Requests as JSON lines, or prompts, one a line; - for stdin.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Write the workload to this file, which --workload takes.")
    ] = None,
    rule: Annotated[
        str, typer.Option(help="What to take of each length: median or p95.", autocompletion=one_of(WorkloadRule))
    ] = "median",
    n_parallel: Annotated[int, typer.Option("--n-parallel", min=1, max=256, help="Requests served at once.")] = 1,
    chars_per_token: Annotated[
        float, typer.Option("--chars-per-token", help="Where a text is there and no count of its tokens.")
    ] = 4.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how long the requests of a log are, in tokens, and make a workload for `sweep` of them."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, options  # noqa: PLC0415

    chosen = WorkloadRule(options.choice("--rule", rule, list(WorkloadRule)))
    request = WorkloadRequest(
        path=log, rule=chosen, n_parallel=n_parallel, chars_per_token=chars_per_token, output=output
    )
    found = pipeline.gather_workload(request, console.tell)
    if json:
        console.show_json(report.workload_json(found))
    else:
        console.show(report.workload_view(found))

"""`offloadtune bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking
from offloadtune.cli.completion import one_of
from offloadtune.errors import InterruptedSweepError
from offloadtune.records import WORKLOADS


def bench(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: Annotated[Path, typer.Argument(help="A GGUF model file, or the first shard of one.", show_default=False)],
    settings: Annotated[
        Path | None,
        typer.Option(metavar="PROFILE", help="The profile to measure; default: what is recommended for FILE."),
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for measuring, like 90s or 10m.")] = "120s",
    workload: Annotated[
        str | None,
        typer.Option(help="A turn to measure too, as `sweep` takes it.", autocompletion=one_of(WORKLOADS)),
    ] = None,
    n_ctx: Annotated[
        int | None, typer.Option("--n-ctx", min=1, help="Context to open instead of that of the settings.")
    ] = None,
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    json: asking.AsJson = False,
) -> None:
    """Run the fixed script with FILE: the first token by prompt length, writing by depth; appended to the trend."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.benches import BenchRequest  # noqa: PLC0415
    from offloadtune.cli import console, options, progress  # noqa: PLC0415

    request = BenchRequest(
        path=file,
        profile_path=settings,
        workload=options.workload(workload) if workload else None,
        budget_s=options.seconds("--budget", budget),
        n_ctx=n_ctx,
        endpoints=tuple(rpc or ()),
    )
    with progress.listener() as listen:
        found = pipeline.bench_file(request, listen)
    if json:
        console.show_json(report.bench_json(found))
    else:
        console.show(report.bench_view(found))
    if found.run.is_interrupted:
        raise typer.Exit(InterruptedSweepError.exit_code)

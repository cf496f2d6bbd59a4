"""`offloadtune bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking
from offloadtune.cli.completion import one_of
from offloadtune.errors import InterruptedSweepError, UsageError
from offloadtune.records import WORKLOADS


def bench(  # noqa: PLR0913, PLR0917 - one parameter an option
    context: typer.Context,
    file: asking.ModelFile,
    settings: Annotated[
        Path | None,
        typer.Option(metavar="PROFILE", help="The profile to measure; default: what is recommended for FILE."),
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for measuring, loading aside, like 90s.")] = "120s",
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
    llama_bench: Annotated[
        bool,
        typer.Option(
            "--llama-bench",
            help="Measure as llama-bench does instead, by its own options: "
            "-p -n -pg -d -b -ub -ctk -ctv -t -ngl -ncmoe -fa --repack -r -o. Unasked, -t is every physical core that "
            "this process may use; llama-bench takes the fast ones alone where cores differ.",
        ),
    ] = False,
    json: asking.AsJson = False,
) -> None:
    """Run the fixed script with FILE: the first token by prompt length, writing by depth; appended to the trend."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.benches import BenchRequest  # noqa: PLC0415
    from offloadtune.cli import console, files, options, progress, rows  # noqa: PLC0415

    if llama_bench:
        source = context.get_parameter_source("budget")
        if settings or workload or n_ctx or json or (source and source.name != "DEFAULT"):
            message = "--llama-bench takes the options of llama-bench, and --rpc, but no other of bench."
            raise UsageError(message, hint="print JSON with -o json, set the context with -p, -n and -d")
        if file.startswith("-"):
            message = f"{file!r} is no model file: FILE comes before the options of llama-bench."
            raise UsageError(message, hint="write offloadtune bench FILE --llama-bench, then its options, without -m")
        rows.run(files.path_of(file), context.args, rpc or ())
        return
    if context.args:
        message = f"{context.args[0]!r} is no option of bench: its script measures the same every time."
        raise UsageError(message, hint="run offloadtune bench --help, or add --llama-bench to measure as it does")

    request = BenchRequest(
        path=files.path_of(file),
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

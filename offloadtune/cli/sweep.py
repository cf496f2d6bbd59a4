"""`offloadtune sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from offloadtune.cli import asking
from offloadtune.cli.completion import one_of
from offloadtune.errors import InterruptedSweepError
from offloadtune.records import WORKLOADS, Goal, Target


def sweep(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: asking.ModelFile,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for measuring, like 90s or 10m.")] = "120s",
    goal: Annotated[
        str, typer.Option(help=f"What best means: {', '.join(Goal)}.", autocompletion=one_of(Goal))
    ] = Goal.TURN.value,
    workload: Annotated[
        str,
        typer.Option(
            help="chat, rag, code, long, CACHED/NEW/GENERATED/SEQUENCES, or a TOML file.",
            autocompletion=one_of(WORKLOADS),
        ),
    ] = "chat",
    target: Annotated[
        str,
        typer.Option(help=f"The front end to measure for: {', '.join(Target)}.", autocompletion=one_of(Target)),
    ] = "llama_cpp_python",
    n_ctx: Annotated[
        int | None, typer.Option("--n-ctx", min=1, help="Context wanted; default: what the workload fills.")
    ] = None,
    vram_limit: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Use at most this much device memory.")
    ] = None,
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fix a setting instead of trying it.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what the same sweep measured before.")] = False,
    prove: Annotated[bool, typer.Option("--prove", help="Hash the whole file before and after.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how FILE runs best here, write the settings as a profile, and say why."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, files, options, progress  # noqa: PLC0415
    from offloadtune.sweeps import SweepRequest  # noqa: PLC0415

    request = SweepRequest(
        path=files.path_of(file),
        workload=options.workload(workload),
        budget_s=options.seconds("--budget", budget),
        goal=Goal(options.choice("--goal", goal, list(Goal))),
        target=Target(options.choice("--target", target, list(Target))),
        n_ctx=n_ctx,
        vram_limit_bytes=options.bytes_of("--vram-limit", vram_limit) if vram_limit else None,
        endpoints=tuple(rpc or ()),
        fixed=options.fixed_settings(fix or ()),
        prove=prove,
        is_fresh=fresh,
    )
    with progress.listener() as listen:
        found = pipeline.sweep(request, listen)
    if json:
        console.show_json(report.sweep_json(found))
    else:
        console.show(report.sweep_view(found))
    if found.is_interrupted:
        raise typer.Exit(InterruptedSweepError.exit_code)

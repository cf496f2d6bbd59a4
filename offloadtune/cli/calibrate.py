"""`offloadtune calibrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from offloadtune.cli import asking
from offloadtune.errors import InterruptedSweepError


def calibrate(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: asking.ModelFile,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for all of it, loading too, like 90s.")] = "120s",
    vram_limit: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Use at most this much device memory.")
    ] = None,
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fix a setting in every run.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what earlier runs of the kind showed.")] = False,
    json: asking.AsJson = False,
) -> None:
    """Learn in a few short runs how fast this machine is with FILE and its like, so that predictions rest on them."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, files, options, progress  # noqa: PLC0415
    from offloadtune.speeds import CalibrationRequest  # noqa: PLC0415

    request = CalibrationRequest(
        path=files.path_of(file),
        budget_s=options.seconds("--budget", budget),
        vram_limit_bytes=options.bytes_of("--vram-limit", vram_limit) if vram_limit else None,
        endpoints=tuple(rpc or ()),
        fixed=options.fixed_settings(fix or ()),
        is_fresh=fresh,
    )
    with progress.listener() as listen:
        found = pipeline.calibrate(request, listen)
    if json:
        console.show_json(report.calibration_json(found))
    else:
        console.show(report.calibration_view(found))
    if found.is_interrupted:
        raise typer.Exit(InterruptedSweepError.exit_code)

"""`offloadtune probe`."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def probe(
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what has to be measured.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what this machine has: CPU, memory, cards and limits, their measured speeds, and llama.cpp's devices."""
    start_s = time.monotonic()
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    now = pipeline.standing_here(rpc or ())
    found = pipeline.probe_machine(rpc or (), measure=not quick, start_s=start_s)
    shown = (found.machine, found.engine, now, found.hardware, found.device_speeds)
    if json:
        console.show_json(report.probe_json(*shown))
    else:
        console.show(report.probe_view(*shown))

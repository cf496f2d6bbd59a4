"""`offloadtune probe`."""

from __future__ import annotations

from typing import Annotated

import typer


def probe(
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what has to be measured.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what this machine has: CPU, RAM and its measured bandwidth, and the devices llama.cpp can use."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    now = pipeline.standing_now(rpc or ())
    machine, engine = pipeline.probe(rpc or (), measure=not quick)
    if json:
        console.show_json(report.probe_json(machine, engine, now))
    else:
        console.show(report.probe_view(machine, engine, now))

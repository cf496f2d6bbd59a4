"""`offloadtune doctor`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from offloadtune.errors import ExportError, ProblemsFoundError, WarningsFoundError


def doctor(  # noqa: PLR0913, PLR0917 - a command has as many options as it takes
    file: Annotated[
        str | None, typer.Argument(help="A GGUF model file to examine the machine for, or its name in the list.")
    ] = None,
    rpc: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A llama.cpp RPC server to use as a device.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what has to be measured.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 5 where the worst found is a warning, 6 where it is a problem.")
    ] = False,
    since: Annotated[
        Path | None, typer.Option(metavar="MACHINE_TOML", help="Say what changed since this file was written.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what holds this machine back and what to do, show its bandwidths, and write it down as machine.toml."""
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, files  # noqa: PLC0415
    from offloadtune.hardware import Severity  # noqa: PLC0415

    path = None if file is None else files.path_of(file)
    said = pipeline.diagnose(path, rpc or (), since, is_quick=quick)
    unkept: ExportError | None = None
    try:
        said = dataclasses.replace(said, machine_path=pipeline.keep_machine(said.examination))
    except ExportError as error:  # what was found is shown first
        unkept = error
    if json:
        console.show_json(report.doctor_json(said))
    else:
        console.show(report.doctor_view(said))
    if unkept is not None:
        raise unkept
    if strict and said.findings and said.findings[0].severity is not Severity.NOTE:
        is_problem = said.findings[0].severity is Severity.PROBLEM
        found = f"The doctor found {report.finding_words(said.findings)}."
        raise (ProblemsFoundError if is_problem else WarningsFoundError)(
            found, hint="do what is named above, worst first"
        )

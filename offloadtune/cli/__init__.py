"""The command line: one thin file a command, options -> one pipeline call -> view.

Nothing heavy is imported here: `offloadtune --help` loads neither numpy nor the engine nor rich.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

import offloadtune
from offloadtune.cli import inspect, probe, sweep
from offloadtune.errors import OffloadTuneError

app = typer.Typer(
    name="offloadtune",
    help="Find the llama.cpp settings that serve a GGUF model best on this machine, by measuring them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(probe.probe)
app.command()(inspect.inspect)
app.command()(sweep.sweep)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"offloadtune {offloadtune.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""


def main() -> None:
    """Run; a mistake of the user's becomes one sentence, one next step and its exit code."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        app()
    except OffloadTuneError as error:
        typer.echo(f"offloadtune: {error}", err=True)
        if error.hint:
            typer.echo(f"  next: {error.hint}", err=True)
        sys.exit(error.exit_code)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

"""The command line: one thin file a command, options -> one pipeline call -> view.

Nothing heavy is imported here: `offloadtune --help` loads neither numpy nor the engine nor rich.
"""

from __future__ import annotations

import io
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated

import typer

import offloadtune
from offloadtune.cli import (
    apply,
    bench,
    calibrate,
    doctor,
    export,
    history,
    inspect,
    plan,
    probe,
    recommend,
    standin,
    sweep,
    workload,
)
from offloadtune.cli import list as list_
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
app.command()(doctor.doctor)
app.command()(inspect.inspect)
app.command("list")(list_.list_files)
app.command()(plan.plan)
app.command()(standin.standin)
app.command()(workload.workload)
app.command()(calibrate.calibrate)
app.command()(sweep.sweep)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench.bench)
app.command()(recommend.recommend)
app.command()(history.history)
app.command()(export.export)
app.command()(apply.apply)


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text, terminals not UTF-8
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:  # as under nohup
            signal.signal(getattr(signal, name), _stop)
    try:
        app()
    except OffloadTuneError as error:
        typer.echo(f"offloadtune: {error}", err=True)
        if error.hint:
            typer.echo(f"  next: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is ours
        typer.echo(f"offloadtune: A mistake of offloadtune itself ended this ({type(error).__name__}).", err=True)
        typer.echo(f"  next: report it, please, with {_kept_traceback(error)}", err=True)
        sys.exit(1)


def _kept_traceback(error: Exception) -> str:
    """Name of the file that now holds the traceback; where none can be written, the error in one line."""
    from offloadtune import pipeline  # noqa: PLC0415 - kept out of --help

    path = pipeline.crash_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{sys.argv}\n{''.join(traceback.format_exception(error))}", encoding="utf-8", errors="replace")
    except OSError:
        return " ".join(f"this line: {error}".split())
    return str(path)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt

"""`offloadtune history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking
from offloadtune.cli.completion import one_of
from offloadtune.errors import RegressionError, UsageError
from offloadtune.rows import ROW_FORMATS


def history(
    file: Annotated[
        str | None, typer.Argument(help="Only what was measured of this GGUF model file, or of that name.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the newest benches against those before; exits with 4 if slower.")
    ] = False,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            help=f"Print the rows kept of llama-bench: {', '.join(ROW_FORMATS)}.",
            autocompletion=one_of(ROW_FORMATS),
        ),
    ] = None,
    imported: Annotated[
        Path | None, typer.Option("--import", metavar="ROWS", help="Keep the rows of llama-bench in this file.")
    ] = None,
    json: asking.AsJson = False,
) -> None:
    """List every bench and every sweep made so far, newest first."""
    if sum(map(bool, (check, rows, imported))) > 1:
        raise UsageError("--check, --rows and --import are three things.", hint="ask for one of them at a time")
    if file and (rows or imported):
        raise UsageError("--rows and --import are about all files.", hint="leave FILE out")
    if rows and json:
        raise UsageError("--rows prints llama-bench's rows, not --json.", hint="leave --json out: --rows json")
    if imported:
        _import(imported, as_json=json)
    elif rows:
        _print_rows(rows)
    else:
        from offloadtune.cli import files  # noqa: PLC0415 - kept out of --help

        path = files.path_of(file, may_be_gone=True) if file else None
        (_check if check else _list)(path, as_json=json)


def _list(file: Path | None, *, as_json: bool) -> None:
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    journals, trends = pipeline.history(file), pipeline.trends(file)
    if as_json:
        console.show_json({**report.history_json(journals), **report.trends_json(trends)})
        return
    if trends.trends or trends.broken or trends.stale:
        console.show(report.trends_view(trends))
    if journals or not trends.trends:
        console.show(report.history_view(journals, file.name if file else None))


def _check(file: Path | None, *, as_json: bool) -> None:
    """Raises RegressionError where a bench was slower."""
    from offloadtune import pipeline, report  # noqa: PLC0415
    from offloadtune.cli import console  # noqa: PLC0415

    checks = pipeline.check_trends(file)
    if as_json:
        console.show_json(report.checks_json(checks))
    else:
        console.show(report.checks_view(checks))
    words = report.regression_words(checks)
    if words:
        raise RegressionError(words, hint="run the bench once more to be sure, then look at what changed")


def _import(rows_path: Path, *, as_json: bool) -> None:
    from offloadtune import pipeline, report  # noqa: PLC0415
    from offloadtune.cli import console  # noqa: PLC0415

    imported = pipeline.import_rows(rows_path)
    if as_json:
        console.show_json(report.imported_json(imported))
    else:
        console.show(report.imported_view(imported))


def _print_rows(row_format: str) -> None:
    from offloadtune import pipeline  # noqa: PLC0415
    from offloadtune.cli import options  # noqa: PLC0415

    known = options.choice("--rows", row_format, list(ROW_FORMATS))
    text = pipeline.stored_rows(known)
    typer.echo(text, nl=bool(text) and not text.endswith("\n"))

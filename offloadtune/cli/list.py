"""`offloadtune list`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking


def list_files(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Folders to look into besides the usual ones.", show_default=False),
    ] = None,
    json: asking.AsJson = False,
) -> None:
    """List the GGUF files on this machine, what they are, and whether they fit here.

    Looks where llama.cpp, Hugging Face, LM Studio, Ollama, KoboldCpp, text-generation-webui, Jan and GPT4All keep
    theirs, and in ./gguf_models. Every command takes a name of this list in place of a path.
    """
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415

    with _progress() as progress:
        listing = pipeline.list_files(folders or (), progress)
    if json:
        console.show_json(report.listing_json(listing))
    else:
        console.show(report.listing_view(listing))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A line that moves while headers are read, where stderr is a terminal."""
    from rich.console import Console  # noqa: PLC0415 - rich is slow to import

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield lambda _n_done, _n_all: None
        return
    with console.status("looking for GGUF files") as status:
        yield lambda n_done, n_all: status.update(f"reading headers: {n_done} of {n_all}")

"""`offloadtune list`."""

from __future__ import annotations

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

    with console.counting("looking for GGUF files", "reading headers") as progress:
        listing = pipeline.list_files(folders or (), progress)
    if json:
        console.show_json(report.listing_json(listing))
    else:
        console.show(report.listing_view(listing))

"""`offloadtune standin`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from offloadtune.cli import asking
from offloadtune.cli.completion import name_of


def standin(  # noqa: PLR0913, PLR0917 - one parameter an option
    shape: Annotated[
        str,
        typer.Argument(
            help="A published model, like llama-3-70b, or a GGUF file to take the shape of.",
            show_default=False,
            autocompletion=name_of("shape_names"),
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.", show_default=False)
    ],
    quant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The quantisation, like Q4_K_M.", autocompletion=name_of("quant_names")),
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Write so many layers only, evenly spaced.")
    ] = None,
    vocab_from: Annotated[
        str | None, typer.Option(metavar="FILE", help="Take the vocabulary of this GGUF file; else one is made up.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="What the random weights begin with.")] = 0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace a file that is not a real model.")] = False,
    json: asking.AsJson = False,
) -> None:
    """Write a GGUF file of a model's shape with random weights: as large and as fast as the model you do not have yet.

    What it writes as text means nothing.
    """
    from offloadtune import pipeline, report  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console, files  # noqa: PLC0415
    from offloadtune.units import format_bytes  # noqa: PLC0415

    # A folder of the model's name is a clone of its repository, and says nothing.
    is_file = os.path.isfile(shape) or shape.lower().endswith(".gguf")  # noqa: PTH113 - knows names of any length
    request = pipeline.StandinRequest(
        source=files.path_of(shape) if is_file else shape,
        output=output,
        quant=quant,
        n_layer=layers,
        vocab_from=None if vocab_from is None else files.path_of(vocab_from),
        seed=seed,
        may_replace=yes,
    )
    with console.counting("writing", "writing", format_bytes) as progress:
        facts = pipeline.write_standin(request, progress)
    if json:
        console.show_json(report.standin_json(facts))
    else:
        console.show(report.standin_view(facts))

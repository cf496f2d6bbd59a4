"""The list of GGUF files for the terminal and as JSON values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.listings import FitVerdict, ListedFile, Listing
from offloadtune.report.json_values import plain
from offloadtune.report.words import printable
from offloadtune.units import format_bytes, format_count

_NAME_CELLS = 48
"""Names up to here stay whole on a terminal of 100 columns; a path may be longer."""

_STYLES = {FitVerdict.ALL: "green", FitVerdict.SOME: "yellow", FitVerdict.NO: "red", FitVerdict.UNKNOWN: "dim"}
_PROFILES = {True: "yes", False: "no", None: "unknown"}
_ADVISED = (FitVerdict.ALL, FitVerdict.SOME, FitVerdict.MAIN_MEMORY, FitVerdict.UNKNOWN)


def listing_view(listing: Listing) -> RenderableType:
    """A row for each model, then what accompanies models, what cannot be used and why, and what to do next."""
    if not listing.files:
        next_step = Text("Next: put a .gguf file into ./gguf_models, or name its folder: offloadtune list FOLDER")
        return Group(*_nothing_lines(listing), *_note_lines(listing), Text(), next_step)
    models = [file for file in listing.files if file.is_model]
    parts: list[RenderableType] = []
    if models:
        parts += [Text(_basis_words(listing), style="dim"), Text(), _table(models)]
    companions = [file for file in listing.files if file.companion and not file.trouble]
    if companions:
        parts += [Text(), Text("Companions of models", style="bold"), *map(_companion_line, companions)]
    broken = [file for file in listing.files if file.trouble]
    if broken:
        parts += [Text(), Text("Not usable as they are", style="bold"), *map(_trouble_line, broken)]
    return Group(*parts, *_note_lines(listing), *_advice_lines(models))


def listing_json(listing: Listing) -> dict[str, Any]:
    """Everything; unknown is null. `devices` maps names to free bytes."""
    value: dict[str, Any] = plain(listing)
    for file, one in zip(value["files"], listing.files, strict=True):
        file["is_model"] = one.is_model
    value["devices"] = None if listing.devices is None else dict(listing.devices)
    return value


def _table(models: Sequence[ListedFile]) -> Table:
    """Two lines a row: what the header says stands below the name, so that names stay whole on narrow terminals."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    longest = max(len(printable(file.name)) for file in models)
    table.add_column("name", min_width=min(longest, _NAME_CELLS), overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    for title in ("type", "fits", "profile", "from"):
        table.add_column(title, no_wrap=title != "from", overflow="fold")
    for file in models:
        name = Text(printable(file.name)).append(f"\n  {_model_words(file)}", style="dim")
        table.add_row(
            name,
            format_bytes(file.file_bytes),
            printable(file.quantisation),
            _fit_text(file),
            _PROFILES[file.has_profile],
            file.program,
        )
    return table


def _model_words(file: ListedFile) -> str:
    layers = format_count(file.n_layer or 0, "layer")
    experts = f", {file.n_expert} experts" if file.n_expert else ""
    shards = f", {file.n_shards} shards" if file.n_shards > 1 else ""
    kind = "stand-in with random weights, " if file.is_standin else ""
    return f"{kind}{printable(file.arch)} {_params_words(file.n_params or 0)}, {layers}{experts}{shards}"


def _params_words(n_params: int) -> str:
    """As models are named: 135M, 7.24B."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n_params >= 0.9995 * scale:
            return f"{n_params / scale:.3g}{unit}"
    return str(n_params)


def _fit_text(file: ListedFile) -> Text:
    fit = file.fit
    if fit is None:
        return Text("unknown", style="dim")
    words = {
        FitVerdict.ALL: "all layers",
        FitVerdict.SOME: f"{fit.n_gpu_layers} of {fit.n_gpu_layers_all} layers",
        FitVerdict.MAIN_MEMORY: "main memory",
        FitVerdict.NO: f"lacks {format_bytes(fit.short_bytes or 0)}",
        FitVerdict.UNKNOWN: "unknown",
    }
    return Text(words[fit.verdict], style=_STYLES.get(fit.verdict, ""))


def _basis_words(listing: Listing) -> str:
    if listing.devices is None:
        return f"Whether they fit is not known: {printable(listing.no_fit)}"
    memory = f"main memory ({format_bytes(listing.available_bytes or 0)} available)"
    devices = [f"{printable(name)} ({format_bytes(free)} free)" for name, free in listing.devices]
    where = f"{', '.join(devices)} and {memory}" if devices else f"{memory}; the engine has no device to offload to"
    return f"Fits with n_ctx={listing.n_ctx}, as it is now: {where}."


def _companion_line(file: ListedFile) -> Text:
    return Text(f"- {printable(file.name)}: {file.companion}, {format_bytes(file.file_bytes)}, {file.program}")


def _trouble_line(file: ListedFile) -> Text:
    return Text(f"- {printable(file.name)} {printable(file.trouble)} ({file.program}).")


def _note_lines(listing: Listing) -> Iterator[Text]:
    if listing.notes:
        yield Text()
    yield from (Text(f"- {printable(note)}", style="dim") for note in listing.notes)


def _advice_lines(models: Sequence[ListedFile]) -> Iterator[Text]:
    """The command for the file that is served best and was not measured yet; for the best one where all were."""
    candidates = [file for file in models if file.fit is None or file.fit.verdict in _ADVISED]
    if not candidates:
        return
    best = min(candidates, key=lambda file: (bool(file.has_profile), _ADVISED.index(_verdict(file)), -file.file_bytes))
    yield Text()
    yield Text(f"Next: offloadtune sweep {shlex.quote(printable(_word(best)))}")


def _verdict(file: ListedFile) -> FitVerdict:
    return file.fit.verdict if file.fit else FitVerdict.UNKNOWN


def _word(file: ListedFile) -> str:
    """What a command line takes: a name that begins like an option gives way to the path."""
    return str(file.path.absolute()) if file.name.startswith("-") else file.name


def _nothing_lines(listing: Listing) -> Iterator[Text]:
    yield Text("No GGUF file was found.", style="bold")
    yield Text("Looked in:")
    for shelf in listing.shelves:
        state = {True: "nothing in it", False: "not there", None: "may not be seen"}[shelf.is_there]
        path = str(shelf.path)
        whose = "" if shelf.program.endswith(path) else f" ({shelf.program})"
        yield Text(f"- {printable(path)}{whose}: {state}", style="dim")

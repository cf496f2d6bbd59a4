"""Sweeping a model that is not here: by a stand-in of its size, or by two of fewer layers where that has no room."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from offloadtune import store
from offloadtune.engine import WORKER_COMMAND
from offloadtune.errors import ExportError, GgufError, NothingWorksError
from offloadtune.gguf import read_gguf
from offloadtune.gguf.standin import layer_counts
from offloadtune.pipeline.checking import check
from offloadtune.pipeline.depths import ByDepths, begin_settings
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.pipeline.standing_in import StandinRequest, write_standin
from offloadtune.pipeline.surroundings import Surroundings, surroundings
from offloadtune.pipeline.sweeping import sweep, unbreakable
from offloadtune.records import GgufFacts, StandsFor
from offloadtune.sweeps import FileGrows, Listener, Said, StandinReport, SweepRequest
from offloadtune.units import format_bytes

_N_LAYERS_DEEP = 16
"""Of the deeper of two stand-ins; the other has half of them. With 4 and 8 too little of the time is of the layers."""

_SWEEP_SHARE = 0.6
"""Of the budget, for the sweep of the deeper one."""

_SPARE_BYTES = 128 * 1024**2


def sweep_standin(shape: str, quant: str, request: SweepRequest, listen: Listener) -> StandinReport:
    """Write a stand-in of the model `shape` and sweep that; the path of `request` is not looked at.

    Raises UnknownNameError, UsageError, ExportError for what cannot be written, and what `sweep` raises.
    """
    listen = unbreakable(listen)
    whole = facts_of_shape(shape, quant)
    check(request, whole)
    around = surroundings(request.endpoints, request.vram_limit_bytes, request.worker_command or WORKER_COMMAND)
    settings = begin_settings(request, whole)
    settings = settings.replace(n_gpu_layers=around.most_layers(whole, settings))
    no_room = around.lacking(around.host_bytes(whole, settings))
    why_fewer = no_room or _full_disk([(whole, whole.n_layer)])
    if why_fewer:
        listen(Said(text=f"No stand-in of all {whole.n_layer} layers: {why_fewer}."))
        return _sweep_fewer(shape, quant, request, whole, around, why_fewer, no_room, listen)
    written = _written(shape, quant, whole, whole.n_layer, listen)
    found = sweep(dataclasses.replace(request, path=written.path), listen)
    return StandinReport(sweep=found, apply_text=found.apply_text, is_interrupted=found.is_interrupted)


def _sweep_fewer(  # noqa: PLR0913, PLR0917 - what was found about the whole
    shape: str,
    quant: str,
    request: SweepRequest,
    whole: GgufFacts,
    around: Surroundings,
    why_fewer: str,
    no_room: str,
    listen: Listener,
) -> StandinReport:
    """Sweep the deeper of two stand-ins of fewer layers, then see what its best comes to with all of them."""
    shallow, deep = (_written(shape, quant, whole, n, listen) for n in _depths(whole, around, why_fewer))
    depths = ByDepths(request=request, whole=whole, shallow=shallow, deep=deep, around=around, no_room=no_room)
    found = sweep(depths.deep_request(request.budget_s * _SWEEP_SHARE), listen)
    return depths.answer(found, why_fewer, request.budget_s * (1 - _SWEEP_SHARE), listen)


def _depths(whole: GgufFacts, around: Surroundings, why_fewer: str) -> tuple[int, int]:
    """How many layers the two have: the most up to 16 that disk and memory hold together."""
    counts = layer_counts(whole)
    for shallow, deep in _pairs(counts):
        sizes = [(whole, shallow), (whole, deep)]
        if not _full_disk(sizes) and not around.lacking(sum(_bytes_of(*one) for one in sizes)):
            return shallow, deep
    message = f"{whole.name} has no room here, and two stand-ins of fewer layers have none either: {why_fewer}."
    raise NothingWorksError(message, hint="free disk or memory, or name a smaller quantisation or model")


def _pairs(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The deeper first, each beside what comes nearest to half of it."""
    for i in range(len(counts) - 1, 0, -1):
        if counts[i] <= _N_LAYERS_DEEP or i == 1:
            yield min(counts[:i], key=lambda count: abs(count - counts[i] / 2)), counts[i]


def _written(shape: str, quant: str, whole: GgufFacts, n_layer: int, listen: Listener) -> GgufFacts:
    """The stand-in of so many layers, written unless it is there; where it lies is said."""
    path = _path_of(whole, n_layer)
    found = _existing(path, whole, n_layer)
    if found is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"The folder {path.parent} cannot be made: {error.strerror or error}."
            raise ExportError(message, hint="name another home for all that is kept in OFFLOADTUNE_HOME") from None
        asked = StandinRequest(source=shape, output=path, quant=quant, n_layer=n_layer, may_replace=True)
        found = write_standin(
            asked, lambda done, total: listen(FileGrows(path=path, n_done_bytes=done, n_all_bytes=total))
        )
    kept = f"It stays at {path}, {format_bytes(found.file_bytes)}, until you delete it."
    listen(Said(text=f"Measured is a {found.standin_words}. {kept}"))
    return found


def _existing(path: Path, whole: GgufFacts, n_layer: int) -> GgufFacts | None:
    try:
        found = read_gguf(path)
    except GgufError:
        return None
    real = StandsFor(label=whole.name or whole.path.stem, quantisation=whole.quantisation, n_layer=whole.n_layer)
    return found if found.stands_for == real and found.n_layer == n_layer else None


def _path_of(whole: GgufFacts, n_layer: int) -> Path:
    layers = "" if n_layer == whole.n_layer else f".{n_layer}-of-{whole.n_layer}-layers"
    return store.standins_dir() / f"{whole.path.stem}{layers}.gguf"


def _bytes_of(whole: GgufFacts, n_layer: int) -> int:
    """About the size of a stand-in with so many layers."""
    return whole.file_bytes - sum(whole.layer_bytes) * (whole.n_layer - n_layer) // whole.n_layer


def _full_disk(sizes: Sequence[tuple[GgufFacts, int]]) -> str:
    """What the disk lacks to hold the stand-ins that are not there yet, "" where it does not."""
    n_bytes = sum(_bytes_of(*one) for one in sizes if not _path_of(*one).exists())
    folder = store.standins_dir().absolute()
    folder = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(folder).free
    if not n_bytes or n_bytes + _SPARE_BYTES <= free:
        return ""
    return f"it would take {format_bytes(n_bytes)} of the disk of {folder}, which has {format_bytes(free)} free"

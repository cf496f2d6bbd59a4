"""Sweeping a model that is not here: by a stand-in of its size, or by two of fewer layers where that has no room."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from offloadtune import store
from offloadtune.engine import WORKER_COMMAND
from offloadtune.errors import BudgetError, ExportError, GgufError, NothingWorksError
from offloadtune.gguf import read_gguf
from offloadtune.gguf.standin import layer_counts
from offloadtune.pipeline.checking import check
from offloadtune.pipeline.depths import ByDepths, check_fixed
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.pipeline.spaces import begin_settings
from offloadtune.pipeline.standing_in import (
    StandinRequest,
    is_current,
    leftover_bytes,
    refuse_unpublished,
    write_standin,
)
from offloadtune.pipeline.surroundings import Surroundings, surroundings
from offloadtune.pipeline.sweeping import measure_and_answer, unbreakable
from offloadtune.records import GgufFacts, Settings
from offloadtune.sweeps import FileGrows, Listener, Said, StandinReport, SweepReport, SweepRequest
from offloadtune.units import format_bytes, format_seconds

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
    refuse_unpublished(quant)
    whole = facts_of_shape(shape, quant)
    check(request, whole)
    with store.measuring_alone(store.data_dir(), whole.path.name):
        around = surroundings(request.endpoints, request.vram_limit_bytes, request.worker_command or WORKER_COMMAND)
        settings = begin_settings(request, whole)
        n_layers = settings.n_gpu_layers if "n_gpu_layers" in request.fixed else around.most_layers(whole, settings)
        no_room = around.lacking(around.host_bytes(whole, settings.replace(n_gpu_layers=n_layers)))
        why_fewer = no_room or _full_disk([(whole, whole.n_layer)])

        def write(n_layer: int) -> GgufFacts:
            return _written(shape, quant, whole, n_layer, listen)

        if why_fewer:
            check_fixed(request)
            listen(Said(text=f"No stand-in of all {whole.n_layer} layers: {why_fewer}."))
            shallow, deep = (write(n) for n in _depths(whole, settings, around, why_fewer))
            both = {"shallow": shallow, "deep": deep}
            return _sweep_fewer(
                ByDepths(request=request, whole=whole, around=around, why_fewer=why_fewer, **both), listen
            )
        found = _swept(dataclasses.replace(request, path=write(whole.n_layer).path), listen)
        return StandinReport(sweep=found, apply_text=found.apply_text, is_interrupted=found.is_interrupted)


def _sweep_fewer(depths: ByDepths, listen: Listener) -> StandinReport:
    """Sweep the deeper of two stand-ins of fewer layers, then see what its best comes to with all of them."""
    budget_s = depths.request.budget_s
    try:
        found = _swept(depths.deep_request(budget_s * _SWEEP_SHARE), listen)
    except BudgetError:
        message = f"The budget of {format_seconds(budget_s)} ended before the stand-in had run once."
        hint = f"allow more time: --budget {round(budget_s * 4)}s; the files that were written are used again"
        raise BudgetError(message, hint=hint) from None
    return depths.answer(found, budget_s * (1 - _SWEEP_SHARE), listen)


def _swept(request: SweepRequest, listen: Listener) -> SweepReport:
    facts = read_gguf(request.path)
    check(request, facts)
    return measure_and_answer(request, facts, listen)


def _depths(whole: GgufFacts, settings: Settings, around: Surroundings, why_fewer: str) -> tuple[int, int]:
    """How many layers the two have: the most up to 16 that disk and memory hold together."""
    counts = layer_counts(whole)
    if len(counts) < 2:
        message = f"{whole.name} has no room here, and its layers cannot be told apart to leave some out: {why_fewer}."
        raise NothingWorksError(message, hint="free disk or memory, or name a smaller quantisation or model")
    cpu = settings.replace(devices=(), n_gpu_layers=0)
    cache_bytes, buffer_bytes = around.context_bytes(whole, cpu)
    for both in _pairs(counts):
        caches = sum(cache_bytes * n // whole.n_layer + buffer_bytes for n in both)
        held = sum(_bytes_of(whole, n) for n in both) + caches
        if not _full_disk([(whole, n) for n in both]) and not around.lacking(held):
            return both
    message = f"{whole.name} has no room here, and two stand-ins of fewer layers have none either: {why_fewer}."
    raise NothingWorksError(message, hint="free disk or memory, or name a smaller context, quantisation or model")


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
    share = "all" if n_layer == whole.n_layer else str(n_layer)
    kept = f"stays at {path}, {format_bytes(found.file_bytes)}, until you delete it"
    listen(Said(text=f"The stand-in of {share} of {whole.n_layer} layers {kept}."))
    return found


def _existing(path: Path, whole: GgufFacts, n_layer: int) -> GgufFacts | None:
    """What an earlier sweep wrote, where it is what this one would write."""
    try:
        found = read_gguf(path)
    except GgufError:
        return None
    return found if is_current(found, whole, n_layer) else None


def _path_of(whole: GgufFacts, n_layer: int) -> Path:
    """Of a name that no real file has: profiles go by it."""
    layers = "" if n_layer == whole.n_layer else f".{n_layer}-of-{whole.n_layer}-layers"
    return store.standins_dir() / f"{whole.path.stem}{layers}.stand-in.gguf"


def _bytes_of(whole: GgufFacts, n_layer: int) -> int:
    """About the size of a stand-in with so many layers."""
    return whole.file_bytes - sum(whole.layer_bytes) * (whole.n_layer - n_layer) // whole.n_layer


def _full_disk(sizes: Sequence[tuple[GgufFacts, int]]) -> str:
    """What the disk lacks to hold the stand-ins that are not there yet, "" where it does not."""
    missing = [one for one in sizes if _existing(_path_of(*one), *one) is None]
    if not missing:
        return ""
    n_bytes = sum(_bytes_of(*one) for one in missing) + _SPARE_BYTES
    folder = store.standins_dir().absolute()
    folder = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(folder).free + sum(leftover_bytes(_path_of(*one)) for one in missing)
    if n_bytes <= free:
        return ""
    return f"it would take {format_bytes(n_bytes)} of the disk of {folder}, which has {format_bytes(free)} free"

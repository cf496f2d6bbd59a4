"""Listing: the GGUF files on this machine, what they are, and how much of each its devices hold now."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offloadtune import store
from offloadtune.engine import Runner
from offloadtune.errors import EngineError, EngineMissingError, GgufError, OffloadTuneError, UsageError
from offloadtune.footprint import Room, fits, grid_of, reckon
from offloadtune.gguf import read_gguf
from offloadtune.gguf.header import read_header
from offloadtune.gguf.projector import is_projector
from offloadtune.listings import FileFit, FitVerdict, ListedFile, Listing, ShelvedFile
from offloadtune.pipeline.devices import machine_place
from offloadtune.pipeline.naming import handles_of, shelved_here
from offloadtune.pipeline.planning import N_CTX_PLANNED, settings_for
from offloadtune.plans import PlanRequest
from offloadtune.probe import probe_host
from offloadtune.records import GgufFacts, Machine

_N_FILES_READ = 5000
_COMPANION_KINDS = {"adapter": "LoRA adapter", "imatrix": "importance matrix"}  # values of general.type
_NO_SENSE = "Its figures do not go together."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """What files are judged by: None for a `room` or a `machine_id` that is not known, for the reason `no_fit`."""

    room: Room | None
    machine_id: str | None
    no_fit: str = ""


def list_files(folders: Sequence[Path] = (), progress: Callable[[int, int], None] = lambda _n, _all: None) -> Listing:
    """The files in the usual places and in `folders`, the largest first; weights are not read.

    `progress` is told how many headers of how many were read. Raises UsageError for a folder that does not exist.
    """
    for folder in folders:
        _check_is_there(folder)
    shelved = shelved_here(folders)
    handles = handles_of(shelved.files)
    files, notes = shelved.files, shelved.notes
    if len(files) > _N_FILES_READ:
        notes = (*notes, f"Of {len(files)} files the first {_N_FILES_READ} are shown.")
        files = files[:_N_FILES_READ]
    judge = _judge() if any(not one.trouble for one in files) else _Judge(room=None, machine_id=None)
    listed = []
    for n_done, file in enumerate(files):
        progress(n_done, len(files))
        listed.append(_listed(file, handles[file], judge))
    room = judge.room
    devices = tuple((name, free or 0) for name, free in zip(room.names, room.free_bytes, strict=True)) if room else None
    return Listing(
        files=tuple(sorted(listed, key=lambda one: (-one.file_bytes, one.name))),
        shelves=shelved.shelves,
        notes=notes,
        n_ctx=N_CTX_PLANNED,
        devices=devices,
        available_bytes=room.available_bytes if room else None,
        no_fit=judge.no_fit,
    )


def _check_is_there(folder: Path) -> None:
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        hint = "check the spelling; the usual folders are looked into without being named"
        raise UsageError(f"{folder} does not exist.", hint=hint) from None
    except OSError:  # whoever looks into it says why it cannot be read
        return


def _judge() -> _Judge:
    """What there is to give on this machine now, told without disturbing one who measures on it."""
    if (owner := store.owner_now(store.data_dir())) is not None:
        no_fit = f"{owner.what} is being measured now, and the devices must not be asked meanwhile."
        return _Judge(room=None, machine_id=None, no_fit=no_fit)
    try:
        with Runner(Path()) as runner:
            engine, devices = runner.describe()
    except (EngineMissingError, EngineError) as error:
        return _Judge(room=None, machine_id=None, no_fit=str(error))
    machine = Machine(host=probe_host(measure=False), devices=devices)
    return _Judge(room=machine_place(machine, engine).room, machine_id=machine.machine_id)


def _listed(file: ShelvedFile, name: str, judge: _Judge) -> ListedFile:
    """The file with its header's word; whatever is wrong with it is said in a line of its own."""
    listed = ListedFile(
        name=name,
        path=file.path,
        program=file.program,
        file_bytes=file.file_bytes,
        n_shards=file.n_shards,
        companion=file.companion,
        trouble=file.trouble,
    )
    if not listed.is_model:
        return listed
    try:
        facts = read_gguf(file.path, identify=False)
    except GgufError as error:
        companion = _companion_of(file.path)
        trouble = "" if companion else _predicate(str(error), file.path)
        return dataclasses.replace(listed, companion=companion, trouble=trouble)
    return dataclasses.replace(
        listed,
        arch=facts.arch,
        quantisation=facts.quantisation,
        n_params=facts.n_params,
        n_layer=facts.n_layer,
        n_expert=facts.n_expert,
        n_ctx_train=facts.n_ctx_train,
        is_standin=facts.stands_for is not None,
        fit=_fit(facts, judge),
        has_profile=None if judge.machine_id is None else _has_profile(facts, judge.machine_id),
    )


def _predicate(sentence: str, path: Path) -> str:
    """A sentence about `path` without its subject; one about another file, a shard, is told whole."""
    subject, text = f"{path} ", sentence.rstrip(".")
    return text.removeprefix(subject) if text.startswith(subject) else f"cannot be used: {text}"


def _companion_of(path: Path) -> str:
    """What a file that is no model is beside one, by its header; "" where that does not say."""
    try:
        header = read_header(path)
    except GgufError:
        return ""
    kind = header.text("general.type")
    if is_projector(header.text("general.architecture"), kind):
        return "projector of images"
    return _COMPANION_KINDS.get(kind or "", "")


def _fit(facts: GgufFacts, judge: _Judge) -> FileFit:
    if judge.room is None:
        return FileFit(verdict=FitVerdict.UNKNOWN, reason=judge.no_fit)
    try:
        return fit_of(facts, judge.room)
    except OffloadTuneError as error:
        return FileFit(verdict=FitVerdict.UNKNOWN, reason=str(error))
    except Exception:  # noqa: BLE001 - whatever stands in the header of a stranger's file, the others go on
        return FileFit(verdict=FitVerdict.UNKNOWN, reason=_NO_SENSE)


def fit_of(facts: GgufFacts, room: Room) -> FileFit:
    """How many layers fit with the default context, all that stays behind being in main memory. Raises UsageError.

    Weights mapped from the file count as if they were held: read from the disk for every token, they are of no use.
    """
    settings = settings_for(PlanRequest(), facts)
    most = settings.n_gpu_layers
    layers = np.arange(most if room.names else 0, -1, -1)
    found = reckon(facts, grid_of(facts, settings, n_gpu_layers=layers), room.backends, room.shares)
    ok = fits(found, room, is_mapped=False)
    if ok.any():
        n_gpu_layers = int(layers[ok.argmax()])
        verdict = {most: FitVerdict.ALL, 0: FitVerdict.MAIN_MEMORY}.get(n_gpu_layers, FitVerdict.SOME)
        return FileFit(verdict=verdict, n_gpu_layers=n_gpu_layers, n_gpu_layers_all=most)
    without = fit_of(facts, _without_devices(room)) if room.names else None
    if without and without.verdict is not FitVerdict.NO:  # a device computes, and may lack room for that alone
        return without
    on_devices = fits(found, dataclasses.replace(room, available_bytes=None), is_mapped=False)
    held = found.host_weights_bytes + found.host_kv_cache_bytes + found.host_compute_bytes + found.output_bytes
    lacking = [int(one) - (room.available_bytes or 0) for one in held[on_devices]]
    if without and without.short_bytes is not None:
        lacking.append(without.short_bytes)
    return FileFit(verdict=FitVerdict.NO, n_gpu_layers_all=most, short_bytes=min(lacking))


def _without_devices(room: Room) -> Room:
    return dataclasses.replace(room, names=(), backends=(), free_bytes=(), runtime_bytes=(), margin_bytes=(), shares=())


def _has_profile(facts: GgufFacts, machine_id: str) -> bool:
    """Whether a sweep wrote a profile of this machine for a file of this name and size."""
    path = store.profiles_dir() / machine_id / f"{facts.path.stem}.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return bool(document["gguf"]["file_bytes"] == facts.file_bytes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False

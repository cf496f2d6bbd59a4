"""speed.json: runs that showed how fast a machine is, beside its machine.toml.

One engine build and one driver wrote all that is in it: runs of others are not used, and go when new ones are written.
Losing the file costs a calibration, so what cannot be read is as if nothing were stored, and is said.

SPEED_FORMAT history:
    1  first: {"format": 1, "maker": a SpeedMaker, "kinds": [[a RunKind, [KeptRun, ...]], ...]}.
A newer FORMAT than ours is neither read nor written over.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from offloadtune.errors import StoreError
from offloadtune.records import Machine
from offloadtune.speeds import Phase, Run
from offloadtune.store.codec import from_json, to_json
from offloadtune.store.journal import parsed
from offloadtune.store.machines import machine_path

SPEED_FORMAT = 1
N_RUNS_KEPT = 64
"""Of each phase and kind; the newest."""

_MOST_BYTES = 8 << 20
_N_AMOUNTS_MOST = 1000
_MOST_AMOUNT = 1e24
_LEAST_S, _MOST_S = 1e-9, 1e6
_MOST_NOISE = 10.0
_LONGEST_LABEL = 300
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedMaker:
    """What made the runs: with another build or driver the same settings may be faster or slower."""

    build_id: str
    drivers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind:
    """Runs that one law explains: the ggml type of most of a file's bytes, the devices used, how the CPU stores."""

    type_name: str
    devices: tuple[str, ...]
    use_extra_bufts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run, and the name of the sweep or calibration that it belongs to; these sort by time."""

    run: Run
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    maker: SpeedMaker
    kinds: tuple[tuple[RunKind, tuple[KeptRun, ...]], ...]


class _NewerError(ValueError):
    """Written by a newer offloadtune."""


def speed_path(machine: Machine) -> Path:
    """Where the runs of `machine` are kept."""
    return machine_path(machine).with_name("speed.json")


def maker_of(machine: Machine, build_id: str) -> SpeedMaker:
    """The engine build and the drivers of the cards it uses, as far as NVML tells them."""
    cards = (machine.nvml_of(device) for device in machine.offload_devices)
    return SpeedMaker(build_id=build_id, drivers=tuple(sorted({card.driver for card in cards if card and card.driver})))


def read_speeds(path: Path, maker: SpeedMaker) -> tuple[Mapping[RunKind, tuple[KeptRun, ...]], str]:
    """The runs at `path` that `maker` made, oldest first; and a sentence where there are some that do not count."""
    try:
        content = _read(path)
    except _NewerError:
        return {}, f"{path} was written by a newer offloadtune: the runs in it are not used."
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}, f"{path} cannot be read or is damaged: it is as if no run had been kept."
    if content is None:
        return {}, ""
    if content.maker != maker:
        what = "another engine build" if content.maker.build_id != maker.build_id else "another driver"
        return {}, f"The runs kept of this machine's speed were made with {what}, and do not count any more."
    return dict(content.kinds), ""


def keep_runs(path: Path, maker: SpeedMaker, kind: RunKind, runs: Iterable[KeptRun], *, is_fresh: bool = False) -> None:
    """Add `runs` to those of `kind` at `path`, or with `is_fresh` put them in their place. Raises StoreError.

    Runs of another maker go, and so does what cannot be read.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock", timeout=_PATIENCE_S):
            kinds = _own_kinds(path, maker)
            kinds[kind] = merged(() if is_fresh else kinds.get(kind, ()), runs)
            _write(path, _Content(maker=maker, kinds=tuple(kinds.items())))
    except filelock.Timeout:
        message = f"Another program has been writing to {path} for {_PATIENCE_S:g} s."
        raise StoreError(message, hint="wait until it is done, or end it") from None
    except _NewerError:
        message = f"{path} was written by a newer offloadtune, and is left as it is."
        raise StoreError(message, hint="update offloadtune") from None
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}."
        raise StoreError(message, hint="check the folder's permissions and free space") from None


def merged(kept: Sequence[KeptRun], new: Iterable[KeptRun]) -> tuple[KeptRun, ...]:
    """`kept` and `new` in the order they came; of equal amounts the newest, and no more of a phase than are kept."""
    newest: dict[Any, KeptRun] = {}
    for one in (*kept, *new):
        key = (one.run.phase, one.run.amounts)
        newest.pop(key, None)
        newest[key] = one
    n_left = dict.fromkeys(Phase, N_RUNS_KEPT)
    last: list[KeptRun] = []
    for one in reversed(newest.values()):
        n_left[one.run.phase] -= 1
        if n_left[one.run.phase] >= 0:
            last.append(one)
    return tuple(reversed(last))


def _own_kinds(path: Path, maker: SpeedMaker) -> dict[RunKind, tuple[KeptRun, ...]]:
    """What `maker` wrote at `path`, and nothing where it cannot be read. Raises _NewerError."""
    try:
        content = _read(path)
    except _NewerError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return dict(content.kinds) if content and content.maker == maker else {}


def _read(path: Path) -> _Content | None:
    """None where nothing is stored. Raises OSError, _NewerError, and what JSON and the records raise."""
    if not path.exists():
        return None
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:  # a pipe without a writer would hold us forever
        raise ValueError("no file of ours")
    document = parsed(path.read_bytes())
    written_format = document["format"]
    if not isinstance(written_format, int) or isinstance(written_format, bool) or written_format < 1:
        raise ValueError("no format")
    if written_format > SPEED_FORMAT:
        raise _NewerError
    content = from_json(_Content, {"maker": document["maker"], "kinds": document["kinds"]})
    for _, runs in content.kinds:
        if not all(_is_sound(one.run) for one in runs):
            raise ValueError("no run")
    return content


def _write(path: Path, content: _Content) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({"format": SPEED_FORMAT, **to_json(content)}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _is_sound(run: Run) -> bool:
    """Whether a law can be solved with it, and its label printed."""
    amounts = [amount for _, amount in run.amounts]
    return (
        0 < len(amounts) < _N_AMOUNTS_MOST
        and all(0 < amount < _MOST_AMOUNT for amount in amounts)
        and _LEAST_S < run.seconds < _MOST_S
        and 0 <= run.noise_frac < _MOST_NOISE
        and len(run.label) < _LONGEST_LABEL
        and run.label.isprintable()
    )

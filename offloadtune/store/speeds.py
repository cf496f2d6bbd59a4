"""speed.json: runs that showed how fast a machine is, beside its machine.toml.

One engine build and one driver wrote all that is in it: runs of others are not used, and go when new ones are written.
Losing the file costs a calibration, so what is damaged is as if nothing were stored, and is said.

SPEED_FORMAT history:
    1  first: {"format": 1, "maker": a SpeedMaker, "kinds": [[a RunKind, [KeptRun, ...]], ...]}.
    2  prompts have "activations", several sequences have "flop": the same settings have other amounts than before.
A newer FORMAT than ours is neither read nor written over; what an older one holds does not count.
"""

from __future__ import annotations

import json
import os
import stat
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
from offloadtune.store.home import data_dir
from offloadtune.store.journal import parsed
from offloadtune.store.machines import machine_path
from offloadtune.units import format_count

SPEED_FORMAT = 2
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
    no_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run, and the name of the sweep or calibration that it belongs to; these sort by time."""

    run: Run
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """Of a file; `n_unsound` are the runs in it that no law can be solved with."""

    maker: SpeedMaker
    kinds: dict[RunKind, tuple[KeptRun, ...]]
    n_unsound: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The same before its runs are looked at, one by one."""

    maker: SpeedMaker
    kinds: tuple[tuple[RunKind, tuple[Any, ...]], ...]


class _NewerError(ValueError):
    """Written by a newer offloadtune."""


class _OlderError(ValueError):
    """Written by an older offloadtune."""


_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)
"""What a file raises that is not what we write."""


def speed_path(machine: Machine) -> Path:
    """Where the runs of `machine` are kept."""
    return machine_path(machine).with_name("speed.json")


def maker_of(machine: Machine, build_id: str) -> SpeedMaker:
    """The engine build and the drivers of the cards it uses, as far as NVML tells them."""
    cards = (machine.nvml_of(device) for device in machine.offload_devices)
    return SpeedMaker(build_id=build_id, drivers=tuple(sorted({card.driver for card in cards if card and card.driver})))


def read_speeds(path: Path, maker: SpeedMaker) -> tuple[Mapping[RunKind, tuple[KeptRun, ...]], str]:
    """The runs at `path` that `maker` made, oldest first; and a sentence where there are some that do not count."""
    content, why = None, ""
    try:
        content = _read(path)
    except _NewerError:
        why = f"{path} was written by a newer offloadtune: the runs in it are not used."
    except _OlderError:
        why = f"{path} was written by an older offloadtune: the runs in it do not count any more."
    except OSError as error:
        why = f"{path} cannot be read ({error.strerror or error}): it is as if no run had been kept."
    except _DAMAGE:
        why = f"{path} is damaged: it is as if no run had been kept."
    if content is None:
        return {}, why
    if content.maker != maker:
        what = "another engine build" if content.maker.build_id != maker.build_id else "another driver"
        return {}, f"The runs kept of this machine's speed were made with {what}, and do not count any more."
    if content.n_unsound:
        why = f"{path} holds {format_count(content.n_unsound, 'run')} that cannot be true: left out."
    return content.kinds, why


def keep_runs(path: Path, maker: SpeedMaker, kind: RunKind, runs: Iterable[KeptRun], *, is_fresh: bool = False) -> None:
    """Add `runs` to those of `kind` at `path`, or with `is_fresh` put them in their place. Raises StoreError.

    Runs of another maker go, and so does what is damaged; a file that the system does not let us read stays.
    """
    sound = [one for one in runs if _is_sound(one.run)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock_path = data_dir() / "speeds.lock"  # of all machines, and not among the profiles
        lock_path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock_path, timeout=_PATIENCE_S):
            kinds = _own_kinds(path, maker)
            kinds[kind] = merged(() if is_fresh else kinds.get(kind, ()), sound)
            _write(path, maker, kinds)
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
    """What `maker` wrote at `path`, and nothing where it is damaged. Raises _NewerError, StoreError."""
    try:
        content = _read(path)
    except _NewerError:
        raise
    except OSError as error:
        message = f"{path} cannot be read, and is left as it is: {error.strerror or error}."
        raise StoreError(message, hint="check its permissions, or move it away") from None
    except _DAMAGE:
        return {}
    return content.kinds if content and content.maker == maker else {}


def _read(path: Path) -> _Content | None:
    """None where nothing is stored. Raises OSError, _NewerError, _OlderError, and what is in _DAMAGE."""
    try:
        known = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(known.st_mode) or known.st_size > _MOST_BYTES:  # a pipe without a writer would hold us forever
        raise ValueError("no file of ours")
    document = parsed(path.read_bytes())
    written_format = document["format"]
    if not isinstance(written_format, int) or isinstance(written_format, bool) or written_format < 1:
        raise ValueError("no format")
    if written_format > SPEED_FORMAT:
        raise _NewerError
    if written_format < SPEED_FORMAT:
        raise _OlderError
    written = from_json(_Written, {"maker": document["maker"], "kinds": document["kinds"]})
    kinds: dict[RunKind, tuple[KeptRun, ...]] = {}
    n_unsound = 0
    for kind, values in written.kinds:
        sound = [one for one in map(_run, values) if one is not None]
        n_unsound += len(values) - len(sound)
        kinds[kind] = merged((), sound)
    return _Content(maker=written.maker, kinds=kinds, n_unsound=n_unsound)


def _run(value: Any) -> KeptRun | None:
    """None where it is no run, or none that a law can be solved with."""
    try:
        one = from_json(KeptRun, value)
    except _DAMAGE:
        return None
    return one if _is_sound(one.run) else None


def _write(path: Path, maker: SpeedMaker, kinds: Mapping[RunKind, Sequence[KeptRun]]) -> None:
    values = [[to_json(kind), [to_json(one) for one in runs]] for kind, runs in kinds.items()]
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({"format": SPEED_FORMAT, "maker": to_json(maker), "kinds": values}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
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

"""The journal of a sweep: one JSON line per event, on disk before the next trial begins.

Contract: a line is appended whole and fsynced, never changed; a torn last line (the machine died) is ignored on
reading; a line in the middle that cannot be read is an error, because it means somebody edited the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from offloadtune.conditions import MemoryChange
from offloadtune.errors import StoreError
from offloadtune.records import (
    NO_LIMITS,
    EngineBuild,
    Goal,
    Limits,
    Machine,
    Recommendation,
    StandsFor,
    Target,
    TrialResult,
    Visit,
    Workload,
)
from offloadtune.store import soundness
from offloadtune.store.codec import FORMAT, from_json, to_json

RULER = 2
"""How trials are measured now. 1: all through llama.cpp itself; 2: through `Llama` where that is the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHeader:
    """What a sweep was made on and for; unlike sweeps are never mixed.

    `n_fit_layers` is the answer of llama.cpp's --fit rule then, `no_fit` why there is none to be tried; `n_os_cpus`
    counted all CPUs of the system, None where that was not written down. `ruler` counts the ways of measuring there
    have been: figures of different ones are not compared. `n_layer` are the file's own layers, None where they were not
    written down; `stands_for` as in `GgufFacts`, `allow_kv_quant` as in `SweepRequest`. `limit_bytes` is of device
    memory, `limits` are all others.
    """

    offloadtune_version: str
    machine_id: str
    machine: Machine
    engine: EngineBuild
    gguf_id: str
    gguf_path: Path
    file_bytes: int
    workload: Workload
    goal: Goal
    target: Target
    n_ctx: int
    fixed: dict[str, Any]
    limit_bytes: int | None
    started_at: str
    endpoints: tuple[str, ...] = ()
    n_fit_layers: int | None = None
    no_fit: str = ""
    n_os_cpus: int | None = None
    ruler: int = 1
    n_layer: int | None = None
    stands_for: StandsFor | None = None
    allow_kv_quant: bool = False
    limits: Limits = NO_LIMITS

    def __post_init__(self) -> None:
        fixed = {name: tuple(value) if isinstance(value, list) else value for name, value in self.fixed.items()}
        object.__setattr__(self, "fixed", fixed)  # JSON has no tuples, and what was read asks the same question

    @property
    def drivers(self) -> tuple[str | None, ...]:
        return tuple(gpu.driver for gpu in self.machine.host.nvml_gpus or ())

    @property
    def free_bytes(self) -> dict[str, int]:
        """Free memory of each offload device."""
        return {device.name: device.free_bytes for device in self.machine.offload_devices}

    def with_rule_of(self, earlier: SweepHeader) -> SweepHeader:
        """The same with what llama.cpp's --fit rule said earlier."""
        return replace(self, n_fit_layers=earlier.n_fit_layers, no_fit=earlier.no_fit)

    def after(self, change: MemoryChange) -> SweepHeader:
        """The same with the device memory that there was from then on."""
        machine = self.machine.with_free(dict(change.free_bytes))
        return replace(self, machine=machine, n_fit_layers=change.n_fit_layers, no_fit=change.no_fit)

    def as_change(self, words: str) -> MemoryChange:
        """What `after` makes this of an earlier header of its sweep."""
        free_bytes = tuple(self.free_bytes.items())
        return MemoryChange(free_bytes=free_bytes, words=words, n_fit_layers=self.n_fit_layers, no_fit=self.no_fit)

    @property
    def question(self) -> tuple[Any, ...]:
        """What the user asked, whatever it was asked on."""
        workload = (self.workload.n_prefix_cached, self.workload.n_prompt_new, self.workload.n_gen)
        fixed = tuple(sorted(self.fixed.items()))
        asked = (str(self.gguf_path), workload, self.goal, self.target, self.n_ctx, fixed, self.limit_bytes)
        younger = ("allow_kv_quant",) if self.allow_kv_quant else ()
        if self.limits != NO_LIMITS:
            younger = (*younger, self.limits)
        return (*asked, *younger)  # without any the keys are those of older journals

    @property
    def sweep_key(self) -> str:
        """12 hex digits: equal only for the same question, file content, machine, engine, driver and ruler."""
        facts = (self.question, self.gguf_id, self.machine_id, self.engine.build_id, self.drivers, self.ruler)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContent:
    """A journal read back. `rounds` maps trial_id to visits, one mapping a round.

    `is_ended` tells whether its last line is that of an end: a sweep that was killed has none. `kept` are the knobs
    its engine build needed to live, None where that was not written down. `n_results_at` tells for each of the rounds
    how many of the results were written before it, `n_results_at_change` the same for each of the changes. Results that
    a change explains, and not their settings, are not among the results.
    """

    header: SweepHeader
    results: tuple[TrialResult, ...]
    rounds: tuple[dict[str, tuple[Visit, ...]], ...]
    recommendation: Recommendation | None
    is_ended: bool = False
    kept: dict[str, Any] | None = None
    n_results_at: tuple[int, ...] = ()
    changes: tuple[MemoryChange, ...] = ()
    n_results_at_change: tuple[int, ...] = ()

    @property
    def header_now(self) -> SweepHeader:
        """The header, with the device memory that its sweep went on with in the end."""
        return self.header.after(self.changes[-1]) if self.changes else self.header

    def free_bytes_at(self, i_result: int) -> dict[str, int]:
        """Free memory by device, as it was when that result was measured."""
        before = [one for one, n in zip(self.changes, self.n_results_at_change, strict=True) if n <= i_result]
        return (self.header.after(before[-1]) if before else self.header).free_bytes


class Journal:
    """An open journal. Every method returns only when its line is on disk. Raises StoreError."""

    def __init__(self, path: Path, header: SweepHeader | None) -> None:
        """A new journal with `header`, or without one the journal at `path` continued, its torn last line cut off."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream: BinaryIO = path.open("xb" if header else "r+b")
            if header is None:
                whole = self._stream.read().rfind(b"\n") + 1
                self._stream.truncate(whole)
                self._stream.seek(whole)
        except OSError as error:
            raise _cannot_write(path, error) from None
        if header is not None:
            self._append("header", {"format": FORMAT, **to_json(header)})

    def append_trial(self, result: TrialResult) -> None:
        self._append("trial", to_json(result))

    def append_round(self, visits: Sequence[tuple[str, tuple[Visit, ...]]]) -> None:
        self._append("round", {trial_id: [to_json(visit) for visit in some] for trial_id, some in visits})

    def append_kept(self, knobs: Mapping[str, Any]) -> None:
        self._append("kept", dict(knobs))

    def append_change(self, change: MemoryChange) -> None:
        self._append("change", to_json(change))

    def append_excused(self, result: TrialResult, why: str) -> None:
        """How a trial ended that does not count, for the reason `why`: nobody reads it back but people."""
        self._append("excused", {"why": why, "result": to_json(result)})

    def append_end(self, recommendation: Recommendation | None) -> None:
        self._append("end", None if recommendation is None else to_json(recommendation))

    def close(self) -> None:
        """Whatever did not get onto the disk was told when it was written."""
        with contextlib.suppress(OSError):
            self._stream.close()

    def _append(self, kind: str, value: Any) -> None:
        line = json.dumps({"kind": kind, "value": value}, allow_nan=True).encode() + b"\n"
        try:
            self._stream.write(line)
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise _cannot_write(self.path, error) from None


def read_journal(path: Path) -> JournalContent:
    """Read a journal back. Raises StoreError when it is not one, is newer than this program, or was edited."""
    lines = _lines(path)
    header = _header(path, lines[0] if lines else {})
    read: dict[str, list[Any]] = {kind: [] for kind in _READERS}
    n_results_at: dict[str, list[int]] = {"round": [], "change": []}
    for i, line in enumerate(lines):
        if line["kind"] in n_results_at:
            n_results_at[line["kind"]].append(len(read["trial"]))
        if line["kind"] in read:
            try:
                read[line["kind"]].append(_READERS[line["kind"]](line["value"]))
            except (ValueError, TypeError, AttributeError, RecursionError):
                raise _wrong_line(path, i) from None
    return JournalContent(
        header=header,
        results=tuple(read["trial"]),
        rounds=tuple(read["round"]),
        recommendation=next((answer for answer in reversed(read["end"]) if answer), None),
        is_ended=lines[-1]["kind"] == "end",
        kept=read["kept"][-1] if read["kept"] else None,
        n_results_at=tuple(n_results_at["round"]),
        changes=tuple(read["change"]),
        n_results_at_change=tuple(n_results_at["change"]),
    )


def has_lines(path: Path) -> bool:
    """Whether at least one whole line stands in the file; unreadable files are left to `read_journal` to tell."""
    try:
        with path.open("rb") as stream:
            return stream.readline().endswith(b"\n")
    except OSError:
        return True


def read_header(path: Path) -> SweepHeader:
    """The header alone, from the first line of a journal. Raises StoreError as `read_journal` does."""
    try:
        with path.open("rb") as stream:
            line = parsed(stream.readline())
    except OSError as error:
        raise _cannot_read(path, error) from None
    except (ValueError, RecursionError):
        line = {}
    return _header(path, line if isinstance(line, dict) else {})


def _header(path: Path, line: dict[str, Any]) -> SweepHeader:
    value = dict(line["value"]) if line.get("kind") == "header" and isinstance(line.get("value"), dict) else {}
    written_format = value.pop("format", None)
    if not isinstance(written_format, int):
        message = f"{path} is not a journal of a sweep."
        raise StoreError(message, hint="move the file away and sweep again")
    if written_format > FORMAT:
        message = f"{path} was written by a newer offloadtune (format {written_format}, this one reads {FORMAT})."
        raise StoreError(message, hint="update offloadtune")
    try:
        header = from_json(SweepHeader, value)
        soundness.check_header(header)
    except (ValueError, TypeError, RecursionError):
        raise _wrong_line(path, 0) from None
    return header


def _wrong_line(path: Path, i_line: int) -> StoreError:
    message = f"{path} holds a line that does not read as what it says it is: line {i_line + 1}."
    return StoreError(message, hint="move the file away and sweep again")


def _cannot_read(path: Path, error: OSError) -> StoreError:
    message = f"{path} cannot be read: {error.strerror or error}."
    return StoreError(message, hint="check the path and its permissions")


def parsed(text: bytes) -> Any:
    """JSON whose whole numbers have at most 64 bits, as all that are measured. Raises ValueError, RecursionError."""
    return json.loads(text, parse_int=_parsed_int)


def _parsed_int(digits: str) -> int:
    number = int(digits)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(digits)
    return number


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        raw = path.read_bytes().split(b"\n")
    except OSError as error:
        raise _cannot_read(path, error) from None
    lines = []
    for i, text in enumerate(raw[:-1]):  # what follows the last newline is torn or empty
        try:
            line = parsed(text)
            lines.append({"kind": str(line["kind"]), "value": line["value"]})
        except (ValueError, TypeError, KeyError, RecursionError):
            message = f"{path} is damaged at line {i + 1}."
            raise StoreError(message, hint="move the file away and sweep again") from None
    return lines


def _trial(value: Any) -> TrialResult:
    result = from_json(TrialResult, value)
    soundness.check_result(result)
    return result


def _round(value: dict[str, Any]) -> dict[str, tuple[Visit, ...]]:
    one = {trial_id: tuple(from_json(Visit, visit) for visit in visits) for trial_id, visits in value.items()}
    soundness.check_round(one)
    return one


def _kept(value: dict[str, Any]) -> dict[str, Any]:
    soundness.check_fixed(value)
    return value


def _change(value: Any) -> MemoryChange:
    change = from_json(MemoryChange, value)
    soundness.check_change(change)
    return change


def _end(value: Any) -> Recommendation | None:
    if not value:
        return None
    answer = from_json(Recommendation, value)
    soundness.check_answer(answer)
    return answer


_READERS: dict[str, Callable[[Any], Any]] = {
    "trial": _trial,
    "round": _round,
    "kept": _kept,
    "change": _change,
    "end": _end,
}
"""Kind of a line -> what reads its value. Raises ValueError, TypeError, AttributeError for what is no such value."""


def _cannot_write(path: Path, error: OSError) -> StoreError:
    message = f"The journal {path} cannot be written: {error.strerror or error}."
    return StoreError(message, hint="free some space or set OFFLOADTUNE_HOME to a folder you can write to")

"""The trend: every run of a bench, one JSON line each, in a file for each machine and model file.

Contract: a line is appended whole and fsynced, never changed. Each bears the number of its format, so that programs of
several versions may append to one file. A line that cannot be read is told, and hides no other.

TREND_FORMAT history:
    1  first: {"format": 1, "run": a BenchRun}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import filelock

from offloadtune.benches import BenchRun
from offloadtune.errors import StoreError
from offloadtune.store import soundness
from offloadtune.store.codec import from_json, to_json
from offloadtune.store.journal import parsed

TREND_FORMAT = 1
_PATIENCE_S = 10.0
_LONGEST_LINE_BYTES = 64 << 20
"""A run has some hundred kilobytes; of a line without an end no more than this is held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLine:
    """A line that is no run that can be read; it counts from 1, and `reason` is a full sentence."""

    i_line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendContent:
    """The runs of one file in the order they were appended, and the lines that are none.

    The torn last line of a writer that was killed is neither.
    """

    path: Path
    runs: tuple[BenchRun, ...]
    broken: tuple[BrokenLine, ...]


def trend_paths(data_dir: Path) -> list[Path]:
    """All files of the trend. Files only: reading a pipe of such a name would wait for ever."""
    return sorted(path for path in _folder(data_dir).glob("*/*.jsonl") if path.is_file())


def append_run(data_dir: Path, run: BenchRun) -> Path:
    """Append `run` to the trend of its machine and file; returns when it is on disk. Raises StoreError."""
    path = _folder(data_dir) / run.machine.machine_id / f"{run.gguf_id}.jsonl"
    line = json.dumps({"format": TREND_FORMAT, "run": to_json(run)}).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock", timeout=_PATIENCE_S), path.open("a+b") as stream:
            _heal(stream)
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except filelock.Timeout:
        message = f"Another program has been writing to the trend {path} for {_PATIENCE_S:g} s."
        raise StoreError(message, hint="wait until it is done, or end it") from None
    except OSError as error:
        message = f"The trend {path} cannot be written: {error.strerror or error}."
        hint = "free some space or set OFFLOADTUNE_HOME to a folder you can write to"
        raise StoreError(message, hint=hint) from None
    return path


def read_runs(path: Path) -> TrendContent:
    """The runs that stand in the file at `path`. Raises StoreError when it cannot be opened at all."""
    runs, broken = [], []
    try:
        with path.open("rb") as stream:
            for i_line, line in enumerate(_lines(stream), start=1):
                try:
                    runs.append(_run(line))
                except StoreError as error:
                    broken.append(BrokenLine(i_line=i_line, reason=f"Line {i_line} of {path} {error}"))
                except (ValueError, TypeError, KeyError, RecursionError):
                    if line.endswith(b"\n"):  # else its writer was killed
                        reason = f"Line {i_line} of {path} is no run of a bench."
                        broken.append(BrokenLine(i_line=i_line, reason=reason))
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}."
        raise StoreError(message, hint="check the path and its permissions") from None
    return TrendContent(path=path, runs=tuple(runs), broken=tuple(broken))


def _folder(data_dir: Path) -> Path:
    return data_dir / "trends"


def _heal(stream: BinaryIO) -> None:
    """End the last line where a killed writer did not: cut it off, or add the newline that is all it lacks."""
    n_bytes = stream.seek(0, os.SEEK_END)
    start = _start_of_last_line(stream, n_bytes)
    if start == n_bytes:
        return
    stream.seek(start)
    try:
        parsed(stream.read(_LONGEST_LINE_BYTES))
    except (ValueError, RecursionError):  # no beginning of a JSON object is one
        stream.truncate(start)
    else:
        stream.write(b"\n")


def _start_of_last_line(stream: BinaryIO, n_bytes: int) -> int:
    """Where what follows the last newline begins; the end of the file where nothing does."""
    block_bytes = 1 << 16
    end = n_bytes
    while end:
        begin = max(0, end - block_bytes)
        stream.seek(begin)
        i_newline = stream.read(end - begin).rfind(b"\n")
        if i_newline >= 0:
            return begin + i_newline + 1
        end = begin
    return 0


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Every line with its newline; of one that is longer than any run only the beginning, so that it reads as none."""
    while line := stream.readline(_LONGEST_LINE_BYTES):
        rest = line
        while len(rest) == _LONGEST_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(_LONGEST_LINE_BYTES)
            line = b"\n" if rest.endswith(b"\n") else b""
        yield line


def _run(line: bytes) -> BenchRun:
    """Raises StoreError, the end of a sentence, for a newer format; what is no run at all raises as JSON does."""
    value = parsed(line)
    written_format = value["format"]
    if not isinstance(written_format, int) or isinstance(written_format, bool) or written_format < 1:
        raise ValueError("no format")
    if written_format > TREND_FORMAT:
        message = f"was written by a newer offloadtune (format {written_format}, this one reads {TREND_FORMAT})."
        raise StoreError(message, hint="update offloadtune")
    run = from_json(BenchRun, value["run"])
    soundness.check_run(run)
    return run

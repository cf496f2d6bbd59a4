"""Rows of llama-bench that are kept: this machine's own in one file, what was imported apart, a file for each content.

Contract: as in a journal, whole lines are appended and fsynced, and a torn last line is passed over. An imported file
appears whole, by renaming. Imported rows are never counted as this machine's, whatever they say of themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offloadtune.errors import StoreError
from offloadtune.rows import BenchRow
from offloadtune.store.codec import from_json, to_json

_OWN = "rows.jsonl"
_IMPORTS = "imports"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Rows measured here, and the imported ones by the machine that they name."""

    own: tuple[BenchRow, ...]
    imported: dict[str, tuple[BenchRow, ...]]


def machine_of(row: BenchRow) -> str:
    """The CPU and devices that a row names, as one text to tell machines apart."""
    return ", ".join(str(row.fields[name]) for name in ("cpu_info", "gpu_info") if row.fields.get(name))


def append_rows(folder: Path, rows: Sequence[BenchRow]) -> Path:
    """Add rows measured here; they are on disk when this returns. Raises StoreError."""
    path = folder / _OWN
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
            torn = b"" if stream.read(1) in {b"", b"\n"} else b"\n"  # who wrote last was killed in the middle
            stream.write(torn + _lines(rows))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise _cannot_write(path, error) from None
    return path


def keep_imported(folder: Path, rows: Sequence[BenchRow]) -> tuple[Path, bool]:
    """Where these imported rows are kept, and whether they already were. Raises StoreError."""
    content = _lines(rows)
    path = folder / _IMPORTS / f"{hashlib.sha256(content).hexdigest()[:12]}.jsonl"
    try:
        if path.exists():
            return path, True
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from None
    return path, False


def read_stored_rows(folder: Path) -> StoredRows:
    """All rows that are kept. Raises StoreError for a line in the middle that is none: somebody edited the file."""
    imported: dict[str, list[BenchRow]] = {}
    for path in sorted((folder / _IMPORTS).glob("*.jsonl")):
        for row in _read(path):
            imported.setdefault(machine_of(row), []).append(row)
    return StoredRows(
        own=tuple(_read(folder / _OWN)), imported={machine: tuple(rows) for machine, rows in imported.items()}
    )


def _lines(rows: Sequence[BenchRow]) -> bytes:
    return b"".join(json.dumps(to_json(row)).encode() + b"\n" for row in rows)


def _read(path: Path) -> list[BenchRow]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}."
        raise StoreError(message, hint="check the path and its permissions") from None
    rows = []
    for i, line in enumerate(lines):
        try:
            rows.append(from_json(BenchRow, json.loads(line)))
        except (ValueError, RecursionError):
            if line and i < len(lines) - 1 and not _is_torn(line):
                message = f"{path} holds a line that is no row: line {i + 1}."
                raise StoreError(message, hint="move the file away; what it held can be imported again") from None
    return rows


def _is_torn(line: bytes) -> bool:
    """Whether a line ends in the middle of its object, as the last one of a killed process does."""
    return not line.endswith(b"}")


def _cannot_write(path: Path, error: OSError) -> StoreError:
    message = f"The rows {path} cannot be written: {error.strerror or error}."
    return StoreError(message, hint="free some space or set OFFLOADTUNE_HOME to a folder you can write to")

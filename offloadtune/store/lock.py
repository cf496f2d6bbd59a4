"""One sweep at a time: a second one on the same machine would spoil the figures of both.

The lock is the operating system's (through filelock), so it goes with its owner however that dies; a note beside it
says who the owner is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import filelock

from offloadtune.errors import BusyError, StoreError


@contextlib.contextmanager
def measuring_alone(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of `folder` inside the block; `what` is being measured. Raises BusyError, StoreError."""
    lock, note = filelock.FileLock(folder / "measuring.lock"), folder / "measuring.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        message = f"Another sweep is measuring here: {_owner(note)}."
        hint = "wait until it ends, or stop it with Ctrl-C: together they would measure each other"
        raise BusyError(message, hint=hint) from None
    except OSError as error:
        message = f"The folder of journals, {folder}, cannot be written: {error.strerror or error}."
        raise StoreError(message, hint="set OFFLOADTUNE_HOME to a folder you can write to") from None
    try:
        with contextlib.suppress(OSError):
            began = datetime.now(UTC).isoformat(timespec="seconds")
            note.write_text(json.dumps({"pid": os.getpid(), "began": began, "what": what}), encoding="utf-8")
        yield
    finally:
        lock.release()


def _owner(note: Path) -> str:
    try:
        owner = json.loads(note.read_text(encoding="utf-8"))
        return f"process {owner['pid']}, since {owner['began']}, {owner['what']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "its process left no name"

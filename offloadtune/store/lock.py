"""One sweep at a time: a second one on the same machine would spoil the figures of both.

The lock is the operating system's (through filelock), so it goes with its owner however that dies; a note beside it
says who the owner is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import filelock
import psutil

from offloadtune.errors import BusyError, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who measures now: `what` is the name of the file measured."""

    pid: int
    what: str
    began_at: datetime


def owner_now(folder: Path) -> Owner | None:
    """Who holds the lock of `folder`; None where nobody does, or it cannot be told."""
    owner = _read_owner(folder / "measuring.json")
    if owner is None or not psutil.pid_exists(owner.pid):  # else the lock is not even touched
        return None
    lock = filelock.FileLock(folder / "measuring.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return owner
    except OSError:
        return None
    lock.release()
    return None


@contextlib.contextmanager
def measuring_alone(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of `folder` inside the block; `what` is being measured. Raises BusyError, StoreError."""
    lock, note = filelock.FileLock(folder / "measuring.lock"), folder / "measuring.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        owner = _read_owner(note)
        who = "its process left no name"
        if owner is not None:
            who = f"process {owner.pid}, since {owner.began_at.isoformat(timespec='seconds')}, {owner.what}"
        message = f"Another sweep is measuring here: {who}."
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


def _read_owner(note: Path) -> Owner | None:
    try:
        owner = json.loads(note.read_text(encoding="utf-8"))
        began_at = datetime.fromisoformat(owner["began"])
        return Owner(pid=int(owner["pid"]), what=str(owner["what"]), began_at=began_at.astimezone(UTC))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None

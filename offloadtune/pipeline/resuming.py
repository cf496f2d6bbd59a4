"""Resuming: the same command after a kill, or again, goes on from its journal; what changed meanwhile is said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offloadtune import store
from offloadtune.errors import StoreError
from offloadtune.pipeline.journals import headers, last_results, rounds_among, sweeps_dir
from offloadtune.records import Outcome, Settings, TrialResult, Visit
from offloadtune.sweeps import Listener, Said
from offloadtune.units import format_count

_LASTING = {Outcome.OK, Outcome.UNSUPPORTED, Outcome.OUT_OF_MEMORY_DEVICE}
"""What will not end otherwise while no more is free; the rest may have had a passing cause and is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A journal open for appending, and what an earlier run of the same command left in it."""

    journal: store.Journal
    began_at: str
    results: tuple[TrialResult, ...] = ()
    rounds: tuple[dict[Settings, tuple[Visit, ...]], ...] = ()
    kept: dict[str, Any] | None = None


def earlier_header(header: store.SweepHeader) -> store.SweepHeader | None:
    """The header of an earlier run of this very sweep; None without one that can be read."""
    path = _path(header)
    try:
        return store.read_header(path) if path.exists() and store.has_lines(path) else None
    except StoreError:  # told when it is opened
        return None


def open_journal(header: store.SweepHeader, *, is_fresh: bool, listen: Listener) -> Opened:
    """The journal of this very sweep: continued where there is one, else new. Raises StoreError.

    `is_fresh` puts an earlier one aside, under the time it ended; so does a journal that died before its first line.
    """
    path = _path(header)
    if path.exists() and (is_fresh or not store.has_lines(path)):
        _put_aside(path)
    if not path.exists():
        _tell_changes(header, listen)
        return Opened(journal=store.Journal(path, header), began_at=header.started_at)
    content = store.read_journal(path)
    results = _lasting(content, header)
    rounds = rounds_among(content, results)
    if results:
        kept = f"{format_count(len(results), 'trial')} and {format_count(len(rounds), 'round')}"
        since = content.header.started_at
        listen(Said(text=f"Going on from {kept} of the same sweep, begun {since}; --fresh measures anew."))
    began_at = content.header.started_at
    journal = store.Journal(path, None)
    if content.changes:  # whatever others held then, from here on counts what is free now
        journal.append_change(header.as_change(""))
    return Opened(journal=journal, began_at=began_at, results=results, rounds=rounds, kept=content.kept)


def _path(header: store.SweepHeader) -> Path:
    return sweeps_dir() / header.machine_id / f"{header.gguf_path.stem}-{header.sweep_key}.jsonl"


def _lasting(content: store.JournalContent, now: store.SweepHeader) -> tuple[TrialResult, ...]:
    """The last word on each settings that holds with the memory free now, without what may end otherwise."""
    return tuple(result for result in last_results(content, now.free_bytes) if result.outcome in _LASTING)


def _put_aside(path: Path) -> None:
    try:
        ended = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%S")
        path.replace(path.with_name(f"{path.stem}.{ended}.jsonl"))
    except OSError as error:
        message = f"{path} cannot be put aside: {error.strerror or error}."
        raise StoreError(message, hint="check the folder's permissions") from None


def _tell_changes(header: store.SweepHeader, listen: Listener) -> None:
    """Say what is new since the last sweep asked for in the same words, if it cannot be continued because of that."""
    earlier = [other for other in headers() if other.question == header.question]
    if not earlier:
        return
    last = max(earlier, key=lambda other: other.started_at)
    changes = [
        name
        for name, differs in (
            ("the model file", last.gguf_id != header.gguf_id),
            ("the machine or its devices", last.machine_id != header.machine_id),
            ("the engine build", last.engine.build_id != header.engine.build_id),
            ("the driver", last.drivers != header.drivers),
            ("the way of measuring", last.ruler != header.ruler),
        )
        if differs
    ]
    if changes:
        listen(Said(text=f"Since the last such sweep, begun {last.started_at}, {' and '.join(changes)} changed."))

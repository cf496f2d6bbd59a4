"""Journals in short: one line of the history each."""

from __future__ import annotations

import re
from pathlib import Path

from offloadtune.gguf import read_gguf
from offloadtune.pipeline.journals import StoredSweep, last_results, read_all
from offloadtune.recalls import JournalSummary, UnreadableJournal
from offloadtune.records import Outcome


def history(path: Path | None) -> list[JournalSummary | UnreadableJournal]:
    """Every journal of every machine, newest first; with `path` only those of that file.

    A file that is gone is known by its name, one that is there by its content. Raises GgufError.
    """
    gguf_id = read_gguf(path).gguf_id if path and path.exists() else None
    stored, unreadable = read_all(
        lambda header: path is None or (header.gguf_id == gguf_id if gguf_id else header.gguf_path.name == path.name)
    )
    mine = [one for one in unreadable if path is None or one.gguf_id or _is_named_after(one.path, path)]
    everything: list[JournalSummary | UnreadableJournal] = [*(summarise(one) for one in stored), *mine]
    return sorted(everything, key=lambda one: one.written_at, reverse=True)


def _is_named_after(journal: Path, path: Path) -> bool:
    """Whether a journal that cannot be read has the name of one of the file at `path`, put aside or not."""
    return re.fullmatch(rf"{re.escape(path.stem)}-[0-9a-f]{{12}}(\.\d{{8}}T\d{{6}})?\.jsonl", journal.name) is not None


def summarise(stored: StoredSweep) -> JournalSummary:
    """What was asked in a sweep and what came of it."""
    header, content, results = stored.header, stored.content, last_results(stored.content)
    n_ok = sum(result.outcome is Outcome.OK for result in results)
    n_cancelled = sum(result.outcome is Outcome.CANCELLED for result in results)
    return JournalSummary(
        path=stored.path,
        gguf_path=header.gguf_path,
        started_at=header.started_at,
        written_at=stored.written_at,
        machine_id=header.machine_id,
        engine_version=header.engine.version,
        workload=header.workload,
        goal=header.goal,
        target=header.target,
        n_ctx=header.n_ctx,
        n_ok=n_ok,
        n_failed=len(results) - n_ok - n_cancelled,
        n_rounds=len(content.rounds),
        best=content.recommendation,
        was_put_aside=stored.was_put_aside,
        is_interrupted=stored.is_cut_short and not stored.is_under_way,
        is_under_way=stored.is_under_way,
        n_layer=header.n_layer,
        stands_for=header.stands_for,
    )

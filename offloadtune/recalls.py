"""What is asked of the journals, and what they answer: nothing here is measured anew.

Floor 0: standard library and records only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from offloadtune.records import Figures, Goal, Recommendation, Target, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user wants to know of the file at `path`; None is whatever the newest sweep asked."""

    path: Path
    goal: Goal | None = None
    workload: Workload | None = None
    target: Target | None = None
    n_ctx: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSummary:
    """One sweep in the journals: what was asked, on what, and what came of it.

    `best` is the answer written at its end; `was_put_aside` means measured anew since, with --fresh. `is_interrupted`
    holds for one that was killed, and for one stopped in the middle of a trial.
    """

    path: Path
    gguf_path: Path
    started_at: str
    written_at: datetime
    machine_id: str
    engine_version: str
    workload: Workload
    goal: Goal
    target: Target
    n_ctx: int
    n_ok: int
    n_failed: int
    n_rounds: int
    best: Recommendation | None
    was_put_aside: bool
    is_interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableJournal:
    """A file among the journals that cannot be read; `reason` is a full sentence."""

    path: Path
    written_at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallReport:
    """An answer from what is stored, and what it rests on.

    `n_steps` tokens were timed in a visit; `notes` are sentences on how far the sweep was made for another question.
    """

    path: Path
    gguf_id: str
    recommendation: Recommendation
    baselines: dict[str, Figures]
    skipped: tuple[str, ...]
    n_steps: int
    apply_text: str
    rests_on: JournalSummary
    notes: tuple[str, ...]

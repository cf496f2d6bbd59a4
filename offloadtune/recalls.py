"""What is asked of the journals, and what they answer: nothing here is measured anew.

Floor 0: standard library, records and units only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from offloadtune.records import NO_LIMITS, Figures, Goal, Limits, Recommendation, StandsFor, Target, Workload
from offloadtune.sweeps import Explanation, Front
from offloadtune.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the user wants to know of the file at `path`; None is whatever the newest sweep asked."""

    path: Path
    goal: Goal | None = None
    workload: Workload | None = None
    target: Target | None = None
    n_ctx: int | None = None
    vram_limit_bytes: int | None = None
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSummary:
    """One sweep in the journals: what was asked, on what, and what came of it.

    `best` is the answer written at its end; `was_put_aside` means measured anew since, with --fresh. `is_interrupted`
    holds for one that was killed, and for one stopped in the middle of a trial; `is_under_way` while it still measures.
    `n_layer` are the file's own layers, None where they were not written down; `stands_for` as in `GgufFacts`.
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
    is_under_way: bool
    n_layer: int | None = None
    stands_for: StandsFor | None = None

    @property
    def trial_words(self) -> str:
        return f"{format_count(self.n_ok, 'trial')} ok, {self.n_failed} failed, {format_count(self.n_rounds, 'round')}"

    @property
    def question_words(self) -> str:
        """What was asked."""
        workload = self.workload
        numbers = f"{workload.n_prefix_cached}/{workload.n_prompt_new}/{workload.n_gen}/{workload.n_parallel}"
        name = "" if workload.name == numbers else f"{workload.name} "
        return f"{name}{numbers}, {self.goal}, {self.target}, n_ctx {self.n_ctx}"

    @property
    def basis_words(self) -> str:
        """What an answer from it rests on: when, for what, on what, how much, and where it stands."""
        when = f"{self.written_at:%Y-%m-%d %H:%M} UTC"
        on = f"on {self.machine_id} with {self.engine_version}"
        return f"measured {when} for {self.question_words} {on}: {self.trial_words}; {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableJournal:
    """A file among the journals that cannot be read; `reason` is a full sentence.

    `gguf_id` is that of its header, None where not even that can be read.
    """

    path: Path
    written_at: datetime
    reason: str
    gguf_id: str | None = None


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
    n_layer: int | None = None
    stands_for: StandsFor | None = None
    front: Front = field(default_factory=Front)
    explanation: Explanation = field(default_factory=Explanation)

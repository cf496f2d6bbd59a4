"""What llama-bench measures, as asked of the worker and as it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offloadtune.records import Evidence, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RulerTest:
    """A test of llama-bench: `n_prompt` tokens read, then `n_gen` written, both after `n_depth` others."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def n_ctx(self) -> int:
        return self.n_prompt + self.n_gen + self.n_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class RulerRep:
    """One repetition.

    The warm-up comes first. It alone has `described`: what llama-bench prints of file, CPU, devices and backends.
    """

    ns: int
    is_warmup: bool
    described: dict[str, Any] | None = None


class RulerFailedError(Exception):
    """A test that could not be carried to its end, classified as a trial's failure is."""

    def __init__(self, outcome: Outcome, reason: str, evidence: Evidence) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.evidence = outcome, reason, evidence

"""Guarding: a runner that ends the sweep where no further trial can tell anything about the file that was named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offloadtune.engine import Runner, VisitPlan, refused_file
from offloadtune.errors import GgufError, NothingWorksError
from offloadtune.gguf import identify
from offloadtune.records import Evidence, GgufFacts, Trial, TrialResult, Visit


class GuardedRunner(Runner):
    """Trials of the file that `facts` describe, and of no other.

    After each trial the file must still be what it was: measured across a change, a result belongs to neither of two
    files, so it is not handed out. Raises GgufError then, and NothingWorksError when the engine or the front end cannot
    read the file whatever the settings; `engine_hint` is asked for the next step.
    """

    def __init__(self, facts: GgufFacts, engine_hint: Callable[[], str], **of_runner: Any) -> None:
        super().__init__(facts.path, **of_runner)
        self._facts, self._engine_hint = facts, engine_hint
        self._stamps: list[Any] | None = None  # whatever happened since the header was read shows at the first check

    def run(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> TrialResult:
        result = super().run(trial, plan, timeout_s=timeout_s)
        self.check(result.evidence)
        return result

    def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        visits = super().revisit(trial, plan, timeout_s=timeout_s)
        self.check(visits.evidence if isinstance(visits, TrialResult) else None)
        return visits

    def check(self, evidence: Evidence | None = None) -> None:
        """Raise unless the file is still what it was, and `evidence` does not say that nothing can read it."""
        self._check_same()
        if what := refused_file(evidence):
            message = f"This engine cannot read {self._facts.path.name}, whatever the settings: {what}."
            raise NothingWorksError(message, hint=f"try a newer engine: {self._engine_hint()}")
        if evidence and evidence.phase == "front_end":
            what = (evidence.abort_text or "").splitlines()[0]
            message = f"llama-cpp-python's Llama does not open {self._facts.path.name}, whatever the settings: {what}."
            raise NothingWorksError(message, hint="measure it for llama-server: --target llama_server")

    def _check_same(self) -> None:
        """Only a file that was written to or exchanged is read again; one that was merely touched is the same."""
        stamps = _stamps(self._facts)
        if stamps == self._stamps:
            return
        name = self._facts.path.name
        hint = "run the same command again when nobody writes to it; what was measured of the former file is kept"
        try:
            is_same = identify(self._facts.shard_paths) == self._facts.gguf_id
        except (GgufError, OSError):
            raise GgufError(f"{name} was taken away or damaged while it was measured.", hint=hint) from None
        if not is_same:
            raise GgufError(f"{name} was exchanged for another file while it was measured.", hint=hint)
        self._stamps = stamps


def _stamps(facts: GgufFacts) -> list[Any]:
    """What a write to the file or its replacement changes, None for a shard that is not there."""
    stamps: list[Any] = []
    for path in facts.shard_paths:
        try:
            stat = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return stamps

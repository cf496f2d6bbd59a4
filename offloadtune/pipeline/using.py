"""Using what is stored: the answer again, and its settings as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from offloadtune import export, search
from offloadtune.errors import UsageError
from offloadtune.pipeline.recalling import recall
from offloadtune.pipeline.rendering import apply_text, baseline_figures
from offloadtune.pipeline.summing import summarise
from offloadtune.recalls import Question, RecallReport
from offloadtune.sweeps import Listener


def recommend_stored(question: Question, listen: Listener) -> RecallReport:
    """The stored answer to the question. Raises GgufError, NotMeasuredError, ExportError."""
    recalled = recall(question, listen)
    answer, header, path = recalled.answer, recalled.stored.header, recalled.facts.path
    by_settings = {result.trial.settings: result for result in recalled.results}
    return RecallReport(
        path=path,
        gguf_id=header.gguf_id,
        recommendation=answer,
        baselines=baseline_figures(recalled.space, recalled.results, recalled.rounds),
        skipped=search.skipped(recalled.space),
        n_steps=max(len(visit.step_ns) for visit in by_settings[answer.trial.settings].visits),
        apply_text=apply_text(answer.trial, path, header.endpoints),
        rests_on=dataclasses.replace(summarise(recalled.stored), n_rounds=len(recalled.rounds)),
        notes=recalled.notes,
    )


def export_stored(question: Question, of: str | None, listen: Listener) -> str:
    """The recommended settings as their target takes them, or those of the baseline named `of`, as it was told them.

    Raises GgufError, NotMeasuredError, UsageError, ExportError.
    """
    recalled = recall(question, listen)
    trial, told = recalled.answer.trial, None
    if of is not None:
        baselines = search.baseline_trials(recalled.space)
        if of not in baselines:
            hint = f"use one of {', '.join(baselines)}, or leave --of out"
            raise UsageError(f"--of {of!r} is no baseline.", hint=hint)
        trial, told = baselines[of], baselines[of].told
    return apply_text(trial, recalled.facts.path, recalled.stored.header.endpoints, told)


def write_export(path: Path, text: str) -> None:
    """Write an exported text whole or not at all. Raises ExportError."""
    export.write_text(path, text)

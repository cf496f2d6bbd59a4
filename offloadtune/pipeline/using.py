"""Using what is stored: the answer again, its settings as text, and the target's own server started with them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from offloadtune import export, search, serve, store
from offloadtune.errors import UsageError
from offloadtune.pipeline.recalling import Recalled, recall
from offloadtune.pipeline.rendering import apply_text, baseline_figures
from offloadtune.pipeline.summing import summarise
from offloadtune.recalls import JournalSummary, Question, RecallReport
from offloadtune.records import Target
from offloadtune.sweeps import Listener, Said

_GGUF_MAGIC = b"GGUF"


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
        rests_on=_basis(recalled),
        notes=recalled.notes,
    )


def export_stored(question: Question, of: str | None, listen: Listener) -> str:
    """The recommended settings as their target takes them, or those of the baseline named `of`, as it was told them.

    Raises GgufError, NotMeasuredError, UsageError, ExportError.
    """
    recalled = _recall_and_tell(question, listen)
    trial, told = recalled.answer.trial, None
    if of is not None:
        baselines = search.baseline_trials(recalled.space)
        if of not in baselines:
            hint = f"use one of {', '.join(baselines)}, or leave --of out"
            raise UsageError(f"--of {of!r} is no baseline.", hint=hint)
        trial, told = baselines[of], baselines[of].told
    return apply_text(trial, recalled.facts.path, recalled.stored.header.endpoints, told)


def write_export(path: Path, text: str, listen: Listener) -> None:
    """Write an exported text and say where, never over a model file. Raises UsageError, ExportError."""
    if _is_gguf(path):
        hint = "name another file after --output: it is where the settings are written to"
        raise UsageError(f"--output {path} is a GGUF model file and stays as it is.", hint=hint)
    export.write_text(path, text)
    listen(Said(text=f"Written to {path}."))


def server_command(question: Question, extra: Sequence[str], listen: Listener) -> list[str]:
    """The words that start the target's own server with the stored recommendation, `extra` at their end.

    What the words alone cannot say stands in a program written beside the profile. Raises GgufError,
    NotMeasuredError, ExportError.
    """
    recalled = _recall_and_tell(question, listen)
    settings, path = recalled.answer.trial.settings, recalled.facts.path.absolute()
    endpoints = recalled.stored.header.endpoints
    if recalled.answer.trial.target is Target.LLAMA_SERVER:
        return [*export.llama_server_words(settings, path, endpoints), *extra]
    program = export.render_server_program(settings, path, endpoints)
    if program is None:
        return [sys.executable, "-m", "llama_cpp.server", *export.llama_cpp_server_words(settings, path), *extra]
    return [sys.executable, str(_written(program, recalled)), *extra]


def serve_stored(command: Sequence[str]) -> int:
    """Become what `server_command` named; the exit code on Windows. Raises EngineError, EngineMissingError."""
    return serve.run_server(command)


def _recall_and_tell(question: Question, listen: Listener) -> Recalled:
    """The answer; what it rests on and what is to be known of it is said."""
    recalled = recall(question, listen)
    for text in (_basis(recalled).basis_words, *recalled.notes):
        listen(Said(text=text))
    return recalled


def _basis(recalled: Recalled) -> JournalSummary:
    """The sweep behind the answer, with the rounds that speak to the question."""
    return dataclasses.replace(summarise(recalled.stored), n_rounds=len(recalled.rounds))


def _is_gguf(path: Path) -> bool:
    """Whether a model file stands there, or a shard of one. A pipe is not asked: that would take what it holds."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except (OSError, ValueError):  # then it cannot be written either, and the writer says why
        return False


def _written(program: str, recalled: Recalled) -> Path:
    folder = (store.profiles_dir() / recalled.stored.header.machine_id).absolute()
    path = folder / f"{recalled.facts.path.stem}.llama_cpp_python_server.py"
    export.write_text(path, program)
    return path

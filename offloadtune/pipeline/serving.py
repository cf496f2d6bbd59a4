"""Serving: the target's own server, started with the stored recommendation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from offloadtune import export, serve, store
from offloadtune.pipeline.recalling import Recalled, recall
from offloadtune.recalls import Question
from offloadtune.records import Target
from offloadtune.sweeps import Listener


def server_command(question: Question, extra: Sequence[str], listen: Listener) -> list[str]:
    """The words that start the target's own server with the stored recommendation, `extra` at their end.

    What the words alone cannot say stands in a program written beside the profile. Raises GgufError,
    NotMeasuredError, ExportError.
    """
    recalled = recall(question, listen)
    settings, path = recalled.answer.trial.settings, recalled.facts.path.resolve()
    endpoints = recalled.stored.header.endpoints
    if recalled.answer.trial.target is Target.LLAMA_SERVER:
        return [*export.llama_server_words(settings, path, endpoints), *extra]
    program = export.render_server_program(settings, path, endpoints)
    if program is None:
        return [sys.executable, "-m", "llama_cpp.server", *export.llama_cpp_server_words(settings, path), *extra]
    return [sys.executable, str(_written(program, recalled)), *extra]


def serve_stored(command: Sequence[str]) -> int:
    """Run what `server_command` named until it ends; its exit code. Raises EngineError, EngineMissingError."""
    return serve.run_server(command)


def _written(program: str, recalled: Recalled) -> Path:
    folder = (store.profiles_dir() / recalled.stored.header.machine_id).resolve()
    path = folder / f"{recalled.facts.path.stem}.llama_cpp_python_server.py"
    export.write_text(path, program)
    return path

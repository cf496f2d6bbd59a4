"""A front end's own server, in our place."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from offloadtune.errors import EngineError, EngineMissingError

_SERVER_EXTRA = ("fastapi", "uvicorn", "sse_starlette", "starlette_context", "pydantic_settings")
"""What llama-cpp-python's server imports besides llama-cpp-python, in modules."""


def run_server(command: Sequence[str]) -> int:
    """Become `command`: its signals, its exit code and its end are then its own. On Windows wait for it; its exit code.

    `env NAME=VALUE` before it is done here, so that what cannot start is still told in words.

    Raises EngineError, EngineMissingError when it cannot be started.
    """
    if command[0] == "env":
        variables = [word.partition("=") for word in itertools.takewhile(lambda word: "=" in word, command[1:])]
        os.environ.update({name: value for name, _, value in variables})
        command = command[1 + len(variables) :]
    _check_can_start(command)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        if sys.platform == "win32":
            return subprocess.call(command)  # noqa: S603 - the command that was shown to the user
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and what is ignored stays so in a new program
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execvp(command[0], [*command])  # noqa: S606
    except OSError as error:
        message = f"{command[0]} cannot be started: {error.strerror or error}."
        raise EngineError(message, hint="check that it runs by itself") from None


def _check_can_start(command: Sequence[str]) -> None:
    """Say what is missing before the command does, in one sentence. Raises EngineError, EngineMissingError."""
    if command[0] != sys.executable:
        if shutil.which(command[0]) is None:
            message = f"{command[0]} is not on PATH."
            hint = "install llama.cpp, or `offloadtune sweep FILE --target llama_cpp_python`"
            raise EngineError(message, hint=hint)
        return
    if not _is_installed("llama_cpp"):
        message = "The engine, llama-cpp-python, is not installed in this Python."
        raise EngineMissingError(message, hint="run offloadtune probe: it prints the line that installs it")
    missing = [name for name in _SERVER_EXTRA if not _is_installed(name)]
    if missing:
        message = f"The server of llama-cpp-python needs packages that are not installed: {', '.join(missing)}."
        raise EngineError(message, hint="install them: pip install 'llama-cpp-python[server]'")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False

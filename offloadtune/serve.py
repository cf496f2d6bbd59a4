"""A front end's own server, run as our child until it ends."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from offloadtune.errors import EngineError, EngineMissingError

_PASSED_ON = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_N_HEARD_KILLS = 3
_SERVER_EXTRA = ("fastapi", "uvicorn", "sse_starlette", "starlette_context", "pydantic_settings")
"""What llama-cpp-python's server imports besides llama-cpp-python, in modules."""


def run_server(command: Sequence[str]) -> int:
    """Run `command` until it ends; its exit code, 128 and the signal's number where a signal ended it.

    It has a process group of its own and is passed every Ctrl-C, SIGTERM and SIGHUP that we get, each exactly once: a
    second one means "at once" to most servers. The third kills it.

    Raises EngineError, EngineMissingError when it cannot be started.
    """
    _check_can_start(command)
    process: subprocess.Popen[bytes] | None = None
    heard: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        if process is not None and len(heard) < _N_HEARD_KILLS:
            process.send_signal(number)
        elif process is not None:
            process.kill()

    before = {
        number: signal.signal(number, pass_on) for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        process = subprocess.Popen(  # noqa: S603 - the command that was shown to the user
            command, stdin=subprocess.DEVNULL, process_group=0
        )
        if heard:  # while it was being started
            process.send_signal(heard[-1])
        code = process.wait()
    except OSError as error:
        message = f"{command[0]} cannot be started: {error.strerror or error}."
        raise EngineError(message, hint="check that it runs by itself") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


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

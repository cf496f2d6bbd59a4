"""How the installers speak: plain lines on stderr, and one that moves while something long goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from offloadtune.errors import OffloadTuneError

REPEAT_S = 15.0
"""How often a log that cannot be redrawn hears that work goes on."""


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_command(command: Callable[[], None]) -> int:
    """Exit code of `command`; what it raises is told in two lines."""
    try:
        command()
    except OffloadTuneError as error:
        say(f"error: {error}")
        if error.hint:
            say(f"  next: {error.hint}")
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped")
        return 130
    return 0


class MovingLine:
    """What is going on and for how long: redrawn on a terminal, repeated now and then elsewhere."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._said_at: float | None = None
        self._is_terminal = stream.isatty()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    def show(self, text: str) -> None:
        minutes, seconds = divmod(int(self.elapsed_s), 60)
        line = f"  [{minutes}:{seconds:02d}] {text}"
        if self._is_terminal:
            self._write(f"\r\x1b[K{line}")
        elif self._said_at is None or self._clock() - self._said_at >= REPEAT_S:
            self._said_at = self._clock()
            self._write(f"{line}\n")

    def close(self) -> None:
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

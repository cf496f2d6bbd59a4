"""The parent's side of the anchor (worker/anchor.py): asked between visits, it tells what the machine can do now."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import Self

from offloadtune.benches import AnchorReading
from offloadtune.engine import osdoor

_START_S = 30.0
_READING_S = 10.0  # a reading takes 0.1 s; one that does not come is no reading
_LEAVE_S = 2.0
_HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}  # it must not take memory of a card
_COMMAND = (sys.executable, "-m", "offloadtune.engine.worker.anchor")


class AnchorProcess:
    """A context manager. Where the anchor cannot run, all its readings are None and `reason` says why."""

    def __init__(self, n_threads: int) -> None:
        self.reason = ""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603 - our own module in our own interpreter
            [*_COMMAND, str(n_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_HIDDEN, "PYTHONUNBUFFERED": "1"},
            **osdoor.own_group_options(),
        )
        threading.Thread(target=self._collect, daemon=True).start()
        if self._line(_START_S).strip() != b"ready":
            self._give_up("the process of the anchor does not start")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> AnchorReading | None:
        """What it takes now."""
        if self.reason:
            return None
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
            return AnchorReading(**json.loads(self._line(_READING_S)))
        except (OSError, ValueError, TypeError):
            self._give_up("the process of the anchor stopped to answer")
            return None

    def close(self) -> None:
        """End it."""
        osdoor.kill_group(self._process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()

    def _line(self, timeout_s: float) -> bytes:
        """The next line, b"" when it ends or stays silent."""
        try:
            return self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return b""

    def _collect(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(b"")

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        osdoor.kill_group(self._process)

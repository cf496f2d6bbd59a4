"""The parent's side of one worker: spawn, ask with a deadline, collect the remains, end it.

Two threads drain the child's stdout and stderr, so that neither pipe can fill and block a crash message.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from offloadtune.engine import osdoor
from offloadtune.engine.protocol import REQUEST_MARK
from offloadtune.errors import EngineError, EngineMissingError
from offloadtune.records import Evidence

WORKER_COMMAND = (sys.executable, "-m", "offloadtune.engine.worker")
_N_LAST_LINES = 200
_CONNECT_S = 10.0  # a server busy with its last client lets others wait; the system knocks after 1, 3 and 7 s again
_HELLO_S = 60.0
_HELLO_REMOTE_S = 15.0  # an endpoint in use by another client never answers
_LEAVE_S = 5.0


class WorkerDiedError(Exception):
    """The worker ended, or had to be ended, before it answered."""

    def __init__(self, evidence: Evidence, *, timed_out: bool) -> None:
        super().__init__(evidence.phase)
        self.evidence = evidence
        self.timed_out = timed_out


class WorkerRefusedError(Exception):
    """The worker answered that the engine said no; it lives on."""

    def __init__(self, reason: str, evidence: Evidence) -> None:
        super().__init__(reason)
        self.evidence = evidence


class WorkerProcess:
    """One child with the engine loaded and its endpoints registered, in our environment and what `environment` adds.

    Raises EngineMissingError when llama-cpp-python is not installed, EngineError when it cannot start or an
    endpoint does not answer, WorkerDiedError when `timeout_s` ends before the time that a start may take.
    """

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        command: Sequence[str] = WORKER_COMMAND,
        *,
        timeout_s: float = math.inf,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        for endpoint in endpoints:
            check_endpoint(endpoint)
        self._replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lines: deque[str] = deque(maxlen=_N_LAST_LINES)
        self._abort_text: str | None = None
        self._n_requests = self._i_marked = 0
        self._is_left_behind = False
        self._process = subprocess.Popen(  # noqa: S603 - our own module in our own interpreter
            [*command, *endpoints],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
            **osdoor.own_group_options(),
        )
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._read_replies, self._read_lines)
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.hello = self._greet(endpoints, timeout_s)
        except BaseException:  # Ctrl-C too: nobody else knows of this child yet
            self.end()
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, call: str, *, timeout_s: float, **args: Any) -> dict[str, Any]:
        """The worker's answer to `call`.

        Raises WorkerDiedError when it dies or stays silent for `timeout_s` (then it is ended), WorkerRefusedError
        when the engine said no.
        """
        self._n_requests += 1
        request = {"id": self._n_requests, "call": call, "args": args}
        deadline = time.monotonic() + timeout_s
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._died(call, timed_out=False) from None
        while True:
            try:
                left_s = deadline - time.monotonic()
                reply = self._replies.get(timeout=min(max(0.0, left_s), threading.TIMEOUT_MAX))
            except queue.Empty:
                self.end()
                raise self._died(call, timed_out=True) from None
            if reply is None:
                raise self._died(call, timed_out=False)
            if reply.get("event") == "abort":
                self._abort_text = reply["text"].strip()
            elif reply.get("id") == self._n_requests:
                break
        if "refused" in reply:
            raise self._refused(reply)
        value: dict[str, Any] = reply["value"]
        return value

    def end(self) -> None:
        """End the child now, whatever it does."""
        osdoor.kill_group(self._process)
        self._reap()

    def leave(self) -> None:
        """Let the child go: closing its stdin ends it; if it does not go, end it."""
        self._close_stdin()
        self._end_in_time()

    def _end_in_time(self) -> None:
        """End the child unless it ends by itself."""
        if not self._is_left_behind:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_S)
        self.end()

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a request may be stuck in it
            self._process.stdin.close()

    def _reap(self) -> None:
        """Wait for the killed child and for what its pipes still hold; their ends close with the threads.

        Nothing here waits for ever, nor twice: a child stuck in a driver does not even die of SIGKILL, and is left
        behind.
        """
        if self._is_left_behind:
            return
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._is_left_behind = True
        self._close_stdin()
        for thread in self._threads:
            thread.join(0.0 if self._is_left_behind else _LEAVE_S)

    def _greet(self, endpoints: Sequence[str], timeout_s: float) -> dict[str, Any]:
        usual_s = _HELLO_REMOTE_S if endpoints else _HELLO_S
        try:
            return self.ask("hello", timeout_s=min(timeout_s, usual_s))
        except WorkerDiedError as error:
            if error.timed_out and timeout_s < usual_s:  # which says nothing against the engine
                raise
            raise _cannot_start(error, endpoints) from None

    def _refused(self, reply: dict[str, Any]) -> WorkerRefusedError:
        evidence = Evidence(
            phase=reply["refused"],
            abort_text=reply["reason"] if reply["is_telling"] else None,
            last_lines=self._lines_of_request(reply["lines"]),
        )
        return WorkerRefusedError(reply["reason"], evidence)

    def _lines_of_request(self, told: Sequence[str] = ()) -> tuple[str, ...]:
        """What the engine said in the request under way: by the worker's log, and by stderr as far as it was read."""
        read = tuple(self._lines.copy()) if self._i_marked in {0, self._n_requests} else ()  # 0: it never served
        return (*(line for line in read if line not in set(told)), *told)

    def _died(self, phase: str, *, timed_out: bool) -> WorkerDiedError:
        self._end_in_time()
        while not self._replies.empty():  # an abort message may still stand behind
            reply = self._replies.get()
            if reply and reply.get("event") == "abort":
                self._abort_text = reply["text"].strip()
        code = self._process.returncode
        evidence = Evidence(
            phase=phase,
            signal=None if code is None else osdoor.signal_name(code),
            exit_code=code,
            abort_text=self._abort_text,
            last_lines=self._lines_of_request(),
        )
        return WorkerDiedError(evidence, timed_out=timed_out)

    def _read_replies(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as replies:
            for line in replies:
                with contextlib.suppress(ValueError):  # half a line of a dying child
                    self._replies.put(json.loads(line))
        self._replies.put(None)

    def _read_lines(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode("utf-8", "replace").rstrip()
                if text.startswith(REQUEST_MARK):  # what an earlier request made it say explains no later death
                    self._lines.clear()
                    self._i_marked = int(text.removeprefix(REQUEST_MARK))
                else:
                    self._lines.append(text)


def check_endpoint(endpoint: str) -> None:
    """Raise EngineError unless somebody listens at `endpoint` (HOST:PORT): the library would abort or hang."""
    host, _, port = endpoint.rpartition(":")
    hint = "start llama.cpp's rpc-server there, or leave --rpc out"
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 1 << 16:
        raise EngineError(f"{endpoint!r} is not an RPC endpoint.", hint="write it as HOST:PORT, like 192.168.1.7:50052")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # a name that no host can have is a UnicodeError
        reason = (
            f"no answer within {_CONNECT_S:.0f} s"
            if isinstance(error, TimeoutError)
            else (getattr(error, "strerror", None) or error)
        )
        raise EngineError(f"Nothing answers at the RPC endpoint {endpoint}: {reason}.", hint=hint) from None


def _cannot_start(error: WorkerDiedError, endpoints: Sequence[str]) -> EngineError | EngineMissingError:
    lines = error.evidence.last_lines
    if any("No module named 'llama_cpp'" in line for line in lines):
        return EngineMissingError("The engine, llama-cpp-python, is not installed in this Python.")
    if error.timed_out and endpoints:
        return EngineError(
            f"The RPC endpoint {', '.join(endpoints)} took the connection but does not answer.",
            hint="another client may be using it (it serves one at a time): stop that one and try again",
        )
    if endpoints and "RPC server" in (error.evidence.abort_text or ""):
        return EngineError(
            f"The RPC endpoint {', '.join(endpoints)} took the connection but does not speak as rpc-server does.",
            hint="check the port, and that both sides run about the same version of llama.cpp",
        )
    cause = error.evidence.abort_text or error.evidence.signal or (lines[-1] if lines else "no message")
    return EngineError(f"The engine's process could not start: {cause}.", hint="install llama-cpp-python anew")

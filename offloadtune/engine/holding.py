"""One worker held: started when something is first asked of the engine, and anew after it died.

What needs no file is asked here: which devices there are, and what each of them moves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Self

from pydantic import TypeAdapter

from offloadtune.engine.classify import classify
from offloadtune.engine.process import WORKER_COMMAND, WorkerDiedError, WorkerProcess, WorkerRefusedError
from offloadtune.engine.transfers import speed_of, unmeasured
from offloadtune.errors import EngineError
from offloadtune.hardware import DeviceSpeed
from offloadtune.records import Device, EngineBuild, Evidence

_RESPAWN_S = 15.0
_ANSWER_S = 0.2
"""What a worker that has an end set needs beyond it to clear up and answer."""

DEVICES = TypeAdapter(tuple[Device, ...])


class HeldWorker:
    """A context manager: leaving it leaves no process behind."""

    def __init__(self, endpoints: Sequence[str] = (), command: Sequence[str] = WORKER_COMMAND) -> None:
        self._endpoints = tuple(endpoints)
        self._command = tuple(command)
        self._worker: WorkerProcess | None = None
        self._start_by = math.inf
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process of the living worker, () where there is none."""
        return (self._worker.pid,) if self._worker is not None and self._worker.is_alive else ()

    def close(self) -> None:
        """End the worker; what it held is free when this returns."""
        if self._worker is not None:
            self._worker.leave()
            self._forget()

    def kill(self) -> None:
        """End the worker at once, in the middle of whatever it does."""
        if self._worker is not None:
            self._worker.end()
            self._forget()

    def describe(self) -> tuple[EngineBuild, tuple[Device, ...]]:
        """The engine and the devices it lists. Raises EngineMissingError, EngineError."""
        try:
            hello = self._living().hello
        except WorkerDiedError as error:
            message = f"The engine's process died at its first task: {classify(error.evidence, offloads=True)[1]}."
            hint = "try again; if a remote device is used, see that it keeps running"
            raise EngineError(message, hint=hint) from None
        return EngineBuild(**hello["build"]), DEVICES.validate_python(hello["devices"])

    def transfers(self, device: str, *, timeout_s: float, n_threads: int | None = None) -> DeviceSpeed:
        """What the device of that name moves, see `DeviceSpeed`; with a reason and no figures where it fails.

        What does not fit into `timeout_s` is left out. A device that computes on this machine's cores is given
        `n_threads`, None for all of them. Raises nothing for what a device or the engine does, EngineMissingError when
        there is none.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._respawn(deadline)
            left_s = deadline - _ANSWER_S - time.monotonic()
            asked = {"device": device, "n_threads": n_threads, "left_s": left_s}
            return speed_of(device, self._ask("transfers", deadline, **asked))
        except WorkerDiedError as error:
            self.kill()
            return unmeasured(device, error)
        except WorkerRefusedError as error:
            return unmeasured(device, error)

    def _living(self) -> WorkerProcess:
        if self._worker is None or not self._worker.is_alive:
            self._forget()
            start_s = max(0.0, self._start_by - time.monotonic())
            self._worker = WorkerProcess(
                self._endpoints, self._command, timeout_s=start_s, environment=self._environment
            )
        return self._worker

    def _forget(self) -> None:
        self._worker = None

    def _want(self, environment: dict[str, str]) -> None:
        """Have the next worker in `environment`; one that began in another goes, with all it holds."""
        if environment != self._environment:
            self.close()
            self._environment = environment

    def _ask(self, call: str, deadline: float, **args: Any) -> dict[str, Any]:
        """Ask the worker there is: one that died in between must not be replaced behind the back of its handles."""
        assert self._worker is not None
        return self._worker.ask(call, timeout_s=max(0.0, deadline - time.monotonic()), **args)

    def _respawn(self, deadline: float) -> None:
        """A living worker. A device that is restarting (a remote one whose server died) is waited for a while."""
        give_up = min(deadline, time.monotonic() + _RESPAWN_S)
        while True:
            try:
                self._start_by = deadline
                self._living()
            except (EngineError, WorkerDiedError) as error:
                self.kill()
                if time.monotonic() > give_up:
                    text = str(error) if isinstance(error, EngineError) else "the engine's process does not start again"
                    timed_out = isinstance(error, WorkerDiedError) and error.timed_out and time.monotonic() > deadline
                    raise WorkerDiedError(Evidence(phase="load", abort_text=text), timed_out=timed_out) from None
                time.sleep(0.5)
            else:
                return
            finally:
                self._start_by = math.inf

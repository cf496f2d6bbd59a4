"""Placements of one file in a worker: loaded, kept beside each other where that was allowed, and freed again."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offloadtune.engine.classify import classify, is_gone
from offloadtune.engine.holding import DEVICES, HeldWorker
from offloadtune.engine.process import WORKER_COMMAND, WorkerDiedError, WorkerProcess, WorkerRefusedError
from offloadtune.errors import EngineError
from offloadtune.records import Settings

_DRAIN_S = 5.0
_DRAIN_BEAT_S = 0.2
_CLOSE_S = 20.0

Placement = tuple[Any, ...]
"""`Settings.placement`: what two settings must have in common to share a load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A placement in the worker: the handle of its weights, how long they took to load, and which load that was."""

    handle: int
    load_ns: int
    i_load: int


class PlacingWorker(HeldWorker):
    """A context manager: leaving it leaves no process behind."""

    def __init__(self, path: Path, endpoints: Sequence[str] = (), command: Sequence[str] = WORKER_COMMAND) -> None:
        super().__init__(endpoints, command)
        self._path = path
        self._held: dict[Placement, Loaded] = {}
        self._abreast: frozenset[Placement] = frozenset()
        self._drained_bytes: dict[str, int] = {}
        self.n_model_loads = 0

    @property
    def loaded(self) -> frozenset[Placement]:
        """The placements that need no load now."""
        return frozenset(self._held if self.pids else ())

    def keep_abreast(self, placements: Collection[Placement]) -> None:
        """From now on `placements` stay loaded beside each other once they are; () for one at a time."""
        self._abreast = frozenset(placements)

    def free_bytes(self, *, timeout_s: float, is_anew: bool = False) -> dict[str, int] | None:
        """Free memory of each offload device with nothing of ours loaded; what is loaded is freed for it.

        `is_anew` asks a new worker, which holds nothing of what drivers keep until a process ends, and sees the devices
        that are there now. None where the worker died of it or had no time; raises EngineError where a device or the
        engine stayed away for good.
        """
        deadline = time.monotonic() + timeout_s
        try:
            if is_anew:
                self.close()
            self._respawn(deadline)
            self.unload(deadline)
            self._drained_bytes = self._free_bytes(deadline)
        except (WorkerDiedError, WorkerRefusedError) as error:
            self.kill()
            timed_out = isinstance(error, WorkerDiedError) and error.timed_out
            if is_gone(error.evidence) and not timed_out:
                raise EngineError(f"{classify(error.evidence, offloads=True)[1]}.") from None
            return None
        return dict(self._drained_bytes)

    def unload(self, deadline: float = math.inf, but: Collection[Placement] = ()) -> None:
        """Free all placements `but` some, and wait until the memory is back or stands still: drivers return it late.

        What is free then is what the next load falls from: some stays taken (the driver's context, other programs).
        """
        leaving = [placement for placement in self._held if placement not in but]
        if not leaving or self._worker is None:
            return
        for placement in leaving:
            handle = self._held.pop(placement).handle
            self._ask("close", min(deadline, time.monotonic() + _CLOSE_S), handle=handle)
        free, give_up = self._free_bytes(deadline), min(deadline, time.monotonic() + _DRAIN_S)
        while not self._held and any(free.get(name, 0) < drained for name, drained in self._drained_bytes.items()):
            time.sleep(_DRAIN_BEAT_S)
            before, free = free, self._free_bytes(deadline)
            if free == before or time.monotonic() > give_up:
                break
        self._drained_bytes = free

    def _living(self) -> WorkerProcess:
        is_new = not self.pids
        worker = super()._living()
        if is_new:
            self._drained_bytes = self._free_bytes(self._start_by)
        return worker

    def _forget(self) -> None:
        super()._forget()
        self._held.clear()

    def _free_bytes(self, deadline: float = math.inf) -> dict[str, int]:
        """Free memory of each offload device now."""
        told = self._ask("devices", min(deadline, time.monotonic() + _CLOSE_S))
        devices = DEVICES.validate_python(told["devices"])
        return {device.name: device.free_bytes for device in devices if device.is_offload_target}

    def _place(self, settings: Settings, deadline: float) -> Loaded:
        """The placement of `settings`, loaded, alone or beside those that may be."""
        self._want(settings.environment)
        self._respawn(deadline)
        placement = settings.placement
        beside = self._abreast if placement in self._abreast else {placement}
        try:
            self.unload(deadline, beside)
        except WorkerDiedError:  # the fault of what was loaded, not of what comes
            self.kill()
            self._respawn(deadline)
        if placement not in self._held:
            self.n_model_loads += 1
            value = self._ask("load", deadline, path=str(self._path), settings=dataclasses.asdict(settings))
            self._held[placement] = Loaded(i_load=self.n_model_loads, **value)
        return self._held[placement]

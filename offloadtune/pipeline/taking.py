"""Taking: device memory that others take while a sweep is under way, or give back, and devices that go away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from offloadtune.conditions import Conditions, GpuProcess
from offloadtune.engine import Runner
from offloadtune.errors import EngineError
from offloadtune.records import Machine, Settings
from offloadtune.report.words import printable
from offloadtune.sweeps import Listener, Said
from offloadtune.units import MIB, format_bytes, format_seconds

_LEAST_BYTES = 100 * MIB
_LEAST_FRAC = 0.03
"""Less of a device's free memory comes and goes with windows of a desktop, and with what drivers keep."""

_OURS_MOST_BYTES = 1024 * MIB
"""A driver keeps less for a process that has freed all it asked for."""

_GROWN_BYTES = 64 * MIB
_WAIT_FRAC, _WAIT_MOST_S = 0.1, 60.0
"""Of the budget: all waiting of a sweep together, which counts in it. A game is not over sooner, a short job is."""

_BEAT_S = 1.0
_N_RETURNS_MOST = 3
"""So often memory that comes back is counted on again: who takes and returns it for ever must not keep a sweep busy."""

_MOST_OF_A_NAME = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Free memory of the devices was not what the sweep went by; `words` say it, in full sentences.

    `free_bytes` is what there is to go on with: as before where all of it `is_back` after some waiting. `gone` are
    devices that the engine lists no more.
    """

    free_bytes: Mapping[str, int]
    words: str
    is_back: bool = False
    gone: tuple[str, ...] = ()


def missing(usual: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Bytes that each device has less free than usual, where that is worth a word; all of them where it is not there.

    A device without free memory has nothing to lose.
    """
    lacks = {name: n_bytes - now.get(name, 0) for name, n_bytes in usual.items()}
    return {
        name: n_bytes
        for name, n_bytes in lacks.items()
        if n_bytes > max(_LEAST_BYTES, _LEAST_FRAC * usual[name]) or (name not in now and usual[name])
    }


def grown(before: Conditions, now: Conditions, pci_bus_id: str | None) -> tuple[GpuProcess, ...]:
    """Processes that came to a card or took more of it; () where the driver does not tell."""
    cards = {gpu.index: gpu for gpu in before.gpus}
    found = []
    for gpu in now.gpus:
        first = cards.get(gpu.index)
        if first is None or pci_bus_id is None or (gpu.pci_bus_id or "").lower() != pci_bus_id.lower():
            continue
        earlier = {process.pid: process.n_bytes or 0 for process in first.other_processes or ()}
        for process in gpu.other_processes or ():
            more_bytes = (process.n_bytes or 0) - earlier.get(process.pid, 0)
            if more_bytes >= _GROWN_BYTES or (process.n_bytes is None and process.pid not in earlier):
                found.append(process)
    return tuple(found)


class FreeMemory:
    """Free memory of a sweep's offload devices, looked at before each load.

    What a driver keeps for our own worker is told apart by a new worker, started where something seems to be missing.
    `conditions` reads what else goes on, our own processes left out.
    """

    def __init__(
        self,
        runner: Runner,
        machine: Machine,
        budget_s: float,
        listen: Listener,
        conditions: Callable[[], Conditions],
    ) -> None:
        self._runner, self._machine, self._listen, self._conditions = runner, machine, listen, conditions
        self._first = {device.name: device.free_bytes for device in machine.offload_devices}
        self._usual: dict[str, int] = dict(self._first)
        self._ours: dict[str, int] = {}
        self._began = conditions()
        self._wait_left_s = min(_WAIT_FRAC * budget_s, _WAIT_MOST_S)
        self._n_returns = 0

    @property
    def free_bytes(self) -> dict[str, int]:
        """What the sweep goes by now."""
        return dict(self._usual)

    def look(self, settings: Settings, *, left_s: float, has_failed: bool = False) -> Found | None:
        """What changed, before `settings` are loaded, or after they ended out of memory (`has_failed`).

        None where nothing did that matters to them, and where nobody answers: then the trial will tell. What is missing
        is waited for a while.
        """
        if not settings.offloads or not self._usual or (not has_failed and settings.placement in self._runner.loaded):
            return None
        try:
            return self._look(left_s, has_failed=has_failed)
        except EngineError as error:
            return Found(free_bytes=self.free_bytes, words=str(error), gone=tuple(self._usual))

    def _look(self, left_s: float, *, has_failed: bool) -> Found | None:
        now = None if has_failed else self._runner.free_bytes(timeout_s=left_s)
        if now is not None and not self._differs({n: free + self._ours.get(n, 0) for n, free in now.items()}):
            return None
        anew = self._runner.free_bytes(timeout_s=left_s, is_anew=True)
        if anew is None:
            return None
        if not self._differs(anew):
            for name, free in (now or {}).items():
                self._ours[name] = min(max(0, anew.get(name, 0) - free), _OURS_MOST_BYTES)
            return None
        lacks = missing(self._usual, anew)
        return self._taken(anew, lacks, left_s) if lacks else self._returned(anew)

    def _differs(self, now: Mapping[str, int]) -> bool:
        may_return = self._n_returns < _N_RETURNS_MOST
        return bool(missing(self._usual, now) or (may_return and missing(self._at_most_first(now), self._usual)))

    def _at_most_first(self, now: Mapping[str, int]) -> dict[str, int]:
        """What is free now, but no more than when the sweep began: its first results would have been others."""
        return {name: min(first, now.get(name, 0)) for name, first in self._first.items()}

    def _returned(self, now: Mapping[str, int]) -> Found:
        self._n_returns += 1
        more = missing(self._at_most_first(now), self._usual)
        self._usual = self._at_most_first(now)
        words = " ".join(f"{format_bytes(n_bytes)} of {name} are free again." for name, n_bytes in more.items())
        self._tell(f"{words} They count again from here.")
        return Found(free_bytes=self.free_bytes, words=words)

    def _taken(self, now: Mapping[str, int], lacks: Mapping[str, int], left_s: float) -> Found:
        words = " ".join(self._sentences(lacks, now))
        now = self._waited(now, words, left_s)
        gone = tuple(name for name, n_bytes in self._usual.items() if n_bytes and name not in now)
        if gone:
            return Found(free_bytes=self.free_bytes, words=words, gone=gone)
        if not missing(self._usual, now):
            self._tell("It is free again: the sweep goes on as before.")
            return Found(free_bytes=self.free_bytes, words=words, is_back=True)
        self._usual = self._at_most_first(now)
        left = " and ".join(f"{format_bytes(self._usual[name])} of {name}" for name in lacks)
        self._tell(f"The sweep goes on with what is free: {left}.")
        return Found(free_bytes=self.free_bytes, words=words)

    def _waited(self, now: Mapping[str, int], words: str, left_s: float) -> Mapping[str, int]:
        """What is free once it is as usual, or when the time for waiting is over."""
        wait_s = min(self._wait_left_s, left_s / 2)
        if wait_s <= 0:
            self._tell(words)
            return now
        self._tell(f"{words} Waiting for it up to {format_seconds(wait_s)} of the budget.")
        start_s = time.monotonic()
        while missing(self._usual, now) and (left_s := start_s + wait_s - time.monotonic()) > 0:
            time.sleep(min(_BEAT_S, left_s))
            is_gone = any(name not in now for name in self._usual)
            now = self._runner.free_bytes(timeout_s=max(left_s, _BEAT_S), is_anew=is_gone) or now
        self._wait_left_s = max(0.0, self._wait_left_s - (time.monotonic() - start_s))
        return now

    def _sentences(self, lacks: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
        conditions = self._conditions()
        cards = {device.name: self._machine.nvml_of(device) for device in self._machine.offload_devices}
        for name, n_bytes in lacks.items():
            card = cards.get(name)
            takers = grown(self._began, conditions, card.pci_bus_id if card else None)
            if name not in now:
                yield f"{name} is gone: the engine lists it no more."
            elif takers:
                who = "another program" if len(takers) == 1 else "other programs"
                yield f"{format_bytes(n_bytes)} of {name} were taken by {who} ({', '.join(map(_process, takers))})."
            else:
                lost = format_bytes(n_bytes)
                yield f"{lost} less of {name} are free than before; who took them is not seen from here."

    def _tell(self, text: str) -> None:
        self._listen(Said(text=text))


def _process(process: GpuProcess) -> str:
    return f"{printable(process.name)[:_MOST_OF_A_NAME]}, pid {process.pid}"

"""Surroundings: the memory that a file will find here, asked before anything is written or loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offloadtune.engine import Runner
from offloadtune.errors import EngineMissingError
from offloadtune.footprint import Footprints, Grid, fits, is_mapped, reckon
from offloadtune.pipeline.devices import machine_place
from offloadtune.pipeline.rebuilding import rebuild_line
from offloadtune.pipeline.rooms import Place
from offloadtune.probe import probe_host
from offloadtune.records import GgufFacts, Machine, Settings
from offloadtune.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The devices and the main memory of this machine, as they are now."""

    place: Place

    def most_layers(self, facts: GgufFacts, settings: Settings) -> int:
        """The largest n_gpu_layers that the devices have memory for with `settings`."""
        if not self.place.room.names or settings.devices == ():
            return 0
        layers = range(facts.n_layer + 1, -1, -1)
        found = self._reckoned(facts, [settings.replace(n_gpu_layers=k) for k in layers])
        ok = fits(found, self.place.room, is_mapped=is_mapped(settings))
        return layers[int(ok.argmax())] if ok.any() else 0

    def device_bytes(self, facts: GgufFacts, settings: Settings) -> int:
        """What all devices together give at the peak, but for what their drivers take."""
        if not self.place.room.names:
            return 0
        return int(self._reckoned(facts, [settings]).device_bytes.sum())

    def host_bytes(self, facts: GgufFacts, settings: Settings) -> int:
        """What main memory holds while it computes, weights that are mapped too."""
        found = self._reckoned(facts, [settings])
        parts = (found.host_weights_bytes, found.host_kv_cache_bytes, found.host_compute_bytes, found.output_bytes)
        return int(sum(part[0] for part in parts))

    def context_bytes(self, facts: GgufFacts, settings: Settings) -> tuple[int, int]:
        """What main memory holds besides weights: caches, which go by the layers, and buffers, which do not."""
        found = self._reckoned(facts, [settings])
        return int(found.host_kv_cache_bytes[0]), int((found.host_compute_bytes + found.output_bytes)[0])

    @property
    def free_bytes(self) -> int:
        """Of all devices together."""
        return sum(n_bytes or 0 for n_bytes in self.place.room.free_bytes)

    def lacking(self, host_bytes: int) -> str:
        """What main memory lacks to hold so much, as a sentence; "" where it does not."""
        available = self.place.room.available_bytes
        if available is None or host_bytes <= available:
            return ""
        return f"main memory would have to hold {format_bytes(host_bytes)} and has {format_bytes(available)} available"

    def _reckoned(self, facts: GgufFacts, asked: Sequence[Settings]) -> Footprints:
        room = self.place.room
        return reckon(facts, Grid.of(tuple(asked), facts.n_layer), room.backends, room.shares)


def surroundings(endpoints: Sequence[str], limit_bytes: int | None, command: Sequence[str]) -> Surroundings:
    """Those of now; `limit_bytes` is of all devices together. Raises EngineMissingError, EngineError."""
    with Runner(Path(), endpoints, command) as runner:
        try:
            engine, devices = runner.describe()
        except EngineMissingError as error:
            raise EngineMissingError(str(error), hint=rebuild_line()) from None
    machine = Machine(host=probe_host(measure=False), devices=devices)
    return limited(Surroundings(place=machine_place(machine, engine)), limit_bytes)


def limited(around: Surroundings, limit_bytes: int | None) -> Surroundings:
    """With no more than so much on all devices together, shared as their free memory is."""
    free = around.free_bytes
    if limit_bytes is None or free <= limit_bytes:
        return around
    room = around.place.room
    parts = tuple(None if one is None else one * limit_bytes // free for one in room.free_bytes)
    return Surroundings(place=dataclasses.replace(around.place, room=dataclasses.replace(room, free_bytes=parts)))

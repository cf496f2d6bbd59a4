"""Surroundings: the memory that a file will find here, asked before anything is written or loaded."""

from __future__ import annotations

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
    """Those of now. Raises EngineMissingError, EngineError."""
    with Runner(Path(), endpoints, command) as runner:
        try:
            engine, devices = runner.describe()
        except EngineMissingError as error:
            raise EngineMissingError(str(error), hint=rebuild_line()) from None
    machine = Machine(host=probe_host(measure=False), devices=devices)
    return Surroundings(place=machine_place(machine, engine, limit_bytes))

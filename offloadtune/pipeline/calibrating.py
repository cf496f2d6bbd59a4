"""What trials taught of each device with each engine build: bytes outside any breakdown, and what was free at idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offloadtune import store
from offloadtune.plans import RefusedTensors
from offloadtune.records import Device, EngineBuild, Outcome, TrialResult

_FILE = "calibrations.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One device with one engine build; None and () for what no trial has shown yet.

    `runtime_bytes` is the most that a trial took beyond the engine's own breakdown, `idle_free_bytes` the most that
    was ever free, `refused_types` are ggml types its backend does not compute with.
    """

    runtime_bytes: int | None = None
    idle_free_bytes: int | None = None
    refused_types: tuple[str, ...] = ()


class Calibrations:
    """The calibrations of one engine build, kept in the user's data folder."""

    def __init__(self, engine: EngineBuild) -> None:
        self._file = store.FactFile(store.data_dir() / _FILE)
        self._engine = engine

    def of(self, device: Device) -> Calibration:
        value: Any = self._file.get(self._key(device))
        if not isinstance(value, Mapping):
            return Calibration()
        types = value.get("refused_types", ())
        return Calibration(
            runtime_bytes=_count(value.get("runtime_bytes")),
            idle_free_bytes=_count(value.get("idle_free_bytes")),
            refused_types=tuple(str(one) for one in types) if isinstance(types, list) else (),
        )

    def learn_trial(self, devices: Iterable[Device], result: TrialResult) -> None:
        """Keep what `result` took beyond its breakdown, where that is more than known."""
        if result.outcome is not Outcome.OK:
            return
        peaks = dict(result.device_peak_bytes)
        for device in devices:
            counted = sum(row.total_bytes for row in result.memory if row.device == device.name)
            if counted and device.name in peaks:
                beyond = max(0, peaks[device.name] - counted)
                known = self.of(device)
                self._keep(device, runtime_bytes=max(beyond, known.runtime_bytes or 0))

    def learn_free(self, devices: Iterable[Device]) -> None:
        """Keep the most that was ever seen free: what other programs take now is the difference."""
        for device in devices:
            if device.free_bytes > (self.of(device).idle_free_bytes or 0):
                self._keep(device, idle_free_bytes=device.free_bytes)

    def learn_refused(self, devices: Iterable[Device], refused: Iterable[RefusedTensors]) -> None:
        """Keep the ggml types that a device's backend left to another."""
        for device in devices:
            types = {one.type_name.upper() for one in refused if one.refused_by.startswith(device.name)}
            known = set(self.of(device).refused_types)
            if types - known:
                self._keep(device, refused_types=sorted(types | known))

    def _keep(self, device: Device, **values: Any) -> None:
        known = self._file.get(self._key(device))
        self._file.put(self._key(device), {**(known if isinstance(known, Mapping) else {}), **values})

    def _key(self, device: Device) -> str:
        return f"{self._engine.build_id}|{device.name}|{device.description}|{device.total_bytes}"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

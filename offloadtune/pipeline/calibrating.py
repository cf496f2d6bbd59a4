"""What trials taught of each device with each engine build: bytes outside any breakdown, and what was free at idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offloadtune import store
from offloadtune.plans import RefusedTensors
from offloadtune.records import Device, EngineBuild, Outcome, TrialResult

_FILE = "calibrations.json"
_N_TRIALS_KEPT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One device with one engine build; None and () for what no trial has shown yet.

    `runtime_bytes` is the most that one of the last trials took beyond the engine's own breakdown, `idle_free_bytes`
    the most that was ever free, `refused_types` are ggml types its backend does not compute with.
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
        value = self._stored(device)
        types = value.get("refused_types", ())
        return Calibration(
            runtime_bytes=max(_counts(value.get("beyond_bytes")), default=None),
            idle_free_bytes=_count(value.get("idle_free_bytes")),
            refused_types=tuple(str(one) for one in types) if isinstance(types, list) else (),
        )

    def learn_trial(self, devices: Iterable[Device], result: TrialResult) -> None:
        """Keep what `result` took beyond its breakdown, beside that of the trials before it."""
        if result.outcome is not Outcome.OK:
            return
        peaks = dict(result.device_peak_bytes)
        for device in devices:
            counted = sum(row.total_bytes for row in result.memory if row.device == device.name)
            if counted and device.name in peaks:
                known = _counts(self._stored(device).get("beyond_bytes"))
                latest = [*known, max(0, peaks[device.name] - counted)][-_N_TRIALS_KEPT:]
                self._keep(device, beyond_bytes=latest)

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
        self._file.put(self._key(device), {**self._stored(device), **values})

    def _stored(self, device: Device) -> Mapping[str, Any]:
        value = self._file.get(self._key(device))
        return value if isinstance(value, Mapping) else {}

    def _key(self, device: Device) -> str:
        return f"{self._engine.build_id}|{device.name}|{device.description}|{device.total_bytes}"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _counts(value: Any) -> list[int]:
    return [one for one in value if _count(one) is not None] if isinstance(value, list) else []

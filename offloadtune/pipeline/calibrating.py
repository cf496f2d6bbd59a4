"""What trials taught of each device with each engine build: bytes outside any breakdown, and what was free at idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offloadtune import store
from offloadtune.plans import RefusedTensors
from offloadtune.records import Device, EngineBuild, Outcome, TrialResult

_FILE = "calibrations.json"
_N_SWEEPS_KEPT = 9
_TOO_LARGE = 1 << 60
_CREDIBLE_FRAC = 0.5
"""Of a device; what is more was taken by another program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One device with one engine build; None and () for what no trial has shown yet.

    `runtime_bytes` is what the trials of one sweep took at most beyond the engine's own breakdown, as the last sweeps
    showed it; `idle_free_bytes` the most that was ever free, `refused_types` are ggml types its backend does not take.
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
            runtime_bytes=_runtime_bytes(list(_of_sweeps(value).values())),
            idle_free_bytes=_count(value.get("idle_free_bytes")),
            refused_types=tuple(str(one) for one in types) if isinstance(types, list) else (),
        )

    def learn_trial(self, devices: Iterable[Device], result: TrialResult, sweep: str) -> None:
        """Keep what `result` took beyond its breakdown, if no trial of the same `sweep` took more.

        Names of sweeps sort by time; the last ones are kept.

        The first trial of a process pays for all that the driver keeps until the process ends, so the most counts.
        """
        if result.outcome is not Outcome.OK:
            return
        peaks = dict(result.device_peak_bytes)
        for device in devices:
            counted = sum(row.total_bytes for row in result.memory if row.device == device.name)
            beyond = max(0, peaks.get(device.name, 0) - counted)
            if counted and beyond <= device.total_bytes * _CREDIBLE_FRAC:
                known = _of_sweeps(self._stored(device))
                known[sweep] = max(beyond, known.pop(sweep, 0))
                self._keep(device, beyond_bytes=dict(sorted(known.items())[-_N_SWEEPS_KEPT:]))

    def learn_free(self, devices: Iterable[Device]) -> None:
        """Keep the most that was ever seen free: what other programs take now is the difference."""
        for device in devices:
            if device.free_bytes > (self.of(device).idle_free_bytes or 0):
                self._keep(device, idle_free_bytes=device.free_bytes)

    def learn_refused(self, devices: Iterable[Device], refused: Iterable[RefusedTensors]) -> None:
        """Keep the ggml types that a device's backend left to another."""
        for device in devices:
            types = {one.type_name.upper() for one in refused if one.is_whole_type and _is_of(device, one.refused_by)}
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


def _runtime_bytes(of_sweeps: Sequence[int]) -> int | None:
    """The most of the last sweeps, but for one: during that another program may have grown."""
    ordered = sorted(of_sweeps)
    return ordered[-2 if len(ordered) > 2 else -1] if ordered else None


def _is_of(device: Device, buffer_name: str) -> bool:
    """Whether a buffer type is `device`'s: named like it, with an endpoint behind it where it is remote."""
    return buffer_name.partition("[")[0] == device.name


def _of_sweeps(value: Mapping[str, Any]) -> dict[str, int]:
    stored = value.get("beyond_bytes")
    return {k: v for k, v in stored.items() if _count(v) is not None} if isinstance(stored, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE else None

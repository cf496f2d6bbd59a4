"""Warming: whether this engine build ran here before, with this driver; its first work compiles and fills caches."""

from __future__ import annotations

from offloadtune import store
from offloadtune.records import EngineBuild, Machine


class Warmth:
    """What ran on this machine before; with devices (`offloads`) and without count apart."""

    def __init__(self, machine: Machine, engine: EngineBuild, *, offloads: bool) -> None:
        self._file = store.FactFile(store.data_dir() / "warmed.json")
        drivers = ",".join(str(gpu.driver) for gpu in machine.host.nvml_gpus or ())
        devices = ",".join(device.name for device in machine.offload_devices) if offloads else "cpu"
        self._key = f"{engine.build_id}|{machine.machine_id}|{drivers}|{devices}"

    @property
    def is_warm(self) -> bool:
        return bool(self._file.get(self._key))

    def keep(self) -> None:
        self._file.put(self._key, value=True)

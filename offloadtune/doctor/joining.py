"""Which card of the driver's is which device of the engine's."""

from __future__ import annotations

import re

from offloadtune.hardware import DeviceSpeed, Examination, GpuHardware, MachineProfile
from offloadtune.records import Device


def is_remote(device: Device) -> bool:
    """Whether the device is another machine's, reached over the network."""
    return device.name.startswith("RPC")


def local_devices(profile: MachineProfile) -> tuple[Device, ...]:
    """Offload devices of this machine itself, each card once."""
    return tuple(device for device in profile.machine.offload_devices if not is_remote(device))


def card_of(device: Device, profile: MachineProfile) -> GpuHardware | None:
    """The card behind `device`, by its PCI address; where it has none, the only card there is."""
    if is_remote(device) or device.kind == "cpu":
        return None
    if device.device_id:
        return profile.hardware.card_at(device.device_id)
    gpus = profile.hardware.gpus
    return gpus[0] if len(gpus) == 1 and len(local_devices(profile)) == 1 else None


def speed_of(device: Device, profile: MachineProfile) -> DeviceSpeed | None:
    return next((speed for speed in profile.device_speeds if speed.device == device.name), None)


def device_of(gpu: GpuHardware, profile: MachineProfile) -> Device | None:
    """The engine's device that computes on `gpu`, None where it lists none."""
    return next((device for device in local_devices(profile) if card_of(device, profile) == gpu), None)


def is_mobile(gpu: GpuHardware, examined: Examination) -> bool:
    """Whether the card is a laptop's, by its name, by the machine's chassis, or by a battery."""
    is_portable = examined.profile.hardware.surroundings.is_portable
    has_battery = examined.now.on_battery is not None
    return bool(_MOBILE.search(gpu.name)) or (has_battery if is_portable is None else is_portable)


_MOBILE = re.compile(r"\b(Laptop|Mobile|Max-Q)\b", re.IGNORECASE)


def title(gpu: GpuHardware) -> str:
    """The card in a sentence; an index is of its vendor's own list."""
    return f"GPU {gpu.index} ({gpu.name})"

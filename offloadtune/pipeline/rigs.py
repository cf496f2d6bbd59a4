"""Rigs: what this machine, or cards by name, can do at best, for the speed law."""

from __future__ import annotations

from offloadtune.footprint import backend_of
from offloadtune.records import Machine
from offloadtune.speeds import DeviceRates, HostRates, Rig


def rig_of_machine(machine: Machine) -> Rig:
    """The engine's own devices and this host, with what was measured of them."""
    devices = machine.offload_devices
    cpu, ram = machine.host.cpu, machine.host.ram
    return Rig(
        devices=tuple(
            DeviceRates(name=device.name, offloads_ops=backend_of(device.name).offloads_ops) for device in devices
        ),
        host=HostRates(
            read_bytes_per_s=ram.read_bytes_per_s, n_cores=cpu.n_physical_cores, last_level_bytes=cpu.l3_bytes
        ),
        shares=tuple(float(device.free_bytes) for device in devices),
    )

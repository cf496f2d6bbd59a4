"""machine.toml: what is known of a machine, in the folder of its profiles.

FORMAT history:
    1  first: the records of `hardware` by the names of their fields, units in them; what is not known is left out.
A newer FORMAT than ours is refused. What passes by itself (free memory, processes, temperatures, clocks, a link asleep)
is not kept: read back, the machine is at rest.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from offloadtune.errors import UsageError
from offloadtune.hardware import DeviceSpeed, GpuHardware, MachineProfile
from offloadtune.records import Device, Machine
from offloadtune.store.codec import from_json, to_json
from offloadtune.store.home import profiles_dir

MACHINE_FORMAT = 1
MOST_BYTES = 8 << 20
"""No machine takes a tenth of it."""

_TOO_LARGE = 1 << 63

_HEAD = """\
# What offloadtune knows of this machine, written by `offloadtune doctor`. Speeds are bytes per second as measured.
# As it was before its parts, drivers or engine last changed it is kept in machine.previous.toml; with another card or
# much other memory it is another machine, with a folder of its own. What changed since this file was written:
# offloadtune doctor --since THIS_FILE
"""
_FIGURES = (
    "to_pageable_bytes_per_s",
    "from_pageable_bytes_per_s",
    "to_pinned_bytes_per_s",
    "from_pinned_bytes_per_s",
    "memory_bytes_per_s",
)
_EARLIER = re.compile(r"Some of it was measured (\S+)\.")
_HINT = "name a machine.toml that offloadtune doctor wrote"


def machine_path(machine: Machine) -> Path:
    """Where the file of `machine` belongs, beside its profiles."""
    return (profiles_dir() / machine.machine_id / "machine.toml").absolute()


def previous_path(path: Path) -> Path:
    """Where what the machine was before it changed is kept, beside `path`."""
    return path.with_name("machine.previous.toml")


def with_figures_of(before: MachineProfile, profile: MachineProfile) -> tuple[DeviceSpeed, ...]:
    """The speeds of `profile`; what it did not measure of a device that is the same in `before` is that one's.

    The reason of each that has such a figure says when that was measured.
    """
    same = set(map(_identity, before.machine.devices or ()))
    old = {one.device: one for one in before.device_speeds}
    new = {one.device: one for one in profile.device_speeds}
    speeds = []
    for device in profile.machine.devices or ():
        ours, theirs = new.get(device.name), old.get(device.name) if _identity(device) in same else None
        blank = DeviceSpeed(device=device.name, **dict.fromkeys(_FIGURES))
        if theirs is not None:
            speeds.append(_filled(ours or blank, theirs, before.measured_at))
        elif ours is not None:
            speeds.append(ours)
    return tuple(speeds)


def at_rest(profile: MachineProfile) -> MachineProfile:
    """The same machine without what passes by itself: all memory free, nothing running, clocks unknown."""
    machine, hardware = profile.machine, profile.hardware
    host = machine.host
    gpus = host.nvml_gpus
    host = dataclasses.replace(
        host,
        ram=dataclasses.replace(host.ram, available_bytes=host.ram.total_bytes),
        nvml_gpus=None if gpus is None else tuple(dataclasses.replace(one, free_bytes=None) for one in gpus),
    )
    devices = None if machine.devices is None else tuple(map(_device_at_rest, machine.devices))
    return dataclasses.replace(
        profile,
        machine=dataclasses.replace(machine, host=host, devices=devices),
        hardware=dataclasses.replace(hardware, gpus=tuple(map(_card_at_rest, hardware.gpus))),
    )


def render_machine(profile: MachineProfile, version: str) -> str:
    """The profile at rest as TOML; `version` is offloadtune's."""
    document = to_json(at_rest(profile))
    del document["machine"]["host"]["ram"]["available_bytes"]
    for device in document["machine"]["devices"] or ():
        del device["free_bytes"]
    head = {
        "format": MACHINE_FORMAT,
        "offloadtune": version,
        "machine_id": profile.machine.machine_id,
        "measured_at": document.pop("measured_at"),
    }
    return _HEAD + tomli_w.dumps(_without_none({**head, **document}))


def read_machine(path: Path) -> MachineProfile:
    """The machine at rest, as written at `path`. Raises UsageError."""
    try:
        document = tomllib.loads(_content(path).decode("utf-8"))
        if document["format"] > MACHINE_FORMAT:
            raise UsageError(f"{str(path)!r} was written by a newer offloadtune.", hint="update offloadtune")
        return _read(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{str(path)!r} is no machine file of offloadtune, or is damaged.", hint=_HINT) from None


def _content(path: Path) -> bytes:
    """Of a file that is longer than any machine's only the beginning, which is no TOML. Raises UsageError."""
    try:
        if path.exists() and not path.is_file():  # a pipe without a writer would hold us forever
            raise OSError(0, "it is no file")  # noqa: TRY301 - said in one place
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no path"
        raise UsageError(f"The machine file {str(path)!r} cannot be read: {reason}.", hint=_HINT) from None


def _read(document: dict[str, Any]) -> MachineProfile:
    """What is checked here, and not in the types, is what was left out."""
    ram = document["machine"]["host"]["ram"]
    ram["available_bytes"] = ram["total_bytes"]
    for device in document["machine"].get("devices", ()):
        device["free_bytes"] = device["total_bytes"]
    known = {field.name: document[field.name] for field in dataclasses.fields(MachineProfile) if field.name in document}
    return from_json(MachineProfile, _with_none(MachineProfile, known))


def _identity(device: Device) -> tuple[str, str, str | None]:
    return device.name, device.description, device.device_id


def _filled(speed: DeviceSpeed, before: DeviceSpeed, measured_at: str) -> DeviceSpeed:
    """`speed` with the figures of `before` where it has none, and when they were measured."""
    missing = {name: getattr(before, name) for name in _FIGURES if getattr(speed, name) is None}
    missing = {name: figure for name, figure in missing.items() if figure is not None}
    if not missing:
        return speed
    if speed.pcie_generation is None:
        missing |= {"pcie_generation": before.pcie_generation, "n_pcie_lanes": before.n_pcie_lanes}
    earlier = _EARLIER.search(before.reason or "")
    at = f"Some of it was measured {earlier[1] if earlier else measured_at}."
    return dataclasses.replace(speed, **missing, reason=f"{speed.reason or ''} {at}".strip())


def _device_at_rest(device: Device) -> Device:
    return dataclasses.replace(device, free_bytes=device.total_bytes)


def _card_at_rest(gpu: GpuHardware) -> GpuHardware:
    """Its lanes a link keeps asleep, its generation it does not."""
    return dataclasses.replace(
        gpu,
        free_bytes=None,
        pcie_generation=None,
        clock_mhz=None,
        temperature_c=None,
        throttle_reasons=None,
        processes=None,
    )


def _without_none(value: Any) -> Any:
    """`value` as TOML can say it; of a text what is no Unicode, which names of files may hold, becomes "?"."""
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _with_none(kind: Any, value: Any) -> Any:
    """`value`, of a record of `kind`, with None wherever a field is missing that has no default.

    Raises ValueError for a number that TOML has no room for, and that no arithmetic here would stand.
    """
    record = _record_in(kind)
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        raise ValueError
    if isinstance(value, list):
        return [_with_none(kind, inner) for inner in value]
    if record is None or not isinstance(value, dict):
        return value
    hints = typing.get_type_hints(record)
    bare = {field.name: None for field in dataclasses.fields(record) if field.default is dataclasses.MISSING}
    return {**bare, **{name: _with_none(hints.get(name), inner) for name, inner in value.items()}}


def _record_in(kind: Any) -> Any:
    """The record that `kind` is or holds: of `Record`, `Record | None`, `tuple[Record, ...]` and both together."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is tuple:
        return next((found for one in typing.get_args(kind) if (found := _record_in(one))), None)
    return None

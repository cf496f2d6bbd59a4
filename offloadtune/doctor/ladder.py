"""The ladder of bandwidths: from a card's own memory down to the disk, each rung beside what its class does.

Generating a token reads the active weights once, so a medium that holds all of them writes at most

    decode ceiling [tok/s] = bandwidth [bytes/s] / bytes a token reads [bytes]

Only a measured bandwidth gives a ceiling here; what a data sheet promises gives none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offloadtune.doctor.classes import (
    APPLE,
    NETWORK_LINK,
    REMOTE,
    Range,
    card_class,
    disk_class,
    disk_kind,
    memory_class,
    pcie_class,
)
from offloadtune.doctor.joining import card_of, device_of, is_remote, local_devices, speed_of, title
from offloadtune.hardware import DeviceSpeed, Disk, GpuHardware, MachineProfile, Medium
from offloadtune.records import Device, GgufFacts

_TOKEN_TABLE = "token_embd.weight"  # noqa: S105 - a tensor

_Steps = tuple[tuple[float, str], ...]

_FITNESS: dict[str, tuple[_Steps, _Steps]] = {
    "device": (((0, "good"),), ((200e9, "good"), (60e9, "usable"), (0, "slow"))),
    "main": (((0, "slow"),), ((60e9, "usable"), (15e9, "slow"), (0, "very slow"))),
    "link": (((10e9, "good"), (3e9, "usable"), (0, "slow")), ((0, "no"),)),
    "disk": (((2e9, "slow"), (0, "no")), ((0, "no"),)),
}
"""Role -> for prefill and for decode, the words from so many bytes per second on.

Prefill reads the weights once for a whole batch of tokens, so it can take them over a link; decode reads them for every
token. In main memory the CPU computes, which holds prefill back more than the memory does. What was not measured has a
word only where both ends of its class have the same.
"""


def bytes_per_token(facts: GgufFacts) -> float | None:
    """Bytes of weights that generating one token reads; None where the header has none.

        sum over blocks (dense + experts x n_expert_used / n_expert) + output + other

    Blocks that only predict further tokens are left out. Of the token embedding one row is read, which is nothing;
    but where it is the output too (tied), it is read whole. The cache, which grows with the context, is not counted.
    """
    n_layer = facts.n_layer - facts.n_layer_nextn
    used_frac = min(1.0, facts.n_expert_used / facts.n_expert) if facts.n_expert else 1.0
    blocks = sum(
        layer - experts + experts * used_frac
        for layer, experts in zip(facts.layer_bytes[:n_layer], facts.expert_bytes[:n_layer], strict=True)
    )
    table = sum(tensor.n_bytes for tensor in facts.tensors if tensor.name == _TOKEN_TABLE) or facts.embedding_bytes
    total = blocks + facts.output_bytes + facts.other_bytes + (table if facts.is_tied else 0)
    return total or None


def ladder(profile: MachineProfile, disks: Sequence[Disk], bytes_per_token: float | None) -> tuple[Medium, ...]:
    """The rungs in the order of their usual speed: memory of each device, main memory, links, disks.

    With `bytes_per_token` of a file, what was measured has the ceiling of its decode.
    """
    rungs = (*_device_memories(profile), *_main_memory(profile), *_links(profile), *map(_disk, disks))
    return tuple(_medium(*rung, bytes_per_token=bytes_per_token) for rung in rungs)


_Rung = tuple[str, str, tuple[str, Range], float | None]
"""Role, name, class, and what was measured."""


def _medium(
    role: str, name: str, class_: tuple[str, Range], bytes_per_s: float | None, *, bytes_per_token: float | None
) -> Medium:
    class_name, class_range = class_
    known = (bytes_per_s,) if bytes_per_s else class_range
    prefill, decode = (_word(steps, known) for steps in _FITNESS[role])
    return Medium(
        name=name,
        class_name=class_name,
        class_bytes_per_s=class_range,
        bytes_per_s=bytes_per_s,
        fitness_prefill=prefill,
        fitness_decode=decode,
        decode_ceiling_tok_per_s=bytes_per_s / bytes_per_token if bytes_per_s and bytes_per_token else None,
    )


def _word(steps: _Steps, known: Sequence[float]) -> str:
    """What all of the bandwidths are good for, "unknown" where they differ."""
    words = {next(word for least, word in steps if one >= least) for one in known}
    return words.pop() if len(words) == 1 else "unknown"


def _device_memories(profile: MachineProfile) -> Iterator[_Rung]:
    """Of the engine's devices, and of discrete cards it does not list."""
    for device in profile.machine.offload_devices:
        card, speed = card_of(device, profile), speed_of(device, profile)
        measured = speed.memory_bytes_per_s if speed else None
        yield "device", f"{device.name} {_described(device, card)}", _memory_class(device, card, profile), measured
    unused = ", not used by the engine" if profile.machine.devices is not None else ""  # None: it was not asked
    for gpu in _unlisted(profile):
        yield "device", f"{title(gpu)}{unused}", card_class(gpu.name), None


def _main_memory(profile: MachineProfile) -> Iterator[_Rung]:
    memory, ram = profile.hardware.memory, profile.machine.host.ram
    measured = memory.fastest.read_bytes_per_s if memory.fastest else ram.read_bytes_per_s
    yield "main", "main memory", _main_class(profile), measured


def _main_class(profile: MachineProfile) -> tuple[str, Range]:
    if profile.machine.host.os.startswith("macOS") and profile.machine.host.cpu.arch == "arm64":
        return "memory shared with the GPU", APPLE
    return memory_class(profile.hardware.memory.kind or profile.machine.host.ram.kind)


def _links(profile: MachineProfile) -> Iterator[_Rung]:
    """From main memory to each device that has memory of its own."""
    for device in profile.machine.offload_devices:
        card, speed = card_of(device, profile), speed_of(device, profile)
        measured, how = _to_device(speed)
        if is_remote(device):
            yield "link", f"network to {device.name}", ("network", NETWORK_LINK), measured
        elif device.kind == "gpu" and (card is None or card.kind != "integrated"):
            yield "link", f"main memory to {device.name}{how}", pcie_class(*link_of(card, speed)), measured
    for gpu in _unlisted(profile):
        yield "link", f"main memory to {title(gpu)}", pcie_class(*link_of(gpu, None)), None


def link_of(card: GpuHardware | None, speed: DeviceSpeed | None) -> tuple[int | None, int | None]:
    """Generation and lanes: under load where that was seen, else the most that card and slot can do."""
    if speed and speed.pcie_generation and speed.n_pcie_lanes:
        return speed.pcie_generation, speed.n_pcie_lanes
    if card is None:
        return None, None
    return card.pcie_generation_most, card.n_pcie_lanes or card.n_pcie_lanes_most


def _to_device(speed: DeviceSpeed | None) -> tuple[float | None, str]:
    if speed is None or speed.to_pinned_bytes_per_s:
        return (speed.to_pinned_bytes_per_s if speed else None), ""
    return speed.to_pageable_bytes_per_s, " (not pinned)" if speed.to_pageable_bytes_per_s else ""


def _memory_class(device: Device, card: GpuHardware | None, profile: MachineProfile) -> tuple[str, Range]:
    if is_remote(device):
        return "another machine's", REMOTE
    if device.kind == "igpu" or (card and card.kind == "integrated"):
        name, class_range = _main_class(profile)
        return f"{name}, shared" if "shared" not in name else name, class_range
    return card_class(card.name if card else device.description)


def _unlisted(profile: MachineProfile) -> tuple[GpuHardware, ...]:
    """Discrete cards that no device of the engine stands for; none where a device hides which card it is."""
    if any(card_of(device, profile) is None for device in local_devices(profile)):
        return ()
    return tuple(gpu for gpu in profile.hardware.gpus if gpu.kind == "discrete" and device_of(gpu, profile) is None)


def _described(device: Device, card: GpuHardware | None) -> str:
    return card.name if card else device.description


def _disk(disk: Disk) -> _Rung:
    where = f"disk of {disk.mount_point}" if disk.mount_point else "disk"
    return "disk", where, disk_class(disk_kind(disk)), disk.cold_bytes_per_s

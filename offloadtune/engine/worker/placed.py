"""Which tensors a device would not take, from where the engine puts each: pure, no library needed.

The loader's log has one line for all tensors that are not where they belong, and it tells of the first only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(r"blk\.(\d+)\.")
_OUTPUT, _EMBEDDING = "output.weight", "token_embd.weight"


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor of a file as loaded: the buffer type it is in and that one's device, "host" for main memory."""

    name: str
    type_name: str
    buffer_name: str
    device: str


def refused_tensors(
    tensors: Sequence[PlacedTensor], layer_devices: Sequence[str], device_of: Mapping[str, str], kept: str | None
) -> list[dict[str, Any]]:
    """Fields of `plans.RefusedTensors`: tensors of layers on a device that are not there, by type.

    `layer_devices` as in lines.py, `device_of` names the device of a device's buffer type, `kept` is the pattern of
    tensors that were asked to stay on the host.
    """
    buffer_of = {device: buffer_name for buffer_name, device in device_of.items()}
    groups: dict[tuple[str, str, str], list[str]] = {}
    device_of_buffer: dict[str, str] = {}
    taken = {(tensor.type_name, tensor.device) for tensor in tensors}
    for tensor in _at_home_in_layers(tensors, layer_devices):
        assigned = _assigned(tensor, layer_devices)
        if assigned in {"host", tensor.device} or (kept and re.search(kept, tensor.name)):
            continue
        device_of_buffer[buffer_of.get(assigned, assigned)] = assigned
        key = (tensor.type_name, buffer_of.get(assigned, assigned), tensor.buffer_name)
        groups.setdefault(key, []).append(tensor.name)
    return [
        {
            "example": names[0],
            "type_name": type_name,
            "n_tensors": len(names),
            "refused_by": refused_by,
            "kept_in": kept_in,
            "is_whole_type": (type_name, device_of_buffer[refused_by]) not in taken,
        }
        for (type_name, refused_by, kept_in), names in groups.items()
    ]


def _at_home_in_layers(tensors: Sequence[PlacedTensor], layer_devices: Sequence[str]) -> list[PlacedTensor]:
    """Tensors of blocks and of the output layer, the embedding where it serves as output and has no copy there."""
    found = [tensor for tensor in tensors if _BLOCK.match(tensor.name) or tensor.name.startswith("output")]
    embeddings = [tensor for tensor in tensors if tensor.name == _EMBEDDING]
    is_tied = all(tensor.name != _OUTPUT for tensor in tensors)
    if is_tied and layer_devices and all(tensor.device != layer_devices[-1] for tensor in embeddings):
        found += embeddings[:1]
    return found


def _assigned(tensor: PlacedTensor, layer_devices: Sequence[str]) -> str:
    match = _BLOCK.match(tensor.name)
    i_layer = int(match[1]) if match else len(layer_devices) - 1
    return layer_devices[i_layer] if 0 <= i_layer < len(layer_devices) else "host"

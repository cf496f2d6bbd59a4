"""GGUF version 3 as bytes: key-values, and the header that they make with a table of tensors."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offloadtune.gguf.tables import ARRAY_TYPE, GGML_TYPES, STRING_TYPE, TYPES_BY_NAME, number_layout

ALIGNMENT = 32
ARRAY_HEAD = struct.Struct("<IIQ")
"""What stands before the elements of an array: that it is one, their type and how many they are."""

Tensor = tuple[str, str, tuple[int, ...]]
"""Name, ggml type and shape, the contiguous dimension first."""

_VERSION = 3
_U32, _I32, _F32, _BOOL, _U64 = 4, 5, 6, 7, 10
_TYPE_IDS = {ggml_type.name: type_id for type_id, ggml_type in GGML_TYPES.items()}
_LARGEST_U32 = 2**32 - 1


def text(value: str) -> bytes:
    """A string with its length before it."""
    content = value.encode(errors="replace")
    return struct.pack("<Q", len(content)) + content


def encoded(value: Any) -> bytes:
    """A value with its type before it; of an array the first value decides whether it holds flags or numbers."""
    if isinstance(value, str):
        return struct.pack("<I", STRING_TYPE) + text(value)
    if isinstance(value, tuple):
        value_type = _type_of(value[0]) if value else _I32
        value_type = _I32 if value_type == _U32 else value_type  # as llama.cpp's own converter writes them
        return number_array(value_type, value)
    value_type = _type_of(value)
    return struct.pack("<I", value_type) + number_layout(value_type).pack(value)


def number_array(value_type: int, values: Sequence[Any]) -> bytes:
    return ARRAY_HEAD.pack(ARRAY_TYPE, value_type, len(values)) + number_layout(value_type, len(values)).pack(*values)


def string_array(values: Sequence[str]) -> bytes:
    return ARRAY_HEAD.pack(ARRAY_TYPE, STRING_TYPE, len(values)) + b"".join(map(text, values))


def n_bytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor's data, without padding."""
    ggml_type = TYPES_BY_NAME[tensor[1]]
    return math.prod(tensor[2]) // ggml_type.n_block * ggml_type.block_bytes


def padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def header(key_values: Mapping[str, bytes], tensors: Iterable[Tensor]) -> bytes:
    """The header, padded to where the data begins; tensors follow each other in the order given."""
    table, offset, n_tensors = [], 0, 0
    for tensor in tensors:
        name, type_name, shape = tensor
        place = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _TYPE_IDS[type_name], offset)
        table.append(text(name) + place)
        offset += padded(n_bytes_of(tensor))
        n_tensors += 1
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, n_tensors, len(key_values))]
    parts += [text(key) + value for key, value in key_values.items()]
    content = b"".join([*parts, *table])
    return content.ljust(padded(len(content)), b"\0")


def _type_of(value: float) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, float):
        return _F32
    if value < 0:
        return _I32
    return _U32 if value <= _LARGEST_U32 else _U64

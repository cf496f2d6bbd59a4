"""One GGUF file's header: key-values and tensor table, checked as strictly as llama.cpp does before it loads.

Strings in arrays and numbers in long arrays are counted, not kept, so a large vocabulary costs milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from offloadtune.errors import GgufError
from offloadtune.gguf.cursor import Cursor
from offloadtune.gguf.opening import DOWNLOAD_AGAIN, damaged, open_header
from offloadtune.gguf.tables import (
    ARRAY_TYPE,
    GGML_TYPES,
    NUMBER_FORMATS,
    STRING_TYPE,
    TYPES_BY_NAME,
    GgmlType,
    number_layout,
)
from offloadtune.records import TensorFacts

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_N_KEPT_NUMBERS = 1024
_KEPT_STRING_BYTES = 1024**2

# Hundreds of keys and some thousand tensors are the most in use; beyond these limits a count is a lie.
_MAX_KEYS = 8192
_MAX_TENSORS = 131_072
_MAX_KEY_BYTES = 65_535
_MAX_NAME_BYTES = 63
_MAX_DIMS = 4
_MAX_I64 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What one file says before its data. `header_bytes` is where the data section starts.

    `key_values` keeps scalars, strings and short numeric arrays (as tuples); any other array is a phrase such as
    "array of 49152 strings". `array_lengths` holds the true length of every array.
    """

    path: Path
    file_bytes: int
    header_bytes: int
    version: int
    key_values: dict[str, Any]
    array_lengths: dict[str, int]
    tensors: tuple[TensorFacts, ...]

    def count(self, key: str, default: int | None = None) -> int:
        """The whole number under `key`. Raises GgufError when it is absent without a default, or not a count."""
        value = self.key_values.get(key, default)
        if value is None:
            raise GgufError(f"{self.path} lacks the key {shown(key)}, which llama.cpp needs.", hint=DOWNLOAD_AGAIN)
        if not is_count(value):
            raise damaged(self.path, f"its {shown(key)} is {shown(value)}, which is not a count")
        return value

    def text(self, key: str) -> str | None:
        """The string under `key`, None when absent or of another type."""
        value = self.key_values.get(key)
        return value if isinstance(value, str) and key not in self.array_lengths else None


def is_count(value: Any) -> TypeGuard[int]:
    """Whether `value` is a whole number that llama.cpp can hold in its 32-bit fields."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def shown(value: Any) -> str:
    """`value` from a file that may lie, safe and short enough for a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_header(path: Path) -> Header:
    """Read and check the header of one file, which may be a shard. Raises GgufError with one sentence."""
    with open_header(path) as (window, file_bytes):
        cursor = Cursor(path, window, file_bytes)
        version, n_tensors, n_keys = _read_preamble(cursor)
        key_values, array_lengths = _read_key_values(cursor, n_keys)
        alignment = _alignment(path, key_values)
        tensors = _read_tensors(cursor, n_tensors, _i_shard(key_values))
    header_bytes = _padded(cursor.position, alignment) if tensors else cursor.position
    _check_layout(path, tensors, alignment)
    _check_complete(path, tensors, header_bytes, file_bytes)
    return Header(
        path=path,
        file_bytes=file_bytes,
        header_bytes=header_bytes,
        version=version,
        key_values=key_values,
        array_lengths=array_lengths,
        tensors=tensors,
    )


def header_of_parts(
    path: Path,
    key_values: Mapping[str, Any],
    array_lengths: Mapping[str, int],
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
) -> Header:
    """The header that a file with these key-values and (name, ggml type, shape) would have, tensors end to end.

    Raises GgufError for an impossible alignment, an unknown type and rows that are not whole blocks of their type.
    """
    alignment = _alignment(path, dict(key_values))
    table: list[TensorFacts] = []
    end = 0
    for name, type_name, shape in tensors:
        ggml_type = TYPES_BY_NAME.get(type_name)
        if ggml_type is None or shape[0] % ggml_type.n_block:
            raise damaged(path, f"its tensor {shown(name)} cannot be of type {type_name} with the shape {shape}")
        n_bytes = _n_bytes(shape, ggml_type)
        table.append(TensorFacts(name=name, type_name=type_name, shape=shape, n_bytes=n_bytes, offset=end, i_shard=0))
        end = _padded(end + n_bytes, alignment)
    header_bytes = _padded(_least_header_bytes(key_values, array_lengths, table), alignment)
    return Header(
        path=path,
        file_bytes=header_bytes + end,
        header_bytes=header_bytes,
        version=_VERSIONS[-1],
        key_values=dict(key_values),
        array_lengths=dict(array_lengths),
        tensors=tuple(table),
    )


def _least_header_bytes(
    key_values: Mapping[str, Any], array_lengths: Mapping[str, int], tensors: Sequence[TensorFacts]
) -> int:
    """Bytes of a header whose numbers have four bytes each and whose string arrays are empty strings."""
    n_bytes = 24
    for key, value in key_values.items():
        n_value = 4 + 12 * (key in array_lengths)
        if key in array_lengths:
            n_value += array_lengths[key] * (4 if isinstance(value, tuple) else 8)
        else:
            n_value += 8 + len(value.encode()) if isinstance(value, str) else 4
        n_bytes += 8 + len(key.encode()) + n_value
    return n_bytes + sum(8 + len(tensor.name.encode()) + 4 + 8 * len(tensor.shape) + 12 for tensor in tensors)


def _read_preamble(cursor: Cursor) -> tuple[int, int, int]:
    path = cursor.path
    cursor.skip(4)
    version = cursor.u32()
    if version and not version & 0xFFFF:
        hint = "Convert it with gguf_convert_endian.py from llama.cpp, or download the little-endian file."
        raise GgufError(f"{path} is a big-endian GGUF file, which this machine cannot run.", hint=hint)
    if version not in _VERSIONS:
        hint = (
            "Download a newer conversion of the model." if version < 2 else "Update offloadtune, or use another file."
        )
        raise GgufError(f"{path} is GGUF version {version}; versions 2 and 3 can be read.", hint=hint)
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    if n_tensors > _MAX_TENSORS:
        raise damaged(path, f"it claims to hold {n_tensors} tensors")
    if n_keys > _MAX_KEYS:
        raise damaged(path, f"it claims to hold {n_keys} key-values")
    return version, n_tensors, n_keys


def _read_key_values(cursor: Cursor, n_keys: int) -> tuple[dict[str, Any], dict[str, int]]:
    values: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(n_keys):
        key = _read_name(cursor, "key", _MAX_KEY_BYTES)
        if key in values:
            raise damaged(cursor.path, f"its key {shown(key)} occurs twice")
        value_type = cursor.u32()
        if value_type == ARRAY_TYPE:
            values[key], lengths[key] = _read_array(cursor, key)
        else:
            values[key] = _read_scalar(cursor, key, value_type)
    return values, lengths


def _read_name(cursor: Cursor, what: str, max_bytes: int) -> str:
    n_bytes = cursor.u64()
    if not 0 < n_bytes <= max_bytes:
        raise damaged(cursor.path, f"a {what} in it has a name of {n_bytes} bytes")
    return cursor.text(n_bytes)


def _read_scalar(cursor: Cursor, key: str, value_type: int) -> Any:
    if value_type == STRING_TYPE:
        n_bytes = cursor.u64()
        if n_bytes <= _KEPT_STRING_BYTES:
            return cursor.text(n_bytes)
        cursor.skip(n_bytes)
        return f"string of {n_bytes} bytes"
    if value_type not in NUMBER_FORMATS:
        raise damaged(cursor.path, f"its key {shown(key)} has the unknown value type {value_type}")
    return cursor.unpack(number_layout(value_type))[0]


def _read_array(cursor: Cursor, key: str) -> tuple[Any, int]:
    value_type, length = cursor.u32(), cursor.u64()
    if value_type == STRING_TYPE:
        cursor.skip_strings(length)
        return f"array of {length} strings", length
    if value_type not in NUMBER_FORMATS:
        raise damaged(cursor.path, f"its array {shown(key)} has the unknown value type {value_type}")
    if length <= _N_KEPT_NUMBERS:
        return cursor.unpack(number_layout(value_type, length)), length
    cursor.skip(length * number_layout(value_type).size)
    return f"array of {length} numbers", length


def _alignment(path: Path, key_values: dict[str, Any]) -> int:
    alignment = key_values.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not is_count(alignment) or alignment == 0 or alignment & (alignment - 1):
        raise damaged(path, f"its general.alignment is {shown(alignment)}, which is not a power of two")
    return alignment


def _i_shard(key_values: dict[str, Any]) -> int:
    n_shards, i_shard = key_values.get("split.count"), key_values.get("split.no")
    return i_shard if is_count(i_shard) and is_count(n_shards) and n_shards > 1 else 0


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _read_tensors(cursor: Cursor, n_tensors: int, i_shard: int) -> tuple[TensorFacts, ...]:
    tensors: dict[str, TensorFacts] = {}
    for _ in range(n_tensors):
        tensor = _read_tensor(cursor, i_shard)
        if tensor.name in tensors:
            raise damaged(cursor.path, f"its tensor {shown(tensor.name)} occurs twice")
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


def _read_tensor(cursor: Cursor, i_shard: int) -> TensorFacts:
    path = cursor.path
    name = _read_name(cursor, "tensor", _MAX_NAME_BYTES)
    n_dims = cursor.u32()
    if n_dims > _MAX_DIMS:
        raise damaged(path, f"its tensor {shown(name)} has {n_dims} dimensions")
    shape = tuple(cursor.u64() for _ in range(n_dims))
    if max(shape, default=1) > _MAX_I64 or math.prod(shape) > _MAX_I64:
        raise damaged(path, f"its tensor {shown(name)} has the impossible shape {shape}")
    type_id = cursor.u32()
    ggml_type = GGML_TYPES.get(type_id)
    if ggml_type is None:
        sentence = f"{path} holds a tensor {shown(name)} of the unknown ggml type {type_id}."
        raise GgufError(sentence, hint="Update offloadtune, or use another quantisation of the model.")
    n_row = shape[0] if shape else 1
    if n_row % ggml_type.n_block:
        raise damaged(path, f"its tensor {shown(name)} has rows of {n_row}, not whole blocks of {ggml_type.name}")
    return TensorFacts(
        name=name,
        type_name=ggml_type.name,
        shape=shape,
        n_bytes=_n_bytes(shape, ggml_type),
        offset=cursor.u64(),
        i_shard=i_shard,
    )


def _n_bytes(shape: tuple[int, ...], ggml_type: GgmlType) -> int:
    return math.prod(shape) // ggml_type.n_block * ggml_type.block_bytes


def _check_layout(path: Path, tensors: tuple[TensorFacts, ...], alignment: int) -> None:
    # llama.cpp loads only files whose tensors follow each other in the order of the table.
    expected = 0
    for tensor in tensors:
        if tensor.offset != expected:
            raise damaged(path, f"its tensor {shown(tensor.name)} is at offset {tensor.offset} instead of {expected}")
        expected = _padded(expected + tensor.n_bytes, alignment)


def _check_complete(path: Path, tensors: tuple[TensorFacts, ...], header_bytes: int, file_bytes: int) -> None:
    end = header_bytes + max((tensor.offset + tensor.n_bytes for tensor in tensors), default=0)
    if file_bytes < end:
        hint = "Resume the download, or download the file again."
        raise GgufError(f"{path} is cut at {file_bytes} of {end} bytes.", hint=hint)

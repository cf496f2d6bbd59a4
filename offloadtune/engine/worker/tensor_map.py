"""Where the engine puts each tensor, read from its own table: a C++ object laid out as by libstdc++."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from offloadtune.engine.worker import native
from offloadtune.engine.worker.placed import PlacedTensor

_SYMBOL = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model"
_N_TENSORS_MAX = 1 << 20
_N_NAME_MAX = 128


class _Vector(ctypes.Structure):
    """std::vector of libstdc++."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p))


class _Entry(ctypes.Structure):
    """std::pair of a libstdc++ std::string and a pointer to ggml_tensor."""

    _fields_ = (
        ("text", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("short_text", ctypes.c_char * 16),
        ("tensor", ctypes.c_void_p),
    )


class _TensorHead(ctypes.Structure):
    """The first fields of struct ggml_tensor."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p))


def placed_tensors(loaded: Any) -> list[PlacedTensor] | None:
    """All tensors behind the handle `loaded`, copies included; None where this build's table cannot be read."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = native.ggml[_SYMBOL]
    except AttributeError:
        return None
    function.restype, function.argtypes = ctypes.POINTER(_Vector), (ctypes.c_void_p,)
    vector = function(loaded).contents
    n_bytes = (vector.end or 0) - (vector.begin or 0)
    n_tensors, rest = divmod(n_bytes, ctypes.sizeof(_Entry))
    if rest or not 0 < n_tensors < _N_TENSORS_MAX:
        return None
    entries = (_Entry * n_tensors).from_address(vector.begin)
    if any(entry.length > _N_NAME_MAX or not entry.tensor for entry in entries):
        return None
    return [_placed(entry) for entry in entries]


def _placed(entry: _Entry) -> PlacedTensor:
    head = _TensorHead.from_address(entry.tensor)
    buft = native.buffer_get_type(head.buffer)
    return PlacedTensor(
        name=ctypes.string_at(entry.text, entry.length).decode("utf-8", "replace"),
        type_name=native.type_name(head.type).decode(),
        buffer_name=native.buft_name(buft).decode(),
        device=native.device_of_buffer(buft)[0],
    )

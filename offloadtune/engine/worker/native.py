"""llama.cpp through ctypes: what llama_cpp.llama_cpp does not bind, and its enums as words.

ggml symbols are taken through libllama's own handle: loading libggml by another file name makes a second registry.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp

from offloadtune.engine.build import build_id, library_dir

low: Any = llama_cpp
ggml: Any = low._lib  # noqa: SLF001 - the documented way to the rest of the library

LIBRARY_DIR = library_dir(Path(low.__file__).parent)
FLASH_ATTN_TYPES = {"auto": -1, "disabled": 0, "enabled": 1}
LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap_mlock": 3, "direct_io": 4}
GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
DEVICE_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "meta"}
_LOG_LEVEL_DEBUG = 1
_LOG_LEVEL_ERROR = 4
_EXPERTS_OF_BLOCK = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # LLM_FFN_EXPS_REGEX of common.h
_FFN_OF_BLOCK = r"blk\.{}\.ffn_(up|down|gate)\."  # LLM_FFN_DENSE_REGEX


def bind(name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = ggml[name]
    function.restype, function.argtypes = restype, argtypes  # type: ignore[attr-defined]
    return function


dev_count = bind("ggml_backend_dev_count", c_size_t)
dev_get = bind("ggml_backend_dev_get", c_void_p, c_size_t)
dev_name = bind("ggml_backend_dev_name", c_char_p, c_void_p)
dev_description = bind("ggml_backend_dev_description", c_char_p, c_void_p)
dev_type = bind("ggml_backend_dev_type", c_int, c_void_p)
dev_memory = bind("ggml_backend_dev_memory", None, c_void_p, POINTER(c_size_t), POINTER(c_size_t))
dev_get_props = bind("ggml_backend_dev_get_props", None, c_void_p, c_void_p)
load_all_from_path = bind("ggml_backend_load_all_from_path", None, c_char_p)
buft_name = bind("ggml_backend_buft_name", c_char_p, c_void_p)
buft_is_host = bind("ggml_backend_buft_is_host", c_bool, c_void_p)
cpu_buffer_type = bind("ggml_backend_cpu_buffer_type", c_void_p)
type_name = bind("ggml_type_name", c_char_p, c_int)
buffer_get_type = bind("ggml_backend_buffer_get_type", c_void_p, c_void_p)
dev_buffer_type = bind("ggml_backend_dev_buffer_type", c_void_p, c_void_p)
buft_get_device = bind("ggml_backend_buft_get_device", c_void_p, c_void_p)
reg_by_name = bind("ggml_backend_reg_by_name", c_void_p, c_char_p)
reg_get_proc_address = bind("ggml_backend_reg_get_proc_address", c_void_p, c_void_p, c_char_p)
register = bind("ggml_backend_register", None, c_void_p)
_AbortCallback = ctypes.CFUNCTYPE(None, c_char_p)
set_abort_callback = bind("ggml_set_abort_callback", c_void_p, _AbortCallback)


_CAP_HOST_BUFFER = 1  # of ggml_backend_dev_caps: async, host_buffer, ...


class _DeviceProps(ctypes.Structure):
    """struct ggml_backend_dev_props; the tail is room for capabilities that later versions add."""

    _fields_ = (
        ("name", c_char_p),
        ("description", c_char_p),
        ("memory_free", c_size_t),
        ("memory_total", c_size_t),
        ("type", c_int),
        ("device_id", c_char_p),
        ("caps", ctypes.c_ubyte * 64),
    )


class _MapHeader(ctypes.Structure):
    """std::map of libstdc++, returned by value."""

    _fields_ = (
        ("compare", c_uint64),
        ("color", c_int),
        ("root", c_void_p),
        ("left", c_void_p),
        ("right", c_void_p),
        ("count", c_size_t),
    )


class _MapNode(ctypes.Structure):
    """Node of map<buffer type, {weights, context, compute}>."""

    _fields_ = (
        ("color", c_int),
        ("parent", c_void_p),
        ("left", c_void_p),
        ("right", c_void_p),
        ("buft", c_void_p),
        ("weights", c_size_t),
        ("cache", c_size_t),
        ("compute", c_size_t),
    )


class _TensorOverride(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", c_char_p), ("buft", c_void_p))


class Log:
    """Keeps what the engine says: the last lines for the parent, those since a mark for reading figures.

    Of the lines of level DEBUG those that contain one of `debug_marks` are kept, for reading figures only.
    """

    def __init__(self) -> None:
        self.debug_marks: tuple[str, ...] = ()
        self._lines: deque[str] = deque(maxlen=2000)
        self._errors: deque[str] = deque(maxlen=20)
        self._stream = sys.stderr
        self._callback = low.llama_log_callback(self._keep)  # referenced here: it is called from C
        low.llama_log_set(self._callback, c_void_p(0))

    def _keep(self, level: int, text: bytes, _user: Any) -> None:
        if level == _LOG_LEVEL_DEBUG and not self.debug_marks:
            return
        line = text.decode("utf-8", "replace").rstrip("\n")
        if level == _LOG_LEVEL_DEBUG:
            if any(mark in line for mark in self.debug_marks):
                self._lines.append(line)
        elif line.strip(". "):  # loading prints dots
            self._lines.append(line)
            self._stream.write(line + "\n")
            if level == _LOG_LEVEL_ERROR:
                self._errors.append(line)

    def forget(self) -> None:
        self._lines.clear()
        self._errors.clear()

    @property
    def lines(self) -> list[str]:
        return list(self._lines)

    @property
    def errors(self) -> list[str]:
        return list(self._errors)


def start(tell_abort: Callable[[str], None]) -> tuple[Log, Any]:
    """Install the log, the abort callback and the backends; keep what is returned referenced."""
    _check_fields(low.llama_model_params, ("devices", "tensor_split", "load_mode", "use_extra_bufts", "no_host"))
    _check_fields(low.llama_context_params, ("n_outputs_max", "flash_attn_type", "op_offload", "kv_unified"))
    log = Log()
    callback = _AbortCallback(lambda text: tell_abort((text or b"").decode("utf-8", "replace")))
    set_abort_callback(callback)
    if not any(DEVICE_KINDS[dev_type(device)] == "cpu" for device in devices()):  # backends built as plug-ins
        load_all_from_path(os.fsencode(LIBRARY_DIR))
    return log, callback


def _check_fields(struct: Any, names: tuple[str, ...]) -> None:
    """Setting an unknown field of a ctypes struct passes in silence, and something else would be measured."""
    missing = set(names) - {entry[0] for entry in struct._fields_}
    if missing:
        message = f"this llama-cpp-python does not know {', '.join(sorted(missing))}: install 0.3.36 or a later 0.3"
        raise RuntimeError(message)


def add_endpoint(endpoint: str) -> None:
    """Make the devices behind an RPC endpoint ours. The library aborts when nobody listens: check first."""
    registry = reg_by_name(b"RPC")
    address = reg_get_proc_address(registry, b"ggml_backend_rpc_add_server") if registry else None
    if not address:
        message = "this engine was built without RPC"
        raise RuntimeError(message)
    register(ctypes.CFUNCTYPE(c_void_p, c_char_p)(address)(endpoint.encode()))


def devices() -> list[int]:
    return [dev_get(i) for i in range(dev_count())]


def free_and_total_bytes(device: int) -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def describe_device(device: int) -> dict[str, Any]:
    """Fields of `records.Device`."""
    props = _DeviceProps()
    dev_get_props(device, ctypes.byref(props))
    free_bytes, total_bytes = free_and_total_bytes(device)
    return {
        "name": dev_name(device).decode(),
        "description": dev_description(device).decode("utf-8", "replace"),
        "kind": DEVICE_KINDS.get(dev_type(device), "other"),
        "total_bytes": total_bytes,
        "free_bytes": free_bytes,
        "device_id": props.device_id.decode() if props.device_id else None,
        "pins_host": bool(props.caps[_CAP_HOST_BUFFER]),
    }


def describe_build() -> dict[str, Any]:
    """Fields of `records.EngineBuild`."""
    import llama_cpp  # noqa: PLC0415 - already loaded, only for its version

    return {
        "version": f"llama-cpp-python {llama_cpp.__version__}",
        "build_id": build_id(LIBRARY_DIR),
        "system_info": low.llama_print_system_info().decode("utf-8", "replace").strip(),
        "library_dir": str(LIBRARY_DIR),
    }


def memory_breakdown(context: Any) -> list[dict[str, Any]] | None:
    """Fields of `records.MemoryUse` per buffer type; None where this build's C++ map cannot be read."""
    by_buffer = buffer_breakdown(context)
    return None if by_buffer is None else [row for _, row in by_buffer]


def buffer_breakdown(context: Any) -> list[tuple[str, dict[str, Any]]] | None:
    """The rows of `memory_breakdown`, each with the name of its buffer type.

    llama_get_memory_breakdown is exported only under its C++ name and returns a std::map by value; the layout
    here is that of libstdc++.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ggml["_Z26llama_get_memory_breakdownPK13llama_context"]
    except AttributeError:
        return None
    function.restype, function.argtypes = _MapHeader, (c_void_p,)
    header = function(context)
    rows: list[tuple[str, dict[str, Any]]] = []

    def walk(address: int | None) -> None:
        if not address or len(rows) > header.count:
            return
        node = _MapNode.from_address(address)
        walk(node.left)
        rows.append(_breakdown_row(node))
        walk(node.right)

    if header.count > 64:
        return None
    walk(header.root)
    return rows if len(rows) == header.count else None


def _breakdown_row(node: _MapNode) -> tuple[str, dict[str, Any]]:
    device, on_host = device_of_buffer(node.buft)
    return buft_name(node.buft).decode(), {
        "device": device,
        "is_host": on_host,
        "weights_bytes": node.weights,
        "kv_cache_bytes": node.cache,
        "compute_bytes": node.compute,
    }


def device_of_buffer(buft: int) -> tuple[str, bool]:
    """The device of a buffer type, "host" for main memory however it is held, and whether it is main memory."""
    device = buft_get_device(buft)
    if buft_is_host(buft) or (device is not None and DEVICE_KINDS.get(dev_type(device)) == "cpu"):
        return "host", True
    return (dev_name(device) if device else buft_name(buft)).decode(), False


def offload_devices() -> dict[str, str]:
    """Name of the buffer type of each device that layers can be offloaded to -> name of the device."""
    gpus = (device for device in devices() if DEVICE_KINDS.get(dev_type(device)) in {"gpu", "igpu"})
    return {buft_name(dev_buffer_type(device)).decode(): dev_name(device).decode() for device in gpus}


def model_params(settings: dict[str, Any]) -> tuple[Any, list[Any]]:
    """llama_model_params for `settings`, and the arrays that must outlive the call.

    Raises ValueError naming a device that the engine does not list, or shares for more than there are.
    """
    params = low.llama_model_default_params()
    params.n_gpu_layers = settings["n_gpu_layers"]
    params.load_mode = LOAD_MODES[settings["load_mode"]]
    params.use_extra_bufts = settings["use_extra_bufts"]
    params.no_host = settings["no_host"]
    keep: list[Any] = []
    if settings["devices"] is not None:
        by_name = {dev_name(device).decode(): device for device in devices()}
        unknown = [name for name in settings["devices"] if name not in by_name]
        if unknown:
            message = f"the engine lists no device named {unknown[0]}"
            raise ValueError(message)
        chosen = [by_name[name] for name in settings["devices"]]
        array = (c_void_p * (len(chosen) + 1))(*chosen, None)
        params.devices = ctypes.cast(array, c_void_p)
        keep.append(array)
    if patterns := kept_patterns(settings):
        entries = [_TensorOverride(pattern.encode(), cpu_buffer_type()) for pattern in patterns]
        overrides = (_TensorOverride * (len(entries) + 1))(*entries)
        params.tensor_buft_overrides = ctypes.cast(overrides, c_void_p)
        keep.append(overrides)
    if settings["tensor_split"] is not None:
        n_devices = len(offload_devices()) if settings["devices"] is None else len(settings["devices"])
        if n_devices and len(settings["tensor_split"]) > n_devices:
            message = f"tensor_split has {len(settings['tensor_split'])} shares, and there are {n_devices} devices"
            raise ValueError(message)
        shares = (c_float * low.llama_max_devices())(*settings["tensor_split"])
        params.tensor_split = shares
        keep.append(shares)
    return params, keep


def split_of(params: Any) -> list[float]:
    """The shares that llama_model_params hold, zeros where the engine decides."""
    n_shares = low.llama_max_devices()
    return list(params.tensor_split[:n_shares]) if params.tensor_split else [0.0] * n_shares


def kept_patterns(settings: dict[str, Any]) -> list[str]:
    """Regular expressions of the tensors that `settings` keep in main memory, whatever the device of their layer."""
    experts = [_EXPERTS_OF_BLOCK.format(i) for i in range(settings["n_cpu_moe"])]
    return experts + [_FFN_OF_BLOCK.format(i) for i in range(settings["n_cpu_ffn"])]


def context_params(settings: dict[str, Any]) -> Any:
    """llama_context_params for `settings`."""
    params = low.llama_context_default_params()
    for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_outputs_max", "n_threads", "n_threads_batch"):
        setattr(params, name, settings[name])
    for name in ("offload_kqv", "op_offload", "swa_full", "kv_unified"):
        setattr(params, name, settings[name])
    params.flash_attn_type = FLASH_ATTN_TYPES[settings["flash_attn_type"]]
    params.type_k = GGML_TYPES[settings["type_k"]]
    params.type_v = GGML_TYPES[settings["type_v"]]
    return params

"""What a device moves: to it, from it, and within its own memory, timed through ggml as the engine itself moves data.

Each pass ends by reading a few bytes back. A remote device takes what it is sent in order and answers nothing else, so
that without it only the sending would be timed. Main memory is pageable where numpy allocated it and pinned where the
backend did. Memory is timed by copies between two tensors of the device, which every backend knows how to make.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
import psutil

from offloadtune.engine.worker import native
from offloadtune.engine.worker.refused import RefusedError

_PASS_NS = 20_000_000
_N_PASSES = 5
_SHARE_NS = 130_000_000  # of the five rates each
_FIRST_BYTES = 1 << 20
_MOST_BYTES = 256 << 20
_LEAST_BYTES = 64 << 10
_PAST_CACHES_BYTES = 128 << 20  # a tensor's: the largest caches are 96 to 128 MiB, of both tensors they hold half
_FREE_SHARE = 8  # two tensors, and a remote server holds what it takes in once more
_N_COPIES = 64  # in one graph: a fast card copies 256 MiB in the time it takes to be told so
_CHECKED_CELLS = 16 << 10
_CELL_BYTES = 4
_F32 = 0
_CONTEXT_BYTES = 1 << 20
_OK = 0

_Cells = np.ndarray[Any, np.dtype[np.uint32]]
_Move = Callable[[int], None]
"""Move so many cells; returns when they are there."""


class _InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class _FailedError(Exception):
    """One rate cannot be measured; the text is a sentence."""


class _Ggml:
    """The functions needed; AttributeError where this build lacks one."""

    def __init__(self) -> None:
        bind = native.bind
        self.dev_init = bind("ggml_backend_dev_init", c_void_p, c_void_p, c_char_p)
        self.dev_registry = bind("ggml_backend_dev_backend_reg", c_void_p, c_void_p)
        self.dev_host_buffer_type = bind("ggml_backend_dev_host_buffer_type", c_void_p, c_void_p)
        self.dev_supports_op = bind("ggml_backend_dev_supports_op", c_bool, c_void_p, c_void_p)
        self.backend_free = bind("ggml_backend_free", None, c_void_p)
        self.synchronize = bind("ggml_backend_synchronize", None, c_void_p)
        self.compute = bind("ggml_backend_graph_compute", c_int, c_void_p, c_void_p)
        self.alloc_tensors = bind("ggml_backend_alloc_ctx_tensors", c_void_p, c_void_p, c_void_p)
        self.alloc_buffer = bind("ggml_backend_buft_alloc_buffer", c_void_p, c_void_p, c_size_t)
        self.buffer_base = bind("ggml_backend_buffer_get_base", c_void_p, c_void_p)
        self.buffer_free = bind("ggml_backend_buffer_free", None, c_void_p)
        self.view_init = bind("ggml_backend_view_init", c_int, c_void_p)
        self.write = bind("ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self.read = bind("ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self.init = bind("ggml_init", c_void_p, _InitParams)
        self.free = bind("ggml_free", None, c_void_p)
        self.new_tensor = bind("ggml_new_tensor_1d", c_void_p, c_void_p, c_int, c_int64)
        self.view = bind("ggml_view_1d", c_void_p, c_void_p, c_void_p, c_int64, c_size_t)
        self.copy = bind("ggml_cpy", c_void_p, c_void_p, c_void_p, c_void_p)
        self.new_graph = bind("ggml_new_graph", c_void_p, c_void_p)
        self.expand = bind("ggml_build_forward_expand", None, c_void_p, c_void_p)

    def context(self) -> Any:
        return self.init(_InitParams(_CONTEXT_BYTES, None, True))  # noqa: FBT003 - C struct


def measure(name: str, n_threads: int | None, left_s: float) -> dict[str, Any]:
    """Figures of `hardware.DeviceSpeed` for the device `name`, and a sentence for each thing that was not measured.

    What is not likely to be measured within `left_s` is not begun.
    """
    deadline = time.monotonic() + left_s
    handle = next((one for one in native.devices() if native.dev_name(one).decode() == name), None)
    if handle is None:
        raise RefusedError("unsupported", f"the engine lists no device named {name}", is_telling=True)
    try:
        ggml = _Ggml()
    except AttributeError as error:
        raise RefusedError("unsupported", f"this engine cannot time a device: {error}", is_telling=True) from None
    backend = ggml.dev_init(handle, None)
    if not backend:
        raise RefusedError("unsupported", f"the engine cannot open {name}", is_telling=True)
    device = _Device(ggml, handle, backend)
    try:
        _set_n_threads(ggml, handle, backend, n_threads or _n_cores())
        device.allocate()
        return _figures(device, deadline)
    except _FailedError as error:
        return {"speeds": dict.fromkeys(_FIGURES), "reasons": [str(error)]}
    finally:
        device.close()


_PAGEABLE = ("to_pageable_bytes_per_s", "from_pageable_bytes_per_s")
_PINNED = ("to_pinned_bytes_per_s", "from_pinned_bytes_per_s")
_MEMORY = ("memory_bytes_per_s",)
_FIGURES = (*_PAGEABLE, *_PINNED, *_MEMORY)


def _figures(device: _Device, deadline: float) -> dict[str, Any]:
    """Each part is begun only where as much time is left as any took so far, or as its rates may take.

    The first is seldom the fastest: it finds the sizes, and touches what it moves.
    """
    speeds: dict[str, float | None] = dict.fromkeys(_FIGURES)
    reasons = []
    longest_s = 2 * _SHARE_NS / 1e9
    parts: tuple[tuple[str, tuple[str, ...], Callable[[_Device], tuple[float, ...]]], ...] = (
        ("its transfers", _PAGEABLE, _pageable),
        ("its transfers with pinned memory", _PINNED, _pinned),
        ("its own memory", _MEMORY, _memory),
    )
    for words, names, measured in parts:
        start_s = time.monotonic()
        if start_s + longest_s > deadline:
            reasons.append(f"No time was left to measure {words}.")
            continue
        try:
            speeds.update(zip(names, measured(device), strict=True))
        except _FailedError as error:
            reasons.append(str(error))
        longest_s = max(longest_s, time.monotonic() - start_s)
    return {"speeds": speeds, "reasons": reasons}


class _Device:
    """An opened device with two tensors on it, and what was allocated in main memory for it."""

    def __init__(self, ggml: _Ggml, handle: int, backend: int) -> None:
        self.ggml, self.handle, self.backend = ggml, handle, backend
        self._buffers: list[int] = []
        self._contexts: list[int] = []
        self.n_cells = self.n_moved = 0
        self.tensors: tuple[int, int] = (0, 0)
        self._word = (ctypes.c_uint32 * 1)()

    def close(self) -> None:
        for buffer in self._buffers:
            self.ggml.buffer_free(buffer)
        for context in self._contexts:
            self.ggml.free(context)
        self.ggml.backend_free(self.backend)

    def context(self) -> int:
        context: int = self.ggml.context()
        self._contexts.append(context)
        return context

    def allocate(self) -> None:
        """Tensors as large as useful, or as the device allows: free memory may be in pieces, or less than it says.

        A power of two, so that what is moved is a whole number of tensors, or a part of one.
        """
        free_bytes, _ = native.free_and_total_bytes(self.handle)
        n_bytes = min(_MOST_BYTES, _power_of_two(free_bytes // _FREE_SHARE))
        while n_bytes >= _LEAST_BYTES:
            context = self.context()
            self.n_cells = n_bytes // _CELL_BYTES
            self.tensors = (
                self.ggml.new_tensor(context, _F32, self.n_cells),
                self.ggml.new_tensor(context, _F32, self.n_cells),
            )
            buffer = self.ggml.alloc_tensors(context, self.backend)
            if buffer:
                self._buffers.append(buffer)
                return
            n_bytes //= 2
        raise _FailedError("The device has no memory free to measure with.")

    def pinned(self, n_bytes: int) -> int:
        """Address of main memory that the backend allocated."""
        kind = self.ggml.dev_host_buffer_type(self.handle)
        if not kind:
            raise _FailedError("It has no pinned buffers in main memory.")
        buffer = self.ggml.alloc_buffer(kind, n_bytes)
        if buffer:
            self._buffers.append(buffer)
        if not buffer or native.buffer_get_type(buffer) != kind:  # backends fall back on ordinary memory
            raise _FailedError("The system gave it no pinned memory.")
        address: int = self.ggml.buffer_base(buffer)
        return address

    def write(self, address: int, n_cells: int) -> None:
        self.ggml.write(self.tensors[0], address, 0, n_cells * _CELL_BYTES)
        self.wait(self.tensors[0], n_cells)

    def read(self, address: int, n_cells: int) -> None:
        self.ggml.read(self.tensors[0], address, 0, n_cells * _CELL_BYTES)

    def wait(self, tensor: int, n_cells: int) -> None:
        """Until the device has done all that was asked: it gives back the last cell."""
        self.ggml.synchronize(self.backend)
        self.ggml.read(tensor, ctypes.addressof(self._word), (n_cells - 1) * _CELL_BYTES, _CELL_BYTES)


def _pageable(device: _Device) -> tuple[float, float]:
    cells: _Cells = np.empty(device.n_cells, dtype=np.uint32)
    address = cells.ctypes.data
    n_written = 0

    def write(n_cells: int) -> None:
        nonlocal n_written
        if n_cells > n_written:  # untouched memory is no memory; each cell holds its number
            cells[n_written:n_cells] = np.arange(n_written, n_cells, dtype=np.uint32)
            n_written = n_cells
        device.write(address, n_cells)

    device.n_moved = _grown(write, device.n_cells)
    return _both_ways(device, address, write)


def _pinned(device: _Device) -> tuple[float, float]:
    address = device.pinned(device.n_moved * _CELL_BYTES)
    _array(address, device.n_moved)[:] = np.arange(device.n_moved, dtype=np.uint32)
    return _both_ways(device, address, lambda n_cells: device.write(address, n_cells))


def _both_ways(device: _Device, address: int, write: _Move) -> tuple[float, float]:
    """Rates of writing to and of reading from the device the cells at `address`, which hold their numbers."""
    n_cells = device.n_moved
    to_rate = _rate(write, n_cells)
    from_rate = _rate(lambda n: device.read(address, n), n_cells)
    cells = _array(address, n_cells)
    cells[-_CHECKED_CELLS:] = 0
    device.read(address, n_cells)
    _check(cells[-_CHECKED_CELLS:], n_cells)
    return to_rate, from_rate


def _memory(device: _Device) -> tuple[float]:
    """Each copied cell was read once and written once."""
    if device.n_cells * _CELL_BYTES < _PAST_CACHES_BYTES:
        raise _FailedError("Too little of its memory is free to copy more than its caches hold.")
    graphs: dict[tuple[int, int], int] = {}

    def copy(n_cells: int) -> None:
        size = min(n_cells, device.n_cells)
        shape = size, n_cells // size
        if shape not in graphs:
            graphs[shape] = _graph_of_copies(device, *shape)
        if device.ggml.compute(device.backend, graphs[shape]) != _OK:
            raise _FailedError("The device failed to copy within its own memory.")
        device.wait(device.tensors[1], size)

    n_cells = _grown(copy, _N_COPIES * device.n_cells)
    rate = 2 * _rate(copy, n_cells)
    n_known = min(n_cells, device.n_moved)
    tail: _Cells = np.zeros(min(_CHECKED_CELLS, n_known), dtype=np.uint32)
    offset = (n_known - len(tail)) * _CELL_BYTES
    device.ggml.read(device.tensors[1], tail.ctypes.data, offset, tail.nbytes)
    _check(tail, n_known)
    return (rate,)


def _graph_of_copies(device: _Device, n_cells: int, n_copies: int) -> int:
    """The first cells of the first tensor to the second, back, and so on."""
    ggml, context = device.ggml, device.context()
    here, there = (ggml.view(context, tensor, n_cells, 0) for tensor in device.tensors)
    nodes = [here, there]
    for _ in range(n_copies):
        here, there = ggml.copy(context, here, there), here
        nodes.append(here)
    for node in nodes:
        ggml.view_init(node)
    if not ggml.dev_supports_op(device.handle, here):
        raise _FailedError("The device does not copy within its own memory.")
    graph: int = ggml.new_graph(context)
    ggml.expand(graph, here)
    return graph


def _grown(move: _Move, n_most: int) -> int:
    """Cells that take about as long as a pass should, or as many as there are."""
    n_cells = min(_FIRST_BYTES // _CELL_BYTES, n_most)
    while True:
        move(n_cells)  # touches it
        if n_cells == n_most or 2 * _timed_ns(move, n_cells) > _PASS_NS:
            return n_cells
        n_cells = min(2 * n_cells, n_most)


def _rate(move: _Move, n_cells: int) -> float:
    """Bytes per second, the median of several passes."""
    give_up_ns = time.perf_counter_ns() + _SHARE_NS
    passes_ns = [_timed_ns(move, n_cells)]
    while len(passes_ns) < _N_PASSES and time.perf_counter_ns() < give_up_ns:
        passes_ns.append(_timed_ns(move, n_cells))
    return n_cells * _CELL_BYTES / (statistics.median(passes_ns) / 1e9)


def _timed_ns(move: _Move, n_cells: int) -> int:
    start_ns = time.perf_counter_ns()
    move(n_cells)
    return max(1, time.perf_counter_ns() - start_ns)


def _check(tail: _Cells, n_cells: int) -> None:
    """Each of the last of `n_cells` cells must hold its number; a rate of something else would be of no use."""
    if not np.array_equal(tail, np.arange(n_cells - len(tail), n_cells, dtype=np.uint32)):
        raise _FailedError("What came back from the device is not what was written to it.")


def _power_of_two(n_bytes: int) -> int:
    """The largest that is no more than `n_bytes`, 0 for less than 1."""
    return 1 << n_bytes.bit_length() - 1 if n_bytes > 0 else 0


def _array(address: int, n_cells: int) -> _Cells:
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32))
    return np.ctypeslib.as_array(pointer, (n_cells,))


def _set_n_threads(ggml: _Ggml, handle: int, backend: int, n_threads: int) -> None:
    """For a device that computes on this machine's cores; others have no such function."""
    set_n_threads = native.reg_get_proc_address(ggml.dev_registry(handle), b"ggml_backend_set_n_threads")
    if set_n_threads:
        ctypes.CFUNCTYPE(None, c_void_p, c_int)(set_n_threads)(backend, n_threads)


def _n_cores() -> int:
    n_physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return min(n_physical, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else n_physical

"""The anchor: a fixed piece of the engine's own arithmetic on the CPU, timed on request in a process of its own.

It needs no file and knows no settings, so that its time tells of the machine alone: a worker that got slower leaves
it as it was, a machine that got slower does not. Products of half-precision matrices by as many threads as named:
`multiply` stays in the caches and is bound by arithmetic, `stream` is bound by memory.

    python -m offloadtune.engine.worker.anchor N_THREADS

answers each line on stdin with one JSON line and ends with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from offloadtune.engine import osdoor

_N_ROWS = 1024
_N_MULTIPLIED, _N_COLUMNS = 2, 128
_N_STREAMED = 32  # 64 MiB: more than the last-level cache of most desktops
_N_TIMES = 15
_ENOUGH_NS = 200_000_000  # beside another busy program one takes thirty times as long
_GRAPH_BYTES = 1 << 20
_F32, _F16 = 0, 1
_CPU = 0


class _InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class Anchor:
    """Both pieces of work, their weights in memory."""

    def __init__(self, n_threads: int) -> None:
        from offloadtune.engine.worker import native  # noqa: PLC0415 - loads the library; descriptors must be set first

        self._bind = native.bind
        self._backend = self._bind("ggml_backend_init_by_type", c_void_p, c_int, c_char_p)(_CPU, None)
        device = self._bind("ggml_backend_get_device", c_void_p, c_void_p)(self._backend)
        registry = self._bind("ggml_backend_dev_backend_reg", c_void_p, c_void_p)(device)
        set_n_threads = native.reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
        ctypes.CFUNCTYPE(None, c_void_p, c_int)(set_n_threads)(self._backend, n_threads)
        self._compute = self._bind("ggml_backend_graph_compute", c_int, c_void_p, c_void_p)
        self._multiply = self._graph(_N_MULTIPLIED, _N_COLUMNS)
        self._stream = self._graph(_N_STREAMED, 1)

    def read(self) -> dict[str, int]:
        """The quickest of several, in ns."""
        return {"multiply_ns": self._quickest_ns(self._multiply), "stream_ns": self._quickest_ns(self._stream)}

    def _quickest_ns(self, graph: Any) -> int:
        self._compute(self._backend, graph)  # wakes the threads
        times: list[int] = []
        while not times or (len(times) < _N_TIMES and sum(times) < _ENOUGH_NS):
            start_ns = time.perf_counter_ns()
            self._compute(self._backend, graph)
            times.append(time.perf_counter_ns() - start_ns)
        return min(times)

    def _graph(self, n_matrices: int, n_columns: int) -> Any:
        """`n_matrices` square matrices, one after the other, times `n_columns` columns."""
        context = self._bind("ggml_init", c_void_p, _InitParams)(_InitParams(_GRAPH_BYTES, None, True))  # noqa: FBT003
        new_tensor = self._bind("ggml_new_tensor_2d", c_void_p, c_void_p, c_int, c_int64, c_int64)
        product = self._bind("ggml_mul_mat", c_void_p, c_void_p, c_void_p, c_void_p)
        weights = [new_tensor(context, _F16, _N_ROWS, _N_ROWS) for _ in range(n_matrices)]
        columns = result = new_tensor(context, _F32, _N_ROWS, n_columns)
        for matrix in weights:
            result = product(context, matrix, result)
        graph = self._bind("ggml_new_graph", c_void_p, c_void_p)(context)
        self._bind("ggml_build_forward_expand", None, c_void_p, c_void_p)(graph, result)
        if not self._bind("ggml_backend_alloc_ctx_tensors", c_void_p, c_void_p, c_void_p)(context, self._backend):
            sys.exit(1)
        for tensor, n_bytes in [(columns, 4), *((matrix, 2) for matrix in weights)]:
            self._fill(tensor, n_bytes)
        return graph

    def _fill(self, tensor: Any, n_bytes: int) -> None:
        """Ones and zeros: no value of a chain of products is ever a number that takes longer than others."""
        size = self._bind("ggml_nbytes", c_size_t, c_void_p)(tensor)
        write = self._bind("ggml_backend_tensor_set", None, c_void_p, c_char_p, c_size_t, c_size_t)
        one_in_many = ({2: b"\x00\x3c", 4: b"\x00\x00\x80\x3f"}[n_bytes] + bytes(n_bytes * (_N_ROWS - 1))) * _N_ROWS
        write(tensor, (one_in_many * (size // len(one_in_many) + 1))[:size], 0, size)


def main(n_threads: int) -> None:
    """Answer until stdin closes."""
    readings_out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the library prints
    osdoor.forbid_core_dumps()
    anchor = Anchor(n_threads)
    readings_out.write("ready\n")
    for _ in sys.stdin:
        readings_out.write(json.dumps(anchor.read()) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))

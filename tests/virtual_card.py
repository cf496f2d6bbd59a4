"""A virtual card: llama.cpp's RPC worker in its own process, seen by another as a GPU-type device with honest memory.

    python virtual_card.py PORT THREADS CARD_BYTES

It reports CARD_BYTES as its total and what is left as free, fails allocations beyond that (or dies of them, as real
drivers do), and gives memory back when a client leaves. It serves one client at a time.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as low

ggml: Any = low._lib
ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
ggml.ggml_backend_rpc_start_server.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_void_p,
]
_SERVER_OWN_BYTES = 32 << 20
_I_MEMORY = 2  # ggml_backend_device_i: name, description, memory


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def main(port: int, n_threads: int, card_bytes: int) -> None:
    """Serve the CPU device of this process as a card of `card_bytes`."""
    device = ggml.ggml_backend_dev_get(ggml.ggml_backend_dev_count() - 1)
    limit = address_space_bytes() + _SERVER_OWN_BYTES + card_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def card_memory(_device: Any, free: Any, total: Any) -> None:
        total[0] = card_bytes
        free[0] = max(0, min(card_bytes, limit - address_space_bytes()))

    n_bytes = ctypes.POINTER(ctypes.c_size_t)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, n_bytes, n_bytes)(card_memory)
    entry = device + _I_MEMORY * ctypes.sizeof(ctypes.c_void_p)
    ctypes.cast(entry, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.cast(callback, ctypes.c_void_p).value
    devices = (ctypes.c_void_p * 1)(device)
    ggml.ggml_backend_rpc_start_server(f"127.0.0.1:{port}".encode(), None, n_threads, 1, devices)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))

"""A virtual card: llama.cpp's RPC worker in its own process, seen by another as a GPU-type device with honest memory.

    python virtual_card.py PORT THREADS CARD_BYTES [DRIVER_BYTES [TAKEN_FILE]]

It reports CARD_BYTES as its total and what is left as free, fails allocations beyond that (or dies of them, as real
drivers do), and gives memory back when a client leaves. It serves one client at a time.

Its memory is this process's address space, with a margin for what the server itself needs. With DRIVER_BYTES it counts
instead what clients allocate, to the byte, and takes that much more as soon as they hold anything, as a driver's
context does: then the wall is exactly where it says. TAKEN_FILE says how many bytes another program holds now.
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
_I_ALLOC_BUFFER = 1  # ggml_backend_buffer_type_i: name, alloc_buffer
_I_FREE_BUFFER = 0  # the first entry of a buffer's own interface
_I_MEMORY = 2  # ggml_backend_device_i: name, description, memory


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


class AddressSpace:
    """Memory as the address space of this process."""

    def __init__(self, card_bytes: int) -> None:
        self.limit = address_space_bytes() + _SERVER_OWN_BYTES + card_bytes
        resource.setrlimit(resource.RLIMIT_AS, (self.limit, self.limit))

    def free_bytes(self) -> int:
        return self.limit - address_space_bytes()


class CountedBuffers:
    """Memory as the sum of the buffers that clients hold, and what the driver takes while they hold any."""

    def __init__(self, card_bytes: int, driver_bytes: int, taken: Path | None) -> None:
        self.card_bytes, self.driver_bytes, self.taken = card_bytes, driver_bytes, taken
        self.held: dict[int, tuple[int, int]] = {}  # buffer -> its size and its own way to free itself
        ggml.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
        entry = _entry(ggml.ggml_backend_cpu_buffer_type(), _I_ALLOC_BUFFER)
        self._allocate = _ALLOC(entry[0])
        self._callbacks = (_ALLOC(self._alloc), _FREE(self._free))  # referenced: they are called from C
        entry[0] = ctypes.cast(self._callbacks[0], ctypes.c_void_p).value

    def free_bytes(self) -> int:
        held = sum(size for size, _ in self.held.values())
        return self.card_bytes - self.taken_bytes() - held - (self.driver_bytes if held else 0)

    def taken_bytes(self) -> int:
        return int(self.taken.read_text(encoding="ascii")) if self.taken else 0

    def _alloc(self, kind: int, size: int) -> int | None:
        held = sum(other for other, _ in self.held.values())
        if held + size + self.driver_bytes > self.card_bytes - self.taken_bytes():
            return None
        buffer: int | None = self._allocate(kind, size)
        if buffer:
            entry = _entry(buffer, _I_FREE_BUFFER)
            self.held[buffer] = (size, entry[0])
            entry[0] = ctypes.cast(self._callbacks[1], ctypes.c_void_p).value
        return buffer

    def _free(self, buffer: int) -> None:
        _, free = self.held.pop(buffer)
        _FREE(free)(buffer)


_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _entry(struct: int, index: int) -> Any:
    """The pointer at `index` of a struct of pointers."""
    return ctypes.cast(struct + index * ctypes.sizeof(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p))


def main(
    port: int, n_threads: int, card_bytes: int, driver_bytes: int | None = None, *, taken: Path | None = None
) -> None:
    """Serve the CPU device of this process as a card of `card_bytes`."""
    device = ggml.ggml_backend_dev_get(ggml.ggml_backend_dev_count() - 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = AddressSpace(card_bytes) if driver_bytes is None else CountedBuffers(card_bytes, driver_bytes, taken)

    def card_memory(_device: Any, free: Any, total: Any) -> None:
        total[0] = card_bytes
        free[0] = max(0, min(card_bytes, memory.free_bytes()))

    n_bytes = ctypes.POINTER(ctypes.c_size_t)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, n_bytes, n_bytes)(card_memory)
    _entry(device, _I_MEMORY)[0] = ctypes.cast(callback, ctypes.c_void_p).value
    devices = (ctypes.c_void_p * 1)(device)
    ggml.ggml_backend_rpc_start_server(f"127.0.0.1:{port}".encode(), None, n_threads, 1, devices)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), taken=Path(sys.argv[5]) if len(sys.argv) > 5 else None)

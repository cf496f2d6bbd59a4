"""llama-bench's test as llama-bench runs it, so that its figures and ours may stand in one table.

Source: test_prompt, test_gen and the loop around them in tools/llama-bench/llama-bench.cpp. As there: random tokens;
chunks of n_batch whose last token alone has logits, and one wait after the last chunk; in writing, logits and a wait
each token, no sampling; prompt and writing under one clock; a depth read once, then restored.
"""

from __future__ import annotations

import ctypes
import random
import time
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import Any

from offloadtune.engine.worker import native
from offloadtune.engine.worker.refused import RefusedError

low = native.low
_SEED = 1
_POLL = 50  # llama-bench's own
_DESCRIPTION_BYTES = 128
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class _PoolParams(ctypes.Structure):
    """struct ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", c_bool * 512),
        ("n_threads", c_int),
        ("prio", c_int),
        ("poll", c_uint32),
        ("strict_cpu", c_bool),
        ("paused", c_bool),
    )


class SavedDepth:
    """The state of the depth read last, shared by the contexts of a worker as llama-bench shares it."""

    def __init__(self) -> None:
        self.key: tuple[Any, ...] | None = None
        self.state: Any = None

    def forget(self) -> None:
        self.key, self.state = None, None


class Ruler:
    """One open context measured as llama-bench measures it."""

    def __init__(self, context: Any, file: Any, settings_key: tuple[Any, ...], saved: SavedDepth) -> None:
        self._context, self._key, self._saved = context, settings_key, saved
        self._memory = low.llama_get_memory(context)
        self._n_batch = low.llama_n_batch(context)
        self._n_threads = low.llama_n_threads(context)
        self._random = random.Random(_SEED)  # noqa: S311 - tokens, not secrets
        self._vocab = low.llama_model_get_vocab(file)
        self._arrays: list[Any] = []
        self._pool = _attached_pool(context, self._n_threads)

    def free_pool(self) -> None:
        """To be called once the context is gone."""
        if self._pool is not None:
            free, pool = self._pool
            free(pool)
            self._pool = None

    def warm_up(self, n_prompt: int, n_gen: int) -> int:
        """The whole prompt, then one token."""
        work = self._work(n_prompt, min(n_gen, 1))
        low.llama_memory_clear(self._memory, False)  # noqa: FBT003 - C signature
        return self._timed(*work)

    def measure(self, n_prompt: int, n_gen: int, n_depth: int) -> int:
        """Nanoseconds of one repetition at `n_depth`."""
        work = self._work(n_prompt, n_gen)
        low.llama_memory_clear(self._memory, False)  # noqa: FBT003 - C signature
        if n_depth and not self._restored(n_depth):
            low.llama_memory_clear(self._memory, False)  # noqa: FBT003 - half of another state may stand in it
            self._timed(*self._work(n_depth, 0))
            self._save(n_depth)
        return self._timed(*work)

    def _work(self, n_prompt: int, n_gen: int) -> tuple[list[Any], list[Any]]:
        """Batches to read and batches to write, made beforehand.

        Nothing is to stand between the two readings of the clock, and little between a repetition and what comes before
        it: the engine's threads would have gone to sleep.
        """
        return self._batches(n_prompt, self._n_batch), self._batches(n_gen, 1)

    def _timed(self, chunks: list[Any], singles: list[Any]) -> int:
        context, decode, synchronize = self._context, low.llama_decode, low.llama_synchronize
        code = 0
        low.llama_set_n_threads(context, self._n_threads, self._n_threads)
        start_ns = time.perf_counter_ns()
        for batch in chunks:
            code = code or decode(context, batch)
        if chunks:
            synchronize(context)
        for batch in singles:
            code = code or decode(context, batch)
            synchronize(context)
        ns = time.perf_counter_ns() - start_ns
        if code:
            raise RefusedError("decode", f"llama_decode returned {code} in a test as llama-bench has them")
        return ns

    def _batches(self, n_tokens: int, n_batch: int) -> list[Any]:
        """Batches of random tokens, the first the file's first token where it has one; they need no position."""
        if not n_tokens:
            return []
        n_vocab = low.llama_vocab_n_tokens(self._vocab)
        tokens = (low.llama_token * n_tokens)(*(self._random.randrange(n_vocab) for _ in range(n_tokens)))
        if low.llama_vocab_get_add_bos(self._vocab):
            tokens[0] = low.llama_vocab_bos(self._vocab)
        self._arrays = [*self._arrays[-3:], tokens]  # referenced: a batch holds no more than their address
        pointer = ctypes.POINTER(low.llama_token)
        return [
            low.llama_batch_get_one(ctypes.cast(ctypes.byref(tokens, i * 4), pointer), min(n_batch, n_tokens - i))
            for i in range(0, n_tokens, n_batch)
        ]

    def _restored(self, n_depth: int) -> bool:
        if self._saved.key != (*self._key, n_depth):
            return False
        state = self._saved.state
        n_read = low.llama_state_seq_set_data(self._context, ctypes.cast(state, _BYTES), len(state), 0)
        return bool(n_read)

    def _save(self, n_depth: int) -> None:
        """Where there is no memory for it, every repetition reads the depth anew."""
        self._saved.forget()
        n_bytes = low.llama_state_seq_get_size(self._context, 0)
        try:
            state = ctypes.create_string_buffer(n_bytes)
        except MemoryError:
            return
        if n_bytes and low.llama_state_seq_get_data(self._context, ctypes.cast(state, _BYTES), n_bytes, 0) == n_bytes:
            self._saved.key, self._saved.state = (*self._key, n_depth), state


def describe(file: Any) -> dict[str, Any]:
    """What llama-bench prints of a loaded file and of the machine as its engine sees it."""
    text = ctypes.create_string_buffer(_DESCRIPTION_BYTES)
    low.llama_model_desc(file, text, len(text))
    return {
        "model_type": text.value.decode("utf-8", "replace"),
        "model_size": low.llama_model_size(file),
        "model_n_params": low.llama_model_n_params(file),
        "cpu_info": _descriptions({"cpu", "accel"}),
        "gpu_info": _descriptions({"gpu", "igpu"}),
        "backends": _backends(),
    }


def _descriptions(kinds: set[str]) -> str:
    devices = (device for device in native.devices() if native.DEVICE_KINDS.get(native.dev_type(device)) in kinds)
    return ", ".join(native.dev_description(device).decode("utf-8", "replace") for device in devices)


def _backends() -> str:
    """Names of the backends besides the CPU's; RPC, which is one for each endpoint, once and only with devices."""
    names, has_rpc = [], False
    for i in range(_function("ggml_backend_reg_count", c_size_t)()):
        registry = _function("ggml_backend_reg_get", c_void_p, c_size_t)(i)
        name = _function("ggml_backend_reg_name", c_char_p, c_void_p)(registry).decode()
        if name.startswith("RPC"):
            has_rpc = has_rpc or _function("ggml_backend_reg_dev_count", c_size_t, c_void_p)(registry) > 0
        elif name != "CPU":
            names.append(name)
    return ",".join([*names, *(["RPC"] if has_rpc else [])]) or "CPU"


def _function(name: str, restype: Any, *argtypes: Any) -> Any:
    function = native.ggml[name]
    function.restype, function.argtypes = restype, argtypes
    return function


def _attached_pool(context: Any, n_threads: int) -> tuple[Any, int] | None:
    """A thread pool as llama-bench makes one, and what frees it; None where this build's CPU backend has none.

    Without one the engine starts threads for every graph.
    """
    try:
        attach = _function("llama_attach_threadpool", None, c_void_p, c_void_p, c_void_p)
    except AttributeError:
        return None
    registry = native.reg_by_name(b"CPU")
    new, free = (
        registry and native.reg_get_proc_address(registry, name)
        for name in (b"ggml_threadpool_new", b"ggml_threadpool_free")
    )
    if not new or not free:
        return None
    params = _PoolParams(n_threads=n_threads, poll=_POLL)
    pool = ctypes.CFUNCTYPE(c_void_p, ctypes.POINTER(_PoolParams))(new)(ctypes.byref(params))
    if not pool:
        return None
    attach(context, pool, None)
    return ctypes.CFUNCTYPE(None, c_void_p)(free), pool

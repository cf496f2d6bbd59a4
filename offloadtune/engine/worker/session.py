"""What the worker holds: loaded files, open contexts, saved depths; and how a visit is timed.

Every timestamp follows llama_synchronize: decoding is asynchronous on device backends. Between the timestamps of a
visit stands nothing but the work itself; batches are views of one token array prepared beforehand.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from offloadtune.engine import osdoor
from offloadtune.engine.worker import divergence, fit_rule, forecast, lines, llama_class, native, ruler, transfers
from offloadtune.engine.worker.prompt import Prompt, tokenize
from offloadtune.engine.worker.refused import RefusedError

low = native.low
_STATE_SHARE_OF_RAM = 0.1
_N_LAST_LINES = 200
_N_WORTH_KEEPING = 128


@dataclass(slots=True)
class LoadedFile:
    """A placement: weights where the settings put them."""

    handle: Any
    path: str
    keep: list[Any]
    load_lines: list[str]
    prompt: Prompt


@dataclass(slots=True)
class OpenContext:
    """A context on a placement, with its sampler; `llama` is the front end's own object, where it holds the context."""

    handle: Any
    loaded: LoadedFile
    llama: Any
    sampler: Any
    state_key: tuple[Any, ...]
    n_ctx: int
    n_batch: int
    n_ubatch: int
    ruler: ruler.Ruler | None = None


class Session:
    """Handles of one worker. Methods are the calls of the protocol; they return JSON values."""

    def __init__(self, log: native.Log) -> None:
        self._log = log
        self._handles: dict[int, LoadedFile | OpenContext] = {}
        self._states: dict[tuple[Any, ...], ctypes.Array[ctypes.c_char]] = {}
        self._saved_depth = ruler.SavedDepth()
        self._n_handles = 0
        self._min_free: dict[str, int] = {}

    @property
    def last_lines(self) -> list[str]:
        """What the engine said last."""
        return self._log.lines[-_N_LAST_LINES:]

    # --- calls -----------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        return {"build": native.describe_build(), **self.devices()}

    def devices(self) -> dict[str, Any]:
        return {"devices": [native.describe_device(device) for device in native.devices()]}

    def transfers(self, device: str, n_threads: int | None, left_s: float) -> dict[str, Any]:
        """What the device of that name moves; see transfers.py. Leaves nothing behind."""
        self._log.forget()
        return transfers.measure(device, n_threads, left_s)

    def fit_layers(self, path: str, settings: dict[str, Any], margin_bytes: int) -> dict[str, Any]:
        """n_gpu_layers by llama.cpp's own rule; see fit_rule.py."""
        n_gpu_layers, is_whole = fit_rule.fit_layers(path, settings, margin_bytes)
        return {"n_gpu_layers": n_gpu_layers, "is_whole": is_whole}

    def forecast(self, path: str, contexts: list[dict[str, Any]], *, by_log: bool) -> dict[str, Any]:
        """What each of `contexts`, all of one placement, would take; see forecast.py. Leaves nothing behind."""
        return {"forecasts": forecast.forecast(self._log, path, contexts, by_log=by_log)}

    def load(self, path: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Load the file."""
        self._log.forget()
        try:
            params, keep = native.model_params(settings)
        except ValueError as error:
            raise RefusedError("unsupported", str(error), is_telling=True) from None
        start_ns = time.perf_counter_ns()
        handle = low.llama_model_load_from_file(os.fsencode(path), params)
        load_ns = time.perf_counter_ns() - start_ns
        if not handle:
            raise RefusedError("load", "the engine could not load the file with these settings")
        loaded = LoadedFile(handle=handle, path=path, keep=keep, load_lines=self._log.lines, prompt=Prompt(handle))
        return {"handle": self._keep(loaded), "load_ns": load_ns}

    def open(self, loaded: int, settings: dict[str, Any], arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Open a context; tells what the engine made of the settings and what memory each device gave.

        With `arguments` it is opened by `Llama(path, **arguments)`, which must come out at the same settings. Starts a
        new count of peaks, of device memory and of resident memory.
        """
        holder = self._loaded(loaded)
        osdoor.reset_peak_rss()
        self._min_free = {}
        self._log.forget()
        if arguments is None:
            llama, handle = None, low.llama_init_from_model(holder.handle, native.context_params(settings))
        else:
            llama = _llama(holder, settings, arguments)
            handle = llama and llama.ctx
        if not handle:
            raise RefusedError("open", "the engine could not open a context with these settings")
        flash_attn = lines.resolved_flash_attn(settings["flash_attn_type"], self._log.lines)
        context = OpenContext(
            handle=handle,
            loaded=holder,
            llama=llama,
            sampler=_greedy_sampler(),
            state_key=(holder.path, settings["type_k"], settings["type_v"], flash_attn, settings["swa_full"]),
            n_ctx=low.llama_n_ctx(handle) // settings["n_seq_max"]
            if not settings["kv_unified"]
            else low.llama_n_ctx(handle),
            n_batch=low.llama_n_batch(handle),
            n_ubatch=low.llama_n_ubatch(handle),
        )
        self._note_free()
        effective = {
            "n_ctx": low.llama_n_ctx(handle),
            "n_batch": context.n_batch,
            "n_ubatch": context.n_ubatch,
            "flash_attn_type": flash_attn,
        }
        memory = native.memory_breakdown(handle) or lines.memory_from_lines(
            holder.load_lines + self._log.lines, native.offload_devices()
        )
        return {"handle": self._keep(context), "effective": effective, "memory": memory}

    def tiny(self, context: int) -> dict[str, Any]:
        """A prompt of 40 tokens and two decodes: enough to reach every kernel a turn needs."""
        self._visit(self._context(context), n_prefix=0, n_new=40, n_steps=1)
        self._note_free()
        return {}

    def canary(self, context: int, n_prefix: int = 0) -> dict[str, Any]:
        """Fill the context to its last cell: a full ubatch of prompt, then one decode in the last place.

        On the way the first `n_prefix` tokens are kept, for the visits that begin there.
        """
        holder = self._context(context)
        n_fill = holder.n_ctx - 1
        depth = max(0, n_fill - holder.n_ubatch)
        if n_prefix < depth:
            self._reach(holder, n_prefix)
        self._reach(holder, depth)
        done = low.llama_memory_seq_pos_max(low.llama_get_memory(holder.handle), 0) + 1
        self._prefill(holder, done, n_fill)
        self._decode(holder, n_fill, 1)
        low.llama_synchronize(holder.handle)
        self._note_free()
        return {
            "min_free_bytes": self._min_free,
            "host_peak_rss_bytes": osdoor.peak_rss_bytes(),
            "saved_state_bytes": sum(len(state) for state in self._states.values()),
        }

    def visit(self, context: int, n_prefix: int, n_new: int, n_steps: int) -> dict[str, Any]:
        """One timed turn; see `_visit`."""
        value = self._visit(self._context(context), n_prefix=n_prefix, n_new=n_new, n_steps=n_steps)
        self._note_free()
        return value

    def ruler(self, context: int, n_prompt: int, n_gen: int, n_depth: int, n_reps: int) -> dict[str, Any]:
        """Repetitions of llama-bench's test; see ruler.py. None of them: its warm-up, which describes the file too."""
        holder = self._context(context)
        if holder.ruler is None:
            key = (id(holder.loaded), *holder.state_key)
            holder.ruler = ruler.Ruler(holder.handle, holder.loaded.handle, key, self._saved_depth)
        if not n_reps:
            return {"ns": holder.ruler.warm_up(n_prompt, n_gen), "described": ruler.describe(holder.loaded.handle)}
        return {"ns": [holder.ruler.measure(n_prompt, n_gen, n_depth) for _ in range(n_reps)]}

    def refusal(self, context: int, n_prompt: int) -> dict[str, Any]:
        """What the front end says to a prompt that is too long for its context; None when it says nothing."""
        holder = self._context(context)
        if holder.llama is None:
            return {"refusal": None}
        tokens = holder.loaded.prompt.tokens(n_prompt)[:n_prompt]
        return {"refusal": llama_class.refusal_of(holder.llama, tokens)}

    def divergence(
        self, loaded: int, n_prompt: int, n_last: int, settings: dict[str, Any], against: dict[str, Any]
    ) -> dict[str, Any]:
        """How far the last of `n_prompt` tokens part two settings of a context; see divergence.py."""
        holder = self._loaded(loaded)
        tokens = (low.llama_token * n_prompt)(*holder.prompt.tokens(n_prompt)[:n_prompt])
        return divergence.measure(holder.handle, tokens, n_last, settings, against)

    def close(self, handle: int) -> dict[str, Any]:
        """Free a context, or a placement and whatever is still open on it."""
        holder = self._handles.pop(handle)
        if isinstance(holder, OpenContext):
            low.llama_sampler_free(holder.sampler)
            if holder.llama:
                holder.llama.close()
            else:
                low.llama_free(holder.handle)
            if holder.ruler:
                holder.ruler.free_pool()
            return {}
        for other, context in list(self._handles.items()):
            if isinstance(context, OpenContext) and context.loaded is holder:
                self.close(other)
        self._saved_depth.forget()
        llama_class.free_weights(holder.handle)
        return {}

    # --- timing ----------------------------------------------------------------------------------------------

    def _visit(self, context: OpenContext, *, n_prefix: int, n_new: int, n_steps: int) -> dict[str, Any]:
        """Times of one turn in ns: tokenise all text, read the new part, sample, first decode, then `n_steps` more.

        The words written are those of the prompt text, so that every trial does the same work.
        """
        n_prompt = n_prefix + n_new
        context.loaded.prompt.tokens(n_prompt + n_steps + 1)
        text = context.loaded.prompt.text_of(n_prompt)
        tokenize_text, read, sample = self._turn(context, n_prefix)
        self._reach(context, n_prefix)
        low.llama_synchronize(context.handle)

        start_ns = time.perf_counter_ns()
        tokenize_text(text)
        tokenized_ns = time.perf_counter_ns()
        read(n_prefix, n_prompt)
        prefilled_ns = time.perf_counter_ns()
        sample()
        sampled_ns = time.perf_counter_ns()
        read(n_prompt, n_prompt + 1)
        decoded_ns = time.perf_counter_ns()
        first_decode_ns = decoded_ns - sampled_ns

        step_ns, sample_ns = [], []
        for i in range(n_prompt + 1, n_prompt + 1 + n_steps):
            sample()
            before_ns = time.perf_counter_ns()
            read(i, i + 1)
            after_ns = time.perf_counter_ns()
            step_ns.append(after_ns - before_ns)
            sample_ns.append(before_ns - decoded_ns)
            decoded_ns = after_ns
        return {
            "n_prefix_cached": n_prefix,
            "n_prompt_new": n_new,
            "tokenize_ns": tokenized_ns - start_ns,
            "prefill_ns": prefilled_ns - tokenized_ns,
            "first_sample_ns": sampled_ns - prefilled_ns,
            "first_decode_ns": first_decode_ns,
            "step_ns": step_ns,
            "sample_ns": sample_ns,
        }

    def _turn(self, context: OpenContext, n_prefix: int) -> tuple[Callable[..., Any], ...]:
        """How this context tokenises a text, reads tokens [begin, end) and waits for the device, and samples."""
        if context.llama is None:
            return (
                lambda text: tokenize(context.loaded.handle, text),
                lambda begin, end: self._prefill(context, begin, end),
                lambda: low.llama_sampler_sample(context.sampler, context.handle, -1),
            )
        llama, tokens = context.llama, context.loaded.prompt.tokens(0)[:]
        llama_class.begin_turn(llama, n_prefix)

        def read(begin: int, end: int) -> None:
            try:
                llama.eval(tokens[begin:end])
            except RuntimeError as error:
                raise RefusedError("decode", str(error), is_telling=True) from None
            low.llama_synchronize(context.handle)

        return llama.tokenize, read, lambda: llama.sample(temp=0.0)

    def _prefill(self, context: OpenContext, begin: int, end: int) -> None:
        for i in range(begin, end, context.n_batch):
            self._decode(context, i, min(context.n_batch, end - i))

    def _decode(self, context: OpenContext, begin: int, n_tokens: int) -> None:
        """Decode tokens [begin, begin + n_tokens) of the prompt text and wait for the device."""
        tokens = context.loaded.prompt.tokens(begin + n_tokens)
        pointer = ctypes.cast(ctypes.byref(tokens, begin * 4), ctypes.POINTER(low.llama_token))
        code = low.llama_decode(context.handle, low.llama_batch_get_one(pointer, n_tokens))
        low.llama_synchronize(context.handle)
        if code != 0:
            raise RefusedError("decode", f"llama_decode returned {code} for {n_tokens} tokens at depth {begin}")

    def _reach(self, context: OpenContext, depth: int) -> None:
        """Bring the cache to `depth` tokens: from a saved state where one fits, by reading the rest."""
        memory = low.llama_get_memory(context.handle)
        low.llama_memory_clear(memory, False)  # noqa: FBT003 - C signature
        if depth == 0:
            return
        saved = max((key[-1] for key in self._states if key[:-1] == context.state_key and key[-1] <= depth), default=0)
        if saved:
            state = self._states[(*context.state_key, saved)]
            if low.llama_state_seq_set_data(context.handle, ctypes.cast(state, _BYTES), len(state), 0) == 0:
                low.llama_memory_clear(memory, False)  # noqa: FBT003 - another layout: read it anew
                saved = 0
        self._prefill(context, saved, depth)
        if depth - saved > min(context.n_ubatch, _N_WORTH_KEEPING):  # reading it took longer than restoring will
            self._save(context, depth)

    def _save(self, context: OpenContext, depth: int) -> None:
        """Keep the depth reached; all saved depths together take a small share of the memory, the oldest go first."""
        n_bytes = low.llama_state_seq_get_size(context.handle, 0)
        room = psutil.virtual_memory().available * _STATE_SHARE_OF_RAM
        if n_bytes > room:
            return
        while self._states and sum(map(len, self._states.values())) + n_bytes > room:
            del self._states[next(iter(self._states))]
        try:
            state = ctypes.create_string_buffer(n_bytes)
        except MemoryError:
            return
        if n_bytes and low.llama_state_seq_get_data(context.handle, ctypes.cast(state, _BYTES), n_bytes, 0) == n_bytes:
            self._states[(*context.state_key, depth)] = state

    # --- handles, tokens, memory -----------------------------------------------------------------------------

    def _keep(self, holder: LoadedFile | OpenContext) -> int:
        self._n_handles += 1
        self._handles[self._n_handles] = holder
        return self._n_handles

    def _loaded(self, handle: int) -> LoadedFile:
        holder = self._handles[handle]
        assert isinstance(holder, LoadedFile)
        return holder

    def _context(self, handle: int) -> OpenContext:
        holder = self._handles[handle]
        assert isinstance(holder, OpenContext)
        return holder

    def _note_free(self) -> None:
        for device in native.devices():
            name, (free_bytes, _) = native.dev_name(device).decode(), native.free_and_total_bytes(device)
            self._min_free[name] = min(free_bytes, self._min_free.get(name, free_bytes))


_BYTES = ctypes.POINTER(ctypes.c_uint8)


def _llama(loaded: LoadedFile, settings: dict[str, Any], arguments: dict[str, Any]) -> Any:
    try:
        return llama_class.make_llama(loaded.handle, loaded.path, settings, arguments)
    except llama_class.LlamaRefusedError as error:
        raise RefusedError(error.kind, str(error), is_telling=True) from None


def _greedy_sampler() -> Any:
    chain = low.llama_sampler_chain_init(low.llama_sampler_chain_default_params())
    low.llama_sampler_chain_add(chain, low.llama_sampler_init_greedy())
    return chain

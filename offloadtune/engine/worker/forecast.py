"""What settings would take, asked of the engine itself: a placement without weights, contexts without memory.

Under `no_alloc` llama.cpp reads the header and the vocabulary, chooses buffers, reserves the graphs, and adds up; only
the buffer of logits, recurrent states and the backends themselves are really there. It must not map the file
(GGML_ASSERT in llama-model.cpp), so the host's weights are told as without mmap; nothing may be decoded on it.

The exact breakdown is a C++ map. Each reading of it is checked: weights against the sum of the file's tensors, compute
buffers against the log. What cannot be read, or fails, is told by the log lines instead (tier B): compute buffers and
recurrent states per device, the sum of the caches, the device of each layer; weights and caches per device are then for
whoever knows the file's tensors to add.
"""

from __future__ import annotations

import os
from typing import Any

from offloadtune.engine.worker import lines, llama_class, native, placed, tensor_map
from offloadtune.engine.worker.refused import RefusedError

low = native.low
_MIB = 1 << 20
_LOG_TOLERANCE_MIB = 0.01  # of a line's two decimals
_UNFORETOLD = (
    "cannot be foretold: with offload_kqv off and no flash attention the engine places the graph otherwise once memory "
    "is really there"
)


def forecast(log: native.Log, path: str, contexts: list[dict[str, Any]], *, by_log: bool) -> list[dict[str, Any]]:
    """Fields of `plans.Forecast` for each of `contexts`, settings of one placement; `effective` holds all values.

    `by_log` forbids the C++ map. Raises RefusedError where the engine does not take the file or the placement.
    """
    log.debug_marks = lines.DEBUG_MARKS
    log.forget()
    try:
        placement = _Placement(log, path, contexts[0], by_log=by_log)
        try:
            return [placement.forecast(settings) for settings in contexts]
        finally:
            llama_class.free_weights(placement.handle)  # low's own is held back from a `Llama` that goes
    finally:
        log.debug_marks = ()


class _Placement:
    """A file without its weights."""

    def __init__(self, log: native.Log, path: str, settings: dict[str, Any], *, by_log: bool) -> None:
        self._log, self._by_log = log, by_log
        self._device_of = native.offload_devices()
        self._has_devices = settings["devices"] != [] and bool(self._device_of)
        try:
            params, self._keep = native.model_params(settings)
        except ValueError as error:
            raise RefusedError("unsupported", str(error), is_telling=True) from None
        params.no_alloc, params.load_mode = True, native.LOAD_MODES["none"]
        self.handle = low.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            reason = lines.reason_of(log.errors) or "it does not say why"
            raise RefusedError("load", f"the engine does not take the file: {reason}", is_telling=True)
        self._tensor_bytes = low.llama_model_size(self.handle) - lines.unused_bytes(log.lines)
        self._layer_devices = lines.layer_devices(log.lines)
        self._refused = self._refused_tensors(settings)

    def forecast(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Fields of `plans.Forecast` for a context of `settings`."""
        self._log.forget()
        always = {"layer_devices": self._layer_devices, "refused": self._refused}
        context = low.llama_init_from_model(self.handle, native.context_params(settings))
        if not context:
            reason = lines.reason_of(self._log.errors) or "it does not say why"
            is_foretold = "allocate" not in reason  # what little is really there found no room now
            refusal = f"the engine does not open such a context: {reason}"
            return {**always, "tier": "A", "refusal": refusal, "is_foretold": is_foretold}
        try:
            found = {**always, **self._effective(context, settings)}
            if self._has_devices and not settings["offload_kqv"] and found["flash_attn_type"] != "enabled":
                return {**found, "tier": "A", "refusal": _UNFORETOLD, "is_foretold": False}
            return {**found, **self._memory(context), "output_bytes": self._output_bytes(settings)}
        finally:
            low.llama_free(context)

    def _effective(self, context: Any, settings: dict[str, Any]) -> dict[str, Any]:
        flash_attn = lines.resolved_flash_attn(settings["flash_attn_type"], self._log.lines)
        return {
            "n_splits": lines.n_splits(self._log.lines),
            "flash_attn_type": flash_attn,
            "effective": {
                "n_ctx": low.llama_n_ctx(context),
                "n_batch": low.llama_n_batch(context),
                "n_ubatch": low.llama_n_ubatch(context),
                "flash_attn_type": flash_attn,
            },
        }

    def _memory(self, context: Any) -> dict[str, Any]:
        rows = None if self._by_log else native.buffer_breakdown(context)
        if rows is not None and self._is_sound(rows):
            return {"tier": "A", "memory": [row for _, row in rows]}
        return {
            "tier": "B",
            "memory": lines.memory_from_lines(self._log.lines, self._device_of),
            "kv_cache_bytes": lines.cache_total_bytes(self._log.lines),
        }

    def _is_sound(self, rows: list[tuple[str, dict[str, Any]]]) -> bool:
        """Whether the breakdown holds all of the file, and says of compute buffers what the log says."""
        if sum(row["weights_bytes"] for _, row in rows) < self._tensor_bytes:
            return False
        told = lines.compute_mib(self._log.lines)
        return {name for name, row in rows if row["compute_bytes"] > 1} >= told.keys() and all(
            abs(row["compute_bytes"] / _MIB - told.get(name, 0)) <= _LOG_TOLERANCE_MIB for name, row in rows
        )

    def _output_bytes(self, settings: dict[str, Any]) -> int | None:
        """The logits of one token a sequence (output_reserve); the log's figure where it does not agree."""
        told = lines.output_mib(self._log.lines)
        n_vocab = low.llama_vocab_n_tokens(low.llama_model_get_vocab(self.handle))
        exact: int = 4 * n_vocab * settings["n_seq_max"]
        if told is None:
            return None
        return exact if abs(exact / _MIB - told) <= _LOG_TOLERANCE_MIB else round(told * _MIB)

    def _refused_tensors(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        kept = "|".join(native.kept_patterns(settings)) or None
        tensors = None if self._by_log else tensor_map.placed_tensors(self.handle)
        if tensors is None:
            return lines.refused_tensors(self._log.lines, self._device_of, kept)
        return placed.refused_tensors(tensors, self._layer_devices, self._device_of, kept)

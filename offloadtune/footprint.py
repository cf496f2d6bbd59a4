"""Bytes that settings take on the devices, before loading: pure arithmetic, first cut.

Weights and cache follow llama.cpp's own rules (llama-model.cpp, llama-kv-cache.cpp) and are exact for plain attention
with or without a sliding window, up to alignment; the compute buffer is the published rule of thumb. With
NA blocks and k = n_gpu_layers, block i is on a device iff i >= NA + 1 - k, and the output layer counts as block NA:

    weights = sum of those blocks (+ output, + a copy of the embedding where it is tied)
    cache   = sum over those blocks of cells * (row(type_k) * head_k * n_head_kv + row(type_v) * head_v * n_head_kv)
    compute = u * (4 * (7 n_embd + 2 n_ff) + mask) + 4 * n_vocab * outputs,   u = n_ubatch, mask = 2 or 4 bytes a cell
"""

from __future__ import annotations

from dataclasses import dataclass

from offloadtune.records import GgufFacts, Settings

ROW_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""KV cache type -> bytes per value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes on all offload devices together. `least_bytes` cannot be undercut; `bytes` adds the estimated compute."""

    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int

    @property
    def least_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes

    @property
    def bytes(self) -> int:
        return self.least_bytes + self.compute_bytes


def estimate_footprint(facts: GgufFacts, settings: Settings) -> Footprint:
    """What `settings` put on the offload devices; all zero when nothing is offloaded."""
    k = settings.n_gpu_layers if settings.n_gpu_layers >= 0 else facts.n_layer + 1
    if not settings.offloads:
        return Footprint(weights_bytes=0, kv_cache_bytes=0, compute_bytes=0)
    first = max(facts.n_layer + 1 - k, 0)
    tied_copy = facts.embedding_bytes if facts.is_tied else 0
    weights = sum(facts.layer_bytes[first:]) + facts.output_bytes + tied_copy
    cache = 0
    if settings.offload_kqv:
        cache = sum(kv_cache_layer_bytes(facts, settings, i) for i in range(first, facts.n_layer))
    return Footprint(
        weights_bytes=weights,
        kv_cache_bytes=cache,
        compute_bytes=_compute_bytes(facts, settings),
    )


def kv_cache_layer_bytes(facts: GgufFacts, settings: Settings, i_layer: int) -> int:
    """Cache of one block, all sequences."""
    n_streams, n_shared = (1, settings.n_seq_max) if settings.kv_unified else (settings.n_seq_max, 1)
    cells = pad_256(pad_256(settings.n_ctx) // n_streams)
    if facts.n_swa and facts.is_swa[i_layer] and not settings.swa_full:
        cells = pad_256(min(cells, facts.n_swa * n_shared + min(settings.n_ubatch, settings.n_batch)))
    n_head_kv = facts.n_head_kv[i_layer]
    row = ROW_BYTES[settings.type_k] * facts.n_embd_head_k + ROW_BYTES[settings.type_v] * facts.n_embd_head_v
    return round(n_streams * cells * n_head_kv * row)


def kv_cache_bytes(facts: GgufFacts, settings: Settings) -> int:
    """Cache of all blocks, wherever they lie."""
    return sum(kv_cache_layer_bytes(facts, settings, i) for i in range(facts.n_layer))


def pad_256(n_cells: int) -> int:
    """llama.cpp rounds contexts up to whole blocks of 256 cells."""
    return (n_cells + 255) // 256 * 256


def _compute_bytes(facts: GgufFacts, settings: Settings) -> int:
    n_ff = next((v for name, v in facts.key_values if name == f"{facts.arch}.feed_forward_length"), 4 * facts.n_embd)
    widest = max(n_ff) if isinstance(n_ff, tuple | list) else int(n_ff)
    n_ubatch = min(settings.n_ubatch, settings.n_batch, settings.n_ctx)
    n_outputs = min(n_ubatch, settings.n_outputs_max or settings.n_batch)
    per_cell = 4 + 4 * max(facts.n_head, default=0) if settings.flash_attn_type == "disabled" else 2
    activations = n_ubatch * (4 * (7 * facts.n_embd + 2 * widest) + per_cell * pad_256(settings.n_ctx))
    return activations + 4 * facts.n_vocab * n_outputs

"""Bytes that settings take on the devices, before loading: pure arithmetic, first cut.

Weights and cache follow llama.cpp's own rules (llama-model.cpp, llama-kv-cache.cpp) and are exact for plain attention
with or without a sliding window, up to alignment; the compute buffer is the published rule of thumb. With
NA blocks and k = n_gpu_layers, block i is on a device iff i >= NA + 1 - k, and the output layer counts as block NA:

    weights = sum of those blocks (+ output, + a copy of the embedding where it is tied)
    cache   = sum over those blocks of cells * (row(type_k) * head_k * n_head_kv + row(type_v) * head_v * n_head_kv)
    compute = u * (4 * (7 n_embd + 2 n_ff) + mask) + 4 * n_vocab * outputs,   u = n_ubatch, mask = 2 or 4 bytes a cell

Blocks that only predict further tokens (nextn) take a place in that count, but llama.cpp loads none of their tensors
and keeps no cache for them. Where the cache rule may say too much (latent attention, recurrent blocks, shared caches,
smaller heads in sliding blocks) it is an estimate like the compute buffer, and no part of `least_bytes`.
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

_OTHER_CACHES = (
    "attention.compress_ratios",
    "attention.key_length_swa",
    "attention.kv_lora_rank",
    "attention.recurrent_layers",
    "attention.shared_kv_layers",
    "attention.value_length_swa",
    "full_attention_interval",
    "kda.",
    "shortconv.",
    "ssm.",
    "time_decay",
    "time_mix",
    "token_shift",
    "wkv",
)
"""How keys of a header begin, after the architecture, where llama.cpp may keep less than the rule (llama-arch.cpp)."""

_OTHER_CACHE_ARCHS = {"gemma3n"}
"""Architectures whose blocks share caches without a key that says so (src/models, `n_layer_kv_from_start`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes on all offload devices together. `least_bytes` cannot be undercut, `bytes` is what we expect.

    `least_bytes` holds the weights, and the cache where its rule is exact.
    """

    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    least_bytes: int

    @property
    def bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.compute_bytes


def estimate_footprint(facts: GgufFacts, settings: Settings) -> Footprint:
    """What `settings` put on the offload devices; all zero when nothing is offloaded."""
    k = settings.n_gpu_layers if settings.n_gpu_layers >= 0 else facts.n_layer + 1
    if not settings.offloads:
        return Footprint(weights_bytes=0, kv_cache_bytes=0, compute_bytes=0, least_bytes=0)
    blocks = range(max(facts.n_layer + 1 - k, 0), _n_trunk(facts))
    weights = sum(facts.layer_bytes[i] for i in blocks) + facts.output_bytes + _tied_copy_bytes(facts)
    cache = sum(kv_cache_layer_bytes(facts, settings, i) for i in blocks) if settings.offload_kqv else 0
    return Footprint(
        weights_bytes=weights,
        kv_cache_bytes=cache,
        compute_bytes=_compute_bytes(facts, settings),
        least_bytes=weights + (cache if _is_cache_rule_exact(facts) else 0),
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
    return sum(kv_cache_layer_bytes(facts, settings, i) for i in range(_n_trunk(facts)))


def pad_256(n_cells: int) -> int:
    """llama.cpp rounds contexts up to whole blocks of 256 cells."""
    return (n_cells + 255) // 256 * 256


def _n_trunk(facts: GgufFacts) -> int:
    """Blocks that are loaded: all but those at the end that only predict further tokens."""
    return facts.n_layer - facts.n_layer_nextn


def _tied_copy_bytes(facts: GgufFacts) -> int:
    """The output layer's copy of a tied embedding; embeddings per layer are never copied."""
    if not facts.is_tied:
        return 0
    per_layer = (tensor.n_bytes for tensor in facts.tensors if tensor.name.startswith("per_layer_token_embd."))
    return facts.embedding_bytes - sum(per_layer)


def _is_cache_rule_exact(facts: GgufFacts) -> bool:
    """Whether every block loaded keeps the plain cache of the rule."""
    others = tuple(f"{facts.arch}.{key}" for key in _OTHER_CACHES)
    is_plain = facts.n_layer_nextn == 0 and facts.arch not in _OTHER_CACHE_ARCHS
    return is_plain and not any(name.startswith(others) for name, _ in facts.key_values)


def _compute_bytes(facts: GgufFacts, settings: Settings) -> int:
    n_ff = next((v for name, v in facts.key_values if name == f"{facts.arch}.feed_forward_length"), 4 * facts.n_embd)
    widest = max(n_ff) if isinstance(n_ff, tuple | list) else int(n_ff)
    n_ubatch = min(settings.n_ubatch, settings.n_batch, settings.n_ctx)
    n_outputs = min(n_ubatch, settings.n_outputs_max or settings.n_batch)
    per_cell = 4 + 4 * max(facts.n_head, default=0) if settings.flash_attn_type == "disabled" else 2
    activations = n_ubatch * (4 * (7 * facts.n_embd + 2 * widest) + per_cell * pad_256(settings.n_ctx))
    return activations + 4 * facts.n_vocab * n_outputs

"""How wide blocks are for the compute buffer: values of one token at the dearest moments of a block's graph.

Found by asking llama-cpp-python 0.3.36 for its reservations for 28 models of 14 architectures, alone and with parts
on a device. Only `reordered` comes from published logs alone. Widths are of the widest block, for all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from offloadtune.footprint.anatomy import Anatomy, ById, anatomy_of

_DO_ALL = {
    "bailingmoe3",
    "cohere2moe",
    "gemma4",
    "gpt-oss",
    "hy_v3",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "step35",
}
"""Architectures whose graph picks the outputs after the last norm (src/models, `embeddings_nextn_masked`)."""
_FUSED = {"phi3"}
"""Architectures with Q, K and V in one tensor, and gate and up in another."""
_AS_FIRST = {"command-r", "gemma4"}
"""Architectures whose every block is as wide as the first of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Values of a token, beside masks and indices.

    In the feed-forward network: `block`, of which `experts` are those of the experts alone; `first` more where the
    first block is, or `first_rotated` with a quantised cache; `inner` more where at least two other blocks are, the
    last apart; `reordered` more on devices that reorder the graph (`graph_optimize` of CUDA and Vulkan).

    In attention: `attention`; `attention_inner` more where the first block is not; `rotated` more with a quantised
    cache. Beside the logits: `normed`.

    Where feed-forward networks work elsewhere: `returned` more, as their results are normed here.

    With `does_all` the last block works on all tokens, otherwise on those that become outputs. `n_inputs` are what a
    token brings to every place that holds blocks: its position or four, and what it has for each block.
    """

    block: int
    experts: int
    first: int
    first_rotated: int
    inner: int
    reordered: int
    attention: int
    attention_inner: int
    rotated: int
    normed: int
    returned: int
    does_all: bool
    n_inputs: int


def widths_of(anatomy: Anatomy) -> Widths:
    """The widths of a file's blocks, kept for the next question about the same record."""
    return _widths_of(ById(anatomy.facts))


@lru_cache(maxsize=8)
def _widths_of(key: ById) -> Widths:
    anatomy, facts, arch, n_embd = anatomy_of(key.facts), key.facts, key.facts.arch, key.facts.n_embd
    keys = {name.removeprefix(f"{arch}."): value for name, value in facts.key_values}
    is_hybrid, of_v, of_heads = anatomy.is_hybrid, n_of_v(anatomy), n_of_heads(anatomy)
    result = max(n_embd, of_v)  # what attention leaves while the embedding still stands
    dense, experts = 3 * int(anatomy.n_ff.max(initial=0)) + 2 * n_embd, _n_of_experts(anatomy)
    is_mixed = bool(experts) and result > n_embd and not is_hybrid and arch != "gemma4"
    if experts:
        block = experts + 2 * n_embd + (n_embd if is_hybrid else result)
        first = max(dense + result - block, 0) if anatomy.has_dense_blocks else 0
    else:
        block = dense + (result if arch in _AS_FIRST else 0)
        first = 0 if is_hybrid or arch in _FUSED | _AS_FIRST else result
    per_block = keys.get("embedding_length_per_layer_input", 0)
    return Widths(
        block=block,
        experts=experts,
        first=first,
        first_rotated=_first_rotated(first, n_embd, of_v) if first or experts else 0,
        inner=of_v if is_mixed else 0,
        reordered=(facts.n_expert_used * n_embd or of_heads) if is_hybrid else 0,
        attention=2 * (n_embd + of_heads) + _beside_attention(arch, keys, n_embd, of_heads, is_hybrid=is_hybrid),
        attention_inner=2 * of_v if is_mixed else 0,
        rotated=2 * of_heads if is_hybrid else 0,
        normed=n_embd * (2 if arch in _FUSED else arch in _DO_ALL),
        returned=first if any(tensor.name == "blk.0.post_ffw_norm.weight" for tensor in facts.tensors) else 0,
        does_all=arch in _DO_ALL,
        n_inputs=(4 if "rope.dimension_sections" in keys else 1)
        + (facts.n_layer * per_block if isinstance(per_block, int) else 0),
    )


def n_of_heads(anatomy: Anatomy) -> int:
    """Values of a token over all heads, the wider of keys and values."""
    return anatomy.n_head * int(max(anatomy.head_k.max(initial=0), anatomy.head_v.max(initial=0)))


def n_of_v(anatomy: Anatomy) -> int:
    """Values of a token that attention leaves over all heads."""
    return anatomy.n_head * int(anatomy.head_v.max(initial=0))


def _n_of_experts(anatomy: Anatomy) -> int:
    """Values of a token in all its experts: gate, up, their product, and the outputs unless they fit in the former."""
    n_ff, n_embd = anatomy.n_ff_expert, anatomy.facts.n_embd
    return anatomy.facts.n_expert_used * (3 * n_ff + (n_embd if n_embd > 2 * n_ff else 0))


def _first_rotated(first: int, n_embd: int, of_v: int) -> int:
    """Values more where the first block is: what Q is rotated into serves again when it has the embedding's width."""
    if of_v == n_embd:
        return first - n_embd
    return max(first, 2 * of_v) if of_v < n_embd else first


def _beside_attention(arch: str, keys: dict[str, object], n_embd: int, of_heads: int, *, is_hybrid: bool) -> int:
    """Values more (or fewer) than the embedding and Q, twice each."""
    if is_hybrid:
        return of_heads  # the query comes with a gate
    if "attention.kv_lora_rank" in keys:
        return 2 * of_heads  # keys and values are unfolded for every head
    return -2 * n_embd if arch in _FUSED else 0

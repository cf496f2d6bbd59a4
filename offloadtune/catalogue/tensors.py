"""The tensors of each architecture's files: names and shapes, as llama.cpp's src/models load them.

Shapes are in ggml's order, the contiguous dimension first. The order of the list is llama-quantize's: tensors outside
the blocks, then block by block, each by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from offloadtune.catalogue.shapes import Shape, per_layer, refuse_incomplete
from offloadtune.errors import UnknownNameError

Tensor = tuple[str, tuple[int, ...]]
Block = Iterator[Tensor]

_BLOCK_NAME = re.compile(r"blk\.([0-9]+)\.")


def tensors_of(shape: Shape) -> tuple[Tensor, ...]:
    """(name, shape) of every tensor. Raises UnknownNameError where the row says too little."""
    refuse_incomplete(shape)
    if shape.arch not in _BLOCKS:
        sentence = f"The tensors of architecture {shape.arch!r} are not in the catalogue."
        raise UnknownNameError(sentence, hint="Name the .gguf file instead.")
    found = [*_ends(shape)]
    for i_layer in range(shape.n_layer):
        found += ((f"blk.{i_layer}.{name}", dims) for name, dims in _BLOCKS[shape.arch](shape, i_layer))
    return tuple(sorted(found, key=_file_order))


def i_layer_of(name: str) -> int:
    """The block that the tensor belongs to, -1 for none."""
    match = _BLOCK_NAME.match(name)
    return int(match[1]) if match else -1


def _file_order(tensor: Tensor) -> tuple[int, str]:
    return i_layer_of(tensor[0]), tensor[0]


def _ends(shape: Shape) -> Iterator[Tensor]:
    """What belongs to no block."""
    yield "token_embd.weight", (shape.n_embd, shape.n_vocab)
    yield "output_norm.weight", (shape.n_embd,)
    if not shape.is_tied:
        yield "output.weight", (shape.n_embd, shape.n_vocab)
    for kind in shape.rope_tensors:
        name = "rope_freqs.weight" if kind == "freqs" else f"rope_factors_{kind}.weight"
        yield name, (_n_rot(shape) // 2,)
    n_per_layer = int(shape.keys.get("embedding_length_per_layer_input", 0))
    if n_per_layer:
        yield "per_layer_token_embd.weight", (n_per_layer * shape.n_layer, shape.n_vocab)
        yield "per_layer_model_proj.weight", (shape.n_embd, n_per_layer * shape.n_layer)
        yield "per_layer_proj_norm.weight", (n_per_layer,)


def _n_rot(shape: Shape) -> int:
    return int(shape.keys.get("rope.dimension_count", shape.n_embd_head_k))


def _widths(shape: Shape, i_layer: int) -> tuple[int, int, int, int]:
    """Widths of (queries, keys, values, attention output) of a block."""
    n_head, n_head_kv = shape.n_head or 0, shape.n_head_kv_per_layer[i_layer]
    head_k, head_v = shape.n_embd_head_k, shape.n_embd_head_v
    return n_head * head_k, n_head_kv * head_k, n_head_kv * head_v, n_head * head_v


def _attention(shape: Shape, i_layer: int) -> Block:
    """Separate query, key and value projections, with their biases where the model has them."""
    n_q, n_k, n_v, n_out = _widths(shape, i_layer)
    for letter, width in (("q", n_q), ("k", n_k), ("v", n_v)):
        yield f"attn_{letter}.weight", (shape.n_embd, width)
        if shape.has_qkv_bias:
            yield f"attn_{letter}.bias", (width,)
    yield "attn_output.weight", (n_out, shape.n_embd)


def _norms(shape: Shape, *names: str) -> Block:
    for name in names:
        yield f"{name}.weight", (shape.n_embd,)


def _head_norms(shape: Shape) -> Block:
    yield "attn_q_norm.weight", (shape.n_embd_head_k,)
    yield "attn_k_norm.weight", (shape.n_embd_head_k,)


def _gated(n_embd: int, n_ff: int, ending: str = "") -> Block:
    """A gated feed-forward network of width `n_ff`."""
    yield f"ffn_gate{ending}.weight", (n_embd, n_ff)
    yield f"ffn_up{ending}.weight", (n_embd, n_ff)
    yield f"ffn_down{ending}.weight", (n_ff, n_embd)


def _experts(n_embd: int, n_ff: int, n_expert: int) -> Block:
    """The router and the routed experts, each expert of width `n_ff`."""
    yield "ffn_gate_inp.weight", (n_embd, n_expert)
    for name, dims in _gated(n_embd, n_ff, "_exps"):
        yield name, (*dims, n_expert)


def _n_ff(shape: Shape, i_layer: int) -> int:
    assert shape.n_ff is not None  # `refuse_incomplete` has seen to it
    return per_layer(shape.n_ff, shape.n_layer)[i_layer]


def _llama(shape: Shape, i_layer: int) -> Block:
    yield from _norms(shape, "attn_norm", "ffn_norm")
    yield from _attention(shape, i_layer)
    if shape.n_expert:
        yield from _experts(shape.n_embd, _n_ff(shape, i_layer), shape.n_expert)
    else:
        yield from _gated(shape.n_embd, _n_ff(shape, i_layer))


def _qwen3(shape: Shape, i_layer: int) -> Block:
    yield from _llama(shape, i_layer)
    yield from _head_norms(shape)


def _qwen3moe(shape: Shape, i_layer: int) -> Block:
    yield from _norms(shape, "attn_norm", "ffn_norm")
    yield from _attention(shape, i_layer)
    yield from _head_norms(shape)
    yield from _experts(shape.n_embd, shape.n_ff_exp, shape.n_expert)


def _gemma2(shape: Shape, i_layer: int) -> Block:
    yield from _llama(shape, i_layer)
    yield from _norms(shape, "post_attention_norm", "post_ffw_norm")


def _gemma3(shape: Shape, i_layer: int) -> Block:
    yield from _gemma2(shape, i_layer)
    yield from _head_norms(shape)


def _gpt_oss(shape: Shape, i_layer: int) -> Block:
    yield from _norms(shape, "attn_norm", "post_attention_norm")
    yield from _attention(shape, i_layer)
    yield "attn_output.bias", (shape.n_embd,)
    yield "attn_sinks.weight", (shape.n_head or 0,)
    yield from _experts(shape.n_embd, shape.n_ff_exp, shape.n_expert)
    yield "ffn_gate_inp.bias", (shape.n_expert,)
    for part, width in (("gate", shape.n_ff_exp), ("up", shape.n_ff_exp), ("down", shape.n_embd)):
        yield f"ffn_{part}_exps.bias", (width, shape.n_expert)


def _phi3(shape: Shape, i_layer: int) -> Block:
    """Queries, keys and values in one tensor; gate and up in one tensor."""
    n_q, n_k, n_v, n_out = _widths(shape, i_layer)
    n_ff = _n_ff(shape, i_layer)
    yield from _norms(shape, "attn_norm", "ffn_norm")
    yield "attn_qkv.weight", (shape.n_embd, n_q + n_k + n_v)
    yield "attn_output.weight", (n_out, shape.n_embd)
    yield "ffn_up.weight", (shape.n_embd, 2 * n_ff)
    yield "ffn_down.weight", (n_ff, shape.n_embd)


def _deepseek2(shape: Shape, i_layer: int) -> Block:
    """Keys and values come from a latent of `attention.kv_lora_rank`, kept in one tensor, not split for MLA."""
    n_q, _, _, n_out = _widths(shape, i_layer)
    n_latent, n_rot = int(shape.keys["attention.kv_lora_rank"]), _n_rot(shape)
    yield from _norms(shape, "attn_norm", "ffn_norm")
    yield "attn_q.weight", (shape.n_embd, n_q)
    yield "attn_kv_a_mqa.weight", (shape.n_embd, n_latent + n_rot)
    yield "attn_kv_a_norm.weight", (n_latent,)
    n_head = shape.n_head or 0
    yield "attn_kv_b.weight", (n_latent, n_head * (shape.n_embd_head_k - n_rot + shape.n_embd_head_v))
    yield "attn_output.weight", (n_out, shape.n_embd)
    if i_layer < int(shape.keys["leading_dense_block_count"]):
        yield from _gated(shape.n_embd, _n_ff(shape, i_layer))
    else:
        yield from _experts(shape.n_embd, shape.n_ff_exp, shape.n_expert)
        yield from _gated(shape.n_embd, shape.n_ff_exp * int(shape.keys["expert_shared_count"]), "_shexp")


def _glm4(shape: Shape, i_layer: int) -> Block:
    n_ff = _n_ff(shape, i_layer)
    yield from _norms(shape, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    yield from _attention(shape, i_layer)
    yield "ffn_up.weight", (shape.n_embd, 2 * n_ff)
    yield "ffn_down.weight", (n_ff, shape.n_embd)


def _command_r(shape: Shape, i_layer: int) -> Block:
    yield from _norms(shape, "attn_norm")
    yield from _attention(shape, i_layer)
    yield from _gated(shape.n_embd, _n_ff(shape, i_layer))


def _qwen35(shape: Shape, i_layer: int) -> Block:
    yield from _mixer(shape, i_layer)
    yield from _gated(shape.n_embd, _n_ff(shape, i_layer))


def _qwen35moe(shape: Shape, i_layer: int) -> Block:
    yield from _mixer(shape, i_layer)
    yield from _experts(shape.n_embd, shape.n_ff_exp, shape.n_expert)
    yield "ffn_gate_inp_shexp.weight", (shape.n_embd,)
    yield from _gated(shape.n_embd, int(shape.keys["expert_shared_feed_forward_length"]), "_shexp")


def _mixer(shape: Shape, i_layer: int) -> Block:
    """Gated attention in every `full_attention_interval`-th block, a gated delta net in the others.

    The last `nextn_predict_layers` blocks, which predict further tokens, have attention and a projection of their own.
    """
    is_nextn = i_layer >= shape.n_layer - int(shape.keys.get("nextn_predict_layers", 0))
    yield from _norms(shape, "attn_norm", "post_attention_norm")
    if is_nextn:
        yield "nextn.eh_proj.weight", (2 * shape.n_embd, shape.n_embd)
        yield from _norms(shape, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    elif (i_layer + 1) % int(shape.keys["full_attention_interval"]):
        yield from _delta_net(shape)
        return
    n_q, n_k, n_v, n_out = _widths(shape, i_layer)
    yield "attn_q.weight", (shape.n_embd, 2 * n_q)
    yield "attn_k.weight", (shape.n_embd, n_k)
    yield "attn_v.weight", (shape.n_embd, n_v)
    yield "attn_output.weight", (n_out, shape.n_embd)
    yield from _head_norms(shape)


def _delta_net(shape: Shape) -> Block:
    """Heads of `ssm.state_size`: `ssm.group_count` of them for queries and keys, `ssm.time_step_rank` for values."""
    n_state, n_head = int(shape.keys["ssm.state_size"]), int(shape.keys["ssm.time_step_rank"])
    n_value = n_state * n_head
    n_mixed = 2 * n_state * int(shape.keys["ssm.group_count"]) + n_value
    yield "attn_qkv.weight", (shape.n_embd, n_mixed)
    yield "attn_gate.weight", (shape.n_embd, n_value)
    yield "ssm_conv1d.weight", (int(shape.keys["ssm.conv_kernel"]), n_mixed)
    yield "ssm_dt.bias", (n_head,)
    yield "ssm_a", (n_head,)
    yield "ssm_beta.weight", (shape.n_embd, n_head)
    yield "ssm_alpha.weight", (shape.n_embd, n_head)
    yield "ssm_norm.weight", (n_state,)
    yield "ssm_out.weight", (n_value, shape.n_embd)


def _gemma4(shape: Shape, i_layer: int) -> Block:
    """Sliding blocks have smaller heads; the others take their keys for values where heads are shared further."""
    n_ff = _n_ff(shape, i_layer)
    is_swa = bool(shape.keys["attention.sliding_window_pattern"][i_layer])
    n_embd_head = int(shape.keys["attention.key_length_swa"]) if is_swa else shape.n_embd_head_k
    n_q, n_kv = (shape.n_head or 0) * n_embd_head, shape.n_head_kv_per_layer[i_layer] * n_embd_head
    yield from _norms(shape, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    yield "attn_q.weight", (shape.n_embd, n_q)
    yield "attn_k.weight", (shape.n_embd, n_kv)
    if is_swa or isinstance(shape.n_head_kv, int):
        yield "attn_v.weight", (shape.n_embd, n_kv)
    yield "attn_output.weight", (n_q, shape.n_embd)
    yield "attn_q_norm.weight", (n_embd_head,)
    yield "attn_k_norm.weight", (n_embd_head,)
    yield "layer_output_scale.weight", (1,)
    yield from _gated(shape.n_embd, n_ff)
    yield from _gemma4_experts(shape)
    n_per_layer = int(shape.keys["embedding_length_per_layer_input"])
    if n_per_layer:
        yield "inp_gate.weight", (shape.n_embd, n_per_layer)
        yield "proj.weight", (n_per_layer, shape.n_embd)
        yield from _norms(shape, "post_norm")


def _gemma4_experts(shape: Shape) -> Block:
    """Routed experts beside the dense network, gate and up in one tensor."""
    if not shape.n_expert:
        return
    yield "ffn_gate_inp.weight", (shape.n_embd, shape.n_expert)
    yield "ffn_gate_inp.scale", (shape.n_embd,)
    yield "ffn_gate_up_exps.weight", (shape.n_embd, 2 * shape.n_ff_exp, shape.n_expert)
    yield "ffn_down_exps.weight", (shape.n_ff_exp, shape.n_embd, shape.n_expert)
    yield "ffn_down_exps.scale", (shape.n_expert,)
    yield from _norms(shape, "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")


_BLOCKS: dict[str, Callable[[Shape, int], Block]] = {
    "command-r": _command_r,
    "deepseek2": _deepseek2,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "glm4": _glm4,
    "gpt-oss": _gpt_oss,
    "llama": _llama,
    "mistral3": _llama,
    "phi3": _phi3,
    "qwen2": _llama,
    "qwen3": _qwen3,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35moe,
    "qwen3moe": _qwen3moe,
}
"""Architecture -> the tensors of one block, without "blk.N."."""

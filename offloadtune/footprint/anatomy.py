"""What each block of a file holds and keeps, as arrays: everything the footprint needs to know of a header.

Tensors by place as llama.cpp assigns them (llama-arch.cpp, LLM_TENSOR_INFOS): inputs stay on the host whatever the
settings, block tensors go with their block, what stands after the last block goes with the output, which counts as
block NA. Blocks that only predict further tokens (nextn) take a place in that count but load nothing and keep nothing.

Cache by block (llama-kv-cache.cpp, llama-memory-recurrent.cpp): values of K and V a token leaves, and the state in
bytes that a recurrent block keeps for each sequence, whatever the context.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offloadtune.records import GgufFacts, TensorFacts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_BLOCK_NAME = re.compile(r"blk\.([0-9]+)\.")
_EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")  # LLM_FFN_EXPS_REGEX, what --n-cpu-moe matches
_FEED_FORWARD = re.compile(r"\.ffn_(up|down|gate)\.")  # LLM_FFN_DENSE_REGEX, what --n-cpu-ffn matches
_INPUTS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_FIRST_BLOCK = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.")
_EVERY_BLOCK = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
"""Small tensors that every block uses: one copy in each place that holds blocks."""

_RECURRENT = {"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"}
_INTERVAL = {"qwen35", "qwen35moe", "qwen3next"}
_BY_HEADS = {"bailingmoe3", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"}
_BY_HEADS_AND_FF = {"nemotron_h", "nemotron_h_moe"}
_BOTH = {"falcon-h1"}
_SHARING = {"gemma3n", "gemma4"}
_N_WITH_CACHE_GEMMA3N = 20
_OUTPUT_FIRST = {"gemma3n", "gemma4"}
"""Architectures that make the output's copy of a tied embedding before the embedding itself (src/models)."""

_KEYS_OF_OTHER_CACHES = (
    "attention.compress_ratios",
    "attention.indexer.",
    "attention.recurrent_layers",
    "attention.shared_kv_layers",
    "full_attention_interval",
    "kda.",
    "shortconv.",
    "ssm.",
    "time_decay",
    "time_mix",
    "token_shift",
    "wkv",
)
"""How keys begin where an architecture not named here may keep something else than plain caches."""

_OTHER_CACHES = {
    "deepseek32",
    "deepseek4",
    "dflash",
    "dots3note",
    "gemma4_assistant",
    "glm-dsa",
    "glm5-next",
    "hy_v4",
    "minimax-01",
    "minimax-m3",
    "nanbeige",
    "qwen4exp",
}
"""Architectures with caches of their own kind (`llama_model::create_memory`), which are not reckoned here."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Bytes by place of a file's tensors for one kind of device, its alignment and padding included.

    `dense` and `experts` have NA + 1 entries, the output being the last; `ffn` is the part of `dense` that multiplies
    in feed-forward networks; `tied_copy` is what the output layer takes beside that when it is not where the embedding
    is; `shared` is held once in each place with blocks. `largest`, `largest_expert` and `largest_ffn` are the largest
    tensor of each of the NA blocks, the largest of experts in it, and that of `ffn`.
    """

    dense: Ints
    ffn: Ints
    experts: Ints
    largest: Ints
    largest_expert: Ints
    largest_ffn: Ints
    inputs: int
    tied_copy: int
    shared: int


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """Per-block facts as arrays of NA entries, and how tensors are stored on a host and on padded devices.

    `n_values_k` and `n_values_v` are values a token leaves in each block's cache (0 where it keeps none),
    `n_values_v_padded` those with V stored transposed; `head_k` and `head_v` are values a head. `state_bytes` is for
    one sequence. `uses_shared` is 1 for blocks that need the small shared tensors; with `has_two_embeddings` a tied one
    stands twice in main memory when the output is there too. `why_inexact` says why the cache may differ from the rule,
    "" where the rule is llama.cpp's own.
    """

    facts: GgufFacts
    n_layer: int
    n_trunk: int
    n_values_k: Ints
    n_values_v: Ints
    n_values_v_padded: Ints
    is_swa: Bools
    state_bytes: Ints
    n_ff: Ints
    n_ff_expert: int
    has_dense_blocks: bool
    n_head: int
    head_k: Ints
    head_v: Ints
    uses_shared: Ints
    has_two_embeddings: bool
    why_inexact: str

    @property
    def is_hybrid(self) -> bool:
        return bool(self.state_bytes.any())


class ById:
    """Makes a record usable as a cache key without hashing its thousand tensors."""

    def __init__(self, facts: GgufFacts) -> None:
        self.facts = facts

    def __hash__(self) -> int:
        return id(self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and other.facts is self.facts


def anatomy_of(facts: GgufFacts) -> Anatomy:
    """The anatomy of a file, kept for the next question about the same record."""
    return _anatomy_of(ById(facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How a device's backend stores tensors.

    `alignment` in bytes; `row_padding` in values: the rows a quantised tensor must have room for are a multiple of it,
    0 for no such rule (ggml-cuda.cu, MATRIX_ROW_PADDING); `copies_quantised_kv` where flash attention works on an f16
    copy of one block's quantised cache (fattn-common.cuh); `offloads_ops` where the device works for matrices that lie
    in main memory, once a batch is large enough; `has_events` where several devices can take turns; `keeps_handed`
    where what one hands to the next then stays beside the graph (seen with several RPC devices, not in logs of CUDA);
    `refuses` are ggml types that it was seen not to take. One that `is_assumed` works for no one else where it holds
    nothing: nobody said that there is such a device.
    """

    alignment: int
    row_padding: int = 0
    copies_quantised_kv: bool = False
    offloads_ops: bool = False
    has_events: bool = False
    keeps_handed: bool = False
    is_assumed: bool = False
    refuses: frozenset[str] = frozenset()


def places_of(anatomy: Anatomy, backend: Backend) -> Places:
    """Bytes by place as `backend` stores them, without what it refuses."""
    return _places_of(ById(anatomy.facts), backend)


def parameters_of(anatomy: Anatomy) -> Places:
    """Values by place of a file's matrices, whatever they are stored as."""
    return _parameters_of(ById(anatomy.facts))


def has_dense_ffn(facts: GgufFacts) -> bool:
    """Whether any block has feed-forward weights that are no routed experts, which n_cpu_ffn keeps in main memory."""
    return bool(_parameters_of(ById(facts)).ffn.any())


def has_cache(facts: GgufFacts) -> bool:
    """Whether any block keeps keys and values; recurrent ones do not."""
    return bool(anatomy_of(facts).n_values_k.any())


def stored_bytes(tensor: TensorFacts, backend: Backend) -> int:
    """Bytes a tensor takes in a device's buffer."""
    alignment, row_padding = backend.alignment, backend.row_padding
    n_bytes, n_row = tensor.n_bytes, tensor.shape[0] if tensor.shape else 1
    is_quantised = not tensor.type_name.startswith(("F", "BF", "I8", "I16", "I32", "I64"))
    if row_padding and is_quantised and n_row % row_padding:
        n_bytes += tensor.n_bytes * (row_padding - n_row % row_padding) // max(math.prod(tensor.shape), 1)
    return -(-n_bytes // alignment) * alignment


@lru_cache(maxsize=8)
def _anatomy_of(key: ById) -> Anatomy:
    facts = key.facts
    values = {name.removeprefix(f"{facts.arch}."): value for name, value in facts.key_values}
    n_trunk = facts.n_layer - facts.n_layer_nextn
    is_swa = np.array(facts.is_swa, dtype=np.bool_)
    heads = np.array(facts.n_head_kv, dtype=np.int64)
    recurrent = _is_recurrent(facts, values, n_trunk)
    keeps = np.arange(facts.n_layer) < n_trunk
    keeps &= np.ones_like(keeps) if facts.arch in _BOTH else ~recurrent
    keeps &= np.arange(facts.n_layer) < _n_with_cache(facts, values)
    if facts.arch in _BY_HEADS_AND_FF:
        keeps &= _n_ff(facts, values) == 0
    is_latent = "attention.key_length_mla" in values and "attention.value_length_mla" in values
    head_k = np.where(is_swa, _count(values, "attention.key_length_swa", facts.n_embd_head_k), facts.n_embd_head_k)
    head_v = np.where(is_swa, _count(values, "attention.value_length_swa", facts.n_embd_head_v), facts.n_embd_head_v)
    width_v = heads * head_v
    padded = np.full(facts.n_layer, width_v.max(initial=0))
    return Anatomy(
        facts=facts,
        n_layer=facts.n_layer,
        n_trunk=n_trunk,
        n_values_k=np.where(keeps, heads * head_k, 0),
        n_values_v=np.where(keeps & (not is_latent), width_v, 0),
        n_values_v_padded=np.where(keeps & (not is_latent), padded, 0),
        is_swa=is_swa,
        state_bytes=np.where(recurrent, _state_bytes(facts, values), 0),
        n_ff=_n_ff(facts, values),
        n_ff_expert=_count(values, "expert_feed_forward_length", int(_n_ff(facts, values).max(initial=0))),
        has_dense_blocks=any(one == 0 for one in facts.expert_bytes),
        n_head=max(facts.n_head, default=0),
        head_k=head_k,
        head_v=head_v,
        uses_shared=((np.arange(facts.n_layer) < n_trunk) & ~(is_swa & (facts.arch == "gemma4"))).astype(np.int64),
        has_two_embeddings=facts.arch in _OUTPUT_FIRST,
        why_inexact=_why_inexact(facts, values),
    )


@lru_cache(maxsize=32)
def _places_of(key: ById, backend: Backend) -> Places:
    return _sums(key.facts, lambda tensor: 0 if tensor.type_name in backend.refuses else stored_bytes(tensor, backend))


@lru_cache(maxsize=8)
def _parameters_of(key: ById) -> Places:
    return _sums(key.facts, lambda tensor: math.prod(tensor.shape) if len(tensor.shape) > 1 else 0)


def _sums(facts: GgufFacts, amount_of: Callable[[TensorFacts], int]) -> Places:
    """What `amount_of` says of each tensor, summed by place."""
    n_trunk = facts.n_layer - facts.n_layer_nextn
    dense, ffn, experts, *of_largest = (np.zeros(facts.n_layer + 1, dtype=np.int64) for _ in range(6))
    largest, largest_expert, largest_ffn = of_largest
    inputs = tied_copy = shared = 0
    for tensor in facts.tensors:
        amount = amount_of(tensor)
        block = _BLOCK_NAME.match(tensor.name)
        if block:
            i = int(block[1])
            if i >= n_trunk:
                continue
            is_expert, is_ffn = (bool(kind.search(tensor.name)) for kind in (_EXPERTS, _FEED_FORWARD))
            (experts if is_expert else dense)[i] += amount
            ffn[i] += amount * is_ffn
            largest[i] = max(largest[i], amount)
            largest_expert[i] = max(largest_expert[i], amount * is_expert)
            largest_ffn[i] = max(largest_ffn[i], amount * is_ffn)
        elif tensor.name.startswith(_INPUTS):
            inputs += amount
            if facts.is_tied and tensor.name == "token_embd.weight":
                tied_copy = amount
        elif tensor.name.startswith(_EVERY_BLOCK):
            shared += amount
        else:
            dense[0 if tensor.name.startswith(_FIRST_BLOCK) else facts.n_layer] += amount
    return Places(
        dense=dense,
        ffn=ffn,
        experts=experts,
        largest=largest[:-1],
        largest_expert=largest_expert[:-1],
        largest_ffn=largest_ffn[:-1],
        inputs=inputs,
        tied_copy=tied_copy,
        shared=shared,
    )


def _n_with_cache(facts: GgufFacts, values: Mapping[str, Any]) -> int:
    """So many blocks keep a cache; those after them use an earlier one's (`n_layer_kv_from_start`)."""
    if facts.arch == "gemma3n":
        return _N_WITH_CACHE_GEMMA3N
    return facts.n_layer - (_count(values, "attention.shared_kv_layers") if facts.arch in _SHARING else 0)


def _is_recurrent(facts: GgufFacts, values: Mapping[str, Any], n_trunk: int) -> Bools:
    """Whether each block keeps a recurrent state (src/models, `is_recr_impl`)."""
    blocks = np.arange(facts.n_layer)
    in_trunk = blocks < n_trunk
    if facts.arch in _RECURRENT | _BOTH:
        return in_trunk
    flags = values.get("attention.recurrent_layers")
    if facts.arch in _INTERVAL and isinstance(flags, tuple) and len(flags) == facts.n_layer:
        return np.array(flags, dtype=np.bool_) & in_trunk
    if facts.arch in _INTERVAL:
        return np.asarray(in_trunk & ((blocks + 1) % max(_count(values, "full_attention_interval", 4), 1) != 0))
    headless = np.array(facts.n_head_kv, dtype=np.int64) == 0
    if facts.arch in _BY_HEADS:
        return np.asarray(in_trunk & headless)
    if facts.arch in _BY_HEADS_AND_FF:
        return np.asarray(in_trunk & headless & (_n_ff(facts, values) == 0))
    return np.zeros(facts.n_layer, dtype=np.bool_)


def _state_bytes(facts: GgufFacts, values: Mapping[str, Any]) -> int:
    """Bytes of f32 state of one recurrent block and sequence (llama-hparams.cpp, n_embd_r and n_embd_s)."""
    n_embd, n_head = facts.n_embd, max(facts.n_head, default=0)
    conv = max(_count(values, "ssm.conv_kernel") - 1, 0)
    if wkv := _count(values, "wkv.head_size"):
        rolling, state = _count(values, "token_shift_count", 2) * n_embd, n_embd * wkv
    elif cached := _count(values, "shortconv.l_cache"):
        rolling, state = n_embd * (cached - 1), 0
    elif kda := _count(values, "kda.head_dim"):
        rolling, state = 3 * (conv or 3) * n_head * kda, kda * kda * n_head
    else:
        inner, d_state, groups = (_count(values, f"ssm.{key}") for key in ("inner_size", "state_size", "group_count"))
        rolling, state = conv * (inner + 2 * groups * d_state), d_state * inner
    return 4 * (rolling + state)


def _n_ff(facts: GgufFacts, values: Mapping[str, Any]) -> Ints:
    """Width of each block's feed-forward network, 0 where the header has none."""
    value = values.get("feed_forward_length", 0)
    if isinstance(value, tuple | list):
        widths = [max(int(v), 0) for v in value][: facts.n_layer]
        return np.array(widths + [0] * (facts.n_layer - len(widths)), dtype=np.int64)
    return np.full(facts.n_layer, max(value, 0) if isinstance(value, int) else 0, dtype=np.int64)


def _why_inexact(facts: GgufFacts, values: Mapping[str, Any]) -> str:
    if facts.arch in _OTHER_CACHES:
        return f"{facts.arch} keeps a cache of its own kind, which only the engine knows"
    known = _RECURRENT | _INTERVAL | _BY_HEADS | _BY_HEADS_AND_FF | _BOTH | _SHARING
    if facts.arch not in known and any(name.startswith(_KEYS_OF_OTHER_CACHES) for name in values):
        return f"{facts.arch} may keep a cache of another kind, which only the engine knows"
    return ""


def _count(values: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = values.get(key, default)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default

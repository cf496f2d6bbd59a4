"""A model that nobody downloaded, described as its file's header would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offloadtune.catalogue.quantising import quantised
from offloadtune.catalogue.quants import Quant, find_quant
from offloadtune.catalogue.shapes import Shape, find_shape
from offloadtune.catalogue.tensors import tensors_of
from offloadtune.errors import UnknownNameError

_EPSILON = 1e-6
_EPSILON_KEYS = {"command-r": "attention.layer_norm_epsilon"}
_TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a header holds: key-values, the lengths of its arrays, and (name, ggml type, shape) of every tensor.

    As a reader of headers gives them: a vocabulary is counted, not kept.
    """

    shape: Shape
    quant: Quant
    key_values: dict[str, Any]
    array_lengths: dict[str, int]
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]


def described(
    shape: Shape | str, quant: Quant | str, *, has_imatrix: bool | None = None, as_published: bool = True
) -> Described:
    """The header of `shape` in `quant`, both by name if need be; `has_imatrix` and `as_published` as in `quantised`.

    Raises UnknownNameError for an unknown name and where the catalogue knows too little of the model.
    """
    shape = find_shape(shape) if isinstance(shape, str) else shape
    quant = find_quant(quant) if isinstance(quant, str) else quant
    if quant.name == "MXFP4_MOE" and not shape.n_expert:
        sentence = f"MXFP4 is for models with experts, and {shape.label} has none."
        raise UnknownNameError(sentence, hint="Choose another quantisation, such as Q4_K_M.")
    tensors = tensors_of(shape)
    types = quantised(shape, tensors, quant, has_imatrix=has_imatrix, as_published=as_published)
    key_values = key_values_of(shape) | {"general.file_type": quant.file_type}
    return Described(
        shape=shape,
        quant=quant,
        key_values=key_values,
        array_lengths={_TOKENS: shape.n_vocab}
        | {key: len(value) for key, value in key_values.items() if isinstance(value, tuple)},
        tensors=tuple((name, type_name, dims) for (name, dims), type_name in zip(tensors, types, strict=True)),
    )


def key_values_of(shape: Shape) -> dict[str, Any]:
    """The key-values that describe `shape`; those that no public source says are left out.

    All that a cache's size depends on is among them even where the weights cannot be computed.
    """
    sizes: dict[str, Any] = {
        "block_count": shape.n_layer,
        "context_length": shape.n_ctx_train,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "vocab_size": shape.n_vocab,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.n_embd_head_k,
        "attention.value_length": shape.n_embd_head_v,
        "rope.dimension_count": shape.n_embd_head_k,
        _EPSILON_KEYS.get(shape.arch, "attention.layer_norm_rms_epsilon"): _EPSILON,
        "attention.sliding_window": shape.n_swa or None,
        "expert_count": shape.n_expert or None,
        "expert_used_count": shape.n_expert_used or None,
        "expert_feed_forward_length": None if shape.arch == "llama" else shape.n_ff_exp or None,
    }
    known = {f"{shape.arch}.{key}": value for key, value in (sizes | shape.keys).items() if value is not None}
    general = {"general.architecture": shape.arch, "general.type": "model", "general.name": shape.label}
    return general | known | {_TOKENS: f"array of {shape.n_vocab} strings"}

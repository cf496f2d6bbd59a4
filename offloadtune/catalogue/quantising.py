"""Which ggml type a quantisation gives each tensor: the rules of llama.cpp's src/llama-quant.cpp as tables.

A rule is a list of (condition, type) pairs; the first condition that holds decides, none leaves the mixture's own
type. Conditions look at the place of a tensor among its likes and at the model's traits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from offloadtune.catalogue.quants import Quant
from offloadtune.catalogue.shapes import Shape
from offloadtune.catalogue.tensors import Tensor, i_layer_of

_ROLES = {
    "attn_qkv.weight": "attn_qkv",
    "attn_kv_b.weight": "attn_kv_b",
    "attn_v.weight": "attn_v",
    "attn_k.weight": "attn_k",
    "attn_q.weight": "attn_q",
    "attn_output.weight": "attn_output",
    "ffn_up": "ffn_up",
    "ffn_gate": "ffn_gate",
    "ffn_down": "ffn_down",
}
"""Part of a tensor's name -> its role, the first match decides."""

_HOLD_VALUES = {"attn_qkv", "attn_kv_b", "attn_v"}
_PUBLISHED_EARLIER = {"deepseek2", "phi3"}
"""Architectures whose published files are older than llama.cpp's treating fused projections as it does values."""

_EMBEDDINGS = {"token_embd.weight", "per_layer_token_embd.weight"}
_KEPT_F32 = ("_norm.weight", "ffn_gate_inp", "ssm_conv1d")
_KEPT_16_BIT = ("per_layer_model_proj",)

_K_TYPES = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
_BLOCK_256 = {*_K_TYPES, "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"}
_UNQUANTISED = {"F32", "F16", "BF16"}
_FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_FALLBACK_OF_IQ = "IQ4_NL"
_N_LAYER_70B = 80
_ARCHS_70B = {"llama", "qwen2"}


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's role, its position `i` among the `n` of that role, and the traits of the model that rules look at.

    `n_gqa` is the number of heads that share one key and value; `has_imatrix` says whether an importance matrix was
    at hand, with which some precautions are left out and others taken.
    """

    role: str
    i: int
    n: int
    n_gqa: int
    n_expert: int
    has_imatrix: bool


Condition = Callable[[Place], bool]
Rule = tuple[tuple[Condition, str], ...]


def _always(_: Place) -> bool:
    return True


def _shares_4(place: Place) -> bool:
    return place.n_gqa >= 4


def _shares_4_or_4_experts(place: Place) -> bool:
    return place.n_gqa >= 4 or place.n_expert >= 4


def _first_2(place: Place) -> bool:
    return place.i < 2


def _first_4(place: Place) -> bool:
    return place.i < 4


def _first_16th(place: Place) -> bool:
    return place.i < place.n // 16


def _first_8th(place: Place) -> bool:
    return place.i < place.n // 8


def _first_8th_blind(place: Place) -> bool:
    return _first_8th(place) and not place.has_imatrix


def _first_8th_seen(place: Place) -> bool:
    return _first_8th(place) and place.has_imatrix


def _middle(place: Place) -> bool:
    return place.n // 8 <= place.i < 7 * place.n // 8


def _more_bits(place: Place) -> bool:
    """The first and the last eighth, and every third between."""
    return not _middle(place) or (place.i - place.n // 8) % 3 == 2


def _more_bits_of_8_experts(place: Place) -> bool:
    return place.n_expert == 8 and _more_bits(place)


def _blind(place: Place) -> bool:
    return not place.has_imatrix


def _8_experts(place: Place) -> bool:
    return place.n_expert == 8


def _not_8_experts(place: Place) -> bool:
    return place.n_expert != 8


def _same(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


_LOW = ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M")
_LOW_S = ("IQ2_S", "IQ2_M")
_8_EXPERTS_Q5_K = ("Q3_K_S", "Q4_K_S", "Q4_K_M", "IQ3_XS", "IQ3_S", "IQ4_NL", "IQ4_XS", *_LOW, *_LOW_S)

_RULES: dict[str, dict[str, Rule]] = {
    "output": _same(((_always, "Q5_K"),), "IQ3_XXS", *_LOW, *_LOW_S),
    "token_embd": {
        **_same(((_always, "Q2_K"),), *_LOW),
        **_same(((_always, "IQ3_S"),), "IQ3_XXS", *_LOW_S),
    },
    "attn_v": {
        **_same(((_shares_4_or_4_experts, "Q4_K"), (_always, "Q2_K")), *_LOW),
        **_same(((_shares_4_or_4_experts, "Q4_K"), (_always, "IQ3_S")), *_LOW_S),
        "Q2_K": ((_shares_4, "Q4_K"), (_always, "Q3_K")),
        "IQ3_XXS": ((_shares_4, "Q4_K"), (_blind, "IQ3_S")),
        **_same(((_shares_4, "Q4_K"),), "Q2_K_S", "IQ3_XS", "IQ3_S"),
        "IQ3_M": ((_always, "Q4_K"),),
        "Q3_K_M": ((_first_2, "Q5_K"), (_always, "Q4_K")),
        "Q3_K_L": ((_always, "Q5_K"),),
        **_same(((_shares_4, "Q5_K"),), "IQ4_NL", "IQ4_XS"),
        **_same(((_more_bits, "Q6_K"),), "Q4_K_M", "Q5_K_M"),
        "Q4_K_S": ((_first_4, "Q5_K"),),
    },
    "attn_qkv": {
        **_same(((_always, "Q4_K"),), "Q3_K_M", "Q3_K_L", "IQ3_M"),
        "Q4_K_M": ((_always, "Q5_K"),),
        "Q5_K_M": ((_always, "Q6_K"),),
    },
    "attn_k": {
        **_same(((_8_experts, "Q4_K"),), *_LOW, *_LOW_S),
        "IQ3_XS": ((_always, "IQ3_XXS"),),
        "IQ3_XXS": ((_always, "IQ2_S"),),
    },
    "attn_q": {
        "IQ3_XS": ((_always, "IQ3_XXS"),),
        "IQ3_XXS": ((_always, "IQ2_S"),),
    },
    "attn_output": {
        **_same(((_8_experts, "Q5_K"),), *_8_EXPERTS_Q5_K),
        **_same(((_8_experts, "Q5_K"), (_always, "IQ3_S")), "IQ3_XXS", *_LOW_S),
        **_same(((_8_experts, "Q5_K"), (_always, "IQ2_XXS")), "IQ1_S", "IQ1_M"),
        **_same(((_8_experts, "Q5_K"), (_always, "Q4_K")), "Q3_K_M", "IQ3_M"),
        "Q2_K": ((_8_experts, "Q5_K"), (_always, "Q3_K")),
        "Q3_K_L": ((_not_8_experts, "Q5_K"),),
    },
    "ffn_down": {
        **_same(((_first_8th, "Q2_K"),), *_LOW),
        **_same(((_first_8th, "IQ3_S"),), *_LOW_S),
        "Q2_K": ((_always, "Q3_K"),),
        "Q2_K_S": ((_first_8th, "Q4_K"),),
        "IQ3_XXS": ((_first_8th_blind, "Q4_K"), (_blind, "Q3_K")),
        "Q3_K_M": ((_first_16th, "Q5_K"), (_always, "Q4_K")),
        "IQ3_M": ((_first_8th, "Q4_K"), (_more_bits_of_8_experts, "Q4_K")),
        "Q3_K_L": ((_always, "Q5_K"),),
        **_same(((_more_bits, "Q6_K"),), "Q4_K_M", "Q5_K_M"),
        **_same(((_first_8th_blind, "Q5_K"),), "IQ4_NL", "IQ4_XS"),
        "Q4_K_S": ((_first_8th, "Q5_K"),),
        "Q4_0": ((_first_8th_seen, "Q4_1"),),
        "Q5_0": ((_first_8th_seen, "Q5_1"),),
    },
    "ffn_gate": {"IQ3_XS": ((_middle, "IQ3_XXS"),)},
    "ffn_up": {"IQ3_XS": ((_middle, "IQ3_XXS"),)},
}
"""Role -> quantisation -> rule; `attn_qkv` only as llama.cpp had it earlier."""


def quantised(
    shape: Shape,
    tensors: Iterable[Tensor],
    quant: Quant,
    *,
    has_imatrix: bool | None = None,
    as_published: bool = True,
) -> tuple[str, ...]:
    """The ggml type of each of `tensors`, which are in the order of `tensors_of`.

    Without `has_imatrix` an importance matrix is taken to be at hand where published files mostly have one.
    `as_published` follows earlier rules for models whose files were published under them, else today's hold for all.
    """
    listed = tuple(tensors)
    roles = [_ruling_role(name, shape, as_published=as_published) for name, _ in listed]
    n_values = sum(role in _HOLD_VALUES for role in roles)
    imatrix = quant.is_imatrix_usual if has_imatrix is None else has_imatrix
    n_head_kv = shape.n_head_kv_per_layer[0]
    n_gqa = (shape.n_head or 0) // n_head_kv if n_head_kv else 0
    seen: Counter[str] = Counter()
    types = []
    for tensor, role in zip(listed, roles, strict=True):
        n = n_values if role in _HOLD_VALUES else shape.n_layer
        i = i_layer_of(tensor[0]) if _counts_blocks(role, shape, quant) else seen[role]
        place = Place(role, i, n, n_gqa, shape.n_expert, imatrix)
        seen[role] += not _is_kept(*tensor)
        types.append(_type_of(tensor, place, quant, shape))
    return tuple(types)


def _ruling_role(name: str, shape: Shape, *, as_published: bool) -> str:
    """The role whose rules hold for the tensor: today fused projections count as values."""
    role = _role(name)
    is_earlier = as_published and shape.arch in _PUBLISHED_EARLIER
    return "attn_v" if role in _HOLD_VALUES and not is_earlier else role


def _role(name: str) -> str:
    """What the tensor does, as far as rules tell tensors apart."""
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "token_embd"
    return next((role for part, role in _ROLES.items() if part in name), "other")


def _counts_blocks(role: str, shape: Shape, quant: Quant) -> bool:
    """Whether a feed-forward tensor's place is its block, as with experts, whose names may not be in order."""
    return role.startswith("ffn") and shape.n_expert > 1 and quant.name not in {*_LOW, *_LOW_S}


def _is_kept(name: str, dims: tuple[int, ...]) -> bool:
    """Whether the converter's type stays: vectors, norms, biases, routers and other small tensors."""
    return len(dims) < 2 or not name.endswith("weight") or any(part in name for part in (*_KEPT_F32, *_KEPT_16_BIT))


def _type_of(tensor: Tensor, place: Place, quant: Quant, shape: Shape) -> str:
    name, dims = tensor
    if _is_kept(name, dims):
        return "BF16" if len(dims) > 1 and any(part in name for part in _KEPT_16_BIT) else "F32"
    if quant.type_name in _UNQUANTISED:
        return quant.type_name
    if place.role == "output" or (place.role == "token_embd" and shape.is_tied):
        chosen = _output_type(dims, place, quant)
    elif quant.name == "MXFP4_MOE":
        chosen = "MXFP4" if len(dims) > 2 and dims[2] > 1 else "Q8_0"
    else:
        chosen = _ruled(place, quant, shape)
    return _fitting(chosen, dims[0])


def _output_type(dims: tuple[int, ...], place: Place, quant: Quant) -> str:
    if quant.name == "MXFP4_MOE" or quant.type_name == "Q8_0" or dims[0] % _n_block(quant.type_name):
        return "Q8_0"
    return _first(_RULES["output"].get(quant.name, ()), place) or "Q6_K"


def _ruled(place: Place, quant: Quant, shape: Shape) -> str:
    chosen = _first(_RULES.get(place.role, {}).get(quant.name, ()), place) or quant.type_name
    if quant.name in {*_LOW, *_LOW_S}:
        return chosen
    if place.role == "attn_v" and _is_70b(shape) and chosen in {"Q3_K", "Q4_K"}:
        chosen = "Q5_K"
    return "Q8_0" if place.role in {"attn_v", "attn_k"} and shape.n_expert == 8 else chosen


def _is_70b(shape: Shape) -> bool:
    """What llama.cpp takes for a 70B: 80 blocks, and in its own architecture shared heads."""
    shares = shape.arch != "llama" or shape.n_head != shape.n_head_kv
    return shape.arch in _ARCHS_70B and shape.n_layer == _N_LAYER_70B and shares


def _first(rule: Rule, place: Place) -> str | None:
    return next((type_name for holds, type_name in rule if holds(place)), None)


def _fitting(type_name: str, n_row: int) -> str:
    """`type_name`, or the one that stands in for it when rows of `n_row` are not whole blocks of it."""
    if n_row % _n_block(type_name) == 0:
        return type_name
    instead = _FALLBACKS.get(type_name, _FALLBACK_OF_IQ if type_name in _BLOCK_256 else type_name)
    return instead if n_row % _n_block(instead) == 0 else "F16"


def _n_block(type_name: str) -> int:
    """Elements of one block of a ggml type."""
    if type_name in _UNQUANTISED:
        return 1
    return 256 if type_name in _BLOCK_256 else 32

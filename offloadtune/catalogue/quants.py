"""Names of quantisations, as llama-quantize knows them."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from offloadtune.catalogue.names import folded, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Quant:
    """A mixture of tensor types: `file_type` is `general.file_type`, `type_name` the ggml type it starts from.

    Some mixtures cannot be made without an importance matrix (`needs_imatrix`), others seldom are (`is_imatrix_usual`).
    `stands_for` is another maker's mixture that follows no published rule, "" for none: this one comes nearest to it.
    """

    name: str
    file_type: int
    type_name: str
    needs_imatrix: bool = False
    is_imatrix_usual: bool = False
    stands_for: str = ""


_ROWS = (
    ("F32", 0, "F32"),
    ("F16", 1, "F16"),
    ("BF16", 32, "BF16"),
    ("Q4_0", 2, "Q4_0"),
    ("Q4_1", 3, "Q4_1"),
    ("Q5_0", 8, "Q5_0"),
    ("Q5_1", 9, "Q5_1"),
    ("Q8_0", 7, "Q8_0"),
    ("Q2_K", 10, "Q2_K"),
    ("Q2_K_S", 21, "Q2_K"),
    ("Q3_K_S", 11, "Q3_K"),
    ("Q3_K_M", 12, "Q3_K"),
    ("Q3_K_L", 13, "Q3_K"),
    ("Q4_K_S", 14, "Q4_K"),
    ("Q4_K_M", 15, "Q4_K"),
    ("Q5_K_S", 16, "Q5_K"),
    ("Q5_K_M", 17, "Q5_K"),
    ("Q6_K", 18, "Q6_K"),
    ("IQ1_S", 24, "IQ1_S"),
    ("IQ1_M", 31, "IQ1_M"),
    ("IQ2_XXS", 19, "IQ2_XXS"),
    ("IQ2_XS", 20, "IQ2_XS"),
    ("IQ2_S", 28, "IQ2_XS"),
    ("IQ2_M", 29, "IQ2_S"),
    ("IQ3_XXS", 23, "IQ3_XXS"),
    ("IQ3_XS", 22, "IQ3_S"),
    ("IQ3_S", 26, "IQ3_S"),
    ("IQ3_M", 27, "IQ3_S"),
    ("IQ4_NL", 25, "IQ4_NL"),
    ("IQ4_XS", 30, "IQ4_XS"),
    ("MXFP4_MOE", 38, "MXFP4"),
)
_NEED_IMATRIX = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S"}
_IMATRIX_USUAL = _NEED_IMATRIX | {"IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS"}
_SHORT_NAMES = {
    "Q3_K": "Q3_K_M",
    "Q4_K": "Q4_K_M",
    "Q5_K": "Q5_K_M",
    "MXFP4": "MXFP4_MOE",
    "FP16": "F16",
    "FP32": "F32",
}
_OTHER_MAKERS = re.compile(r"(?:ud)?(.+?)(?:xl|l)?")  # Unsloth's dynamic ones, and those with larger embeddings
_IN_BRACKETS = re.compile(r"\(.*?\)")

QUANTS = {
    name: Quant(
        name=name,
        file_type=file_type,
        type_name=type_name,
        needs_imatrix=name in _NEED_IMATRIX,
        is_imatrix_usual=name in _IMATRIX_USUAL,
    )
    for name, file_type, type_name in _ROWS
}


def find_quant(name: str) -> Quant:
    """The quantisation called `name`, case, "-", "_" and brackets aside; "Q4_K" is Q4_K_M, as llama-quantize has it.

    Unsloth's dynamic ones ("UD-Q4_K_XL") and those with larger embeddings ("Q4_K_L") follow no published rule: what is
    found says for which it stands. Raises UnknownNameError with the nearest names.
    """
    fold = folded(_IN_BRACKETS.sub("", name))
    known = {folded(quant): quant for quant in QUANTS} | {folded(short): full for short, full in _SHORT_NAMES.items()}
    if fold in known:
        return QUANTS[known[fold]]
    match = _OTHER_MAKERS.fullmatch(fold)
    stem = match[1] if match else fold
    near = next(
        (known[one] for one in (stem, f"{stem}m", f"{stem}s", f"{stem.removesuffix('k')}0") if one in known), None
    )
    if near is None or stem == fold:
        raise unknown(name, known, "quantisation")
    return dataclasses.replace(QUANTS[near], stands_for=name)

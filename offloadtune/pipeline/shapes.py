"""A model by name instead of by file: the catalogue's description, read as a header is."""

from __future__ import annotations

from pathlib import Path

from offloadtune import catalogue, gguf
from offloadtune.catalogue import card_names, shape_names
from offloadtune.records import GgufFacts

__all__ = ["card_names", "facts_of_shape", "quant_names", "shape_names"]


def quant_names() -> tuple[str, ...]:
    """Every quantisation's name."""
    return tuple(catalogue.QUANTS)


def facts_of_shape(name: str, quant: str, *, has_imatrix: bool | None = None) -> GgufFacts:
    """What `read_gguf` would say of the model `name` in the quantisation `quant`, which nobody downloaded.

    `path` is a file name that need not exist, `gguf_id` starts with "catalogue:". `has_imatrix` says whether the
    quantisation used an importance matrix; left out, as published files mostly do. Raises UnknownNameError.
    """
    header = catalogue.described(name, quant, has_imatrix=has_imatrix)
    return gguf.facts_of_parts(
        path=Path(f"{header.shape.key}.{header.quant.name}.gguf"),
        gguf_id=f"catalogue:{header.shape.key}:{header.quant.name}",
        key_values=header.key_values,
        array_lengths=header.array_lengths,
        tensors=header.tensors,
    )


def weights_basis(quant: str) -> str:
    """Whose mixture of types the weights of a shape are reckoned with."""
    found = catalogue.find_quant(quant)
    if not found.stands_for:
        return f"The weights are those of llama-quantize's {found.name}; a maker's own mixture may differ."
    return f"{found.stands_for} follows no published rule: its weights, reckoned as {found.name}, may be far off."

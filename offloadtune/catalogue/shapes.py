"""Shapes of published models: the rows of shapes.csv, and how they are found by name."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from offloadtune.catalogue.names import folded, unknown
from offloadtune.errors import UnknownNameError

_VARIANTS = re.compile(r"\b(?:instruct|chat|it|base|hf|qat)\b|\(.*?\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One published model without its weights; None where no public source says.

    Counts as in `GgufFacts`; `n_head_kv` has one entry a block where blocks differ. `keys` are further GGUF
    key-values of the architecture, without its prefix. `rope_tensors` names the rope factors stored in the file
    ("freqs", "long", "short"). `n_params` is rounded to a million.
    """

    key: str
    label: str
    aliases: tuple[str, ...]
    arch: str
    n_params: int | None
    n_layer: int
    n_embd: int
    n_head: int | None
    n_head_kv: int | tuple[int, ...]
    n_embd_head_k: int
    n_embd_head_v: int
    n_ff: int | tuple[int, ...] | None
    n_vocab: int
    n_ctx_train: int | None
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    n_swa: int
    is_tied: bool
    has_qkv_bias: bool
    rope_tensors: tuple[str, ...]
    keys: dict[str, Any]
    source: str
    verified: str
    notes: str

    @property
    def missing(self) -> tuple[str, ...]:
        """What no public source says and the weights depend on."""
        return tuple(name for name in ("n_head", "n_ff", "n_ctx_train") if getattr(self, name) is None)

    @property
    def n_head_kv_per_layer(self) -> tuple[int, ...]:
        return per_layer(self.n_head_kv, self.n_layer)


def per_layer(value: int | tuple[int, ...], n_layer: int) -> tuple[int, ...]:
    """One count for each of `n_layer` blocks, from one for all or one each."""
    return value if isinstance(value, tuple) else (value,) * n_layer


def find_shape(name: str) -> Shape:
    """The shape of the model called `name`: its key, label or an alias, case and punctuation aside.

    The words "Instruct", "Chat", "it", "Base" and "QAT", and remarks in brackets, change no shape and may be there.
    Raises UnknownNameError with the nearest names.
    """
    plain = _VARIANTS.sub(" ", name.replace("_", " "))
    found = _by_name().get(folded(name)) or _by_name().get(folded(plain))
    if found is None:
        raise unknown(name, _labels(), "model")
    return found


def shape_names() -> tuple[str, ...]:
    """The key of every shape, in the order of the table."""
    return tuple(shape.key for shape in shapes())


@functools.cache
def shapes() -> tuple[Shape, ...]:
    """Every row of shapes.csv."""
    text = files("offloadtune.catalogue").joinpath("shapes.csv").read_text(encoding="utf-8")
    return tuple(_shape(row) for row in csv.DictReader(text.splitlines()))


def refuse_incomplete(shape: Shape) -> None:
    """Raise UnknownNameError when no public source says all that the weights of `shape` depend on."""
    if shape.missing:
        sentence = (
            f"The weights of {shape.label} cannot be computed: {', '.join(shape.missing)} is in no public source."
        )
        raise UnknownNameError(sentence, hint="Name its .gguf file instead.")


@functools.cache
def _by_name() -> dict[str, Shape]:
    return {folded(name): shape for shape in reversed(shapes()) for name in _names(shape)}


@functools.cache
def _labels() -> dict[str, str]:
    return {folded(name): name for shape in shapes() for name in _names(shape)}


def _names(shape: Shape) -> Iterator[str]:
    """The key, the label and its parts, the aliases: "Llama-3.1-70B / 3.3-70B" is Llama-3.3-70B too."""
    yield shape.key
    yield shape.label
    first, *others = (re.sub(r"\(.*?\)", "", part).strip() for part in shape.label.split("/"))
    yield first
    family = re.match(r"[A-Za-z]+", first)
    for other in others:
        yield other if other[0].isalpha() or family is None else f"{family[0]}-{other}"
    yield from shape.aliases


def _shape(row: dict[str, str]) -> Shape:
    return Shape(
        key=row["key"],
        label=row["label"],
        aliases=tuple(part.strip() for part in row["aliases"].split("/") if part.strip()),
        arch=row["arch"],
        n_params=round(float(row["params_b"]) * 1e9) if row["params_b"] else None,
        n_layer=int(row["n_layer"]),
        n_embd=int(row["n_embd"]),
        n_head=_count(row["n_head"]),
        n_head_kv=_counts(row["n_head_kv"]),
        n_embd_head_k=int(row["n_embd_head_k"]),
        n_embd_head_v=int(row["n_embd_head_v"]),
        n_ff=_counts(row["n_ff"]) if row["n_ff"] else None,
        n_vocab=int(row["n_vocab"]),
        n_ctx_train=_count(row["n_ctx_train"]),
        n_expert=int(row["n_expert"]),
        n_expert_used=int(row["n_expert_used"]),
        n_ff_exp=int(row["n_ff_exp"]),
        n_swa=int(row["n_swa"]),
        is_tied=row["is_tied"] == "1",
        has_qkv_bias=row["has_qkv_bias"] == "1",
        rope_tensors=tuple(row["rope_tensors"].split()),
        keys=dict(_key_value(part) for part in row["keys"].split(";") if part.strip()),
        source=row["source"],
        verified=row["verified"],
        notes=row["notes"],
    )


def _count(text: str) -> int | None:
    return int(text) if text else None


def _counts(text: str) -> int | tuple[int, ...]:
    """One count, or one a block written as runs: "6144*15 12288*20"."""
    if text.isdigit():
        return int(text)
    runs = (part.partition("*") for part in text.split())
    return tuple(int(value) for value, _, times in runs for _ in range(int(times or 1)))


def _key_value(text: str) -> tuple[str, Any]:
    """A GGUF key and its value: "a.b=512", "a.b=0.5" or, as an array, "a.b=1*5 0"; patterns are arrays of flags."""
    key, _, value = (part.strip() for part in text.partition("="))
    if "*" in value or " " in value:
        counts = _counts(value)
        return key, tuple(map(bool, counts)) if key.endswith("_pattern") and isinstance(counts, tuple) else counts
    return key, float(value) if "." in value else int(value)

"""What a stand-in is made of: a description or the header of a real file, and whose vocabulary it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offloadtune.errors import GgufError, UsageError
from offloadtune.gguf.cursor import Cursor
from offloadtune.gguf.header import read_header, shown
from offloadtune.gguf.opening import open_header
from offloadtune.gguf.shards import read_shards
from offloadtune.gguf.standin.blocks import BLOCK_TYPES
from offloadtune.gguf.standin.encoding import ARRAY_HEAD, Tensor, encoded, number_array, string_array
from offloadtune.gguf.standin.vocabulary import unused_tokens
from offloadtune.gguf.tables import ARRAY_TYPE, STRING_TYPE, number_layout

_TOKENS = "tokenizer.ggml.tokens"
_OF_EACH_TOKEN = {"tokenizer.ggml.token_type": 5, "tokenizer.ggml.scores": 0}
"""Arrays with a value for each token, and that of a token that is not used."""

_NOT_COPIED = ("split.", "general.alignment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A file to be: key-values as they are stored, and its tensors in their order."""

    key_values: dict[str, bytes]
    tensors: tuple[Tensor, ...]


def described_parts(key_values: Mapping[str, Any], tensors: Iterable[Tensor], vocabulary: Mapping[str, bytes]) -> Parts:
    """The parts of a model that a catalogue describes. Raises UsageError for a type that cannot be written."""
    own = {key: encoded(value) for key, value in key_values.items() if not key.startswith("tokenizer.")}
    versioned = {**own, "general.quantization_version": encoded(2), **vocabulary}
    return _checked(Parts(key_values=versioned, tensors=tuple(tensors)))


def file_parts(path: Path) -> Parts:
    """The parts of a real file, its own vocabulary among them. Raises GgufError, and UsageError as above."""
    headers = read_shards(path)
    tensors = tuple((one.name, one.type_name, one.shape) for header in headers for one in header.tensors)
    stored = {key: value for key, value in _stored(headers[0].path).items() if not key.startswith(_NOT_COPIED)}
    return _checked(Parts(key_values=stored, tensors=tensors))


def vocabulary_of(path: Path, n_vocab: int) -> dict[str, bytes]:
    """The tokenizer of a real file with `n_vocab` tokens, unused ones for those that it lacks.

    Raises GgufError, and UsageError where it has none, or more tokens than that.
    """
    n_tokens = read_header(path).array_lengths.get(_TOKENS)
    if n_tokens is None:
        raise GgufError(f"{path} has no vocabulary.", hint="Name a .gguf file of a whole model.")
    if n_tokens > n_vocab:
        sentence = f"{path} has {n_tokens} tokens, more than the {n_vocab} of the shape."
        raise UsageError(sentence, hint="Take the vocabulary of a file of the same family, or leave out --vocab-from.")
    found = {key: value for key, value in _stored(path).items() if key.startswith("tokenizer.")}
    n_more = n_vocab - n_tokens
    for key, unused in _OF_EACH_TOKEN.items():
        if key in found:
            found[key] = _longer(found[key], number_array(_element_type(found[key]), [unused] * n_more))
    return {**found, _TOKENS: _longer(found[_TOKENS], string_array(unused_tokens(n_more)))}


def marked(parts: Parts, marks: Mapping[str, Any]) -> Parts:
    """`parts` with these key-values too."""
    return dataclasses.replace(parts, key_values=parts.key_values | {key: encoded(marks[key]) for key in marks})


def picked(array: bytes, kept: Iterable[int]) -> bytes:
    """The elements `kept` of a stored array of numbers."""
    value_type = _element_type(array)
    values = number_layout(value_type, ARRAY_HEAD.unpack_from(array)[2]).unpack_from(array, ARRAY_HEAD.size)
    return number_array(value_type, [values[i] for i in kept])


def _checked(parts: Parts) -> Parts:
    for name, type_name, _ in parts.tensors:
        if type_name not in BLOCK_TYPES:
            sentence = f"No stand-in can be written for the tensor {shown(name)}, whose type is {type_name}."
            raise UsageError(sentence, hint="Choose another quantisation, such as Q4_K_M.")
    return parts


def _stored(path: Path) -> dict[str, bytes]:
    """Every key of the file's header with its value as it is stored there; `read_header` has found it sound."""
    with open_header(path) as (window, file_bytes):
        cursor = Cursor(path, window, file_bytes)
        cursor.skip(16)  # magic, version, number of tensors
        found = {}
        for _ in range(cursor.u64()):
            key = cursor.text(cursor.u64())
            start = cursor.position
            _skip_value(cursor)
            found[key] = window[start : cursor.position]
        return found


def _skip_value(cursor: Cursor) -> None:
    value_type, count = cursor.u32(), 1
    if value_type == ARRAY_TYPE:
        value_type, count = cursor.u32(), cursor.u64()
    if value_type == STRING_TYPE:
        cursor.skip_strings(count)
    else:
        cursor.skip(count * number_layout(value_type).size)


def _element_type(array: bytes) -> int:
    value_type: int = ARRAY_HEAD.unpack_from(array)[1]
    return value_type


def _longer(array: bytes, more: bytes) -> bytes:
    """A stored array with the elements of another of its type after its own."""
    kind, value_type, count = ARRAY_HEAD.unpack_from(array)
    _, _, n_more = ARRAY_HEAD.unpack_from(more)
    return ARRAY_HEAD.pack(kind, value_type, count + n_more) + array[ARRAY_HEAD.size :] + more[ARRAY_HEAD.size :]

"""What a stand-in is made of: its header against the `gguf` package, vocabularies, sizes, and fewer blocks."""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import catalogue
from offloadtune.catalogue.shapes import shapes
from offloadtune.errors import GgufError, UsageError
from offloadtune.gguf import read_gguf, standin
from offloadtune.gguf.header import read_header
from offloadtune.gguf.standin.encoding import encoded, header, n_bytes_of, padded
from offloadtune.gguf.standin.vocabulary import made_up
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts

SHAPES = {shape.key: shape for shape in shapes()}


def parts_of(name: str, quant: str = "Q4_K_M") -> standin.Parts:
    described = catalogue.described(name, quant)
    return standin.described_parts(described.key_values, described.tensors, made_up(described.shape.n_vocab))


def header_only(path: Path, parts: standin.Parts) -> Path:
    """A file of the whole size with a hole for its data."""
    content = header(parts.key_values, parts.tensors)
    path.write_bytes(content)
    with path.open("r+b") as file:
        file.truncate(len(content) + sum(padded(n_bytes_of(tensor)) for tensor in parts.tensors))
    return path


def values_of(reader: Any) -> dict[str, Any]:
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}


# --- the header ----------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text("abcdefgh.", min_size=1, max_size=30),
        st.one_of(
            st.booleans(),
            st.integers(-(2**31), 2**63),
            st.floats(width=32, allow_nan=False),
            st.text(max_size=20),
            st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9).map(tuple),
            st.lists(st.booleans(), min_size=1, max_size=9).map(tuple),
            st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9).map(tuple),
        ),
        max_size=6,
    )
)
def test_what_is_encoded_is_read_again(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "values.gguf"
    tensors = [("token_embd.weight", "F32", (4, 2))]
    content = header({key: encoded(value) for key, value in values.items()}, tensors)
    path.write_bytes(content + bytes(32))
    found = read_header(path)
    assert found.key_values == values
    assert found.header_bytes == len(content)
    assert [(one.name, one.type_name, one.shape) for one in found.tensors] == tensors


def test_the_header_is_read_by_the_gguf_package_as_by_ours(tmp_path: Path) -> None:
    path = header_only(tmp_path / "a.gguf", parts_of("smollm2-135m", "Q4_1"))
    reader = gguf.GGUFReader(path)
    described = catalogue.described("smollm2-135m", "Q4_1")
    assert [(one.name, one.tensor_type.name, tuple(map(int, one.shape))) for one in reader.tensors] == [
        *described.tensors
    ]
    values = values_of(reader)
    assert values["llama.attention.head_count_kv"] == 3
    assert values["general.file_type"] == described.quant.file_type
    assert len(values["tokenizer.ggml.tokens"]) == len(values["tokenizer.ggml.token_type"]) == 49152


def test_a_type_that_nobody_can_write_is_named() -> None:
    with pytest.raises(UsageError, match=r"for the tensor 'odd.weight', whose type is NVFP4"):
        standin.described_parts({}, [("odd.weight", "NVFP4", (64, 1))], {})


PUBLISHED = [
    ("Llama-2-7B", 4_081_004_224),  # TheBloke/Llama-2-7B-Chat-GGUF
    ("Mistral-7B-v0.2", 4_368_439_584),  # TheBloke/Mistral-7B-Instruct-v0.2-GGUF
    ("Llama-3.1-8B", 4_920_739_232),  # bartowski/Meta-Llama-3.1-8B-Instruct-GGUF
    ("Qwen2.5-7B", 4_683_074_240),  # bartowski/Qwen2.5-7B-Instruct-GGUF
    ("Qwen2.5-14B", 8_988_111_072),  # bartowski/Qwen2.5-Coder-14B-Instruct-GGUF
    ("Qwen3-8B", 5_027_784_512),  # unsloth/Qwen3-8B-GGUF
    ("Gemma-3-12B", 7_300_574_976),  # ggml-org/gemma-3-12b-it-GGUF
]
"""Sizes of Q4_K_M files on Hugging Face, in bytes."""


@pytest.mark.parametrize(("name", "file_bytes"), PUBLISHED)
def test_a_stand_in_is_as_large_as_the_published_file(name: str, file_bytes: int, tmp_path: Path) -> None:
    path = header_only(tmp_path / "a.gguf", parts_of(name))
    assert path.stat().st_size == pytest.approx(file_bytes, rel=0.001)
    assert read_gguf(path, identify=False).type_bytes == facts_of_shape(name, "Q4_K_M").type_bytes


@pytest.mark.parametrize(
    ("fixture", "shape", "quant"),
    [("smollm2_path", "SmolLM2-135M", "Q4_1"), ("gemma3_path", "Gemma-3-270M", "Q4_K_M")],
)
def test_its_types_and_bytes_are_those_of_the_real_file(
    fixture: str, shape: str, quant: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    real = read_gguf(request.getfixturevalue(fixture))
    path = header_only(tmp_path / "a.gguf", parts_of(shape, quant))
    ours = read_gguf(path, identify=False)
    assert {(one.name, one.type_name, one.shape) for one in ours.tensors} == {
        (one.name, one.type_name, one.shape) for one in real.tensors
    }
    assert (ours.is_swa, ours.n_head_kv, ours.n_vocab) == (real.is_swa, real.n_head_kv, real.n_vocab)


# --- vocabularies --------------------------------------------------------------------------------------------------


def strings(value: bytes) -> list[str]:
    (count,) = struct.unpack_from("<Q", value, 8)
    found, place = [], 16
    for _ in range(count):
        (n_bytes,) = struct.unpack_from("<Q", value, place)
        found.append(value[place + 8 : place + 8 + n_bytes].decode())
        place += 8 + n_bytes
    assert place == len(value)
    return found


def test_the_made_up_vocabulary_has_each_token_once_and_all_that_merges_need() -> None:
    vocabulary = made_up(32064)
    tokens = strings(vocabulary["tokenizer.ggml.tokens"])
    assert len(tokens) == len(set(tokens)) == 32064
    for merge in strings(vocabulary["tokenizer.ggml.merges"]):
        left, right = merge.split(" ")
        assert {left, right, left + right} <= set(tokens)
    assert sum(len(token) == 1 for token in tokens) == 256


def test_a_vocabulary_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="A vocabulary of 300 tokens is too small"):
        made_up(300)


def test_a_real_vocabulary_is_taken_over_whole(smollm2_path: Path, tmp_path: Path) -> None:
    taken = standin.vocabulary_of(smollm2_path, 49152)
    real = {key: value for key, value in values_of(gguf.GGUFReader(smollm2_path)).items() if "tokenizer." in key}
    path = tmp_path / "a.gguf"
    path.write_bytes(header(taken, [("token_embd.weight", "F32", (4, 2))]) + bytes(32))
    assert values_of(gguf.GGUFReader(path)) == real


def test_a_smaller_vocabulary_gets_tokens_that_no_text_leads_to(gemma3_path: Path) -> None:
    taken = standin.vocabulary_of(gemma3_path, 262_144 + 64)
    tokens = strings(taken["tokenizer.ggml.tokens"])
    assert len(tokens) == len(set(tokens)) == 262_144 + 64
    assert (tokens[0], tokens[-1]) == ("<pad>", "<|stand-in 63|>")
    for name, unused in (("token_type", struct.pack("<i", gguf.TokenType.UNUSED)), ("scores", struct.pack("<f", 0))):
        stored = taken[f"tokenizer.ggml.{name}"]
        assert struct.unpack_from("<Q", stored, 8) == (262_144 + 64,)
        assert len(stored) == 16 + 4 * (262_144 + 64)
        assert stored.endswith(64 * unused)


def test_a_larger_vocabulary_and_none_are_refused(smollm2_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 49152 tokens, more than the 32000 of the shape"):
        standin.vocabulary_of(smollm2_path, 32_000)
    path = tmp_path / "none.gguf"
    path.write_bytes(header({"general.architecture": encoded("llama")}, [("a", "F32", (8,))]) + bytes(32))
    with pytest.raises(GgufError, match="has no vocabulary"):
        standin.vocabulary_of(path, 32_000)


# --- a real file as the source -------------------------------------------------------------------------------------


def test_a_real_header_is_taken_over_with_its_mix_and_its_vocabulary(gemma3_path: Path, tmp_path: Path) -> None:
    real = read_gguf(gemma3_path)
    ours = read_gguf(header_only(tmp_path / "a.gguf", standin.file_parts(gemma3_path)), identify=False)
    apart = {"path", "shard_paths", "gguf_id"}
    for field in set(GgufFacts.__dataclass_fields__) - apart:
        assert getattr(ours, field) == getattr(real, field), field


# --- fewer blocks --------------------------------------------------------------------------------------------------


def kinds(facts: GgufFacts) -> list[Any]:
    """What tells each block's kind: its window, its heads, and its tensors."""
    tensors: list[list[Any]] = [[] for _ in range(facts.n_layer)]
    for tensor in facts.tensors:
        if tensor.name.startswith("blk."):
            _, i_layer, name = tensor.name.split(".", 2)
            tensors[int(i_layer)].append((name, tensor.type_name, tensor.shape))
    rows = zip(facts.is_swa, facts.n_head, facts.n_head_kv, facts.layer_bytes, map(sorted, tensors), strict=True)
    return list(rows)


def depths(facts: GgufFacts) -> list[int]:
    """The numbers of blocks that are taken."""
    found = []
    for n_layer in range(1, facts.n_layer):
        try:
            standin.kept_blocks(facts, n_layer)
        except UsageError:
            continue
        found.append(n_layer)
    return found


@pytest.mark.parametrize("key", SHAPES)
def test_a_shorter_file_has_blocks_of_the_kinds_and_types_that_were_kept(key: str, tmp_path: Path) -> None:
    facts, parts = facts_of_shape(key, "Q4_K_M"), parts_of(key)
    for n_layer in depths(facts)[::5]:
        kept = standin.kept_blocks(facts, n_layer)
        assert len(set(kept)) == n_layer
        path = header_only(tmp_path / "a.gguf", standin.shorter(parts, facts, kept))
        written = read_gguf(path, identify=False)
        assert kinds(written) == [kinds(facts)[i] for i in kept]
        assert (written.n_swa > 0) == (facts.n_swa > 0)


@given(st.sampled_from([key for key in SHAPES if not key.startswith("gemma-4-e")]), st.data())
def test_blocks_are_spread_evenly(key: str, data: st.DataObject) -> None:
    facts = facts_of_shape(key, "Q4_K_M")
    kept = standin.kept_blocks(facts, data.draw(st.sampled_from([*depths(facts), facts.n_layer])))
    assert list(kept) == sorted(kept)
    gaps = Counter(later - earlier for earlier, later in itertools.pairwise(kept))
    step = (facts.n_layer - 1) / max(1, len(kept) - 1)
    assert all(gap <= step + 7 for gap in gaps)  # the longest period is 6


@pytest.mark.parametrize(
    ("key", "n_layer", "words", "next_step"),
    [
        ("gemma-3-270m", 4, "4 layers would be another model: its kinds repeat every 6", "6 or 12"),
        ("qwen3.5-4b", 7, "repeat every 4", "4 or 8 or 12"),
        ("deepseek-v2-lite", 1, "repeat every 1, and 1 at its ends are of kinds of their own", "2 or 3 or 4"),
        ("gemma-4-e2b", 10, r"depend on each other \(gemma4.attention.shared_kv_layers\)", "Leave out --layers"),
        ("llama-3-8b", 33, "has 1 to 32 layers, not 33", "Leave out --layers"),
        ("llama-3-8b", 0, "has 1 to 32 layers, not 0", "Leave out --layers"),
    ],
)
def test_a_number_of_layers_that_makes_another_model_is_refused(
    key: str, n_layer: int, words: str, next_step: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        standin.kept_blocks(facts_of_shape(key, "Q4_K_M"), n_layer)
    assert next_step in caught.value.hint


@pytest.mark.parametrize("key", SHAPES)
def test_the_numbers_of_layers_to_choose_from_are_those_that_are_taken(key: str) -> None:
    facts = facts_of_shape(key, "Q4_K_M")
    assert list(standin.layer_counts(facts)) == depths(facts)


def test_ends_that_leave_no_layer_between_them_are_not_shortened() -> None:
    facts = facts_of_shape("deepseek-v2-lite", "Q4_K_M")
    all_ends = dataclasses.replace(facts, n_layer_nextn=facts.n_layer)
    assert standin.layer_counts(all_ends) == ()
    with pytest.raises(UsageError, match="follow no pattern"):
        standin.kept_blocks(all_ends, 5)


def test_a_model_without_a_pattern_is_not_shortened() -> None:
    facts = facts_of_shape("gemma-3-270m", "Q4_K_M")
    odd = dataclasses.replace(facts, is_swa=(True,) * 17 + (False,))
    assert standin.layer_counts(odd) == ()
    with pytest.raises(UsageError, match="follow no pattern, so none of the 18"):
        standin.kept_blocks(odd, 6)


def test_the_ends_stay_and_all_layers_are_all() -> None:
    facts = facts_of_shape("qwen3.8-27b-mtp", "Q4_K_M")
    assert standin.kept_blocks(facts, facts.n_layer) == tuple(range(facts.n_layer))
    assert standin.kept_blocks(facts, 9)[-1] == facts.n_layer - 1
    parts = parts_of("qwen3.8-27b-mtp")
    assert standin.shorter(parts, facts, range(facts.n_layer)) is parts
    assert math.prod(standin.kept_blocks(facts_of_shape("deepseek-v2-lite", "Q4_K_M"), 5)) == 0  # the dense one

"""The GGUF reader against the `gguf` package, on synthetic files and on real ones."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from offloadtune.errors import GgufError
from offloadtune.gguf import identify, read_gguf
from offloadtune.gguf.header import read_header
from offloadtune.gguf.tables import FILE_TYPES, GGML_TYPES
from offloadtune.records import GgufFacts

N_EMBD = 32
Fill = Callable[[Any], None]


def write_model(path: Path, fill: Fill = lambda _writer: None, *, arch: str = "llama", n_layer: int = 2) -> Path:
    """A tiny file in the manner of a converter; `fill` may add key-values and tensors."""
    return finish(new_writer(path, arch, n_layer), n_layer, fill, path)


def new_writer(path: Path, arch: str, n_layer: int, **options: Any) -> Any:
    writer = gguf.GGUFWriter(path, arch, **options)
    writer.add_block_count(n_layer)
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_token_list([f"token {i}" for i in range(300)])
    return writer


def finish(writer: Any, n_layer: int, fill: Fill, path: Path) -> Path:
    fill(writer)
    writer.add_tensor("token_embd.weight", np.zeros((300, N_EMBD), np.float16))
    for i_layer in range(n_layer):
        writer.add_tensor(f"blk.{i_layer}.attn_norm.weight", np.arange(N_EMBD, dtype=np.float32))
        writer.add_tensor(
            f"blk.{i_layer}.attn_q.weight",
            np.full((N_EMBD, 18), i_layer, np.uint8),
            raw_dtype=gguf.GGMLQuantizationType.Q4_0,
        )
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_shards(folder: Path) -> list[Path]:
    """A model of seven tensors in three shards."""
    path = folder / "tiny.gguf"
    finish(new_writer(path, "llama", 2, split_max_tensors=2), 2, lambda _writer: None, path)
    return sorted(folder.glob("tiny-*.gguf"))


def oracle_tensors(reader: Any) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    return [
        (t.name, t.tensor_type.name, tuple(int(n) for n in t.shape), int(t.n_bytes), t.data_offset)
        for t in reader.tensors
    ]


def our_tensors(path: Path) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    header = read_header(path)
    return [(t.name, t.type_name, t.shape, t.n_bytes, header.header_bytes + t.offset) for t in header.tensors]


def oracle_values(reader: Any) -> dict[str, Any]:
    """Scalars, strings and short numeric arrays."""
    values = {}
    for key, field in reader.fields.items():
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        if key.startswith("GGUF.") or (is_array and field.types[1] == gguf.GGUFValueType.STRING):
            continue
        if len(field.data) <= 1024:
            values[key] = tuple(field.contents()) if is_array else field.contents()
    return values


def fill_every_value_type(writer: Any) -> None:
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -100)
    writer.add_uint16("x.u16", 60_000)
    writer.add_int16("x.i16", -30_000)
    writer.add_uint32("x.u32", 4_000_000_000)
    writer.add_int32("x.i32", -2_000_000_000)
    writer.add_uint64("x.u64", 2**63 + 1)
    writer.add_int64("x.i64", -(2**62))
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.bool", val=True)
    writer.add_string("x.string", "grüße 你好")
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.5, 0.25])
    writer.add_array("x.bools", [True, False])


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_agrees_with_the_oracle_on_a_synthetic_file(tmp_path: Path, alignment: int) -> None:
    def fill(writer: Any) -> None:
        writer.add_custom_alignment(alignment)
        fill_every_value_type(writer)

    path = write_model(tmp_path / "tiny.gguf", fill)
    reader = gguf.GGUFReader(path)
    assert our_tensors(path) == oracle_tensors(reader)
    values = read_header(path).key_values
    oracle = oracle_values(reader)
    assert {key: values[key] for key in oracle} == oracle
    assert len(oracle) >= 20


def test_agrees_with_the_oracle_on_smollm2(smollm2_path: Path) -> None:
    reader = gguf.GGUFReader(smollm2_path)
    tensors = oracle_tensors(reader)
    assert our_tensors(smollm2_path) == tensors
    facts = read_gguf(smollm2_path)
    values = dict(facts.key_values)
    oracle = oracle_values(reader)
    assert {key: values[key] for key in oracle} == oracle
    assert facts.tensor_bytes == sum(n_bytes for *_, n_bytes, _ in tensors)
    assert facts.n_params == sum(math.prod(shape) for _, _, shape, _, _ in tensors)


def test_smollm2_facts(smollm2_path: Path) -> None:
    facts = read_gguf(smollm2_path)
    assert (facts.arch, facts.quantisation, facts.version) == ("llama", "Q4_1", 3)
    assert (facts.n_layer, facts.n_layer_nextn, facts.n_embd, facts.n_vocab) == (30, 0, 576, 49152)
    assert (facts.n_head, facts.n_head_kv) == ((9,) * 30, (3,) * 30)
    assert (facts.n_embd_head_k, facts.n_embd_head_v, facts.n_ctx_train) == (64, 64, 8192)
    assert facts.is_tied
    assert (facts.n_swa, any(facts.is_swa), facts.n_expert, facts.n_expert_used) == (0, False, 0, 0)
    assert facts.layer_bytes == (2_216_448,) * 30
    assert (facts.embedding_bytes, facts.output_bytes, facts.other_bytes) == (30_081_024, 2304, 0)
    assert facts.tensor_bytes == 96_576_768 == sum(n_bytes for _, n_bytes in facts.type_bytes)
    assert facts.n_params == 134_515_008
    assert (facts.file_bytes, facts.shard_paths) == (98_362_432, (smollm2_path,))


def test_gemma3_facts(gemma3_path: Path) -> None:
    facts = read_gguf(gemma3_path)
    assert (facts.arch, facts.quantisation, facts.n_layer, facts.n_vocab) == ("gemma3", "Q4_K_M", 18, 262_144)
    assert (facts.n_head, facts.n_head_kv) == ((4,) * 18, (1,) * 18)
    assert (facts.n_embd, facts.n_embd_head_k, facts.n_embd_head_v) == (640, 256, 256)
    assert facts.n_swa == 512
    assert [i for i, slides in enumerate(facts.is_swa) if not slides] == [5, 11, 17]
    assert facts.tensor_bytes == 246_587_904


def test_arrays_of_strings_and_long_arrays_are_counted_not_kept(smollm2_path: Path) -> None:
    values = dict(read_gguf(smollm2_path).key_values)
    assert values["tokenizer.ggml.tokens"] == "array of 49152 strings"
    assert values["tokenizer.ggml.token_type"] == "array of 49152 numbers"


def test_is_faster_than_the_gguf_package_by_far(smollm2_path: Path) -> None:
    def best_s(read: Callable[[Path], Any], n_times: int) -> float:
        times = []
        for _ in range(n_times):
            start = time.perf_counter()
            read(smollm2_path)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best_s(read_gguf, 3) * 5 < best_s(gguf.GGUFReader, 1)


def test_type_table_is_the_packages() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {type_id: tuple(ggml_type) for type_id, ggml_type in GGML_TYPES.items()}
    assert {type_id: ours[type_id] for type_id in theirs} == theirs


def test_file_type_names_are_the_packages() -> None:
    theirs = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType}
    del theirs[gguf.LlamaFileType.GUESSED]
    assert {file_type: FILE_TYPES[file_type] for file_type in theirs} == theirs


# --- facts ---------------------------------------------------------------------------------------------------------


def facts_of(folder: Path, fill: Fill, **options: Any) -> GgufFacts:
    return read_gguf(write_model(folder / "tiny.gguf", fill, **options))


def test_bytes_are_summed_by_place(tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_tensor("output.weight", np.zeros((300, N_EMBD), np.float32))
        writer.add_tensor("per_layer_token_embd.weight", np.zeros((10, N_EMBD), np.float16))
        writer.add_tensor("rope_freqs.weight", np.zeros(16, np.float32))
        writer.add_tensor("blk.1.ffn_up_exps.weight", np.zeros((4, 8, N_EMBD), np.float32))
        writer.add_tensor("blk.1.ffn_up_shexp.weight", np.zeros((8, N_EMBD), np.float32))

    facts = facts_of(tmp_path, fill)
    plain = N_EMBD * 4 + N_EMBD * 18
    assert facts.layer_bytes == (plain, plain + 5 * 8 * N_EMBD * 4)
    assert facts.expert_bytes == (0, 4 * 8 * N_EMBD * 4)
    assert facts.embedding_bytes == 310 * N_EMBD * 2
    assert facts.output_bytes == 301 * N_EMBD * 4
    assert facts.other_bytes == 16 * 4
    assert not facts.is_tied
    assert (facts.n_expert, facts.n_expert_used) == (4, 2)
    assert facts.tensor_bytes == sum(tensor.n_bytes for tensor in facts.tensors)


def test_head_counts_may_differ_by_block(tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_head_count([0, 8])
        writer.add_head_count_kv([0, 2])

    facts = facts_of(tmp_path, fill)
    assert (facts.n_head, facts.n_head_kv) == ((0, 8), (0, 2))
    assert facts.n_embd_head_k == N_EMBD // 8


def test_head_size_keys_win_over_the_quotient(tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_head_count(4)
        writer.add_key_length(24)
        writer.add_value_length(20)

    facts = facts_of(tmp_path, fill)
    assert facts.n_head_kv == (4, 4)
    assert (facts.n_embd_head_k, facts.n_embd_head_v) == (24, 20)


@pytest.mark.parametrize(
    ("arch", "n_swa", "pattern", "expected"),
    [
        ("llama", 512, None, (0, "gggggggg")),
        ("llama", None, None, (0, "gggggggg")),
        ("gemma2", None, None, (4096, "sgsgsgsg")),
        ("gemma3", 512, None, (512, "sssssgss")),
        ("gemma3", 512, 4, (512, "sssgsssg")),
        ("gemma3", 512, 1, (0, "gggggggg")),
        ("gemma3", 512, [True] * 3 + [False] * 5, (512, "sssggggg")),
        ("gemma4", 64, [False, True] * 4, (64, "gsgsgsgs")),
        ("gpt-oss", 128, None, (128, "sgsgsgsg")),
        ("cohere2moe", 64, None, (64, "gsssgsss")),
        ("phi3", 2048, None, (0, "gggggggg")),
        ("llama4", None, None, (8192, "sssgsssg")),
        ("llama4", 0, None, (0, "gggggggg")),
        ("exaone4", 4096, None, (0, "gggggggg")),
        ("deepseek4", 128, None, (128, "ssssssss")),
    ],
)
def test_sliding_windows_are_read_as_llama_cpp_does(
    tmp_path: Path, arch: str, n_swa: int | None, pattern: int | list[bool] | None, expected: tuple[int, str]
) -> None:
    def fill(writer: Any) -> None:
        if n_swa is not None:
            writer.add_sliding_window(n_swa)
        if isinstance(pattern, list):
            writer.add_array(f"{arch}.attention.sliding_window_pattern", pattern)
        elif pattern is not None:
            writer.add_uint32(f"{arch}.attention.sliding_window_pattern", pattern)

    facts = facts_of(tmp_path, fill, arch=arch, n_layer=8)
    assert (facts.n_swa, "".join("s" if slides else "g" for slides in facts.is_swa)) == expected


def test_prediction_blocks_never_slide(tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_uint32("gpt-oss.nextn_predict_layers", 1)
        writer.add_sliding_window(128)

    facts = facts_of(tmp_path, fill, arch="gpt-oss", n_layer=5)
    assert (facts.n_layer, facts.n_layer_nextn) == (5, 1)
    assert facts.is_swa == (True, False, True, False, False)


@pytest.mark.parametrize(("file_type", "expected"), [(15, "Q4_K_M"), (1024 + 2, "Q4_0"), (999, "F16"), (None, "F16")])
def test_quantisation_is_the_file_type_or_the_type_with_most_bytes(
    tmp_path: Path, file_type: int | None, expected: str
) -> None:
    def fill(writer: Any) -> None:
        if file_type is not None:
            writer.add_file_type(file_type)

    assert facts_of(tmp_path, fill).quantisation == expected


def test_vocabulary_size_without_a_token_list(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(N_EMBD)
    writer.add_vocab_size(77)
    assert read_gguf(finish(writer, 1, lambda _writer: None, path)).n_vocab == 77


# --- shards and identity -------------------------------------------------------------------------------------------


def test_any_shard_leads_to_all(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    assert len(shards) == 3
    first, *others = [read_gguf(shard) for shard in shards]
    assert others == [first, first]
    assert first.path == shards[0]
    assert first.shard_paths == tuple(shards)
    assert first.file_bytes == sum(shard.stat().st_size for shard in shards)
    assert [tensor.i_shard for tensor in first.tensors] == [0, 0, 1, 1, 2, 2]
    assert first.gguf_id == identify(shards)
    whole = read_gguf(write_model(tmp_path / "whole.gguf"))
    assert (first.layer_bytes, first.tensor_bytes) == (whole.layer_bytes, whole.tensor_bytes)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    shards[1].unlink()
    with pytest.raises(GgufError, match=r"tiny-00002-of-00003\.gguf is missing: .* 3 shards") as caught:
        read_gguf(shards[2])
    assert caught.value.hint.startswith("Download")


def test_a_renamed_or_joined_shard_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(shard.read_bytes() for shard in shards))
    with pytest.raises(GgufError, match=r"is shard 1 of 3, but its name does not end in -00001-of-00003\.gguf"):
        read_gguf(joined)


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path)
    shutil.copy(shards[1], shards[2])
    with pytest.raises(GgufError, match="named as shard 3 of 3 but says it is another"):
        read_gguf(shards[0])


def test_identity_follows_content_and_nothing_else(tmp_path: Path) -> None:
    path = write_model(tmp_path / "one.gguf")
    gguf_id = identify([path])
    assert len(gguf_id) == 32
    assert int(gguf_id, 16)
    assert identify([Path(shutil.copy(path, tmp_path / "two.gguf"))]) == gguf_id
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert identify([path]) != gguf_id


def test_identity_of_a_large_file_samples_both_ends_and_the_size(tmp_path: Path) -> None:
    path = write_model(tmp_path / "large.gguf")
    seen = set()
    for size, mark in ((200 * 2**20, 0), (200 * 2**20 + 1, 0), (200 * 2**20, -1), (200 * 2**20, -(2**20))):
        with path.open("r+b") as file:  # sparse: takes no space
            file.truncate(size)
            if mark:
                file.seek(mark, 2)
                file.write(b"x")
        seen.add(identify([path]))
    assert len(seen) == 4

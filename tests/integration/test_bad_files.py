"""What is no model, or none that this engine can run, is refused in one sentence with a documented code."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import gguf
import numpy as np
import pytest
from command_line import SHORT, InProcess, check_refused, offloadtune
from conftest import MIB

from offloadtune.store import read_journal

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 98765432\n"


@pytest.fixture(scope="session")
def bad_files(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> dict[str, Path]:
    """Files that are no model, by what they are."""
    folder = tmp_path_factory.mktemp("bad files")
    files = {
        "missing": folder / "missing.gguf",
        "folder": folder,
        "empty": folder / "empty.gguf",
        "page": folder / "page.gguf",
        "pointer": folder / "pointer.gguf",
        "cut": folder / "cut.gguf",
        "cut_header": folder / "cut header.gguf",
        "projector": folder / "mmproj.gguf",
        "noise": folder / "noise.gguf",
        "socket": folder / "socket.gguf",
        "not_text": Path(f"{folder}/\udcff.gguf"),
        "too_long": folder / ("x" * 5000),
    }
    files["empty"].write_bytes(b"")
    files["page"].write_text("<!DOCTYPE html>\n<html><title>404</title></html>", encoding="utf-8")
    files["pointer"].write_text(LFS_POINTER, encoding="utf-8")
    with smollm2_path.open("rb") as whole:
        start = whole.read(4 * MIB)
    files["cut"].write_bytes(start)
    files["cut_header"].write_bytes(start[:5000])
    files["noise"].write_bytes(bytes(range(256)) * 8)
    writer = gguf.GGUFWriter(files["projector"], "clip")
    writer.add_bool("clip.has_vision_encoder", True)  # noqa: FBT003 - its signature
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(files["socket"]))
    return files


@pytest.mark.parametrize("command", ["inspect", "sweep"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "does not exist"),
        ("folder", "is a folder, not a file"),
        ("empty", "is empty"),
        ("page", "is a web page"),
        ("pointer", "is a Git LFS pointer"),
        ("cut", f"is cut at {4 * MIB} of 98"),
        ("cut_header", "ends inside its header"),
        ("projector", "is the projector, not the model"),
        ("noise", "is not a GGUF file"),
        ("socket", "is a device or a pipe"),
        ("not_text", "does not exist"),
        ("too_long", "cannot be read: File name too long"),
    ],
)
def test_a_file_that_is_no_model(command: str, kind: str, words: str, bad_files: dict[str, Path]) -> None:
    check_refused(offloadtune(command, bad_files[kind]), 11, words)


def test_a_cut_file_is_told_with_both_sizes(bad_files: dict[str, Path], smollm2_path: Path) -> None:
    ended = offloadtune("inspect", bad_files["cut"])
    check_refused(ended, 11, f"is cut at {4 * MIB} of {smollm2_path.stat().st_size} bytes.")


def test_a_name_that_is_no_text_is_read_and_shown(tmp_path: Path, smollm2_path: Path) -> None:
    path = tmp_path / "\udcff.gguf"
    path.symlink_to(smollm2_path)
    for options in ([], ["--json"]):
        ended = offloadtune("inspect", path, *options, PYTHONIOENCODING="utf-8:strict")
        assert (ended.code, ended.err) == (0, "")
        assert "\\udcff.gguf" in ended.out


@pytest.mark.parametrize("command", ["inspect", "sweep"])
def test_a_file_without_permission(
    command: str, smollm2_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tests may run as root, who may read everything
    def refuse(path: Path, *_args: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    check_refused(in_process(command, smollm2_path), 11, f"{smollm2_path} may not be read by this user")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_for_real(tmp_path: Path) -> None:
    path = tmp_path / "locked.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    check_refused(offloadtune("inspect", path), 11, "may not be read by this user")


# --- shards --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> list[Path]:
    """SmolLM2 in three shards, its weights and tokenizer as they were."""
    folder = tmp_path_factory.mktemp("shards")
    whole = gguf.GGUFReader(smollm2_path)
    writer = gguf.GGUFWriter(folder / "x.gguf", "llama", split_max_tensors=100)
    for name, field in whole.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file(folder / "x.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("x-*-of-00003.gguf"))


@pytest.mark.parametrize("command", ["inspect", "sweep"])
@pytest.mark.parametrize(("i_given", "i_missing"), [(0, 1), (1, 0), (2, 0)])
def test_one_shard_of_several(command: str, i_given: int, i_missing: int, shards: list[Path], tmp_path: Path) -> None:
    alone = tmp_path / shards[i_given].name
    alone.symlink_to(shards[i_given])
    ended = offloadtune(command, alone)
    check_refused(ended, 11, f"{tmp_path / shards[i_missing].name} is missing: it is one of the 3 shards")
    assert "all 3 shards are needed" in ended.err


@pytest.mark.engine
def test_any_shard_of_a_whole_model_will_do(shards: list[Path], smollm2_path: Path) -> None:
    inspected = offloadtune("inspect", shards[1], "--json")
    assert inspected.code == 0, inspected.err
    facts = json.loads(inspected.out)
    assert Path(facts["path"]).name == "x-00001-of-00003.gguf"
    assert facts["n_params"] == json.loads(offloadtune("inspect", smollm2_path, "--json").out)["n_params"]
    swept = offloadtune("sweep", shards[2], *SHORT, "--budget", "15s", "--json")
    assert swept.code == 0, swept.err
    assert json.loads(swept.out)["trials"]["ok"] >= 1


# --- models that this engine cannot run, or that do not generate ---------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b"llama", b"lluma", "unknown model architecture: 'lluma'"),
        (b"smollm", b"smallm", "unknown pre-tokenizer type: 'smallm'"),
        (b"blk.29.ffn_up", b"blk.29.ffn_op", "tensor 'blk.29.ffn_up.weight' not found"),
    ],
    ids=["architecture", "tokenizer", "tensors"],
)
def test_a_model_newer_than_the_engine(before: bytes, after: bytes, told: str, home: Path, smollm2_path: Path) -> None:
    path = home / "new.gguf"
    path.write_bytes(smollm2_path.read_bytes().replace(before, after))
    ended = offloadtune("sweep", path, *SHORT)
    check_refused(ended, 3, f"This engine cannot read new.gguf, whatever the settings: {told}.")
    assert "next: try a newer engine: CMAKE_ARGS=" in ended.err
    assert sum(line.startswith("trial ") for line in ended.err.splitlines()) == 1  # not one failure after another
    (journal,) = home.glob("sweeps/*/*.jsonl")
    assert read_journal(journal).results == ()


@pytest.mark.parametrize(
    ("arch", "keys", "words"),
    [
        ("bert", {}, "is an embedding model (bert)"),
        ("qwen3", {"qwen3.pooling_type": 3}, "is an embedding model (qwen3)"),
        ("llama", {"llama.attention.causal": False}, "does not write one token after another (llama)"),
    ],
)
def test_a_model_that_does_not_generate(arch: str, keys: dict[str, object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "embed.gguf"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    writer.add_token_list(["a", "b"])
    for name, value in keys.items():
        kind = gguf.GGUFValueType.BOOL if isinstance(value, bool) else gguf.GGUFValueType.UINT32
        writer.add_key_value(name, value, kind)
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((64, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    check_refused(offloadtune("sweep", path), 11, f"embed.gguf {words}")
    assert offloadtune("inspect", path).code == 0  # what it holds can still be read

"""Files that are not what they claim: one sentence and one next step each, never another exception."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloadtune.errors import GgufError
from offloadtune.gguf import identify, read_gguf

U32, U64 = 4, 10


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def string(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", U32, value)


def array(key: str, value_type: int, length: int, content: bytes = b"") -> bytes:
    return text(key) + struct.pack("<IIQ", 9, value_type, length) + content


def tensor(name: str, shape: tuple[int, ...] = (32,), type_id: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", type_id, offset)


KEYS = (
    string("general.architecture", "llama"),
    number("llama.block_count", 1),
    number("llama.context_length", 64),
    number("llama.embedding_length", 32),
    number("llama.attention.head_count", 4),
    array("tokenizer.ggml.tokens", 8, 3, text("a") + text("bc") + text("")),
)
TENSORS = (tensor("blk.0.attn_norm.weight"), tensor("output_norm.weight", offset=128))


def build(
    *extra_keys: bytes,
    keys: tuple[bytes, ...] = KEYS,
    tensors: tuple[bytes, ...] = TENSORS,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    version: int = 3,
) -> bytes:
    """A file, byte by byte; the counts may lie."""
    keys = keys + extra_keys
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys + tensors)
    return header + b"\0" * (-len(header) % 32 + 256)


def without(key: str) -> tuple[bytes, ...]:
    return tuple(entry for entry in KEYS if key.encode() not in entry)


def refusal(path: Path) -> GgufError:
    with pytest.raises(GgufError) as caught:
        read_gguf(path)
    check_form(caught.value)
    return caught.value


def check_form(error: GgufError) -> None:
    sentence = str(error)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 500
    assert re.match(r"(Check|Choose|Convert|Download|Give|Name|Rename|Resume|Run|Update)\b.*\.\Z", error.hint)


def test_the_plain_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    path.write_bytes(build())
    facts = read_gguf(path)
    assert (facts.n_layer, facts.n_vocab, facts.tensor_bytes) == (1, 3, 256)


def test_version_2_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    path.write_bytes(build(version=2))
    assert read_gguf(path).version == 2


NOT_GGUF = {
    "empty": (b"", "is empty"),
    "html": (b"\n<!DOCTYPE html><html><head>", "is a web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:12", "is a Git LFS pointer"),
    "zeros": (bytes(4096), "starts with nothing but zeros"),
    "zip": (b"PK\x03\x04 and more", r"not a GGUF file: it starts with b'PK\\x03\\x04 and' instead of b'GGUF'"),
    "magic alone": (b"GGUF", "cut short: it ends inside its header, after 4 bytes"),
    "version 1": (build(version=1), "is GGUF version 1; versions 2 and 3 can be read"),
    "version 0": (build(version=0), "is GGUF version 0"),
    "version 9": (build(version=9), "is GGUF version 9"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 2, 5) + bytes(64), "is a big-endian GGUF file"),
}

NOT_THE_MODEL = {
    "clip": (build(keys=(string("general.architecture", "clip"),)), "is the projector, not the model"),
    "mmproj": (build(string("general.type", "mmproj")), "is the projector, not the model"),
    "adapter": (build(string("general.type", "adapter")), "is a LoRA adapter, not the model"),
    "imatrix": (build(keys=(string("general.type", "imatrix"),)), "is an importance matrix, not the model"),
    "vocabulary": (build(tensors=()), "holds no block of a model"),
    "no blocks": (build(tensors=(tensor("output_norm.weight"),)), "holds no block of a model"),
    "no block count": (build(keys=without("block_count")), "holds no block of a model"),
    "no architecture": (build(keys=without("general.architecture")), "does not name its architecture"),
    "no context": (build(keys=without("context_length")), "lacks the key 'llama.context_length'"),
    "no vocabulary": (build(keys=without("tokenizer")), "lacks the key 'llama.vocab_size'"),
}

LIES = {
    "tensor count": (build(n_tensors=2**40), "claims to hold 1099511627776 tensors"),
    "key count": (build(n_keys=2**63), "claims to hold 9223372036854775808 key-values"),
    "one tensor too many": (build(n_tensors=20), "damaged|cut short"),
    "key length": (build(struct.pack("<Q", 2**62)), "a key in it has a name of 4611686018427387904 bytes"),
    "empty key": (build(number("", 1)), "a key in it has a name of 0 bytes"),
    "key twice": (build(KEYS[1]), "its key 'llama.block_count' occurs twice"),
    "string length": (build(text("s") + struct.pack("<IQ", 8, 2**63)), "its header would be longer than"),
    "string beyond": (build(text("s") + struct.pack("<IQ", 8, 10**6)), "ends inside its header"),
    "array length": (build(array("a", 5, 2**61)), "its header would be longer than"),
    "array beyond": (build(array("a", 5, 10**6)), "ends inside its header"),
    "string array length": (build(array("a", 8, 2**64 - 1)), "its header would be longer than"),
    "string in array": (build(array("a", 8, 2, struct.pack("<Q", 2**64 - 1))), "its header would be longer than"),
    "string in array beyond": (build(array("a", 8, 2, struct.pack("<Q", 10**6))), "ends inside its header"),
    "value type": (build(text("s") + struct.pack("<I", 99)), "its key 's' has the unknown value type 99"),
    "nested array": (build(array("a", 9, 1)), "its array 'a' has the unknown value type 9"),
    "alignment 0": (build(number("general.alignment", 0)), "general.alignment is 0, which is not a power of two"),
    "alignment 24": (build(number("general.alignment", 24)), "not a power of two"),
    "alignment text": (build(string("general.alignment", "x")), "not a power of two"),
    "negative dimension": (build(tensors=(tensor("t", (2**64 - 32,)),)), "'t' has the impossible shape"),
    "overflowing shape": (build(tensors=(tensor("t", (2**40, 2**40)),)), "'t' has the impossible shape"),
    "five dimensions": (build(tensors=(tensor("t", (1, 1, 1, 1, 1)),)), "'t' has 5 dimensions"),
    "half a block": (build(tensors=(tensor("t", (31,), type_id=2),)), "'t' has rows of 31, not whole blocks of Q4_0"),
    "unknown type": (build(tensors=(tensor("t", type_id=77),)), "tensor 't' of the unknown ggml type 77"),
    "removed type": (build(tensors=(tensor("t", type_id=4),)), "tensor 't' of the unknown ggml type 4"),
    "tensor twice": (build(tensors=(TENSORS[0], TENSORS[0])), "its tensor 'blk.0.attn_norm.weight' occurs twice"),
    "same offset": (build(tensors=(TENSORS[0], tensor("t"))), "its tensor 't' is at offset 0 instead of 128"),
    "offset far out": (
        build(tensors=(tensor("t", offset=2**63),)),
        "'t' is at offset 9223372036854775808 instead of 0",
    ),
    "long tensor name": (build(tensors=(tensor("t" * 64),)), "a tensor in it has a name of 64 bytes"),
    "size": (build(tensors=(tensor("t", (2**60,)),)), r"is cut at \d+ of 46116860184273\d+ bytes"),
    "block beyond": (build(tensors=(tensor("blk.7.x"),)), r"its tensor 'blk.7.x' lies beyond its 1 block\."),
    "too many blocks": (
        build(number("llama.block_count", 10**9), keys=without("block_count")),
        "claims 1000000000 blocks, and llama.cpp takes at most 512",
    ),
    "prediction blocks": (build(number("llama.nextn_predict_layers", 3)), "claims 3 prediction blocks among 1 blocks"),
    "count is text": (
        build(string("llama.context_length", "x" * 9999), keys=without("context_length")),
        r"its 'llama.context_length' is 'x+\.\.\., which is not a count",
    ),
    "heads of another model": (
        build(array("llama.attention.head_count_kv", U64, 2, bytes(16))),
        r"its 'llama.attention.head_count_kv' is \(0, 0\), not one count for each of 1 blocks",
    ),
}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(content, sentence, id=name)
        for cases in (NOT_GGUF, NOT_THE_MODEL, LIES)
        for name, (content, sentence) in cases.items()
    ],
)
def test_bad_content_is_one_clear_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    error = refusal(path)
    assert str(error).startswith(str(path))
    assert re.search(sentence, str(error))


def test_header_longer_than_any_real_one_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "endless.gguf"
    path.write_bytes(build(array("a", 8, 2**28)))
    os.truncate(path, 2**40)  # sparse: takes no space
    assert "its header would be longer than" in str(refusal(path))


def test_truncated_data_says_how_much_is_there(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    whole = build()
    path.write_bytes(whole[:-1])
    assert f"is cut at {len(whole) - 1} of {len(whole)} bytes" in str(refusal(path))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    whole = build()
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        assert re.search("is empty|cut short|is not a GGUF|is cut at", str(refusal(path)))


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    assert "does not exist" in str(refusal(tmp_path / "absent.gguf"))
    assert "is a folder" in str(refusal(tmp_path))
    assert "is a device or a pipe" in str(refusal(pipe))
    assert "cannot be read" in str(refusal(tmp_path / "nul\0.gguf"))
    assert "cannot be read: File name too long" in str(refusal(tmp_path / ("n" * 300)))
    with pytest.raises(GgufError, match="does not exist"):
        identify([tmp_path / "absent.gguf"])


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(build())

    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "may not be read by this user" in str(refusal(path))


# --- never anything but GgufError ----------------------------------------------------------------------------------


def read_or_refuse(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        read_gguf(path)
    except GgufError as error:
        check_form(error)


FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(content=st.binary(max_size=400), has_magic=st.booleans())
def test_arbitrary_bytes(tmp_path: Path, content: bytes, *, has_magic: bool) -> None:
    start = b"GGUF" + struct.pack("<I", 3) if has_magic else b""
    read_or_refuse(tmp_path / "fuzz.gguf", start + content)


@FUZZ
@given(data=st.data())
def test_mutated_files(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(build(number("split.count", 1), array("llama.attention.head_count_kv", U32, 1, bytes(4))))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        content[start : start + len(patch)] = patch
    n_bytes = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    read_or_refuse(tmp_path / "fuzz.gguf", bytes(content[:n_bytes]))


@FUZZ
@given(
    swa=st.integers(0, 2**32 - 1),
    pattern=st.integers(0, 2**32 - 1),
    n_heads=st.integers(0, 2**32 - 1),
    arch=st.sampled_from(["llama", "gemma3", "llama4", "deepseek4"]),
)
def test_any_number_in_any_key(tmp_path: Path, swa: int, pattern: int, n_heads: int, arch: str) -> None:
    keys = (
        string("general.architecture", arch),
        *(number(f"{arch}.{key}", 1) for key in ("block_count", "context_length", "embedding_length", "vocab_size")),
        number(f"{arch}.attention.sliding_window", swa),
        number(f"{arch}.attention.sliding_window_pattern", pattern),
        number(f"{arch}.attention.head_count", n_heads),
    )
    read_or_refuse(tmp_path / "fuzz.gguf", build(keys=keys))

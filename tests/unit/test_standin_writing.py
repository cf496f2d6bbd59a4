"""A stand-in on its way to the disk: whole or not at all, the same again, never over a real file, and marked."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from golden import check_golden
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from offloadtune.cli import app
from offloadtune.errors import BusyError, ExportError, GgufError, OffloadTuneError, UnknownNameError, UsageError
from offloadtune.gguf import read_gguf, standin
from offloadtune.gguf.header import read_header
from offloadtune.gguf.standin import writing
from offloadtune.gguf.standin.encoding import encoded, header
from offloadtune.gguf.standin.writing import START_BYTES, is_marked
from offloadtune.gguf.tables import STANDIN_KEY
from offloadtune.pipeline import StandinRequest, plan, write_standin
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.pipeline.standing_in import is_current, leftover_bytes, refuse_unpublished
from offloadtune.plans import PlanRequest
from offloadtune.records import StandsFor
from offloadtune.report import inspect_view, standin_json, standin_view

REQUEST = StandinRequest(source="smollm2-135m", quant="Q4_K_M", n_layer=2, output=Path("a.gguf"))
TENSORS = (
    ("blk.0.attn_norm.weight", "F32", (64,)),
    ("blk.0.attn_q.weight", "F16", (64, 64)),
    ("blk.0.ssm_a", "F32", (16,)),
    ("blk.0.ffn_gate_inp.scale", "F32", (64,)),
    ("blk.0.attn_q.bias", "F32", (64,)),
    ("odd.weight", "Q8_0", (32, 3)),
)
PARTS = standin.Parts(key_values={"general.architecture": encoded("llama")}, tensors=TENSORS)
MARKED = standin.marked(PARTS, {STANDIN_KEY: True})


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def rows(path: Path, name: str) -> Any:
    header = read_header(path)
    tensor = next(one for one in header.tensors if one.name == name)
    start = header.header_bytes + tensor.offset
    kind = {"F32": np.float32, "F16": np.float16}[tensor.type_name]
    return np.frombuffer(path.read_bytes()[start : start + tensor.n_bytes], dtype=kind)


def test_each_tensor_has_values_of_its_own_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    standin.write(path, PARTS, 1)
    assert np.median(rows(path, "blk.0.attn_norm.weight")) == pytest.approx(1, abs=0.3)
    assert rows(path, "blk.0.attn_q.weight").astype(float).std() == pytest.approx(1 / 8, rel=0.1)
    assert (rows(path, "blk.0.ssm_a") < 0).all()
    assert (rows(path, "blk.0.ffn_gate_inp.scale") == 1).all()
    assert 0 < rows(path, "blk.0.attn_q.bias").std() < 0.2
    assert path.stat().st_size % 32 == 0


def test_large_tensors_are_random_all_along(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    standin.write(path, standin.Parts(key_values={}, tensors=(("a.weight", "F32", (1024, 8192)),)), 1)
    values = rows(path, "a.weight").reshape(8192, 1024)
    assert (np.abs(values).max(axis=1) > 1 / 64).all()
    assert len(np.unique(values[:, 0])) > 1000


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = tmp_path / "a.gguf"
    standin.write(path, PARTS, 1, progress=lambda n_done, n_all: told.append((n_done, n_all)))
    assert told[-1] == (path.stat().st_size,) * 2
    assert told == sorted(told)


def test_the_same_seed_makes_the_same_file_and_another_does_not() -> None:
    ids = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        request = dataclasses.replace(REQUEST, output=Path(f"{name}.gguf"), seed=seed)
        ids[name] = write_standin(request).gguf_id
    assert ids["a"] == ids["b"] != ids["c"]


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device")])
def test_what_ends_the_writing_leaves_nothing_behind(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gguf"
    path.write_text("before")

    def fail(*_: object) -> None:
        assert (tmp_path / "a.gguf.partial").exists()
        raise error

    monkeypatch.setattr(writing, "random_blocks", fail)
    with pytest.raises((KeyboardInterrupt, MemoryError, ExportError)):
        standin.write(path, PARTS, 1)
    assert [one.name for one in tmp_path.iterdir()] == ["a.gguf"]
    assert path.read_text() == "before"


def test_a_check_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def check(path: Path) -> None:
        assert read_header(path).tensors[-1].name == "odd.weight"
        raise UsageError("No.", hint="do not")

    with pytest.raises(UsageError):
        standin.write(tmp_path / "a.gguf", PARTS, 1, check)
    assert list(tmp_path.iterdir()) == []


def left_by_a_kill(path: Path, n_bytes: int) -> bytes:
    """As much of a stand-in as was written of it, as PATH.partial."""
    standin.write(path, MARKED, 1)
    left = path.read_bytes()[:n_bytes]
    path.replace(path.with_name(f"{path.name}.partial")).write_bytes(left)
    return left


@pytest.mark.parametrize("n_bytes", [0, 4096, 1 << 20])
def test_what_a_kill_left_is_taken_over(n_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    left_by_a_kill(path, n_bytes)
    standin.write(path, PARTS, 2)
    assert [one.name for one in tmp_path.iterdir()] == ["a.gguf"]
    assert len(read_header(path).tensors) == len(TENSORS)


def test_what_a_kill_left_does_not_fill_the_disk_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    n_bytes = len(left_by_a_kill(path, 1 << 20))

    def usage(_: Path) -> Usage:
        return Usage(1 << 40, 0, (64 << 20) + n_bytes - (tmp_path / "a.gguf.partial").stat().st_size)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    standin.write(path, MARKED, 1)
    assert path.exists()


def test_the_bytes_that_a_kill_left_are_those_on_the_disk(tmp_path: Path) -> None:
    path, partial = tmp_path / "a.gguf", tmp_path / "a.gguf.partial"
    assert leftover_bytes(path) == 0
    left_by_a_kill(path, 4096)
    os.truncate(partial, 1 << 40)  # as large as all of it will be, most of it a hole
    assert 0 < leftover_bytes(path) < 1 << 30
    partial.write_bytes(b"GGUF" + bytes(1 << 16))
    assert leftover_bytes(path) == 0


@pytest.mark.parametrize("content", [b"GGUF\3\0\0\0", b"GGUF" + bytes(1 << 16), b"x", bytes(4096)])
def test_the_unfinished_download_of_another_stays(content: bytes, tmp_path: Path) -> None:
    path, partial = tmp_path / "a.gguf", tmp_path / "a.gguf.partial"
    partial.write_bytes(content)
    with pytest.raises(
        ExportError, match=r"a\.gguf\.partial is in the way, and seems to be another program's"
    ) as caught:
        standin.write(path, MARKED, 1)
    assert caught.value.hint
    assert partial.read_bytes() == content
    assert not path.exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_in_the_way_is_named(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "a.gguf.partial")
    with pytest.raises(ExportError, match=r"a\.gguf\.partial is not a plain file"):
        standin.write(tmp_path / "a.gguf", PARTS, 1)
    assert leftover_bytes(tmp_path / "a.gguf") == 0


@pytest.mark.parametrize("system", ["posix", "windows"])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_an_open_file_is_moved_or_removed_only_where_a_lock_is_held(
    system: str, error: BaseException | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gguf"
    was_open: list[bool] = []

    def watched(does: Any) -> Any:
        def call(partial: Path, *arguments: Any, **options: Any) -> Any:
            was_open.append(str(partial.resolve()) in {one.path for one in psutil.Process().open_files()})
            return does(partial, *arguments, **options)

        return call

    def end(_: Path) -> None:
        if error:
            raise error

    if system == "windows":
        monkeypatch.setattr(writing, "fcntl", None)
    monkeypatch.setattr(Path, "replace", watched(Path.replace))
    monkeypatch.setattr(Path, "unlink", watched(Path.unlink))
    with pytest.raises(KeyboardInterrupt) if error else contextlib.nullcontext():
        standin.write(path, PARTS, 1, end)
    assert was_open == [system == "posix"]
    assert [one.name for one in tmp_path.iterdir()] == ([] if error else ["a.gguf"])


def test_two_do_not_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"

    def write_another(_: Path) -> None:
        with pytest.raises(BusyError, match=r"a\.gguf\.partial is being written by another process"):
            standin.write(path, PARTS, 2)

    standin.write(path, PARTS, 1, write_another)
    assert len(read_header(path).tensors) == len(TENSORS)


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 3 << 30))
    request = StandinRequest(source="llama-3-70b", quant="Q4_K_M", output=tmp_path / "a.gguf")
    words = r"a\.gguf needs 39\.\d+ GiB, with 64\.0 MiB to spare, and its disk has 3\.0+ GiB free"
    with pytest.raises(ExportError, match=words):
        write_standin(request)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"output": Path("none/a.gguf")}, ExportError, "none/a.gguf cannot be written: No such file"),
        ({"output": Path()}, UsageError, r"\. is a folder"),
        ({"output": Path("/dev/null"), "may_replace": True}, ExportError, "/dev/null is not a plain file"),
        ({"output": Path("a" * 300)}, ExportError, "aaa cannot be written: File name too long"),
        ({"output": Path("a" * 250)}, ExportError, "aaa cannot be written: File name too long"),
        ({"output": Path("/dev/null/a.gguf")}, ExportError, "a.gguf cannot be written: Not a directory"),
        ({"quant": None}, UsageError, "Which quantisation of smollm2-135m is not said"),
        ({"quant": "Q4_K_XXL"}, UsageError, "no quantisation called 'Q4_K_XXL'"),
        ({"quant": "UD-Q4_K_XL"}, UsageError, "UD-Q4_K_XL follows no published rule"),
        ({"source": "smollm9"}, UsageError, "no model called 'smollm9'"),
        ({"n_layer": 31}, UsageError, "1 to 30 layers, not 31"),
        ({"seed": -1}, UsageError, "--seed -1 is out of range"),
        ({"source": Path("none.gguf"), "quant": None}, GgufError, "none.gguf does not exist"),
        ({"source": Path("none.gguf")}, UsageError, "--quant does not go with a file"),
        ({"vocab_from": Path("none.gguf")}, GgufError, "none.gguf does not exist"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    changes: dict[str, Any], error: type[OffloadTuneError], words: str, home: Path
) -> None:
    with pytest.raises(error, match=words) as caught:
        write_standin(dataclasses.replace(REQUEST, **changes))
    assert caught.value.hint
    assert not list(home.glob("*.gguf*"))


def test_a_file_is_replaced_only_when_that_was_said_and_a_real_one_never(smollm2_path: Path) -> None:
    path = Path("a.gguf")
    path.write_text("something else")
    with pytest.raises(UsageError, match=r"a\.gguf exists already"):
        write_standin(REQUEST)
    write_standin(dataclasses.replace(REQUEST, may_replace=True))
    write_standin(dataclasses.replace(REQUEST, may_replace=True))
    shutil.copy(smollm2_path, "real.gguf")
    before = Path("real.gguf").read_bytes()
    with pytest.raises(UsageError, match=r"real\.gguf is a real GGUF file and stays as it is"):
        write_standin(dataclasses.replace(REQUEST, output=Path("real.gguf"), may_replace=True))
    assert Path("real.gguf").read_bytes() == before


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def of_version_4(content: bytes) -> bytes:
    return content[:4] + struct.pack("<I", 4) + content[8:]


@pytest.mark.parametrize(
    "change",
    [
        cut,
        of_version_4,
        lambda content: content[:4],
        lambda _: header({"general.type": encoded("adapter")}, ()),
        lambda _: header({"general.architecture": encoded("clip")}, ()),
        lambda _: header({"general.architecture": encoded("llama"), "split.count": encoded(2)}, ()),
        lambda _: header({STANDIN_KEY: encoded(value=False)}, ()),
    ],
)
def test_a_gguf_that_is_no_whole_model_stays_too(change: Any, smollm2_path: Path) -> None:
    path = Path("real.gguf")
    path.write_bytes(change(smollm2_path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"real\.gguf is a real GGUF file and stays as it is"):
        write_standin(dataclasses.replace(REQUEST, output=path, may_replace=True))
    assert path.read_bytes() == before


def test_a_stand_in_is_known_by_its_beginning_and_by_a_mark_further_on() -> None:
    path = write_standin(REQUEST).path
    whole = path.read_bytes()
    assert is_marked(whole[:START_BYTES])
    assert not is_marked(whole[: START_BYTES - 1])
    path.write_bytes(cut(whole))
    write_standin(dataclasses.replace(REQUEST, may_replace=True))
    sizes = {"llama.block_count": 1, "llama.embedding_length": 64, "llama.context_length": 512, "llama.vocab_size": 3}
    keys = {"general.architecture": "llama", **sizes, STANDIN_KEY: True}
    head = header({key: encoded(keys[key]) for key in keys}, TENSORS[:1])
    path.write_bytes(head + bytes(256))
    write_standin(dataclasses.replace(REQUEST, may_replace=True))
    assert path.read_bytes() == whole


# --- what a sweep asks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quant", "n_layer"), [("Q4_K_M", 2), ("Q4_K_M", 5), ("Q8_0", 30)])
def test_what_was_just_written_is_current(quant: str, n_layer: int) -> None:
    whole = facts_of_shape("smollm2-135m", quant)
    facts = write_standin(dataclasses.replace(REQUEST, quant=quant, n_layer=n_layer))
    assert is_current(facts, whole, n_layer)


def test_what_would_be_written_otherwise_now_is_not_current(smollm2_path: Path) -> None:
    whole = facts_of_shape("smollm2-135m", "Q4_K_M")
    facts = write_standin(REQUEST)
    seeded = write_standin(dataclasses.replace(REQUEST, output=Path("b.gguf"), seed=1))
    unseeded = tuple((key, value) for key, value in facts.key_values if not key.endswith(".seed"))
    (name, n_bytes), *others = facts.type_bytes
    real = StandsFor(label="another", quantisation="Q4_K_M", n_layer=30)
    for other in (
        seeded,
        read_gguf(smollm2_path),
        dataclasses.replace(facts, key_values=unseeded),
        dataclasses.replace(facts, stands_for=real),
        dataclasses.replace(facts, type_bytes=((name, n_bytes + 1), *others)),
        dataclasses.replace(facts, layer_bytes=(facts.layer_bytes[0] + 1, *facts.layer_bytes[1:])),
        dataclasses.replace(facts, n_swa=7),
    ):
        assert not is_current(other, whole, 2)
    assert not is_current(facts, whole, 3)
    with pytest.raises(UsageError):
        is_current(facts, whole, 31)


def test_a_mixture_without_a_rule_is_refused_by_name() -> None:
    refuse_unpublished("q4_k_m")
    with pytest.raises(UsageError, match="UD-Q4_K_XL follows no published rule"):
        refuse_unpublished("UD-Q4_K_XL")
    with pytest.raises(UnknownNameError):
        refuse_unpublished("Q4_K_XXL")


def test_a_folder_of_the_model_s_name_is_not_taken_for_a_file(home: Path) -> None:
    Path("smollm2-135m").mkdir()
    command = ["standin", "smollm2-135m", "--quant", "Q4_K_M", "--layers", "2", "-o", "a.gguf"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert read_gguf(home / "a.gguf").n_layer == 2


# --- what it says of itself ----------------------------------------------------------------------------------------


def test_it_says_what_it_is_wherever_it_is_shown(smollm2_path: Path) -> None:
    facts = write_standin(dataclasses.replace(REQUEST, vocab_from=smollm2_path, seed=7))
    assert facts.stands_for == StandsFor(label="SmolLM2-135M", quantisation="Q4_K_M", n_layer=30)
    assert facts.name == "SmolLM2-135M (stand-in: random weights)"
    assert dict(facts.key_values)["offloadtune.standin.seed"] == 7
    words = "stand-in for SmolLM2-135M Q4_K_M, 2 of its 30 layers, with random weights"
    assert facts.standin_words == words
    assert words in screen(inspect_view(facts, None))
    assert f"The file is a {words}." in plan(PlanRequest(path=facts.path)).plan.warnings
    assert standin_json(facts)["stands_for"] == {"label": "SmolLM2-135M", "quantisation": "Q4_K_M", "n_layer": 30}
    check_golden("report/standin.txt", screen(standin_view(facts)))


def test_a_real_header_makes_a_stand_in_and_a_stand_in_does_not(gemma3_path: Path) -> None:
    real = read_gguf(gemma3_path)
    request = StandinRequest(source=gemma3_path, n_layer=6, output=Path("a.gguf"))
    facts = write_standin(request)
    assert facts.stands_for == StandsFor(label=real.name or "", quantisation="Q4_K_M", n_layer=18)
    assert (facts.n_layer, facts.n_vocab, facts.is_swa) == (6, real.n_vocab, real.is_swa[:6])
    with pytest.raises(UsageError, match=r"a\.gguf is a stand-in itself"):
        write_standin(dataclasses.replace(request, source=facts.path, output=Path("b.gguf")))


@pytest.mark.parametrize(
    ("marks", "stands_for"),
    [
        ({"offloadtune.standin": True}, StandsFor(label="unknown", quantisation="unknown", n_layer=1)),
        ({"offloadtune.standin": False, "offloadtune.standin.of": "x"}, None),
        ({"offloadtune.standin": "yes"}, None),
        (
            {"offloadtune.standin": True, "offloadtune.standin.of": 7, "offloadtune.standin.n_layer": "x"},
            StandsFor(label="unknown", quantisation="unknown", n_layer=1),
        ),
    ],
)
def test_marks_that_lie_are_read_as_far_as_they_make_sense(marks: dict[str, Any], stands_for: StandsFor | None) -> None:
    sizes = {"llama.block_count": 1, "llama.embedding_length": 64, "llama.context_length": 512, "llama.vocab_size": 3}
    keys = {"general.architecture": "llama", **sizes, **marks}
    path = Path("a.gguf")
    standin.write(path, standin.Parts(key_values={key: encoded(keys[key]) for key in keys}, tensors=TENSORS), 1)
    assert read_gguf(path).stands_for == stands_for


def screen(view: RenderableType) -> str:
    """`view` as a terminal shows it, without its colours."""
    stream = io.StringIO()
    console = Console(file=stream, width=120, highlight=False, markup=False, emoji=False, color_system=None)
    console.print(view, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())

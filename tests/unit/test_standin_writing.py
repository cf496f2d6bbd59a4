"""A stand-in on its way to the disk: whole or not at all, the same again, never over a real file, and marked."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from golden import check_golden
from rich.console import Console, RenderableType

from offloadtune.errors import BusyError, ExportError, GgufError, OffloadTuneError, UsageError
from offloadtune.gguf import read_gguf, standin
from offloadtune.gguf.header import read_header
from offloadtune.gguf.standin import writing
from offloadtune.gguf.standin.encoding import encoded
from offloadtune.pipeline import StandinRequest, plan, write_standin
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


def test_what_a_kill_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    (tmp_path / "a.gguf.partial").write_bytes(bytes(1 << 20))
    standin.write(path, PARTS, 1)
    assert [one.name for one in tmp_path.iterdir()] == ["a.gguf"]
    assert len(read_header(path).tensors) == len(TENSORS)


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
    with pytest.raises(ExportError, match=r"a\.gguf needs 39\.\d+ GiB, and its disk has 3\.0+ GiB free"):
        write_standin(request)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"output": Path("none/a.gguf")}, ExportError, "none/a.gguf cannot be written: No such file"),
        ({"output": Path()}, UsageError, r"\. is a folder"),
        ({"output": Path("/dev/null"), "may_replace": True}, ExportError, "/dev/null is not a plain file"),
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

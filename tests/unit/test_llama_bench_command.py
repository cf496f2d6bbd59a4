"""`bench FILE --llama-bench` and `history --rows` through the real command line, with figures that are made up."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from command_line import InProcess, check_refused
from golden import FOLDER
from sample_records import ENGINE, FACTS

from offloadtune.engine import RulerFailedError, RulerRep, RulerTest
from offloadtune.errors import NothingWorksError, StoreError, UsageError
from offloadtune.logs import read_rows
from offloadtune.pipeline import import_rows
from offloadtune.pipeline import rows as pipeline_rows
from offloadtune.records import Evidence, Outcome, Settings, StandsFor
from offloadtune.rows import FIELDS, ROW_FORMATS, STANDS_FOR

REAL = json.loads((FOLDER / "llama_bench" / "real.json").read_text(encoding="utf-8"))
DESCRIBED = ("cpu_info", "gpu_info", "backends", "model_type", "model_size", "model_n_params")
MEASURED = {"test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"}


class MadeUpRunner:
    """A runner for which some numbers of layers are out of memory."""

    asked: ClassVar[list[tuple[Settings, RulerTest]]] = []
    too_many: ClassVar[int] = 99
    interrupted_at: ClassVar[int] = -1

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_args: object) -> None:
        pass

    def kill(self) -> None:
        pass

    def describe(self) -> tuple[Any, Any]:
        return ENGINE, ()

    def ruler(self, settings: Settings, test: RulerTest, n_reps: int, *, timeout_s: float) -> Iterator[RulerRep]:
        assert timeout_s > 0
        if len(self.asked) == self.interrupted_at:
            raise KeyboardInterrupt
        self.asked.append((settings, test))
        if settings.n_gpu_layers >= self.too_many:
            raise RulerFailedError(Outcome.OUT_OF_MEMORY_DEVICE, "out of memory", Evidence(phase="load"))
        yield RulerRep(ns=9, is_warmup=True, described={name: REAL[0][name] for name in DESCRIBED})
        yield from (RulerRep(ns=10**9, is_warmup=False) for _ in range(n_reps))


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, RulerTest]]:
    monkeypatch.setattr(MadeUpRunner, "asked", [])
    monkeypatch.setattr(pipeline_rows, "RowsRunner", MadeUpRunner)
    monkeypatch.setattr(pipeline_rows, "read_gguf", lambda _path: FACTS)
    return MadeUpRunner.asked


def bench(in_process: InProcess, *words: str) -> Any:
    return in_process("bench", "./m.gguf", "--llama-bench", *words)


def printed(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_every_option_reaches_the_engine(in_process: InProcess, asked: list[tuple[Settings, RulerTest]]) -> None:
    words = "-p 8 -n 4 -pg 4,2 -d 0,16 -b 64 -ub 32 -ctk q8_0 -ctv f16 -t 3 -ngl -1,0,8 -ncmoe 1 -fa -1,0"
    ended = bench(in_process, *words.split(), "--repack", "0", "-r", "2", "-o", "jsonl")
    assert ended.code == 0, ended.err
    assert len(printed(ended.out)) == len(asked) == 3 * 2 * 6
    assert [(test.n_prompt, test.n_gen, test.n_depth) for _, test in asked[:6]] == [
        *((8, 0, 0), (0, 4, 0), (4, 2, 0)),
        *((8, 0, 16), (0, 4, 16), (4, 2, 16)),
    ]
    loads = [(settings.n_gpu_layers, settings.flash_attn_type) for settings, _ in asked[::6]]
    assert loads == [(n, flash) for n in (-1, 0, 8) for flash in ("auto", "disabled")]
    settings = asked[0][0]
    assert (settings.n_batch, settings.n_ubatch, settings.n_threads, settings.n_cpu_moe) == (64, 32, 3, 1)
    assert (settings.type_k, settings.type_v, settings.use_extra_bufts) == ("q8_0", "f16", False)
    assert {len(row["samples_ns"]) for row in printed(ended.out)} == {2}


def test_shares_of_devices_are_as_llama_bench_takes_and_prints_them(
    in_process: InProcess, asked: list[tuple[Settings, RulerTest]]
) -> None:
    """Slashes or semicolons part shares, commas the values of a list; all 0 leaves it to the engine."""
    ended = bench(in_process, "-ts", "3/1,0/1,0,1;2;0", "--repack", "0,1", "-p", "8", "-n", "0", "-o", "jsonl")
    assert ended.code == 0, ended.err
    assert [settings.tensor_split for settings, _ in asked[::2]] == [(3, 1), (0, 1), None, (1, 2, 0)]
    assert [row["tensor_split"] for row in printed(ended.out)[::2]] == ["3.00/1.00", "0.00/1.00", "0.00", "1.00/2.00"]
    assert [row["repack"] for row in printed(ended.out)] == [False, True] * 4
    table = bench(in_process, "-ts", "3/1", "-p", "8", "-n", "0").out
    assert "| ts           |" in table
    assert "| 3.00/1.00    |" in table


def test_shares_of_devices_are_imported(in_process: InProcess, tmp_path: Path) -> None:
    rows = bench(in_process, "-ts", "3/1", "-p", "8", "-n", "0", "-o", "jsonl").out
    path = tmp_path / "rows.jsonl"
    path.write_text(rows, encoding="utf-8")
    (row,) = import_rows(path).rows
    assert row.fields["tensor_split"] == "3.00/1.00"


def test_names_order_types_and_what_is_fixed_are_the_real_tools(in_process: InProcess) -> None:
    words = ["-p", "32", "-n", "8", "-pg", "16,4", "-t", "2", "-r", str(len(REAL[0]["samples_ns"])), "-o", "json"]
    path = Path(REAL[0]["model_filename"])  # below the working folder, which is the test's own
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    ours = json.loads(in_process("bench", str(path), "--llama-bench", *words).out)
    for our_row, their_row in zip(ours, REAL, strict=False):
        assert list(our_row) == list(their_row)
        assert {name: type(our_row[name]) for name in FIELDS} == {name: type(their_row[name]) for name in FIELDS}
        assert {n: v for n, v in our_row.items() if n not in MEASURED} == {
            n: v for n, v in their_row.items() if n not in MEASURED
        }


@pytest.fixture
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StandsFor(label="Llama-3|8B\x1b[2J", quantisation="Q4_K_M", n_layer=FACTS.n_layer)
    monkeypatch.setattr(pipeline_rows, "read_gguf", lambda _path: dataclasses.replace(FACTS, stands_for=real))


STANDIN_WORDS = "stand-in for Llama-3|8B[2J Q4_K_M, with random weights"
STANDIN_TYPE = f"{REAL[0]['model_type']}, stand-in"


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("text_format", ["md", "csv", "sql", "json", "jsonl"])
def test_rows_of_a_stand_in_say_so_in_every_form(in_process: InProcess, tmp_path: Path, text_format: str) -> None:
    ended = bench(in_process, "-p", "8,9", "-n", "0", "-o", text_format)
    assert ended.err.splitlines()[0].startswith(f"Warning: {FACTS.path.name} is a {STANDIN_WORDS}: it says nothing")
    assert ended.err.count("stand-in") == 1
    assert in_process("history", "--rows", text_format).out.endswith(ended.out)
    assert ended.out.count(STANDIN_TYPE) == 2
    if text_format == "md":
        above, _, head = ended.out.splitlines()[:3]
        assert above == f"{STANDIN_WORDS}: says nothing of text quality, draft models or a trained router"
        assert head.startswith("| model")
        return
    path = tmp_path / "rows"
    path.write_text(ended.out, encoding="utf-8")
    rows = read_rows(path).rows
    assert [list(row.fields) for row in rows] == [list(FIELDS)] * 2
    assert {row.fields["model_type"] for row in rows} == {STANDIN_TYPE}
    is_kept = text_format == "jsonl"
    assert {row.extra.get(STANDS_FOR) for row in rows} == {STANDIN_WORDS if is_kept else None}


def test_rows_of_a_real_file_have_no_mark(in_process: InProcess) -> None:
    for text_format in ROW_FORMATS:
        ended = bench(in_process, "-p", "8", "-n", "0", "-o", text_format)
        assert ended.code == 0
        assert "stand" not in ended.out + ended.err


@pytest.mark.usefixtures("_stand_in")
def test_imported_rows_of_a_stand_in_keep_the_mark(in_process: InProcess, tmp_path: Path) -> None:
    ended = bench(in_process, "-p", "8", "-n", "0", "-o", "jsonl")
    value = json.loads(ended.out)
    lines = [json.dumps({**value, "n_prompt": i, STANDS_FOR: words}) for i, words in enumerate(("a\nb", [1], None, ""))]
    path = tmp_path / "rows"
    path.write_text("\n".join([ended.out.strip(), *lines]), encoding="utf-8")
    assert STANDIN_TYPE in in_process("history", "--import", str(path)).out
    _, imported = in_process("history", "--rows", "md").out.split("imported:\n\n")
    above = [line.partition(": says nothing")[0] for line in imported.splitlines() if ": says nothing" in line]
    assert above == [STANDIN_WORDS, "ab", "[1]"]


def test_a_value_that_fails_keeps_no_other_from_being_measured(in_process: InProcess) -> None:
    ended = bench(in_process, "-ngl", "99,20,0", "-p", "8", "-n", "0", "-o", "jsonl")
    assert ended.code == NothingWorksError.exit_code
    assert [row["n_gpu_layers"] for row in printed(ended.out)] == [20, 0]
    assert "1 of 3 tests of" in ended.err
    ended = bench(in_process, "-ngl", "99", "-p", "8", "-n", "0")
    check_refused(
        type(ended)(ended.code, ended.out, "\n".join(ended.err.splitlines()[1:])), 3, "No test of", "out of memory"
    )


def test_what_had_finished_is_printed_however_it_ends(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeUpRunner, "interrupted_at", 1)
    ended = bench(in_process, "-p", "8,9", "-n", "0", "-o", "jsonl")
    assert (ended.code, [row["n_prompt"] for row in printed(ended.out)]) == (130, [8])
    assert "1 of 2 tests had finished" in ended.err
    monkeypatch.setattr(MadeUpRunner, "interrupted_at", -1)

    def full(*_: object) -> None:
        raise StoreError("The disk is full of something else.", hint="free some space")

    monkeypatch.setattr("offloadtune.store.append_rows", full)
    ended = bench(in_process, "-p", "8,9", "-n", "0", "-o", "jsonl")
    assert (ended.code, [row["n_prompt"] for row in printed(ended.out)]) == (StoreError.exit_code, [8])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("./m.gguf", "--llama-bench", "-ctk", "f16,foo"), "foo"),
        (("./m.gguf", "--llama-bench", "-t", "0"), "-t"),
        (("./m.gguf", "--llama-bench", "-ts", "3:1"), "-ts"),
        (("./m.gguf", "--llama-bench", "-ts", "-1/2"), "-ts"),
        (("./m.gguf", "--llama-bench", "-b", "0"), "-b"),
        (("./m.gguf", "--llama-bench", "-ub", "0"), "-ub"),
        (("./m.gguf", "--llama-bench", "-pg", f"{'9' * 5000},1"), "-pg"),
        (("./m.gguf", "--llama-bench", "-repack", "0"), "-repack"),
        (("./m.gguf", "--llama-bench", "-p"), "no value"),
        (("./m.gguf", "--llama-bench", "-p", "0", "-n", "0"), "nothing to test"),
        (("./m.gguf", "--llama-bench", "-b", "1-100", "-ub", "1-100"), "10000 runs"),
        (("./m.gguf", "--llama-bench", "--budget", "5m"), "no other of bench"),
        (("--llama-bench", "-m", "m.gguf", "-p", "512"), "FILE comes before"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_measured(
    in_process: InProcess, asked: list[tuple[Settings, RulerTest]], words: tuple[str, ...], said: str
) -> None:
    check_refused(in_process("bench", *words), UsageError.exit_code, said)
    assert asked == []


def test_the_hint_names_the_options_that_there_are(in_process: InProcess) -> None:
    hint = bench(in_process, "--no-such-option", "1").err.splitlines()[1]
    assert {"--repack", "-o", "-ngl"} <= set(hint.split())
    assert "-repack" not in hint.split()


def test_rows_have_forms_of_their_own(in_process: InProcess) -> None:
    check_refused(in_process("history", "--rows", "md", "--json"), UsageError.exit_code, "--rows")


def test_a_name_that_is_no_text_is_kept_and_printed(in_process: InProcess, home: Path) -> None:
    ended = in_process("bench", "./m\udc80.gguf", "--llama-bench", "-p", "8", "-n", "0", "-o", "jsonl")
    assert printed(ended.out)[0]["model_filename"] == "m\ufffd.gguf"
    (home / "rows").write_text(ended.out, encoding="utf-8")
    assert in_process("history", "--import", "rows").code == 0
    assert '"offloadtune_imported": true' in in_process("history", "--rows", "jsonl").out

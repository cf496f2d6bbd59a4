"""Our rows against a real engine, and, where LLAMA_BENCH names it, against the real llama-bench field by field."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, CardMaker

from offloadtune import pipeline, store
from offloadtune.cli import rows as command
from offloadtune.engine import RulerFailedError, RulerTest, Runner
from offloadtune.errors import NothingWorksError
from offloadtune.pipeline.rows import settings_of
from offloadtune.records import Outcome
from offloadtune.rows import FIELDS, BenchRow, RowsRequest

pytestmark = pytest.mark.engine

TINY = {"n_prompt": (8,), "n_gen": (3,), "n_pg": ((4, 2),), "n_depth": (0, 16), "n_reps": 2, "n_threads": 2}
UNLIKE = {"test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"}
"""What differs from run to run."""


def measure(path: Path, **changes: Any) -> tuple[BenchRow, ...]:
    return pipeline.bench_rows([RowsRequest(path=path, **{**TINY, **changes})], lambda _said: None)


def test_rows_tell_what_was_measured_and_are_kept(smollm2_path: Path, home: Path) -> None:
    rows = measure(smollm2_path)
    tests = [(row.fields["n_prompt"], row.fields["n_gen"], row.fields["n_depth"]) for row in rows]
    assert tests == [(8, 0, 0), (0, 3, 0), (4, 2, 0), (8, 0, 16), (0, 3, 16), (4, 2, 16)]
    for row in rows:
        assert list(row.fields) == list(FIELDS)
        assert (row.fields["model_size"], row.fields["model_n_params"]) == (96_576_768, 134_515_008)
        assert (row.fields["gpu_info"], row.fields["backends"]) == ("", "CPU")
        assert len(row.samples_ns) == 2
        assert row.fields["avg_ns"] == sum(row.samples_ns) // 2
        n_tokens = row.fields["n_prompt"] + row.fields["n_gen"]
        assert row.samples_ts == pytest.approx([1e9 * n_tokens / ns for ns in row.samples_ns], rel=1e-5)
        assert row.fields["avg_ts"] == pytest.approx(sum(row.samples_ts) / 2, rel=1e-5)
    assert store.read_stored_rows(home).own == rows
    assert json.loads(pipeline.stored_rows("json"))[0]["n_prompt"] == 8


def test_a_card_is_named_as_llama_bench_names_it(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 800 * MIB)
    (row,) = measure(smollm2_path, n_gen=(), n_pg=(), n_depth=(0,), endpoints=(card.endpoint,))
    assert row.fields["backends"] == "RPC"
    assert row.fields["gpu_info"]
    table = pipeline.render_rows([row], "md")
    assert "| ngl |" in table
    assert "|  -1 |" in table


def test_imported_rows_stay_apart_and_are_known_the_second_time(smollm2_path: Path, home: Path) -> None:
    rows = measure(smollm2_path, n_gen=(), n_pg=(), n_depth=(0,))
    theirs = home / "theirs.jsonl"
    theirs.write_text(pipeline.render_rows(rows, "jsonl").replace('"gpu_info": ""', '"gpu_info": "X"'), "utf-8")
    first, second = pipeline.import_rows(theirs), pipeline.import_rows(theirs)
    assert (first.is_known, second.is_known) == (False, True)
    assert first.stored_path == second.stored_path
    assert first.machine.endswith(", X")
    stored = store.read_stored_rows(home)
    assert stored.own == rows
    assert stored.imported == {first.machine: first.rows}


def test_a_failure_is_classified_and_the_next_test_runs(smollm2_path: Path) -> None:
    settings = settings_of(RowsRequest(path=smollm2_path, n_threads=2))
    test = RulerTest(n_prompt=8, n_gen=0)
    with Runner(smollm2_path) as runner:
        with pytest.raises(RulerFailedError) as refused:
            list(runner.ruler(settings.replace(type_v="q8_0", flash_attn_type="disabled"), test, 1, timeout_s=60))
        assert refused.value.outcome in {Outcome.UNSUPPORTED, Outcome.LOAD_FAILED}
        with pytest.raises(RulerFailedError) as late:
            list(runner.ruler(settings, test, 1, timeout_s=0.01))
        assert late.value.outcome is Outcome.TIMED_OUT
        assert len(list(runner.ruler(settings, test, 1, timeout_s=120))) == 2


DYING = """\
import os, signal, sys
from offloadtune.engine.worker import __main__ as worker
from offloadtune.engine.worker import ruler
ruler.Ruler.measure = lambda *_: os.kill(os.getpid(), signal.SIGILL)
worker.main(sys.argv[1:])
"""


def test_a_death_is_told_in_a_sentence_with_a_next_step(smollm2_path: Path) -> None:
    with pytest.raises(NothingWorksError) as caught:
        measure(smollm2_path, n_gen=(), n_pg=(), n_depth=(0,), worker_command=(sys.executable, "-c", DYING))
    assert "the engine died with SIGILL while measuring" in str(caught.value)
    assert caught.value.hint


def test_the_command_prints_a_row_for_each_value(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.run(smollm2_path, ["-p", "8", "-n", "0", "-b", "8,4", "-t", "2", "-r", "1", "-o", "jsonl"], ())
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["n_batch"], row["n_prompt"], len(row["samples_ns"])) for row in printed] == [(8, 8, 1), (4, 8, 1)]


@pytest.mark.skipif(not os.environ.get("LLAMA_BENCH"), reason="LLAMA_BENCH names no llama-bench to compare with")
@pytest.mark.parametrize("changes", [{}, {"flash_attn": "off", "type_k": "q8_0", "n_ubatch": 64, "repack": False}])
def test_every_field_is_the_real_tools(smollm2_path: Path, changes: dict[str, Any]) -> None:
    words = ["-p", "8", "-n", "3", "-pg", "4,2", "-d", "0,16", "-r", "2", "-t", "2"]
    if changes:
        words += ["-fa", "off", "-ctk", "q8_0", "-ub", "64", "--repack", "0"]
    spec = util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    done = subprocess.run(
        [os.environ["LLAMA_BENCH"], "-m", str(smollm2_path), "-o", "json", *words],
        env={**os.environ, "LD_LIBRARY_PATH": str(Path(spec.origin).parent / "lib")},
        check=True,
        capture_output=True,
        text=True,
    )
    theirs = json.loads(done.stdout)
    ours = json.loads(pipeline.render_rows(measure(smollm2_path, **changes), "json"))
    assert [list(row) for row in ours] == [list(row) for row in theirs]
    for our_row, their_row in zip(ours, theirs, strict=True):
        assert {n: v for n, v in our_row.items() if n not in UNLIKE} == {
            n: v for n, v in their_row.items() if n not in UNLIKE
        }

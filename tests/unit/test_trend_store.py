"""The trend on disk: runs read back as they were appended, whatever was killed, damaged or newer in between."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import MACHINE, SETTINGS
from sample_runs import bench_run

from offloadtune import store
from offloadtune.benches import BenchRun
from offloadtune.errors import StoreError
from offloadtune.store import TREND_FORMAT, append_run, read_runs, to_json, trend_paths, trends

RUNS = tuple(bench_run(i, slower=1 + i / 10) for i in range(3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where three runs stand."""
    (path,) = {append_run(tmp_path, run) for run in RUNS}
    return path


def change_line(path: Path, i_line: int, change: Callable[[Any], Any]) -> None:
    lines = path.read_bytes().splitlines()
    lines[i_line] = json.dumps(change(json.loads(lines[i_line]))).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")


def changed(**changes: Any) -> Callable[[Any], Any]:
    return lambda line: {**line, "run": {**line["run"], **changes}}


# --- round trips ---------------------------------------------------------------------------------------------------


def test_runs_read_back_as_they_were_appended(path: Path, tmp_path: Path) -> None:
    content = read_runs(path)
    assert content == store.TrendContent(path=path, runs=RUNS, broken=())
    assert path.parent.name == MACHINE.machine_id
    assert trend_paths(tmp_path) == [path]
    assert [json.loads(line)["format"] for line in path.read_bytes().splitlines()] == [TREND_FORMAT] * 3


@settings(max_examples=30)
@given(
    slower=st.floats(0.001, 1000),
    words=st.text(max_size=20),
    n_ubatch=st.integers(1, 1 << 20),
    anchor_slower=st.none() | st.floats(0.01, 100),
)
def test_any_run_reads_back(slower: float, words: str, n_ubatch: int, anchor_slower: float | None) -> None:
    run = bench_run(slower=slower, anchor_slower=anchor_slower, settings=SETTINGS.replace(n_ubatch=n_ubatch))
    first = dataclasses.replace(run.visits[0].visit, disturbed_by=(words,))
    visits = (dataclasses.replace(run.visits[0], visit=first), *run.visits[1:])
    run = dataclasses.replace(run, skipped=(("ttft 1", words),), settings_from=words, ended_by=words, visits=visits)
    with tempfile.TemporaryDirectory() as folder:
        assert read_runs(append_run(Path(folder), run)).runs == (run,)


def test_machines_and_files_have_trends_of_their_own(path: Path, tmp_path: Path) -> None:
    other_file = append_run(tmp_path, bench_run(gguf_id="ffff"))
    other_machine = append_run(tmp_path, bench_run(machine=dataclasses.replace(MACHINE, devices=())))
    assert len({path, other_file, other_machine}) == 3
    assert set(trend_paths(tmp_path)) == {path, other_file, other_machine}
    assert len(read_runs(path).runs) == 3


def test_the_line_is_on_disk_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    for n, run in enumerate(RUNS, start=1):
        path = append_run(tmp_path, run)
        assert (len(sizes), sizes[-1]) == (n, path.stat().st_size)


# --- torn tails ----------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_torn_tail_costs_no_whole_run(cut: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS[:2]:
            path = append_run(Path(folder), run)
        raw = path.read_bytes()
        n_first = raw.index(b"\n") + 1
        path.write_bytes(raw[: n_first + round(cut * (len(raw) - n_first - 2))])
        assert read_runs(path) == store.TrendContent(path=path, runs=RUNS[:1], broken=())
        append_run(Path(folder), RUNS[2])
        assert read_runs(path) == store.TrendContent(path=path, runs=(RUNS[0], RUNS[2]), broken=())


def test_a_run_that_lacks_only_its_newline_counts(path: Path, tmp_path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    assert read_runs(path).runs == RUNS
    append_run(tmp_path, RUNS[0])
    assert read_runs(path).runs == (*RUNS, RUNS[0])


def test_a_newer_line_that_lacks_only_its_newline_is_not_cut_off(path: Path, tmp_path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b'{"format": 99}')
    append_run(tmp_path, RUNS[0])
    assert path.read_bytes().splitlines()[3] == b'{"format": 99}'
    assert read_runs(path).runs == (*RUNS, RUNS[0])


def test_a_long_torn_tail_is_found_whole(path: Path, tmp_path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b'{"run": "' + b"x" * (1 << 17))
    append_run(tmp_path, RUNS[0])
    assert read_runs(path) == store.TrendContent(path=path, runs=(*RUNS, RUNS[0]), broken=())


# --- what cannot be read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"format": "1"}',
        b'{"format": 1}',
        b'{"format": 1, "run": {}}',
        b"\xff",
        b"[" * 5000,
    ],
)
def test_a_broken_line_is_named_and_hides_no_other(path: Path, line: bytes) -> None:
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, *lines[1:]]) + b"\n")
    content = read_runs(path)
    assert content.runs == RUNS
    (broken,) = content.broken
    assert (broken.i_line, broken.reason) == (2, f"Line 2 of {path} is no run of a bench.")


def test_a_newer_line_is_refused_in_a_sentence(path: Path) -> None:
    change_line(path, 1, lambda line: {**line, "format": TREND_FORMAT + 1})
    content = read_runs(path)
    assert content.runs == (RUNS[0], RUNS[2])
    assert [one.reason for one in content.broken] == [
        f"Line 2 of {path} was written by a newer offloadtune (format 2, this one reads 1)."
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"started_at": "2026-01-02T03:04:05"},
        {"started_at": "soon"},
        {"started_at": "0001-01-01T00:00:00+14:00"},
        {"offloadtune_version": "0.1\x1b[2J"},
        {"endpoints": ["a\nb"]},
        {"gguf_id": "\x9b"},
        {"duration_s": float("nan")},
        {"measures": []},
        {"engine": {**to_json(RUNS[0].engine), "version": "x\ud800"}},
        {"settings": {**to_json(SETTINGS), "type_k": "q9"}},
        {"settings": {**to_json(SETTINGS), "n_ctx": 1 << 40}},
        {"visits": [{**to_json(RUNS[0].visits[0]), "measure": "another"}]},
        {"visits": [{**to_json(RUNS[0].visits[0]), "anchor": {"multiply_ns": 0, "stream_ns": 1}}]},
        {"visits": [{**to_json(RUNS[0].visits[0]), "visit": {**to_json(RUNS[0].visits[0].visit), "prefill_ns": 0}}]},
        {"visits": [{**to_json(RUNS[0].visits[0]), "visit": {**to_json(RUNS[0].visits[0].visit), "tokenize_ns": -1}}]},
        {"visits": [{**to_json(RUNS[0].visits[0]), "visit": {**to_json(RUNS[0].visits[0].visit), "step_ns": []}}]},
    ],
)
def test_a_run_that_would_trip_its_readers_is_refused(path: Path, changes: dict[str, Any]) -> None:
    change_line(path, 0, changed(**changes))
    content = read_runs(path)
    assert content.runs == RUNS[1:]
    assert [one.i_line for one in content.broken] == [1]


def test_a_line_without_an_end_is_not_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = len(path.read_bytes().splitlines()[2]) + 10
    monkeypatch.setattr(trends, "_LONGEST_LINE_BYTES", longest)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], b"x" * (3 * longest + 5), *lines[1:]]) + b"\n")
    content = read_runs(path)
    assert content.runs == RUNS
    assert [one.i_line for one in content.broken] == [2]


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        read_runs(tmp_path / "none.jsonl")


def test_a_full_disk_is_told_and_mended_later(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"cannot be written: No space left") as caught:
            append_run(tmp_path, RUNS[0])
    assert caught.value.exit_code == 14
    assert caught.value.hint
    append_run(tmp_path, RUNS[1])
    assert read_runs(path).runs[-1] == RUNS[1]


# --- several writers -----------------------------------------------------------------------------------------------


def test_appends_at_once_lose_nothing(tmp_path: Path) -> None:
    runs = [bench_run(i) for i in range(12)]
    threads = [threading.Thread(target=append_run, args=(tmp_path, run)) for run in runs]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    content = read_runs(trend_paths(tmp_path)[0])
    assert content.broken == ()
    assert sorted(content.runs, key=lambda run: run.started_at) == runs


def test_a_writer_that_never_ends_is_told(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "_PATIENCE_S", 0.05)
    with filelock.FileLock(f"{path}.lock"), pytest.raises(StoreError, match="Another program"):
        append_run(tmp_path, RUNS[0])
    assert read_runs(path).runs == RUNS


def test_what_is_read_is_records_of_the_program(path: Path) -> None:
    run = read_runs(path).runs[0]
    assert isinstance(run, BenchRun)
    assert isinstance(run.gguf_path, Path)
    assert run.machine.machine_id == MACHINE.machine_id
    assert run.visits_of("ttft 128")[0].visit.ttft_s == RUNS[0].visits_of("ttft 128")[0].visit.ttft_s

"""`offloadtune history`: trends, checks and stale profiles on the screen, as JSON and as an exit code."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import InProcess
from golden import check_golden
from rich.console import Console, RenderableType
from sample_records import ENGINE, FACTS, MACHINE, SETTINGS, header
from sample_runs import bench_run

from offloadtune import pipeline, report, store
from offloadtune.benches import BenchRun
from offloadtune.errors import UsageError
from offloadtune.pipeline import staling, trending
from offloadtune.records import WORKLOADS, Goal, Machine, Target
from offloadtune.rows import BenchRow, ImportedRows
from offloadtune.trends import TrendReport

ELSEWHERE = dataclasses.replace(MACHINE, host=dataclasses.replace(MACHINE.host, os="Windows 11"))
SLOW_SHIFT = (1.0, 1.01, 0.99, 1.0, 1.012, 0.99)


def screen(view: RenderableType) -> str:
    """`view` as a wide terminal shows it, without its colours."""
    stream = io.StringIO()
    Console(file=stream, width=170, highlight=False, markup=False, emoji=False, color_system=None).print(
        view, soft_wrap=True
    )
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def with_driver(driver: str) -> Machine:
    gpus = tuple(dataclasses.replace(gpu, driver=driver) for gpu in MACHINE.host.nvml_gpus or ())
    return dataclasses.replace(MACHINE, host=dataclasses.replace(MACHINE.host, nvml_gpus=gpus))


def keep(*runs: BenchRun) -> None:
    for run in runs:
        pipeline.keep_run(run)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample machine with the sample engine."""
    monkeypatch.setattr(trending, "probe_host", lambda **_options: MACHINE.host)
    monkeypatch.setattr(trending, "installed_build_id", lambda: ENGINE.build_id)


@pytest.fixture
def kept() -> list[BenchRun]:
    """Six steady runs of which the fifth came with another batch, a slow one, and two of elsewhere."""
    other = SETTINGS.replace(n_ubatch=512, n_cpu_moe=4, type_k="q8_0", type_v="q8_0")
    runs = [bench_run(i, slower=slower) for i, slower in enumerate(SLOW_SHIFT)]
    runs[4:] = [dataclasses.replace(run, settings=other) for run in runs[4:]]
    slow = bench_run(6, slower=1.3, settings=other, machine=with_driver("560.35"), scatter=[1.0] * 20)
    far = [bench_run(i, machine=ELSEWHERE, slower=1 + i) for i in (1, 2)]
    keep(*runs, slow, *far)
    return [*runs, slow, *far]


# --- the trend -----------------------------------------------------------------------------------------------------


def test_the_screen_of_trends(kept: list[BenchRun]) -> None:
    broken = store.trend_paths(store.data_dir())[0]
    with broken.open("ab") as stream:
        stream.write(b"no run\nnor this\x1b[2J\n")
    text = screen(report.trends_view(pipeline.trends(None)))
    assert len(kept) == 9
    check_golden("report/trends.txt", text.replace(str(store.data_dir()), "/home/user"))


def test_the_screen_of_checks(kept: list[BenchRun]) -> None:
    keep(*(bench_run(i, gguf_path=Path("/models/few.gguf"), gguf_id="few") for i in range(3)))
    checks = pipeline.check_trends(None)
    assert len({run.machine.machine_id for run in kept}) == 2
    assert {one.machine_id for one in checks} == {MACHINE.machine_id}
    check_golden("report/trend_checks.txt", screen(report.checks_view(checks)))
    names = ["ttft 128", "ttft 2048", "second turn 1920+128", "decode at 0", "decode at 2048", "turn 2048+256+256"]
    assert report.regression_words(checks) == (
        f"Qwen 3 [8B].gguf runs slower than before: {', '.join(f'{name} by 30.0%' for name in names)}."
    )


def test_other_machines_stand_apart_and_last(kept: list[BenchRun]) -> None:
    keep(dataclasses.replace(kept[-1], started_at="2030-01-01T00:00:00+00:00"))
    assert [one.is_here for one in pipeline.trends(None).trends] == [True, False]
    assert [len(one.rows) for one in pipeline.trends(None).trends] == [7, 3]


def test_rows_are_newest_first_whatever_the_files(kept: list[BenchRun]) -> None:
    keep(bench_run(3, started_at="2026-01-05T05:04:05+02:00", gguf_id="exchanged"))
    rows = pipeline.trends(None).trends[0].rows
    assert len(rows) == len(kept) - 1  # two are of another machine
    moments = [trending._started_at(row.run) for row in rows]
    assert moments == sorted(moments, reverse=True)
    assert rows[3].changes == ("content of the file 4f2c9ad01b77 -> exchanged",)


def test_texts_of_strangers_are_made_safe(kept: list[BenchRun]) -> None:
    evil = Path("/models/a\x1b[2Jb.gguf")
    keep(
        *(dataclasses.replace(run, gguf_path=evil, gguf_id="evil", skipped=(("ttft 128", "\x1b[2J"),)) for run in kept)
    )
    for view in (report.trends_view(pipeline.trends(None)), report.checks_view(pipeline.check_trends(None))):
        assert "\x1b" not in screen(view)
    assert "\x1b" not in report.regression_words(pipeline.check_trends(None))


def test_only_the_file_that_is_asked_for(kept: list[BenchRun]) -> None:
    keep(bench_run(0, gguf_path=Path("/models/b.gguf"), gguf_id="b"))
    assert len(kept) == 9
    assert {one.gguf_path.name for one in pipeline.trends(Path("/gone/b.gguf")).trends} == {"b.gguf"}
    assert [one.gguf_path.name for one in pipeline.check_trends(Path("/gone/b.gguf"))] == ["b.gguf"]
    assert pipeline.trends(Path("/gone/c.gguf")).trends == ()


def test_a_file_that_is_there_is_known_by_its_content(
    kept: list[BenchRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = tmp_path / "renamed.gguf"
    renamed.touch()
    monkeypatch.setattr(trending, "read_gguf", lambda _path: FACTS)
    assert [len(one.rows) for one in pipeline.trends(renamed).trends] == [7, 2]
    assert len(kept) == 9


def test_a_file_of_the_trend_that_cannot_be_opened_is_told(
    kept: list[BenchRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.trend_paths(store.data_dir())[0]

    def no_entry(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == first:
            raise PermissionError(13, "Permission denied")
        return io.open(path, *arguments, **options)  # noqa: UP020 - Path.open itself is replaced

    monkeypatch.setattr(Path, "open", no_entry)
    found = pipeline.trends(None)
    assert [one.reasons for one in found.broken] == [(f"{first} cannot be read: Permission denied.",)]
    assert len(found.trends) == 1
    assert len(kept) == 9


def test_a_check_tells_of_lines_it_could_not_read(kept: list[BenchRun]) -> None:
    path = store.append_run(store.data_dir(), kept[0])
    with path.open("ab") as stream:
        stream.write(b'{"format": 99}\n')
    (found,) = pipeline.check_trends(None)
    assert found.warnings[-1].endswith("was written by a newer offloadtune (format 99, this one reads 1).")


def test_a_card_that_is_gone_fails_the_check(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    host = dataclasses.replace(MACHINE.host, nvml_gpus=())
    monkeypatch.setattr(trending, "probe_host", lambda **_options: host)
    gone = dataclasses.replace(MACHINE, host=host, devices=())
    keep(*(bench_run(i) for i in range(6)), bench_run(9, slower=8, machine=gone))
    ended = in_process("history", "--check")
    assert ended.code == 4
    assert "devices CUDA0 NVIDIA GeForce RTX 4090 -> none" in ended.out
    assert [len(one.rows) for one in pipeline.trends(None).trends] == [7]


def test_runs_that_were_cut_short_are_marked(in_process: InProcess) -> None:
    keep(bench_run(0, is_interrupted=True), bench_run(1, ended_by="The engine ended.\x1b"), bench_run(2))
    text = screen(report.trends_view(pipeline.trends(None)))
    assert "2026-01-02 03:04 UTC, interrupted" in text
    assert "2026-01-03 03:04 UTC, cut short" in text
    assert "The run of 2026-01-03 03:04 UTC was cut short: The engine ended." in text
    assert "\x1b" not in text
    runs = json.loads(in_process("history", "--json").out)["trends"][0]["runs"]
    assert [one["is_interrupted"] for one in runs] == [False, False, True]
    assert [one["ended_by"] for one in runs] == ["", "The engine ended.\x1b", ""]


# --- the command ---------------------------------------------------------------------------------------------------


def test_a_slower_bench_exits_with_4(in_process: InProcess, kept: list[BenchRun]) -> None:
    ended = in_process("history", "--check")
    assert ended.code == 4
    assert "slower" in ended.out
    assert ended.err.startswith("offloadtune: Qwen 3 [8B].gguf runs slower than before: ttft 128 by 30.0%")
    assert "  next: run the bench once more" in ended.err
    as_json = in_process("history", "--check", "--json")
    assert as_json.code == 4
    (found,) = json.loads(as_json.out)["checks"]
    assert len(found["slower"]) == 6
    assert found["figures"][0]["verdict"] == "slower"
    assert found["changes"] == ["driver 550.54.14 -> 560.35"]
    assert len(kept) == 9


def test_a_quiet_check_exits_with_0(in_process: InProcess) -> None:
    keep(*(bench_run(i, slower=slower) for i, slower in enumerate(SLOW_SHIFT)))
    ended = in_process("history", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert "same" in ended.out


def test_a_faster_bench_is_told_and_no_failure(in_process: InProcess) -> None:
    keep(*(bench_run(i, slower=slower) for i, slower in enumerate(SLOW_SHIFT)), bench_run(9, slower=0.5))
    ended = in_process("history", "--check")
    assert ended.code == 0
    assert "faster" in ended.out


def test_too_few_runs_exit_with_0_and_say_how_many_are_missing(in_process: InProcess) -> None:
    keep(*(bench_run(i, slower=1 + i) for i in range(3)))
    ended = in_process("history", "--check")
    assert ended.code == 0
    assert "Too few runs to judge by: 3 more runs must come first." in ended.out


def test_a_run_of_which_nothing_counts_judges_nothing(in_process: InProcess) -> None:
    keep(*(bench_run(i) for i in range(6)), bench_run(9, visits=()))
    ended = in_process("history", "--check")
    assert ended.code == 0
    assert "Not one of its visits counts" in ended.out
    assert "ttft 128 was not measured this time: not one of its visits counts." in ended.out


def test_nothing_to_check_is_said(in_process: InProcess) -> None:
    keep(bench_run(machine=ELSEWHERE))
    ended = in_process("history", "--check")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "No bench to check was run on this machine yet: offloadtune bench FILE\n"


def test_the_list_has_trends_and_sweeps(in_process: InProcess, kept: list[BenchRun]) -> None:
    sweep(gguf_path=Path("/models/swept.gguf"))
    text = in_process("history").out
    assert text.index("P50 / P95") < text.index("swept.gguf")
    found = json.loads(in_process("history", "--json").out)
    assert sorted(found) == ["broken_trends", "journals", "stale_profiles", "trends"]
    newest = found["trends"][0]["runs"][0]
    assert newest["changes"] == ["driver 550.54.14 -> 560.35"]
    assert newest["figures"][0]["name"] == "ttft 128"
    assert len(kept) == 9


def test_a_bench_alone_does_not_ask_for_a_sweep(in_process: InProcess) -> None:
    assert in_process("history").out == "Nothing was measured yet: offloadtune sweep FILE\n"
    keep(bench_run())
    assert "Nothing was measured" not in in_process("history").out


@pytest.mark.parametrize(
    "arguments",
    [("--check", "--rows", "md"), ("a.gguf", "--rows", "md"), ("--import", "x", "--check"), ("--rows", "xml")],
)
def test_what_cannot_be_meant_is_refused(in_process: InProcess, arguments: tuple[str, ...]) -> None:
    ended = in_process("history", *arguments)
    assert (ended.code, ended.out) == (UsageError.exit_code, "")


def test_rows_are_printed_as_they_are(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(pipeline), "stored_rows", lambda name: f"rows as {name}\n" if name == "md" else "")
    assert in_process("history", "--rows", "md").out == "rows as md\n"
    assert in_process("history", "--rows", "csv").out == ""


def test_an_import_says_what_was_kept(in_process: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"model_type": "llama 8B\x1b", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 812.3, "stddev_ts": 2}
    deep = {"model_type": "llama 8B", "n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": "fast"}
    imported = ImportedRows(
        path=Path("/x/rows.jsonl"),
        stored_path=Path("/home/user/rows/x.jsonl"),
        rows=(*(BenchRow(fields=fields) for _ in range(20)), BenchRow(fields=deep)),
        machine="AMD Ryzen, RTX 4090",
        is_known=False,
        n_broken=2,
        first_broken="Line 3 is no row.",
    )
    monkeypatch.setitem(vars(pipeline), "import_rows", lambda _path: imported)
    lines = in_process("history", "--import", "rows.jsonl").out.splitlines()
    assert lines[1].split() == ["llama", "8B", "pp512", "812.30", "±", "2.00"]
    assert lines[-3:] == [
        "and 1 more",
        "21 rows of AMD Ryzen, RTX 4090, kept apart from this machine's own in /home/user/rows/x.jsonl",
        "Warning: 2 lines of /x/rows.jsonl left out: Line 3 is no row.",
    ]
    few = dataclasses.replace(imported, rows=(BenchRow(fields=deep),), n_broken=0)
    assert "tg128 @ d4096" in screen(report.imported_view(few))
    as_json = json.loads(in_process("history", "--import", "rows.jsonl", "--json").out)
    assert len(as_json["imported"]["rows"]) == 21


# --- stale profiles ------------------------------------------------------------------------------------------------


def sweep(**changes: Any) -> store.SweepHeader:
    """A stored sweep that holds nothing but its header."""
    made = dataclasses.replace(header(), ruler=store.RULER, **changes)
    path = store.data_dir() / "sweeps" / made.machine_id / f"{made.gguf_path.stem}-{made.sweep_key}.jsonl"
    store.Journal(path, made).close()
    return made


def stale() -> list[tuple[str, str]]:
    return [(one.why, one.command) for one in pipeline.trends(None).stale]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A model file that nobody touched since it was measured."""
    path = tmp_path / "a b.gguf"
    path.touch()
    return path


LATER = "2099-01-01T00:00:00+00:00"
"""Of a sweep that began after the file was last touched."""


def test_a_profile_of_what_is_here_is_not_stale(file: Path) -> None:
    sweep(gguf_path=file, started_at=LATER)
    assert stale() == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"machine": with_driver("540.1")}, "another driver (540.1, now 550.54.14)"),
        (
            {"engine": dataclasses.replace(ENGINE, build_id="fedcba987654")},
            "another engine (llama-cpp-python 0.3.36, build fedcba98, now build 01234567)",
        ),
    ],
)
def test_a_profile_of_something_else_is_stale(file: Path, changes: dict[str, Any], why: str) -> None:
    sweep(gguf_path=file, started_at=LATER, **changes)
    ((said, command),) = stale()
    assert said == why
    assert command.startswith(f"offloadtune sweep '{file}' ")
    assert command.endswith(" --budget 40s")


def test_a_file_that_was_exchanged_is_stale(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sweep(gguf_path=file)
    monkeypatch.setattr(staling, "read_gguf", lambda _path: FACTS)
    assert (made.gguf_id, stale()) == (FACTS.gguf_id, [])
    monkeypatch.setattr(staling, "read_gguf", lambda _path: dataclasses.replace(FACTS, gguf_id="0123456789"))
    assert stale()[0][0] == "another content (4f2c9ad0, now 01234567)"


def test_a_file_that_became_no_model_is_stale(file: Path) -> None:
    sweep(gguf_path=file)
    assert stale()[0][0] == "another content (4f2c9ad0, now unreadable)"


def test_only_the_newest_sweep_of_this_machine_counts(file: Path) -> None:
    sweep(gguf_path=file, started_at="2098-01-01T00:00:00+00:00", machine=with_driver("540.1"))
    sweep(gguf_path=file, started_at="2100-01-01T00:00:00+00:00", machine=ELSEWHERE, machine_id=ELSEWHERE.machine_id)
    assert len(stale()) == 1
    sweep(gguf_path=file, started_at=LATER)
    assert stale() == []


def test_a_file_that_is_gone_has_no_profile_to_mend(file: Path) -> None:
    sweep(gguf_path=file, started_at=LATER, machine=with_driver("540.1"))
    file.unlink()
    assert stale() == []


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(file: Path) -> None:
    sweep(gguf_path=file)
    file.unlink()
    os.mkfifo(file)
    assert stale() == []


def test_the_command_asks_the_same_again(file: Path) -> None:
    sweep(
        gguf_path=file,
        started_at=LATER,
        machine=with_driver("540.1"),
        workload=WORKLOADS["rag"],
        goal=Goal.TTFT,
        target=Target.LLAMA_SERVER,
        n_ctx=16384,
        fixed={"n_threads": 6},
        limit_bytes=20 << 30,
        endpoints=("a:1",),
    )
    options = "--workload rag --goal ttft --target llama_server --n-ctx 16384 --set n_threads=6 --vram-limit 20.0GiB"
    assert stale()[0][1] == f"offloadtune sweep '{file}' {options} --rpc a:1 --budget 40s"


@pytest.mark.parametrize(("file_bytes", "budget"), [(0, "30s"), (15 * 10**9, "60s"), (40 * 10**9, "120s")])
def test_the_budget_has_room_for_a_large_file(file: Path, file_bytes: int, budget: str) -> None:
    sweep(gguf_path=file, started_at=LATER, machine=with_driver("540.1"), file_bytes=file_bytes)
    assert stale()[0][1].endswith(f" --budget {budget}")


def test_the_screen_of_a_stale_profile(file: Path, in_process: InProcess) -> None:
    sweep(gguf_path=file, started_at=LATER, machine=with_driver("540.1"))
    line = in_process("history").out.splitlines()[0]
    assert line.startswith("a b.gguf: its profile was made with another driver (540.1, now 550.54.14); measure it anew")
    assert os.linesep not in line
    assert pipeline.trends(file.with_name("other.gguf")) == TrendReport(trends=(), broken=(), stale=())

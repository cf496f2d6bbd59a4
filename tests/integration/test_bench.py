"""`offloadtune bench` on the real engine: what it measures, what it keeps, and how it ends when things go wrong."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import check_refused, offloadtune
from conftest import MIB, ROOT, CardMaker

from offloadtune import pipeline
from offloadtune.benches import BenchEvent, BenchReport, BenchRequest, MeasureKind, MeasureVisited
from offloadtune.sweeps import Said

pytestmark = pytest.mark.engine

SHORT_SCRIPT = ("ttft 512", "decode at 0")


def bench(path: Path, **options: Any) -> tuple[BenchReport, list[BenchEvent]]:
    """The shortest run there is: two measures fit into this context."""
    events: list[BenchEvent] = []
    request = BenchRequest(path=path, **{"budget_s": 12.0, "n_ctx": 768, **options})
    return pipeline.bench_file(request, events.append), events


def test_a_run_measures_the_script_and_is_kept(smollm2_path: Path) -> None:
    report, events = bench(smollm2_path)
    run = report.run
    assert [one.measure.name for one in report.figures] == list(SHORT_SCRIPT)
    assert dict(run.skipped).keys() == {one.name for one in run.measures} - set(SHORT_SCRIPT)
    assert "the defaults of llama_cpp_python" in run.settings_from
    first, decode = report.figures
    assert first.ttft_s.n_samples == first.n_visits == len(run.visits_of("ttft 512")) > 0
    assert sum(frac for _, frac in first.phase_fracs) == pytest.approx(1, abs=0.05)
    assert decode.step_s.n_samples == 32 * decode.n_visits
    assert decode.step_s.p95 is not None
    assert run.loads is not None
    assert 0 < run.loads.warm_load_ns < run.loads.warm_ready_ns
    assert all(one.anchor and one.anchor.multiply_ns > 0 for one in run.visits if one.visit.counts)
    visited = [event for event in events if isinstance(event, MeasureVisited)]
    assert [event.visit for event in visited] == [one for one in run.visits if not one.visit.is_warmup]
    assert report.trend_path.is_file()


def test_the_first_visits_of_a_new_build_are_thrown_away_and_said(smollm2_path: Path) -> None:
    first, events = bench(smollm2_path, budget_s=6.0)
    second, later = bench(smollm2_path, budget_s=6.0)
    assert sum(one.visit.is_warmup for one in first.run.visits) == 3
    assert sum(one.visit.is_warmup for one in second.run.visits) == 1
    assert [bool([e for e in told if isinstance(e, Said) and "thrown away" in e.text]) for told in (events, later)] == [
        True,
        False,
    ]


def test_a_second_turn_reads_only_what_is_new(smollm2_path: Path) -> None:
    report, _ = bench(smollm2_path, n_ctx=2304, budget_s=40.0)
    by_kind = {one.measure.name: one for one in report.figures}
    whole, cached = by_kind["ttft 2048"], by_kind["second turn 1920+128"]
    assert cached.measure.kind is MeasureKind.SECOND_TURN
    assert cached.ttft_s.p50 < whole.ttft_s.p50 / 3
    assert "decode at 1024" in by_kind


def test_settings_of_a_profile_on_the_virtual_card(home: Path, smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 600 * MIB)
    swept = offloadtune(
        "sweep", smollm2_path, "--workload=0/64/8/1", "--n-ctx=768", "--budget=20s", "--rpc", card.endpoint, "--json"
    )
    assert swept.code == 0, swept.err
    profile = json.loads(swept.out)["profile_path"]
    ended = offloadtune(
        "bench", smollm2_path, "--settings", profile, "--budget", "10s", "--rpc", card.endpoint, "--json"
    )
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["settings"] == json.loads(swept.out)["recommended"]["settings"]
    assert {one["measure"] for one in found["measures"]} == set(SHORT_SCRIPT)
    assert (home / "trends").is_dir()


def test_ctrl_c_keeps_what_was_measured(home: Path, smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "offloadtune", "bench", str(smollm2_path), "--n-ctx", "768", "--budget", "120s"]
    process = subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("ttft 512"):
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["is_interrupted"]
    assert found["measures"]
    assert list(home.glob("trends/*/*.jsonl"))


def test_settings_that_do_not_run_are_told_with_the_way_out(smollm2_path: Path, tmp_path: Path) -> None:
    command = (sys.executable, str(ROOT / "tests/faulty_worker.py"), "s['n_ctx'] > 512", "SIGILL")
    with pytest.raises(Exception, match=r"does not run with the defaults .*SIGILL") as caught:
        bench(smollm2_path, worker_command=command)
    assert getattr(caught.value, "exit_code", None) == 3
    assert "offloadtune sweep" in getattr(caught.value, "hint", "")
    broken = tmp_path / "broken.toml"
    broken.write_text("format = 1\n", encoding="utf-8")
    check_refused(offloadtune("bench", smollm2_path, "--settings", broken), 2, "is not a profile of offloadtune")
    missing = offloadtune("bench", smollm2_path, "--settings", tmp_path / "none.toml")
    check_refused(missing, 2, "cannot be read")


def test_a_profile_of_another_file_is_refused(smollm2_path: Path, gemma3_path: Path) -> None:
    swept = offloadtune("sweep", smollm2_path, "--workload=0/16/4/1", "--n-ctx=512", "--budget=10s", "--json")
    profile = json.loads(swept.out)["profile_path"]
    check_refused(offloadtune("bench", gemma3_path, "--settings", profile), 2, "the profile of another file")


def start_stranger() -> int:
    """A process that burns a core and is no child of ours, whose work would count as ours; its pid."""
    burn = f"{shlex.quote(sys.executable)} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["/bin/sh", "-c", burn], capture_output=True, text=True, check=True).stdout)


def test_a_busy_core_in_the_middle_is_noticed_and_its_visits_are_replaced(smollm2_path: Path) -> None:
    n_seen = 0
    marks: dict[bool, list[bool]] = {False: [], True: []}
    strangers: list[int] = []

    def listen(event: BenchEvent) -> None:
        """A stranger works while four visits are made."""
        nonlocal n_seen
        if isinstance(event, MeasureVisited):
            n_seen += 1
            marks[6 < n_seen <= 10].append(bool(event.visit.visit.disturbed_by))
            if n_seen == 6:
                strangers.append(start_stranger())
            elif n_seen == 10:
                os.kill(strangers.pop(), signal.SIGKILL)

    try:
        report = pipeline.bench_file(BenchRequest(path=smollm2_path, n_ctx=768, budget_s=90.0), listen)
    finally:
        for pid in strangers:
            os.kill(pid, signal.SIGKILL)
    assert sum(marks[True]) >= 3, marks
    told = [words for one in report.run.visits for words in one.visit.disturbed_by]
    assert any("Other programs took" in words for words in told)
    assert any("disturbed" in note and "repeated" in note for note in report.notes)
    assert [one.n_visits for one in report.figures] == [20, 20]  # each disturbed one has its successor

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
from conftest import MIB, CardMaker

from offloadtune import pipeline
from offloadtune.benches import BenchEvent, BenchReport, BenchRequest, MeasureVisited
from offloadtune.engine import Runner
from offloadtune.records import Settings, Target, Trial
from offloadtune.sweeps import Said

pytestmark = pytest.mark.engine

DYING = """\
import os, signal, sys
from offloadtune.engine.worker import __main__ as worker
from offloadtune.engine.worker import session
session.Session.visit = lambda *_, **__: os.kill(os.getpid(), signal.SIGILL)
worker.main(sys.argv[1:])
"""
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
    assert report.trend_path is not None
    assert report.trend_path.is_file()
    assert sum(one.visit.is_warmup for one in run.visits) == 3
    assert [event for event in events if isinstance(event, Said) and "thrown away" in event.text]

    second, later = bench(smollm2_path)  # the build has run here now
    assert sum(one.visit.is_warmup for one in second.run.visits) == 1
    assert not [event for event in later if isinstance(event, Said) and "thrown away" in event.text]
    (check,) = pipeline.check_trends(smollm2_path)
    assert (check.n_earlier, check.n_missing, check.slower) == (1, 4, ())


def test_a_second_turn_reads_only_what_is_new(smollm2_path: Path) -> None:
    settings = Settings(n_ctx=1280, n_threads=2, n_threads_batch=2, flash_attn_type="enabled")
    trial = Trial(settings=settings, target=Target.LLAMA_SERVER, why="test")
    with Runner(smollm2_path) as runner, runner.opened(trial, timeout_s=240) as opened:
        cached = opened.visit(896, 128, 1, timeout_s=120)
        whole = opened.visit(0, 1024, 1, timeout_s=120)
    assert cached.ttft_s < whole.ttft_s / 3


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
    command = (sys.executable, "-c", DYING)
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
    swept = offloadtune("sweep", smollm2_path, "--workload=0/16/4/1", "--n-ctx=512", "--budget=6s", "--json")
    profile = json.loads(swept.out)["profile_path"]
    check_refused(offloadtune("bench", gemma3_path, "--settings", profile), 2, "the profile of another file")


def start_stranger(burn_s: float) -> None:
    """A process that burns a core for a while and is no child of ours, whose work would count as ours."""
    program = f"import time; end = time.time() + {burn_s}\nwhile time.time() < end: pass"
    words = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} >/dev/null 2>&1 &"
    subprocess.run(["/bin/sh", "-c", words], check=True)


def test_a_busy_core_in_the_middle_is_noticed_and_its_visits_are_replaced(smollm2_path: Path) -> None:
    marks: list[bool] = []

    def listen(event: BenchEvent) -> None:
        """A stranger begins to work after the sixth visit."""
        if isinstance(event, MeasureVisited):
            marks.append(bool(event.visit.visit.disturbed_by))
            if len(marks) == 6:
                start_stranger(6.0)

    report = pipeline.bench_file(BenchRequest(path=smollm2_path, n_ctx=768, budget_s=30.0), listen)
    assert any(marks[6:9]), marks
    assert not all(marks[6:]), marks  # those have their successors
    told = [words for one in report.run.visits for words in one.visit.disturbed_by]
    assert any("Other programs took" in words for words in told)
    assert any("disturbed and do" in note or "disturbed and does" in note for note in report.notes)
    assert sum(one.n_visits for one in report.figures) == marks.count(False)

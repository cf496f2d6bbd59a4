"""Nothing measured is lost: a sweep killed at any moment goes on from its journal."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import MIB, CardMaker

from offloadtune import pipeline
from offloadtune.errors import BusyError
from offloadtune.records import Outcome, Workload
from offloadtune.store import data_dir, measuring_alone, read_journal
from offloadtune.sweeps import Event, Said, SweepReport, SweepRequest, TrialFinished

pytestmark = pytest.mark.engine

SHORT = "0/128/8/1"
N_KILLS = 6


def sweep(path: Path, budget_s: float, **options: Any) -> tuple[SweepReport, list[Event]]:
    events: list[Event] = []
    workload = Workload(name=SHORT, n_prefix_cached=0, n_prompt_new=128, n_gen=8)
    report = pipeline.sweep(SweepRequest(path=path, workload=workload, budget_s=budget_s, **options), events.append)
    return report, events


def said(events: list[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Said))


def test_the_same_sweep_again_measures_nothing_again(smollm2_path: Path) -> None:
    first, _ = sweep(smollm2_path, 60)
    assert first.n_rounds == 6
    again, events = sweep(smollm2_path, 60)
    assert "Going on from" in said(events)
    assert again.n_resumed == len(first.results)
    assert again.n_model_loads == 0
    assert not any(isinstance(event, TrialFinished) for event in events)
    assert again.recommendation == first.recommendation
    fresh, events = sweep(smollm2_path, 5, is_fresh=True)
    assert fresh.n_resumed == 0
    assert fresh.n_model_loads == 1
    assert len(list(first.journal_path.parent.glob("*.jsonl"))) == 2  # the earlier one was put aside


def test_a_longer_run_compares_what_the_shorter_had_no_time_for(smollm2_path: Path) -> None:
    short, _ = sweep(smollm2_path, 6)
    longer, _ = sweep(smollm2_path, 60)
    assert longer.n_resumed == len(short.results) < len(longer.results)
    assert longer.n_rounds == 6
    wanted = [result for result in longer.results if result.trial.settings.n_ctx == 512]
    best = min(wanted, key=lambda result: result.visits[-1].turn_s(8))
    rounds = read_journal(longer.journal_path).rounds
    assert best.trial.trial_id in rounds[-1]  # the best of all that was screened stood in the comparison


def test_a_journal_that_died_before_its_first_line_does_not_stand_in_the_way(smollm2_path: Path) -> None:
    first, _ = sweep(smollm2_path, 5)
    first.journal_path.write_bytes(b'{"kind": "hea')
    again, _ = sweep(smollm2_path, 5)
    assert again.n_resumed == 0
    assert again.results


def test_another_question_is_another_sweep_and_a_changed_file_is_said(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(smollm2_path.read_bytes())
    sweep(path, 5)
    other, events = sweep(path, 5, n_ctx=512)
    assert other.n_resumed == 0
    assert not said(events)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    changed, events = sweep(path, 5)
    assert changed.n_resumed == 0
    assert "the model file changed" in said(events)


def test_two_sweeps_do_not_measure_each_other(smollm2_path: Path) -> None:
    with (
        measuring_alone(data_dir(), "model.gguf"),
        pytest.raises(BusyError, match=r"process \d+, since .*, model.gguf"),
    ):
        sweep(smollm2_path, 5)
    report, _ = sweep(smollm2_path, 5)  # and the lock is gone with its owner
    assert report.results


def test_a_sweep_killed_again_and_again_loses_and_repeats_nothing(smollm2_path: Path, make_card: CardMaker) -> None:
    """Parent and worker are killed in turn at random moments; each finished trial is measured once, none is lost."""
    card = make_card(2, 600 * MIB)
    rng = random.Random(7)  # noqa: S311 - moments, not secrets
    seen: set[str] = set()
    for i_kill in range(N_KILLS):
        process = start(smollm2_path, card.endpoint)
        time.sleep(rng.uniform(0.5, 5.0))
        workers = psutil.Process(process.pid).children(recursive=True)
        if i_kill % 2 == 0:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        else:
            for worker in workers:
                worker.kill()
            time.sleep(rng.uniform(0.0, 2.0))
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        _, orphans = psutil.wait_procs(workers, timeout=20)
        assert not orphans
        seen = check_journal(seen)
    process = start(smollm2_path, card.endpoint)
    stdout, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr
    check_journal(seen)
    assert json.loads(stdout)["trials"]["resumed"] >= len(seen)
    assert json.loads(stdout)["recommended"]["settings"]["n_ctx"] == 512


def test_a_worker_killed_from_outside_is_one_failed_trial(smollm2_path: Path) -> None:
    events: list[Event] = []

    def kill_once(event: Event) -> None:
        if isinstance(event, TrialFinished) and not any(isinstance(seen, TrialFinished) for seen in events):
            threading.Timer(0.5, kill_worker).start()
        events.append(event)

    def kill_worker() -> None:
        for child in psutil.Process().children():
            child.kill()

    workload = Workload(name=SHORT, n_prefix_cached=0, n_prompt_new=128, n_gen=8)
    report = pipeline.sweep(SweepRequest(path=smollm2_path, workload=workload, budget_s=20), kill_once)
    failed = [result for result in report.results if result.outcome is not Outcome.OK]
    assert len(failed) <= 1
    assert len(report.results) > 2


def start(path: Path, endpoint: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "offloadtune", "sweep", str(path), "--budget", "60s", "--workload", SHORT]
    return subprocess.Popen(
        [*command, "--rpc", endpoint, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def check_journal(seen: set[str]) -> set[str]:
    """Trials finished so far; what was finished before still stands, and nothing was measured to its end twice."""
    journals = list((data_dir() / "sweeps").glob("*/*.jsonl"))
    if not journals:
        return seen
    (path,) = journals
    finished = [r.trial.trial_id for r in read_journal(path).results if r.outcome is Outcome.OK]
    assert len(finished) == len(set(finished))
    assert seen <= set(finished)
    return set(finished)

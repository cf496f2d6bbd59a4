"""Nothing measured is lost: a sweep killed at any moment goes on from its journal."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import MIB, SHORT_SWEEPS, CardMaker

from offloadtune import pipeline
from offloadtune.errors import BusyError
from offloadtune.recommend import looks
from offloadtune.records import Outcome, Workload
from offloadtune.store import data_dir, measuring_alone, read_journal
from offloadtune.sweeps import Event, RoundFinished, Said, SweepReport, SweepRequest, TrialFinished

pytestmark = pytest.mark.engine

SHORT = "0/128/8/1"
FEW_TRIALS = {"n_threads": 1, "n_threads_batch": 1, "n_ubatch": 512}
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WAYS = ("SIGKILL", "worker, SIGKILL", "SIGINT", "SIGKILL", "SIGTERM", "worker, SIGKILL", "SIGHUP")


def sweep(path: Path, budget_s: float, **options: Any) -> tuple[SweepReport, list[Event]]:
    events: list[Event] = []
    workload = Workload(name=SHORT, n_prefix_cached=0, n_prompt_new=128, n_gen=8)
    report = pipeline.sweep(SweepRequest(path=path, workload=workload, budget_s=2 * budget_s, **options), events.append)
    return report, events


def said(events: list[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Said))


def test_the_same_sweep_again_measures_nothing_again(smollm2_path: Path) -> None:
    first, _ = sweep(smollm2_path, 60, fixed=FEW_TRIALS)
    assert first.n_rounds == looks.N_ROUNDS_A_LOOK
    again, events = sweep(smollm2_path, 60, fixed=FEW_TRIALS)
    assert "Going on from" in said(events)
    assert again.n_resumed == len(first.results)
    assert again.n_model_loads == 0
    assert not any(isinstance(event, TrialFinished) for event in events)
    assert again.recommendation == first.recommendation
    fresh, events = sweep(smollm2_path, 5, is_fresh=True, fixed=FEW_TRIALS)
    assert fresh.n_resumed == 0
    assert fresh.n_model_loads == 1
    assert len(list(first.journal_path.parent.glob("*.jsonl"))) == 2  # the earlier one was put aside


def test_a_longer_run_compares_what_the_shorter_had_no_time_for(smollm2_path: Path) -> None:
    short, _ = sweep(smollm2_path, 5, fixed=FEW_TRIALS)
    longer, _ = sweep(smollm2_path, 60, fixed=FEW_TRIALS)
    ran = [result for result in short.results if result.outcome is Outcome.OK]  # the last may have had no time left
    assert longer.n_resumed == len(ran) < len(longer.results)
    assert longer.n_rounds == looks.N_ROUNDS_A_LOOK
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
    other, events = sweep(path, 5, n_ctx=1024)
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


@pytest.fixture
def heard_signals() -> Iterator[None]:
    """What is started hears the signals that end it, even where the tests run in the background or under nohup.

    A child inherits that a signal is ignored, but not a handler.
    """
    ignored = [stop for stop in STOPS if signal.getsignal(stop) is signal.SIG_IGN]
    for stop in ignored:
        signal.signal(stop, lambda *_: None)
    yield
    for stop in ignored:
        signal.signal(stop, signal.SIG_IGN)


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize(
    "n_kills", [4, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])], ids="{} kills".format
)
def test_a_sweep_killed_again_and_again_loses_and_repeats_nothing(
    n_kills: int, smollm2_path: Path, make_card: CardMaker, tmp_path: Path
) -> None:
    """Killed at random moments in every way, a sweep ends where an undisturbed one does.

    Every trial and round told as finished must stand in the journal, and no trial may run to its end twice. Equal must
    be the layers offloaded and the context of the answer. The card rests at times, so the host is surely faster
    whatever else runs here; what else is chosen for it, the figures, and what there was time for may differ.
    """
    card = make_card(1, 600 * MIB, duty_frac=0.7)
    rng = random.Random(n_kills)
    question, i_kill, seen = Question(smollm2_path, card.endpoint, tmp_path / "home", 128), 0, Seen()
    while i_kill < n_kills:
        process = question.ask()
        told = until_it_measures(process) if i_kill % 2 else ""
        workers, was_alive = kill(process, WAYS[i_kill % len(WAYS)], rng)
        _, rest = process.communicate(timeout=60)
        stderr = told + rest
        check_end(process.returncode, WAYS[i_kill % len(WAYS)], stderr)
        _, orphans = psutil.wait_procs(workers, timeout=20)
        assert not orphans
        seen = seen.after(question.home, stderr)
        check_free(card.endpoint, card.card_bytes)
        print(f"{WAYS[i_kill % len(WAYS)]:16} {was_alive=} code {process.returncode} {seen.words}")
        if was_alive:
            i_kill += 1
        else:  # it had come to its end: ask something else
            question, seen = question.next(), Seen()
    answer = finish(question.ask())
    assert answer["trials"]["resumed"] >= len(seen.finished)
    seen.after(question.home, "")
    undisturbed = finish(dataclasses.replace(question, home=tmp_path / "undisturbed").ask())
    for name, value in {"n_gpu_layers": 0, "use_extra_bufts": True, "n_ctx": 512}.items():
        assert answer["recommended"]["settings"][name] == undisturbed["recommended"]["settings"][name] == value
    assert {"cpu_only", "default"} <= answer["baselines"].keys()


def test_a_worker_killed_from_outside_is_one_failed_trial(smollm2_path: Path) -> None:
    events: list[Event] = []

    def kill_once(event: Event) -> None:
        if isinstance(event, TrialFinished) and not any(isinstance(seen, TrialFinished) for seen in events):
            threading.Timer(0.5, kill_worker).start()
        events.append(event)

    workload = Workload(name=SHORT, n_prefix_cached=0, n_prompt_new=128, n_gen=8)
    report = pipeline.sweep(SweepRequest(path=smollm2_path, workload=workload, budget_s=25), kill_once)
    killed = [result for result in report.results if result.outcome is Outcome.OUT_OF_MEMORY_HOST]
    assert len(killed) <= 1  # the last trial may have had no time left besides
    assert len(report.results) > 2


def test_a_worker_killed_in_a_round_costs_no_finished_trial(smollm2_path: Path) -> None:
    def kill_in_the_next_round(event: Event) -> None:
        if isinstance(event, RoundFinished) and event.n_rounds == 1:
            threading.Timer(0.3, kill_worker).start()

    workload = Workload(name=SHORT, n_prefix_cached=0, n_prompt_new=128, n_gen=8)
    request = SweepRequest(path=smollm2_path, workload=workload, budget_s=45, fixed=FEW_TRIALS)
    struck = pipeline.sweep(request, kill_in_the_next_round)
    assert [result.outcome for result in struck.results].count(Outcome.OUT_OF_MEMORY_HOST) == 1
    again = pipeline.sweep(request, lambda _: None)
    trials = [result.trial.trial_id for result in again.results if result.outcome is Outcome.OK]
    assert len(trials) == len(set(trials))
    assert {result.trial.trial_id for result in struck.results} <= set(trials[: again.n_resumed])


def kill_worker() -> None:
    for child in psutil.Process().children():
        child.kill()


@dataclass(frozen=True, slots=True)
class Question:
    """A sweep on the card and one thread of the host, asked at the command line; `home` keeps what it measured."""

    path: Path
    endpoint: str
    home: Path
    n_prompt_new: int

    def ask(self) -> subprocess.Popen[str]:
        workload = f"0/{self.n_prompt_new}/8/1"
        options = ("--budget", "45s", "--workload", workload, "--goal", "ttft", "--rpc", self.endpoint, "--json")
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                SHORT_SWEEPS,
                "sweep",
                str(self.path),
                *options,
                "--set=n_threads=1",
                "--set=n_threads_batch=1",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OFFLOADTUNE_HOME": str(self.home)},
        )

    def next(self) -> Question:
        return dataclasses.replace(self, n_prompt_new=self.n_prompt_new + 8, home=self.home / "next")


def until_it_measures(process: subprocess.Popen[str]) -> str:
    """What it tells until its first trial has begun or its first round is done, so that starting up is not all."""
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if line.startswith(("trial ", "round ")):
            break
    return told


def kill(process: subprocess.Popen[str], way: str, rng: random.Random) -> tuple[list[psutil.Process], bool]:
    """Kill the parent by the signal `way` names, or its worker first; its workers, and whether it lived till then."""
    time.sleep(rng.uniform(0.5, 7.0))
    was_alive = process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True) if was_alive else []
    name = way
    if way == "worker, SIGKILL":
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        time.sleep(rng.uniform(0.0, 2.0))
        name = "SIGKILL"
        with contextlib.suppress(psutil.NoSuchProcess):
            workers += psutil.Process(process.pid).children(recursive=True)  # the next one may have started
    process.send_signal(signal.Signals[name])
    return workers, was_alive


def check_end(code: int, way: str, stderr: str) -> None:
    """A sweep that began and is told to stop says so by its code; the system ends one still starting up."""
    if way in {stop.name for stop in STOPS}:
        allowed = {130} if "trial 1: " in stderr else {130, -signal.Signals[way]}
        assert code in {0, *allowed}, stderr  # 0: it had just come to its end
        assert code != 130 or "Traceback" not in stderr, stderr


def check_free(endpoint: str, card_bytes: int) -> None:
    """The card serves one client at a time: it answers, and all of its memory is there again."""
    done = subprocess.run(
        [sys.executable, "-m", "offloadtune", "probe", "--quick", "--json", "--rpc", endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (device,) = [one for one in json.loads(done.stdout)["devices"] if one["name"].startswith("RPC")]
    assert device["free_bytes"] > card_bytes - 10 * MIB


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr
    answer: dict[str, Any] = json.loads(stdout)
    return answer


@dataclass(frozen=True, slots=True)
class Seen:
    """Trials that ran to their end, and rounds, as the journal holds them so far."""

    finished: frozenset[str] = frozenset()
    n_rounds: int = 0

    @property
    def words(self) -> str:
        return f"{len(self.finished)} trials, {self.n_rounds} rounds"

    def after(self, home: Path, told: str) -> Seen:
        """What stands now, after a run that told `told`: all that stood before and all that was told, once each."""
        journals = list((home / "sweeps").glob("*/*.jsonl"))
        n_told = sum(": first token " in line for line in told.splitlines())
        n_rounds_told = sum(line.startswith("round ") for line in told.splitlines())
        if not journals:
            assert not self.finished
            assert not n_told
            return self
        (path,) = journals
        content = read_journal(path)
        finished = [result.trial.trial_id for result in content.results if result.outcome is Outcome.OK]
        assert len(finished) == len(set(finished)), "measured to its end twice"
        assert self.finished <= set(finished), "lost"
        assert len(finished) >= len(self.finished) + n_told, "told but not kept"
        assert len(content.rounds) >= self.n_rounds + n_rounds_told, "a round told but not kept"
        return Seen(frozenset(finished), len(content.rounds))

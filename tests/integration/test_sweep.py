"""The main job on real files: whole sweeps on the real engine, with and without the virtual card.

The host is slowed or not by `fixed` settings, so that on any test machine it is known which placement must win. No
test asserts a time; what is compared was measured in the same run.
"""

from __future__ import annotations

import hashlib
import json
import signal
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import MIB, ROOT, CardMaker

from offloadtune import pipeline
from offloadtune.engine import Runner, VisitPlan
from offloadtune.export import llama_kwargs
from offloadtune.recommend import N_ROUNDS_A_LOOK, looks
from offloadtune.records import Goal, Outcome, Settings, Target, Trial, Workload
from offloadtune.store import read_journal
from offloadtune.sweeps import Event, Said, SweepReport, SweepRequest

pytestmark = pytest.mark.engine

SLOW_HOST: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1, "use_extra_bufts": False}
PROMPT = Workload(name="prompt", n_prefix_cached=0, n_prompt_new=128, n_gen=16)


def sweep(path: Path, budget_s: float, **options: Any) -> tuple[SweepReport, list[Event]]:
    events: list[Event] = []
    options.setdefault("workload", PROMPT)
    report = pipeline.sweep(SweepRequest(path=path, budget_s=2 * budget_s, **options), events.append)
    return report, events


@pytest.mark.slow
def test_speed_rises_with_the_layers_on_a_faster_card(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(2, 600 * MIB)
    deep = VisitPlan(
        workload=Workload(name="deep", n_prefix_cached=1536, n_prompt_new=256, n_gen=32), n_steps=31, n_visits=1
    )
    reads: dict[int, list[float]] = {0: [], 16: [], 31: []}
    writes: dict[int, list[float]] = {0: [], 16: [], 31: []}
    with Runner(smollm2_path, [card.endpoint]) as runner:
        for order in ((0, 16, 31), (31, 16, 0), (0, 16, 31)):
            for n_gpu_layers in order:
                settings = Settings(n_gpu_layers=n_gpu_layers, n_ctx=2048, flash_attn_type="enabled", **SLOW_HOST)
                trial = Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="test")
                visits = runner.revisit(trial, deep, timeout_s=120)
                assert isinstance(visits, tuple), visits.reason
                reads[n_gpu_layers].append(visits[-1].prefill_tok_per_s)
                writes[n_gpu_layers].append(1 / visits[-1].token_s)
    median = {n: statistics.median(values) for n, values in reads.items()}
    assert median[0] < median[16] < median[31], reads
    assert statistics.median(writes[0]) < statistics.median(writes[31]), writes


def test_a_card_too_small_gets_what_fits_and_no_death_ends_the_sweep(
    smollm2_path: Path, make_card: CardMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "N_ROUNDS_A_LOOK", N_ROUNDS_A_LOOK)  # fewer leave it a tie with the host
    card = make_card(2, 170 * MIB)
    workload = Workload(name="long prompt", n_prefix_cached=0, n_prompt_new=512, n_gen=32)
    report, _ = sweep(smollm2_path, 60, endpoints=(card.endpoint,), fixed=SLOW_HOST, goal=Goal.TTFT, workload=workload)
    settings = report.recommendation.trial.settings
    assert 1 < settings.n_gpu_layers < 31
    assert settings.n_ctx == 768  # 512 + 32, in blocks of 256
    failed = [r for r in report.results if r.outcome not in {Outcome.OK, Outcome.UNSUPPORTED}]  # as shipped it refuses
    assert failed
    assert all(result.reason and result.evidence for result in failed)
    with Runner(smollm2_path, [card.endpoint]) as runner:
        plan = VisitPlan(workload=workload, n_steps=31, n_visits=1)
        again = runner.run(report.recommendation.trial, plan, timeout_s=60)
    assert again.outcome is Outcome.OK, again.reason


def test_a_slower_card_is_left_alone(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 600 * MIB, duty_frac=0.4)
    report, _ = sweep(smollm2_path, 35, endpoints=(card.endpoint,))
    assert not report.recommendation.trial.settings.offloads
    assert any(reason.startswith("Do not offload: ") for reason in report.recommendation.reasons)
    offloaded = [result for result in report.results if result.trial.settings.offloads]
    assert offloaded[0].outcome is Outcome.OK  # it was tried and lost


def test_the_printed_snippet_keeps_the_promise(gemma3_path: Path) -> None:
    """Gemma-3 sweeps; what is printed runs in a process of its own, as fast as the engine's trial beside it."""
    report, _ = sweep(gemma3_path, 25, workload=Workload(name="short", n_prefix_cached=0, n_prompt_new=256, n_gen=32))
    assert report.recommendation.trial.target is Target.LLAMA_CPP_PYTHON
    profile = tomllib.loads(report.profile_path.read_text(encoding="utf-8"))
    assert profile["apply"]["python"] == report.apply_text
    assert profile["settings"]["n_ctx"] == report.recommendation.trial.settings.n_ctx
    ratios = compare_with_snippet(report, gemma3_path, ())
    assert 1 / 1.5 < statistics.median(ratios) < 1.5, ratios


def test_the_recipe_for_the_card_runs_too(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(2, 600 * MIB)
    fixed = {**SLOW_HOST, "n_gpu_layers": 31}
    report, _ = sweep(smollm2_path, 15, endpoints=(card.endpoint,), fixed=fixed)
    assert "use_extra_bufts = False" in report.apply_text
    ratios = compare_with_snippet(report, smollm2_path, (card.endpoint,))
    assert 1 / 1.5 < statistics.median(ratios) < 1.5, ratios


def test_the_weights_stay_as_they_were(smollm2_path: Path) -> None:
    before = smollm2_path.stat()
    digest = hashlib.sha256(smollm2_path.read_bytes()).hexdigest()
    report, events = sweep(smollm2_path, 12, prove=True)
    after = smollm2_path.stat()
    assert report.sha256 == digest == hashlib.sha256(smollm2_path.read_bytes()).hexdigest()
    assert (before.st_size, before.st_mtime_ns, before.st_ino) == (after.st_size, after.st_mtime_ns, after.st_ino)
    assert not any(isinstance(event, Said) and "Warning" in event.text for event in events)


def test_a_broken_engine_build_is_found_and_worked_round(smollm2_path: Path) -> None:
    command = (sys.executable, str(ROOT / "tests/faulty_worker.py"), "s['use_extra_bufts']", "SIGILL")
    report, events = sweep(smollm2_path, 15, worker_command=command)
    assert report.recommendation.trial.settings.use_extra_bufts is False
    assert any(
        isinstance(event, Said) and "SIGILL" in event.text and "use_extra_bufts=False" in event.text for event in events
    )
    assert not any(result.outcome is Outcome.CRASHED for result in report.results)
    _, again = sweep(smollm2_path, 5, worker_command=command)
    assert any(isinstance(event, Said) and "an earlier self-test" in event.text for event in again)


def test_the_journal_holds_every_trial_and_round(smollm2_path: Path) -> None:
    report, _ = sweep(smollm2_path, 25)
    journal = read_journal(report.journal_path)
    assert journal.results == report.results
    assert len(journal.rounds) == report.n_rounds > 0
    assert journal.recommendation == report.recommendation
    assert journal.header.machine_id == report.machine.machine_id


def test_ctrl_c_keeps_everything_and_prints_the_best_so_far(smollm2_path: Path, home: Path) -> None:
    options = ["--budget", "100s", "--workload", "0/128/16/1", "--json"]
    command = [sys.executable, "-m", "offloadtune", "sweep", str(smollm2_path), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("the CPU alone: first token" in line for line in process.stderr)  # the first trial has ended
            children = psutil.Process(process.pid).children(recursive=True)
            assert children
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
            assert process.returncode == 130, stderr
        finally:
            process.kill()
    value = json.loads(stdout)
    assert value["interrupted"] is True
    assert value["trials"]["ok"] >= 1
    assert value["recommended"]["ttft_s"]["p50"] > 0
    assert Path(value["profile_path"]).is_relative_to(home)
    assert len(read_journal(Path(value["journal_path"])).results) >= 1
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_the_server_target_prints_a_command_with_its_own_defaults(smollm2_path: Path) -> None:
    report, _ = sweep(smollm2_path, 15, target=Target.LLAMA_SERVER)
    settings = report.recommendation.trial.settings
    assert (settings.swa_full, settings.n_outputs_max) == (False, settings.n_seq_max)
    assert report.apply_text.startswith("llama-server")
    assert f"--ctx-size {settings.n_ctx}" in report.apply_text


def compare_with_snippet(report: SweepReport, path: Path, endpoints: tuple[str, ...]) -> list[float]:
    """Turn times of the snippet in a fresh process over those of the engine's own trial, in turns."""
    workload = report.recommendation.workload
    plan = VisitPlan(workload=workload, n_steps=31, n_visits=2)
    ratios = []
    for _ in range(2):
        with Runner(path, endpoints, arguments=lambda trial: llama_kwargs(trial.settings)) as runner:
            visits = runner.revisit(report.recommendation.trial, plan, timeout_s=60)
            assert isinstance(visits, tuple), visits.reason
        ours = statistics.median(visit.turn_s(workload.n_gen) for visit in visits[1:])
        program = report.apply_text + MEASURE.format(n_prompt=workload.n_prompt_new, n_gen=workload.n_gen)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr[-2000:]
        ratios.append(float(done.stdout.split()[-1]) / ours)
    return ratios


MEASURE = """
import time
from pathlib import Path
text = Path("offloadtune/engine/worker/prompt.txt").read_bytes()
prompt = llm.detokenize(llm.tokenize(text)[:{n_prompt}])
times = []
for _ in range(3):
    llm.reset()
    start = time.perf_counter()
    llm.eval(llm.tokenize(prompt)[:{n_prompt}])
    for _ in range({n_gen} - 1):
        llm.eval([llm.sample(temp=0.0)])
    llm.sample(temp=0.0)
    times.append(time.perf_counter() - start)
print(sorted(times[1:])[0])
"""

"""The engine's promises, on the real llama.cpp in real child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import MIB, ROOT, CardMaker

from offloadtune.engine import Runner, VisitPlan, WorkerProcess, osdoor, self_test
from offloadtune.engine.classify import classify
from offloadtune.engine.process import WorkerDiedError, WorkerRefusedError
from offloadtune.errors import EngineError
from offloadtune.footprint import estimate_footprint
from offloadtune.gguf import read_gguf
from offloadtune.records import Device, Outcome, Settings, Target, Trial, TrialResult, Workload

pytestmark = pytest.mark.engine

SMALL = Settings(n_ctx=512, n_threads=2, n_threads_batch=2, flash_attn_type="enabled")
PLAN = VisitPlan(workload=Workload(name="small", n_prefix_cached=100, n_prompt_new=64, n_gen=8), n_steps=7, n_visits=2)


def trial(settings: Settings) -> Trial:
    return Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="test")


def run(runner: Runner, settings: Settings, timeout_s: float = 60) -> TrialResult:
    return runner.run(trial(settings), PLAN, timeout_s=timeout_s)


def test_a_trial_tells_raw_times_memory_and_peaks(smollm2_path: Path) -> None:
    with Runner(smollm2_path) as runner:
        result = run(runner, SMALL)
    assert result.outcome is Outcome.OK, result.reason
    warmup, *visits = result.visits
    assert warmup.is_warmup
    assert len(visits) == 2
    for visit in visits:
        assert (visit.n_prefix_cached, visit.n_prompt_new, len(visit.step_ns)) == (100, 64, 7)
        # without waiting for the device a prefill reads as nothing: 64 tokens take longer than one
        assert visit.prefill_ns > max(visit.tokenize_ns, min(visit.step_ns))
        assert min(visit.first_sample_ns, visit.first_decode_ns, *visit.step_ns, *visit.sample_ns) > 0
    assert sum(row.weights_bytes for row in result.memory) == 96_576_768
    assert sum(row.kv_cache_bytes for row in result.memory) == 512 * 30 * 192 * 2 * 2
    assert result.host_peak_rss_bytes is not None
    assert result.host_peak_rss_bytes > 96_576_768


def test_context_settings_share_a_load_and_placements_do_not(smollm2_path: Path) -> None:
    with Runner(smollm2_path) as runner:
        for settings in (SMALL, SMALL.replace(n_ubatch=128), SMALL.replace(flash_attn_type="disabled")):
            assert run(runner, settings).outcome is Outcome.OK
        assert runner.n_model_loads == 1
        assert run(runner, SMALL.replace(use_extra_bufts=False)).outcome is Outcome.OK
        assert runner.n_model_loads == 2


def test_a_visit_depends_on_its_depth_not_on_how_it_was_reached(smollm2_path: Path) -> None:
    """The state saved at a depth is restored in another context: the second needs no prefill of the prefix."""
    deep = VisitPlan(
        workload=Workload(name="deep", n_prefix_cached=1500, n_prompt_new=8, n_gen=2), n_steps=1, n_visits=1
    )
    settings = SMALL.replace(n_ctx=2048)
    with Runner(smollm2_path) as runner:
        first = runner.run(trial(settings), deep, timeout_s=60)
        second = runner.run(trial(settings.replace(n_ubatch=256)), deep, timeout_s=60)
    assert first.outcome is second.outcome is Outcome.OK
    assert second.duration_s < first.duration_s / 2  # it reads a seventh of the tokens, in the same process


def test_what_the_engine_refuses_is_an_outcome(smollm2_path: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.gguf"
    unknown.write_bytes(smollm2_path.read_bytes().replace(b"llama", b"lluma"))
    with Runner(unknown) as runner:
        result = run(runner, SMALL)
    assert result.outcome is Outcome.UNSUPPORTED
    assert "unknown model architecture" in result.reason
    with Runner(smollm2_path) as runner:
        result = run(runner, SMALL.replace(type_v="q8_0", flash_attn_type="disabled"))
        assert result.outcome in {Outcome.UNSUPPORTED, Outcome.LOAD_FAILED}
        assert run(runner, SMALL).outcome is Outcome.OK  # and the next trial runs


def test_a_trial_that_takes_too_long_is_ended(smollm2_path: Path) -> None:
    with Runner(smollm2_path) as runner:
        assert run(runner, SMALL, timeout_s=0.01).outcome is Outcome.TIMED_OUT
        assert run(runner, SMALL).outcome is Outcome.OK


@pytest.mark.parametrize(("name", "outcome"), [("SIGILL", Outcome.CRASHED), ("SIGKILL", Outcome.OUT_OF_MEMORY_HOST)])
def test_a_death_is_an_outcome_with_its_signal(smollm2_path: Path, name: str, outcome: Outcome) -> None:
    with Runner(smollm2_path, command=faulty("s['n_ubatch'] == 128", name)) as runner:
        result = run(runner, SMALL.replace(n_ubatch=128))
        assert (result.outcome, result.evidence and result.evidence.signal) == (outcome, name)
        assert run(runner, SMALL).outcome is Outcome.OK


def test_the_self_test_finds_the_knob_that_keeps_a_broken_build_alive(smollm2_path: Path) -> None:
    with Runner(smollm2_path, command=faulty("s['use_extra_bufts']", "SIGILL")) as runner:
        found = self_test(runner, SMALL, timeout_s=60)
    assert found.knobs == {"use_extra_bufts": False}
    assert "SIGILL" in found.sentence


def test_the_self_test_says_when_nothing_helps(smollm2_path: Path) -> None:
    with Runner(smollm2_path, command=faulty("True", "SIGSEGV")) as runner:
        found = self_test(runner, SMALL, timeout_s=60)
    assert found.knobs is None
    assert "SIGSEGV" in found.sentence


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    """The parent is killed; its worker goes by itself."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\nfrom offloadtune.engine import WorkerProcess\n"
        "worker = WorkerProcess()\nprint(worker.pid, flush=True)\nsys.stdin.read()\n",
        encoding="utf-8",
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    _, alive = psutil.wait_procs([worker], timeout=20)
    assert not alive


def test_the_virtual_card_tells_the_truth_about_its_memory(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(2, 400 * MIB)
    facts = read_gguf(smollm2_path)
    for n_gpu_layers in (0, 10, 31, 31):
        settings = SMALL.replace(n_gpu_layers=n_gpu_layers, use_extra_bufts=False)
        with Runner(smollm2_path, [card.endpoint]) as runner:
            device = the_card(runner)
            assert device.total_bytes == 400 * MIB
            assert device.free_bytes > 390 * MIB  # whatever the client before took has come back
            result = run(runner, settings)
            assert result.outcome is Outcome.OK, result.reason
            on_card = sum(row.total_bytes for row in result.memory if not row.is_host)
            peak = dict(result.device_peak_bytes)[device.name]
            least = estimate_footprint(facts, settings).least_bytes
            assert on_card >= least
            assert least <= peak <= on_card + 8 * MIB


def test_too_much_for_the_card_is_out_of_memory_and_the_next_trial_runs(
    smollm2_path: Path, make_card: CardMaker
) -> None:
    card = make_card(2, 120 * MIB)
    with Runner(smollm2_path, [card.endpoint]) as runner:
        failed = run(runner, SMALL.replace(n_gpu_layers=31, n_ctx=2048, use_extra_bufts=False))
        assert failed.outcome in {Outcome.OUT_OF_MEMORY_DEVICE, Outcome.CRASHED}
        assert failed.evidence is not None
        assert run(runner, SMALL.replace(n_gpu_layers=2, use_extra_bufts=False)).outcome is Outcome.OK


def test_a_dead_endpoint_is_said_at_once() -> None:
    with pytest.raises(EngineError, match=r"Nothing answers at the RPC endpoint 127.0.0.1:9"):
        WorkerProcess(["127.0.0.1:9"])


def faulty(condition: str, name: str) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "tests/faulty_worker.py"), condition, name)


def the_card(runner: Runner) -> Device:
    _, devices = runner.describe()
    return next(device for device in devices if device.is_offload_target)


SILENT_ON_STDERR = """\
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["call"] == "hello":
        reply = {"value": {"build": {}, "devices": []}}
    else:
        reply = {"refused": "open", "reason": "no", "is_telling": False, "lines": ["cudaMalloc failed: out of memory"]}
    print(json.dumps({"id": request["id"], **reply}), flush=True)
"""


def test_a_child_that_nothing_ends_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is that a driver does not let go of."""
    waits = []
    worker = WorkerProcess(command=(sys.executable, "-c", SILENT_ON_STDERR))
    child = worker._process

    def wait(timeout: float) -> None:
        waits.append(timeout)
        raise subprocess.TimeoutExpired(child.args, timeout)

    os.kill(worker.pid, signal.SIGSTOP)
    with monkeypatch.context() as stuck:
        stuck.setattr(osdoor, "kill_group", lambda _child: None)
        stuck.setattr(child, "wait", wait)
        with pytest.raises(WorkerDiedError) as caught:
            worker.ask("open", timeout_s=0.1)
        worker.end()
        worker.leave()
    assert caught.value.timed_out
    assert len(waits) == 1
    worker.end()
    child.kill()
    child.wait()


def test_a_refusal_is_explained_by_its_own_lines_whatever_has_reached_stderr() -> None:
    """Two pipes keep no order between them: what was printed before a reply may be read after it."""
    worker = WorkerProcess(command=(sys.executable, "-c", SILENT_ON_STDERR))
    try:
        with pytest.raises(WorkerRefusedError) as caught:
            worker.ask("open", timeout_s=30)
    finally:
        worker.end()
    assert caught.value.evidence.last_lines == ("cudaMalloc failed: out of memory",)
    assert classify(caught.value.evidence, offloads=True)[0] is Outcome.OUT_OF_MEMORY_DEVICE

"""What the engine reads from the environment when it starts: a worker begins with it, and another takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloadtune.engine import Runner
from offloadtune.engine.process import WorkerProcess
from offloadtune.records import MIN_BATCH_VARIABLE, Outcome, Settings

pytestmark = pytest.mark.engine

SETTINGS = Settings(n_threads=1, n_threads_batch=1, use_extra_bufts=False)


def variable_of(pid: int) -> str | None:
    """The value that the process began with."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = [word for word in words if word.startswith(f"{MIN_BATCH_VARIABLE}=".encode())]
    return found[0].decode().partition("=")[2] if found else None


def test_a_worker_begins_anew_when_the_variable_changes(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIN_BATCH_VARIABLE, raising=False)
    seen = []
    with Runner(smollm2_path) as runner:
        for n_tokens in (None, 64, 64, None):
            settings = SETTINGS.replace(op_offload_min_batch=n_tokens, no_host=n_tokens is not None)
            assert runner.try_tiny(settings, timeout_s=120)[0] is Outcome.OK
            (pid,) = runner.pids
            seen.append((pid, variable_of(pid)))
        assert runner.n_model_loads == 3
    (first, *_), (second, *_), third, (last, *_) = seen
    assert [value for _, value in seen] == [None, "64", "64", None]
    assert third[0] == second  # the same settings need no other
    assert len({first, second, last}) == 3


def test_a_forecast_is_asked_in_the_same_environment(smollm2_path: Path) -> None:
    with Runner(smollm2_path) as runner:
        settings = SETTINGS.replace(op_offload_min_batch=128)
        assert len(runner.forecast([settings], timeout_s=120)) == 1
        assert [variable_of(pid) for pid in runner.pids] == ["128"]


def test_what_is_added_goes_before_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIN_BATCH_VARIABLE, "7")
    for environment, value in (({}, "7"), ({MIN_BATCH_VARIABLE: "9"}, "9")):
        worker = WorkerProcess(environment=environment)
        try:
            assert variable_of(worker.pid) == value
        finally:
            worker.leave()

"""What ends with the budget: the hashing of a large file; and what is said where there was no time for an answer."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_sweep import bare_sweep
from sample_records import FACTS, MACHINE
from synthetic import WORKLOAD, made_up_facts, made_up_space

from offloadtune.errors import BudgetError, NothingWorksError, OffloadTuneError
from offloadtune.gguf import sha256_of
from offloadtune.pipeline import answering
from offloadtune.records import GgufFacts, Outcome, TrialResult
from offloadtune.search import baseline_trials
from offloadtune.sweeps import Event, Said

CONTENT = b"weights" * 100
SPACE = made_up_space(made_up_facts(), device_bytes=8 << 30)
TRIAL = baseline_trials(SPACE)["default"]


@pytest.fixture
def facts(tmp_path: Path) -> GgufFacts:
    path = tmp_path / "model.gguf"
    path.write_bytes(CONTENT)
    return dataclasses.replace(FACTS, path=path, shard_paths=(path,), file_bytes=len(CONTENT))


def test_a_hash_that_is_late_is_none(facts: GgufFacts) -> None:
    assert sha256_of(facts.shard_paths) == hashlib.sha256(CONTENT).hexdigest()
    assert sha256_of(facts.shard_paths, until_s=time.monotonic() - 1) is None


def test_a_large_file_is_hashed_only_while_there_is_time(facts: GgufFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    late_s = time.monotonic() - 1
    assert answering.sha256(facts, events.append, force=False, until_s=late_s) is not None  # small files always are
    monkeypatch.setattr(answering, "_LARGE_BYTES", 10)
    facts.path.write_bytes(CONTENT[::-1])  # another file: what is known of one is not asked again
    assert answering.sha256(facts, events.append, force=False, until_s=late_s) is None
    (said,) = events
    assert isinstance(said, Said)
    assert "--prove hashes all" in said.text
    assert answering.sha256(facts, events.append, force=True, until_s=math.inf) is not None


def nothing(**known: Any) -> OffloadTuneError:
    sweep = bare_sweep()
    sweep.is_interrupted, sweep.space, sweep.machine = False, SPACE, MACHINE
    sweep.request = SimpleNamespace(workload=WORKLOAD, budget_s=30.0)
    for name, value in known.items():
        setattr(sweep, name, value)
    return answering._nothing(sweep)


def test_a_budget_that_was_too_short_tells_how_far_the_first_trial_came() -> None:
    late = TrialResult(trial=TRIAL, outcome=Outcome.TIMED_OUT, reason="no answer in time, while measuring")
    error = nothing(results=[late, dataclasses.replace(late, load_ns=12_000_000_000)])
    assert isinstance(error, BudgetError)
    assert str(error).endswith("had finished: no answer in time, while measuring, and loading took 12.0 s.")
    assert "--budget 120s" in error.hint
    assert str(nothing()).endswith("before the first trial had finished.")


def test_a_device_that_was_gone_from_the_start_is_named() -> None:
    error = nothing(is_gone=True, changes=["CUDA0 is gone: the engine lists it no more."])
    assert isinstance(error, NothingWorksError)
    assert "CUDA0 is gone" in str(error)

"""A machine that changes under a real sweep: the memory of the virtual card is taken between two trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, CardMaker

from offloadtune import pipeline
from offloadtune.engine import Runner, VisitPlan
from offloadtune.pipeline import taking
from offloadtune.pipeline.recalling import recall
from offloadtune.recalls import Question
from offloadtune.records import Outcome, Settings, Target, Trial, TrialResult, Workload
from offloadtune.store import read_journal
from offloadtune.sweeps import Event, Said, SweepRequest, TrialFinished, TrialStarted

pytestmark = pytest.mark.engine

WORKLOAD = Workload(name="0/64/4/1", n_prefix_cached=0, n_prompt_new=64, n_gen=4)
ONE_THREAD: dict[str, Any] = {
    "n_threads": 1,
    "n_threads_batch": 1,
    "n_ubatch": 64,
    "flash_attn_type": "enabled",
    "n_ctx": 512,
}


def test_placements_side_by_side_are_loaded_once_and_a_trial_is_alone(smollm2_path: Path) -> None:
    settings = [Settings(use_extra_bufts=False, load_mode=mode, **ONE_THREAD) for mode in ("mmap", "none")]
    one, other = (Trial(settings=each, target=Target.LLAMA_SERVER, why="test") for each in settings)
    plan = VisitPlan(workload=WORKLOAD, n_steps=2, n_visits=1)
    with Runner(smollm2_path) as runner:

        def loads(trial: Trial) -> set[int]:
            visits = runner.revisit(trial, plan, timeout_s=120)
            assert not isinstance(visits, TrialResult)
            return {visit.i_load for visit in visits}

        runner.keep_abreast([each.placement for each in settings])
        assert [loads(trial) for trial in (one, other, one, other)] == [{1}, {2}, {1}, {2}]
        assert len(runner.loaded) == runner.n_model_loads == 2
        runner.keep_abreast(())
        assert runner.run(other, plan, timeout_s=120).outcome is Outcome.OK
        assert runner.loaded == {other.settings.placement}
        assert [loads(trial) for trial in (other, one, other)] == [{2}, {3}, {4}]
        assert runner.free_bytes(timeout_s=60) == {}  # the CPU is no device to offload to
        assert runner.loaded == frozenset()


@pytest.mark.parametrize("when", [TrialFinished, TrialStarted], ids=["between trials", "before a load"])
def test_memory_taken_under_a_sweep(
    when: type[Event], smollm2_path: Path, make_card: CardMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The taker comes when the first trial, of all layers, is over, or has just begun; half the card is left.

    Nothing that needs more is recommended, nothing that ran out is held against its settings, and it is said.
    """
    monkeypatch.setattr(taking, "_WAIT_MOST_S", 2.0)
    taken = tmp_path / "taken"
    taken.write_text("0", encoding="ascii")
    card = make_card(1, 500 * MIB, driver_bytes=0, taken=taken)
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, when) and taken.read_text(encoding="ascii") == "0":
            taken.write_text(str(400 * MIB), encoding="ascii")

    request = SweepRequest(
        path=smollm2_path, workload=WORKLOAD, budget_s=120, endpoints=(card.endpoint,), fixed=ONE_THREAD
    )
    report = pipeline.sweep(request, listen)
    said = [event.text for event in events if isinstance(event, Said)]
    assert any(text.startswith("400 MiB less of RPC0") and "Waiting for it" in text for text in said), said
    assert any(text == "The sweep goes on with what is free: 100 MiB of RPC0." for text in said), said
    assert len(report.changes) == 1
    content = read_journal(report.journal_path)
    assert [dict(one.free_bytes) for one in content.changes] == [{"RPC0": 100 * MIB}]
    assert sum(n_bytes for _, n_bytes in report.recommendation.peak_bytes) <= 100 * MIB
    after = content.results[content.n_results_at_change[0] :]
    assert [one for one in after if one.outcome is Outcome.OK]
    assert report.ended
    recalled = recall(Question(path=smollm2_path, workload=WORKLOAD), lambda _said: None)
    assert recalled.answer == report.recommendation
    assert report.changes[0] in recalled.notes
    if when is TrialStarted:
        assert any("which is not held against it" in text for text in said), said

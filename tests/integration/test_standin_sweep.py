"""Sweeps of models that are not here, on the real engine: by a stand-in of full size, and by two of fewer layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import check_refused, offloadtune
from conftest import MIB, CardMaker
from small_moe import write_small_moe

from offloadtune import pipeline, report
from offloadtune.engine import Abreast, Runner, TrialFailedError, VisitPlan
from offloadtune.gguf import read_gguf
from offloadtune.pipeline import standin_sweeping
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts, Outcome, Settings, Target, Trial, Workload
from offloadtune.sweeps import Event, FileGrows, Said, StandinReport, SweepRequest

pytestmark = pytest.mark.engine

SLOW_HOST: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1, "use_extra_bufts": False}
SHORT = Workload(name="short", n_prefix_cached=0, n_prompt_new=64, n_gen=8)
PLAN = VisitPlan(workload=SHORT, n_steps=4, n_visits=1)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFLOADTUNE_HOME", str(tmp_path))
    return tmp_path


def sweep(shape: str, quant: str, budget_s: float, **options: Any) -> tuple[StandinReport, list[Event]]:
    events: list[Event] = []
    request = SweepRequest(path=Path(), budget_s=budget_s, workload=SHORT, **options)
    return pipeline.sweep_standin(shape, quant, request, events.append), events


def no_room_for_all(sizes: Sequence[tuple[GgufFacts, int]]) -> str:
    return "the disk is full" if any(n_layer == whole.n_layer for whole, n_layer in sizes) else ""


def said(events: Sequence[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Said))


def test_files_side_by_side_take_turns(smollm2_path: Path, gemma3_path: Path) -> None:
    def trial(n_ctx: int) -> Trial:
        settings = Settings(devices=(), n_ctx=n_ctx, n_threads=2, n_threads_batch=2)
        return Trial(settings=settings, target=Target.LLAMA_SERVER, why="test")

    with Abreast() as abreast:
        rounds = abreast.rounds([(smollm2_path, trial(256)), (gemma3_path, trial(512))], PLAN, timeout_s=120)
        found = [next(rounds) for _ in range(2)]
        assert abreast.pids
        rounds.close()
        assert not abreast.pids
    assert all(len(one) == 2 and not any(visit.is_warmup for visit in one) for one in found)
    assert all(visit.n_prompt_new == 64 and len(visit.step_ns) == 4 for one in found for visit in one)
    with Abreast() as abreast, pytest.raises(TrialFailedError) as caught:
        next(abreast.rounds([(smollm2_path, trial(256)), (Path("not there.gguf"), trial(256))], PLAN, timeout_s=60))
    assert caught.value.result.outcome is Outcome.LOAD_FAILED
    assert caught.value.result.reason


def test_a_model_that_is_not_here_is_swept_in_full_and_its_file_is_used_again(home: Path) -> None:
    found, events = sweep("smollm2-135m", "Q4_1", 40, fixed={"n_threads": 2, "n_threads_batch": 2})
    assert any(isinstance(event, FileGrows) for event in events)
    assert found.depths == ()
    facts = read_gguf(next((home / "standins").glob("*.gguf")))
    assert found.sweep.facts.gguf_id == facts.gguf_id
    assert f"The stand-in of all of 30 layers stays at {facts.path}, " in said(events)
    assert f"{facts.path.name} is a stand-in for SmolLM2-135M Q4_1, with random weights: it says nothing" in said(
        events
    )
    _, events = sweep("smollm2-135m", "Q4_1", 20, fixed={"n_threads": 2, "n_threads_batch": 2})
    assert not any(isinstance(event, FileGrows) for event in events)


def test_fewer_layers_say_what_the_whole_comes_to(
    home: Path, make_card: CardMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """11 of 30 blocks on the card: of 8 between 2 and 3, of 16 between 5 and 6, the output too."""
    monkeypatch.setattr(standin_sweeping, "_full_disk", no_room_for_all)
    card = make_card(2, 400 * MIB)
    fixed = {"n_gpu_layers": 12, **SLOW_HOST}
    found, events = sweep("smollm2-135m", "Q4_1", 40, endpoints=(card.endpoint,), fixed=fixed)
    assert found.depths == (8, 16)
    assert {read_gguf(path).n_layer for path in (home / "standins").glob("*.gguf")} == {8, 16}
    assert "No stand-in of all 30 layers: the disk is full." in said(events)
    assert found.sweep.recommendation.trial.settings.n_gpu_layers == 7
    best, cpu_only = found.wholes
    assert (best.name, best.settings.n_gpu_layers) == ("recommended", 12)
    assert (cpu_only.name, cpu_only.settings.n_gpu_layers) == ("cpu_only", 0)
    for phase in (best.ttft, best.token):
        assert phase.linear_s.low <= phase.linear_s.p50 <= phase.linear_s.high
        assert phase.scaled_s.p50 > 0
    value = report.standin_sweep_json(found)
    assert value["whole"]["depths"] == [8, 16]
    assert value["whole"]["figures"]["recommended"]["settings"]["n_gpu_layers"] == 12
    assert "n_gpu_layers=12" in found.apply_text


@pytest.mark.usefixtures("home")
def test_a_card_that_holds_a_part_holds_the_same_part_of_fewer_layers(
    make_card: CardMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin_sweeping, "_full_disk", no_room_for_all)
    card = make_card(2, 90 * MIB)
    found, _ = sweep("smollm2-135m", "Q4_1", 40, endpoints=(card.endpoint,), fixed=SLOW_HOST)
    whole = facts_of_shape("smollm2-135m", "Q4_1")
    n_tried = {result.trial.settings.n_gpu_layers for result in found.sweep.results}
    assert max(n_tried) <= 16  # the card has no room for all of the whole
    n_best = found.sweep.recommendation.trial.settings.n_gpu_layers
    assert abs(found.wholes[0].settings.n_gpu_layers / (whole.n_layer + 1) - n_best / 17) < 0.1


def test_a_mixture_of_experts_and_a_sliding_window_are_swept_from_end_to_end(home: Path, make_card: CardMaker) -> None:
    """Half of each on the card, which also holds 514 MiB for the windows' vocabulary; what was found runs again."""
    mixture, windows = home / "mixture.gguf", home / "windows.gguf"
    write_small_moe(mixture)
    asked = pipeline.StandinRequest(source="gemma-3-270m", quant="Q4_K_M", output=windows, n_layer=12)
    assert pipeline.write_standin(asked).n_swa
    for path in (mixture, windows):
        facts = read_gguf(path)
        assert facts.stands_for
        card = make_card(2, 1100 * MIB)
        fixed = {"n_gpu_layers": facts.n_layer // 2 + 1, **SLOW_HOST}
        request = SweepRequest(path=path, budget_s=30, workload=SHORT, endpoints=(card.endpoint,), fixed=fixed)
        found = pipeline.sweep(request, lambda _: None)
        assert found.recommendation.trial.settings.offloads
        assert {result.outcome for result in found.results} <= {Outcome.OK, Outcome.UNSUPPORTED, Outcome.TIMED_OUT}
        with Runner(path, (card.endpoint,)) as runner:
            again = runner.run(found.recommendation.trial, PLAN, timeout_s=60)
        assert again.outcome is Outcome.OK, again.reason


def test_what_names_no_model_or_two_is_refused() -> None:
    check_refused(offloadtune("sweep"), 2, "FILE or --standin")
    check_refused(offloadtune("sweep", "a.gguf", "--standin", "llama-3-8b", "--quant", "Q4_K_M"), 2, "not both")
    check_refused(offloadtune("sweep", "--standin", "llama-3-8b"), 2, "needs a quantisation")
    check_refused(offloadtune("sweep", "--standin", "no-such-model", "--quant", "Q4_K_M"), 2, "no-such-model")

"""A calibration with a made-up engine: what it learns, and what it does when runs fail, end, or are known already."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from sample_records import ENGINE, MACHINE
from synthetic import made_up_facts

from offloadtune import store
from offloadtune.cli.calibrate import calibrate
from offloadtune.engine import VisitPlan
from offloadtune.errors import BudgetError, InterruptedSweepError, NothingWorksError, UsageError
from offloadtune.pipeline import calibrating_speed
from offloadtune.pipeline.calibrating_speed import CalibratingSpeed
from offloadtune.pipeline.checking import check_calibration
from offloadtune.pipeline.rigs import rig_of_machine
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.records import (
    Basis,
    Device,
    EngineBuild,
    Evidence,
    GgufFacts,
    Machine,
    Outcome,
    Settings,
    StandsFor,
    Trial,
    TrialResult,
    Visit,
)
from offloadtune.speed import amounts_for, laws_of
from offloadtune.speed.design import N_PASSAGES_MOST
from offloadtune.speeds import CalibrationEvent, CalibrationRequest, PassageMeasured, Phase
from offloadtune.sweeps import Said

FACTS = made_up_facts()
EXPERTS = dataclasses.replace(FACTS, n_expert=8, n_expert_used=2)
LAWS = laws_of(rig_of_machine(MACHINE), FACTS)
TIMES = 3.0
"""The made-up machine takes so many times as long as it is believed to."""


class MadeUpRunner:
    """Obeys the law; `fails` says how the passage with these settings ends, None where it runs."""

    def __init__(self, fails: Callable[[Settings], Outcome | None] = lambda _settings: None) -> None:
        self.fails, self.pids, self.n_model_loads = fails, (), 0
        self.asked: list[Settings] = []
        self.around_visits: Any = None
        self.placement: Any = None

    def describe(self) -> tuple[EngineBuild, tuple[Device, ...]]:
        assert MACHINE.devices is not None
        return ENGINE, MACHINE.devices

    def kill(self) -> None:
        self.placement = None

    def try_tiny(self, settings: Settings, *, timeout_s: float) -> tuple[Outcome, str, None]:
        assert settings
        assert timeout_s >= 0
        return Outcome.OK, "", None

    def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        assert timeout_s >= 0
        settings = trial.settings
        self.asked.append(settings)
        if outcome := self.fails(settings):
            return TrialResult(trial=trial, outcome=outcome, reason=f"made up {outcome.value}")
        self.n_model_loads += self.placement != settings.placement
        self.placement = settings.placement
        with self.around_visits():
            return tuple(self._visit(settings, plan, is_warmup=i == 0) for i in range(plan.n_visits + 1))

    def _visit(self, settings: Settings, plan: VisitPlan, *, is_warmup: bool) -> Visit:
        work = plan.workload
        seconds = {
            phase: TIMES
            * float(
                LAWS.of(phase).seconds(
                    amounts_for(phase, FACTS, (settings,), LAWS.rig, n_prompt=n_prompt, depth=depth)
                )[0]
            )
            for phase, n_prompt, depth in (
                (Phase.PREFILL, work.n_prompt_new, work.n_prefix_cached),
                (Phase.DECODE, 1, work.n_prefix_cached + work.n_prompt_new + 9),
            )
        }
        return Visit(
            is_warmup=is_warmup,
            i_load=self.n_model_loads,
            n_prefix_cached=work.n_prefix_cached,
            n_prompt_new=work.n_prompt_new,
            tokenize_ns=0,
            prefill_ns=round(seconds[Phase.PREFILL] * 1e9),
            first_sample_ns=0,
            first_decode_ns=round(seconds[Phase.DECODE] * 1e9),
            step_ns=(round(seconds[Phase.DECODE] * 1e9),) * plan.n_steps,
            sample_ns=(0,) * plan.n_steps,
        )


@pytest.fixture(autouse=True)
def _same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating_speed, "probe_host", lambda: MACHINE.host)
    monkeypatch.setattr(calibrating_speed, "standing_now", lambda _endpoints: ())
    monkeypatch.setattr("offloadtune.pipeline.undisturbed._N_REPEATS_MOST", 0)  # whatever else runs here


def calibrating(
    runner: MadeUpRunner | None = None, *, budget_s: float = 1000.0, facts: GgufFacts = FACTS, **options: Any
) -> tuple[CalibratingSpeed, list[CalibrationEvent]]:
    events: list[CalibrationEvent] = []
    request = CalibrationRequest(path=FACTS.path, budget_s=budget_s, **options)
    runner = runner or MadeUpRunner()
    return CalibratingSpeed(request, facts, 2560, runner, events.append), events  # type: ignore[arg-type]


def test_it_learns_a_machine_and_says_how_sure_it_is() -> None:
    one, events = calibrating()
    one.measure()
    report = one.report()
    passages = [event for event in events if isinstance(event, PassageMeasured)]
    assert 2 <= len(passages) == report.n_passages <= N_PASSAGES_MOST
    assert [event.n_done for event in passages] == list(range(1, len(passages) + 1))
    assert all({check.phase for check in event.checks} == set(Phase) for event in passages)
    assert report.devices == ("CUDA0",)
    assert report.n_loads <= report.n_passages
    assert len(report.checks) == 2 * report.n_passages
    assert not report.is_interrupted
    laws = SpeedMemory(FACTS, one.machine, ENGINE).laws()
    assert laws.decode.basis is laws.prefill.basis is Basis.CALIBRATED
    assert 2 <= len(laws.prefill.runs) <= report.n_passages  # equal ones replace each other
    assert len(laws.decode.runs) + len(laws.prefill.runs) == report.n_timings
    assert report.store_path == store.speed_path(one.machine)
    for phase, n_prompt, depth in ((Phase.DECODE, 1, 1000), (Phase.PREFILL, 300, 100)):
        asked = [one.settings.replace(n_gpu_layers=k) for k in range(0, FACTS.n_layer + 2, 3)]
        amounts = amounts_for(phase, FACTS, asked, laws.rig, n_prompt=n_prompt, depth=depth)
        truth = TIMES * LAWS.of(phase).seconds(amounts)
        assert laws.of(phase).seconds(amounts) == pytest.approx(truth, rel=0.2)


def test_that_a_file_is_a_stand_in_is_said_once_and_reported() -> None:
    real = StandsFor(label="Llama-3-8B", quantisation="Q4_K_M", n_layer=FACTS.n_layer + 1)
    one, events = calibrating(facts=dataclasses.replace(FACTS, stands_for=real))
    one.measure()
    said = [event for event in events if isinstance(event, Said) and "stand-in for Llama-3-8B" in event.text]
    assert said == events[:1]
    assert f"{FACTS.n_layer} of its {real.n_layer} layers, with random weights: it says nothing of" in said[0].text
    assert (one.report().stands_for, one.report().n_layer) == (real, FACTS.n_layer)
    one, events = calibrating()
    one.measure()
    assert not any("stand-in" in event.text for event in events if isinstance(event, Said))
    assert one.report().stands_for is None


def test_what_is_known_already_is_checked_by_two_passages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating_speed, "is_known", lambda *_: True)
    one, _ = calibrating()
    one.measure()
    assert one.report().n_passages == 2


def test_it_begins_with_what_is_known_unless_it_is_to_begin_anew() -> None:
    first, _ = calibrating()
    first.measure()
    for is_fresh in (False, True):
        one, events = calibrating(is_fresh=is_fresh)
        one.measure()
        passage = next(event for event in events if isinstance(event, PassageMeasured))
        off = max(abs(check.off_frac) for check in passage.checks)
        assert (off > 0.5) is is_fresh


def test_where_memory_runs_out_nothing_larger_is_tried_and_it_goes_on() -> None:
    runner = MadeUpRunner(lambda s: Outcome.OUT_OF_MEMORY_DEVICE if s.n_gpu_layers > 8 else None)
    one, events = calibrating(runner)
    one.measure()
    report = one.report()
    failed = [settings for settings in runner.asked if settings.n_gpu_layers > 8]
    assert len(failed) == len(report.failures) == 2  # 13 layers, then 10
    assert report.n_passages >= 2
    assert all("made up out_of_memory_device" in failure for failure in report.failures)
    assert any(isinstance(event, Said) and "out of memory device" in event.text for event in events)


def test_where_main_memory_runs_out_nothing_more_is_put_there() -> None:
    runner = MadeUpRunner(lambda s: Outcome.OUT_OF_MEMORY_HOST if s.n_gpu_layers < 8 else None)
    one, _ = calibrating(runner)
    one.measure()
    assert one.report().n_passages >= 2
    failed = [settings.n_gpu_layers for settings in runner.asked if settings.n_gpu_layers < 8]
    assert failed == sorted(set(failed))  # each asks less of it than the one before


def test_a_crash_is_told_and_the_next_passage_runs() -> None:
    seen: list[Settings] = []

    def fails(settings: Settings) -> Outcome | None:
        seen.append(settings)
        return Outcome.CRASHED if len(seen) == 2 else None

    one, _ = calibrating(MadeUpRunner(fails))
    one.measure()
    assert len(one.report().failures) == 1
    assert one.report().n_passages >= 2


def test_what_crashed_is_not_tried_again_with_another_prompt() -> None:
    most = FACTS.n_layer + 1
    runner = MadeUpRunner(lambda s: Outcome.CRASHED if s.n_gpu_layers == most else None)
    one, _ = calibrating(runner)
    one.measure()
    assert [settings.n_gpu_layers for settings in runner.asked].count(most) == 1
    assert one.report().n_passages >= 2


@pytest.mark.parametrize("n_before", [0, 2])
def test_where_a_device_stays_away_the_calibration_ends(n_before: int) -> None:
    gone = Evidence(phase="load", abort_text="Nothing answers at the RPC endpoint 10.0.0.1:50052.")

    class Leaving(MadeUpRunner):
        def revisit(self, trial: Trial, plan: VisitPlan, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
            found = super().revisit(trial, plan, timeout_s=timeout_s)
            if len(self.asked) <= n_before:
                return found
            return TrialResult(trial=trial, outcome=Outcome.CRASHED, reason="it did not come back", evidence=gone)

    runner = Leaving()
    one, events = calibrating(runner)
    one.measure()
    assert len(runner.asked) == n_before + 1
    sentence = "The calibration ends here: it did not come back. What was measured before stands."
    assert Said(text=sentence) in events
    if n_before:
        assert one.report().n_passages == n_before
        return
    with pytest.raises(NothingWorksError) as caught:
        one.report()
    assert "bring back what is gone" in caught.value.hint


def test_weights_that_main_memory_has_no_room_for_are_refused_before_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ram = dataclasses.replace(MACHINE.host.ram, available_bytes=50 << 20)
    monkeypatch.setattr(calibrating_speed, "probe_host", lambda: dataclasses.replace(MACHINE.host, ram=ram))
    with pytest.raises(UsageError, match="in main memory with the CPU alone"):
        calibrating(fixed={"load_mode": "none"})


def test_experts_are_tried_in_main_memory_only_where_the_rest_fits() -> None:
    for limit_bytes, fixed, n_tried in ((None, {}, {0, 6, 12}), (100 << 20, {}, {0}), (None, {"n_cpu_moe": 3}, {3})):
        one, _ = calibrating(facts=EXPERTS, vram_limit_bytes=limit_bytes, fixed=fixed)
        one.measure()
        assert {passage.settings.n_cpu_moe for passage in one.candidates.passages} == n_tried
        assert max(passage.settings.n_gpu_layers for passage in one.candidates.passages) > 0


@pytest.mark.parametrize(("fixed", "tried"), [({}, {True, False}), ({"op_offload": True}, {True})])
def test_the_host_by_itself_is_tried_unless_that_is_fixed(fixed: dict[str, Any], tried: set[bool]) -> None:
    one, _ = calibrating(fixed=fixed)
    one.measure()
    assert {passage.settings.op_offload for passage in one.candidates.passages} == tried


def test_a_limit_that_is_no_size_is_not_taken_for_none() -> None:
    with pytest.raises(UsageError, match="--vram-limit"):
        calibrate(file=__file__, vram_limit="")


def test_where_nothing_runs_it_says_so() -> None:
    one, _ = calibrating(MadeUpRunner(lambda _: Outcome.LOAD_FAILED))
    one.measure()
    with pytest.raises(NothingWorksError, match="made up load_failed"):
        one.report()


def test_where_time_runs_out_first_it_says_so() -> None:
    for runner, budget_s in ((MadeUpRunner(lambda _: Outcome.TIMED_OUT), 60.0), (MadeUpRunner(), 0.0)):
        one, _ = calibrating(runner, budget_s=budget_s)
        one.measure()
        with pytest.raises(BudgetError, match="ended before anything was measured"):
            one.report()


def test_ctrl_c_keeps_what_was_measured() -> None:
    seen: list[Settings] = []

    def fails(settings: Settings) -> Outcome | None:
        seen.append(settings)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return None

    one, _ = calibrating(MadeUpRunner(fails))
    one.measure()
    report = one.report()
    assert report.is_interrupted
    assert report.n_passages == 2
    assert len(SpeedMemory(FACTS, one.machine, ENGINE).laws().decode.runs) == 2


def test_ctrl_c_before_anything_says_so() -> None:
    def fails(_settings: Settings) -> Outcome | None:
        raise KeyboardInterrupt

    one, _ = calibrating(MadeUpRunner(fails))
    one.measure()
    with pytest.raises(InterruptedSweepError):
        one.report()


def test_without_devices_the_cpu_alone_is_calibrated() -> None:
    runner = MadeUpRunner()
    runner.describe = lambda: (ENGINE, ())  # type: ignore[method-assign]
    one, _ = calibrating(runner)
    one.measure()
    assert {settings.n_gpu_layers for settings in runner.asked} == {0}
    assert one.report().devices == ()
    assert Machine(host=MACHINE.host, devices=()).machine_id == one.report().machine_id


def test_the_users_limit_bounds_the_layers() -> None:
    runner = MadeUpRunner()
    one, _ = calibrating(runner, vram_limit_bytes=100 << 20)
    one.measure()
    assert 0 < max(settings.n_gpu_layers for settings in runner.asked) < FACTS.n_layer + 1


def test_fixed_settings_hold_in_every_run() -> None:
    runner = MadeUpRunner()
    one, _ = calibrating(runner, fixed={"n_threads": 3, "use_extra_bufts": False})
    one.measure()
    assert {(settings.n_threads, settings.use_extra_bufts) for settings in runner.asked} == {(3, False)}


@pytest.mark.parametrize("name", ["n_gpu_layers", "n_ubatch"])
def test_what_a_calibration_varies_cannot_be_fixed(name: str) -> None:
    request = CalibrationRequest(path=FACTS.path, budget_s=60, fixed={name: 1})
    with pytest.raises(UsageError, match=name):
        check_calibration(request, FACTS, n_ctx=2560)
    check_calibration(dataclasses.replace(request, fixed={"n_threads": 2}), FACTS, n_ctx=2560)

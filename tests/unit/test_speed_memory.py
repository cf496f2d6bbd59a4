"""SpeedMemory: trials teach the laws of their kind, across sweeps and files, and contradictions are set aside."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from sample_records import ENGINE, MACHINE, result, visit
from synthetic import MIB, made_up_facts

from offloadtune import store
from offloadtune.pipeline import speed_memory
from offloadtune.pipeline.rigs import rig_of_machine
from offloadtune.pipeline.speed_memory import SpeedMemory, believed, runs_of, settings_that_ran
from offloadtune.records import Basis, EngineBuild, GgufFacts, Machine, Outcome, Settings, Target, Trial, TrialResult
from offloadtune.speed import Laws, amounts_for, laws_of, predict, residuals_of
from offloadtune.speeds import Phase

FACTS = made_up_facts()
SETTINGS = Settings(n_gpu_layers=13, n_ctx=4096, n_threads=16, n_threads_batch=16, flash_attn_type="enabled")
PRIOR = laws_of(rig_of_machine(MACHINE), FACTS)


def trial(
    settings: Settings = SETTINGS, *, times: float = 2.0, n_prefix: int = 0, n_new: int = 256, laws: Laws = PRIOR
) -> TrialResult:
    """A trial on a machine that takes `times` as long as it is believed to."""
    step = amounts_for(Phase.DECODE, FACTS, (settings,), laws.rig, n_prompt=1, depth=n_prefix + n_new + 2)
    prompt = amounts_for(Phase.PREFILL, FACTS, (settings,), laws.rig, n_prompt=n_new, depth=n_prefix)
    step_ns = round(float(laws.decode.seconds(step)[0]) * times * 1e9)
    one = dataclasses.replace(
        visit(),
        n_prefix_cached=n_prefix,
        n_prompt_new=n_new,
        tokenize_ns=0,
        prefill_ns=round(float(laws.prefill.seconds(prompt)[0]) * times * 1e9),
        first_sample_ns=0,
        step_ns=(step_ns, step_ns),
        sample_ns=(0, 0),
    )
    warmup = dataclasses.replace(one, is_warmup=True, prefill_ns=one.prefill_ns * 9)
    return TrialResult(
        trial=Trial(settings=settings, target=Target.LLAMA_SERVER, why="made up"),
        outcome=Outcome.OK,
        reason="",
        visits=(warmup, one),
    )


def memory(facts: GgufFacts = FACTS, machine: Machine = MACHINE, engine: EngineBuild = ENGINE) -> SpeedMemory:
    return SpeedMemory(facts, machine, engine)


def test_before_any_trial_the_laws_are_those_of_the_machine() -> None:
    fresh = memory()
    assert fresh.laws().decode.basis is fresh.laws().prefill.basis is Basis.CATALOGUE
    assert fresh.words == ()


def test_a_trial_teaches_both_phases_and_the_next_sweep_knows_it() -> None:
    first = memory()
    before = predict(FACTS, SETTINGS, first.laws(), n_prompt=256)
    first.learn(trial())
    for one in (first, memory()):
        after = predict(FACTS, SETTINGS, one.laws(), n_prompt=256)
        assert after.decode_tok_per_s.basis is Basis.CALIBRATED
        assert after.decode_tok_per_s.value == pytest.approx(before.decode_tok_per_s.value / 2, rel=0.05)
        assert after.ttft_s.value == pytest.approx(before.ttft_s.value * 2, rel=0.05)


def test_another_file_of_the_same_type_knows_it_and_one_of_another_type_does_not() -> None:
    memory().learn(trial())
    larger = made_up_facts((20 * MIB,) * 24)
    assert memory(larger).laws().decode.basis is Basis.CALIBRATED
    assert memory(dataclasses.replace(larger, type_bytes=(("Q4_K", 1),))).laws().decode.basis is Basis.CATALOGUE


def test_the_cpu_alone_and_other_buffers_are_kinds_of_their_own() -> None:
    alone, plain = SETTINGS.replace(devices=(), n_gpu_layers=0), SETTINGS.replace(use_extra_bufts=False)
    one = memory()
    one.learn(trial())
    assert one.laws(SETTINGS).decode.runs
    assert one.laws(SETTINGS.replace(devices=("CUDA0",))) is one.laws()
    assert one.laws(alone).decode.runs == one.laws(plain).decode.runs == ()
    assert one.laws(alone).rig.devices == ()
    one.learn(trial(plain))
    assert one.laws(plain).decode.runs


def test_a_trial_of_the_cpu_alone_is_learnt() -> None:
    alone = SETTINGS.replace(devices=(), n_gpu_layers=0)
    one = memory()
    one.learn(trial(alone, laws=one.laws(alone)))
    (run,) = one.laws(alone).decode.runs
    assert {name for name, _ in run.amounts} == {"host.weights", "host.cache", "host.blocks", "steps"}


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_trial_that_failed_teaches_no_speed(outcome: Outcome) -> None:
    one = memory()
    one.learn(dataclasses.replace(trial(), outcome=outcome))
    assert one.laws().decode.runs == ()


def test_visits_that_do_not_count_have_no_say() -> None:
    ok = trial()
    slow = dataclasses.replace(ok.visits[1], prefill_ns=10**12, disturbed_by=("A backup ran.",))
    one, two = memory(), memory()
    one.learn(dataclasses.replace(ok, visits=(*ok.visits, slow)))
    two.learn(ok)
    assert one.laws().prefill.runs == two.laws().prefill.runs


def test_disturbed_visits_count_for_little_where_there_are_no_others() -> None:
    ok = trial()
    disturbed = dataclasses.replace(ok.visits[1], disturbed_by=("A backup ran.",))
    one = memory()
    one.learn(dataclasses.replace(ok, visits=(ok.visits[0], disturbed)))
    laws = one.laws()
    assert laws.decode.runs[0].noise_frac == laws.prefill.runs[0].noise_frac == 0.25
    one.learn(dataclasses.replace(ok, visits=(ok.visits[0],)))  # a warm-up alone is nothing
    assert len(one.laws().decode.runs) == 1


def test_runs_are_medians_of_visits_with_their_scatter_at_what_the_engine_really_did() -> None:
    decode, prefill = runs_of(FACTS, PRIOR, dataclasses.replace(result(), visits=(visit(), visit(1.1), visit(3.0))))
    assert decode.seconds == pytest.approx((25.5e6 * 1.1 + 150_000) / 1e9)
    assert prefill.seconds == pytest.approx((180_200_000 * 1.1 + 150_000) / 1e9)
    assert 0.01 < decode.noise_frac < 0.1 < prefill.noise_frac
    assert prefill.label == "2048+256 tokens at n_gpu_layers 24, n_ubatch 256"
    assert decode.label == "a token after 2304 at n_gpu_layers 24, n_ubatch 256"
    asked = TrialResult(
        trial=Trial(settings=SETTINGS.replace(n_seq_max=4, flash_attn_type="auto"), target=Target.LLAMA_SERVER, why=""),
        outcome=Outcome.OK,
        reason="",
        effective=(("flash_attn_type", "disabled"), ("n_ctx", None), ("of_a_later_version", 1)),
    )
    assert settings_that_ran(asked) == SETTINGS.replace(flash_attn_type="disabled")


def test_a_prompt_read_once_is_as_uncertain_as_the_steps_after_it() -> None:
    one = dataclasses.replace(visit(), step_ns=(20_000_000, 25_000_000, 30_000_000), sample_ns=(0, 0, 0))
    decode, prefill = runs_of(FACTS, PRIOR, dataclasses.replace(result(), visits=(one,)))
    assert prefill.noise_frac == decode.noise_frac == pytest.approx(0.2 * 1.4826)


def kept(
    runs: Sequence[tuple[Settings, float]], session: str = "s1", *, n_new: Sequence[int] = (256,)
) -> list[store.KeptRun]:
    return [
        store.KeptRun(run=run, session=session)
        for settings, times in runs
        for n in n_new
        for run in runs_of(FACTS, PRIOR, trial(settings, times=times, n_new=n))
    ]


LADDER = [SETTINGS.replace(n_gpu_layers=k) for k in (13, 11, 9, 7, 5, 3, 1, 0)]


def test_a_run_that_contradicts_the_others_is_left_out_and_named() -> None:
    runs = kept([(settings, 6.0 if i == 4 else 2.0) for i, settings in enumerate(LADDER)])
    for law in (PRIOR.decode, PRIOR.prefill):
        found, word = believed(law, runs)
        assert len(found.runs) == len(LADDER) - 1
        assert "contradict" in word
        assert "n_gpu_layers 5" in word
        assert "Without 1 of 8 runs the others agree." in word
        assert abs(residuals_of(found, found.runs)).max() < 0.1


def test_older_runs_give_way_to_those_of_the_last_time() -> None:
    runs = kept([(settings, 2.0) for settings in LADDER], "s1") + kept([(one, 5.0) for one in LADDER[::2]], "s2")
    found, word = believed(PRIOR.decode, runs)
    assert len(found.runs) == 4
    assert word.endswith("Those of the last time agree, and count alone.")


def test_where_nothing_agrees_the_law_is_the_one_before_any_run_and_as_uncertain_as_it_showed_itself() -> None:
    runs = kept([(settings, 1.0 + 4.0 * (i % 2)) for i, settings in enumerate(LADDER)])
    found, word = believed(PRIOR.decode, runs)
    assert found.runs == ()
    assert found.mean.tolist() == PRIOR.decode.mean.tolist()
    assert found.noise_frac > 0.3
    assert word.endswith("So the decode is predicted as if nothing had been measured here.")


def test_contradictions_are_said_by_the_memory_that_met_them() -> None:
    one = memory()
    for i, settings in enumerate(LADDER):
        one.learn(trial(settings, times=1.0 + 4.0 * (i % 2)))
    assert one.words == ()  # nobody asked for laws
    assert one.laws().decode.basis is Basis.CATALOGUE
    assert len(one.words) == 2
    assert all("as if nothing had been measured" in word for word in one.words)


def test_a_run_of_terms_that_the_law_has_no_more_is_passed_over() -> None:
    (run,) = [one for one in kept([(SETTINGS, 2.0)]) if one.run.phase is Phase.DECODE]
    strange = dataclasses.replace(run, run=dataclasses.replace(run.run, amounts=(("0.dreams", 1.0),)))
    assert believed(PRIOR.decode, [strange])[0].runs == ()


def test_another_build_does_not_know_it_and_says_why() -> None:
    memory().learn(trial())
    other = memory(engine=dataclasses.replace(ENGINE, build_id="another"))
    assert other.laws().decode.runs == ()
    assert other.words == (
        "The runs kept of this machine's speed were made with another engine build, and do not count any more.",
    )


def test_fresh_forgets_the_kind_that_is_measured_and_no_other() -> None:
    plain = SETTINGS.replace(use_extra_bufts=False)
    first = memory()
    first.learn(trial())
    first.learn(trial(n_new=512))
    first.learn(trial(plain))
    fresh = SpeedMemory(FACTS, MACHINE, ENGINE, is_fresh=True)
    assert fresh.laws().decode.runs == ()
    fresh.learn(trial(times=3.0))
    fresh.learn(trial(times=3.0, n_new=128))
    assert len(memory().laws().decode.runs) == len(fresh.laws().decode.runs) == 2
    assert len(memory().laws(plain).decode.runs) == 1


def test_what_cannot_be_stored_is_learnt_all_the_same_and_said_once(home: Path) -> None:
    (home / "profiles").write_text("", encoding="utf-8")
    one = memory()
    one.learn(trial())
    one.learn(trial(n_new=512))
    assert len(one.laws().decode.runs) == 2
    assert len(one.words) == 1
    assert "is not kept" in one.words[0]


def test_what_is_stored_says_what_ran(home: Path) -> None:
    memory().learn(trial())
    stored = json.loads((home / "profiles" / MACHINE.machine_id / "speed.json").read_text(encoding="utf-8"))
    assert [one["run"]["phase"] for one in stored["kinds"][0][1]] == ["decode", "prefill"]
    assert speed_memory.SpeedMemory.__doc__

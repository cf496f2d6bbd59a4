"""What is measured is what its users run: llama-cpp-python's own `Llama`, and llama.cpp's own --fit rule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, CardMaker

from offloadtune import pipeline
from offloadtune.engine import Runner, VisitPlan
from offloadtune.engine.worker import fit_rule
from offloadtune.export import llama_kwargs
from offloadtune.gguf import read_gguf
from offloadtune.records import Goal, Outcome, Settings, Target, Trial, Verdict, Workload
from offloadtune.search import FIT_MARGIN_BYTES, Space, baseline_trials
from offloadtune.sweeps import SweepRequest

pytestmark = pytest.mark.engine

LONG = Workload(name="long", n_prefix_cached=500, n_prompt_new=60, n_gen=8)
PLAN = VisitPlan(workload=LONG, n_steps=7, n_visits=1)
SETTINGS = Settings(n_ctx=768, n_threads=2, n_threads_batch=2, flash_attn_type="enabled")


def arguments(trial: Trial) -> dict[str, Any] | None:
    return llama_kwargs(trial.settings, trial.told)


def trial(settings: Settings) -> Trial:
    return Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="test")


def space(path: Path, device_bytes: int = 0) -> Space:
    return Space(
        facts=read_gguf(path),
        workload=LONG,
        goal=Goal.TURN,
        target=Target.LLAMA_CPP_PYTHON,
        n_ctx=768,
        device_bytes=device_bytes,
        limit_bytes=None,
        n_physical_cores=2,
        n_logical_cores=2,
        n_os_cpus=os.cpu_count() or 1,
    )


def test_its_own_defaults_are_those_we_compare_with(smollm2_path: Path) -> None:
    """The worker refuses a `Llama` that comes out at other settings than those recorded."""
    baselines = baseline_trials(space(smollm2_path))
    with Runner(smollm2_path, arguments=arguments) as runner:
        default = runner.run(baselines["default"], PLAN, timeout_s=60)
        shipped = runner.run(baselines["as_shipped"], PLAN, timeout_s=60)
        again = runner.run(trial(SETTINGS), PLAN, timeout_s=60)
        assert runner.n_model_loads == 1  # it shares what is loaded, and its refusal costs nothing
    assert (default.outcome, default.effective) == (Outcome.OK, ()), default.reason
    assert baselines["default"].told == ("n_ctx",)
    assert shipped.outcome is Outcome.UNSUPPORTED
    assert shipped.reason == "refused: Requested tokens (560) exceed context window of 512"
    assert again.outcome is Outcome.OK


def test_through_llama_or_the_engine_it_is_the_same_context(smollm2_path: Path) -> None:
    with Runner(smollm2_path, arguments=arguments) as theirs, Runner(smollm2_path) as ours:
        through_llama = theirs.run(trial(SETTINGS), PLAN, timeout_s=60)
        through_engine = ours.run(trial(SETTINGS), PLAN, timeout_s=60)
    assert through_llama.outcome is through_engine.outcome is Outcome.OK
    assert through_llama.memory == through_engine.memory
    for visit in through_llama.visits[1:]:
        assert (visit.n_prefix_cached, visit.n_prompt_new, len(visit.step_ns)) == (500, 60, 7)
        assert visit.prefill_ns > min(visit.step_ns) > 0
        assert min(visit.tokenize_ns, visit.first_sample_ns, *visit.sample_ns) > 0


def test_a_llama_that_is_not_what_the_settings_say_is_not_measured(smollm2_path: Path) -> None:
    def other(one: Trial) -> dict[str, Any]:
        return {**llama_kwargs(one.settings), "flash_attn": False, "n_ubatch": 128}

    with Runner(smollm2_path, arguments=other) as runner:
        result = runner.run(trial(SETTINGS), PLAN, timeout_s=60)
    assert result.outcome is Outcome.LOAD_FAILED
    assert "other defaults than expected: n_ubatch=128, flash_attn_type=0" in result.reason
    assert result.visits == ()


def test_what_llama_itself_refuses_is_told_in_its_words(smollm2_path: Path) -> None:
    def wrong(one: Trial) -> dict[str, Any]:
        return {**llama_kwargs(one.settings), "tensor_split": [1.0] * 1000}

    with Runner(smollm2_path, arguments=wrong) as runner:
        result = runner.run(trial(SETTINGS), PLAN, timeout_s=60)
    assert result.outcome is Outcome.LOAD_FAILED
    assert "Attempt to split tensors that exceed maximum supported devices" in result.reason


def test_the_fit_rule_answers_by_the_memory_that_is_free(smollm2_path: Path, make_card: CardMaker) -> None:
    small, large = make_card(1, FIT_MARGIN_BYTES + 160 * MIB), make_card(1, FIT_MARGIN_BYTES + 600 * MIB)
    with Runner(smollm2_path, [small.endpoint]) as runner:
        n_gpu_layers = runner.fit_layers(SETTINGS, FIT_MARGIN_BYTES)
        assert runner.n_model_loads == 0
        assert n_gpu_layers is not None
        assert 0 < n_gpu_layers < 31
        used = []
        for k in (n_gpu_layers, n_gpu_layers + 1):
            result = runner.run(trial(SETTINGS.replace(n_gpu_layers=k)), PLAN, timeout_s=60)
            used.append(sum(row.total_bytes for row in result.memory if not row.is_host))
        assert used[0] <= 160 * MIB
        assert runner.fit_layers(SETTINGS, small.card_bytes) == 0
    with Runner(smollm2_path, [large.endpoint]) as runner:
        assert runner.fit_layers(SETTINGS, FIT_MARGIN_BYTES) == -1  # all of them


def test_an_engine_without_the_fit_rule_gives_no_answer(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_rule, "_SYMBOL", "_Z17common_fit_paramsof_another_signature")
    assert fit_rule.fit_layers(str(smollm2_path), {}, 0) is None


def test_a_sweep_gives_a_verdict_against_every_baseline(smollm2_path: Path, make_card: CardMaker) -> None:
    """A card that the --fit rule leaves alone, because of its margin; the whole file fits and is faster there."""
    card = make_card(2, 600 * MIB)
    request = SweepRequest(
        path=smollm2_path,
        workload=Workload(name="prompt", n_prefix_cached=0, n_prompt_new=600, n_gen=8),
        budget_s=75,
        goal=Goal.TTFT,
        endpoints=(card.endpoint,),
        fixed={"n_threads": 1, "n_threads_batch": 1, "use_extra_bufts": False},
    )
    report = pipeline.sweep(request, lambda _event: None)
    answer = report.recommendation
    assert answer.trial.settings.n_gpu_layers == 31
    assert {one.against: one.verdict for one in answer.versus} == dict.fromkeys(
        ("cpu_only", "default", "fit"), Verdict.FASTER
    )
    assert any("--fit rule (0 of 31 layers)" in reason for reason in answer.reasons)
    assert any("Requested tokens (600) exceed context window of 512" in reason for reason in answer.reasons)

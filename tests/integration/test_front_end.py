"""What is measured is what its users run: llama-cpp-python's own `Llama`, and llama.cpp's own --fit rule."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, CardMaker
from moe_file import N_EMBD, N_EXPERT, N_FF, write_moe_file

from offloadtune import pipeline
from offloadtune.engine import Runner, VisitPlan
from offloadtune.errors import NothingWorksError
from offloadtune.export import llama_kwargs, render_snippet
from offloadtune.footprint import HOST, Grid, reckon
from offloadtune.gguf import read_gguf
from offloadtune.records import Goal, Outcome, Settings, Target, Trial, Verdict, Workload
from offloadtune.search import FIT_MARGIN_BYTES, Space, baseline_trials
from offloadtune.sweeps import Event, SweepRequest, TrialStarted

pytestmark = pytest.mark.engine

LONG = Workload(name="long", n_prefix_cached=500, n_prompt_new=60, n_gen=8)
SHORT = Workload(name="short", n_prefix_cached=0, n_prompt_new=64, n_gen=8)
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
    assert shipped.reason == "it refuses: Requested tokens (560) exceed context window of 512"
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


WEIGHTS = """
import json
from offloadtune.engine.worker import native
print(json.dumps({row["device"]: row["weights_bytes"] for row in native.memory_breakdown(llm._ctx.ctx)}))
"""


def test_experts_in_main_memory_are_measured_and_handed_over(
    smollm2_path: Path, make_card: CardMaker, tmp_path: Path
) -> None:
    path, card = tmp_path / "experts.gguf", make_card(1, 600 * MIB)
    write_moe_file(path, smollm2_path)
    settings = SETTINGS.replace(n_gpu_layers=5, n_cpu_moe=2, load_mode="none", use_extra_bufts=False)
    with Runner(path, [card.endpoint], arguments=arguments) as runner:
        result = runner.run(trial(settings), PLAN, timeout_s=60)
        whole = runner.run(trial(settings.replace(n_cpu_moe=0)), PLAN, timeout_s=60)
    assert result.outcome is whole.outcome is Outcome.OK, (result.reason, whole.reason)
    experts_bytes = 2 * N_EXPERT * 3 * N_EMBD * N_FF * 2  # two blocks of f16
    measured, unmoved = (sum(row.weights_bytes for row in one.memory if not row.is_host) for one in (result, whole))
    assert unmoved - measured == experts_bytes
    program = render_snippet(settings, path, (card.endpoint,)) + WEIGHTS
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    handed_over = json.loads(done.stdout.splitlines()[-1])
    assert sum(n for device, n in handed_over.items() if device != "host") == measured


def test_feed_forward_weights_in_main_memory_are_measured_and_handed_over(
    smollm2_path: Path, make_card: CardMaker
) -> None:
    facts, card = read_gguf(smollm2_path), make_card(1, 600 * MIB)
    settings = SETTINGS.replace(n_gpu_layers=31, n_cpu_ffn=4, load_mode="none", use_extra_bufts=False)
    with Runner(smollm2_path, [card.endpoint], arguments=arguments) as runner:
        result = runner.run(trial(settings), PLAN, timeout_s=60)
    assert result.outcome is Outcome.OK, result.reason
    measured = sum(row.weights_bytes for row in result.memory if not row.is_host)
    assert measured == reckon(facts, Grid.of((settings,), facts.n_layer), (HOST,)).weights_bytes[0, 0]
    program = render_snippet(settings, smollm2_path, (card.endpoint,)) + WEIGHTS
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    handed_over = json.loads(done.stdout.splitlines()[-1])
    assert sum(n for device, n in handed_over.items() if device != "host") == measured


def test_a_llama_that_is_not_what_the_settings_say_is_not_measured(smollm2_path: Path) -> None:
    def other(one: Trial) -> dict[str, Any]:
        return {**llama_kwargs(one.settings), "flash_attn": False, "n_ubatch": 128}

    with Runner(smollm2_path, arguments=other) as runner:
        result = runner.run(trial(SETTINGS), PLAN, timeout_s=60)
    assert result.outcome is Outcome.LOAD_FAILED
    assert "defaults are not those expected: n_ubatch=128, flash_attn_type=0" in result.reason
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
        n_gpu_layers, is_whole = runner.fit_layers(SETTINGS, FIT_MARGIN_BYTES, timeout_s=60)
        assert runner.n_model_loads == 0
        assert n_gpu_layers is not None
        assert 0 < n_gpu_layers < 31
        assert is_whole
        result = runner.run(trial(SETTINGS.replace(n_gpu_layers=n_gpu_layers)), PLAN, timeout_s=60)
        assert sum(row.total_bytes for row in result.memory if not row.is_host) <= 160 * MIB
        assert runner.fit_layers(SETTINGS, small.card_bytes, timeout_s=60) == (0, True)
    with Runner(smollm2_path, [large.endpoint]) as runner:
        assert runner.fit_layers(SETTINGS, FIT_MARGIN_BYTES, timeout_s=60) == (-1, True)  # all of them


def test_a_rule_that_keeps_experts_on_the_host_is_not_taken_for_one_of_layers(
    smollm2_path: Path, make_card: CardMaker, tmp_path: Path
) -> None:
    path = tmp_path / "experts.gguf"
    write_moe_file(path, smollm2_path)
    card = make_card(1, FIT_MARGIN_BYTES + 260 * MIB)
    with Runner(path, [card.endpoint]) as runner:
        n_gpu_layers, is_whole = runner.fit_layers(SETTINGS, FIT_MARGIN_BYTES, timeout_s=60)
    assert n_gpu_layers is not None
    assert n_gpu_layers > 0
    assert not is_whole
    request = SweepRequest(path=path, workload=SHORT, budget_s=20, endpoints=(card.endpoint,), goal=Goal.TTFT)
    report = pipeline.sweep(request, lambda _event: None)
    assert "fit" not in report.baselines
    words = "No verdict against llama.cpp's --fit rule: it would leave parts of layers on the host"
    assert any(reason.startswith(words) for reason in report.recommendation.reasons)


def test_an_engine_without_the_fit_rule_gives_no_answer() -> None:
    program = "from offloadtune.engine.worker import fit_rule as f; f._SYMBOL += 'x'; print(f.fit_layers('', {}, 0))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "(None, False)\n"


def test_a_turn_goes_through_llama_at_the_depth_asked_for(smollm2_path: Path) -> None:
    """`Llama.eval` reads and `Llama.sample` draws every token, after a restored prefix as after one just read."""
    kwargs = llama_kwargs(SETTINGS)
    program = TURNS.format(path=str(smollm2_path), settings=dataclasses.asdict(SETTINGS), arguments=kwargs)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    read = [[500, 60], *([560 + i, 1] for i in range(8))]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["first"] == told["restored"] == {"read": read, "n_sampled": 8, "n_tokens": 568}
    assert told["next_token"] == told["next_token_of_a_full_read"]


TURNS = """
import json
from llama_cpp import Llama
from offloadtune.engine.worker import native
from offloadtune.engine.worker.session import Session

log, _callback = native.start(print)
session, told, read, sampled = Session(log), {{}}, [], []
eval_, sample = Llama.eval, Llama.sample
Llama.eval = lambda self, tokens: (read.append([self.n_tokens, len(tokens)]), eval_(self, tokens))[1]
Llama.sample = lambda self, **options: (sampled.append(1), sample(self, **options))[1]
loaded = session.load({path!r}, {settings!r})["handle"]
opened = session.open(loaded, {settings!r}, {arguments!r})["handle"]
for name in ("first", "restored"):
    read.clear(), sampled.clear()
    session.visit(opened, n_prefix=500, n_new=60, n_steps=7)
    told[name] = {{"read": list(read), "n_sampled": len(sampled), "n_tokens": session._context(opened).llama.n_tokens}}
llama = session._context(opened).llama
told["next_token"] = llama.sample(temp=0.0)
tokens = session._loaded(loaded).prompt.tokens(568)[:568]
llama.reset()
llama.eval(tokens)
told["next_token_of_a_full_read"] = llama.sample(temp=0.0)
print(json.dumps(told))
"""


def test_a_file_that_llama_does_not_open_ends_the_sweep_at_once(smollm2_path: Path, tmp_path: Path) -> None:
    """Its chat template is broken: llama.cpp does not mind, llama-cpp-python does, whatever the settings."""
    path = tmp_path / "template.gguf"
    path.write_bytes(smollm2_path.read_bytes().replace(b"{% for message in", b"{% fur message in"))
    events: list[Event] = []
    with pytest.raises(
        NothingWorksError, match=r"Llama does not open template\.gguf, whatever the settings: Template"
    ) as caught:
        pipeline.sweep(SweepRequest(path=path, workload=SHORT, budget_s=60), events.append)
    assert "--target llama_server" in caught.value.hint
    assert sum(isinstance(event, TrialStarted) for event in events) == 1


@pytest.mark.parametrize(
    ("n_prompt", "n_gen", "words"), [(500, 100, "ends after 12 of 100 tokens"), (600, 8, "refuses")]
)
def test_what_too_small_a_context_does_is_said_as_it_is(
    n_prompt: int, n_gen: int, words: str, smollm2_path: Path
) -> None:
    workload = Workload(name="too long", n_prefix_cached=0, n_prompt_new=n_prompt, n_gen=n_gen)
    with Runner(smollm2_path, arguments=arguments) as runner:
        plan = VisitPlan(workload=workload, n_steps=7, n_visits=1)
        result = runner.run(trial(SETTINGS.replace(n_ctx=512)), plan, timeout_s=60)
    assert result.outcome is Outcome.UNSUPPORTED
    assert words in result.reason


def test_a_sweep_gives_a_verdict_against_every_baseline(smollm2_path: Path, make_card: CardMaker) -> None:
    """A faster card gets everything; the --fit rule leaves it alone, because of its margin."""
    card = make_card(2, 600 * MIB)
    request = SweepRequest(
        path=smollm2_path,
        workload=Workload(name="prompt", n_prefix_cached=0, n_prompt_new=128, n_gen=8),
        budget_s=110,
        goal=Goal.TTFT,
        endpoints=(card.endpoint,),
        fixed={"n_threads": 1, "n_threads_batch": 1, "use_extra_bufts": False},
    )
    report = pipeline.sweep(request, lambda _event: None)
    answer = report.recommendation
    assert answer.trial.settings.n_gpu_layers == 31
    assert answer.trial.settings.devices is None
    assert any("All 31 layers are on the device" in reason for reason in answer.reasons)
    assert {one.against for one in answer.versus} == {"cpu_only", "default", "fit"}
    assert all(one.ratio.p50 > 1 for one in answer.versus)
    assert Verdict.SLOWER not in {one.verdict for one in answer.versus}  # on a restless machine it may be "same"
    assert any("--fit rule (0 of 31 layers)" in reason for reason in answer.reasons)

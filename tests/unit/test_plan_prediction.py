"""The speed that a plan foretells: its figures, its words, its view, and that no line of a batch stops it."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Ended, InProcess, check_refused
from golden import check_golden
from hypothesis import given
from hypothesis import strategies as st
from sample_records import ENGINE, MACHINE
from synthetic import made_up_facts
from test_plan import REPORT, SHAPE, planned, report_with
from test_plan_batches import GOOD, answers
from test_report import screen
from test_speed_memory import FACTS, trial

from offloadtune.catalogue import QUANTS, card_names, find_card, shape_names
from offloadtune.pipeline import here, planning
from offloadtune.pipeline.expecting import LawsFor, catalogue_laws
from offloadtune.pipeline.planning import plan_memory
from offloadtune.pipeline.rigs import rig_of_machine
from offloadtune.pipeline.rooms import Place, named_place
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.plans import MemoryPlan, PlanReport, PlanRequest
from offloadtune.records import Basis, GgufFacts
from offloadtune.report import plan_view
from offloadtune.speed import Laws, amounts_for, laws_of, run_of
from offloadtune.speeds import Figure, Gain, HostRates, Phase, Prediction

LLAMA = facts_of_shape("llama-3-8b", "Q4_K_M")
LARGE = facts_of_shape("llama-3.3-70b", "Q4_K_M")
KEYS = {
    "decode_tok_per_s",
    "prefill_tok_per_s",
    "ttft_s",
    "bound_tok_per_s",
    "bound_prefill_tok_per_s",
    "n_prompt_tokens",
    "depth",
    "decode_depth",
    "words",
}
CARDED = (*SHAPE, "--card", "RTX 3090")
PARTIAL = (*CARDED, "--n-gpu-layers", "20")


def predicted(facts: GgufFacts = LLAMA, **asked: Any) -> MemoryPlan:
    named = {name: asked.pop(name) for name in ("ram", "n_prompt", "depth", "n_devices") if name in asked}
    request = PlanRequest(card="RTX 3090", asked=asked, **named)
    return plan_memory(request, facts, named_place(request))


def prediction_in(plan: MemoryPlan) -> Prediction:
    assert plan.prediction is not None, plan.warnings
    return plan.prediction


def decode_of(plan: MemoryPlan) -> float:
    return prediction_in(plan).decode_tok_per_s.value


# --- JSON ----------------------------------------------------------------------------------------------------------


def test_a_plan_and_a_line_hold_the_same_prediction(in_process: InProcess) -> None:
    options = ("--n-gpu-layers", "20", "--n-ctx", "8192", "--prompt", "2000", "--depth", "1000", "--ram", "ddr5-5600x2")
    of_plan = planned(in_process, *CARDED, *options, "--flash-attn", "on")["prediction"]
    keys = {"n_gpu_layers": 20, "n_ctx": 8192, "n_prompt_tokens": 2000, "depth": 1000, "ram": "ddr5-5600x2"}
    (of_line,) = answers(GOOD | keys | {"n_batch": 512, "flash_attn": True})
    assert of_plan == of_line["prediction"]
    assert set(of_plan) == KEYS
    assert set(of_plan["ttft_s"]) == {"value", "low", "high", "basis"}
    assert (of_plan["n_prompt_tokens"], of_plan["depth"], of_plan["decode_depth"]) == (2000, 1000, 3000)
    assert of_plan["decode_tok_per_s"]["basis"] == "catalogue"
    assert of_plan["words"] == ["Main memory is read as DDR5-5600, 2 channels of 64 bits: 89.6 GB/s at most."]


def test_without_a_prompt_it_is_a_usual_one_and_tokens_come_at_the_depth() -> None:
    (plain,) = answers(GOOD)
    assert plain["prediction"]["n_prompt_tokens"] == 512
    assert plain["prediction"]["decode_depth"] == 0
    assert plain["settings"]["n_gpu_layers"] == 33  # left out it is everything
    assert answers(GOOD | {"n_prompt_tokens": 0}) == [plain]


def test_gains_are_in_the_json(in_process: InProcess) -> None:
    gains = planned(in_process, "plan", "--shape", "llama-3.3-70b", "--quant", "Q4_K_M", "--card", "3090")["gains"]
    assert gains
    assert all(set(gain) == {"what", "decode_frac", "ttft_frac"} for gain in gains)


def test_the_keys_of_the_size_are_as_without_a_speed() -> None:
    speed = {"ram": "ddr5-5600", "n_prompt_tokens": 100_000, "depth": 5000}
    with_speed, without = answers(GOOD | speed, GOOD)
    assert {name: value for name, value in with_speed.items() if name != "prediction"} == {
        name: value for name, value in without.items() if name != "prediction"
    }


# --- what moves it -------------------------------------------------------------------------------------------------


def test_more_layers_faster_memory_and_less_depth_are_faster() -> None:
    for slow, fast in (
        ({"n_gpu_layers": 10}, {"n_gpu_layers": 20}),
        ({"n_gpu_layers": 10, "ram": "ddr4-2400x2"}, {"n_gpu_layers": 10, "ram": "ddr5-6000x2"}),
        ({"n_gpu_layers": -1, "depth": 6000, "n_ctx": 8192}, {"n_gpu_layers": -1, "n_ctx": 8192}),
        ({"n_gpu_layers": 33, "offload_kqv": False, "depth": 3000}, {"n_gpu_layers": 33, "depth": 3000}),
    ):
        assert decode_of(predicted(**slow)) < decode_of(predicted(**fast)), (slow, fast)


def test_plans_settings_name_no_threads_so_all_cores_work() -> None:
    laws = laws_of(rig_of_machine(MACHINE), LLAMA)
    (device,) = laws.rig.devices
    place = dataclasses.replace(named_place(PlanRequest(card="RTX 4090")), rig=laws.rig)
    request = PlanRequest(card="RTX 4090", asked={"n_gpu_layers": 0})
    plan = plan_memory(request, LLAMA, place)
    assert plan.settings.n_threads == 1
    settings = plan.settings.replace(n_threads=16, n_threads_batch=16)
    step = amounts_for(Phase.DECODE, LLAMA, (settings,), laws.rig, n_prompt=1, depth=0)
    assert decode_of(plan) == pytest.approx(laws.decode.figure(step[:, 0], 1).value)
    assert device.name == "CUDA0"


def test_no_bound_is_below_what_8_bit_products_allow() -> None:
    """A P40 multiplies halves at a 64th of the rate of floats, and 8-bit numbers at 47 a picosecond."""
    card = find_card("Tesla P40")
    assert card.int8_op_per_s
    request = PlanRequest(card=card.name, asked={"n_gpu_layers": -1})
    bound = prediction_in(plan_memory(request, LLAMA, named_place(request))).bound_prefill_tok_per_s
    assert bound is not None
    assert bound * 2 * LLAMA.n_params > 0.9 * card.int8_op_per_s


def test_a_prompt_beyond_the_context_has_the_speed_of_one_that_holds_it() -> None:
    short = predicted(n_gpu_layers=-1, n_ctx=4096, n_prompt=6000, depth=1000)
    long = predicted(n_gpu_layers=-1, n_ctx=8192, n_prompt=6000, depth=1000)
    assert decode_of(short) == decode_of(long)
    said = "7000 tokens do not fit n_ctx 4096: the speeds are those of a context that holds them."
    assert said in prediction_in(short).words
    assert said.replace("4096", "8192") not in prediction_in(long).words


def test_what_does_not_fit_has_a_speed_all_the_same() -> None:
    plan = predicted(LARGE, n_gpu_layers=-1)
    assert plan.fits is False
    assert prediction_in(plan).words[0] == "It does not fit: these are the speeds it would have if it did."


# --- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words", "is_said"),
    [
        ({"n_gpu_layers": 20}, "The speed of main memory is not known", True),
        ({"n_gpu_layers": 32}, "The speed of main memory is not known", True),
        ({"n_gpu_layers": 33}, "The speed of main memory is not known", False),
        ({"n_gpu_layers": 33, "offload_kqv": False}, "The speed of main memory is not known", True),
        ({"n_gpu_layers": 20, "ram": "ddr5-5600"}, "The speed of main memory is not known", False),
        ({"n_gpu_layers": 20, "ram": "ddr5-5600"}, "(unsaid: as most desktops", True),
        ({"n_gpu_layers": 33, "n_seq_max": 4}, "Decode is that of all 4 sequences together.", True),
        ({"n_gpu_layers": 33}, "together", False),
        ({"n_gpu_layers": 20}, "typical card", False),
    ],
)
def test_what_is_assumed_is_said_where_it_matters(asked: dict[str, Any], words: str, is_said: object) -> None:
    plan = predicted(**asked)
    assert any(words in sentence for sentence in prediction_in(plan).words) is is_said


def test_an_unknown_device_is_said_to_be_one(in_process: InProcess) -> None:
    value = planned(in_process, *SHAPE, "--vram-limit", "8GiB", "--n-devices", "2", "--n-gpu-layers", "20")
    words = value["prediction"]["words"]
    assert "What GPU0, GPU1 can do at best is not known in full, so a typical card fills in." in words
    assert any("copied to GPU0 for prompts is not known" in sentence for sentence in words)
    assert value["prediction"]["bound_tok_per_s"] is None


def test_what_a_draft_model_does_is_left_out(in_process: InProcess, smollm2_path: Path) -> None:
    words = planned(in_process, *CARDED, "--draft", smollm2_path)["prediction"]["words"]
    assert "What the draft model saves or costs is left out." in words


def test_an_unknown_width_shows(in_process: InProcess) -> None:
    known, unknown = (
        planned(in_process, *PARTIAL, *more)["prediction"]["decode_tok_per_s"] for more in (("--ram", "ddr5-5600"), ())
    )
    assert unknown["high"] / unknown["low"] > 1.5 * known["high"] / known["low"]


def test_a_card_too_small_for_a_layer_is_said_to_be(in_process: InProcess) -> None:
    value = planned(in_process, *CARDED, "--vram-limit", "700MiB")
    assert value["settings"]["n_gpu_layers"] == 0
    assert "Not even one layer fits on CUDA0, so all of them stay in main memory." in value["warnings"]
    assert value["prediction"]["decode_tok_per_s"]["value"] > 0


# --- no prediction -------------------------------------------------------------------------------------------------


def test_a_header_without_tensors_has_none() -> None:
    plan = predicted(dataclasses.replace(made_up_facts(), tensors=()))
    assert plan.prediction is None
    assert "No speed is predicted: the header names no tensors." in plan.warnings


def test_more_tokens_than_llama_cpp_counts_have_none() -> None:
    plan = predicted(n_gpu_layers=-1, n_seq_max=256, depth=(1 << 31) - 1)
    assert plan.prediction is None
    assert any(sentence.startswith("No speed is predicted for so many tokens. ") for sentence in plan.warnings)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*CARDED, "--ram", "dr5-5600x2"], ["'dr5-5600x2' says 'dr5'"]),
        ([*CARDED, "--ram", "ddr5-5600x0"], ["ddr5-5600x"]),
        ([*CARDED, "--ram", ""], ["names no main memory"]),
        ([*CARDED, "--ram", "\x1b[2J"], ["characters that no name"]),
        ([*CARDED, "--depth", "3000000000"], ["A depth of 3000000000 tokens cannot be planned for"]),
        ([*CARDED, "--prompt", "9" * 30], ["A prompt of 9999"]),
    ],
    ids=lambda value: " ".join(value)[-40:],
)
def test_a_plan_that_cannot_be_made(arguments: list[str], words: list[str], in_process: InProcess) -> None:
    check_refused(in_process(*arguments), 2, *words)


@pytest.mark.parametrize("arguments", [("--depth", "-1"), ("--prompt", "0"), ("--prompt", "-5"), ("--prompt", "1.5")])
def test_no_fewer_tokens_than_none(arguments: tuple[str, ...], in_process: InProcess) -> None:
    ended: Ended = in_process(*CARDED, *arguments)
    assert ended.code == 2
    assert arguments[0] in ended.err


# --- any line ------------------------------------------------------------------------------------------------------

LINES = st.fixed_dictionaries(
    {
        "shape": st.sampled_from(shape_names()),
        "quant": st.sampled_from(list(QUANTS)),
        "card": st.sampled_from(card_names()),
    },
    optional={
        "n_gpu_layers": st.integers(-1, 100),
        "n_devices": st.sampled_from((1, 2, 16)),
        "n_ubatch": st.sampled_from((1, 16, 512)),
        "n_seq_max": st.sampled_from((1, 2, 256)),
        "n_cpu_moe": st.integers(0, 100),
        "flash_attn": st.booleans(),
        "offload_kqv": st.booleans(),
        "op_offload": st.booleans(),
        "type_k": st.sampled_from(("f16", "f32", "q8_0")),
        "n_prompt_tokens": st.integers(0, 1 << 31),
        "depth": st.integers(0, 1 << 31),
        "ram_gb_per_s": st.floats(0.1, 100_000),
        "load_mode": st.sampled_from(("mmap", "none")),
    },
)


@given(LINES)
def test_any_line_has_an_error_or_figures_in_order_below_the_bound(line: dict[str, Any]) -> None:
    (answer,) = answers(line)
    assert set(answer) == {"error"} or "prediction" in answer
    prediction = answer.get("prediction")
    if prediction is None:
        assert "error" in answer or any("No speed is predicted" in sentence for sentence in answer["warnings"])
        return
    for name in ("decode_tok_per_s", "prefill_tok_per_s", "ttft_s"):
        figure = prediction[name]
        assert 0 < figure["low"] <= figure["value"] <= figure["high"] < math.inf
    for name, bound in (("decode_tok_per_s", "bound_tok_per_s"), ("prefill_tok_per_s", "bound_prefill_tok_per_s")):
        assert prediction[bound] is None or prediction[name]["value"] <= prediction[bound] * (1 + 1e-9)
    assert "\x1b" not in json.dumps(prediction)


# --- this machine --------------------------------------------------------------------------------------------------


def a_machine_that_ran(facts: GgufFacts) -> Laws:
    """Laws of the sample machine after a run of each phase with some blocks on the host."""
    laws = laws_of(rig_of_machine(MACHINE), facts)
    settings = planning.settings_for(PlanRequest(asked={"n_gpu_layers": 20}), facts)
    runs = []
    for phase, n_prompt in ((Phase.DECODE, 1), (Phase.PREFILL, 512)):
        amounts = amounts_for(phase, facts, (settings,), laws.rig, n_prompt=n_prompt, depth=0)
        law = laws.of(phase)
        runs.append(run_of(law, amounts[:, 0], 1.3 * float(law.seconds(amounts)[0]), 0.01))
    return laws.with_runs(runs)


def of_ran(place: Place, laws_for: LawsFor) -> PlanReport:
    request = PlanRequest(shape="llama-3-8b", quant="Q4_K_M", card="RTX 4090", asked={"n_gpu_layers": 20})
    return planning.report_of(request, place, None, laws_for)


def test_what_ran_here_is_what_it_rests_on() -> None:
    rig = rig_of_machine(MACHINE)
    unknown = dataclasses.replace(rig, host=HostRates(n_cores=16))
    place = dataclasses.replace(named_place(PlanRequest(card="RTX 4090")), rig=unknown)
    before = of_ran(place, catalogue_laws(unknown))
    after = of_ran(place, lambda facts: dataclasses.replace(a_machine_that_ran(facts), rig=unknown))
    assert prediction_in(before.plan).decode_tok_per_s.basis is Basis.CATALOGUE
    assert prediction_in(after.plan).decode_tok_per_s.basis is Basis.CALIBRATED
    assert any("main memory is not known" in sentence for sentence in prediction_in(before.plan).words)
    assert not any("main memory is not known" in sentence for sentence in prediction_in(after.plan).words)
    assert "calibrated by runs on this machine" in screen(plan_view(after))


def test_memory_by_name_goes_before_that_of_this_machine() -> None:
    request = PlanRequest(ram="ddr4-2400x1")
    assert here._rig(request, MACHINE).host == HostRates(peak_bytes_per_s=19.2e9, n_cores=16, last_level_bytes=64 << 20)
    assert here._rig(PlanRequest(), MACHINE) == rig_of_machine(MACHINE)


def test_laws_here_are_those_of_the_machine_until_something_ran() -> None:
    laws_for = here._LawsHere(MACHINE, ENGINE)
    assert laws_for(LLAMA).rig == rig_of_machine(MACHINE)
    assert laws_for.words == ()


def test_what_was_learnt_here_is_used() -> None:
    SpeedMemory(FACTS, MACHINE, ENGINE).learn(trial())
    laws_for = here._LawsHere(MACHINE, ENGINE)
    laws = laws_for(FACTS)
    assert laws.decode.basis is laws.prefill.basis is Basis.CALIBRATED
    assert laws_for(FACTS) is laws


@pytest.mark.engine
def test_a_plan_on_this_machine_has_a_speed(in_process: InProcess, smollm2_path: Path) -> None:
    value = planned(in_process, "plan", smollm2_path, "--ram", "ddr4-2666x2")
    assert value["prediction"]["decode_tok_per_s"]["value"] > 0
    assert "2 channels of 64 bits: 42.7 GB/s at most." in value["prediction"]["words"][0]


# --- the screen ----------------------------------------------------------------------------------------------------


def figure(value: float, low: float, high: float, basis: Basis = Basis.CATALOGUE) -> Figure:
    return Figure(value=value, low=low, high=high, basis=basis)


CATALOGUE = Prediction(
    n_prompt_tokens=2048,
    depth=1000,
    decode_depth=3048,
    decode_tok_per_s=figure(2.6597, 1.8531, 3.8214),
    prefill_tok_per_s=figure(3187.2, 2337.9, 4346.2),
    ttft_s=figure(0.6426, 0.4712, 0.8760),
    bound_tok_per_s=4.3121,
    bound_prefill_tok_per_s=10_004.2,
    words=("Main memory is read as DDR5-5600, 2 channels of 64 bits: 89.6 GB/s at most.",),
)
CALIBRATED = dataclasses.replace(
    CATALOGUE,
    n_prompt_tokens=512,
    depth=0,
    decode_depth=0,
    decode_tok_per_s=figure(111.2, 104.4, 118.5, Basis.CALIBRATED),
    bound_tok_per_s=None,
    bound_prefill_tok_per_s=None,
    words=(),
)
GAINS = (
    Gain(what="other weights, Q3_K_M instead of Q4_K_M, with 9 more layers", decode_frac=0.503, ttft_frac=-0.031),
    Gain(what="main memory of 110 GB/s instead of 89.6 GB/s", decode_frac=0.197, ttft_frac=0.0),
    Gain(what="the next 1.76 GiB of device memory (4 more layers)", decode_frac=0.0985, ttft_frac=0.047),
    Gain(what="a fourth, which is not shown", decode_frac=0.09, ttft_frac=0.04),
)


@pytest.mark.parametrize(
    ("name", "prediction", "gains"),
    [("plan_speed", CATALOGUE, GAINS), ("plan_speed_calibrated", CALIBRATED, ())],
)
def test_the_screen(name: str, prediction: Prediction, gains: tuple[Gain, ...]) -> None:
    text = screen(plan_view(report_with({"prediction": prediction}, gains=gains)))
    check_golden(f"report/{name}.txt", text)
    assert max(map(len, text.splitlines())) <= 102


def test_a_plan_without_a_prediction_shows_no_speed() -> None:
    assert "Speed" not in screen(plan_view(REPORT))


def test_the_screen_shows_no_control_characters() -> None:
    bad = dataclasses.replace(CATALOGUE, words=("a\x1b[2J.",))
    gains = (Gain(what="b\x1b[2J", decode_frac=0.5, ttft_frac=0.5),)
    assert "\x1b" not in screen(plan_view(report_with({"prediction": bad}, gains=gains)))


# --- what it loads -------------------------------------------------------------------------------------------------


def test_a_plan_for_a_card_loads_no_solver_and_no_driver() -> None:
    code = """
import sys
from offloadtune.__main__ import main
sys.argv = ["offloadtune", "plan", "--shape", "llama-3-8b", "--quant", "Q4_K_M", "--card", "RTX 3090", "--json"]
try:
    main()
except SystemExit:
    pass
print(sorted({"scipy", "pynvml", "llama_cpp", "altair"} & set(sys.modules)), file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["prediction"]["decode_tok_per_s"]["value"] > 0
    assert ended.stderr.strip() == "[]"

"""What would help most: true of the machine it is said of, sorted by what it saves, silent within the noise."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest
from command_line import InProcess
from hypothesis import given
from hypothesis import strategies as st
from test_plan import planned

from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import Settings
from offloadtune.speed import Laws, Turn, best_first, gain_of, laws_of, next_quant_down, turn_of
from offloadtune.speed.gains import N_GEN
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig
from offloadtune.units import parse_bytes

FACTS = facts_of_shape("llama-3-8b", "Q4_K_M")
CARD = DeviceRates(
    name="CUDA0", family="ampere", read_bytes_per_s=936e9, flop_per_s=142e12, link_bytes_per_s=31.5e9, offloads_ops=True
)
RIG = Rig(devices=(CARD,), host=HostRates(peak_bytes_per_s=80e9))
LAWS = laws_of(RIG, FACTS)


def turn(n_gpu_layers: int, laws: Laws = LAWS, **asked: Any) -> Turn:
    settings = Settings(n_gpu_layers=n_gpu_layers, n_ctx=8192, flash_attn_type="enabled").replace(**asked)
    return turn_of(FACTS, settings, laws)


def surer(laws: Laws, times: float) -> Laws:
    """The same laws, so many times as sure."""
    decode, prefill = (
        dataclasses.replace(law, covariance=law.covariance / times**2, noise_frac=law.noise_frac / times)
        for law in (laws.decode, laws.prefill)
    )
    return dataclasses.replace(laws, decode=decode, prefill=prefill)


# --- arithmetic ----------------------------------------------------------------------------------------------------


def test_a_gain_is_the_ratio_of_two_times() -> None:
    before, after = turn(20), turn(30)
    gain = gain_of("ten more layers", before, after)
    assert gain is not None
    law = LAWS.decode
    assert gain.decode_frac == pytest.approx(float(law.mean @ before.step) / float(law.mean @ after.step) - 1)
    law = LAWS.prefill
    assert gain.ttft_frac == pytest.approx(1 - float(law.mean @ after.prompt) / float(law.mean @ before.prompt))
    assert gain.what == "ten more layers"


def test_a_turn_is_a_prompt_and_its_tokens() -> None:
    one = turn(33)
    seconds = float(LAWS.prefill.mean @ one.prompt) + N_GEN * float(LAWS.decode.mean @ one.step)
    assert one.seconds == pytest.approx(seconds)


def test_faster_memory_and_a_faster_link_change_their_own_terms_alone() -> None:
    before = turn(20)
    names = {phase: [term.name for term in LAWS.of(phase).terms] for phase in Phase}
    for after, changed, factor in (
        (before.with_faster_memory(1.25), {"host.weights", "host.cache", "host.plain_cache"}, 0.8),
        (before.with_faster_link(2.0), {"link", "link_pinned", "link_pageable"}, 0.5),
        (before.with_smaller_weights(0.8, LAWS), {"0.weights", "host.weights", "link_pinned", "link_pageable"}, 0.8),
    ):
        for phase, was, now in (
            (Phase.PREFILL, before.prompt, after.prompt),
            (Phase.DECODE, before.step, after.step),
        ):
            factors = np.array([factor if name in changed else 1.0 for name in names[phase]])
            np.testing.assert_allclose(now, was * factors)


@given(st.integers(0, 33), st.floats(1.0, 10.0))
def test_more_of_anything_never_takes_longer(n_gpu_layers: int, ratio: float) -> None:
    before = turn(n_gpu_layers)
    for after in (before.with_faster_memory(ratio), before.with_faster_link(ratio)):
        assert after.seconds <= before.seconds
    assert before.with_smaller_weights(1 / ratio, LAWS).seconds <= before.seconds


# --- the noise -----------------------------------------------------------------------------------------------------


def test_a_gain_within_the_noise_is_none() -> None:
    before = turn(20)
    assert gain_of("", before, before) is None
    assert gain_of("", before, before.with_faster_memory(1.02)) is None
    assert gain_of("", before, before.with_faster_memory(1.5)) is not None
    sure = surer(LAWS, 10)
    assert gain_of("", turn(20, sure), turn(20, sure).with_faster_memory(1.02)) is not None


def test_a_loss_is_no_gain() -> None:
    assert gain_of("", turn(30), turn(20)) is None


def test_errors_that_both_share_do_not_hide_a_gain() -> None:
    """The same memory, of which nobody says what it does: how much faster is sure, however fast it is."""
    unknown = laws_of(Rig(devices=(), host=HostRates()), FACTS)
    before = turn(0, unknown)
    spread = float(unknown.decode.spread_frac(before.step[:, None])[0])
    assert spread > 0.4
    assert gain_of("", before, before.with_faster_memory(1.3)) is not None


def test_of_other_laws_no_error_is_shared() -> None:
    other = dataclasses.replace(LAWS, decode=dataclasses.replace(LAWS.decode), prefill=LAWS.prefill)
    before = turn(33)
    after = before.with_smaller_weights(0.85, LAWS)
    assert gain_of("", before, after) is not None
    assert gain_of("", before, dataclasses.replace(after, laws=other)) is None


def test_what_saves_most_of_a_turn_comes_first() -> None:
    before = turn(20)
    some, more = before.with_faster_memory(1.3), turn(30)
    found = [(gain_of("memory", before, some), some), (None, some), (gain_of("layers", before, more), more)]
    assert [gain.what for gain in best_first(before, found)] == ["layers", "memory"]


# --- the next quantisation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bits", "lower"),
    [
        ("F16", 16.0, "Q8_0"),
        ("BF16", 16.0, "Q8_0"),
        ("Q8_0", 8.5, "Q6_K"),
        ("Q4_K_M", 4.8, "Q3_K_M"),
        ("Q4_K_M", 7.0, "Q3_K_M"),  # most of it is a large embedding
        ("Q4_0", 4.6, "Q3_K_M"),
        ("IQ4_XS", 4.3, "Q2_K"),
        ("unknown", 6.7, "Q5_K_M"),
        ("Q2_K", 3.2, None),
        ("IQ1_S", 1.6, None),
        ("unknown", 0.0, None),
    ],
)
def test_the_next_quantisation_down(name: str, bits: float, lower: str | None) -> None:
    found = next_quant_down(name, bits)
    assert (found[0] if found else None) == lower
    if found:
        assert 0.3 < found[1] < 0.95


# --- what a plan says ----------------------------------------------------------------------------------------------

LARGE = ("plan", "--shape", "llama-3.3-70b", "--quant", "Q4_K_M", "--card", "RTX 3090")


def test_the_memory_that_is_named_holds_the_layers_that_are_named(in_process: InProcess) -> None:
    for shape, limit in (("llama-3.3-70b", "20GiB"), ("llama-3-8b", "3GiB"), ("qwen3-32b", "6GiB")):
        plan = ("plan", "--shape", shape, "--quant", "Q4_K_M", "--card", "RTX 3090", "--vram-limit")
        value = planned(in_process, *plan, limit)
        (what,) = (gain["what"] for gain in value["gains"] if "device memory" in gain["what"])
        size, added = re.fullmatch(r"the next (.+) of device memory \((\d+) more layers?\)", what).groups()  # type: ignore[union-attr]
        before, layers = parse_bytes(limit), value["settings"]["n_gpu_layers"]
        enough = before + round(parse_bytes(size) * 1.01)  # three digits are shown
        less = before + round(parse_bytes(size) * 0.98)
        assert planned(in_process, *plan, str(enough))["settings"]["n_gpu_layers"] == layers + int(added)
        assert planned(in_process, *plan, str(less))["settings"]["n_gpu_layers"] < layers + int(added)


def test_the_gain_of_more_memory_is_what_a_plan_with_it_predicts(in_process: InProcess) -> None:
    value = planned(in_process, *LARGE, "--ram", "ddr5-5600x2")
    gain = next(one for one in value["gains"] if "device memory" in one["what"])
    added = int(re.search(r"\((\d+) more", gain["what"])[1])  # type: ignore[index]
    more = str(value["settings"]["n_gpu_layers"] + added)
    after = planned(in_process, *LARGE, "--ram", "ddr5-5600x2", "--n-gpu-layers", more)
    was, now = (one["prediction"]["decode_tok_per_s"]["value"] for one in (value, after))
    assert gain["decode_frac"] == pytest.approx(now / was - 1)


def test_layers_that_fit_for_nothing_stand_alone(in_process: InProcess) -> None:
    most = planned(in_process, *LARGE)["settings"]["n_gpu_layers"]
    (gain,) = planned(in_process, *LARGE, "--n-gpu-layers", "10")["gains"]
    assert gain["what"] == f"n_gpu_layers={most}, which fits"
    assert gain["decode_frac"] > 0


EXPERTS = ("plan", "--shape", "qwen3-30b-a3b", "--quant", "Q4_K_M", "--card", "RTX 3060", "--n-gpu-layers", "-1")


def test_experts_that_fit_for_nothing_stand_alone(in_process: InProcess) -> None:
    (gain,) = planned(in_process, *EXPERTS, "--n-cpu-moe", "48")["gains"]
    least = int(re.fullmatch(r"n_cpu_moe=(\d+), which fits", gain["what"])[1])  # type: ignore[index]
    assert planned(in_process, *EXPERTS, "--n-cpu-moe", str(least))["fits"] is True
    assert planned(in_process, *EXPERTS, "--n-cpu-moe", str(least - 1))["fits"] is False


def test_more_memory_is_for_more_experts_where_all_layers_are_there(in_process: InProcess) -> None:
    least = (*EXPERTS, "--n-cpu-moe", "19")
    what = next(gain["what"] for gain in planned(in_process, *least)["gains"] if gain["what"].startswith("the next"))
    size, added = re.fullmatch(r"the next (.+) of device memory \(the experts of (\d+) more blocks\)", what).groups()  # type: ignore[union-attr]
    fewer = (*EXPERTS, "--n-cpu-moe", str(19 - int(added)))
    free = next(iter(planned(in_process, *least)["devices"].values()))["free_bytes"]
    for times, expected in ((1.01, True), (0.98, False)):
        # a limit cannot be more than the card has, so the same plan is made for a larger one
        limit = ("--vram-limit", str(round(free + parse_bytes(size) * times)))
        larger = [{"RTX 3060": "RTX 3090"}.get(word, word) for word in fewer]
        assert planned(in_process, *larger, *limit)["fits"] is expected


def test_faster_memory_is_named_where_it_is_known_and_used(in_process: InProcess) -> None:
    def memory_in(*options: str) -> bool:
        return any("main memory of" in gain["what"] for gain in planned(in_process, *LARGE, *options)["gains"])

    assert memory_in("--ram", "ddr4-3200x2")
    assert not memory_in()  # of what nobody named
    assert not any(
        "main memory" in json.dumps(gain)
        for gain in planned(in_process, "plan", "--shape", "llama-3-8b", "--quant", "Q8_0", "--card", "3090")["gains"]
    )


def test_other_weights_are_called_so(in_process: InProcess) -> None:
    gains = planned(in_process, *LARGE)["gains"]
    (what,) = (gain["what"] for gain in gains if "weights" in gain["what"])
    assert re.fullmatch(r"other weights, Q3_K_M instead of Q4_K_M, with \d+ more layers", what)


def test_what_does_not_fit_is_not_helped(in_process: InProcess) -> None:
    value = planned(in_process, *LARGE, "--n-gpu-layers", "-1")
    assert (value["fits"], value["gains"]) == (False, [])


def test_without_a_device_of_known_size_memory_is_not_weighed(in_process: InProcess) -> None:
    value = planned(in_process, "plan", "--shape", "llama-3-8b", "--quant", "Q4_K_M", "--n-devices", "2")
    assert value["fits"] is None
    assert not any("device memory" in gain["what"] for gain in value["gains"])

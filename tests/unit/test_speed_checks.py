"""What a calibration says of its law: coefficients, runs left out one by one, and how both are shown."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from golden import check_golden
from rich.console import Console
from synthetic import made_up_facts

from offloadtune.pipeline.calibrating_speed import how_far_off
from offloadtune.records import Settings
from offloadtune.report import calibration_json, calibration_view, passage_words
from offloadtune.speed import amounts_for, calibrated, laws_of, run_of
from offloadtune.speed.checks import checked, coefficients_of, held_out
from offloadtune.speeds import (
    CalibrationReport,
    Coefficient,
    DeviceRates,
    HostRates,
    PassageMeasured,
    Phase,
    Rig,
    Run,
    RunCheck,
)
from offloadtune.units import format_flop_per_s

FACTS = made_up_facts()
RIG = Rig(
    devices=(DeviceRates(name="CUDA0", read_bytes_per_s=1e12, flop_per_s=1e14),),
    host=HostRates(read_bytes_per_s=20e9, n_cores=4),
    shares=(1.0,),
)
NAMES = ("CUDA0",)
PRIOR = laws_of(RIG, FACTS).decode


def run(n_gpu_layers: int, times: float = 1.0, depth: int = 0) -> Run:
    settings = Settings(n_gpu_layers=n_gpu_layers, n_ctx=4096, n_threads=4, flash_attn_type="enabled")
    amounts = amounts_for(Phase.DECODE, FACTS, (settings,), RIG, n_prompt=1, depth=depth)
    seconds = times * float(PRIOR.seconds(amounts)[0])
    return run_of(PRIOR, amounts[:, 0], seconds, 0.01, f"a token after {depth} at n_gpu_layers {n_gpu_layers}")


RUNS = (run(13), run(7), run(0), run(13, depth=2048), run(3))


def test_each_run_is_held_against_the_others() -> None:
    law = calibrated(PRIOR, RUNS)
    checks = held_out(PRIOR, law, RUNS)
    assert [one.label for one in checks] == [one.label for one in RUNS]
    assert all(abs(one.off_frac) < 0.02 and not one.is_miss for one in checks)
    expected = calibrated(PRIOR, RUNS[1:]).interval(
        np.array([dict(RUNS[0].amounts).get(t.name, 0) for t in PRIOR.terms])[:, None]
    )
    assert checks[0].expected_s == pytest.approx(float(expected[0][0]))
    assert checks[0].low_s < checks[0].expected_s < checks[0].high_s


def test_a_run_that_the_law_left_out_is_a_miss_and_runs_of_the_other_phase_are_not_its_business() -> None:
    strange = run(9, times=3.0)
    law = calibrated(PRIOR, RUNS)
    prompt = dataclasses.replace(strange, phase=Phase.PREFILL)
    (check,) = held_out(PRIOR, law, [strange, prompt])
    assert check.is_miss
    assert check.off_frac == pytest.approx(-2 / 3, abs=0.05)


def test_one_run_has_no_others() -> None:
    assert held_out(PRIOR, calibrated(PRIOR, RUNS[:1]), RUNS[:1]) == ()
    assert held_out(PRIOR, PRIOR, RUNS) == ()


def test_coefficients_are_shown_by_what_ran_and_left_out_where_nothing_could_show_them() -> None:
    asked = np.array([[float(term.name in {"0.blocks", "host.weights", "host.cache"})] for term in PRIOR.terms])
    law = calibrated(PRIOR, [run(13)])
    found = {one.words: one for one in coefficients_of(PRIOR, law, asked, NAMES)}
    device, host, cache = found.values()
    assert list(found) == [
        "each block besides, CUDA0",
        "reading the weights, host",
        "reading the cache, host",
    ]
    assert device.is_shown
    assert not host.is_shown
    assert not cache.is_shown
    assert (device.unit, host.unit, device.phase) == ("count", "bytes", Phase.DECODE)
    assert device.low_s < device.seconds < device.high_s
    assert device.high_s / device.seconds == pytest.approx(device.seconds / device.low_s)
    assert not any(one.is_shown for one in coefficients_of(PRIOR, PRIOR, asked, NAMES))


def test_a_coefficient_of_which_nothing_is_left_has_no_range() -> None:
    law = dataclasses.replace(calibrated(PRIOR, RUNS), mean=np.zeros_like(PRIOR.mean))
    (found, *_) = coefficients_of(PRIOR, law, np.ones((len(PRIOR.terms), 1)), NAMES)
    assert (found.seconds, found.low_s, found.high_s, found.is_shown) == (0.0, 0.0, 0.0, True)


def test_what_nobody_knows_has_a_wide_range_and_no_endless_one() -> None:
    law = dataclasses.replace(PRIOR, covariance=PRIOR.covariance * 1e12)
    check = checked(law, RUNS[0])
    assert math.isfinite(check.high_s)
    assert check.high_s > 100 * check.expected_s
    assert not check.is_miss


def check_of(off: float, *, phase: Phase = Phase.DECODE, is_miss: bool = False) -> RunCheck:
    label = (
        "a token after 64 at n_gpu_layers 12, n_ubatch 512"
        if phase is Phase.DECODE
        else "0+64 tokens at n_gpu_layers 12"
    )
    measured = 0.0125 if phase is Phase.DECODE else 0.42
    expected = measured * (1 + off)
    return RunCheck(
        phase=phase,
        label=label,
        measured_s=measured,
        expected_s=expected,
        low_s=expected / 1.1,
        high_s=expected * 1.1,
        is_miss=is_miss,
    )


CHECKS = (
    check_of(0.01),
    check_of(-0.05),
    check_of(0.3, is_miss=True),
    check_of(0.02, phase=Phase.PREFILL),
    check_of(-0.04, phase=Phase.PREFILL),
)


def test_how_far_the_law_is_off_is_said_and_what_follows_from_a_miss() -> None:
    decode, prompts, missed = how_far_off(CHECKS)
    assert decode == (
        "Left out one by one, tokens written lie 5.0% from what the other runs say in the median, and 30% at most."
    )
    assert "prompts read lie 3.0%" in prompts
    assert missed.startswith("1 of 5 lies outside its range: a token after 64 at n_gpu_layers 12")
    assert missed.endswith("trust the measurement.")
    assert len(how_far_off(CHECKS[3:])) == 1
    assert how_far_off(()) == []
    assert how_far_off([dataclasses.replace(one, is_miss=True) for one in CHECKS])[-1].startswith("5 of 5 lie outside")


def coefficient(
    words: str, seconds: float, unit: str, *, phase: Phase = Phase.DECODE, is_shown: bool = True
) -> Coefficient:
    return Coefficient(
        phase=phase,
        words=words,
        unit=unit,
        seconds=seconds,
        low_s=seconds / 1.2,
        high_s=seconds * 1.2,
        is_shown=is_shown,
    )


REPORT = CalibrationReport(
    machine_id="a-card-01234567",
    engine_version="llama-cpp-python 0.3.36",
    path=Path("/models/a.gguf"),
    type_name="Q4_K",
    devices=("CUDA0",),
    n_passages=3,
    n_loads=2,
    n_timings=9,
    coefficients=(
        coefficient("reading the weights, CUDA0", 1 / 880e9, "bytes"),
        coefficient("each block besides, CUDA0", 71e-6, "count"),
        coefficient("reading the weights, host", 1 / 41e9, "bytes", is_shown=False),
        coefficient("splitting the blocks over host and devices", 0.0, "count"),
        coefficient("multiplying the weights, CUDA0", 1 / 82e12, "flop", phase=Phase.PREFILL),
        coefficient("multiplying the weights, host", 1 / 450e9, "flop", phase=Phase.PREFILL),
    ),
    checks=CHECKS,
    failures=("0+64 tokens at n_gpu_layers 33, n_ubatch 512: the memory of CUDA0 ran out\x1b[2J.",),
    words=tuple(how_far_off(CHECKS)),
    store_path=Path("/home/user/profiles/a-card-01234567/speed.json"),
    is_interrupted=False,
    duration_s=61.2,
)


def screen(report: CalibrationReport) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, highlight=False, markup=False, emoji=False, color_system=None).print(
        calibration_view(report), soft_wrap=True
    )
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def test_the_screen_of_a_calibration() -> None:
    check_golden("report/calibration.txt", screen(REPORT))


def test_the_screen_of_one_that_was_stopped() -> None:
    text = screen(
        dataclasses.replace(REPORT, is_interrupted=True, devices=(), checks=(), failures=(), coefficients=(), words=())
    )
    assert "3 runs of a prompt and a few tokens, 2 loads, stopped by you after 61.2 s" in text
    assert "on the CPU alone now rest on 9 timings" in text


def test_json_has_what_the_screen_has() -> None:
    value = json.loads(json.dumps(calibration_json(REPORT), allow_nan=False))
    assert value["path"] == "/models/a.gguf"
    assert value["coefficients"][0]["per_s"] == pytest.approx(880e9)
    assert value["coefficients"][3]["per_s"] is None
    assert value["checks"][2]["off_frac"] == pytest.approx(0.3)
    assert value["checks"][2]["is_miss"] is True
    assert value["checks"][0]["phase"] == "decode"


def test_a_passage_is_one_line() -> None:
    event = PassageMeasured(label="0+64 tokens", n_done=2, n_most=8, remaining_s=50.0, checks=(CHECKS[1], CHECKS[3]))
    assert passage_words(event) == (
        "2 of at most 8, 0+64 tokens: first token 420 ms, expected 428 ms (389 ms to 471 ms); "
        "writes 80.0 tok/s, expected 84.2 tok/s (76.6 tok/s to 92.6 tok/s)"
    )


@pytest.mark.parametrize(
    ("flop_per_s", "text"), [(82.58e12, "82.6 TFLOP/s"), (0.9999e12, "1.00 TFLOP/s"), (45e9, "45.0 GFLOP/s")]
)
def test_rates_of_computing_are_written_as_makers_do(flop_per_s: float, text: str) -> None:
    assert format_flop_per_s(flop_per_s) == text

"""The benchmark of the speed law: how it reads published rows, that its fit finds what is there, and its bars."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offloadtune.speed.constants import CONSTANTS
from offloadtune.speed.terms import terms_of
from offloadtune.speeds import Phase

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """The benchmark and what it is made of, imported as scripts are: from their folder."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("speed_records")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def every(benchmark: Any) -> list[Any]:
    cases: list[Any] = benchmark.read_cases()[0]
    return cases


@pytest.fixture(scope="module")
def fit(benchmark: Any, every: list[Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Constants of all rows, and all parameters."""
    found: tuple[dict[str, Any], dict[str, float]] = benchmark.fitted(benchmark.of_today(every))
    return found


def at_line(every: list[Any], i_line: int) -> Any:
    return next(case for case in every if case.i_line == i_line)


def amount(case: Any, name: str) -> float:
    names = [term.name for term in terms_of(case.phase, len(case.rig.devices))]
    return float(case.parts[0].amounts[names.index(name)])


# --- reading -------------------------------------------------------------------------------------------------------


def test_most_rows_are_read_and_the_others_say_why(benchmark: Any) -> None:
    cases, left_out = benchmark.read_cases()
    assert len(cases) > 950
    assert sum(left_out.values()) < 30
    assert all(len(why) > 20 for why in left_out)


def test_doubtful_rows_are_left_out(every: list[Any]) -> None:
    assert {case.grade for case in every} == {"A", "B"}


def test_old_builds_count_blocks_and_keep_the_output_for_last(every: list[Any]) -> None:
    """RTX 4090, Qwen2.5 32B: "64 of 65: output layer still on CPU", and the same file with none of it on the card."""
    most, none = at_line(every, 398), at_line(every, 402)
    assert (most.n_gpu_layers, none.n_gpu_layers) == ("64", "0")
    assert amount(none, "0.weights") == 0
    assert 0 < amount(most, "host.weights") < 0.05 * amount(none, "host.weights")
    assert amount(most, "0.weights") + amount(most, "host.weights") == pytest.approx(amount(none, "host.weights"))
    assert amount(most, "0.blocks") >= 64


def test_new_builds_count_the_output_first(every: list[Any]) -> None:
    """RTX 5060 Ti, Qwen2.5-Coder 14B: 8 layers are the output and 7 blocks of 48."""
    case = at_line(every, 379)
    assert case.n_gpu_layers == "8"
    assert amount(case, "0.blocks") == 8
    assert amount(case, "host.blocks") == 41


def test_experts_stay_where_the_row_says(every: list[Any]) -> None:
    some, more = at_line(every, 479), at_line(every, 487)  # --n-cpu-moe 25 and 28
    assert amount(some, "handovers") == 50
    assert amount(more, "handovers") == 56


def test_weights_are_those_of_the_file_the_row_names(every: list[Any]) -> None:
    case = at_line(every, 464)  # Llama-3.3 70B UD-Q4_K_XL, 42.9 GB, which follows no published rule
    total = amount(case, "0.weights") + amount(case, "host.weights")
    assert total == pytest.approx(42.9e9, rel=0.03)


def test_localscore_is_its_best_and_a_mean_over_nine_prompts(every: list[Any]) -> None:
    rows = [case for case in every if case.engine == "llamafile" and case.gpu == "RTX 4090" and "8B" in case.shape]
    speeds = {case.phase: case.tok_per_s for case in rows}
    assert speeds == {Phase.DECODE: 122.0, Phase.PREFILL: 7398.0}
    prefill = next(case for case in rows if case.phase is Phase.PREFILL)
    assert [part.n_tokens for part in prefill.parts] == [1024, 4096, 2048, 2048, 1024, 1280, 384, 64, 16]
    assert sum(part.weight for part in prefill.parts) == pytest.approx(1.0)


def test_depth_is_what_was_cached_and_half_of_what_was_generated(every: list[Any]) -> None:
    assert amount(at_line(every, 541), "0.cache") == 17 * amount(at_line(every, 539), "0.cache")  # blocks of 256


def test_two_looks_at_one_repository_are_one_author(every: list[Any]) -> None:
    authors = {case.author for case in every if "XiongjieDai" in case.author}
    assert authors == {"github.com/XiongjieDai"}
    assert {"llama.cpp #15013", "GitHub bench", "GitHub tutorial"} <= {case.author for case in every}


def test_what_did_not_say_its_placement_is_left_out(benchmark: Any) -> None:
    _, left_out = benchmark.read_cases()
    assert any("FFN tensors spilt by hand" in why for why in left_out)


# --- the fit -------------------------------------------------------------------------------------------------------


def test_slopes_are_those_of_the_prediction(every: list[Any]) -> None:
    problem_of = sys.modules["speed_fit"].Problem
    guesses = sys.modules["speed_guesses"].GUESSES
    cases = [case for case in every if case.phase is Phase.PREFILL and case.gpu in {"RTX 3090", "RTX 3090 Ti", "A40"}]
    problem = problem_of(cases, guesses)
    theta = problem.centre + 0.1
    log_speed, seconds = problem.predicted(theta)
    slopes = problem.slopes(log_speed, seconds)
    for j in range(0, len(theta), 7):
        moved = theta.copy()
        moved[j] += 1e-5
        assert (problem.predicted(moved)[0] - log_speed) / 1e-5 == pytest.approx(slopes[:, j], abs=1e-4)


def test_fit_finds_the_constants_that_made_the_speeds(benchmark: Any, every: list[Any]) -> None:
    """Speeds as the law has them with other constants, the same for all: decode rows alone, to be quick."""
    cases = [case for case in benchmark.of_today(every) if case.phase is Phase.DECODE and case.engine == ""]
    made = {name: dataclasses.replace(one, by_family={}) for name, one in CONSTANTS.items()}
    made["read"] = dataclasses.replace(made["read"], value=0.7)
    made["host_read"] = dataclasses.replace(made["host_read"], value=0.5)
    judged = sys.modules["speed_judging"].judged
    told = [
        dataclasses.replace(row.case, tok_per_s=row.case.tok_per_s * float(np.exp(row.off)), date="2026")
        for row in judged(cases, made)
    ]
    found, _ = benchmark.fitted(told)
    assert found["read"].of("ampere")[0] == pytest.approx(0.7, rel=0.05)
    assert found["host_read"].value == pytest.approx(0.5, rel=0.05)


def test_frozen_constants_are_those_of_the_fit(benchmark: Any, fit: tuple[dict[str, Any], dict[str, float]]) -> None:
    assert list(benchmark.frozen_otherwise(fit[0])) == []


def test_a_constant_that_was_changed_by_hand_is_told(benchmark: Any, fit: tuple[dict[str, Any], Any]) -> None:
    constants = dict(fit[0])
    constants["read"] = dataclasses.replace(constants["read"], value=constants["read"].value * 1.2)
    [told] = [line for line in benchmark.frozen_otherwise(constants) if line.startswith("read is")]
    assert "frozen as" in told


def test_printed_constants_are_the_frozen_ones(benchmark: Any) -> None:
    text = "\n".join(benchmark.lines_of(CONSTANTS))
    printed = eval(f"{{{text}}}", {"Constant": type(CONSTANTS["read"])})  # noqa: S307 - our own lines
    assert printed.keys() == CONSTANTS.keys()
    assert all(printed[name].value == pytest.approx(CONSTANTS[name].value, rel=0.05) for name in CONSTANTS)


# --- bars ----------------------------------------------------------------------------------------------------------


def test_bars_can_be_missed(benchmark: Any) -> None:
    tally = benchmark.Tally(n=100, median_frac=0.09, p90_frac=0.3, lean_frac=0.0, inside_frac=0.9)
    good = {("decode full",): tally, ("prefill CPU",): dataclasses.replace(tally, median_frac=0.9, inside_frac=0.1)}
    assert list(benchmark.missed_bars(good)) == []
    for change in ({"median_frac": 0.11}, {"inside_frac": 0.84}, {"inside_frac": 0.96}):
        [told] = benchmark.missed_bars({("decode full",): dataclasses.replace(tally, **change)})
        assert told.startswith("decode full: ")
    assert benchmark.missed_sweep_bars(dataclasses.replace(tally, median_frac=0.02, p90_frac=0.05)) == []
    assert len(benchmark.missed_sweep_bars(tally)) == 2


def test_two_points_of_a_sweep_predict_the_others(
    benchmark: Any, every: list[Any], fit: tuple[Any, dict[str, float]]
) -> None:
    rows = [after for sweep in benchmark.SWEEPS for _, after in benchmark.swept(every, sweep, Phase.DECODE, fit[1])]
    assert len(rows) == 9
    assert benchmark.missed_sweep_bars(benchmark.Tally.of(rows)) == []


@pytest.mark.slow
def test_rows_of_authors_that_the_constants_do_not_know(
    benchmark: Any, every: list[Any], fit: tuple[Any, dict[str, float]]
) -> None:
    cases = benchmark.of_today(every)
    rows = benchmark.by_others(cases, list(benchmark.halves(cases, fit[1])))
    proper = [row for row in rows if row.case.engine != "llamafile"]
    assert list(benchmark.missed_bars(benchmark.tallied(proper, lambda case: (case.placed,)))) == []

"""The benchmark of the search on simulated machines, in short; and that it sees an answer that is bad."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offloadtune.engine import VisitPlan
from offloadtune.engine.synthetic import SyntheticRunner
from offloadtune.records import Goal, Outcome, Settings, Trial

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

machines: Any = importlib.import_module("simulated_machines")
grids: Any = importlib.import_module("simulated_grid")
rivals: Any = importlib.import_module("simulated_rivals")
bench: Any = importlib.import_module("simulated_search")
equal: Any = importlib.import_module("simulated_equal")

SEED = 1


@pytest.fixture(scope="module")
def case() -> Any:
    """One with a card that does not hold everything."""
    drawn = (machines.draw_machine(i, SEED) for i in range(200))
    return next(one for one in drawn if one.machine.card and is_partial(one) and not one.facts.n_expert)


@pytest.fixture(scope="module")
def grid(case: Any) -> Any:
    return grids.exhaustive(case)


def is_partial(case: Any) -> bool:
    full = grids.base_of(case).replace(n_gpu_layers=case.facts.n_layer + 1)
    return not bool(grids.truth_of(case, full).fits[0])


def judged(case: Any, grid: Any, settings: Settings | None, goal: Goal = Goal.TURN) -> Any:
    """What the benchmark makes of an answer."""
    bench.STRATEGIES["a test's"] = lambda _task: rivals.Answer(settings=settings, n_trials=0)
    try:
        return bench.search_once(case, goal, 100.0, name="a test's", grid=grid)
    finally:
        del bench.STRATEGIES["a test's"]


def best_of(grid: Any, goal: Goal) -> Settings:
    found: Settings = grid.settings[int(np.argmin(grids.costs(grid.found, goal, grid.n_gen)))]
    return found


def test_a_seed_draws_the_same_machines_whatever_was_drawn_before() -> None:
    first = [one.machine.name for one in machines.draw_machines(12, SEED)]
    assert [machines.draw_machine(i, SEED).machine.name for i in (11, 3)] == [first[11], first[3]]
    assert [one.machine.name for one in machines.draw_machines(12, SEED + 1)] != first


def test_at_least_half_of_the_machines_have_a_surprise_of_every_kind() -> None:
    drawn = machines.draw_machines(100, SEED)
    kinds = [one.surprise for one in drawn if one.surprise != "none"]
    assert len(kinds) >= 50
    assert set(kinds) == {"slow kernel", "spill", "lying free memory", "SMT collapse", "throttling"}


def test_all_some_and_none_of_the_layers_fit_the_cards_drawn() -> None:
    drawn = machines.draw_machines(60, SEED)
    with_card = [one for one in drawn if one.machine.card]
    n_partial = sum(map(is_partial, with_card))
    assert 10 < n_partial < len(with_card) - 10
    assert len(with_card) < len(drawn)
    assert any(one.facts.n_expert for one in drawn)


def test_the_grid_has_enough_settings_and_all_of_them_fit(grid: Any) -> None:
    assert len(grid.settings) == len(set(grid.settings)) >= grids.N_FEASIBLE_LEAST
    assert grid.found.fits.all()


def test_a_processor_alone_has_enough_settings_too() -> None:
    drawn = (machines.draw_machine(i, SEED) for i in range(200))
    alone = next(one for one in drawn if one.machine.card is None and one.machine.host.n_cores <= 6)
    assert len(grids.exhaustive(alone).settings) >= grids.N_FEASIBLE_LEAST


@pytest.mark.parametrize("goal", [Goal.TURN, Goal.TTFT, Goal.DECODE])
def test_the_best_of_the_grid_has_no_regret_and_any_other_has(case: Any, grid: Any, goal: Goal) -> None:
    best = best_of(grid, goal)
    assert judged(case, grid, best, goal).regret_frac == pytest.approx(0.0, abs=1e-9)
    slower = judged(case, grid, best.replace(n_gpu_layers=best.n_gpu_layers // 2), goal)
    assert slower.regret_frac > 0.02


def test_an_answer_that_does_not_fit_or_is_none_is_seen(case: Any, grid: Any) -> None:
    unfit = judged(case, grid, grids.base_of(case).replace(n_gpu_layers=case.facts.n_layer + 1))
    assert (unfit.fits, unfit.is_worse, unfit.regret_frac) == (False, True, math.inf)
    assert judged(case, grid, None).regret_frac == math.inf
    missed = list(bench.missed_bars([unfit]))
    assert any("do not fit" in one for one in missed)
    assert any("worse than the best baseline" in one for one in missed)


def test_an_answer_worse_than_a_baseline_is_seen(case: Any, grid: Any) -> None:
    worst = grid.settings[int(np.argmax(grids.costs(grid.found, Goal.TURN, grid.n_gen)))]
    row = judged(case, grid, worst)
    assert row.fits
    assert row.is_worse
    assert any("worse" in one for one in bench.missed_bars([row]))


def test_the_best_answer_misses_no_bar(case: Any, grid: Any) -> None:
    row = judged(case, grid, best_of(grid, Goal.TURN))
    assert list(bench.missed_bars([row])) == []
    assert any("more than 5%" in one for one in bench.missed_bars([dataclasses.replace(row, used_frac=0.06)]))


@pytest.mark.parametrize("name", ["offloadtune", "bisect", "random", "tpe"])
def test_every_strategy_answers_within_its_time_and_the_same_again(case: Any, grid: Any, name: str) -> None:
    if name == "tpe":
        pytest.importorskip("optuna")
    budget_s = 0.05 * grid.measuring_s
    row = bench.search_once(case, Goal.TURN, budget_s, name=name, grid=grid)
    assert row.fits
    assert row.used_s <= budget_s + 1e-6
    assert row == bench.search_once(case, Goal.TURN, budget_s, name=name, grid=grid)


def test_the_engine_ends_out_of_memory_where_the_truth_says_that_settings_do_not_fit(case: Any) -> None:
    runner, plan = SyntheticRunner(case.machine), VisitPlan(workload=case.workload, n_steps=1, n_visits=1)
    for n_gpu_layers in (1, case.facts.n_layer + 1):
        settings = grids.base_of(case).replace(n_gpu_layers=n_gpu_layers)
        trial = Trial(settings=settings, target=case.target, why="a test's")
        outcome = runner.run(trial, plan, timeout_s=math.inf).outcome
        assert (outcome is Outcome.OK) == bool(grids.truth_of(case, settings).fits[0])


def test_equal_settings_are_equal_but_for_noise() -> None:
    case = equal.equal_case(3, SEED)
    found = grids.exhaustive(case).found
    assert np.ptp(found.ttft_s) < 1e-9 * found.ttft_s.mean()
    assert np.ptp(found.token_s) < 1e-9 * found.token_s.mean()
    noise = equal.recorded_noise()
    assert len(noise.recorded) > 900
    assert np.median([prompt for prompt, _ in noise.recorded]) == pytest.approx(0.0, abs=0.01)


def test_a_table_has_a_line_for_each_class_and_for_all(case: Any, grid: Any) -> None:
    rows = [judged(case, grid, best_of(grid, Goal.TURN))]
    head, *lines = bench.table(rows)
    assert "median" in head
    assert [line.split()[0] for line in lines] == ["a", "a"]
    assert case.surprise in lines[0]
    assert " all " in lines[1]

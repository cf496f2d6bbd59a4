"""Cards, grids and regret of the search's benchmarks, without measuring anything."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_moe import write_small_moe

from offloadtune.footprint import estimate_footprint
from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts, Settings

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

cases: Any = importlib.import_module("search_cases")
measuring: Any = importlib.import_module("search_measuring")
grids: Any = importlib.import_module("search_grids")
equal: Any = importlib.import_module("search_equal_real")
fit: Any = importlib.import_module("search_against_fit")
vulkan: Any = importlib.import_module("search_on_vulkan")

CASES = [(name, cap) for name in cases.SAMPLES for cap in cases.CAPS]


@pytest.fixture(scope="module")
def all_facts(smollm2_path: Path, gemma3_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufFacts]:
    mixture = tmp_path_factory.mktemp("mixture") / "mixture.gguf"
    write_small_moe(mixture)
    paths = {"smollm2": smollm2_path, "gemma3": gemma3_path, "mixture": mixture}
    return {name: read_gguf(path) for name, path in paths.items()}


def card_and_grid(all_facts: dict[str, GgufFacts], name: str, cap: str) -> tuple[int, tuple[Settings, ...]]:
    sample = cases.SAMPLES[name]
    card_bytes = cases.card_bytes_of(all_facts[name], sample, cases.CAPS[cap])
    return card_bytes, cases.grid_of(all_facts[name], sample, card_bytes)


# --- grids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cap"), CASES)
def test_a_grid_has_enough_settings_that_fit_and_none_twice(
    name: str, cap: str, all_facts: dict[str, GgufFacts]
) -> None:
    card_bytes, grid = card_and_grid(all_facts, name, cap)
    assert 120 <= len(grid) == len(set(grid)) < 200
    taken = [estimate_footprint(all_facts[name], one).bytes for one in grid]
    assert max(taken) + cases.DRIVER_BYTES <= card_bytes
    assert {one.flash_attn_type for one in grid} == {"enabled", "disabled"}
    assert any(one.devices == () for one in grid)
    assert all(one.n_ubatch <= one.n_batch == one.n_ctx for one in grid)


@pytest.mark.parametrize(("name", "cap"), CASES)
def test_a_grid_goes_to_the_wall_with_every_ubatch(name: str, cap: str, all_facts: dict[str, GgufFacts]) -> None:
    facts = all_facts[name]
    card_bytes, grid = card_and_grid(all_facts, name, cap)
    for n_ubatch in {one.n_ubatch for one in grid}:
        there = [one for one in grid if one.n_ubatch == n_ubatch and one.flash_attn_type == "enabled"]
        whole_layers = [one for one in there if not one.n_cpu_moe and one.devices != ()]
        most = max((one.n_gpu_layers for one in whole_layers), default=0)
        if most <= facts.n_layer:
            beyond = there[0].replace(devices=None, n_cpu_moe=0, n_gpu_layers=most + 1)
            assert cases.needed_bytes(facts, beyond) > card_bytes


@pytest.mark.parametrize("name", list(cases.SAMPLES))
def test_only_the_largest_card_holds_everything(name: str, all_facts: dict[str, GgufFacts]) -> None:
    everything = all_facts[name].n_layer + 1
    sizes = []
    for cap in ("third", "two-thirds", "all"):
        card_bytes, grid = card_and_grid(all_facts, name, cap)
        whole = [one for one in grid if one.n_gpu_layers == everything and not one.n_cpu_moe]
        plain = [one for one in whole if one.n_ubatch == one.n_ctx]
        assert bool(plain) == (cap == "all")
        sizes.append(card_bytes)
    assert sizes == sorted(sizes)


def test_the_mixtures_grid_keeps_experts_in_main_memory_too(all_facts: dict[str, GgufFacts]) -> None:
    _, grid = card_and_grid(all_facts, "mixture", "third")
    assert {one.n_gpu_layers for one in grid if one.n_cpu_moe} == {all_facts["mixture"].n_layer + 1}


def test_a_card_too_small_for_a_grid_is_refused(all_facts: dict[str, GgufFacts]) -> None:
    with pytest.raises(ValueError, match="only 0"):
        cases.grid_of(all_facts["smollm2"], cases.SAMPLES["smollm2"], 0)


def test_placements_are_visited_by_chance_and_loaded_once(all_facts: dict[str, GgufFacts]) -> None:
    _, grid = card_and_grid(all_facts, "smollm2", "all")
    order = list(grids.in_order(grid, random.Random(1)))
    assert sorted(map(repr, order)) == sorted(map(repr, grid))
    assert order != list(grid)
    loads = 1 + sum(one.placement != other.placement for one, other in itertools.pairwise(order))
    assert loads == len({one.placement for one in grid})


# --- regret ----------------------------------------------------------------------------------------------------------


def rounds(chosen: float, *rivals: float, copy_frac: float = 1.0, n: int = 15) -> dict[str, list[float]]:
    """Sides whose rounds are alike but for weather that all of a round have in common."""
    weather = [1 + 0.1 * (i % 3) for i in range(n)]
    found = {cases.CHOSEN: [chosen * one for one in weather], cases.COPY: [chosen * copy_frac * one for one in weather]}
    return found | {f"rival {i}": [rival * one for one in weather] for i, rival in enumerate(rivals)}


def test_regret_is_beside_the_quickest_rival() -> None:
    regret = cases.regret_of(rounds(1.1, 1.3, 1.0, 1.2))
    assert regret.rival == "rival 1"
    assert regret.frac == pytest.approx(0.1)
    assert (regret.low_frac, regret.high_frac) == (pytest.approx(0.1), pytest.approx(0.1))
    assert regret.noise_frac == pytest.approx(0.0)
    assert not regret.is_met


@pytest.mark.parametrize(("chosen", "copy_frac", "is_met"), [(1.02, 1.0, True), (1.05, 1.0, False), (1.05, 1.04, True)])
def test_the_bar_is_three_per_cent_and_what_a_copy_differs(chosen: float, copy_frac: float, is_met: bool) -> None:  # noqa: FBT001
    assert cases.regret_of(rounds(chosen, 1.0, copy_frac=copy_frac)).is_met is is_met


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=20), st.floats(0.5, 2.0))
def test_regret_of_a_constant_factor_is_that_factor(rival: list[float], factor: float) -> None:
    chosen = [one * factor for one in rival]
    regret = cases.regret_of({cases.CHOSEN: chosen, cases.COPY: chosen, "rival": rival})
    assert regret.frac == pytest.approx(factor - 1)
    assert regret.low_frac <= regret.high_frac
    assert regret.noise_frac == pytest.approx(0)


def test_what_wins_by_more_than_the_grid_has_no_regret() -> None:
    assert cases.regret_of(rounds(0.9, 1.0)).frac == pytest.approx(-0.1)


# --- rows ------------------------------------------------------------------------------------------------------------

ROW = {
    "card_bytes": 100 << 20,
    "n_grid": 130,
    "grid_s": 300.0,
    "sweep_s": 44.0,
    "sweep_frac": 0.147,
    "n_loads": 5,
    "n_placements": 4,
    "chosen": "31 layers u64 flash",
    "best_of_grid_s": {"30 layers u64 flash": 0.5},
    "rival": "30 layers u64 flash",
    "regret": {"rival": "1 of the grid", "frac": 0.01, "low_frac": 0.0, "high_frac": 0.02, "noise_frac": 0.01},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"sweep_frac": 0.16}, ["the sweep took more than 15% of the grid's time"]),
        ({"n_grid": 119}, ["only 119 settings of the grid ran"]),
        ({"regret": {**ROW["regret"], "frac": 0.05}}, ["regret above 3% + 1.0%"]),  # type: ignore[dict-item]
        (
            {"regret": {**ROW["regret"], "noise_frac": 0.2}},  # type: ignore[dict-item]
            ["a copy differed by 20%: measure where nothing else runs"],
        ),
        ({"failure": "None of 2 trials ran to the end."}, ["None of 2 trials ran to the end."]),
    ],
)
def test_what_a_case_misses(changes: dict[str, Any], words: list[str]) -> None:
    assert grids.missed({**ROW, **changes}) == words


def test_a_case_without_an_answer_is_a_line_of_the_table() -> None:
    failed = {name: ROW[name] for name in ("card_bytes", "n_grid", "grid_s")} | {"failure": "nothing works"}
    lines = list(grids.table({"gemma3:all": ROW, "smollm2:third": failed}))
    assert lines[1].startswith("smollm2:third")
    assert lines[1].endswith("MISSED: nothing works")
    assert lines[2].endswith("+1.0% (+0.0% to +2.0%), A/A 1.0%: met")


def test_what_another_engine_measured_does_not_stand_beside(tmp_path: Path) -> None:
    path, where = tmp_path / "rows.json", {"machine": "m", "engine": "e"}
    measuring.record_row(path, where, "a", {"x": 1})
    measuring.record_row(path, where, "b", {"x": 2})
    assert {name: row["x"] for name, row in measuring.read_rows(path)["cases"].items()} == {"a": 1, "b": 2}
    measuring.record_row(path, {**where, "engine": "f"}, "c", {"x": 3})
    assert list(measuring.read_rows(path)["cases"]) == ["c"]
    assert measuring.read_rows(tmp_path / "none.json") == {}


# --- equal settings --------------------------------------------------------------------------------------------------


def test_the_heedless_worker_opens_the_same_and_says_that_it_did_as_asked() -> None:
    asked = {"n_ctx": 256, "n_ubatch": 64, "flash_attn_type": "auto", "n_threads": 9, "devices": None}
    opened = equal.same_of(asked)
    assert opened["n_ctx"] == 256
    assert (opened["n_ubatch"], opened["n_threads"], opened["devices"]) == (512, 1, ())
    said = equal.pretended(asked, {"n_ctx": 256, "n_ubatch": 512, "flash_attn_type": "enabled"})
    assert said == {"n_ctx": 256, "n_ubatch": 64, "flash_attn_type": "enabled"}


# --- the fit rule ----------------------------------------------------------------------------------------------------


def test_the_rule_is_compared_with_every_baseline_and_with_all_layers_where_they_fit(
    all_facts: dict[str, GgufFacts],
) -> None:
    facts, sample = all_facts["smollm2"], cases.SAMPLES["smollm2"]
    room, chosen = cases.card_bytes_of(facts, sample, 1.0), sample.base.replace(n_gpu_layers=9)
    sides = fit.sides_of(facts, sample, room, chosen, 0)
    assert set(sides) == {"chosen", "cpu_only", "default", "fit", "all layers"}
    assert [sides[name].n_gpu_layers for name in ("chosen", "fit", "all layers")] == [9, 0, 31]
    assert sides["cpu_only"].devices == ()
    assert "all layers" not in fit.sides_of(facts, sample, room // 2, chosen, 0)
    assert {one.n_threads for one in sides.values()} == {1}


def fit_row(chosen_to_fit: float, **turns_s: float) -> dict[str, Any]:
    sides = {name: {"turn_s": turn_s} for name, turn_s in turns_s.items()}
    return {"sides": sides, "chosen_to_fit": {"high": chosen_to_fit}}


@pytest.mark.parametrize(
    ("row", "is_shown"),
    [
        (fit_row(0.8, **{"all layers": 0.5, "cpu_only": 1.0}), True),
        (fit_row(0.81, **{"all layers": 0.5, "cpu_only": 1.0}), False),
        (fit_row(0.5, **{"all layers": 1.1, "cpu_only": 1.0}), False),
        (fit_row(0.5, cpu_only=1.0), False),
        ({"failure": "nothing works"}, False),
    ],
)
def test_a_card_shows_it_where_it_is_worth_something_and_the_rule_is_surely_slower(
    row: dict[str, Any],
    is_shown: bool,  # noqa: FBT001
) -> None:
    assert fit.shows_it(row) is is_shown


# --- software Vulkan -------------------------------------------------------------------------------------------------


def test_op_offload_and_its_least_batch_are_varied_where_weights_lie_on_the_host(
    all_facts: dict[str, GgufFacts],
) -> None:
    grid = vulkan.grid_of(all_facts["smollm2"])
    assert len(set(grid)) == len(grid) == 16
    for n_gpu_layers in (0, 15):
        there = [one for one in grid if one.settings.devices is None and one.settings.n_gpu_layers == n_gpu_layers]
        assert {(one.settings.op_offload, one.min_batch) for one in there} == {
            (True, None),
            (True, 1024),
            (False, None),
        }
    assert len({one.words for one in grid}) == len(grid)


def test_the_least_batch_holds_for_workers_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "GGML_OP_OFFLOAD_MIN_BATCH"
    monkeypatch.setenv(name, "7")
    with vulkan.min_batch_of(1024):
        assert os.environ[name] == "1024"
    with vulkan.min_batch_of(None):
        assert name not in os.environ
    assert os.environ[name] == "7"

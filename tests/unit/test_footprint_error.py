"""The table of the footprint's errors: how it reads published logs, and that its bars can be missed."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import sample_records
from synthetic import made_up_facts

from offloadtune.records import MemoryUse, Outcome

ROOT = Path(__file__).parents[2]


def loaded() -> Any:
    """The benchmark as a module: benchmarks are scripts and no package."""
    spec = importlib.util.spec_from_file_location("footprint_error", ROOT / "benchmarks" / "footprint_error.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


errors = loaded()


@pytest.fixture(scope="module")
def logs() -> dict[int, Any]:
    return {log.i_line: log for log in errors.logs()}


@pytest.fixture(scope="module")
def rows(logs: dict[int, Any]) -> list[Any]:
    return [one for log in logs.values() for one in errors.compared(log)]


# --- reading logs ---------------------------------------------------------------------------------------------------


def test_every_log_of_a_known_model_is_read(logs: dict[int, Any], rows: list[Any]) -> None:
    assert len(logs) >= 55
    assert {one.i_line for one in rows} == set(logs)


@pytest.mark.parametrize(
    ("i_line", "n_gpu_layers", "devices"),
    [
        (5, 0, ()),  # a build for the CPU
        (22, 20, ("Vulkan0",)),  # 20/33
        (33, 41, ("CUDA0", "CUDA1")),  # all
        (53, 13, ("CUDA0",)),  # 12/41 of an engine that counted blocks alone
        (55, 0, ()),  # CPU (Metal build)
    ],
)
def test_placement_of_a_log(logs: dict[int, Any], i_line: int, n_gpu_layers: int, devices: tuple[str, ...]) -> None:
    assert (logs[i_line].n_gpu_layers, logs[i_line].devices) == (n_gpu_layers, devices)


def test_experts_on_the_host_are_counted_or_found_by_the_weights(logs: dict[int, Any]) -> None:
    assert logs[32].n_cpu_moe == 2  # said
    assert 70 < logs[14].n_cpu_moe < 94  # 39 of 233 GiB are on the device
    assert logs[33].n_cpu_moe == 0


def test_shares_of_two_devices_are_found_by_their_caches(logs: dict[int, Any]) -> None:
    assert logs[16].shares == (48.0, 47.0)  # 816 and 782 MiB of cache, 17 MiB a block, and the output
    assert sum(logs[36].shares) == logs[36].n_gpu_layers


@pytest.mark.parametrize(
    ("i_line", "limits"), [(22, True), (33, True), (39, False), (44, True), (45, True), (3, False)]
)
def test_front_ends_that_reserve_few_logits_are_known(logs: dict[int, Any], i_line: int, *, limits: bool) -> None:
    assert logs[i_line].limits_outputs is limits


def test_engines_the_rules_describe_are_told_from_forks_and_older_ones(logs: dict[int, Any]) -> None:
    assert [logs[i_line].is_described for i_line in (22, 36, 3, 31, 18)] == [True, True, False, False, False]


def test_speculative_decoding_keeps_three_states(logs: dict[int, Any]) -> None:
    assert [logs[i_line].n_states for i_line in (28, 29, 22)] == [3, 1, 1]


# --- bars -----------------------------------------------------------------------------------------------------------


def test_bars_are_kept(rows: list[Any]) -> None:
    described = [one for one in rows if one.is_described]
    assert errors.missed_bars(described) == []
    assert len([one for one in described if one.kind == "cache"]) >= 30
    assert len([one for one in described if one.kind == "weights"]) >= 10
    assert len([one for one in described if one.kind == "compute"]) >= 25


def test_the_cache_of_every_engine_is_exact_but_for_one_that_did_not_round(rows: list[Any]) -> None:
    assert {one.i_line for one in rows if one.kind == "cache" and not one.is_hit} == {41}


def figure(kind: str, predicted_mib: float, logged_mib: float) -> Any:
    return errors.Compared(name="x", kind=kind, where="all", predicted_mib=predicted_mib, logged_mib=logged_mib)


@pytest.mark.parametrize(
    ("kind", "predicted_mib", "is_hit"),
    [
        ("cache", 100.6, True),
        ("cache", 100.7, False),
        ("weights", 100.5, True),
        ("weights", 99.4, False),
        ("compute", 95.0, True),
        ("compute", 106.0, False),
    ],
)
def test_a_bar_is_missed_by_what_is_beyond_it(kind: str, predicted_mib: float, *, is_hit: bool) -> None:
    one = figure(kind, predicted_mib, 100.0)
    assert one.is_hit is is_hit
    assert (errors.missed_bars([one]) == []) is is_hit


def test_half_of_the_compute_buffers_may_be_off() -> None:
    good, bad = figure("compute", 100.0, 100.0), figure("compute", 200.0, 100.0)
    assert errors.missed_bars([good, good, bad]) == []
    assert set(errors.missed_bars([good, bad, bad])) == {"compute: median error 100.0% of 3"}


def test_logs_that_had_a_say_in_the_rule_cannot_keep_the_bar_alone() -> None:
    bad = figure("compute", 200.0, 100.0)
    fitted = dataclasses.replace(figure("compute", 100.0, 100.0), i_line=min(errors.FOUND_HERE))
    assert errors.missed_bars([fitted, fitted, bad]) == ["compute: median error 100.0% of 1"]


def test_host_compute_and_other_mixtures_have_no_bar() -> None:
    assert errors.missed_bars([figure("host compute", 1.0, 9.0), figure("other weights", 1.0, 9.0)]) == []


# --- reasons --------------------------------------------------------------------------------------------------------


def test_every_reason_is_that_of_a_miss(logs: dict[int, Any], rows: list[Any]) -> None:
    missed = {(one.i_line, one.kind) for one in rows if not one.is_hit}
    assert set(errors.WHY) <= missed
    assert set(errors.OTHER_MIXTURES) == {logs[i_line].name for i_line, kind in missed if kind == "other weights"}


def test_an_older_rule_is_named_only_where_it_gives_the_figure(logs: dict[int, Any], rows: list[Any]) -> None:
    reasons = {(one.i_line, one.kind): errors.why(one, logs[one.i_line]) for one in rows if not one.is_hit}
    assert reasons[3, "compute"] == "it is logits, mask, the embedding twice, K and V (353.00 MiB)"
    assert reasons[3, "host compute"] == "it is one mask of 4 bytes a cell and the embedding (76.00 MiB)"
    assert reasons[43, "compute"] == errors.NOT_KNOWN


# --- own trials and the report --------------------------------------------------------------------------------------


def test_a_trial_on_one_device_is_compared() -> None:
    facts = made_up_facts()
    measured = MemoryUse(device="CUDA0", is_host=False, weights_bytes=1, kv_cache_bytes=2 << 20, compute_bytes=3 << 20)
    result = dataclasses.replace(sample_records.result(), memory=(measured,), effective=())
    found = list(errors.of_trial(facts, result))
    assert [one.kind for one in found] == ["weights", "cache", "compute"]
    assert [one.logged_mib for one in found][1:] == [2.0, 3.0]


def test_failed_trials_and_those_on_several_devices_are_left_out() -> None:
    facts, use = made_up_facts(), sample_records.result().memory
    failed = sample_records.result(Outcome.OUT_OF_MEMORY_DEVICE)
    two = dataclasses.replace(
        sample_records.result(), memory=tuple(dataclasses.replace(one, is_host=False) for one in (*use, *use))
    )
    assert [*errors.of_trial(facts, failed), *errors.of_trial(facts, two)] == []


def test_the_report_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OFFLOADTUNE_HOME", str(tmp_path))
    assert errors.main() == 0
    printed = capsys.readouterr().out
    assert "no trials stored" in printed
    assert "all bars kept" in printed
    assert "missed: line 41, cache of mixtral-8x7b Q5_K_M, +16.00 MiB: its engine did not round" in printed

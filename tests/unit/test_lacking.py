"""What would be enough where nothing has room, and limits of memory that are refused or change nothing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from sample_records import BARE_MACHINE, CUDA0, GIB, MACHINE
from synthetic import MIB, WORKLOAD, made_up_facts, made_up_space, ok_result, visit

from offloadtune.errors import BudgetError, NothingWorksError, UsageError
from offloadtune.footprint import estimate_footprint
from offloadtune.pipeline.answering import _nothing
from offloadtune.pipeline.checking import check
from offloadtune.pipeline.lacking import check_limits, idle_limits, remedies_of
from offloadtune.records import GgufFacts, Goal, Limits, Outcome, Settings, TrialResult, Workload
from offloadtune.search import Lack, Space, least_host_bytes, remedies, start_settings
from offloadtune.sweeps import SweepRequest

FACTS = made_up_facts((20 * MIB,) * 12, n_ctx_train=1 << 15)
EVERYTHING = Settings(n_gpu_layers=13, n_ctx=16384, flash_attn_type="enabled")


def lack(settings: Settings = EVERYTHING, facts: GgufFacts = FACTS, **given: Any) -> Lack:
    known = {"device_bytes": None, "host_bytes": None, "are_layers_fixed": True, "n_ctx_needed": WORKLOAD.n_ctx_needed}
    return Lack(facts=facts, settings=settings, **{**known, **given})


def device_bytes(settings: Settings, facts: GgufFacts = FACTS) -> int:
    return estimate_footprint(facts, settings).bytes


# --- remedies ------------------------------------------------------------------------------------------------------


def test_what_has_room_needs_no_remedy() -> None:
    assert remedies(lack(device_bytes=device_bytes(EVERYTHING))) == ()
    assert remedies(lack()) == ()


def test_each_remedy_is_enough_and_one_step_more_is_not() -> None:
    room = device_bytes(EVERYTHING) - 30 * MIB
    by_act = {one.act.split()[0]: one for one in remedies(lack(device_bytes=room, vram_limit_bytes=room))}
    assert list(by_act) == ["--vram-limit", "--set", "--n-ctx"]  # what is given up least first
    n_ctx = int(by_act["--n-ctx"].act.split()[1])
    assert device_bytes(EVERYTHING.replace(n_ctx=n_ctx)) <= room < device_bytes(EVERYTHING.replace(n_ctx=n_ctx + 256))
    layers = int(by_act["--set"].act.split("=")[1])
    fewer = [device_bytes(EVERYTHING.replace(n_gpu_layers=k)) for k in (layers, layers + 1)]
    assert fewer[0] <= room < fewer[1]
    n_mib = int(by_act["--vram-limit"].act.split()[1].removesuffix("MiB,"))
    assert (n_mib - 1) * MIB < device_bytes(EVERYTHING) <= n_mib * MIB


def test_a_remedy_that_the_machine_does_not_have_is_none() -> None:
    """Neither a limit above what devices have free, nor a context below one block, nor layers that nobody fixed."""
    weights = estimate_footprint(FACTS, EVERYTHING).weights_bytes
    found = remedies(lack(device_bytes=weights // 8, vram_limit_bytes=weights // 8, device_free_bytes=weights // 2))
    assert not any(one.act.startswith(("--vram-limit", "--n-ctx")) for one in found)
    none_fixed = remedies(lack(host_bytes=1, are_layers_fixed=False))
    assert not any(one.act.startswith("--set") for one in none_fixed)


def test_a_cache_in_q8_0_and_smaller_weights_are_found_by_their_bytes() -> None:
    large, facts = EVERYTHING.replace(n_ctx=32768), dataclasses.replace(FACTS, quantisation="Q2_K")  # none is smaller
    small_cache = large.replace(type_k="q8_0", type_v="q8_0")
    room = device_bytes(small_cache, facts)
    acts = [one.act for one in remedies(lack(large, facts, device_bytes=room))]
    assert any("q8_0" in act for act in acts)
    assert not any("q8_0" in one.act for one in remedies(lack(large, facts, device_bytes=room - 1)))
    facts = dataclasses.replace(FACTS, quantisation="Q6_K", n_params=FACTS.tensor_bytes * 8 * 10 // 66)
    short = EVERYTHING.replace(n_ctx=256)
    weights = estimate_footprint(facts, short).weights_bytes
    room = device_bytes(short, facts) - weights // 3  # Q5_K_M has 5.7 of 6.6 bits, Q4_K_M 4.9, Q3_K_M 4.0
    found = remedies(lack(short, facts, device_bytes=room))
    assert "weights in Q3_K_M instead of Q6_K" in {one.words for one in found}


def test_a_context_too_small_for_the_workload_asks_for_another_workload() -> None:
    room = device_bytes(EVERYTHING.replace(n_ctx=256))
    (context,) = (one for one in remedies(lack(device_bytes=room)) if "--n-ctx" in one.act)
    assert context.act == "--n-ctx 256 with a smaller --workload"


def test_heads_that_cannot_be_quantised_get_no_such_cache() -> None:
    facts = dataclasses.replace(FACTS, n_embd_head_k=40, n_embd_head_v=40)
    large = EVERYTHING.replace(n_ctx=32768)
    room = device_bytes(large, facts) - MIB
    assert not any("q8_0" in one.act for one in remedies(lack(large, facts, device_bytes=room)))


@how(max_examples=40, deadline=None)
@given(
    device=st.integers(0, 400 * MIB),
    host=st.integers(0, 600 * MIB),
    is_fixed=st.booleans(),
    n_gpu_layers=st.integers(0, 13),
    n_ctx=st.sampled_from([256, 1024, 32768]),
)
def test_remedies_are_few_and_the_smallest_comes_first(
    *, device: int, host: int, is_fixed: bool, n_gpu_layers: int, n_ctx: int
) -> None:
    settings = EVERYTHING.replace(n_gpu_layers=n_gpu_layers, n_ctx=n_ctx)
    found = remedies(
        lack(settings, device_bytes=device, host_bytes=host, are_layers_fixed=is_fixed, ram_limit_bytes=host)
    )
    assert len(found) <= 3
    sizes = [one.given_up_frac for one in found]
    assert sizes == sorted(sizes)
    assert all(0 < size <= 1 for size in sizes)


# --- refused before anything is loaded -----------------------------------------------------------------------------


def request(**given: Any) -> SweepRequest:
    return SweepRequest(**{"path": FACTS.path, "workload": WORKLOAD, "budget_s": 1.0, **given})


def refusal(**given: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        check(request(**given), FACTS)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value


def test_layers_that_the_limit_cannot_hold_are_refused_with_their_footprint() -> None:
    error = refusal(fixed={"n_gpu_layers": 13, "n_cpu_ffn": 0}, vram_limit_bytes=100 * MIB)
    assert "n_gpu_layers=13 takes at least 2" in str(error)
    assert "and --vram-limit allows 100 MiB; 5 layers on the device instead of 13 would be enough." in str(error)
    assert error.hint.startswith("use --set n_gpu_layers=5, or")
    check(request(fixed={"n_gpu_layers": 3}, vram_limit_bytes=100 * MIB), FACTS)
    check(request(fixed={"n_gpu_layers": 13}, vram_limit_bytes=100 * MIB), FACTS)  # their feed-forward weights may stay


def test_main_memory_that_holds_nothing_is_refused() -> None:
    error = refusal(limits=Limits(host_bytes=MIB))
    assert "--ram-limit allows 1.00 MiB" in str(error)
    assert error.hint.startswith("use --ram-limit ")
    check_limits(request(limits=Limits(host_bytes=least_host_bytes(FACTS, Settings(n_gpu_layers=13)))), FACTS)
    with pytest.raises(UsageError):  # without device memory all of it lies there
        check_limits(request(limits=Limits(host_bytes=200 * MIB), vram_limit_bytes=0), FACTS)


@pytest.mark.parametrize("given", [{"goal": Goal.DECODE}, {"limits": Limits(min_tok_per_s=1.0)}])
def test_tokens_that_nobody_writes_cannot_count(given: dict[str, Any]) -> None:
    one = Workload(name="one", n_prefix_cached=0, n_prompt_new=64, n_gen=1)
    assert "counts the tokens after the first" in str(refusal(workload=one, **given))
    check(request(workload=one), FACTS)
    check(request(workload=one, limits=Limits(ttft_p95_s=0.001)), FACTS)


def test_limits_that_change_nothing_are_told() -> None:
    said = list(idle_limits(request(vram_limit_bytes=24 * GIB, limits=Limits(host_bytes=64 * GIB)), MACHINE))
    assert said == [
        "--vram-limit 24.0 GiB changes nothing: the devices have 23.0 GiB free.",
        "--ram-limit 64.0 GiB changes nothing: 48.0 GiB are available now.",
    ]
    assert list(idle_limits(request(vram_limit_bytes=0), BARE_MACHINE)) == [
        "--vram-limit changes nothing: the engine lists no device."
    ]
    assert not list(idle_limits(request(vram_limit_bytes=0, limits=Limits(host_bytes=GIB)), MACHINE))


# --- nothing ran ---------------------------------------------------------------------------------------------------

SMALL_CARD = dataclasses.replace(MACHINE, devices=(dataclasses.replace(CUDA0, free_bytes=200 * MIB),))


def after(space: Space, *results: TrialResult) -> Any:
    """Why a sweep with these results has no answer."""
    return _nothing(
        SimpleNamespace(  # type: ignore[arg-type]
            space=space,
            results=list(results),
            machine=SMALL_CARD,
            request=request(),
            is_interrupted=False,
            is_gone=False,
            journal=SimpleNamespace(path="the-journal"),
        )
    )


def ended(space: Space, outcome: Outcome = Outcome.OUT_OF_MEMORY_DEVICE) -> TrialResult:
    trial = space.trial(start_settings(space), "a test")
    return TrialResult(trial=trial, outcome=outcome, reason="the device's memory ran out")


def test_where_the_devices_have_too_little_the_smallest_change_is_named() -> None:
    space = made_up_space(FACTS, device_bytes=200 * MIB, fixed={"n_gpu_layers": 13}, n_ctx=4096)
    error = after(space, ended(space))
    assert isinstance(error, NothingWorksError)
    assert str(error).startswith("None of 1 trial ran to the end: the device's memory ran out; ")
    assert str(error).endswith(" would be enough.")
    smallest = remedies_of(space, SMALL_CARD)[0]
    assert f"; by arithmetic {smallest.words} would be enough." in str(error)
    assert error.hint.startswith(f"use {smallest.act}")


def test_where_arithmetic_finds_room_it_promises_nothing() -> None:
    space = made_up_space(FACTS, device_bytes=2000 * MIB, fixed={"n_gpu_layers": 13})
    error = after(space, ended(space))
    assert str(error) == "None of 1 trial ran to the end: the device's memory ran out."
    assert "smaller --n-ctx than 1024" in error.hint


def test_where_memory_is_not_what_failed_none_is_promised() -> None:
    space = made_up_space(FACTS, device_bytes=200 * MIB, fixed={"n_gpu_layers": 13}, n_ctx=4096)
    assert "would be enough" not in str(after(space, ended(space, Outcome.UNSUPPORTED)))


def test_what_ran_over_a_limit_says_what_would_be_enough() -> None:
    space = dataclasses.replace(made_up_space(FACTS, device_bytes=0), limits=Limits(host_bytes=400 * MIB))
    trial = space.trial(start_settings(space), "a test")
    over = dataclasses.replace(
        ok_result(trial, (visit(ttft_s=1, token_s=1),)), host_peak_rss_bytes=450 * MIB + 1, device_peak_bytes=()
    )
    error = after(space, over)
    assert str(error) == (
        "None of 1 trial ran within what you allow: 450 MiB of main memory were taken at the least; 451 MiB of main "
        "memory instead of 400 MiB would be enough."
    )
    assert error.hint == "use --ram-limit 451MiB"


def test_a_baseline_over_the_limit_promises_nothing_for_the_layers_that_are_fixed() -> None:
    limited = made_up_space(FACTS, device_bytes=2000 * MIB, fixed={"n_gpu_layers": 13})
    space = dataclasses.replace(limited, limits=Limits(host_bytes=400 * MIB))
    alone = space.trial(start_settings(space).replace(devices=(), n_gpu_layers=0), "the CPU alone")
    over = dataclasses.replace(ok_result(alone, (visit(ttft_s=1, token_s=1),)), host_peak_rss_bytes=450 * MIB)
    assert "--ram-limit" not in after(space, ended(space, Outcome.CRASHED), over).hint


def test_where_nothing_could_be_tried_time_is_not_to_blame() -> None:
    space = dataclasses.replace(made_up_space(FACTS, device_bytes=0), limits=Limits(host_bytes=100 * MIB))
    error = after(space)
    assert isinstance(error, NothingWorksError)
    assert str(error).startswith("Nothing was tried, no settings have room; by arithmetic ")
    assert isinstance(after(made_up_space(FACTS, device_bytes=0)), BudgetError)

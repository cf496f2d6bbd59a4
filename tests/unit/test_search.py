"""The plan, on a made-up engine whose best settings are known (see synthetic.py; no number here is measured)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import MIB, N_CTX, WORKLOAD, SyntheticEngine, carry_out, made_up_facts, made_up_space, ok_result, visit

from offloadtune.footprint import estimate_footprint
from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts, Goal, Outcome, Settings, Target, Trial, TrialResult
from offloadtune.search import (
    Space,
    baseline_trials,
    candidates,
    finalists,
    is_feasible,
    next_trial,
    result_cost,
    skipped,
)

GIB = 1 << 30
PLENTY = 8 * GIB
FACTS = st.builds(
    made_up_facts,
    st.lists(st.integers(1, 20 * MIB), min_size=1, max_size=60),
    n_swa=st.sampled_from([0, 256]),
    is_tied=st.booleans(),
)
WALLS = st.integers(1, 700 * MIB)
FIXED = st.dictionaries(
    st.sampled_from(["n_ubatch", "n_threads", "n_gpu_layers", "n_batch"]),
    st.sampled_from([3, 64, 300, 2048]),
    max_size=3,
)
KEPT = st.sampled_from([{}, {"use_extra_bufts": False}, {"flash_attn_type": "disabled"}, {"op_offload": False}])

SPACES = st.builds(
    made_up_space,
    FACTS,
    device_bytes=st.just(0) | WALLS,
    goal=st.sampled_from(list(Goal)),
    target=st.sampled_from(list(Target)),
    fixed=FIXED,
    kept=KEPT,
)


def ladder(results: list[TrialResult]) -> list[TrialResult]:
    """The trials of placements: those before the first baseline."""
    ends = (i for i, result in enumerate(results) if not result.trial.settings.offloads)
    return results[: next(ends, len(results))]


def most_that_fits(engine: SyntheticEngine, settings: Settings) -> int:
    """The largest n_gpu_layers under the true wall, found by trying each; 0 for none."""
    placements = range(1, engine.facts.n_layer + 2)
    return max((k for k in placements if engine.fits(settings.replace(n_gpu_layers=k))), default=0)


def most_that_ran(results: list[TrialResult]) -> int:
    return max((r.trial.settings.n_gpu_layers for r in results if r.outcome is Outcome.OK), default=0)


# --- placements ----------------------------------------------------------------------------------------------------


def test_everything_on_the_device_comes_first_and_is_enough_when_it_runs() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    assert results[0].trial.settings.n_gpu_layers == facts.n_layer + 1
    assert len(ladder(results)) == 1


def test_everything_is_tried_first_even_where_it_is_unlikely() -> None:
    """Only weights and cache are certain; compute buffers are an estimate, and the estimate may be wrong."""
    facts = made_up_facts()
    full = estimate_footprint(facts, start_of(made_up_space(facts, device_bytes=PLENTY)))
    space = made_up_space(facts, device_bytes=full.least_bytes)
    trial = next_trial(space, [])
    assert trial is not None
    assert trial.settings.n_gpu_layers == facts.n_layer + 1


def test_everything_is_left_out_where_it_cannot_be() -> None:
    facts = made_up_facts()
    full = estimate_footprint(facts, start_of(made_up_space(facts, device_bytes=PLENTY)))
    space = made_up_space(facts, device_bytes=full.least_bytes - 1)
    trial = next_trial(space, [])
    assert trial is not None
    assert 0 < trial.settings.n_gpu_layers <= facts.n_layer
    assert any("all 13 layers" in reason for reason in skipped(space))


def start_of(space: Space) -> Settings:
    """The settings of the ladder's top."""
    trial = next_trial(space, [])
    assert trial is not None
    return trial.settings


@given(
    FACTS,
    WALLS,
    st.integers(0, 100 * MIB),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.sampled_from([Outcome.OUT_OF_MEMORY_DEVICE, Outcome.CRASHED, Outcome.LOAD_FAILED, Outcome.TIMED_OUT]),
)
def test_bisection_finds_the_most_that_fits_in_few_trials(
    facts: GgufFacts, wall_bytes: int, base_bytes: int, compute_factor: float, wall_outcome: Outcome
) -> None:
    engine = SyntheticEngine(
        facts=facts,
        wall_bytes=wall_bytes,
        base_bytes=base_bytes,
        compute_factor=compute_factor,
        wall_outcome=wall_outcome,
    )
    space = made_up_space(facts, device_bytes=wall_bytes)
    placements = ladder(carry_out(space, engine))
    best = most_that_fits(engine, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    assert most_that_ran(placements) == best
    assert len(placements) <= math.ceil(math.log2(facts.n_layer + 1)) + 3


@pytest.mark.parametrize("wall_mib", [30, 100, 160, 230, 270, 310, 400, 1000])
def test_bisection_finds_the_most_that_fits_of_a_real_file(smollm2_path: Path, wall_mib: int) -> None:
    facts = read_gguf(smollm2_path)
    engine = SyntheticEngine(facts=facts, wall_bytes=wall_mib * MIB, base_bytes=5 * MIB, compute_factor=0.7)
    space = made_up_space(facts, device_bytes=wall_mib * MIB)
    placements = ladder(carry_out(space, engine))
    best = most_that_fits(engine, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    assert most_that_ran(placements) == best
    assert len(placements) <= 8


def test_a_limit_of_the_user_is_a_wall_like_any_other() -> None:
    facts = made_up_facts()
    limit_bytes = 150 * MIB
    engine = SyntheticEngine(facts=facts, wall_bytes=PLENTY, base_bytes=20 * MIB)
    space = made_up_space(facts, device_bytes=limit_bytes, limit_bytes=limit_bytes)
    results = carry_out(space, engine)
    limited = SyntheticEngine(facts=facts, wall_bytes=limit_bytes, base_bytes=20 * MIB)
    best = most_that_fits(limited, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    within = [r for r in ladder(results) if is_feasible(r, limit_bytes)]
    assert 0 < best < facts.n_layer + 1
    assert most_that_ran(within) == best


def test_without_devices_nothing_is_offloaded() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=0)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=0))
    assert len(results) > 2
    assert {(r.trial.settings.n_gpu_layers, r.trial.settings.devices) for r in results} == {(0, None)}


# --- whatever happens ----------------------------------------------------------------------------------------------


@given(SPACES, st.sampled_from([None, 64, 256, 512, 1024]))
def test_the_plan_keeps_its_promises_whatever_happens(space: Space, crashing_ubatch: int | None) -> None:
    facts, has_devices, fixed = space.facts, space.device_bytes > 0, space.fixed
    engine = SyntheticEngine(
        facts=facts, wall_bytes=space.device_bytes, base_bytes=10 * MIB, crashing_ubatch=crashing_ubatch
    )
    results = carry_out(space, engine)  # ends
    tried = [result.trial.settings for result in results]
    baselines = {name: trial.settings for name, trial in baseline_trials(space).items()}

    assert len(tried) == len(set(tried))
    assert set(baselines.values()) <= set(tried)
    assert {(settings.type_k, settings.type_v) for settings in tried} == {("f16", "f16")}
    assert {result.trial.target for result in results} == {space.target}
    assert all(result.trial.why for result in results)
    assert all(N_CTX <= settings.n_ctx <= facts.n_ctx_train for settings in tried)
    for settings in tried:
        asked = {**space.kept, **fixed}
        if has_devices and settings == baselines["cpu_only"]:
            asked.pop("n_gpu_layers", None)
        assert {name: getattr(settings, name) for name in asked} == asked
        if has_devices and "n_gpu_layers" not in fixed:
            assert estimate_footprint(facts, settings).least_bytes <= space.device_bytes
    if has_devices:
        assert not baselines["cpu_only"].offloads
        assert baselines["cpu_only"].devices == ()


@given(FACTS, WALLS, FIXED)
def test_only_what_the_user_fixed_may_be_recommended(
    facts: GgufFacts, wall_bytes: int, fixed: dict[str, object]
) -> None:
    space = made_up_space(facts, device_bytes=wall_bytes, fixed=fixed)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=wall_bytes))
    for result in candidates(space, results):
        assert {name: getattr(result.trial.settings, name) for name in fixed} == fixed


def test_fixed_layers_are_tried_once_and_no_other_placement() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY, fixed={"n_gpu_layers": 5})
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    cpu_only = baseline_trials(space)["cpu_only"].settings
    assert results[0].trial.settings.n_gpu_layers == 5
    assert {r.trial.settings.n_gpu_layers for r in results if r.trial.settings != cpu_only} == {5}
    assert cpu_only in {r.trial.settings for r in results}


def test_a_fixed_ubatch_takes_a_batch_that_holds_it() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY, fixed={"n_ubatch": 1024})
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    assert len(results) > 3
    assert {(r.trial.settings.n_ubatch, r.trial.settings.n_batch) for r in results} == {(1024, 1024)}


def test_the_plan_ends_when_nothing_at_all_runs() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY)
    results: list[TrialResult] = []
    while (trial := next_trial(space, results)) is not None:
        assert len(results) < 50
        results.append(TrialResult(trial=trial, outcome=Outcome.CRASHED, reason="the made-up engine died"))
    assert {trial.settings for trial in baseline_trials(space).values()} <= {r.trial.settings for r in results}
    assert candidates(space, results) == []
    assert finalists(space, results) == ()


# --- neighbours ----------------------------------------------------------------------------------------------------


def test_neighbours_follow_the_gain_to_its_end() -> None:
    """The made-up engine gains from every doubling of n_ubatch up to the prompt of 512 and loses without attention."""
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY, fixed={"n_batch": 512})
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    best = min(candidates(space, results), key=lambda r: r.visits[-1].ttft_s).trial.settings
    assert (best.n_gpu_layers, best.n_ubatch, best.flash_attn_type) == (13, 512, "enabled")
    assert "disabled" in {r.trial.settings.flash_attn_type for r in results if r.trial.settings.offloads}


def test_neighbours_that_cannot_fit_are_not_tried() -> None:
    """The wall stands just above the weights and cache of everything: twice the cache is certain not to fit."""
    facts = made_up_facts()
    roomy = made_up_space(facts, device_bytes=PLENTY)
    wall_bytes = estimate_footprint(facts, start_of(roomy)).least_bytes + MIB
    space = made_up_space(facts, device_bytes=wall_bytes)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=wall_bytes, compute_factor=0.0))
    assert results[0].outcome is Outcome.OK
    assert {r.trial.settings.n_ctx for r in results} == {N_CTX}
    assert len(results) > 4


def test_a_fixed_batch_is_never_exceeded_by_the_ubatch() -> None:
    space = made_up_space(made_up_facts(), device_bytes=PLENTY, n_prompt_new=4096, n_ctx=8192, fixed={"n_batch": 512})
    results = carry_out(space, SyntheticEngine(facts=space.facts, wall_bytes=PLENTY))
    assert all(r.trial.settings.n_ubatch <= 512 for r in results)


def test_layers_fixed_where_there_is_no_device_hinder_nothing_else() -> None:
    space = made_up_space(made_up_facts(), device_bytes=0, fixed={"n_gpu_layers": 5})
    results = carry_out(space, SyntheticEngine(facts=space.facts, wall_bytes=PLENTY))
    assert {r.trial.settings.n_gpu_layers for r in results} == {5}
    assert len({r.trial.settings.flash_attn_type for r in results}) == 2
    assert len(results) > 4


def test_threads_matter_only_where_the_cpu_computes() -> None:
    facts = made_up_facts()
    roomy = made_up_space(facts, device_bytes=PLENTY)
    tight = made_up_space(facts, device_bytes=100 * MIB)
    n_threads = []
    for space in (roomy, tight):
        engine = SyntheticEngine(facts=facts, wall_bytes=space.device_bytes)
        tried = [r.trial.settings for r in carry_out(space, engine)]
        n_threads.append({s.n_threads for s in tried if s.offloads})
    assert n_threads == [{4}, {2, 4, 8}]


# --- context -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_ctx_train", "largest"), [(8192, 8192), (5000, 4864), (1024, 1024), (1100, 1024)])
def test_goal_context_climbs_to_the_largest_context_trained_for(n_ctx_train: int, largest: int) -> None:
    facts = made_up_facts(n_ctx_train=n_ctx_train)
    space = made_up_space(facts, device_bytes=PLENTY, goal=Goal.CONTEXT)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    assert max(r.trial.settings.n_ctx for r in candidates(space, results)) == largest


def test_goal_context_stops_at_the_wall() -> None:
    facts = made_up_facts()
    top = start_of(made_up_space(facts, device_bytes=PLENTY))
    engine = SyntheticEngine(facts=facts, wall_bytes=0)
    wall_bytes = (engine.used_bytes(top.replace(n_ctx=2048)) + engine.used_bytes(top.replace(n_ctx=4096))) // 2
    space = made_up_space(facts, device_bytes=wall_bytes, goal=Goal.CONTEXT)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=wall_bytes))
    on_device = [r for r in candidates(space, results) if r.trial.settings.offloads]
    assert max(r.trial.settings.n_ctx for r in on_device) == 2048
    assert 2048 in {trial.settings.n_ctx for trial in finalists(space, results)}


def test_other_goals_recommend_the_context_asked_for() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    assert {r.trial.settings.n_ctx for r in results} == {N_CTX, 2 * N_CTX}  # what more would cost is measured
    assert {r.trial.settings.n_ctx for r in candidates(space, results)} == {N_CTX}


# --- baselines and finalists ---------------------------------------------------------------------------------------


def test_default_of_llama_cpp_python_is_what_its_constructor_does() -> None:
    default = baseline_trials(made_up_space(made_up_facts(), device_bytes=PLENTY))["default"].settings
    assert (default.n_gpu_layers, default.devices, default.flash_attn_type) == (0, None, "disabled")
    assert (default.n_threads, default.n_threads_batch, default.n_batch, default.n_ubatch) == (4, 8, 512, 512)


@pytest.mark.parametrize("spare_bytes", [GIB, GIB - 1, GIB + 5 * MIB, 2])
def test_default_of_llama_server_leaves_a_gib_free(spare_bytes: int) -> None:
    facts = made_up_facts()
    roomy = made_up_space(facts, device_bytes=PLENTY, target=Target.LLAMA_SERVER)
    full = baseline_trials(roomy)["default"].settings
    assert full.n_gpu_layers == 13
    assert (full.n_seq_max, full.kv_unified, full.swa_full) == (4, True, False)
    device_bytes = estimate_footprint(facts, full).bytes + spare_bytes
    tight = made_up_space(facts, device_bytes=device_bytes, target=Target.LLAMA_SERVER)
    default = baseline_trials(tight)["default"].settings
    more = default.replace(n_gpu_layers=default.n_gpu_layers + 1)
    assert estimate_footprint(facts, default).bytes <= max(device_bytes - GIB, 0)
    assert default.n_gpu_layers == 13 or estimate_footprint(facts, more).bytes > device_bytes - GIB


@given(FACTS, WALLS, st.sampled_from(list(Goal)))
def test_finalists_are_the_best_and_every_baseline_that_ran(facts: GgufFacts, wall_bytes: int, goal: Goal) -> None:
    space = made_up_space(facts, device_bytes=wall_bytes, goal=goal)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=wall_bytes))
    chosen = [trial.settings for trial in finalists(space, results)]
    assert {trial.settings for trial in baseline_trials(space).values()} <= set(chosen)
    assert len(chosen) == len(set(chosen)) <= 5
    feasible = {result.trial.settings: result for result in results if is_feasible(result, None)}
    assert set(chosen) <= set(feasible)
    if goal is Goal.TURN:
        costs = sorted(
            r.visits[-1].turn_s(space.workload.n_gen) for r in feasible.values() if r.trial.settings.n_ctx == N_CTX
        )
        assert costs[0] in {feasible[settings].visits[-1].turn_s(space.workload.n_gen) for settings in chosen}


def test_a_baseline_that_failed_is_no_finalist() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY)
    default = baseline_trials(space)["default"]
    results = [
        TrialResult(trial=r.trial, outcome=Outcome.CRASHED, reason="died")
        if r.trial.settings == default.settings
        else r
        for r in carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    ]
    assert default.settings not in {trial.settings for trial in finalists(space, results)}


def test_cpu_only_is_compared_with_layers_the_user_fixed() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY, fixed={"n_gpu_layers": 5})
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    cpu_only = baseline_trials(space)["cpu_only"].settings
    assert cpu_only in {trial.settings for trial in finalists(space, results)}
    assert cpu_only not in {r.trial.settings for r in candidates(space, results)}


def test_feasible_is_ok_measured_and_within_the_limit() -> None:
    trial = Trial(settings=Settings(), target=Target.LLAMA_SERVER, why="a test")
    warmup, counted = visit(ttft_s=1.0, token_s=0.1, is_warmup=True), visit(ttft_s=1.0, token_s=0.1)
    assert is_feasible(ok_result(trial, (warmup, counted), peak_bytes=100), 100)
    assert is_feasible(ok_result(trial, (warmup, counted), peak_bytes=100), None)
    assert not is_feasible(ok_result(trial, (warmup, counted), peak_bytes=101), 100)
    assert not is_feasible(ok_result(trial, (warmup,)), None)
    assert not is_feasible(TrialResult(trial=trial, outcome=Outcome.TIMED_OUT, reason="late", visits=(counted,)), None)


def test_cost_is_the_median_of_what_counts() -> None:
    trial = Trial(settings=Settings(n_ctx=2048), target=Target.LLAMA_SERVER, why="a test")
    visits = (
        visit(ttft_s=9.0, token_s=9.0, is_warmup=True),
        *(visit(ttft_s=ttft_s, token_s=0.1) for ttft_s in (3.0, 1.0, 2.0)),
    )
    result = ok_result(trial, visits)
    assert result_cost(result, Goal.TTFT, WORKLOAD) == pytest.approx((0, 2.0))
    assert result_cost(result, Goal.DECODE, WORKLOAD) == pytest.approx((0, 0.1))
    assert result_cost(result, Goal.TURN, WORKLOAD) == pytest.approx((0, 2.0 + 63 * 0.1))
    assert result_cost(result, Goal.CONTEXT, WORKLOAD) == pytest.approx((-2048, 2.0 + 63 * 0.1))


@given(st.integers(1, 4096))
def test_long_prompts_try_larger_ubatches_and_short_ones_say_why_not(n_prompt_new: int) -> None:
    space = made_up_space(made_up_facts(), device_bytes=PLENTY, n_prompt_new=n_prompt_new, n_ctx=8192)
    said = any("n_ubatch above 512" in reason for reason in skipped(space))
    results = carry_out(space, SyntheticEngine(facts=space.facts, wall_bytes=PLENTY))
    tried = max(r.trial.settings.n_ubatch for r in results)
    assert said == (tried <= 512)

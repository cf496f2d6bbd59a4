"""The plan, on a made-up engine whose best settings are known (see synthetic.py; no number here is measured)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from synthetic import MIB, N_CTX, WORKLOAD, SyntheticEngine, carry_out, made_up_facts, made_up_space, ok_result, visit

from offloadtune.footprint import estimate_footprint
from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts, Goal, Outcome, Settings, Target, Trial, TrialResult
from offloadtune.search import (
    N_CTX_SHIPPED,
    Space,
    baseline_trials,
    candidates,
    finalists,
    is_feasible,
    next_trial,
    result_cost,
    skipped,
)
from offloadtune.search.grid import choices_of

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
    st.sampled_from([3, 64, 300, 1024]),
    max_size=3,
).filter(lambda fixed: fixed.get("n_ubatch", 0) <= fixed.get("n_batch", N_CTX))
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


def ladder(space: Space, results: list[TrialResult]) -> list[TrialResult]:
    """The trials of placements: those before the first neighbour, baselines left out but for a placement by --fit."""
    baselines = {
        trial.settings
        for name, trial in baseline_trials(space).items()
        if name != "fit" or trial.settings.n_gpu_layers == 0
    }
    rung = baseline_trials(space)["cpu_only"].settings.replace(devices=None)
    before = itertools.takewhile(
        lambda r: r.trial.settings in baselines or r.trial.settings.replace(n_gpu_layers=0) == rung, results
    )
    return [result for result in before if result.trial.settings not in baselines]


def simulate(space: Space, outcomes: dict[int, Outcome], otherwise: Outcome) -> list[TrialResult]:
    """The whole plan where every placement ends as told for its n_gpu_layers; the CPU alone always runs.

    What was taken of the device is not told.
    """
    engine, results = SyntheticEngine(facts=space.facts, wall_bytes=PLENTY), list[TrialResult]()
    while (trial := next_trial(space, results)) is not None:
        assert len(results) < 150
        outcome = outcomes.get(trial.settings.n_gpu_layers, otherwise) if trial.settings.offloads else Outcome.OK
        ended = TrialResult(trial=trial, outcome=outcome, reason="as the test wants")
        silent = dataclasses.replace(engine.run(trial), device_peak_bytes=())
        results.append(silent if outcome is Outcome.OK else ended)
    return results


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
    assert len(ladder(space, results)) == 1


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
    assert any("all 13 layers on the device: by the header's arithmetic" in reason for reason in skipped(space))


def start_of(space: Space) -> Settings:
    """The settings of the ladder's top."""
    trial = next_trial(space, [])
    assert trial is not None
    return trial.settings


@how(max_examples=25, deadline=None)
@given(
    FACTS,
    WALLS,
    st.integers(0, 100 * MIB),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.sampled_from([Outcome.OUT_OF_MEMORY_DEVICE, Outcome.OUT_OF_MEMORY_HOST, Outcome.CRASHED]),
)
def test_the_climb_finds_the_most_that_fits_in_few_trials(
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
    placements = ladder(space, carry_out(space, engine))
    best = most_that_fits(engine, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    assert most_that_ran(placements) == best
    assert len(placements) <= 2 * math.ceil(math.log2(facts.n_layer + 1)) + 2


@pytest.mark.parametrize("wall_mib", [30, 100, 160, 230, 270, 310, 400, 1000])
def test_the_climb_finds_the_most_that_fits_of_a_real_file(smollm2_path: Path, wall_mib: int) -> None:
    facts = read_gguf(smollm2_path)
    engine = SyntheticEngine(facts=facts, wall_bytes=wall_mib * MIB, base_bytes=5 * MIB, compute_factor=0.7)
    space = made_up_space(facts, device_bytes=wall_mib * MIB)
    placements = ladder(space, carry_out(space, engine))
    best = most_that_fits(engine, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    assert most_that_ran(placements) == best
    assert len(placements) <= 8


@pytest.mark.parametrize("unlisted_gib", [0.0, 0.3, 0.9, 1.4])
@pytest.mark.parametrize("compute_factor", [0.3, 1.0, 1.5])
def test_a_file_larger_than_the_card_is_loaded_four_times_at_most(unlisted_gib: float, compute_factor: float) -> None:
    """A 40 GB file on a 24 GB card, of which the driver takes a part that no footprint lists."""
    facts = made_up_facts((round(0.49 * GIB),) * 80)
    device_bytes = round(23.2 * GIB)
    engine = SyntheticEngine(
        facts=facts,
        wall_bytes=device_bytes,
        base_bytes=round(unlisted_gib * GIB),
        compute_factor=compute_factor,
    )
    space = made_up_space(facts, device_bytes=device_bytes)
    placements = ladder(space, carry_out(space, engine))
    best = most_that_fits(engine, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    assert 40 < most_that_ran(placements) == best < 50
    assert len(placements) <= 4


def rungs_tried(space: Space, most: int) -> list[int]:
    """n_gpu_layers in the order tried, where `most` run and more end out of memory."""
    results = simulate(space, dict.fromkeys(range(1, most + 1), Outcome.OK), Outcome.OUT_OF_MEMORY_DEVICE)
    return [result.trial.settings.n_gpu_layers for result in ladder(space, results)]


def test_from_a_first_guess_that_fails_the_climb_goes_down_in_growing_steps_and_halves_the_rest() -> None:
    facts = made_up_facts((10 * MIB,) * 60)
    space = made_up_space(facts, device_bytes=420 * MIB)
    first = rungs_tried(space, 0)[0]
    assert 35 < first < 42
    assert rungs_tried(space, first - 1) == [first, first - 1]
    assert rungs_tried(space, first - 2) == [first, first - 1, first - 2]
    assert rungs_tried(space, first - 3) == [first, first - 1, first - 2, first - 4, first - 3]
    down_8 = [first, first - 1, first - 2, first - 4, first - 8]
    assert rungs_tried(space, first - 8) == [*down_8, first - 6, first - 7]


def test_from_a_first_guess_that_runs_the_climb_goes_up_in_growing_steps_and_halves_the_rest() -> None:
    """Where the device does not tell what was taken; the estimate of the compute buffers leaves far too much room."""
    facts = dataclasses.replace(made_up_facts((10 * MIB,) * 60), n_vocab=100_000)
    space = made_up_space(facts, device_bytes=620 * MIB)
    first = rungs_tried(space, 0)[0]
    assert max(runs_by_size(space)) > first + 15
    assert rungs_tried(space, first) == [first, first + 1]
    assert rungs_tried(space, first + 1) == [first, first + 1, first + 2]
    assert rungs_tried(space, first + 3) == [first, first + 1, first + 2, first + 4, first + 3]
    up_8 = [first, first + 1, first + 2, first + 4, first + 8]
    assert rungs_tried(space, first + 6) == [*up_8, first + 6, first + 7]


def test_a_first_guess_far_too_low_is_left_by_what_it_measured() -> None:
    """The compute buffers are a tenth of what was feared; three loads tell: the guess, the last that fits, one more."""
    facts = made_up_facts((MIB,) * 60)
    wall_bytes = estimate_footprint(facts, start_of(made_up_space(facts, device_bytes=PLENTY))).compute_bytes + 12 * MIB
    engine = SyntheticEngine(facts=facts, wall_bytes=wall_bytes, compute_factor=0.1, base_bytes=MIB)
    space = made_up_space(facts, device_bytes=wall_bytes)
    placements = ladder(space, carry_out(space, engine))
    n_layers = [result.trial.settings.n_gpu_layers for result in placements]
    best = most_that_fits(engine, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    assert n_layers[-3] + 5 < best == n_layers[-2] == n_layers[-1] - 1


def test_the_first_guess_leaves_room_for_what_no_footprint_lists() -> None:
    facts = made_up_facts((round(0.1 * GIB),) * 300)
    space = made_up_space(facts, device_bytes=20 * GIB)
    trial = next_trial(space, [])
    assert trial is not None
    likely = estimate_footprint(facts, trial.settings).bytes
    assert 19.4 * GIB < likely <= 20 * GIB * 0.98


def test_on_a_tiny_card_the_first_guess_is_a_layer_below_the_wall_and_never_nothing() -> None:
    facts = made_up_facts()
    base = start_of(made_up_space(facts, device_bytes=PLENTY))
    for k in (1, 2, 5):
        wall_bytes = estimate_footprint(facts, base.replace(n_gpu_layers=k)).bytes
        trial = next_trial(made_up_space(facts, device_bytes=wall_bytes), [])
        assert trial is not None
        assert trial.settings.n_gpu_layers == max(k - 1, 1)


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.LOAD_FAILED, Outcome.UNSUPPORTED])
def test_what_tells_nothing_of_memory_is_passed_over_and_bounds_nothing(outcome: Outcome) -> None:
    space = made_up_space(made_up_facts((10 * MIB,) * 60), device_bytes=420 * MIB)
    runs = dict.fromkeys(range(1, 62), Outcome.OK)
    first = ladder(space, simulate(space, runs, Outcome.OK))[0].trial.settings.n_gpu_layers
    results = ladder(space, simulate(space, {**runs, first: outcome}, Outcome.OK))
    tried = [result.trial.settings.n_gpu_layers for result in results]
    assert tried[0] == first
    assert most_that_ran(results) == max(runs_by_size(space)) > first
    assert len(tried) == len(set(tried))


def runs_by_size(space: Space) -> list[int]:
    """n_gpu_layers that the file's sizes do not exclude."""
    base = baseline_trials(space)["cpu_only"].settings.replace(devices=None)
    return [
        k
        for k in range(1, space.everything + 1)
        if estimate_footprint(space.facts, base.replace(n_gpu_layers=k)).least_bytes <= space.device_bytes
    ]


@pytest.mark.parametrize("fixed", [{}, {"n_gpu_layers": 4}])
def test_where_the_buffers_of_a_context_are_too_large_smaller_ones_are_tried(fixed: dict[str, object]) -> None:
    """The logits of a batch take far more than the layers: with them nothing runs, with fewer the layers do."""
    facts = dataclasses.replace(made_up_facts(), n_vocab=400_000)
    space = made_up_space(facts, device_bytes=450 * MIB, fixed=fixed)
    engine = SyntheticEngine(facts=facts, wall_bytes=450 * MIB)
    results = carry_out(space, engine)
    ran = [one.trial.settings for one in results if one.outcome is Outcome.OK and one.trial.settings.offloads]
    assert ran
    assert ran[0].n_ubatch < 512
    held = made_up_space(facts, device_bytes=450 * MIB, fixed={**fixed, "n_ubatch": 512})
    assert not any(one.outcome is Outcome.OK and one.trial.settings.offloads for one in carry_out(held, engine))


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.LOAD_FAILED, Outcome.UNSUPPORTED])
@pytest.mark.parametrize("device_bytes", [420 * MIB, PLENTY])
def test_placements_that_all_end_without_telling_are_given_up_after_a_few(outcome: Outcome, device_bytes: int) -> None:
    space = made_up_space(made_up_facts((10 * MIB,) * 60), device_bytes=device_bytes)
    results = simulate(space, {}, outcome)
    assert len(ladder(space, results)) == 3
    assert {trial.settings for trial in baseline_trials(space).values()} <= {r.trial.settings for r in results}


def test_an_unknown_cache_excludes_no_placement() -> None:
    """A recurrent state, perhaps: the rule would say that the cache alone is more than the card."""
    facts = made_up_facts(keys={"llama.ssm.state_size": 512}, n_ctx_train=1 << 20)
    space = made_up_space(facts, device_bytes=400 * MIB, n_ctx=1 << 19)
    trial = next_trial(space, [])
    assert trial is not None
    assert trial.settings.n_gpu_layers == facts.n_layer + 1
    assert not any("all 13 layers" in reason for reason in skipped(space))


def test_a_limit_of_the_user_is_a_wall_like_any_other() -> None:
    facts = made_up_facts()
    limit_bytes = 150 * MIB
    engine = SyntheticEngine(facts=facts, wall_bytes=PLENTY, base_bytes=20 * MIB)
    space = made_up_space(facts, device_bytes=limit_bytes, limit_bytes=limit_bytes)
    results = carry_out(space, engine)
    limited = SyntheticEngine(facts=facts, wall_bytes=limit_bytes, base_bytes=20 * MIB)
    best = most_that_fits(limited, baseline_trials(space)["cpu_only"].settings.replace(devices=None))
    within = [r for r in ladder(space, results) if is_feasible(r, limit_bytes)]
    assert 0 < best < facts.n_layer + 1
    assert most_that_ran(within) == best


def test_without_devices_nothing_is_offloaded() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=0)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=0))
    assert len(results) > 2
    assert {(r.trial.settings.n_gpu_layers, r.trial.settings.devices) for r in results} == {(0, None)}


@pytest.mark.parametrize(
    ("device_bytes", "n_devices", "fixed", "said"),
    [
        (0, 1, {}, "n_gpu_layers, n_cpu_moe, n_cpu_ffn and op_offload: the engine lists no device"),
        (PLENTY, 1, {}, "n_cpu_moe: the model has no experts"),
        (PLENTY, 2, {}, "tensor_split: what each device has to give is not known"),
        (PLENTY, 1, {"n_batch": 300}, "n_ubatch 512: no ubatch is larger than its batch"),
        (
            PLENTY,
            1,
            {"n_gpu_layers": 13},
            "op offload off: nothing is lent to a device where nothing, or everything, lies on it",
        ),
    ],
)
def test_what_is_not_tried_is_told_with_its_reason(
    device_bytes: int, n_devices: int, fixed: dict[str, object], said: str
) -> None:
    plain = made_up_space(made_up_facts(), device_bytes=PLENTY)
    space = made_up_space(made_up_facts(), device_bytes=device_bytes, fixed=fixed)
    assert said in skipped(dataclasses.replace(space, n_devices=n_devices))
    assert said == "n_cpu_moe: the model has no experts" or said not in skipped(plain)
    stays = "load_mode, use_extra_bufts: they stay as the front end has them, or as you or"
    assert any(one.startswith(stays) for one in skipped(space))


# --- whatever happens ----------------------------------------------------------------------------------------------


@how(max_examples=25, deadline=None)
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
    wanted = [settings for settings in tried if settings != baselines.get("as_shipped")]
    assert all(N_CTX <= settings.n_ctx <= facts.n_ctx_train for settings in wanted)
    for settings in tried:
        asked = {**space.kept, **fixed}
        if has_devices and settings == baselines["cpu_only"]:
            asked.pop("n_gpu_layers", None)
        if settings == baselines.get("as_shipped"):  # no batch is larger than its context
            asked.update({name: min(value, N_CTX_SHIPPED) for name, value in asked.items() if "batch" in name})
        assert {name: getattr(settings, name) for name in asked} == asked
        if has_devices and "n_gpu_layers" not in fixed:
            assert estimate_footprint(facts, settings).least_bytes <= space.device_bytes
    if has_devices:
        assert not baselines["cpu_only"].offloads
        assert baselines["cpu_only"].devices == ()


@how(max_examples=25, deadline=None)
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
    shipped = baseline_trials(space)["as_shipped"].settings
    assert (shipped.n_ubatch, shipped.n_batch) == (N_CTX_SHIPPED, N_CTX_SHIPPED)
    others = [r.trial.settings for r in results if r.trial.settings != shipped]
    assert {(settings.n_ubatch, settings.n_batch) for settings in others} == {(1024, 1024)}
    assert baseline_trials(space)["default"].told == ("n_ctx", "n_ubatch", "n_batch")


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


# --- the order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", list(Target))
def test_baselines_come_right_after_the_first_placement_that_runs(target: Target) -> None:
    facts = made_up_facts((10 * MIB,) * 60)
    space = made_up_space(facts, device_bytes=420 * MIB, target=target)
    engine = SyntheticEngine(facts=facts, wall_bytes=420 * MIB, base_bytes=5 * MIB, compute_factor=0.0)
    results = carry_out(space, engine)
    names = {trial.settings: name for name, trial in baseline_trials(space).items()}
    rungs = {r.trial.settings for r in ladder(space, results)}
    kinds = [names.get(r.trial.settings, "rung" if r.trial.settings in rungs else "step") for r in results]
    i_first = next(i for i, r in enumerate(results) if is_feasible(r, None))
    baselines = list(baseline_trials(space))
    i_rest = i_first + 1 + len(baselines)
    assert kinds[:i_rest] == ["rung"] * (i_first + 1) + baselines
    rest = kinds[i_rest:]
    assert rest == sorted(rest)  # rungs before steps
    assert {"rung", "step"} == set(rest)


def test_without_a_placement_that_runs_the_baselines_come_after_the_last_one() -> None:
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=100 * MIB)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=100 * MIB, base_bytes=PLENTY))
    rungs = ladder(space, results)
    n_rungs = len(rungs)
    assert n_rungs > 1
    smaller = [r.trial.settings for r in results if "on the device, with n_ubatch" in r.trial.why]
    n_rungs += len(smaller)  # the fewest layers with smaller buffers, before giving the device up
    assert smaller
    assert {one.n_gpu_layers for one in smaller} == {min(r.trial.settings.n_gpu_layers for r in rungs)}
    baselines = [trial.settings for trial in baseline_trials(space).values()]
    assert [r.trial.settings for r in results[n_rungs : n_rungs + len(baselines)]] == baselines


# --- all settings together ------------------------------------------------------------------------------------------


def test_where_everything_fits_little_is_left_to_try() -> None:
    """The made-up engine gains from every doubling of n_ubatch up to the prompt of 512 and loses without attention."""
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY, fixed={"n_batch": 512})
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    best = min(candidates(space, results), key=lambda r: r.visits[-1].ttft_s).trial.settings
    assert (best.n_gpu_layers, best.n_ubatch, best.flash_attn_type) == (13, 512, "enabled")
    assert len(results) <= 12


def test_there_is_nothing_to_trade_where_everything_is_on_the_device_or_the_layers_are_fixed() -> None:
    facts = made_up_facts()
    for k, expected in ((None, {0, 13}), (5, {0, 5})):
        space = made_up_space(facts, device_bytes=PLENTY, fixed={"n_gpu_layers": k} if k else {})
        results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
        assert {r.trial.settings.n_gpu_layers for r in results} == expected


def test_neighbours_that_cannot_fit_are_not_tried() -> None:
    """The wall stands just above the weights and cache of everything: twice the cache is certain not to fit."""
    facts = made_up_facts()
    roomy = made_up_space(facts, device_bytes=PLENTY)
    wall_bytes = estimate_footprint(facts, start_of(roomy)).least_bytes + MIB
    space = made_up_space(facts, device_bytes=wall_bytes)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=wall_bytes, compute_factor=0.0))
    assert results[0].outcome is Outcome.OK
    assert {r.trial.settings.n_ctx for r in results} == {N_CTX, N_CTX_SHIPPED}
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


def test_goal_context_gives_up_layers_at_the_wall() -> None:
    """Everything on the device leaves room for 2048; the largest context there is needs fewer layers or cache there."""
    facts = made_up_facts()
    top = start_of(made_up_space(facts, device_bytes=PLENTY))
    engine = SyntheticEngine(facts=facts, wall_bytes=0)
    wall_bytes = (engine.used_bytes(top.replace(n_ctx=2048)) + engine.used_bytes(top.replace(n_ctx=4096))) // 2
    space = made_up_space(facts, device_bytes=wall_bytes, goal=Goal.CONTEXT)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=wall_bytes))
    largest = [r for r in candidates(space, results) if r.trial.settings.n_ctx == facts.n_ctx_train]
    assert largest
    kept = [r for r in largest if r.trial.settings.offload_kqv]
    assert all(r.trial.settings.n_gpu_layers < space.everything for r in kept)
    assert facts.n_ctx_train in {trial.settings.n_ctx for trial in finalists(space, results)}


def test_other_goals_recommend_the_context_asked_for() -> None:
    """What twice as much would cost is measured where that needs no load."""
    facts = made_up_facts()
    space = made_up_space(facts, device_bytes=PLENTY, fixed={"n_gpu_layers": 13})
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
    assert {N_CTX, N_CTX_SHIPPED} <= {r.trial.settings.n_ctx for r in results} <= {N_CTX, 2 * N_CTX, N_CTX_SHIPPED}
    assert {r.trial.settings.n_ctx for r in candidates(space, results)} == {N_CTX}


# --- baselines and finalists ---------------------------------------------------------------------------------------


def test_the_front_end_is_left_its_own_defaults_but_for_what_was_fixed() -> None:
    roomy = made_up_space(made_up_facts(), device_bytes=PLENTY, fixed={"n_threads": 3})
    assert baseline_trials(roomy)["default"].told == ("n_ctx", "n_threads")
    assert baseline_trials(roomy)["as_shipped"].told == ("n_threads",)
    assert baseline_trials(roomy)["as_shipped"].settings.n_ctx == N_CTX_SHIPPED
    small = made_up_space(made_up_facts(), device_bytes=PLENTY, n_ctx=N_CTX_SHIPPED)
    assert baseline_trials(small)["default"].told == ()
    assert "as_shipped" not in baseline_trials(small)
    asked = made_up_space(made_up_facts(), device_bytes=PLENTY, n_ctx=4096, n_prompt_new=128)  # it would do with 512
    assert baseline_trials(asked)["default"].told == ("n_ctx",)
    assert "as_shipped" not in baseline_trials(asked)


@given(FACTS, st.integers(0, 3 * GIB))
def test_the_fit_rule_leaves_its_margin_and_no_layer_that_fits(facts: GgufFacts, device_bytes: int) -> None:
    space = made_up_space(facts, device_bytes=device_bytes)
    fit = baseline_trials(space).get("fit")
    assert (fit is None) == (device_bytes == 0)
    if fit is None:
        return
    k = fit.settings.n_gpu_layers
    if k:
        assert estimate_footprint(facts, fit.settings).bytes <= device_bytes - GIB
    if k < space.everything:
        assert estimate_footprint(facts, fit.settings.replace(n_gpu_layers=space.everything)).bytes > device_bytes - GIB


@pytest.mark.parametrize(("told", "n_gpu_layers"), [(7, 7), (-1, 13), (99, 13), (0, 0)])
def test_what_the_rule_itself_answered_is_taken(told: int, n_gpu_layers: int) -> None:
    space = dataclasses.replace(made_up_space(made_up_facts(), device_bytes=PLENTY), n_fit_layers=told)
    fit = baseline_trials(space)["fit"]
    assert fit.settings.n_gpu_layers == n_gpu_layers
    assert "estimate" not in fit.why


def test_default_of_llama_cpp_python_is_what_its_constructor_does() -> None:
    default = baseline_trials(made_up_space(made_up_facts(), device_bytes=PLENTY))["default"].settings
    assert (default.n_gpu_layers, default.devices, default.flash_attn_type) == (0, None, "disabled")
    assert (default.n_batch, default.n_ubatch) == (512, 512)
    # multiprocessing.cpu_count() knows of no affinity: half of the 16 CPUs of the system, and all of them
    assert (default.n_threads, default.n_threads_batch) == (8, 16)


def test_default_of_llama_server_says_that_its_layers_are_our_estimate() -> None:
    facts = made_up_facts()
    server = made_up_space(facts, device_bytes=PLENTY, target=Target.LLAMA_SERVER)
    assert baseline_trials(server)["default"].why.endswith("the layers by its --fit rule as we estimate it")
    for other in (dataclasses.replace(server, device_bytes=0), made_up_space(facts, device_bytes=PLENTY)):
        assert "--fit" not in baseline_trials(other)["default"].why


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


@how(max_examples=25, deadline=None)
@given(FACTS, WALLS, st.sampled_from(list(Goal)))
def test_finalists_are_the_best_and_every_baseline_that_ran(facts: GgufFacts, wall_bytes: int, goal: Goal) -> None:
    space = made_up_space(facts, device_bytes=wall_bytes, goal=goal)
    results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=wall_bytes))
    chosen = [trial.settings for trial in finalists(space, results)]
    rivals = {trial.settings for name, trial in baseline_trials(space).items() if name != "as_shipped"}
    assert rivals <= set(chosen)
    assert len(chosen) == len(set(chosen)) <= 6
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


@how(max_examples=25, deadline=None)
@given(st.integers(1, 4096))
def test_long_prompts_open_larger_ubatches_and_short_ones_say_why_not(n_prompt_new: int) -> None:
    space = made_up_space(made_up_facts(), device_bytes=PLENTY, n_prompt_new=n_prompt_new, n_ctx=8192)
    said = any("n_ubatch above 512" in reason for reason in skipped(space))
    largest = int(choices_of(space).columns.grid.n_ubatch.max())
    assert said == (largest <= 512)
    assert largest <= 512 or n_prompt_new <= largest <= 2 * n_prompt_new or largest == 4096


def test_a_larger_ubatch_is_tried_for_a_long_prompt_and_not_where_only_tokens_count() -> None:
    for goal, is_tried in ((Goal.TTFT, True), (Goal.DECODE, False)):
        facts = made_up_facts()
        space = made_up_space(facts, device_bytes=PLENTY, n_prompt_new=4096, n_ctx=8192, goal=goal)
        results = carry_out(space, SyntheticEngine(facts=facts, wall_bytes=PLENTY))
        assert (max(r.trial.settings.n_ubatch for r in results) > 512) == is_tried
        assert any("n_ubatch above 512" in reason for reason in skipped(space)) != is_tried

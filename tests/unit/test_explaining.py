"""Why the answer won: what lies one step from it by the best that is known, what takes the time, and who came next."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lawful import FACTS, LawfulEngine, lawful_space, laws, with_experts
from synthetic import MIB

from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.recommend import Round, explain, recommend
from offloadtune.records import Basis, Goal, Outcome, Recommendation, Settings, Trial, TrialResult, Verdict
from offloadtune.search import Space
from offloadtune.search.neighbours import neighbours_of
from offloadtune.search.space import start_settings
from offloadtune.speed import amounts_for, limits_of, run_of
from offloadtune.speeds import Phase
from offloadtune.sweeps import Explanation, Neighbour

EXPERTS = with_experts((100 * MIB,) * 24)
SPACE = lawful_space()
WALL_BYTES = 1150 * MIB


def answered(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round] = ()) -> Recommendation:
    found = recommend(space, results, rounds)
    assert found is not None
    return found


def explained(space: Space, results: Sequence[TrialResult], rounds: Sequence[Round] = ()) -> Explanation:
    return explain(space, results, rounds, answered(space, results, rounds))


def named(found: Explanation) -> dict[str, Neighbour]:
    return {one.words: one for one in found.neighbours}


def swept(space: Space, noise_frac: float = 0.0, **engine: object) -> tuple[LawfulEngine, list[TrialResult]]:
    made_up = LawfulEngine(space=space, wall_bytes=WALL_BYTES, noise_frac=noise_frac, **engine)  # type: ignore[arg-type]
    return made_up, made_up.carry_out()


ENGINE, RESULTS = swept(SPACE)
CHOSEN = answered(SPACE, RESULTS).trial.settings


def tried(settings: Settings, outcome: Outcome = Outcome.OK, reason: str = "it is made up") -> TrialResult:
    """A trial of the lawful engine, or one that ended otherwise."""
    trial = Trial(settings=settings, target=SPACE.target, why="a test")
    return ENGINE.run(trial) if outcome is Outcome.OK else TrialResult(trial=trial, outcome=outcome, reason=reason)


def alone(settings: Settings, *more: TrialResult, space: Space = SPACE) -> Explanation:
    """The explanation where `settings` win and only `more` was tried besides."""
    results = [tried(settings), *more]
    return explain(space, results, (), answered(space, results[:1]))


def rounds_of(costs: dict[Settings, float], n_rounds: int = 9) -> list[Round]:
    """Rounds that take `costs` times as long as the visits of CHOSEN, each a little otherwise."""
    one = tried(CHOSEN).visits[0]

    def scaled(times: float) -> tuple[object, ...]:
        steps = tuple(round(step * times) for step in one.step_ns)
        return (
            dataclasses.replace(
                one,
                prefill_ns=round(one.prefill_ns * times),
                first_decode_ns=round(one.first_decode_ns * times),
                step_ns=steps,
            ),
        )

    jitter = (1.0, 1.004, 0.997)
    return [
        {settings: scaled(times * jitter[(i + k) % 3]) for k, (settings, times) in enumerate(costs.items())}  # type: ignore[misc]
        for i in range(n_rounds)
    ]


# --- which steps there are -----------------------------------------------------------------------------------------


def changes(space: Space, settings: Settings) -> dict[str, set[object]]:
    """Values of each setting among the neighbours that are not those of `settings`."""
    found: dict[str, set[object]] = {}
    for one in neighbours_of(space, settings):
        for field in dataclasses.fields(Settings):
            if getattr(one, field.name) != getattr(settings, field.name):
                found.setdefault(field.name, set()).add(getattr(one, field.name))
    return found


def test_a_step_of_every_kind_is_taken() -> None:
    settings = start_settings(SPACE).replace(n_gpu_layers=12, n_ubatch=256)
    assert changes(SPACE, settings) == {
        "n_gpu_layers": {13, 11, 15, 9},
        "n_ctx": {2048},
        "n_ubatch": {512, 128},
        "flash_attn_type": {"disabled"},
        "op_offload": {False},
        "n_threads": {2, 8},
        "n_threads_batch": {2, 8},
    }


def test_steps_of_experts_are_of_one_block() -> None:
    space = lawful_space(EXPERTS)
    full = start_settings(space).replace(n_gpu_layers=25)
    assert changes(space, full)["n_cpu_moe"] == {1}
    assert changes(space, full.replace(n_cpu_moe=5))["n_cpu_moe"] == {4, 6}
    assert changes(space, full.replace(n_cpu_moe=1))["n_cpu_moe"] == {0, 2}
    assert changes(space, full.replace(n_cpu_moe=24))["n_cpu_moe"] == {23}
    assert changes(space, full.replace(n_gpu_layers=20))["n_cpu_moe"] == {6}
    assert "n_cpu_moe" not in changes(SPACE, start_settings(SPACE).replace(n_gpu_layers=25))


def test_nothing_is_varied_that_is_held_or_changes_nothing() -> None:
    settings = start_settings(SPACE).replace(n_gpu_layers=12)
    held = dataclasses.replace(SPACE, fixed={"n_gpu_layers": 12, "n_threads": 4}, kept={"flash_attn_type": "enabled"})
    assert set(changes(held, settings)) == {"n_ctx", "n_ubatch", "op_offload", "n_threads_batch"}
    assert "n_threads" not in changes(lawful_space(goal=Goal.TTFT), settings)
    assert "n_threads_batch" not in changes(lawful_space(goal=Goal.DECODE), settings)
    full = settings.replace(n_gpu_layers=25)
    assert set(changes(SPACE, full)) == {"n_gpu_layers", "n_ctx", "n_ubatch", "flash_attn_type"}
    assert changes(SPACE, full)["n_gpu_layers"] == {24, 22}
    assert "flash_attn_type" not in changes(SPACE, full.replace(type_v="q8_0"))


def test_without_devices_only_what_the_cpu_knows_is_varied_and_the_first_layer_takes_all_devices() -> None:
    bare = lawful_space(device_mib=0)
    assert set(changes(bare, start_settings(bare))) == {
        "n_ctx",
        "n_ubatch",
        "flash_attn_type",
        "n_threads",
        "n_threads_batch",
    }
    cpu_only = start_settings(SPACE).replace(devices=(), n_gpu_layers=0)
    found = neighbours_of(SPACE, cpu_only)
    assert [(one.n_gpu_layers, one.devices) for one in found if one.n_gpu_layers] == [(1, None), (3, None)]


def test_no_more_context_is_asked_for_than_was_trained() -> None:
    assert "n_ctx" not in changes(SPACE, start_settings(SPACE).replace(n_ctx=8192))


# --- what comes of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [Goal.TURN, Goal.TTFT, Goal.DECODE])
@pytest.mark.parametrize("facts", [FACTS, EXPERTS], ids=["dense", "experts"])
def test_what_is_reckoned_is_true_where_the_law_is(goal: Goal, facts: object) -> None:
    space = lawful_space(facts, goal=goal)  # type: ignore[arg-type]
    engine, results = swept(space, noise_frac=0.01)
    found, chosen = explained(space, results), answered(space, results).trial.settings
    reckoned = [one for one in found.neighbours if one.cost_ratio and one.cost_ratio.basis is Basis.CATALOGUE]
    assert len(reckoned) >= 3
    for one in reckoned:
        assert one.cost_ratio is not None
        truth = engine.cost(one.settings) / engine.cost(chosen)
        assert one.cost_ratio.p50 == pytest.approx(truth, rel=0.04)
        assert one.cost_ratio.low < one.cost_ratio.p50 < one.cost_ratio.high
        assert (one.cost_ratio.n_samples, one.cost_ratio.coverage_frac) == (0, 0.9)


def test_what_trials_showed_beside_the_law_is_in_what_is_reckoned() -> None:
    """Attention without flash attention takes twice as long on this machine as any law says."""

    def times(settings: Settings) -> tuple[float, float]:
        return (2.0, 2.0) if settings.flash_attn_type == "disabled" else (1.0, 1.0)

    space = lawful_space(goal=Goal.TTFT)
    engine = LawfulEngine(space=space, wall_bytes=WALL_BYTES, times=times)
    base = start_settings(space)
    some = [base.replace(n_gpu_layers=k, flash_attn_type=kind) for k in (8, 5) for kind in ("enabled", "disabled")]
    results = [engine.run(Trial(settings=one, target=space.target, why="a test")) for one in some]
    results += [engine.run(Trial(settings=base.replace(n_gpu_layers=10), target=space.target, why="a test"))]
    flash = named(explained(space, results))["flash attention disabled"]
    assert flash.cost_ratio is not None
    assert flash.cost_ratio.p50 == pytest.approx(2.0, rel=0.25)


def test_a_step_that_ran_is_measured_by_a_visit_or_by_the_rounds() -> None:
    one_fewer, smaller = (CHOSEN.replace(n_gpu_layers=CHOSEN.n_gpu_layers - 1), CHOSEN.replace(n_ubatch=256))
    found = named(alone(CHOSEN, tried(one_fewer)))
    by_visit = found["1 layer fewer"].cost_ratio
    assert by_visit is not None
    assert by_visit.p50 == pytest.approx(ENGINE.cost(one_fewer) / ENGINE.cost(CHOSEN), rel=1e-3)
    assert (by_visit.basis, by_visit.n_samples, by_visit.low, by_visit.high) == (Basis.MEASURED, 1, 0.0, math.inf)
    assert found["1 layer fewer"].more_device_bytes < 0
    results = [tried(CHOSEN), tried(one_fewer), tried(smaller)]
    by_rounds = named(explained(SPACE, results, rounds_of({CHOSEN: 1.0, one_fewer: 1.3})))["1 layer fewer"].cost_ratio
    assert by_rounds is not None
    assert (by_rounds.basis, by_rounds.n_samples) == (Basis.MEASURED, 9)
    assert by_rounds.low < 1.3 < by_rounds.high < 1.35
    first_only = [*rounds_of({CHOSEN: 1.0, one_fewer: 1.3}, 4), *rounds_of({CHOSEN: 1.0, smaller: 1.1}, 5)]
    by_some = named(explain(SPACE, results, first_only, answered(SPACE, results[:1])))["1 layer fewer"].cost_ratio
    assert by_some is not None
    assert by_some.n_samples == 4


def test_what_has_no_room_says_what_it_needs_and_what_there_is() -> None:
    found = named(explained(SPACE, RESULTS))["1 layer more"]
    assert found.cost_ratio is None
    assert found.no_room == "needs about 1.22 GiB, there are 1.17 GiB"
    assert found.more_device_bytes > 100 * MIB
    limited = dataclasses.replace(SPACE, limit_bytes=SPACE.device_bytes)
    assert named(alone(CHOSEN, space=limited))["1 layer more"].no_room.endswith("you allow 1.17 GiB")


def test_a_trial_that_ended_goes_before_what_is_reckoned() -> None:
    twice, smaller = CHOSEN.replace(n_ctx=2048), CHOSEN.replace(n_ubatch=256)
    found = named(alone(CHOSEN, tried(twice, Outcome.OUT_OF_MEMORY_DEVICE)))
    assert found["n_ctx 2048"].no_room == "it ran out of memory when tried"
    assert found["n_ctx 2048"].cost_ratio is None
    found = named(alone(CHOSEN, tried(smaller, Outcome.TIMED_OUT)))
    assert found["n_ubatch 256"].unknown == "it was not finished when tried"
    found = named(alone(CHOSEN, tried(smaller, Outcome.UNSUPPORTED, "no such kernel.")))
    assert found["n_ubatch 256"].unknown == "it did not run when tried: no such kernel"
    assert found["n_ubatch 256"].cost_ratio is None
    found = named(alone(CHOSEN, tried(smaller, Outcome.CANCELLED)))
    assert found["n_ubatch 256"].cost_ratio is not None


def test_what_takes_no_less_than_settings_that_ran_out_of_memory_has_no_room_either() -> None:
    roomy = dataclasses.replace(SPACE, device_bytes=2000 * MIB)
    more = CHOSEN.replace(n_gpu_layers=CHOSEN.n_gpu_layers + 1)
    ended = tried(more.replace(n_threads=8), Outcome.OUT_OF_MEMORY_DEVICE)
    assert named(alone(CHOSEN, space=roomy))["1 layer more"].cost_ratio is not None
    found = named(alone(CHOSEN, ended, space=roomy))
    assert found["1 layer more"].no_room == "settings that take no more ran out of memory"
    assert found["1 layer fewer"].cost_ratio is not None


def test_those_come_first_that_a_little_memory_decides_and_then_what_matters_most() -> None:
    found = explained(SPACE, RESULTS).neighbours
    assert [one.words for one in found[:3]] == ["1 layer more", "1 layer fewer", "n_ctx 2048"]
    sizes = [abs(math.log(one.cost_ratio.p50)) for one in found[3:] if one.cost_ratio and one.cost_ratio.high >= 1]
    assert sizes == sorted(sizes, reverse=True)


def test_without_a_law_what_was_measured_is_still_told() -> None:
    lawless = dataclasses.replace(SPACE, laws=None)
    found = explain(lawless, RESULTS, (), answered(SPACE, RESULTS))
    assert found.limits == ()
    assert "no law" in found.unknown
    told = [one for one in found.neighbours if one.cost_ratio]
    assert told
    assert {one.cost_ratio.basis for one in told if one.cost_ratio} == {Basis.MEASURED}
    assert all(one.cost_ratio or one.no_room or one.unknown for one in found.neighbours)


def test_a_law_that_cannot_be_reckoned_with_is_none() -> None:
    def broken(_: Settings) -> object:
        raise np.linalg.LinAlgError

    found = explain(
        dataclasses.replace(SPACE, laws=broken),  # type: ignore[arg-type]
        RESULTS,
        (),
        answered(SPACE, RESULTS),
    )
    assert "no law" in found.unknown
    assert all(one.cost_ratio is None or one.cost_ratio.basis is Basis.MEASURED for one in found.neighbours)


# --- who came next -------------------------------------------------------------------------------------------------


def test_the_runner_up_is_the_second_of_the_rounds_with_its_ratio() -> None:
    near, far = CHOSEN.replace(n_ubatch=256), CHOSEN.replace(n_ubatch=128)
    results = [tried(one) for one in (CHOSEN, near, far)]
    second = explained(SPACE, results, rounds_of({CHOSEN: 1.0, far: 1.5, near: 1.2})).runner_up
    assert second is not None
    assert (second.trial.settings, second.changes, second.verdict) == (near, ("n_ubatch 256",), Verdict.FASTER)
    assert second.ratio.low < 1.2 < second.ratio.high
    assert second.ratio.n_samples == 9


def test_a_runner_up_inside_the_noise_is_the_same() -> None:
    near = CHOSEN.replace(n_ubatch=256)
    results = [tried(CHOSEN), tried(near)]
    found = explain(SPACE, results, rounds_of({CHOSEN: 1.0, near: 1.001}), answered(SPACE, results[:1]))
    assert found.runner_up is not None
    assert found.runner_up.verdict is Verdict.SAME


def test_before_any_round_the_runner_up_is_that_of_the_visits_and_alone_there_is_none() -> None:
    assert alone(CHOSEN).runner_up is None
    found = alone(CHOSEN, tried(CHOSEN.replace(n_ubatch=128)), tried(CHOSEN.replace(n_ubatch=64))).runner_up
    assert found is not None
    assert (found.changes, found.verdict, found.ratio.n_samples) == (("n_ubatch 128",), Verdict.SAME, 1)


# --- what takes the time -------------------------------------------------------------------------------------------


def test_limits_are_shares_of_each_phase_with_the_bytes_of_the_file() -> None:
    settings = start_settings(SPACE).replace(n_gpu_layers=13)  # twelve blocks stay in main memory
    found = limits_of(FACTS, settings, laws(FACTS, settings), n_prompt=512, depth=0)
    for phase in ("prefill", "decode"):
        shares = [one.share_frac for one in found if one.phase == phase]
        assert shares == sorted(shares, reverse=True)
        assert 0.5 < sum(shares) <= 1
    assert all(0 <= one.low_frac < one.share_frac < one.high_frac <= 1 for one in found)
    token = next(one for one in found if one.phase == "decode")
    assert (token.term, token.n_bytes, token.basis) == ("host.weights", 12 * 100 * MIB, Basis.CATALOGUE)
    assert token.words == f"each token reads 1.17 GiB of weights from main memory: {token.share_frac:.0%} of its time"


def test_what_a_run_shows_makes_shares_surer() -> None:
    settings = start_settings(SPACE).replace(n_gpu_layers=13)
    before = laws(FACTS, settings)
    runs = []
    for k in (0, 6, 13, 20, 25):
        one = settings.replace(n_gpu_layers=k)
        amounts = amounts_for(Phase.DECODE, FACTS, (one,), before.rig, n_prompt=1, depth=512)
        seconds = float(before.decode.seconds(amounts)[0])
        runs.append(run_of(before.decode, amounts[:, 0], seconds, 0.01))
    widths = []
    for known in (before, before.with_runs(runs)):
        token = next(
            one
            for one in limits_of(FACTS, settings, known, n_prompt=512, depth=0)
            if one.phase == "decode" and one.term == "host.weights"
        )
        widths.append(token.high_frac - token.low_frac)
    assert widths[1] < 0.7 * widths[0]


def test_fewer_threads_read_no_more_bytes_but_take_a_larger_part_of_the_time() -> None:
    settings = start_settings(SPACE).replace(n_gpu_layers=13)
    few, many = (
        next(
            one
            for one in limits_of(FACTS, threads, laws(FACTS, threads), n_prompt=512, depth=0)
            if one.term == "host.weights" and one.phase == "decode"
        )
        for threads in (settings.replace(n_threads=1), settings)
    )
    assert few.n_bytes == many.n_bytes
    assert few.share_frac > many.share_frac


def test_what_is_copied_and_what_is_computed_is_told_by_its_place() -> None:
    facts = facts_of_shape("llama-3-8b", "Q4_K_M")

    def words(n_gpu_layers: int, **changed: object) -> list[str]:
        settings = start_settings(SPACE).replace(n_gpu_layers=n_gpu_layers, load_mode="none", **changed)
        return [one.words for one in limits_of(facts, settings, laws(facts, settings), n_prompt=4096, depth=0)]

    assert any(re.match(r"the prompt copies [\d.]+ GiB of weights to the device: \d+%", one) for one in words(8))
    assert any(
        re.match(r"multiplying the weights on the CPU: \d+% of the time of the p", one) for one in words(0, devices=())
    )
    found = words(33)
    assert any(re.match(r"multiplying the weights on the device: \d+% of the time of the p", one) for one in found)
    assert any(re.match(r"each token reads 4\.\d+ GiB of weights from the memory of the device", one) for one in found)
    assert any(one.startswith("what each block takes besides, on the device: ") for one in found)


@given(
    st.builds(
        Settings,
        n_gpu_layers=st.integers(0, 25),
        n_cpu_moe=st.integers(0, 24),
        op_offload=st.booleans(),
        offload_kqv=st.booleans(),
        flash_attn_type=st.sampled_from(["enabled", "disabled"]),
        n_ctx=st.just(16384),
    ),
    st.sampled_from([1, 32, 512, 8192]),
)
def test_the_words_of_all_limits_are_whole(settings: Settings, n_prompt: int) -> None:
    for one in limits_of(EXPERTS, settings, laws(EXPERTS, settings), n_prompt=n_prompt, depth=0):
        assert one.words.endswith(("of its time", "of the time of the prompt", "of the time of each token"))
        assert not re.search(r"[{}]|each handing|\bNone\b", one.words)
        assert (one.n_bytes is None) != (" reads " in one.words or " copies " in one.words)
        assert 0.05 <= one.share_frac <= 1


def test_over_two_devices_what_ran_out_of_memory_is_heeded_too() -> None:
    halves = (500 * MIB, 500 * MIB)
    space = dataclasses.replace(SPACE, n_devices=2, device_names=("RPC0", "RPC1"), device_free_bytes=halves)
    ended = tried(CHOSEN.replace(n_gpu_layers=space.everything), Outcome.OUT_OF_MEMORY_DEVICE)
    assert explained(space, [tried(CHOSEN), ended]).neighbours

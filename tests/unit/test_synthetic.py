"""The simulated engine: what it says must follow from what it is made of, and from the seed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune import stats
from offloadtune.engine import VisitPlan
from offloadtune.engine.synthetic import (
    Blocks,
    Curve,
    LyingFreeMemory,
    MemoryTaken,
    Noise,
    NoiseSource,
    SlowKernel,
    SmtCollapse,
    Spill,
    Surprise,
    SyntheticCard,
    SyntheticHost,
    SyntheticMachine,
    SyntheticRunner,
    Throttle,
    decode_s,
    prompt_s,
    truth,
)
from offloadtune.engine.synthetic.kernels import padded
from offloadtune.records import Outcome, Settings, Target, Trial, TrialResult, Visit, Workload

MIB = 1 << 20
N_LAYER = 16
LAYER_BYTES = 100 * MIB
FREE_BYTES = 1500 * MIB
WORKLOAD = Workload(name="simulated", n_prefix_cached=256, n_prompt_new=512, n_gen=64)
PLAN = VisitPlan(workload=WORKLOAD, n_steps=8, n_visits=1)
BASE = Settings(
    n_ctx=1024, n_batch=512, n_ubatch=512, n_threads=8, n_threads_batch=8, flash_attn_type="enabled", n_gpu_layers=8
)
LEVEL = Curve(x=(1.0,), y=(1.0,))


def taken(settings: Sequence[Settings]) -> MemoryTaken:
    """A layer takes its bytes on the card, and a token of the ubatch 100 kB while anything is there."""
    layers = np.array([one.n_gpu_layers if one.devices != () else 0 for one in settings])
    sizes = np.array([one.n_ubatch for one in settings])
    device = layers * LAYER_BYTES + np.where(layers > 0, sizes * 100_000, 0)
    return MemoryTaken(device_bytes=device, host_bytes=(N_LAYER + 1 - layers) * LAYER_BYTES)


def blocks(*, n_expert: int = 0, n_expert_used: int = 0) -> Blocks:
    """Sixteen alike; where there are experts they are three quarters of the bytes."""
    dense = LAYER_BYTES * (0.25 if n_expert else 1.0)
    experts = LAYER_BYTES - dense
    used = n_expert_used / n_expert if n_expert else 0.0
    level = np.ones(N_LAYER)
    return Blocks(
        dense_bytes=level * dense,
        ffn_bytes=level * dense * 0.75,
        expert_bytes=level * experts,
        dense_flop=level * dense * 4,
        ffn_flop=level * dense * 3,
        expert_flop=level * experts * 4 * used,
        cache_values=level * 2048,
        attention_flop=level * 16384,
        n_heads=level * 32,
        window=np.zeros(N_LAYER, dtype=np.int64),
        output_bytes=float(LAYER_BYTES),
        output_flop=4.0 * LAYER_BYTES,
        n_embd=4096,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        file_bytes=(N_LAYER + 1) * LAYER_BYTES,
    )


CARD = SyntheticCard(
    name="CUDA0",
    description="a card",
    total_bytes=2000 * MIB,
    free_bytes=FREE_BYTES,
    read_bytes_per_s=400e9,
    op_per_s=30e12,
    link_bytes_per_s=10e9,
    reads=Curve(x=(1e6, 1e9), y=(0.5, 0.95)),
    multiplies=Curve(x=(1, 8, 32, 128, 512, 4096), y=(0.05, 0.25, 0.4, 0.7, 0.95, 1.0)),
    flash_read=LEVEL,
    plain_read=Curve(x=(256, 32768), y=(0.5, 0.2)),
    flash_share=0.5,
    plain_share=0.4,
    launch_s=50e-6,
    ubatch_s=3e-4,
    overlap_frac=0.5,
)
HOST = SyntheticHost(
    n_cores=8,
    n_logical_cores=16,
    ram_bytes=64 << 30,
    read_bytes_per_s=40e9,
    op_per_s=5e11,
    reads_by_threads=Curve(x=(0.125, 0.5, 1.0, 2.0), y=(0.3, 0.95, 1.0, 0.98)),
    multiplies_by_threads=Curve(x=(0.125, 0.25, 0.5, 1.0, 2.0), y=(0.125, 0.25, 0.5, 1.0, 1.05)),
    multiplies=LEVEL,
    flash_share=0.6,
    plain_share=0.4,
    attends_share=0.5,
    barrier_s=1e-6,
    handover_s=40e-6,
    sample_s=2e-4,
    disk_bytes_per_s=1e9,
    cached_bytes_per_s=4e9,
    load_s=0.5,
    open_s=0.2,
)


def machine(*surprises: Surprise, n_expert: int = 0, n_expert_used: int = 0) -> SyntheticMachine:
    return SyntheticMachine(
        name="a machine",
        blocks=blocks(n_expert=n_expert, n_expert_used=n_expert_used),
        card=CARD,
        host=HOST,
        memory=taken,
        surprises=surprises,
    )


def trial(**changes: object) -> Trial:
    return Trial(settings=BASE.replace(**changes), target=Target.LLAMA_CPP_PYTHON, why="a test's")


def ttft_s(one: SyntheticMachine, **changes: object) -> float:
    found = truth(one, (BASE.replace(**changes),), n_prompt=512, depth=256)
    return float(found.ttft_s[0])


def token_s(one: SyntheticMachine, **changes: object) -> float:
    found = truth(one, (BASE.replace(**changes),), n_prompt=512, depth=256)
    return float(found.token_s[0])


def timed(found: tuple[Visit, ...] | TrialResult) -> Visit:
    visits = found.visits if isinstance(found, TrialResult) else found
    return visits[-1]


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_curve_is_straight_over_the_logarithm_and_level_beyond_its_ends() -> None:
    curve = Curve(x=(1.0, 100.0), y=(0.2, 0.6))
    assert curve.at(10.0) == pytest.approx(0.4)
    assert (curve.at(0.1), curve.at(1e6)) == (0.2, 0.6)
    assert curve.over(np.array([10.0, 1e6])).tolist() == pytest.approx([0.4, 0.6])


@given(st.lists(st.floats(0.01, 1e6), min_size=2, max_size=6, unique=True), st.floats(0.001, 1e7))
def test_one_point_and_many_points_of_a_curve_agree(x: list[float], at: float) -> None:
    points = sorted(x)
    if any(b / a < 1 + 1e-9 for a, b in itertools.pairwise(points)):
        return
    curve = Curve(x=tuple(points), y=tuple(range(len(points))))
    assert curve.at(at) == pytest.approx(float(curve.over(np.array(at))), abs=1e-6)


def test_a_curve_that_does_not_rise_is_refused() -> None:
    with pytest.raises(ValueError, match="points that rise"):
        Curve(x=(2.0, 1.0), y=(0.1, 0.2))


@given(st.integers(1, 10_000))
def test_columns_are_whole_tiles_and_no_fewer_than_asked_for(n_tokens: int) -> None:
    assert n_tokens <= padded(n_tokens) < n_tokens + 128
    assert n_tokens <= 8 or padded(n_tokens) % 32 == 0


# --- truth -----------------------------------------------------------------------------------------------------------


def test_a_layer_more_on_the_card_makes_tokens_faster() -> None:
    settings = [BASE.replace(n_gpu_layers=k) for k in range(1, N_LAYER + 2)]
    found = decode_s(machine(), settings, depth=512)
    assert (np.diff(found) < 0).all()


def test_the_least_a_token_takes_is_reading_everything_once() -> None:
    full = token_s(machine(), n_gpu_layers=N_LAYER + 1)
    assert full > (N_LAYER + 1) * LAYER_BYTES / CARD.read_bytes_per_s
    none = token_s(machine(), devices=())
    assert none > (N_LAYER + 1) * LAYER_BYTES / HOST.read_bytes_per_s


def test_tokens_take_longer_the_more_is_cached() -> None:
    for changes in ({"devices": ()}, {"n_gpu_layers": N_LAYER + 1}):
        shallow, deep = (float(decode_s(machine(), (BASE.replace(**changes),), depth=n)[0]) for n in (256, 16384))
        assert deep > shallow


def test_prompts_take_longer_the_more_tokens_they_have() -> None:
    own = BASE.replace(op_offload=False)
    found = [float(prompt_s(machine(), (own,), n_prompt=n)[0]) for n in (1, 8, 31, 64, 200, 512, 700, 2048)]
    assert found == sorted(set(found))


def test_larger_ubatches_copy_the_weights_of_the_host_less_often() -> None:
    small, large = (
        float(prompt_s(machine(), (BASE.replace(n_batch=2048, n_ubatch=n),), n_prompt=2048)[0]) for n in (128, 2048)
    )
    copied_s = 8 * LAYER_BYTES / CARD.link_bytes_per_s
    assert small - large > 10 * copied_s * (1 - CARD.overlap_frac)


def test_the_card_is_lent_from_32_tokens_on() -> None:
    def gain(n_prompt: int) -> float:
        lent, own = (
            float(prompt_s(machine(), (BASE.replace(op_offload=is_lent),), n_prompt=n_prompt)[0])
            for is_lent in (True, False)
        )
        return own / lent

    assert gain(31) == 1.0
    assert gain(32) != 1.0
    assert gain(512) > 1.0


def test_a_tile_more_costs_a_step() -> None:
    full = BASE.replace(n_gpu_layers=N_LAYER + 1, n_batch=1024, n_ubatch=1024)
    at = {n: float(prompt_s(machine(), (full,), n_prompt=n)[0]) for n in (384, 385, 512)}
    assert at[385] - at[384] > 10 * (at[512] - at[385]) / 127


def test_threads_share_the_work_until_memory_is_the_limit() -> None:
    one, four, eight = (token_s(machine(), devices=(), n_threads=n) for n in (1, 4, 8))
    assert one > 2 * four
    assert four < 1.2 * eight
    reading = [ttft_s(machine(), devices=(), n_threads_batch=n) for n in (1, 2, 4, 8)]
    assert reading == sorted(reading, reverse=True)


def test_more_threads_than_the_processor_has_are_slow() -> None:
    assert token_s(machine(), devices=(), n_threads=17) > 3 * token_s(machine(), devices=(), n_threads=16)


def test_flash_attention_may_help_one_place_and_matters_more_with_depth() -> None:
    def gain(depth: int) -> float:
        settings = [BASE.replace(n_gpu_layers=17, flash_attn_type=one) for one in ("disabled", "enabled")]
        plain, flash = decode_s(machine(), settings, depth=depth)
        return float(plain / flash)

    assert 1 < gain(512) < gain(16384)


def test_experts_in_main_memory_cost_less_than_their_layers_there() -> None:
    mixture = machine(n_expert=32, n_expert_used=4)
    full = token_s(mixture, n_gpu_layers=17)
    away = token_s(mixture, n_gpu_layers=17, n_cpu_moe=8)
    layers = token_s(mixture, n_gpu_layers=9)
    assert full < away < layers
    assert token_s(machine(), n_gpu_layers=17, n_cpu_moe=8) == token_s(machine(), n_gpu_layers=17)


def test_feed_forward_weights_in_main_memory_cost_less_than_their_layers_there() -> None:
    full, away, layers = (
        token_s(machine(), n_gpu_layers=k, n_cpu_ffn=m, offload_kqv=True) for k, m in ((17, 0), (17, 8), (9, 0))
    )
    assert full < away < layers
    assert token_s(machine(), n_gpu_layers=9, n_cpu_ffn=8) == layers  # those blocks are there already


def test_many_settings_are_judged_as_each_alone() -> None:
    settings = [
        BASE.replace(n_gpu_layers=k, n_cpu_moe=moe, n_cpu_ffn=ffn, n_ubatch=n, n_threads=t, op_offload=lent)
        for k, moe, ffn in ((0, 0, 0), (5, 0, 0), (17, 0, 0), (17, 6, 0), (17, 6, 9))
        for n in (64, 512)
        for t, lent in ((4, True), (8, False))
    ]
    mixture = machine(SlowKernel(n_tokens=64, times=3.0), n_expert=32, n_expert_used=4)
    found = truth(mixture, settings, n_prompt=300, depth=100)
    alone = [truth(mixture, (one,), n_prompt=300, depth=100) for one in settings]
    assert found.ttft_s.tolist() == pytest.approx([float(one.ttft_s[0]) for one in alone])
    assert found.token_s.tolist() == pytest.approx([float(one.token_s[0]) for one in alone])


def test_what_the_card_has_room_for_fits() -> None:
    settings = [BASE.replace(n_gpu_layers=k) for k in (0, 14, 15, 17)]
    assert truth(machine(), settings, n_prompt=8).fits.tolist() == [True, True, False, False]


# --- trials ----------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_visits_and_another_seed_others() -> None:
    def visits(seed: int) -> list[tuple[Visit, ...]]:
        runner = SyntheticRunner(machine(), seed=seed)
        return [runner.run(trial(n_gpu_layers=k), PLAN, timeout_s=math.inf).visits for k in (4, 8)]

    assert visits(1) == visits(1)
    assert visits(1) != visits(2)


def test_without_noise_a_visit_takes_its_true_time() -> None:
    visit = timed(SyntheticRunner(machine(), noise=Noise.none()).run(trial(), PLAN, timeout_s=math.inf))
    assert visit.ttft_s == pytest.approx(ttft_s(machine()), rel=0.02)
    assert visit.token_s == pytest.approx(token_s(machine()), rel=1e-6)
    assert (visit.n_prefix_cached, visit.n_prompt_new, len(visit.step_ns)) == (256, 512, 8)


def test_everything_it_says_is_labelled() -> None:
    engine, devices = SyntheticRunner(machine()).describe()
    assert engine.version.startswith("synthetic")
    assert all("synthetic" in device.description for device in devices)
    result = SyntheticRunner(machine()).run(trial(n_gpu_layers=17), PLAN, timeout_s=math.inf)
    assert "synthetic" in result.reason


def test_a_trial_that_does_not_fit_ends_out_of_memory_and_one_that_does_tells_its_peak() -> None:
    runner = SyntheticRunner(machine())
    weights = runner.run(trial(n_gpu_layers=17), PLAN, timeout_s=math.inf)
    assert weights.outcome is Outcome.OUT_OF_MEMORY_DEVICE
    assert not weights.visits
    context = runner.run(trial(n_gpu_layers=14, n_ubatch=2048, n_batch=2048), PLAN, timeout_s=math.inf)
    assert context.outcome is Outcome.OUT_OF_MEMORY_DEVICE
    assert context.evidence is not None
    assert context.evidence.phase == "open"
    again = runner.revisit(trial(n_gpu_layers=14, n_ubatch=2048, n_batch=2048), PLAN, timeout_s=math.inf)
    assert isinstance(again, TrialResult)
    assert again.outcome is Outcome.OUT_OF_MEMORY_DEVICE
    fits = runner.run(trial(n_gpu_layers=14), PLAN, timeout_s=math.inf)
    assert fits.outcome is Outcome.OK
    assert fits.device_peak_bytes == (("CUDA0", 14 * LAYER_BYTES + 512 * 100_000),)


def test_a_host_without_room_for_the_file_runs_out() -> None:
    small = dataclasses.replace(machine(), host=dataclasses.replace(HOST, ram_bytes=LAYER_BYTES))
    result = SyntheticRunner(small).run(trial(), PLAN, timeout_s=math.inf)
    assert result.outcome is Outcome.OUT_OF_MEMORY_HOST


def test_a_context_too_small_for_the_turn_is_refused() -> None:
    result = SyntheticRunner(machine()).run(trial(n_ctx=512), PLAN, timeout_s=math.inf)
    assert result.outcome is Outcome.UNSUPPORTED


def test_a_placement_is_loaded_once_and_from_the_disk_only_the_first_time() -> None:
    runner = SyntheticRunner(machine())
    first = runner.run(trial(), PLAN, timeout_s=math.inf)
    again = runner.run(trial(n_threads=4), PLAN, timeout_s=math.inf)
    assert runner.n_model_loads == 1
    other = runner.run(trial(n_gpu_layers=9), PLAN, timeout_s=math.inf)
    assert runner.n_model_loads == 2
    assert [result.visits[0].i_load for result in (first, again, other)] == [1, 1, 2]
    assert first.load_ns is not None
    assert other.load_ns is not None
    assert first.load_ns > 2 * other.load_ns
    assert again.duration_s < other.duration_s < first.duration_s


def test_the_clock_moves_by_what_a_trial_took_and_nothing_waits() -> None:
    slow = dataclasses.replace(machine(), host=dataclasses.replace(HOST, disk_bytes_per_s=1e6))
    runner, start_s = SyntheticRunner(slow), time.monotonic()
    result = runner.run(trial(), PLAN, timeout_s=math.inf)
    assert runner.clock_s == pytest.approx(result.duration_s, abs=1e-3)
    assert result.duration_s > 1000 > time.monotonic() - start_s
    visit = timed(result)
    assert result.duration_s > visit.ttft_s + sum(visit.step_ns) / 1e9
    before_s = runner.clock_s
    found = runner.revisit(trial(), PLAN, timeout_s=math.inf)
    assert isinstance(found, tuple)
    assert visit.ttft_s < runner.clock_s - before_s < result.duration_s / 100


def test_a_trial_ends_when_its_time_is_over_and_what_was_loaded_is_gone() -> None:
    runner = SyntheticRunner(machine())
    result = runner.run(trial(), PLAN, timeout_s=1.0)
    assert result.outcome is Outcome.TIMED_OUT
    assert runner.clock_s == pytest.approx(1.0)
    runner.run(trial(), PLAN, timeout_s=math.inf)
    late = runner.revisit(trial(), PLAN, timeout_s=0.01)
    assert isinstance(late, TrialResult)
    assert late.outcome is Outcome.TIMED_OUT
    n_loads = runner.n_model_loads
    runner.revisit(trial(), PLAN, timeout_s=math.inf)
    assert runner.n_model_loads == n_loads + 1


def test_a_cache_that_was_filled_is_restored_and_not_read_again() -> None:
    runner = SyntheticRunner(machine(), noise=Noise.none())
    first = runner.run(trial(n_ctx=8192), PLAN, timeout_s=math.inf)
    again = runner.run(trial(n_ctx=8192, n_threads=4), PLAN, timeout_s=math.inf)
    plain = runner.run(trial(n_ctx=8192, flash_attn_type="disabled"), PLAN, timeout_s=math.inf)
    read_s = float(prompt_s(machine(), (BASE,), n_prompt=7000)[0])
    assert first.duration_s - again.duration_s > read_s
    assert plain.duration_s - again.duration_s > read_s


def test_the_fit_rule_leaves_its_margin_of_what_the_driver_says() -> None:
    honest, lying = SyntheticRunner(machine()), SyntheticRunner(machine(LyingFreeMemory(more_frac=0.2)))
    assert honest.fit_layers(BASE, 200 * MIB, timeout_s=1.0) == (12, True)
    assert lying.fit_layers(BASE, 200 * MIB, timeout_s=1.0) == (15, True)
    assert honest.fit_layers(BASE, -1000 * MIB, timeout_s=1.0) == (-1, True)


# --- noise -----------------------------------------------------------------------------------------------------------


def test_a_setting_against_itself_is_one_within_its_interval() -> None:
    runner = SyntheticRunner(machine(), seed=3)
    runner.run(trial(), PLAN, timeout_s=math.inf)
    turns = [timed(runner.revisit(trial(), PLAN, timeout_s=math.inf)).turn_s(64) for _ in range(400)]
    found = stats.compare_pairs(turns[::2], turns[1::2], stats.session_noise_frac([turns]))
    assert found.ratio.low < 1 < found.ratio.high
    assert 0.002 < stats.session_noise_frac([turns]) < 0.03


def test_loads_differ_more_than_visits_do() -> None:
    source = NoiseSource(dataclasses.replace(Noise(), drift_frac=0.0, stall_frac=0.0), seed=5)
    within = [math.log(source.visit(0.0)[0]) for _ in range(300)]
    between = []
    for _ in range(300):
        source.loaded()
        between.append(statistics.fmean(math.log(source.visit(0.0)[0]) for _ in range(8)))
    assert 0.004 < statistics.stdev(within) < 0.01
    assert 0.01 < statistics.stdev(between) < 0.03


def test_drift_is_slow() -> None:
    source = NoiseSource(dataclasses.replace(Noise(), visit_frac=0.0, stall_frac=0.0), seed=7)
    logs = np.log([source.visit(float(i))[0] for i in range(20_000)])
    near, far = np.std(logs[1:] - logs[:-1]), np.std(logs[600:] - logs[:-600])
    assert near < 0.01
    assert 0.03 < far < 0.06


def test_recorded_noise_is_played_in_its_order() -> None:
    recorded = tuple((0.01 * i, -0.01 * i) for i in range(10))
    source = NoiseSource(dataclasses.replace(Noise.none(), recorded=recorded), seed=1)
    prompts = [round(math.log(source.visit(0.0)[0]), 6) for _ in range(10)]
    first = round(prompts[0] * 100)
    assert prompts == [round(0.01 * ((first + i) % 10), 6) for i in range(10)]


def test_visits_have_a_tail_of_stalls() -> None:
    source = NoiseSource(dataclasses.replace(Noise(), drift_frac=0.0, load_frac=0.0), seed=9)
    logs = sorted(math.log(source.visit(0.0)[0]) for _ in range(4000))
    assert logs[-1] > 5 * abs(logs[0])


# --- surprises -------------------------------------------------------------------------------------------------------


def test_a_slow_kernel_hits_one_size_only() -> None:
    odd = machine(SlowKernel(n_tokens=256, times=3.0))
    assert ttft_s(odd, n_ubatch=256) > 2.5 * ttft_s(machine(), n_ubatch=256)
    assert ttft_s(odd, n_ubatch=512) == ttft_s(machine(), n_ubatch=512)
    assert ttft_s(odd, n_ubatch=512, n_batch=256) > 2 * ttft_s(machine(), n_ubatch=512, n_batch=256)
    assert token_s(odd, n_ubatch=256) == token_s(machine(), n_ubatch=256)
    assert ttft_s(odd, devices=(), n_ubatch=256) == ttft_s(machine(), devices=(), n_ubatch=256)


def test_more_threads_than_cores_collapse() -> None:
    odd = machine(SmtCollapse(times=4.0))
    assert token_s(odd, devices=(), n_threads=16) > 3 * token_s(odd, devices=(), n_threads=8)
    assert token_s(machine(), devices=(), n_threads=16) < 1.2 * token_s(machine(), devices=(), n_threads=8)
    assert token_s(odd, n_gpu_layers=17, n_threads=16) == token_s(machine(), n_gpu_layers=17, n_threads=16)


def test_a_driver_that_spills_runs_what_does_not_fit_but_slowly() -> None:
    odd = machine(Spill(near_frac=0.05, beyond_frac=0.1, token_times=3.0, prompt_times=1.5))
    assert token_s(odd, n_gpu_layers=13) == token_s(machine(), n_gpu_layers=13)
    assert token_s(odd, n_gpu_layers=14) > 2.9 * token_s(machine(), n_gpu_layers=14)
    assert ttft_s(odd, n_gpu_layers=14) > 1.4 * ttft_s(machine(), n_gpu_layers=14)
    runner = SyntheticRunner(odd)
    beyond = runner.run(trial(n_gpu_layers=15), PLAN, timeout_s=math.inf)
    assert beyond.outcome is Outcome.OK
    assert beyond.device_peak_bytes == (("CUDA0", FREE_BYTES),)
    assert runner.run(trial(n_gpu_layers=17), PLAN, timeout_s=math.inf).outcome is Outcome.OUT_OF_MEMORY_DEVICE


def test_heat_slows_down_after_so_much_work() -> None:
    runner = SyntheticRunner(machine(Throttle(after_busy_s=5.0, times=1.5)), noise=Noise.none())
    runner.run(trial(), PLAN, timeout_s=math.inf)
    turns = [timed(runner.revisit(trial(), PLAN, timeout_s=math.inf)).turn_s(64) for _ in range(60)]
    assert turns[-1] == pytest.approx(1.5 * turns[0], rel=0.02)
    assert turns == sorted(turns)


def test_a_driver_that_lies_gives_what_there_is() -> None:
    for more in (-0.2, 0.2):
        runner = SyntheticRunner(machine(LyingFreeMemory(more_frac=more)))
        (device,) = runner.describe()[1]
        assert device.free_bytes == int(FREE_BYTES * (1 + more))
        outcomes = [runner.run(trial(n_gpu_layers=k), PLAN, timeout_s=math.inf).outcome for k in (14, 15)]
        assert outcomes == [Outcome.OK, Outcome.OUT_OF_MEMORY_DEVICE]

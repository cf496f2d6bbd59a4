"""What stand-ins of fewer layers say of the whole model: exact for what follows the laws, refused where they part."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.doctor.ladder import bytes_per_token
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import Basis, Estimate
from offloadtune.speed import device_layers_around, extrapolated, read_bytes
from offloadtune.sweeps import DepthTimes

BYTES = 1_000_000
costs = st.floats(1e-4, 10.0)
shares = st.integers(2, 100).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n), st.integers(0, n + 3)))
depths = st.lists(st.integers(1, 100), min_size=3, max_size=3, unique=True).map(sorted)


def times_of(  # noqa: PLR0917 - what a model is made of
    depths: Sequence[int],
    n_layer: int,
    n_gpu_layers: int,
    seconds: Callable[[int, int], float],
    rounds: Sequence[float] = (1.0,) * 7,
    fixed_bytes: int = 0,
) -> list[DepthTimes]:
    """Times of `seconds` (layers, layers on devices with the output), every round slower by a factor."""
    return [
        DepthTimes(
            n_layer=depth,
            n_gpu_layers=n_gpu_short,
            n_bytes=fixed_bytes + BYTES * depth,
            seconds=tuple(factor * seconds(depth, n_gpu_short) for factor in rounds),
        )
        for depth in depths
        for n_gpu_short in device_layers_around(depth, n_layer, n_gpu_layers)
    ]


def plain(depth: int, seconds: Sequence[float], n_gpu_layers: int = 0, n_bytes: int | None = None) -> DepthTimes:
    n_bytes = BYTES * depth if n_bytes is None else n_bytes
    return DepthTimes(n_layer=depth, n_gpu_layers=n_gpu_layers, n_bytes=n_bytes, seconds=tuple(seconds))


# --- layers on devices ---------------------------------------------------------------------------------------------


@given(shares)
def test_the_numbers_around_a_share_are_neighbours_with_it_between_them(share: tuple[int, int, int]) -> None:
    n_short, n_layer, n_gpu_layers = share
    around = device_layers_around(*share)
    if n_gpu_layers == 0:
        assert around == (0,)
        return
    asked = min(n_gpu_layers - 1, n_layer) * n_short
    assert (around[0] - 1) * n_layer <= asked <= (around[-1] - 1) * n_layer
    assert len(around) == 1 or (around[1] - around[0] == 1 and (around[0] - 1) * n_layer < asked)
    assert 1 <= around[0] <= around[-1] <= n_short + 1


@pytest.mark.parametrize(
    ("share", "around"),
    [
        ((8, 32, 0), (0,)),
        ((8, 32, 1), (1,)),
        ((8, 32, 2), (1, 2)),
        ((8, 32, 17), (5,)),
        ((8, 32, 18), (5, 6)),
        ((8, 32, 32), (8, 9)),
        ((8, 32, 33), (9,)),
        ((8, 32, 999), (9,)),
        ((32, 32, 20), (20,)),
    ],
)
def test_the_output_counts_as_a_layer_and_everything_is_everything(
    share: tuple[int, int, int], around: tuple[int, ...]
) -> None:
    assert device_layers_around(*share) == around


@given(shares)
def test_more_layers_on_devices_are_never_fewer_in_the_stand_in(share: tuple[int, int, int]) -> None:
    n_short, n_layer, n_gpu_layers = share
    fewer, more = (device_layers_around(n_short, n_layer, n) for n in (n_gpu_layers, n_gpu_layers + 1))
    assert fewer[0] <= more[0]
    assert fewer[-1] <= more[-1]


# --- bytes read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-270m", "mixtral-8x7b", "qwen3-30b-a3b", "qwen3.8-27b-mtp"])
def test_a_token_reads_its_experts_and_the_output_and_a_prompt_reads_all_experts(name: str) -> None:
    facts = facts_of_shape(name, "Q4_K_M")
    prompt, token = read_bytes(facts)
    assert token == pytest.approx(bytes_per_token(facts), rel=1e-3)
    n_trunk = facts.n_layer - facts.n_layer_nextn
    assert prompt == pytest.approx(sum(facts.layer_bytes[:n_trunk]), rel=1e-3)
    used = facts.n_expert_used / facts.n_expert if facts.n_expert else 1.0
    output = facts.embedding_bytes if facts.is_tied else facts.output_bytes
    assert token == pytest.approx(prompt - (1 - used) * sum(facts.expert_bytes) + output, rel=1e-3)


# --- both ways -----------------------------------------------------------------------------------------------------


@given(
    depths=depths,
    n_gpu_layers=st.integers(0, 103),
    each_s=st.tuples(costs, costs, costs),
    rounds=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9),
)
def test_what_layers_add_alike_is_recovered_wherever_they_lie(
    depths: list[int], n_gpu_layers: int, each_s: tuple[float, float, float], rounds: list[float]
) -> None:
    once, on_host, on_device = each_s

    def seconds(n_layer: int, n_gpu: int) -> float:
        n_on_device = min(max(n_gpu - 1, 0), n_layer)
        return once * (2 if n_gpu else 3) + on_host * (n_layer - n_on_device) + on_device * n_on_device

    *fewer, n_layer = depths
    times = times_of(fewer, n_layer, n_gpu_layers, seconds, rounds)
    linear = extrapolated(times, n_layer, n_gpu_layers, BYTES * n_layer).linear_s
    assert linear.p50 == pytest.approx(statistics.median(rounds) * seconds(n_layer, n_gpu_layers), rel=1e-6)
    assert linear.low <= linear.p50 <= linear.high


@given(depths=depths, n_gpu_layers=st.integers(0, 103), cost=costs, n_fixed=st.integers(0, 100))
def test_where_all_is_reading_both_ways_agree(depths: list[int], n_gpu_layers: int, cost: float, n_fixed: int) -> None:
    *fewer, n_layer = depths
    fixed_bytes = BYTES * n_fixed
    times = times_of(fewer, n_layer, n_gpu_layers, lambda n, _: cost * (n_fixed + n), fixed_bytes=fixed_bytes)
    found = extrapolated(times, n_layer, n_gpu_layers, fixed_bytes + BYTES * n_layer)
    for way in (found.linear_s, found.scaled_s):
        assert way.p50 == pytest.approx(cost * (n_fixed + n_layer), rel=1e-6)
    if found.linear_s.low > 0:  # where depths are neighbours and the whole is far, loads may make it anything
        assert found.apart_frac == pytest.approx(0, abs=1e-6)
        assert found.whole_s is not None


@pytest.mark.parametrize(("fixed", "is_said"), [(0.0, True), (0.35, True), (0.36, False), (5.0, False)])
def test_ways_that_part_say_nothing(fixed: float, is_said: bool) -> None:  # noqa: FBT001
    """16 layers take 1 s besides what happens once: 32 take 2 + fixed by one way, 2 + 2 fixed by the other."""
    times = times_of((8, 16), 32, 0, lambda n, _: fixed + n / 16)
    found = extrapolated(times, 32, 0, 32 * BYTES)
    assert found.apart_frac == pytest.approx((2 + 2 * fixed) / (2 + fixed) - 1)
    assert (found.whole_s is not None) == is_said


@pytest.mark.parametrize("by_bytes", [0.8, 1.25])
def test_how_far_apart_they_are_does_not_depend_on_which_is_larger(by_bytes: float) -> None:
    times = times_of((8, 16), 32, 0, lambda n, _: n / 16)
    found = extrapolated(times, 32, 0, round(32 * BYTES * by_bytes))
    assert found.apart_frac == pytest.approx(0.25)


@given(
    seconds=st.lists(st.tuples(st.floats(0.9, 1.1), st.floats(1.8, 2.2)), min_size=1, max_size=12),
    n_layer=st.integers(16, 120),
)
def test_the_range_spans_both_ways(seconds: list[tuple[float, float]], n_layer: int) -> None:
    shallow, deep = zip(*seconds, strict=True)
    found = extrapolated([plain(8, shallow), plain(16, deep)], n_layer, 0, n_layer * BYTES)
    if found.whole_s is None:
        assert found.apart_frac > 0.15
        return
    ways = (found.linear_s, found.scaled_s)
    assert found.whole_s.low == min(one.low for one in ways) > 0
    assert found.whole_s.high == max(one.high for one in ways)
    assert min(one.p50 for one in ways) <= found.whole_s.p50 * (1 + 1e-9)
    assert found.whole_s.p50 <= max(one.p50 for one in ways) * (1 + 1e-9)
    assert {one.basis for one in (*ways, found.whole_s)} == {Basis.CALIBRATED}
    assert {one.n_samples for one in (*ways, found.whole_s)} == {len(seconds)}


def test_rounds_are_compared_with_themselves() -> None:
    """A round in which everything is slow is no noise between depths."""
    rounds = (1.0, 3.0, 1.1, 2.0, 1.2, 1.3, 2.5)
    found = extrapolated(times_of((8, 16), 80, 0, lambda n, _: n / 16, rounds), 80, 0, 80 * BYTES)
    assert found.linear_s.p50 == pytest.approx(5 * 1.3)
    assert found.linear_s.low > 0.95 * 5 * 1.0


def width_frac(one: Estimate) -> float:
    return (one.high - one.low) / one.p50


def test_loads_widen_what_rounds_cannot_tell_and_more_so_far_away() -> None:
    near, far = (extrapolated(times_of((8, 16), n, 0, lambda n, _: n / 16), n, 0, n * BYTES).linear_s for n in (17, 80))
    assert 0 < width_frac(near) < width_frac(far)


@given(st.permutations(range(4)))
def test_the_order_of_times_does_not_matter(order: list[int]) -> None:
    times = times_of((8, 16), 30, 11, lambda n, n_gpu: n / 16 + n_gpu / 50, (1.0, 1.2, 0.9))
    assert len(times) == 4
    shuffled = [times[i] for i in order]
    assert extrapolated(shuffled, 30, 11, 30 * BYTES) == extrapolated(times, 30, 11, 30 * BYTES)


@given(more_s=st.floats(0, 1.0), n_layer=st.integers(17, 100))
def test_a_slower_deep_one_is_a_slower_whole(more_s: float, n_layer: int) -> None:
    before, after = (
        extrapolated([plain(8, [1.0] * 6), plain(16, [deep] * 6)], n_layer, 0, n_layer * BYTES)
        for deep in (2.0, 2.0 + more_s)
    )
    for way in ("linear_s", "scaled_s"):
        slower, faster = getattr(after, way), getattr(before, way)
        assert (slower.p50, slower.high) >= (faster.p50, faster.high)


@pytest.mark.parametrize("deep_s", [0.5, 1.0, 1.01])
def test_what_would_take_no_time_is_not_said(deep_s: float) -> None:
    found = extrapolated([plain(8, [1.0] * 6), plain(16, [deep_s] * 6)], 80, 0, 80 * BYTES)
    assert found.whole_s is None
    assert found.apart_frac > 0.15


def test_a_way_that_may_be_nothing_is_not_known_to_be_near() -> None:
    shallow, deep = (1.0, 3.0, 1.0, 1.0, 1.0, 1.0), (2.0,) * 6
    found = extrapolated([plain(8, shallow), plain(16, deep)], 80, 0, 80 * BYTES)
    assert found.linear_s.p50 == pytest.approx(found.scaled_s.p50)
    assert found.linear_s.low < 0
    assert (found.whole_s, found.apart_frac) == (None, math.inf)


# --- nonsense ------------------------------------------------------------------------------------------------------

TWO = (plain(8, [1.0, 1.0]), plain(16, [2.0, 2.0]))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((), "as many rounds"),
        (TWO[:1], "two depths are needed, not of 1"),
        ((*TWO, plain(24, [3.0, 3.0])), "two depths are needed, not of 3"),
        ((TWO[0], plain(16, [2.0])), "as many rounds"),
        ((plain(8, []), plain(16, [])), "as many rounds, and one at least"),
        ((TWO[0], plain(16, [2.0, 0.0])), "positive and finite"),
        ((TWO[0], plain(16, [2.0, math.nan])), "positive and finite"),
        ((TWO[0], plain(16, [2.0, 2.0], n_gpu_layers=3)), "16 layers have to read alike with"),
        ((*TWO, TWO[1]), "have to read alike"),
        ((TWO[0], plain(16, [2.0, 2.0], n_bytes=BYTES)), "do not rise"),
        ((TWO[0], plain(16, [2.0, 2.0], n_bytes=33 * BYTES)), "do not rise"),
        ((plain(8, [1.0, 1.0], n_bytes=0), TWO[1]), "do not rise"),
        ((TWO[0], plain(40, [2.0, 2.0])), "40 of 32 layers"),
    ],
)
def test_nonsense_is_refused(times: Sequence[DepthTimes], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        extrapolated(times, 32, 0, 32 * BYTES)


def test_stand_ins_that_read_unlike_for_the_same_layers_are_refused() -> None:
    times = times_of((8, 16), 30, 11, lambda n, _: float(n))
    times[1] = DepthTimes(n_layer=8, n_gpu_layers=times[1].n_gpu_layers, n_bytes=1, seconds=times[1].seconds)
    with pytest.raises(ValueError, match="have to read alike"):
        extrapolated(times, 30, 11, 30 * BYTES)


@pytest.mark.parametrize("share", [(0, 32, 5), (-1, 32, 5), (33, 32, 5), (8, 32, -1)])
def test_layers_that_are_none_are_refused(share: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="make no stand-in"):
        device_layers_around(*share)

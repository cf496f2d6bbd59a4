"""Splits worth trying over several devices: all fit, none places as another does, and the best by the law is there."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import CUDA0, MACHINE, header
from synthetic import MIB, made_up_facts, made_up_space

from offloadtune.footprint import CUDA, GENERIC, Backend, Grid, Room, fits, margin_of, reckon
from offloadtune.footprint.weights import slices_of
from offloadtune.pipeline.spaces import space_of
from offloadtune.records import Goal, Settings
from offloadtune.search import Space, expected
from offloadtune.search.splits import N_SPLITS_MOST, split_candidates
from offloadtune.speed import laws_of
from offloadtune.speeds import DeviceRates, HostRates, Rig

SETTINGS = Settings(n_gpu_layers=-1, n_ctx=1024, flash_attn_type="enabled", n_outputs_max=1)
FACTS = made_up_facts((10 * MIB,) * 12)
PLENTY = 4 << 30


def space_on(*free_bytes: int, n_layer: int = 12, **changes: object) -> Space:
    facts = made_up_facts((10 * MIB,) * n_layer)
    space = made_up_space(facts, device_bytes=sum(free_bytes))
    return dataclasses.replace(
        space,
        n_devices=len(free_bytes),
        device_free_bytes=free_bytes,
        **changes,  # type: ignore[arg-type]
    )


def with_laws(space: Space, *bytes_per_s: float) -> Space:
    devices = tuple(
        DeviceRates(name=f"CUDA{i}", read_bytes_per_s=rate, flop_per_s=rate * 100) for i, rate in enumerate(bytes_per_s)
    )
    rig = Rig(devices=devices, host=HostRates(peak_bytes_per_s=50e9), shares=tuple(map(float, space.device_free_bytes)))
    laws = laws_of(rig, space.facts)
    return dataclasses.replace(space, laws=lambda _settings: laws)


def do_fit(space: Space, settings: Settings, backend: Backend = GENERIC) -> bool:
    """Whether every device holds its part, by default on cards of which only the size is known."""
    free = space.device_free_bytes
    room = Room(
        names=("",) * len(free),
        backends=(backend,) * len(free),
        free_bytes=free,
        runtime_bytes=(0,) * len(free),
        margin_bytes=tuple(map(margin_of, free)),
        shares=tuple(map(float, free)),
    )
    found = reckon(space.facts, Grid.of((settings,), space.facts.n_layer), room.backends, room.shares)
    return bool(fits(found, room, is_mapped=True)[0])


def test_few_layers_have_every_division() -> None:
    found = split_candidates(space_on(PLENTY, PLENTY), SETTINGS)
    assert found == tuple((float(a), float(13 - a)) for a in range(13, -1, -1))
    three = split_candidates(space_on(PLENTY, PLENTY, PLENTY), SETTINGS.replace(n_gpu_layers=3))
    assert len(three) == len(set(three)) == 10
    assert {sum(one) for one in three} == {3.0}


@given(
    free_mib=st.lists(st.integers(1, 400), min_size=2, max_size=4),
    n_layer=st.integers(1, 60),
    k=st.integers(-1, 61),
    flash=st.sampled_from(["enabled", "disabled"]),
    foretells=st.booleans(),
)
def test_they_fit_and_are_placements_of_their_own(
    free_mib: list[int], n_layer: int, k: int, flash: str, *, foretells: bool
) -> None:
    space = space_on(*(mib * MIB for mib in free_mib), n_layer=n_layer)
    settings = SETTINGS.replace(n_gpu_layers=k, flash_attn_type=flash)
    n_offloaded = n_layer + 1 if k < 0 else min(k, n_layer + 1)
    found = split_candidates(with_laws(space, *(1e12 for _ in free_mib)) if foretells else space, settings)
    assert len(found) <= N_SPLITS_MOST
    assert list(found) == sorted(set(found), reverse=True)
    assert all(sum(one) == n_offloaded > 0 for one in found)
    assert all(one == tuple(map(float, map(int, one))) for one in found)
    if not foretells:  # with laws the backend is known, which stores less
        assert all(do_fit(space, settings.replace(tensor_split=one)) for one in found)


def test_one_device_or_nothing_to_divide_has_none() -> None:
    two = space_on(PLENTY, PLENTY)
    assert split_candidates(two, SETTINGS)
    assert split_candidates(two, SETTINGS.replace(n_gpu_layers=0)) == ()
    assert split_candidates(two, SETTINGS.replace(devices=())) == ()
    assert split_candidates(space_on(PLENTY), SETTINGS) == ()
    assert split_candidates(space_on(*(PLENTY,) * 5), SETTINGS) == ()
    assert split_candidates(made_up_space(FACTS, device_bytes=PLENTY), SETTINGS) == ()
    assert split_candidates(space_on(MIB, MIB), SETTINGS) == ()


def test_a_small_device_gets_no_more_than_it_holds() -> None:
    found = split_candidates(space_on(PLENTY, 48 * MIB), SETTINGS)
    assert found[0] == (13.0, 0.0)
    assert 0 < max(second for _, second in found) < 5
    assert split_candidates(space_on(48 * MIB, PLENTY), SETTINGS)[-1] == (0.0, 13.0)


def test_what_drivers_take_leaves_less_for_layers() -> None:
    free, taken = space_on(160 * MIB, 160 * MIB), space_on(160 * MIB, 160 * MIB, runtime_bytes=80 * MIB)
    most = [max(first for first, _ in split_candidates(space, SETTINGS)) for space in (free, taken)]
    assert most[0] > most[1]


@pytest.mark.parametrize("free_mib", [(3000, 1000), (1000, 1300, 700), (500, 700, 900, 1100)])
@pytest.mark.parametrize("n_layer", [12, 80])
def test_the_engines_own_division_is_among_them(free_mib: tuple[int, ...], n_layer: int) -> None:
    space = space_on(*(mib * MIB for mib in free_mib), n_layer=n_layer)
    slices = slices_of(Grid.over(n_layer, n_gpu_layers=-1), n_layer, space.device_free_bytes)
    by_engine = tuple(map(float, (slices.end - slices.begin)[:, 0]))
    found = split_candidates(space, SETTINGS)
    assert by_engine in found


@pytest.mark.parametrize("n_devices", [2, 3, 4])
def test_of_many_those_are_taken_that_lie_far_apart(n_devices: int) -> None:
    """From all on the first to all on the last, and no two of them neighbours."""
    found = split_candidates(space_on(*(PLENTY,) * n_devices, n_layer=80), SETTINGS)
    assert len(found) == N_SPLITS_MOST
    assert (found[0][0], found[-1][-1]) == (81.0, 81.0)
    apart = min(sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in itertools.combinations(found, 2))
    assert apart >= (4 if n_devices == 2 else 20)


@pytest.mark.parametrize("rates", [(4e11, 1e12, 6e11), (9e11, 1e11, 3e11), (1e11, 1e11, 2e12)])
@pytest.mark.parametrize("goal", [Goal.TURN, Goal.DECODE, Goal.TTFT])
def test_the_fastest_by_the_law_is_among_them(rates: tuple[float, ...], goal: Goal) -> None:
    """From the best of them no layer moved to another device makes one that fits and is faster."""
    space = dataclasses.replace(space_on(310 * MIB, 420 * MIB, 530 * MIB, n_layer=80), goal=goal)
    space, settings = with_laws(space, *rates), SETTINGS.replace(n_gpu_layers=60)

    def cost(split: tuple[float, ...]) -> float:
        one = expected(space, settings.replace(tensor_split=split))
        assert one is not None
        token_s, ttft_s = 1 / one.decode_tok_per_s.p50, one.ttft_s.p50
        return {Goal.DECODE: token_s, Goal.TTFT: ttft_s}.get(goal, ttft_s + (space.workload.n_gen - 1) * token_s)

    best = min(split_candidates(space, settings), key=cost)
    for i, j in itertools.permutations(range(3), 2):
        moved = tuple(n + (at == j) - (at == i) for at, n in enumerate(best))
        if min(moved) >= 0 and do_fit(space, settings.replace(tensor_split=moved), CUDA):
            assert cost(moved) >= cost(best) * (1 - 1e-9)


def test_laws_of_other_devices_say_nothing() -> None:
    space = space_on(PLENTY, PLENTY)
    assert split_candidates(with_laws(space, 1e12), SETTINGS) == split_candidates(space, SETTINGS)


def test_a_space_tells_what_each_device_has_to_give() -> None:
    second = dataclasses.replace(CUDA0, name="CUDA1", device_id="0000:02:00.0", free_bytes=1 << 30)
    asked = dataclasses.replace(header(), machine=dataclasses.replace(MACHINE, devices=(CUDA0, second)))
    space = space_of(FACTS, asked, {})
    assert (space.n_devices, space.device_free_bytes) == (2, (CUDA0.free_bytes, 1 << 30))
    limited = space_of(FACTS, dataclasses.replace(asked, limit_bytes=5 << 30), {})
    assert limited.device_free_bytes == (5 << 30, 1 << 30)
    bare = dataclasses.replace(asked, machine=dataclasses.replace(MACHINE, devices=None))
    assert (space_of(FACTS, bare, {}).n_devices, space_of(FACTS, bare, {}).device_free_bytes) == (0, ())

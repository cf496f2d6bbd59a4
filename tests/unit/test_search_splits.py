"""Divisions of layers over several devices: all have room, none places as another does, the best are among them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lawful import with_experts
from sample_records import CUDA0, MACHINE, header
from synthetic import MIB, made_up_facts, made_up_space

from offloadtune.footprint import GENERIC, Grid, reckon
from offloadtune.footprint.weights import slices_of
from offloadtune.pipeline.spaces import space_of
from offloadtune.records import GgufFacts, Settings, Target
from offloadtune.search import Space, skipped
from offloadtune.search.columns import cards_of
from offloadtune.search.grid import choices_of
from offloadtune.search.splits import N_SPLITS_MOST, split_candidates, split_placements, why_no_splits

SETTINGS = Settings(n_gpu_layers=-1, n_ctx=1024, flash_attn_type="enabled", n_outputs_max=1)
FACTS = made_up_facts((10 * MIB,) * 12)
PLENTY = 4 << 30


def space_on(*free_bytes: int, n_layer: int = 12, facts: GgufFacts | None = None, **changes: Any) -> Space:
    facts = facts or made_up_facts((10 * MIB,) * n_layer)
    space = made_up_space(facts, device_bytes=sum(free_bytes), target=Target.LLAMA_SERVER)
    changes = {"n_devices": len(free_bytes), "device_free_bytes": free_bytes, "lists_devices": True, **changes}
    return dataclasses.replace(space, **changes)


def found_of(space: Space, settings: Settings = SETTINGS, n_most: int = N_SPLITS_MOST) -> list[tuple[int, ...]]:
    return [tuple(row) for row in split_candidates(space, settings, n_most).tolist()]


def least_of_each(space: Space, settings: Settings) -> list[int]:
    """Weights and cache of each device."""
    free = space.device_free_bytes
    grid = Grid.of((settings,), space.facts.n_layer)
    found = reckon(space.facts, grid, (GENERIC,) * len(free), tuple(map(float, free)))
    least: list[int] = (found.weights_bytes + found.kv_cache_bytes)[:, 0].tolist()
    return least


def by_engine(space: Space, k: int) -> tuple[int, ...]:
    n_layer = space.facts.n_layer
    slices = slices_of(Grid.over(n_layer, n_gpu_layers=k), n_layer, space.device_free_bytes)
    return tuple((slices.end - slices.begin)[:, 0].tolist())


def test_few_layers_have_every_division_but_the_engines_own() -> None:
    found = found_of(space_on(PLENTY, PLENTY))
    assert found == [(a, 13 - a) for a in range(13, -1, -1) if a != 7]
    three = found_of(space_on(PLENTY, PLENTY, PLENTY), SETTINGS.replace(n_gpu_layers=3))
    assert len(three) == len(set(three)) == 9
    assert (1, 1, 1) not in three
    assert {sum(one) for one in three} == {3}


@given(
    free_mib=st.lists(st.integers(1, 400), min_size=2, max_size=4),
    n_layer=st.integers(1, 60),
    k=st.integers(-1, 61),
    flash=st.sampled_from(["enabled", "disabled"]),
    limit_frac=st.sampled_from([1.0, 0.6]),
)
def test_they_have_room_and_are_placements_of_their_own(
    free_mib: list[int], n_layer: int, k: int, flash: str, limit_frac: float
) -> None:
    space = space_on(*(mib * MIB for mib in free_mib), n_layer=n_layer)
    space = dataclasses.replace(space, device_bytes=int(space.device_bytes * limit_frac))
    settings = SETTINGS.replace(n_gpu_layers=k, flash_attn_type=flash)
    n_offloaded = n_layer + 1 if k < 0 else min(k, n_layer + 1)
    found = found_of(space, settings)
    assert len(found) <= max(N_SPLITS_MOST, 24)
    assert found == sorted(set(found), reverse=True)
    assert all(sum(one) == n_offloaded > 0 for one in found)
    assert by_engine(space, n_offloaded) not in found
    for one in found:
        least = least_of_each(space, settings.replace(tensor_split=tuple(map(float, one))))
        assert sum(least) <= space.device_bytes
        assert all(n <= free for n, free in zip(least, space.device_free_bytes, strict=True))


def test_one_device_or_nothing_to_divide_has_none() -> None:
    two = space_on(PLENTY, PLENTY)
    assert found_of(two)
    assert not found_of(two, SETTINGS.replace(n_gpu_layers=0))
    assert not found_of(space_on(PLENTY))
    assert not found_of(space_on(*(PLENTY,) * 5))
    assert not found_of(made_up_space(FACTS, device_bytes=PLENTY))
    assert not found_of(space_on(MIB, MIB))


def test_a_small_device_gets_no_more_than_it_holds() -> None:
    found = found_of(space_on(PLENTY, 48 * MIB))
    assert found[0] == (12, 1)  # all on the first is the engine's own
    assert 1 < max(second for _, second in found) < 5
    assert found_of(space_on(48 * MIB, PLENTY))[-1] == (0, 13)


@pytest.mark.parametrize("n_devices", [2, 3, 4])
def test_of_many_those_are_taken_that_lie_far_apart(n_devices: int) -> None:
    """All on one device, whichever it is, and no two of the others neighbours."""
    found = found_of(space_on(*(PLENTY,) * n_devices, n_layer=80))
    assert len(found) == max(N_SPLITS_MOST, 1)
    assert {tuple(81 * (i == j) for j in range(n_devices)) for i in range(n_devices)} <= set(found)
    apart = min(sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in itertools.combinations(found, 2))
    assert apart >= (4 if n_devices == 2 else 16)


def test_devices_filled_one_after_the_other_are_among_them() -> None:
    """Three cards, each too small for half of the layers: whichever is the fastest can be filled first."""
    space = space_on(310 * MIB, 420 * MIB, 530 * MIB, n_layer=80)
    found = found_of(space)
    for i in range(3):
        most = max(one[i] for one in found)
        more = SETTINGS.replace(tensor_split=tuple(float(most + 2 if j == i else (79 - most) / 2) for j in range(3)))
        assert least_of_each(space, more)[i] > space.device_free_bytes[i]


# --- as candidates -------------------------------------------------------------------------------------------------


def layers_and_splits(space: Space) -> set[tuple[int, tuple[float, ...] | None]]:
    choices = choices_of(space)
    found = (choices.settings(i) for i in range(len(choices)))
    return {(one.n_gpu_layers, one.tensor_split) for one in found if one.offload_kqv and not one.n_cpu_ffn}


def test_where_everything_has_room_all_layers_are_divided_in_every_way() -> None:
    space = space_on(PLENTY, PLENTY)
    found = layers_and_splits(space)
    assert {split for k, split in found if k == 13} == {None, *((float(a), 13.0 - a) for a in range(14) if a != 7)}
    assert {split for k, split in found if k < 13} == {None}
    assert not any("tensor_split" in one for one in skipped(space))


def test_where_not_everything_has_room_the_largest_counts_are_divided() -> None:
    found = layers_and_splits(space_on(70 * MIB, 40 * MIB))
    counts = sorted({k for k, split in found if split})
    assert counts == list(range(counts[0], counts[-1] + 1))
    assert 1 < len(counts) < 5
    assert counts[-1] >= max(k for k, _ in found)


def test_a_candidate_is_found_again_whatever_its_split() -> None:
    choices = choices_of(space_on(PLENTY, PLENTY))
    for i in range(0, len(choices), 5):
        assert choices.index_of(choices.settings(i)) == i
        assert choices.placements[i] == choices.placement_number(choices.settings(i).placement)
    split = choices.settings(len(choices) - 1)
    assert choices.index_of(split.replace(tensor_split=(5.5, 7.5))) is None


def test_bytes_are_those_of_each_device() -> None:
    space = space_on(PLENTY, PLENTY)
    columns, choices = choices_of(space).columns, choices_of(space)
    for i in range(0, len(columns), 11):
        settings = choices.settings(i)
        found = reckon(FACTS, Grid.of((settings,), 12), cards_of(space).backends, (1.0, 1.0))
        assert columns.bytes_of_each[:, i].tolist() == found.device_bytes[:, 0].tolist()


def test_no_candidate_needs_more_of_a_device_than_it_has() -> None:
    """Together the devices have room for everything, but the engine's halves would not fit on the smaller of them."""
    space = space_on(120 * MIB, 60 * MIB)
    assert (13, None) in layers_and_splits(space)  # by free memory: two thirds and a third
    forced = dataclasses.replace(space, fixed={"tensor_split": (1.0, 1.0)})
    assert max(k for k, _ in layers_and_splits(forced)) < 13


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"device_free_bytes": ()}, "what each device has to give is not known"),
        ({"n_devices": 5, "device_free_bytes": (PLENTY,) * 5}, "are tried over 4 devices at most"),
        ({"device_free_bytes": (MIB, MIB), "device_bytes": 2 * MIB}, "the devices have room for no other division"),
        ({"device_names": ("A", "B"), "fixed": {"devices": ("A", "C")}}, "what each device has to give is not known"),
    ],
    ids=str,
)
def test_why_none_is_tried_is_told(changes: dict[str, Any], why: str) -> None:
    space = space_on(PLENTY, PLENTY, **changes)
    assert why in why_no_splits(space)
    assert bool(why) == any(one.startswith("tensor_split: ") for one in skipped(space))


@pytest.mark.parametrize(
    "fixed", [{"tensor_split": (3.0, 1.0)}, {"devices": ()}, {"tensor_split": (3.0,), "n_gpu_layers": 13}], ids=str
)
def test_what_the_user_holds_is_not_varied(fixed: dict[str, object]) -> None:
    space = space_on(PLENTY, PLENTY, fixed=fixed)
    assert not len(split_placements(space)[0])
    assert {split for _, split in layers_and_splits(space)} == {fixed.get("tensor_split")}
    assert not any(one.startswith("tensor_split: ") for one in skipped(space))


def test_named_devices_are_divided_over_by_what_they_have() -> None:
    names: dict[str, Any] = {"device_names": ("A", "B", "C"), "fixed": {"devices": ("C", "A")}}
    space = space_on(PLENTY, 2 * PLENTY, 3 * PLENTY, **names)
    assert cards_of(space).free_bytes == (3 * PLENTY, PLENTY)
    assert {len(split) for _, split in layers_and_splits(space) if split} == {2}


def test_experts_in_main_memory_are_made_up_for_on_the_devices() -> None:
    """The engine counts layers, however little is left of those whose experts are away."""
    space = space_on(150 * MIB, 150 * MIB, facts=with_experts((20 * MIB,) * 20))
    placed, splits = split_placements(space)
    away = {int(m): tuple(split) for (k, m, _), split in zip(placed.tolist(), splits.tolist(), strict=True) if m}
    first, second = away[10]
    assert first > second + 5
    evened, own = (
        max(least_of_each(space, SETTINGS.replace(n_cpu_moe=10, tensor_split=split)))
        for split in ((float(first), float(second)), None)
    )
    assert evened < 0.8 * own


def test_a_space_tells_what_each_device_has_to_give() -> None:
    second = dataclasses.replace(CUDA0, name="CUDA1", device_id="0000:02:00.0", free_bytes=1 << 30)
    asked = dataclasses.replace(header(), machine=dataclasses.replace(MACHINE, devices=(CUDA0, second)))
    space = space_of(FACTS, asked, {})
    assert (space.n_devices, space.device_free_bytes) == (2, (CUDA0.free_bytes, 1 << 30))
    assert space.device_names == ("CUDA0", "CUDA1")
    limited = space_of(FACTS, dataclasses.replace(asked, limit_bytes=5 << 30), {})
    assert limited.device_free_bytes == space.device_free_bytes  # by which the engine divides
    assert limited.device_bytes == 5 << 30
    bare = dataclasses.replace(asked, machine=dataclasses.replace(MACHINE, devices=None))
    assert (space_of(FACTS, bare, {}).n_devices, space_of(FACTS, bare, {}).device_free_bytes) == (0, ())

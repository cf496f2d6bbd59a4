"""The joint candidates: every combination that may be tried, and none other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from lawful import FACTS, lawful_space, with_experts, with_ffn
from synthetic import MIB, made_up_facts, made_up_space

from offloadtune.footprint import estimate_footprint, has_dense_ffn
from offloadtune.records import GgufFacts, Goal, Settings, Target
from offloadtune.search import skipped
from offloadtune.search.axes import AXES, IDLE, THREADS
from offloadtune.search.grid import N_CHOICES_MOST, choices_of
from offloadtune.search.mesh import ruled_out
from offloadtune.search.space import Space, start_settings

GIB = 1 << 30


def all_of(space: Space) -> list[Settings]:
    choices = choices_of(space)
    return [choices.settings(i) for i in range(len(choices))]


SPACES = st.builds(
    lambda n_layer, device_mib, target, n_prompt_new, fixed, make_facts: made_up_space(
        make_facts((10 * MIB,) * n_layer),
        device_bytes=device_mib * MIB,
        target=target,
        n_ctx=2048,
        n_prompt_new=n_prompt_new,
        fixed=fixed,
    ),
    st.integers(1, 8),
    st.sampled_from([0, 60, 100, 4000]),
    st.sampled_from(list(Target)),
    st.sampled_from([20, 300, 1500]),
    st.fixed_dictionaries(
        {},
        optional={
            "n_ubatch": st.sampled_from([1, 64]),
            "n_gpu_layers": st.sampled_from([0, 1, 64]),
            "n_threads": st.just(3),
            "n_cpu_moe": st.just(1),
            "n_cpu_ffn": st.just(1),
            "op_offload": st.booleans(),
        },
    ),
    st.sampled_from([with_experts, with_ffn, made_up_facts]),
)


@how(max_examples=40, deadline=None)
@given(SPACES)
def test_every_candidate_may_be_tried(space: Space) -> None:
    base, held = start_settings(space), {**space.kept, **space.fixed}
    found = all_of(space)
    assert len(found) == len(set(found))
    for settings in found:
        assert {name: getattr(settings, name) for name in held} == held
        assert settings.n_ubatch <= settings.n_batch <= settings.n_ctx == space.n_ctx
        assert (settings.type_k, settings.type_v, settings.n_seq_max) == (base.type_k, base.type_v, base.n_seq_max)
        assert settings.swa_full == base.swa_full
        if settings.offload_kqv != base.offload_kqv:  # tried only where it makes room that is needed
            there = settings.replace(offload_kqv=base.offload_kqv)
            assert settings.flash_attn_type != "disabled"
            assert estimate_footprint(space.facts, there).bytes > space.device_bytes
        if space.has_devices:
            assert estimate_footprint(space.facts, settings).least_bytes <= space.device_bytes
        else:
            assert settings.placement == base.placement
        away = settings.n_cpu_moe * (space.facts.n_expert > 0) + settings.n_cpu_ffn * has_dense_ffn(space.facts)
        is_all_there = settings.n_gpu_layers == space.everything and not away and settings.devices is None
        if is_all_there:
            assert (settings.n_threads, settings.n_threads_batch) == (base.n_threads, base.n_threads_batch)
            assert settings.op_offload == base.op_offload or settings.n_cpu_moe + settings.n_cpu_ffn > 0
        assert settings.devices is None or settings.op_offload == base.op_offload
        assert space.facts.n_expert or settings.n_cpu_moe == base.n_cpu_moe
        assert not space.facts.n_expert or settings.n_cpu_ffn == base.n_cpu_ffn


@how(max_examples=40, deadline=None)
@given(SPACES)
def test_columns_say_what_the_settings_are(space: Space) -> None:
    choices = choices_of(space)
    sizes = choices.columns.device_bytes
    for i in range(0, len(choices), 7):
        settings = choices.settings(i)
        assert choices.index_of(settings) == i
        assert sizes[i] == estimate_footprint(space.facts, settings).bytes
        alike = choices.placements == choices.placement_number(settings.placement)
        assert alike[i]
        others = {choices.settings(int(j)).placement for j in np.flatnonzero(alike)[:9]}
        assert others == {settings.placement}
        for name, column in choices.axes.items():
            assert column[i] == getattr(settings, name)


def test_what_is_no_candidate_has_no_place() -> None:
    choices = choices_of(lawful_space())
    settings = choices.settings(0)
    assert choices.index_of(settings.replace(type_k="q8_0")) is None
    assert choices.index_of(settings.replace(n_ubatch=100)) is None
    assert choices.placement_number(settings.replace(n_gpu_layers=77).placement) == -1


def test_all_axes_are_combined() -> None:
    """Of half the layers on the device each setting is tried with each other."""
    space = lawful_space(n_prompt_new=1500, n_ctx=4096)
    half = [one for one in all_of(space) if one.n_gpu_layers == 8]
    n_ubatches, n_threads = len({one.n_ubatch for one in half}), 3
    assert {one.n_ubatch for one in half} == {64, 128, 256, 512, 1024, 2048}
    assert {one.n_threads for one in half} == {2, 4, 8}
    assert len(half) == n_ubatches * 2 * 2 * n_threads**2


@pytest.mark.parametrize("goal", [Goal.TTFT, Goal.DECODE])
def test_what_changes_nothing_that_the_goal_counts_stays(goal: Goal) -> None:
    space = lawful_space(goal=goal, n_prompt_new=1500, n_ctx=4096)
    found, base = all_of(space), start_settings(space)
    for name in IDLE[goal]:
        assert {getattr(one, name) for one in found} == {getattr(base, name)}
    assert max(one.n_ubatch for one in found) == (base.n_ubatch if goal is Goal.DECODE else 2048)
    assert min(one.n_ubatch for one in found) == 64  # it makes room


@pytest.mark.parametrize(("n_prompt_new", "largest"), [(20, 512), (513, 1024), (600, 1024), (3000, 4096)])
def test_no_ubatch_is_larger_than_the_prompt_can_use(n_prompt_new: int, largest: int) -> None:
    space = lawful_space(n_prompt_new=n_prompt_new, n_ctx=4096)
    found = {one.n_ubatch for one in all_of(space)}
    assert max(found) == largest
    assert 512 in found  # the target's own


def test_experts_are_parted_from_their_blocks_only_where_these_are_on_the_device() -> None:
    space = made_up_space(with_experts((10 * MIB,) * 8), device_bytes=GIB, target=Target.LLAMA_SERVER)
    found = {(one.n_gpu_layers, one.n_cpu_moe) for one in all_of(space) if one.devices is None}
    assert {(9, n) for n in range(9)} <= found  # all layers, the experts of any number of blocks away
    assert {(k, 0) for k in range(10)} <= found
    assert {(k, 8) for k in range(2, 10)} <= found  # some layers, all experts away
    assert (1, 8) not in found  # the output alone has none
    assert (5, 3) not in found


def test_feed_forward_weights_are_parted_from_attention_where_all_the_rest_is_on_the_device() -> None:
    space = made_up_space(with_ffn((10 * MIB,) * 8), device_bytes=GIB, target=Target.LLAMA_SERVER)
    found = {(one.n_gpu_layers, one.n_cpu_ffn) for one in all_of(space) if one.devices is None}
    assert found == {(9, n) for n in range(1, 9)} | {(k, 0) for k in range(10)}
    assert {one.n_cpu_moe for one in all_of(space)} == {0}
    held = dataclasses.replace(space, fixed={"n_cpu_ffn": 3})
    assert {(one.n_gpu_layers, one.n_cpu_ffn) for one in all_of(held)} == {(k, 3) for k in range(10)}


def test_threads_and_lending_are_tried_where_feed_forward_weights_are_away() -> None:
    space = made_up_space(with_ffn((10 * MIB,) * 8), device_bytes=GIB, target=Target.LLAMA_SERVER)
    away = [one for one in all_of(space) if one.n_cpu_ffn == 3]
    assert {one.op_offload for one in away} == {True, False}
    assert len({(one.n_threads, one.n_threads_batch) for one in away}) == 9


def test_feed_forward_weights_of_blocks_that_are_not_on_the_device_are_told() -> None:
    space = lawful_space(with_ffn((10 * MIB,) * 8), fixed={"n_gpu_layers": 6})
    why = "feed-forward weights of blocks that are not on the device are in main memory already"
    assert f"n_cpu_ffn 1 to 3: {why}" in ruled_out(space)


def test_where_there_are_too_many_placements_are_thinned_out_but_not_at_the_wall() -> None:
    facts = with_experts((10 * MIB,) * 120)
    space = made_up_space(facts, device_bytes=700 * MIB, target=Target.LLAMA_SERVER, n_prompt_new=4000, n_ctx=8192)
    choices = choices_of(space)
    assert len(choices) < 1.3 * N_CHOICES_MOST
    whole = dataclasses.replace(space, facts=with_experts((10 * MIB,) * 120), fixed={"n_ubatch": 512})
    most = max(one.n_gpu_layers for one in all_of(whole) if not one.n_cpu_moe)
    fewest = min(one.n_cpu_moe for one in all_of(whole) if one.n_gpu_layers == space.everything)
    with_512 = [one for one in all_of(space) if one.n_ubatch == 512]
    assert most == max(one.n_gpu_layers for one in with_512 if not one.n_cpu_moe)
    assert fewest == min(one.n_cpu_moe for one in with_512 if one.n_gpu_layers == space.everything)


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({}, []),
        ({"n_batch": 300}, ["n_ubatch 512, 1024, 2048, 4096: no ubatch is larger than its batch"]),
        (
            {"n_gpu_layers": 25},
            ["op offload off: nothing is lent to a device where nothing, or everything, lies on it"],
        ),
        ({"n_gpu_layers": 3, "n_batch": 2048}, ["n_ubatch 4096: no ubatch is larger than its batch"]),
    ],
    ids=str,
)
def test_values_that_a_rule_leaves_no_use_for_are_told_with_its_reason(
    fixed: dict[str, object], said: list[str]
) -> None:
    assert ruled_out(lawful_space(n_prompt_new=3000, n_ctx=4096, fixed=fixed)) == said


def test_experts_that_no_layers_on_the_device_could_be_parted_from_are_told() -> None:
    space = lawful_space(with_experts((10 * MIB,) * 8), fixed={"n_gpu_layers": 1})
    assert "n_cpu_moe 1 to 8: experts of blocks that are not on the device are in main memory already" in ruled_out(
        space
    )


def test_the_same_space_is_built_once_whatever_its_laws() -> None:
    space = lawful_space()
    assert choices_of(space) is choices_of(dataclasses.replace(space, laws=None))
    assert choices_of(space) is not choices_of(dataclasses.replace(space, fixed={"n_ubatch": 64}))
    assert choices_of(space) is not choices_of(dataclasses.replace(space, facts=dataclasses.replace(FACTS)))


def test_axes_are_settings() -> None:
    names = {axis.name for axis in (*AXES, *THREADS)}
    assert names <= {field.name for field in dataclasses.fields(Settings)}


# --- the cache -----------------------------------------------------------------------------------------------------


def with_heads(n_values: int, *, n_swa: int = 0) -> GgufFacts:
    """A model whose heads have so many values; every other block slides where there is a window."""
    facts = with_ffn((10 * MIB,) * 8)
    is_swa = tuple(bool(n_swa) and i % 2 == 0 for i in range(8))
    return dataclasses.replace(facts, n_embd_head_k=n_values, n_embd_head_v=n_values, n_swa=n_swa, is_swa=is_swa)


@pytest.mark.parametrize(
    ("n_values", "is_allowed", "types"),
    [
        (64, False, {"f16"}),
        (64, True, {"f16", "q8_0", "q4_0"}),
        (96, True, {"f16", "q8_0"}),  # few backends have kernels of q4_0 for them
        (40, True, {"f16"}),  # not in blocks of 32
    ],
)
def test_a_cache_of_fewer_bits_is_tried_only_where_it_is_allowed_and_can_be(
    n_values: int, *, is_allowed: bool, types: set[str]
) -> None:
    space = dataclasses.replace(lawful_space(with_heads(n_values)), allow_kv_quant=is_allowed)
    found = all_of(space)
    assert {one.type_v for one in found} == types
    assert all(one.type_k == one.type_v for one in found)
    assert all(one.type_v == "f16" for one in found if one.flash_attn_type == "disabled")
    assert any("--allow-kv-quant tries it" in reason for reason in skipped(space)) != is_allowed


def served(space: Space) -> Space:
    return dataclasses.replace(space, target=Target.LLAMA_SERVER)


def test_windows_are_kept_whole_or_not_where_there_are_some() -> None:
    server = {n_swa: all_of(served(lawful_space(with_heads(64, n_swa=n_swa)))) for n_swa in (512, 0)}
    assert {one.swa_full for one in server[512]} == {True, False}
    assert {one.swa_full for one in server[0]} == {False}
    assert {one.swa_full for one in all_of(lawful_space(with_heads(64, n_swa=512)))} == {True}
    held = lawful_space(with_heads(64, n_swa=512), fixed={"swa_full": False})
    assert {one.swa_full for one in all_of(held)} == {False}


def test_the_cache_is_kept_in_main_memory_only_where_it_lacks_room_elsewhere() -> None:
    facts = dataclasses.replace(with_heads(64), n_head_kv=(8,) * 8)
    roomy, tight = (
        all_of(made_up_space(facts, device_bytes=n_mib * MIB, n_ctx=8192, target=Target.LLAMA_SERVER))
        for n_mib in (4000, 140)
    )
    assert {one.offload_kqv for one in roomy} == {True}
    away = [one for one in tight if not one.offload_kqv]
    assert max(one.n_gpu_layers for one in away) > max(one.n_gpu_layers for one in tight if one.offload_kqv)
    assert all(one.flash_attn_type != "disabled" and one.n_gpu_layers > 1 for one in away)

"""From how many tokens on work is lent: tried only where that parts a prompt's ubatches from its rest."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lawful import FACTS, lawful_space

from offloadtune.footprint import CUDA, Grid, reckon
from offloadtune.records import Goal, Settings
from offloadtune.search import Space, skipped
from offloadtune.search.grid import choices_of
from offloadtune.search.lending import MIN_BATCHES, parts_the_prompt
from offloadtune.search.space import start_settings
from offloadtune.speed import amounts_for, terms_of
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig


def space_of_prompt(n_prompt_new: int, device: str = "CUDA0", **given: Any) -> Space:
    space = lawful_space(n_prompt_new=n_prompt_new, n_ctx=4096, **given)
    return dataclasses.replace(space, device_names=(device,))


def tried(space: Space) -> set[tuple[int | None, int]]:
    """Thresholds other than the engine's own, each with the ubatch that it is tried with."""
    choices = choices_of(space)
    found = (choices.settings(i) for i in range(len(choices)))
    return {(one.op_offload_min_batch, one.n_ubatch) for one in found if one.op_offload_min_batch}


@pytest.mark.parametrize(
    ("n_prompt", "expected"),
    [
        (600, {(128, 128), (128, 256), (128, 512)}),  # a rest of 88 tokens
        (800, {(512, 512), (128, 256), (128, 128)}),  # 288 tokens, which 128 would lend too; of smaller ubatches 32
        (512, set()),
        (520, set()),  # a rest of 8 tokens stays on the host anyhow
        (100, set()),  # all of it is one ubatch: op offload says as much
    ],
)
def test_only_what_parts_ubatches_from_their_rest_is_tried(n_prompt: int, expected: set[tuple[int, int]]) -> None:
    found = tried(space_of_prompt(n_prompt))
    assert found == expected


@given(st.integers(1, 5000), st.sampled_from([64, 128, 256, 512, 1024, 2048]))
def test_a_threshold_that_is_tried_lends_something_else_than_any_other(n_prompt: int, n_ubatch: int) -> None:
    """Looked at token by token: what each threshold lends of the prompt."""
    space = space_of_prompt(n_prompt)
    pieces = [n_ubatch] * (n_prompt // n_ubatch) + [n_prompt % n_ubatch]

    def lent(threshold: float) -> int:
        return sum(n for n in pieces if n >= threshold)

    known = {lent(32), lent(float("inf"))}  # as unasked, and with op offload off
    for n in MIN_BATCHES:
        ours = parts_the_prompt(space, Settings(), np.array([n_ubatch]), np.array([n]))[0]
        assert ours == (lent(n) not in known)
        known.add(lent(n))


def test_it_is_tried_only_where_work_is_lent_at_all() -> None:
    choices = choices_of(space_of_prompt(600))
    found = [one for one in map(choices.settings, range(len(choices))) if one.op_offload_min_batch]
    assert found
    assert all(one.op_offload and one.devices is None and one.n_gpu_layers < FACTS.n_layer + 1 for one in found)
    i = choices.index_of(found[0])
    assert i is not None
    assert choices.placements[i] == choices.placement_number(found[0].placement)
    assert choices.placements[i] != choices.placement_number(found[0].replace(op_offload_min_batch=None).placement)


@pytest.mark.parametrize(
    ("space", "why"),
    [
        (space_of_prompt(600), ""),
        (space_of_prompt(600, "RPC0"), "no device works for matrices in main memory"),
        (space_of_prompt(512), "of a prompt of 512 tokens it lends all or nothing, as op_offload does"),
        (space_of_prompt(600, goal=Goal.DECODE), "it changes nothing that the goal decode counts"),
        (space_of_prompt(600, fixed={"op_offload": False}), "op offload is off"),
        (space_of_prompt(600, fixed={"op_offload_min_batch": 64}), ""),
    ],
    ids=str,
)
def test_why_it_is_not_tried_is_told(space: Space, why: str) -> None:
    said = [one.removeprefix("op_offload_min_batch: ") for one in skipped(space) if one.startswith("op_offload_min")]
    assert said == [why] * bool(why)
    assert bool(tried(space)) == (not why)
    if space.fixed.get("op_offload_min_batch"):
        assert {n for n, _ in tried(space)} == {64}


@pytest.mark.parametrize(("threshold", "n_lent"), [(None, 2), (64, 2), (128, 1), (513, 0)])
def test_law_and_footprint_heed_it(threshold: int | None, n_lent: int) -> None:
    """A prompt of 600 tokens is a ubatch of 512 and one of 88."""
    settings = start_settings(space_of_prompt(600)).replace(n_gpu_layers=0, op_offload_min_batch=threshold)
    rig = Rig(devices=(DeviceRates(name="CUDA0", link_bytes_per_s=12e9),), host=HostRates(n_cores=4))
    amounts = amounts_for(Phase.PREFILL, FACTS, [settings], rig, n_prompt=600, depth=0)[:, 0]
    found = {term.name: n for term, n in zip(terms_of(Phase.PREFILL, 1), amounts, strict=True)}
    assert found["streamed_blocks"] == FACTS.n_layer * n_lent
    assert found["host.blocks"] == FACTS.n_layer * (2 - n_lent)
    grid = Grid.of((settings,), FACTS.n_layer)
    assert (reckon(FACTS, grid, (CUDA,)).compute_bytes[0, 0] > 0) == (n_lent > 0)

"""Pinned main memory or the CPU's own layout of it: tried only where a device offers one and the CPU has the other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from lawful import FACTS, LawfulEngine, lawful_space
from sample_records import CUDA0, ENGINE, MACHINE, header

from offloadtune.pipeline.spaces import space_of
from offloadtune.records import Goal, Settings
from offloadtune.search import Space, skipped
from offloadtune.search.grid import choices_of
from offloadtune.search.space import start_settings

QUANTISED = dataclasses.replace(FACTS, type_bytes=(("Q4_K", 1000), ("F32", 10)))


def space_that(**changes: Any) -> Space:
    """Half of the layers have room."""
    facts = changes.pop("facts", QUANTISED)
    given = {"pins_host": True, "repacks": True, **changes}
    names = {field.name for field in dataclasses.fields(Space)} - {"fixed", "goal"}
    made = lawful_space(facts, **{name: value for name, value in given.items() if name not in names})
    return dataclasses.replace(made, **{name: value for name, value in given.items() if name in names})


def with_no_host(space: Space) -> list[Settings]:
    choices = choices_of(space)
    return [one for one in map(choices.settings, range(len(choices))) if one.no_host]


def test_it_is_tried_where_much_lies_on_the_host_and_nothing_is_lent_besides() -> None:
    space = space_that(device_bytes=4 << 30)
    found, base = with_no_host(space), start_settings(space)
    assert {one.n_gpu_layers for one in found} == set(range(23))
    assert all(one.devices is None and one.op_offload == base.op_offload for one in found)
    choices = choices_of(space)
    i = choices.index_of(found[-1])
    assert i is not None
    assert choices.columns.no_host[i]
    assert choices.placements[i] == choices.placement_number(found[-1].placement)
    assert choices.placements[i] != choices.placement_number(found[-1].replace(no_host=False).placement)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"pins_host": False}, "no device offers pinned memory of the host"),
        ({"repacks": False}, "the CPU has no layout of its own for weights"),
        ({"fixed": {"use_extra_bufts": False}}, "the CPU has no layout of its own for weights"),
        ({"facts": FACTS}, "the CPU has no layout of its own for weights that are not quantised"),
    ],
    ids=str,
)
def test_why_it_is_not_tried_is_told(changes: dict[str, Any], why: str) -> None:
    space = space_that(**changes)
    said = [one.removeprefix("no_host: ") for one in skipped(space) if one.startswith("no_host: ")]
    assert said == [why] * bool(why)
    assert bool(with_no_host(space)) == (not why)


def test_what_the_user_holds_is_not_varied() -> None:
    space = space_that(fixed={"no_host": True}, pins_host=False)
    choices = choices_of(space)
    assert len(with_no_host(space)) == len(choices)
    assert not any(one.startswith("no_host: ") for one in skipped(space))


def test_a_cpu_that_is_far_faster_its_own_way_is_found() -> None:
    """No law knows of it; one trial shows it, and is believed of all other counts of layers."""
    space = space_that(goal=Goal.DECODE)
    engine = LawfulEngine(
        space=space,
        wall_bytes=space.device_bytes,
        times=lambda one: (1.0, 0.5 if one.no_host else 1.0),
        noise_frac=0.01,
    )
    results = engine.carry_out()
    costs = [engine.cost(one.trial.settings) for one in results if one.visits]
    best = results[int(np.argmin([engine.cost(one.trial.settings) if one.visits else np.inf for one in results]))]
    assert best.trial.settings.no_host
    assert min(costs) < 1.03 * engine.least_cost()
    assert any("main memory as the CPU likes it" in one.trial.why for one in results)


@pytest.mark.parametrize(
    ("pins", "info", "expected"),
    [
        (True, "CPU : AVX2 = 1 | REPACK = 1 | ", (True, True)),
        (True, "CPU : AVX2 = 1 | REPACK = 0 | ", (True, False)),
        (False, "CPU : AMX_INT8 = 1 | ", (False, True)),
        (None, "", (False, False)),
    ],
)
def test_a_space_tells_what_engine_and_devices_say(
    *, pins: bool | None, info: str, expected: tuple[bool, bool]
) -> None:
    machine = dataclasses.replace(MACHINE, devices=(dataclasses.replace(CUDA0, pins_host=pins),))
    asked = dataclasses.replace(header(), machine=machine, engine=dataclasses.replace(ENGINE, system_info=info))
    space = space_of(FACTS, asked, {})
    assert (space.pins_host, space.repacks) == expected

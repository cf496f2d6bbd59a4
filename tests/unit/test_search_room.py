"""The wall: what trials tell of how much memory there is."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from lawful import LawfulEngine, lawful_space
from synthetic import MIB, ok_result, visit

from offloadtune.records import Outcome, Settings, TrialResult
from offloadtune.search.columns import Columns
from offloadtune.search.room import dominated, wall_of
from offloadtune.search.space import Space, start_settings

VISITS = (visit(ttft_s=1.0, token_s=0.1),)


def rungs(space: Space) -> list[Settings]:
    return [start_settings(space).replace(n_gpu_layers=k) for k in range(space.everything + 1)]


def chances(space: Space, results: list[TrialResult]) -> list[float]:
    found: list[float] = wall_of(space, results).chance_of(Columns.of(space.facts, rungs(space))).tolist()
    return found


def ended(space: Space, settings: Settings, outcome: Outcome = Outcome.OUT_OF_MEMORY_DEVICE) -> TrialResult:
    return TrialResult(trial=space.trial(settings, "a test"), outcome=outcome, reason="the made-up memory ran out")


def ran(space: Space, settings: Settings, own_bytes: int = 0) -> TrialResult:
    used = LawfulEngine(space=space, wall_bytes=0, own_bytes=own_bytes).used_bytes(settings)
    return ok_result(space.trial(settings, "a test"), VISITS, peak_bytes=used)


@given(st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=6), st.integers(0, 300))
def test_a_chance_falls_with_the_bytes_and_is_none_where_nothing_is_taken(
    trials: list[tuple[int, bool]], own_mib: int
) -> None:
    space = lawful_space()
    one = rungs(space)
    results = [ran(space, one[k], own_mib * MIB) if is_ok else ended(space, one[k]) for k, is_ok in trials]
    found = chances(space, results)
    assert all(0 <= chance <= 1 + 1e-9 for chance in found)
    assert found[1:] == sorted(found[1:], reverse=True)
    alone = Columns.of(space.facts, [one[0].replace(devices=())])
    assert wall_of(space, results).chance_of(alone).tolist() == [1.0]


def test_what_ran_has_room_and_what_ended_has_none() -> None:
    space = lawful_space()
    one = rungs(space)
    found = chances(space, [ran(space, one[5]), ended(space, one[9])])
    assert found[5] > 0.999
    assert found[9] < 1e-6


def test_the_first_trial_tells_what_the_driver_takes() -> None:
    """Of 1200 MiB the driver takes 300, far more than a typical one."""
    space = lawful_space()
    one = rungs(space)
    engine = LawfulEngine(space=space, wall_bytes=space.device_bytes, own_bytes=300 * MIB)
    most = max(k for k, settings in enumerate(one) if engine.used_bytes(settings) <= space.device_bytes)
    before, after = chances(space, []), chances(space, [ran(space, one[2], 300 * MIB)])
    assert before[most + 1] > 0.9
    assert after[most + 1] < 0.2
    assert after[most] > 0.5


def test_free_memory_that_lies_is_found_by_halving() -> None:
    """Ended though arithmetic was sure of it: then any place between what ran and what did not is as likely."""
    space = lawful_space()
    one = rungs(space)
    found = chances(space, [ran(space, one[2]), ended(space, one[9])])
    middle = [found[k] for k in range(6, 9)]
    steps = [a - b for a, b in itertools.pairwise(middle)]
    assert all(0.1 < chance < 0.95 for chance in middle)
    assert max(steps) < 1.5 * min(steps)


def test_what_takes_as_much_everywhere_is_dominated() -> None:
    space = lawful_space()
    one = rungs(space)
    columns = Columns.of(space.facts, [*one, one[9].replace(n_ubatch=64), one[0].replace(devices=())])
    found = dominated(space, columns, [ended(space, one[9])]).tolist()
    assert found[9]
    assert not found[8]
    assert not found[-2]  # it takes a smaller compute buffer
    assert not found[-1]


def test_an_end_of_what_took_less_than_others_that_ran_tells_nothing_of_memory() -> None:
    space = lawful_space()
    one = rungs(space)
    results = [ran(space, one[9]), ended(space, one[5], Outcome.CRASHED)]
    columns = Columns.of(space.facts, one)
    assert not dominated(space, columns, results).any()
    assert chances(space, results)[8] > 0.999


def test_main_memory_that_ran_out_excludes_what_needs_as_much_of_it() -> None:
    space = lawful_space()
    alone = start_settings(space).replace(devices=(), n_gpu_layers=0)
    columns = Columns.of(space.facts, [alone, alone.replace(n_ctx=256), rungs(space)[12]])
    found = dominated(space, columns, [ended(space, alone, Outcome.OUT_OF_MEMORY_HOST)])
    assert found.tolist() == [True, False, False]

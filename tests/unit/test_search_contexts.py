"""The largest context: doubled, then halved between what runs and what does not."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from lawful import LawfulEngine, lawful_space
from synthetic import MIB, made_up_facts

from offloadtune.records import Goal, Outcome, TrialResult
from offloadtune.search import Space, candidates, finalists, next_trial

FACTS = made_up_facts((20 * MIB,) * 12, n_ctx_train=1 << 15)


def context_space(device_mib: int = 200, **fixed: object) -> Space:
    return lawful_space(FACTS, device_mib=device_mib, goal=Goal.CONTEXT, fixed=fixed)


def carry_out(space: Space, most_cells: int, wall_mib: int = 10_000) -> list[TrialResult]:
    """Every trial, where no context larger than `most_cells` can be had of main memory."""
    engine, results = LawfulEngine(space=space, wall_bytes=wall_mib * MIB), list[TrialResult]()
    while (trial := next_trial(space, results)) is not None:
        assert len(results) < 80
        ended = TrialResult(trial=trial, outcome=Outcome.OUT_OF_MEMORY_HOST, reason="as the test wants")
        results.append(ended if trial.settings.n_ctx > most_cells else engine.run(trial))
    return results


@how(deadline=None, max_examples=15)
@given(st.integers(1024, 1 << 16))
def test_the_largest_that_runs_is_found_to_a_sixteenth(most_cells: int) -> None:
    space = context_space()
    results = carry_out(space, most_cells)
    possible = min(most_cells, FACTS.n_ctx_train) // 256 * 256
    largest = max(one.trial.settings.n_ctx for one in candidates(space, results))
    assert possible * 15 / 16 - 256 <= largest <= possible
    assert all(one.trial.settings.n_ctx <= FACTS.n_ctx_train for one in results)


def test_layers_are_given_up_for_a_larger_context() -> None:
    """The device holds the cache of the largest context only without most of the weights."""
    space = context_space(device_mib=150)
    results = carry_out(space, 1 << 20, wall_mib=150)
    largest = max(one.trial.settings.n_ctx for one in candidates(space, results))
    assert largest == FACTS.n_ctx_train
    assert largest in {trial.settings.n_ctx for trial in finalists(space, results)}


def test_of_the_largest_context_the_fastest_settings_are_sought() -> None:
    space = context_space()
    results = carry_out(space, 4096)
    with_most = [one.trial.settings for one in results if one.trial.settings.n_ctx == 4096]
    assert len({one.replace(n_gpu_layers=0, devices=None) for one in with_most}) > 2


def test_with_layers_that_the_user_fixed_the_wall_is_the_devices() -> None:
    space = context_space(device_mib=320, n_gpu_layers=13, offload_kqv=True)
    results = carry_out(space, 1 << 20, wall_mib=320)
    engine = LawfulEngine(space=space, wall_bytes=320 * MIB)
    fixed = [one.trial.settings for one in candidates(space, results)]
    assert {one.n_gpu_layers for one in fixed} == {13}
    largest = max(fixed, key=lambda one: one.n_ctx)
    assert largest.n_ctx > space.n_ctx
    more = largest.replace(n_ctx=int(largest.n_ctx * 1.125), n_ubatch=64)
    assert engine.used_bytes(more) > 0.97 * engine.wall_bytes


@pytest.mark.parametrize("n_ctx_train", [0, 512, 1024])
def test_a_model_trained_for_no_more_is_asked_for_no_more(n_ctx_train: int) -> None:
    space = dataclasses.replace(context_space(), facts=dataclasses.replace(FACTS, n_ctx_train=n_ctx_train))
    results = carry_out(space, 1 << 20)
    assert max(one.trial.settings.n_ctx for one in results) == space.n_ctx

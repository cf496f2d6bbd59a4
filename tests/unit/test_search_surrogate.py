"""What is believed of candidates: the law, and what trials showed beside it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lawful import LawfulEngine, Times, lawful_space

from offloadtune.records import Goal, Settings, TrialResult
from offloadtune.search.grid import choices_of
from offloadtune.search.space import Space, start_settings
from offloadtune.search.surrogate import _HOPELESS, Belief, _Effects, _ridge, believe
from offloadtune.speed.blocks import Floats

PLENTY = 1 << 40
GOALS = (Goal.TURN, Goal.TTFT, Goal.DECODE)


def tried(
    space: Space, settings: list[Settings], times: Times = lambda _: (1.0, 1.0), **how: float
) -> list[TrialResult]:
    engine = LawfulEngine(space=space, wall_bytes=PLENTY, times=times, noise_frac=how.get("noise_frac", 0.0))
    return [engine.run(space.trial(one, "a test")) for one in settings]


def belief_of(space: Space, results: list[TrialResult]) -> Belief:
    return believe(space, choices_of(space), results, [True] * len(results))


def start(space: Space, **changes: object) -> Settings:
    settings = start_settings(space).replace(n_gpu_layers=8)
    return settings.replace(**changes)


def ratio_of(space: Space, belief: Belief, settings: Settings) -> tuple[float, float]:
    """Believed cost beside the best tried, and how uncertain."""
    i = choices_of(space).index_of(settings)
    assert i is not None
    return float(np.exp(belief.log_ratio[i])), float(belief.spread[i])


@pytest.mark.parametrize("goal", GOALS)
def test_where_the_law_is_right_it_is_believed(goal: Goal) -> None:
    space = lawful_space(goal=goal)
    engine = LawfulEngine(space=space, wall_bytes=PLENTY)
    here = start(space)
    belief = belief_of(space, tried(space, [here, start(space, n_gpu_layers=2), start(space, n_ubatch=128)]))
    for other in (start(space, n_gpu_layers=10), start(space, n_gpu_layers=5, n_ubatch=256)):
        best = min((here, start(space, n_gpu_layers=2), start(space, n_ubatch=128)), key=engine.cost)
        ratio, _ = ratio_of(space, belief, other)
        assert ratio == pytest.approx(engine.cost(other) / engine.cost(best), rel=0.02)


def test_the_best_is_where_the_ratio_is_one() -> None:
    space = lawful_space()
    settings = [start(space, n_gpu_layers=2), start(space), start(space, n_ubatch=64)]
    results = tried(space, settings)
    belief = belief_of(space, results)
    assert belief.i_best == 1
    ratio, spread = ratio_of(space, belief, start(space))
    assert ratio == pytest.approx(1.0, abs=1e-3)
    assert spread < 0.02


def test_only_what_is_rated_can_be_the_best() -> None:
    space = lawful_space()
    results = tried(space, [start(space), start(space, n_gpu_layers=2)])
    assert believe(space, choices_of(space), results, [False, True]).i_best == 1


def test_a_kernel_that_is_slow_at_one_ubatch_is_slow_wherever_the_device_works() -> None:
    """Learnt with 8 layers on the device, known with 4 and with 10; other ubatches are not suspected."""

    def slow(settings: Settings) -> tuple[float, float]:
        return (3.0 if settings.n_ubatch == 256 and settings.offloads else 1.0, 1.0)

    space = lawful_space(goal=Goal.TTFT)
    settings = [start(space), start(space, n_ubatch=256), start(space, n_ubatch=128), start(space, n_gpu_layers=2)]
    settings.append(start(space, n_gpu_layers=3, n_ubatch=256))
    before = belief_of(space, tried(space, settings))
    after = belief_of(space, tried(space, settings, slow))
    for k in (4, 10):
        slower = ratio_of(space, after, start(space, n_gpu_layers=k, n_ubatch=256))[0]
        assert slower > 2.0 * ratio_of(space, before, start(space, n_gpu_layers=k, n_ubatch=256))[0]
        alike = ratio_of(space, after, start(space, n_gpu_layers=k, n_ubatch=128))[0]
        assert alike == pytest.approx(ratio_of(space, before, start(space, n_gpu_layers=k, n_ubatch=128))[0], rel=0.1)


def test_threads_that_hinder_each_other_do_so_in_proportion_to_the_work_of_the_host() -> None:
    def collapsed(settings: Settings) -> tuple[float, float]:
        return 1.0, 4.0 if settings.n_threads > 4 else 1.0

    space = lawful_space(goal=Goal.DECODE)
    settings = [start(space), start(space, n_threads=8), start(space, n_gpu_layers=2)]
    settings.append(start(space, n_gpu_layers=2, n_threads=8))
    belief = belief_of(space, tried(space, settings, collapsed))
    with_8 = {k: ratio_of(space, belief, start(space, n_gpu_layers=k, n_threads=8))[0] for k in (3, 11)}
    with_4 = {k: ratio_of(space, belief, start(space, n_gpu_layers=k))[0] for k in (3, 11)}
    assert all(with_8[k] > 2.5 * with_4[k] for k in (3, 11))


def test_a_single_slow_visit_may_have_been_disturbed() -> None:
    """By one trial alone threads that hinder each other and a disturbance are alike: it is worth another."""

    def slow(settings: Settings) -> tuple[float, float]:
        return 1.0, 1.8 if settings.n_threads == 8 and settings.n_gpu_layers == 8 else 1.0

    space = lawful_space(goal=Goal.DECODE)
    settings = [start(space), start(space, n_gpu_layers=2), start(space, n_threads=8)]
    asked = start(space, n_gpu_layers=10, n_threads=8)
    usual = ratio_of(space, belief_of(space, tried(space, settings)), asked)
    once = ratio_of(space, belief_of(space, tried(space, settings, slow)), asked)
    settings.append(start(space, n_threads=8, n_gpu_layers=6))
    twice = ratio_of(space, belief_of(space, tried(space, settings, slow)), asked)
    assert usual[0] < once[0] < 1.7 * usual[0]
    assert once[1] > 5 * usual[1]
    assert twice[0] == pytest.approx(usual[0], rel=0.1)


def test_heat_is_not_taken_for_a_property_of_what_ran_after_it() -> None:
    """From the sixth trial on all takes 1.3 times as long."""
    space = lawful_space()
    kinds: list[dict[str, Any]] = [
        {},
        {"n_ubatch": 128},
        {"n_threads": 2},
        {"flash_attn_type": "disabled"},
        {"n_gpu_layers": 2},
    ]
    later: list[dict[str, Any]] = [{"n_gpu_layers": 6}, {"n_gpu_layers": 7}, {"n_ubatch": 256}, {"n_threads_batch": 2}]
    settings = [start(space, **one) for one in (*kinds, *later)]
    cool = tried(space, settings)
    hot = [
        dataclasses.replace(
            one,
            visits=tuple(
                dataclasses.replace(
                    visit,
                    prefill_ns=round(visit.prefill_ns * 1.3),
                    step_ns=tuple(round(1.3 * n) for n in visit.step_ns),
                )
                for visit in one.visits
            ),
        )
        for one in cool[5:]
    ]
    before, after = belief_of(space, cool), belief_of(space, [*cool[:5], *hot])
    for changes in ({"n_gpu_layers": 9}, {"n_gpu_layers": 7, "n_ubatch": 256}):
        other = start(space, **changes)
        assert ratio_of(space, after, other)[0] == pytest.approx(ratio_of(space, before, other)[0], rel=0.05)


def test_a_trait_that_was_never_tried_is_less_certain() -> None:
    space = lawful_space()
    belief = belief_of(space, tried(space, [start(space), start(space, n_gpu_layers=2)]))
    more_layers = ratio_of(space, belief, start(space, n_gpu_layers=9))[1]
    without_flash = ratio_of(space, belief, start(space, flash_attn_type="disabled"))[1]
    assert without_flash > 1.5 * more_layers


def test_without_laws_there_is_a_belief_too() -> None:
    """A typical rig, as it proved to be: more layers on the device are worth more."""
    space = lawful_space()
    results = tried(space, [start(space), start(space, n_gpu_layers=2), start(space, devices=(), n_gpu_layers=0)])
    belief = belief_of(dataclasses.replace(space, laws=None), results)
    ratios = [ratio_of(space, belief, start(space, n_gpu_layers=k))[0] for k in (2, 5, 8, 10)]
    assert ratios == sorted(ratios, reverse=True)


def test_a_law_that_cannot_be_computed_is_replaced_by_a_typical_one() -> None:
    def broken(_: Settings) -> None:
        raise np.linalg.LinAlgError

    space = lawful_space()
    results = tried(space, [start(space), start(space, n_gpu_layers=2)])
    found = belief_of(dataclasses.replace(space, laws=broken), results)  # type: ignore[arg-type]
    typical = belief_of(dataclasses.replace(space, laws=None), results)
    np.testing.assert_allclose(found.log_ratio, typical.log_ratio)


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 9))
def test_effects_are_those_of_the_formula_in_the_other_direction(seed: int, n_traits: int, n_trials: int) -> None:
    """Ridge regression solved by trials is the same as solved by effects."""
    chance = np.random.default_rng(seed)
    rows, residual = chance.standard_normal((n_trials, n_traits)), chance.standard_normal(n_trials)
    widths, noise = chance.uniform(0.1, 2.0, n_traits), chance.uniform(0.01, 1.0, n_trials)
    effects, covariance = _ridge(rows, widths, residual, noise)
    precision = (rows.T / noise) @ rows + np.diag(widths**-2)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(effects, np.linalg.solve(precision, rows.T @ (residual / noise)), rtol=1e-6, atol=1e-9)


def effects_of(rows: Floats, width: float) -> _Effects:
    n = rows.shape[1]
    return _Effects(
        rows=rows, widths=np.full(n, width), surprised=np.ones(n), is_only_slower=np.zeros(n, dtype=np.bool_)
    )


@given(st.integers(0, 2**31))
def test_noise_is_no_surprise(seed: int) -> None:
    chance = np.random.default_rng(seed)
    rows, noise = np.eye(8), np.full(8, 1e-4)
    residual = 0.5 * np.sqrt(noise) * np.clip(chance.standard_normal(8), -2, 2)
    assert (effects_of(rows, 0.01).with_surprises(residual, noise).widths == 0.01).all()


def test_a_surprise_is_found_where_it_is() -> None:
    rows, noise = np.eye(8), np.full(8, 1e-4)
    residual = np.where(np.arange(8) == 3, 0.8, 0.0)
    found = effects_of(rows, 0.02).with_surprises(residual, noise)
    assert (found.widths > 0.02).tolist() == [i == 3 for i in range(8)]


def test_what_disturbs_one_trial_slows_it_and_is_no_reason_for_a_fast_one() -> None:
    rows, noise = np.eye(8), np.full(8, 1e-4)
    disturbed = dataclasses.replace(effects_of(rows, 0.02), is_only_slower=np.ones(8, dtype=np.bool_))
    for residual, is_found in ((0.8, True), (-0.8, False)):
        found = disturbed.with_surprises(np.where(np.arange(8) == 3, residual, 0.0), noise)
        assert (found.widths[3] > 0.02) == is_found


@pytest.mark.parametrize("goal", GOALS)
def test_loadings_multiply_to_what_is_uncertain(goal: Goal) -> None:
    space = lawful_space(goal=goal, device_mib=600)
    belief = belief_of(space, tried(space, [start(space, n_gpu_layers=3), start(space, n_gpu_layers=1)]))
    rows = np.flatnonzero(belief.log_ratio < _HOPELESS)[::11]
    loadings = belief.loadings(rows)
    variances = np.einsum("ij,ij->i", loadings, loadings) + belief.own[rows] ** 2
    np.testing.assert_allclose(np.sqrt(variances), belief.spread[rows], rtol=1e-9)

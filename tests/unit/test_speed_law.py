"""The law itself: what runs teach, what they leave open, and when it must not be believed."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import Basis, Settings
from offloadtune.speed import (
    Law,
    amounts_for,
    calibrated,
    contradiction,
    laws_of,
    least_seconds,
    misses,
    predict,
    prior_of,
    residuals_of,
    run_of,
)
from offloadtune.speed.blocks import Floats
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig, Run

FACTS = facts_of_shape("llama-3-8b", "Q4_K_M")
CARD = DeviceRates(name="CUDA0", family="ampere", read_bytes_per_s=936e9, flop_per_s=142e12, link_bytes_per_s=31.5e9)
RIG = Rig(devices=(CARD,), host=HostRates(peak_bytes_per_s=89.6e9, n_cores=8))
SETTINGS = tuple(
    Settings(
        n_gpu_layers=k,
        n_ctx=8192,
        n_ubatch=n_ubatch,
        n_batch=512,
        n_threads=8,
        n_threads_batch=8,
        flash_attn_type="enabled",
        op_offload=op_offload,
    )
    for k in (0, 12, 24, 33)
    for n_ubatch in (128, 512)
    for op_offload in (True, False)
)


def amounts(phase: Phase, depth: int = 0) -> Floats:
    return amounts_for(phase, FACTS, SETTINGS, RIG, n_prompt=1024, depth=depth)


def runs_of(law: Law, truth: Floats, noise_frac: float = 0.0, seed: int = 0) -> list[Run]:
    """A run of each of the settings at two depths, as a machine with the coefficients `truth` would take."""
    chance = np.random.default_rng(seed)
    columns = [column for depth in (0, 4096) for column in amounts(law.phase, depth).T]
    noise = chance.normal(0.0, noise_frac, len(columns)) if noise_frac else np.zeros(len(columns))
    return [
        run_of(law, column, float(truth @ column) * math.exp(error), max(noise_frac, 1e-3), f"run {i}")
        for i, (column, error) in enumerate(zip(columns, noise, strict=True))
    ]


def drawn(law: Law, seed: int) -> Floats:
    """Coefficients of one machine, as the law believes that machines are."""
    chance = np.random.default_rng(seed)
    width = np.sqrt(np.diag(law.covariance)) / law.mean
    return np.asarray(law.mean * np.exp(chance.normal(size=len(law.mean)) * np.minimum(width, 0.5)))


@pytest.mark.parametrize("phase", Phase)
def test_runs_teach_what_the_machine_does(phase: Phase) -> None:
    prior = prior_of(phase, RIG)
    truth = drawn(prior, seed=3)
    law = calibrated(prior, runs_of(prior, truth))
    assert (prior.basis, law.basis) == (Basis.CATALOGUE, Basis.CALIBRATED)
    elsewhere = amounts(phase, depth=2048)
    np.testing.assert_allclose(law.seconds(elsewhere), truth @ elsewhere, rtol=0.02)
    assert (law.spread_frac(elsewhere) < prior.spread_frac(elsewhere)).all()


@pytest.mark.parametrize("factor", [0.02, 100.0])
@pytest.mark.parametrize("phase", Phase)
def test_a_machine_unlike_any_of_its_kind_is_believed(phase: Phase, factor: float) -> None:
    prior = prior_of(phase, RIG)
    truth = prior.mean * factor
    law = calibrated(prior, runs_of(prior, truth, noise_frac=0.01))
    elsewhere = amounts(phase, depth=2048)
    np.testing.assert_allclose(law.seconds(elsewhere), truth @ elsewhere, rtol=0.1)
    assert contradiction(law) == ""


@pytest.mark.parametrize("phase", Phase)
def test_two_runs_leave_open_what_they_did_not_touch(phase: Phase) -> None:
    prior = prior_of(phase, RIG)
    on_card = [i for i, one in enumerate(SETTINGS) if one.n_gpu_layers == 33]
    runs = [run for run in runs_of(prior, prior.mean) if int(run.label.split()[1]) in on_card]
    law = calibrated(prior, runs)
    column, spread = amounts(phase), law.spread_frac(amounts(phase))
    assert spread[on_card].max() < 0.07
    assert spread[0] > 2 * spread[on_card].max()
    assert law.least_known(column[:, on_card[0]]) is None
    on_host = law.least_known(column[:, 1])
    assert on_host is not None
    assert on_host.place == "host"


def test_far_beyond_what_was_measured_the_word_is_less_certain() -> None:
    prior = prior_of(Phase.DECODE, RIG)
    near = [run for run in runs_of(prior, prior.mean) if int(run.label.split()[1]) < len(SETTINGS)]  # empty caches
    law = calibrated(prior, near)
    at_hand, far = (
        amounts_for(Phase.DECODE, FACTS, (SETTINGS[-1].replace(n_ctx=1 << 17),), RIG, n_prompt=1, depth=depth)
        for depth in (128, 120_000)
    )
    assert law.least_known(at_hand[:, 0]) is None
    assert law.spread_frac(far)[0] > 3 * law.spread_frac(at_hand)[0]
    term = law.least_known(far[:, 0])
    assert term is not None
    assert term.kind == "cache"


def test_no_runs_teach_nothing() -> None:
    prior = prior_of(Phase.DECODE, RIG)
    assert calibrated(prior, []) is prior
    other = dataclasses.replace(runs_of(prior, prior.mean)[0], phase=Phase.PREFILL)
    assert calibrated(prior, [other]) is prior


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held = []
    for seed in range(60):
        for phase in Phase:
            prior = prior_of(phase, RIG)
            truth = drawn(prior, seed)
            own = prior.calibrated_noise_frac  # no law is exact
            runs = runs_of(prior, truth, noise_frac=math.hypot(0.02, own), seed=seed)
            law = calibrated(prior, [dataclasses.replace(run, noise_frac=0.02) for run in runs[seed % 4 :: 6]])
            elsewhere = amounts(phase, depth=2048)
            _, low, high = law.interval(elsewhere)
            errors = np.random.default_rng(seed + 1000).normal(0.0, own, elsewhere.shape[1])
            exact = (truth @ elsewhere) * np.exp(errors)
            held.append(float(((low <= exact) & (exact <= high)).mean()))
    assert 0.87 <= np.mean(held) <= 0.96


def test_runs_that_contradict_each_other_are_named() -> None:
    prior = prior_of(Phase.DECODE, RIG)
    runs = runs_of(prior, prior.mean, noise_frac=0.01)
    assert contradiction(calibrated(prior, runs)) == ""
    assert contradiction(prior) == ""
    throttled = [*runs[:-1], dataclasses.replace(runs[-1], seconds=runs[-1].seconds * 2)]
    sentence = contradiction(calibrated(prior, throttled))
    assert sentence.startswith(f"The runs contradict each other: {runs[-1].label} took ")


def test_a_run_that_had_no_say_shows_where_the_law_fails() -> None:
    prior = prior_of(Phase.PREFILL, RIG)
    runs = runs_of(prior, prior.mean, noise_frac=0.01)
    law = calibrated(prior, runs[1:])
    assert not misses(law, runs[0])
    assert misses(law, dataclasses.replace(runs[0], seconds=runs[0].seconds * 1.5))
    assert misses(law, dataclasses.replace(runs[0], seconds=runs[0].seconds / 1.5))


def test_disagreement_widens_what_is_said() -> None:
    prior = prior_of(Phase.DECODE, RIG)
    calm, rough = (calibrated(prior, runs_of(prior, prior.mean, noise, seed=1)) for noise in (0.001, 0.2))
    rough = dataclasses.replace(rough, runs=calm.runs)
    columns = amounts(Phase.DECODE)
    assert (rough.spread_frac(columns) > calm.spread_frac(columns)).all()
    assert np.abs(residuals_of(calm, calm.runs)).max() < 0.01


@given(
    k=st.integers(0, 40),
    n_prompt=st.integers(1, 100_000),
    depth=st.integers(0, 100_000),
    n_ubatch=st.integers(1, 4096),
    read=st.floats(1e9, 5e12),
    ram=st.one_of(st.none(), st.floats(1e9, 1e12)),
)
def test_every_prediction_is_a_number_within_its_interval(  # noqa: PLR0917 - one argument a strategy
    k: int, n_prompt: int, depth: int, n_ubatch: int, read: float, ram: float | None
) -> None:
    rig = Rig(devices=(dataclasses.replace(CARD, read_bytes_per_s=read),), host=HostRates(peak_bytes_per_s=ram))
    asked = Settings(n_gpu_layers=k, n_ctx=8192, n_batch=8192, n_ubatch=n_ubatch, flash_attn_type="enabled")
    found = predict(FACTS, asked, laws_of(rig, FACTS), n_prompt=n_prompt, depth=depth)
    for figure in (found.decode_tok_per_s, found.prefill_tok_per_s, found.ttft_s):
        assert 0 < figure.low <= figure.value <= figure.high < math.inf
        assert figure.basis is Basis.CATALOGUE
    if found.bound_tok_per_s is not None:
        assert found.decode_tok_per_s.value <= found.bound_tok_per_s
    assert (found.bound_tok_per_s is None) == (ram is None and k < 33)


def test_the_bound_is_that_of_the_places_together() -> None:
    weights = sum(FACTS.layer_bytes) + FACTS.output_bytes
    at = {}
    for k in (0, 17, 33):
        one = (dataclasses.replace(SETTINGS[0], n_gpu_layers=k),)
        column = amounts_for(Phase.DECODE, FACTS, one, RIG, n_prompt=1, depth=0)
        at[k] = float(least_seconds(Phase.DECODE, column, RIG)[0])
    assert at[33] == pytest.approx(weights / 936e9, rel=0.02)
    assert at[0] == pytest.approx(weights / 89.6e9, rel=0.02)
    assert at[33] < at[17] < at[0]


def test_a_copy_that_was_measured_bounds_reading_at_twice_its_rate() -> None:
    one = Settings(n_gpu_layers=33, n_ctx=4096, flash_attn_type="enabled")
    measured = dataclasses.replace(RIG, devices=(dataclasses.replace(CARD, is_measured=True),))
    told, seen = (predict(FACTS, one, laws_of(rig, FACTS)).bound_tok_per_s for rig in (RIG, measured))
    assert told is not None
    assert seen == pytest.approx(2 * told)


def test_what_lies_in_a_cache_has_no_bound() -> None:
    tiny = facts_of_shape("gemma-3-270m", "Q4_K_M")
    rig = dataclasses.replace(RIG, devices=(dataclasses.replace(CARD, last_level_bytes=1 << 30),))
    one = Settings(n_gpu_layers=99, n_ctx=4096, flash_attn_type="enabled")
    assert predict(tiny, one, laws_of(rig, tiny)).bound_tok_per_s is None
    assert predict(tiny, one, laws_of(RIG, tiny)).bound_tok_per_s is not None

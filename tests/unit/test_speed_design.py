"""Which runs calibrate: few, those that touch what is unknown, and enough to learn a machine that no prior knows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from synthetic import made_up_facts

from offloadtune.records import GgufFacts, Settings
from offloadtune.speed import Laws, calibrated, laws_of, run_of
from offloadtune.speed.design import (
    N_PASSAGES_MOST,
    Asked,
    Passage,
    asked_of,
    candidates_of,
    gains_of,
    is_known,
    next_passage,
    opening_passage,
    queries_of,
    seconds_of,
    spreads_after,
)
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig, Run

FACTS = made_up_facts()
SETTINGS = Settings(n_ctx=2560, n_threads=4, n_threads_batch=4, flash_attn_type="enabled")
HOST = HostRates(read_bytes_per_s=20e9, n_cores=4)
KNOWN = DeviceRates(name="CUDA0", family="ada", read_bytes_per_s=1e12, flop_per_s=165e12, link_bytes_per_s=25e9)
RIGS = {
    "none": Rig(devices=(), host=HOST),
    "known": Rig(devices=(KNOWN,), host=HOST, shares=(1.0,)),
    "unknown": Rig(devices=(DeviceRates(name="RPC0", offloads_ops=False),), host=HOST, shares=(1.0,)),
    "two": Rig(devices=(KNOWN, dataclasses.replace(KNOWN, name="CUDA1")), host=HOST, shares=(1.0, 1.0)),
}
Floats = NDArray[np.float64]


class Learner:
    """A calibration of a made-up machine, whose coefficients are `truth` times those believed."""

    def __init__(self, rig: Rig, facts: GgufFacts = FACTS, n_layers_most: int | None = None) -> None:
        self.prior = laws_of(rig, facts)
        most = (facts.n_layer + 1 if n_layers_most is None else n_layers_most) if rig.devices else 0
        lends = bool(rig.devices) and rig.devices[0].offloads_ops
        self.candidates = asked_of(facts, self.prior, candidates_of(facts, SETTINGS, most, lends=lends))
        self.queries = asked_of(facts, self.prior, queries_of(facts, SETTINGS, most))

    def runs(self, i: int, truth: dict[Phase, Floats], noise: Floats) -> list[Run]:
        found = []
        for phase, off in zip(Phase, noise, strict=True):
            amounts, law = self.candidates.of(phase)[:, i], self.prior.of(phase)
            seconds = float((law.mean * truth[phase]) @ amounts) * float(np.exp(0.03 * off))
            found.append(run_of(law, amounts, seconds, 0.03))
        return found

    def learn(self, truth: dict[Phase, Floats], seed: int = 0) -> tuple[Laws, list[int]]:
        """The laws after as many passages as it takes, and which."""
        chance, laws, made = np.random.default_rng(seed), self.prior, list[int]()
        while len(made) < N_PASSAGES_MOST and not is_known(laws, self.queries):
            seconds = seconds_of(laws, self.candidates, 3, None, 1.0)
            i = opening_passage(self.candidates, made, len(made))
            if i is None:
                i = next_passage(laws, self.candidates, self.queries, seconds, made)
            if i is None:
                break
            assert i not in made
            made.append(i)
            laws = laws.with_runs(self.runs(i, truth, chance.normal(size=2)))
        return laws, made

    def errors(self, laws: Laws, truth: dict[Phase, Floats]) -> Floats:
        """How far each query is off, those of both phases in a row."""
        parts = []
        for phase in Phase:
            amounts = self.queries.of(phase)
            parts.append(laws.of(phase).seconds(amounts) / ((self.prior.of(phase).mean * truth[phase]) @ amounts) - 1)
        return np.abs(np.concatenate(parts))


def truth_of(learner: Learner, chance: np.random.Generator, device: float, scatter: float) -> dict[Phase, Floats]:
    """Coefficients as multiples of those believed: those of devices all `device` times, each with a scatter."""
    return {
        phase: np.array([device if term.place not in {"", "host"} else 1.0 for term in learner.prior.of(phase).terms])
        * np.exp(scatter * chance.normal(size=len(learner.prior.of(phase).terms)))
        for phase in Phase
    }


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_few_runs_teach_a_machine_as_it_is_believed(rig: str, seed: int) -> None:
    learner = Learner(RIGS[rig])
    truth = truth_of(learner, np.random.default_rng(seed), 1.0, 0.3)
    laws, made = learner.learn(truth, seed)
    assert len(made) <= N_PASSAGES_MOST
    assert np.median(learner.errors(laws, truth)) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_eight_runs_teach_a_device_that_is_a_hundred_times_as_slow_as_believed(seed: int) -> None:
    learner = Learner(RIGS["unknown"])
    truth = truth_of(learner, np.random.default_rng(seed), 100.0, 0.5)
    laws, made = learner.learn(truth, seed)
    errors = learner.errors(laws, truth)
    assert len(made) <= N_PASSAGES_MOST
    assert np.median(errors) < 0.06
    spreads = np.concatenate([laws.of(phase).spread_frac(learner.queries.of(phase)) for phase in Phase])
    assert np.mean(errors < 1.645 * spreads) > 0.8


def test_runs_are_spread_over_what_is_unknown() -> None:
    learner = Learner(RIGS["unknown"])
    _, made = learner.learn(truth_of(learner, np.random.default_rng(1), 100.0, 0.5))
    chosen = [learner.candidates.passages[i] for i in made]
    layers = {one.settings.n_gpu_layers for one in chosen}
    assert {0, 13} < layers  # the host, the devices, and both together
    assert any(one.depth for one in chosen)
    assert len({one.n_prompt // one.settings.n_ubatch for one in chosen}) > 1
    assert chosen[0] == Passage(settings=SETTINGS.replace(n_gpu_layers=13), n_prompt=64, depth=0)


def test_where_no_more_layers_fit_none_are_tried() -> None:
    learner = Learner(RIGS["unknown"], n_layers_most=5)
    assert max(one.settings.n_gpu_layers for one in learner.candidates.passages) == 5
    first = opening_passage(learner.candidates, (), 0)
    assert first is not None
    assert learner.candidates.passages[first].settings.n_gpu_layers == 5


def test_a_device_that_lends_itself_is_compared_with_the_host_by_itself() -> None:
    assert any(not one.settings.op_offload for one in Learner(RIGS["known"]).candidates.passages)
    assert all(one.settings.op_offload for one in Learner(RIGS["unknown"]).candidates.passages)


def test_experts_in_main_memory_are_tried() -> None:
    facts = dataclasses.replace(made_up_facts(), n_expert=8, n_expert_used=2)
    found = candidates_of(facts, SETTINGS, 5, lends=True)
    assert {one.settings.n_cpu_moe for one in found} == {0, 6, 12}


@pytest.mark.parametrize("n_ctx", [256, 512, 1024])
def test_passages_stay_within_a_small_context(n_ctx: int) -> None:
    settings = SETTINGS.replace(n_ctx=n_ctx, n_batch=min(512, n_ctx))
    for one in (*candidates_of(FACTS, settings, 13, lends=True), *queries_of(FACTS, settings, 13)):
        assert one.n_ctx_needed <= n_ctx
        assert one.settings.n_ubatch <= one.settings.n_batch


def test_when_all_were_made_there_is_no_next() -> None:
    learner = Learner(RIGS["known"])
    everything = range(len(learner.candidates.passages))
    seconds = seconds_of(learner.prior, learner.candidates, 3, None, 1.0)
    assert next_passage(learner.prior, learner.candidates, learner.queries, seconds, everything) is None
    assert opening_passage(learner.candidates, everything, 0) is None


def test_a_run_that_takes_longer_is_chosen_less() -> None:
    learner = Learner(RIGS["known"])
    ones = np.ones(len(learner.candidates.passages))
    first = next_passage(learner.prior, learner.candidates, learner.queries, ones, ())
    assert first is not None
    ones[first] = 1e9
    assert next_passage(learner.prior, learner.candidates, learner.queries, ones, ()) != first


def test_loading_anew_and_reading_a_prefix_take_time() -> None:
    learner = Learner(RIGS["known"])
    loaded = learner.candidates.passages[0].settings.placement
    there, elsewhere = (seconds_of(learner.prior, learner.candidates, 3, one, 40.0) for one in (loaded, None))
    is_there = np.array([one.settings.placement == loaded for one in learner.candidates.passages])
    assert np.allclose(elsewhere - there, 40.0 * is_there)
    by_depth = {
        (one.settings, one.n_prompt, one.depth): s for one, s in zip(learner.candidates.passages, there, strict=True)
    }
    settings = next(one.settings for one in learner.candidates.passages if (one.n_prompt, one.depth) == (64, 0))
    assert by_depth[settings, 64, 0] < by_depth[settings, 64, 512] < by_depth[settings, 64, 2048]


scales = st.floats(min_value=0.01, max_value=100)


@given(st.sampled_from(sorted(RIGS)), st.integers(0, 1000), scales, st.floats(min_value=0, max_value=1))
def test_no_run_widens_what_is_expected_of_a_query(rig: str, seed: int, device: float, scatter: float) -> None:
    """By the arithmetic of the choice, at any state of knowledge."""
    learner = Learner(RIGS[rig])
    chance = np.random.default_rng(seed)
    truth = truth_of(learner, chance, device, scatter)
    laws = learner.prior
    for i in chance.choice(len(learner.candidates.passages), size=2, replace=False).tolist():
        laws = laws.with_runs(learner.runs(i, truth, chance.normal(size=2)))
    for phase in Phase:
        before, after = spreads_after(laws.of(phase), learner.candidates.of(phase), learner.queries.of(phase))
        assert (after <= before[:, None] * (1 + 1e-9)).all()
        assert (after >= 0).all()
    assert (gains_of(laws, learner.candidates, learner.queries) >= -1e-9).all()


@given(st.sampled_from(["none", "known"]), st.integers(0, 1000))
def test_what_a_run_will_leave_of_the_uncertainty_is_what_it_leaves(rig: str, seed: int) -> None:
    """Where the machine is as believed, so that the law is not doubted."""
    learner = Learner(RIGS[rig])
    i = int(np.random.default_rng(seed).integers(len(learner.candidates.passages)))
    ones: dict[Phase, Any] = {phase: np.ones(len(learner.prior.of(phase).terms)) for phase in Phase}
    for run in learner.runs(i, ones, np.zeros(2)):
        law = learner.prior.of(run.phase)
        queries = learner.queries.of(run.phase)
        _, after = spreads_after(law, learner.candidates.of(run.phase)[:, [i]], queries)
        found = calibrated(law, [run])
        sure = np.sqrt(found.spread_frac(queries) ** 2 - found.noise_frac**2)
        assert np.allclose(np.sqrt(np.maximum(after[:, 0] ** 2 - law.calibrated_noise_frac**2, 0)), sure, atol=2e-3)


def test_all_is_known_once_nothing_is_left_but_the_error_of_the_law() -> None:
    learner = Learner(RIGS["known"])
    laws = learner.prior
    assert not is_known(laws, learner.queries)
    sure = [
        dataclasses.replace(
            calibrated(law, [Run(phase=law.phase, amounts=(("host.weights", 1.0),), seconds=1.0, noise_frac=9.0)]),
            covariance=law.covariance * 1e-9,
        )
        for law in (laws.decode, laws.prefill)
    ]
    assert is_known(dataclasses.replace(laws, decode=sure[0], prefill=sure[1]), learner.queries)
    assert not is_known(dataclasses.replace(laws, decode=sure[0]), learner.queries)
    assert isinstance(learner.queries, Asked)


def test_the_first_passages_tell_ubatches_from_tokens_and_the_host_from_devices() -> None:
    learner, made = Learner(RIGS["unknown"]), list[int]()
    while (i := opening_passage(learner.candidates, made, len(made))) is not None:
        made.append(i)
    passages = [learner.candidates.passages[i] for i in made]
    assert [(one.settings.n_gpu_layers, one.n_prompt) for one in passages] == [(13, 64), (13, 256), (0, 64), (0, 256)]
    assert {one.depth for one in passages} == {0}

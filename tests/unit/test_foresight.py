"""What a sweep foretells, how it heeds it, and when it stops to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sample_records import ENGINE, MACHINE, result
from synthetic import made_up_facts

from offloadtune import search
from offloadtune.pipeline.foresight import Foresight
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.records import (
    WORKLOADS,
    Basis,
    Estimate,
    Expected,
    Goal,
    Outcome,
    Settings,
    Target,
    TrialResult,
    Visit,
)
from offloadtune.speed import laws_of
from offloadtune.speed.flags import strange
from offloadtune.speeds import DeviceRates, HostRates, Rig
from offloadtune.sweeps import Said

FACTS = made_up_facts()
RIG = Rig(
    devices=(DeviceRates(name="CUDA0", read_bytes_per_s=500e9, flop_per_s=60e12, link_bytes_per_s=12e9),),
    host=HostRates(peak_bytes_per_s=50e9, n_cores=8),
)
SPACE = search.Space(
    facts=FACTS,
    workload=WORKLOADS["rag"],
    goal=Goal.TURN,
    target=Target.LLAMA_CPP_PYTHON,
    n_ctx=4608,
    device_bytes=1 << 40,
    limit_bytes=None,
    n_physical_cores=8,
    n_logical_cores=16,
    n_os_cpus=16,
)


def around(value: float, basis: Basis = Basis.CALIBRATED) -> Estimate:
    return Estimate(p50=value, low=value / 1.1, high=value * 1.1, n_samples=0, coverage_frac=0.9, basis=basis)


def expected_of(visits: tuple[Visit, ...], times: float, bound: float | None = None) -> Expected:
    """What would have been expected, had the visits been `times` as fast."""
    visit = visits[0]
    return Expected(
        ttft_s=around(visit.ttft_s / times),
        decode_tok_per_s=around(times / visit.token_s),
        bound_tok_per_s=None if bound is None else bound / visit.token_s,
        bound_prefill_tok_per_s=None if bound is None else bound * visit.prefill_tok_per_s,
    )


def trial(times: float, bound: float | None = None, basis: Basis = Basis.CALIBRATED) -> TrialResult:
    one = result()
    visits = (one.visits[1],)
    expected = expected_of(visits, times, bound)
    if basis is not Basis.CALIBRATED:
        expected = dataclasses.replace(
            expected,
            ttft_s=dataclasses.replace(expected.ttft_s, basis=basis),
            decode_tok_per_s=dataclasses.replace(expected.decode_tok_per_s, basis=basis),
        )
    return dataclasses.replace(one, visits=visits, expected=expected)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def foresight(said: list[str]) -> Foresight:
    def listen(event: Said) -> None:
        said.append(event.text)

    return Foresight(SpeedMemory(FACTS, MACHINE, ENGINE), listen)


def test_what_proves_right_is_heeded(foresight: Foresight, said: list[str]) -> None:
    for _ in range(5):
        foresight.learn(trial(1.0))
    assert foresight.is_trusted
    assert foresight.beside(SPACE).laws is not None
    assert not [words for words in said if "foretold" in words]


def test_what_is_often_wrong_is_said_to_be_and_still_heeded(foresight: Foresight, said: list[str]) -> None:
    """The search corrects the law by what trials show, so a wrong one serves it better than none."""
    foresight.learn(trial(3.0))
    assert foresight.is_trusted  # two speeds of one trial may be chance
    foresight.learn(trial(0.3))
    foresight.learn(trial(0.3))
    assert not foresight.is_trusted
    assert foresight.beside(SPACE).laws is not None
    assert [words for words in said if "foretold" in words] == [
        "4 of 4 speeds lay outside what the law foretold: from here what is measured counts for more than the law."
    ]
    assert foresight.expected(SPACE, Settings(n_gpu_layers=3, n_ctx=4608)) is not None


def test_a_law_that_cannot_be_computed_ends_no_sweep(
    foresight: Foresight, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise np.linalg.LinAlgError

    monkeypatch.setattr(SpeedMemory, "laws", broken)
    assert foresight.expected(SPACE, Settings(n_gpu_layers=3, n_ctx=4608)) is None
    foresight.learn(trial(1.0))
    assert foresight.beside(SPACE).laws is None
    assert sum("only what is measured now decides" in words for words in said) == 1


def test_a_catalogue_that_is_wrong_is_no_fault_of_the_law(foresight: Foresight) -> None:
    for _ in range(5):
        foresight.learn(trial(3.0, basis=Basis.CATALOGUE))
    assert foresight.is_trusted


def test_what_something_else_slowed_teaches_the_law_nothing(
    foresight: Foresight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that spilled, say: far slower than runs of this machine foretold. What is faster than foretold does."""
    learnt: list[TrialResult] = []
    monkeypatch.setattr(SpeedMemory, "learn", lambda _self, one: learnt.append(one))
    for times in (1.0, 1.2, 1 / 1.15, 1 / 3, 3.0):
        foresight.learn(trial(times))
    assert len(learnt) == 4
    foresight.learn(trial(3.0, basis=Basis.CATALOGUE))
    foresight.learn(trial(1 / 3, basis=Basis.CATALOGUE))
    assert len(learnt) == 6


def test_a_failure_teaches_nothing(foresight: Foresight, said: list[str]) -> None:
    foresight.learn(result(Outcome.CRASHED))
    assert said == []


def test_a_larger_ubatch_is_expected_to_be_worth_more_where_weights_are_streamed_for_each() -> None:
    lawful = dataclasses.replace(SPACE, laws=lambda _: laws_of(RIG, FACTS))
    settings = Settings(n_gpu_layers=5, n_ctx=4608, n_threads=8, n_threads_batch=8, flash_attn_type="enabled")
    found = [
        search.expected(lawful, settings.replace(n_ubatch=n_ubatch, n_batch=2048)) for n_ubatch in (256, 512, 1024)
    ]
    assert None not in found
    ttft_s = [one.ttft_s.p50 for one in found if one is not None]
    assert ttft_s == sorted(ttft_s, reverse=True)
    assert search.expected(SPACE, settings) is None


@pytest.mark.parametrize(
    ("times", "bound", "words"),
    [
        (1.0, 2.0, ()),
        (1.0, None, ()),
        (1.0, 0.95, ()),
        (1.0, 0.5, ("reads", "writes")),
        (3.0, 9.0, ("reads", "writes")),
        (3.0, None, ("reads", "writes")),
    ],
)
def test_speeds_that_cannot_be_are_doubted(times: float, bound: float | None, words: tuple[str, ...]) -> None:
    one = trial(times, bound)
    sentences = strange(one, one.visits)
    assert [sentence.split()[1] for sentence in sentences] == list(words)
    assert all(("at most" in sentence) == (bound == 0.5) for sentence in sentences)


def test_what_a_catalogue_expects_is_doubted_only_where_a_data_sheet_bounds_it() -> None:
    for bound, words in ((None, []), (9.0, ["writes"])):
        one = trial(3.0, bound, basis=Basis.CATALOGUE)
        assert [sentence.split()[1] for sentence in strange(one, one.visits)] == words


def test_nothing_is_doubted_where_nothing_was_expected() -> None:
    assert strange(result(), result().visits) == ()

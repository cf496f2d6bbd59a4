"""What is said of a coarser cache: the figures of a comparison, or why there are none."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest
from sample_records import SETTINGS, recommendation

from offloadtune.engine import Runner, TrialFailedError
from offloadtune.pipeline.diverging import divergence_words, remembered, with_divergence
from offloadtune.records import Divergence, Outcome, Settings, Target, Trial, TrialResult, Visit, Workload

WORKLOAD = Workload(name="made up", n_prefix_cached=1000, n_prompt_new=4000, n_gen=100, n_parallel=1)


class Comparing:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self, answer: Divergence | TrialResult) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def divergence(self, trial: Trial, n_prompt: int, n_last: int, *, timeout_s: float) -> Divergence:
        self.asked.append({"trial": trial, "n_prompt": n_prompt, "n_last": n_last, "timeout_s": timeout_s})
        if isinstance(self.answer, TrialResult):
            raise TrialFailedError(self.answer)
        return self.answer


def ran(settings: Settings, prefill_tok_per_s: float = 1e6) -> TrialResult:
    visit = Visit(
        is_warmup=False,
        i_load=1,
        n_prefix_cached=1000,
        n_prompt_new=4000,
        tokenize_ns=0,
        prefill_ns=round(4000 / prefill_tok_per_s * 1e9),
        first_sample_ns=0,
        first_decode_ns=1,
        step_ns=(1,),
        sample_ns=(1,),
    )
    trial = Trial(settings=settings, target=Target.LLAMA_SERVER, why="x")
    return TrialResult(trial=trial, outcome=Outcome.OK, reason="", visits=(visit,))


def said(runner: Comparing, result: TrialResult, left_s: float = 100.0) -> str:
    return divergence_words(cast("Runner", runner), result, WORKLOAD, left_s=left_s)


COARSE = SETTINGS.replace(type_k="q8_0", type_v="q8_0", flash_attn_type="enabled")
FOUND = Divergence(kl_nats=0.00123, n_same_top=63, n_tokens=64)


def test_a_coarser_cache_comes_with_its_divergence() -> None:
    runner = Comparing(FOUND)
    text = said(runner, ran(COARSE))
    assert text == (
        "The KV cache is q8_0: against an f16 cache, KL divergence 0.0012, same top token in 63 of 64, "
        "after 2048 tokens of text."
    )
    assert runner.asked[0]["trial"].settings == COARSE


def test_an_f16_cache_needs_none() -> None:
    runner = Comparing(FOUND)
    assert not said(runner, ran(SETTINGS.replace(type_k="f16", type_v="f16")))
    assert not runner.asked


@pytest.mark.parametrize(("prefill_tok_per_s", "n_prompt"), [(1e6, 2048), (50.0, 500), (0.5, 128)])
def test_a_slow_machine_reads_less(prefill_tok_per_s: float, n_prompt: int) -> None:
    runner = Comparing(FOUND)
    said(runner, ran(COARSE, prefill_tok_per_s))
    assert runner.asked[0]["n_prompt"] == n_prompt


def test_with_no_time_left_it_is_not_begun() -> None:
    runner = Comparing(FOUND)
    assert not said(runner, ran(COARSE), left_s=-3.0)
    assert not runner.asked


def test_it_is_told_where_it_cannot_be_measured() -> None:
    trial = ran(COARSE).trial
    failed = TrialResult(trial=trial, outcome=Outcome.OUT_OF_MEMORY_DEVICE, reason="CUDA0 is full.")
    runner = Comparing(failed)
    text = said(runner, ran(COARSE), left_s=8.0)
    assert runner.asked[0]["timeout_s"] <= 8
    assert text.endswith("how that changes answers could not be measured: CUDA0 is full.")


def test_an_answer_is_recalled_with_what_was_measured_of_its_cache() -> None:
    words = said(Comparing(FOUND), ran(COARSE))
    bare = dataclasses.replace(recommendation(), trial=ran(COARSE).trial, reasons=("It is quick.",))
    told = with_divergence(bare, words)
    assert told.reasons == ("It is quick.", words)
    assert remembered(bare, told) == told
    unknown = "how that changes answers was not measured: the sweep ended first."
    for stored in (None, bare, dataclasses.replace(told, trial=ran(COARSE.replace(n_ubatch=64)).trial)):
        assert remembered(bare, stored).reasons[-1].endswith(unknown)
    fine = dataclasses.replace(bare, trial=ran(SETTINGS.replace(type_k="f16", type_v="f16")).trial)
    assert remembered(fine, None) == fine

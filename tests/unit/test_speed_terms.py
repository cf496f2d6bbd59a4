"""Amounts of the speed law's terms: nothing is lost between places, and each is what llama.cpp would do."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.doctor.ladder import bytes_per_token
from offloadtune.footprint import Grid
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts, Settings
from offloadtune.speed import amounts_for, amounts_of, terms_of
from offloadtune.speed.blocks import Floats
from offloadtune.speed.terms import Work
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig

NAMES = (("llama-3-8b", "Q4_K_M"), ("gemma-3-270m", "Q4_K_M"), ("mixtral-8x7b", "Q4_K_M"), ("qwen3-30b-a3b", "Q4_K_M"))
FACTS = {name: facts_of_shape(name, quant) for name, quant in NAMES}
ONE = Rig(devices=(DeviceRates(name="CUDA0"),), host=HostRates())
TWO = Rig(devices=(DeviceRates(name="CUDA0"), DeviceRates(name="CUDA1")), host=HostRates(), shares=(2.0, 1.0))
CPU = Rig(devices=(), host=HostRates())
CPU_OF_ONE = Rig(devices=(DeviceRates(name="BLAS", offloads_ops=False),), host=HostRates())

shapes = st.sampled_from(sorted(FACTS))
layers = st.integers(0, 65)


def amounts(
    phase: Phase, facts: GgufFacts, rig: Rig = ONE, n_prompt: int = 512, depth: int = 0, **settings: Any
) -> dict[str, float]:
    """Amounts by name of one query; flash attention and a wide context unless told otherwise."""
    asked: dict[str, Any] = {
        "n_ctx": 8192,
        "n_ubatch": 512,
        "n_batch": 2048,
        "flash_attn_type": "enabled",
        "load_mode": "none",
    }
    one = Settings(**{**asked, **settings})
    found = amounts_for(phase, facts, (one,), rig, n_prompt=n_prompt, depth=depth)
    return {term.name: float(row[0]) for term, row in zip(terms_of(phase, len(rig.devices)), found, strict=True)}


def total(found: dict[str, float], kind: str) -> float:
    """Of all places together."""
    return sum(amount for name, amount in found.items() if name.rpartition(".")[2] == kind)


@given(name=shapes, k=layers, m=layers, rig=st.sampled_from((ONE, TWO)))
def test_a_step_reads_what_a_token_needs_wherever_it_lies(name: str, k: int, m: int, rig: Rig) -> None:
    facts = FACTS[name]
    found = amounts(Phase.DECODE, facts, rig, n_gpu_layers=k, n_cpu_ffn=m)
    assert total(found, "weights") == pytest.approx(bytes_per_token(facts), rel=1e-3)


@given(
    name=shapes,
    k=layers,
    n_away=st.tuples(st.integers(0, 65), st.integers(0, 65)),
    n_prompt=st.integers(1, 4000),
    n_ubatch=st.integers(1, 2048),
)
def test_a_prompt_is_computed_once_wherever_its_weights_lie(
    name: str, k: int, n_away: tuple[int, int], n_prompt: int, n_ubatch: int
) -> None:
    facts = FACTS[name]
    asked: dict[str, Any] = {"n_prompt": n_prompt, "n_ubatch": n_ubatch, "flash_attn_type": "disabled"}
    here = amounts(Phase.PREFILL, facts, n_gpu_layers=k, n_cpu_moe=n_away[0], n_cpu_ffn=n_away[1], **asked)
    full = amounts(Phase.PREFILL, facts, n_gpu_layers=facts.n_layer + 1, **asked)
    for kind in ("flop", "plain_attention"):
        assert total(here, kind) == pytest.approx(total(full, kind), rel=1e-9)
    assert here["ubatches"] == -(-n_prompt // n_ubatch)


@given(name=shapes, k=layers, depth=st.integers(0, 8000), more=st.integers(0, 8000))
def test_a_longer_context_is_never_read_faster(name: str, k: int, depth: int, more: int) -> None:
    facts = FACTS[name]
    for phase in Phase:
        near = amounts(phase, facts, depth=depth, n_gpu_layers=k, n_ctx=32768)
        far = amounts(phase, facts, depth=depth + more, n_gpu_layers=k, n_ctx=32768)
        assert all(far[name] >= near[name] * (1 - 1e-12) for name in near)


def test_weights_are_streamed_only_where_a_device_works_for_the_host() -> None:
    facts = FACTS["llama-3-8b"]
    lent = amounts(Phase.PREFILL, facts, n_prompt=1024, n_ubatch=512, n_gpu_layers=0)
    blocks = sum(tensor.n_bytes for tensor in facts.tensors if tensor.name.startswith("blk."))
    cache = 32 * 2 * 1024 * 2  # layers, K and V, 1024 values of 2 bytes: a cell
    assert lent["link_pinned"] == pytest.approx(2 * blocks + cache * (512 + 1024), rel=0.01)
    assert lent["host.flop"] == pytest.approx(2 * facts.n_embd * facts.n_vocab)  # the output, for one token
    lent_settings: dict[str, Any] = {"n_gpu_layers": 0, "n_ubatch": 512}
    changed: tuple[dict[str, Any], ...] = ({"op_offload": False}, {"n_ubatch": 16}, {"devices": ()})
    for changes in changed:
        kept = amounts(Phase.PREFILL, facts, n_prompt=1024, **{**lent_settings, **changes})
        assert kept["link_pinned"] == kept["0.flop"] == 0
        assert kept["host.flop"] > lent["host.flop"]
    remote = dataclasses.replace(ONE, devices=(DeviceRates(name="RPC0", offloads_ops=False),))
    assert amounts(Phase.PREFILL, facts, remote, n_gpu_layers=0)["link_pinned"] == 0
    plain = amounts(Phase.PREFILL, facts, n_prompt=1024, n_gpu_layers=0, flash_attn_type="disabled")
    assert plain["0.plain_attention"] == lent["0.attention"]
    assert plain["link_pinned"] - lent["link_pinned"] == cache / 2 * (2 * 8192 - 512 - 1024)  # all rows of V
    mapped = amounts(Phase.PREFILL, facts, n_prompt=1024, n_gpu_layers=0, load_mode="mmap")
    assert mapped["link_pageable"] == lent["link_pinned"]
    assert mapped["link_pinned"] == 0


def test_the_last_ubatch_of_a_prompt_may_be_too_short_to_be_lent() -> None:
    facts = FACTS["llama-3-8b"]
    whole = amounts(Phase.PREFILL, facts, n_prompt=512, n_gpu_layers=0)
    longer = amounts(Phase.PREFILL, facts, n_prompt=512 + 31, n_gpu_layers=0)
    assert longer["link_pinned"] == whole["link_pinned"]
    assert longer["host.flop"] > 31 * 2 * 6e9 > whole["host.flop"]


def test_few_tokens_touch_few_experts() -> None:
    facts = FACTS["mixtral-8x7b"]
    experts, dense = sum(facts.expert_bytes), sum(facts.layer_bytes) - sum(facts.expert_bytes)
    output = facts.output_bytes
    for n_seq, share in ((1, 1 / 4), (2, 1 - (3 / 4) ** 2), (4, 1 - (3 / 4) ** 4)):
        found = amounts(Phase.DECODE, facts, n_gpu_layers=33, n_seq_max=n_seq)
        assert found["0.weights"] == pytest.approx(dense + share * experts + output, rel=1e-3)
    apart = amounts(Phase.DECODE, facts, n_gpu_layers=33, n_cpu_moe=32)
    assert apart["host.weights"] == pytest.approx(experts / 4, rel=1e-6)
    assert apart["handovers"] == 2 * 32
    assert apart["mixed"] == 0


def test_feed_forward_weights_in_main_memory_are_read_there_and_lent_from_there() -> None:
    facts = FACTS["llama-3-8b"]
    ffn = sum(one.n_bytes for one in facts.tensors if one.name.startswith("blk.") and ".ffn_norm" not in one.name)
    ffn -= sum(one.n_bytes for one in facts.tensors if ".attn_" in one.name)
    whole, apart = (amounts(Phase.DECODE, facts, n_gpu_layers=33, n_cpu_ffn=m) for m in (0, 32))
    assert apart["host.weights"] == pytest.approx(ffn, rel=1e-6)
    assert apart["0.weights"] + apart["host.weights"] == pytest.approx(whole["0.weights"], rel=1e-9)
    assert (apart["handovers"], apart["mixed"], apart["0.cache"]) == (2 * 32, 0, whole["0.cache"])
    lent = amounts(Phase.PREFILL, facts, n_gpu_layers=33, n_cpu_ffn=32)
    assert lent["link_pinned"] == pytest.approx(ffn, rel=1e-6)  # one ubatch; the cache stays where it is
    assert lent["host.flop"] == 0


def test_cache_kept_in_main_memory_crosses_the_link_or_is_attended_to_there() -> None:
    facts = FACTS["llama-3-8b"]
    kept: dict[str, Any] = {"n_gpu_layers": 33, "offload_kqv": False, "depth": 4000}
    cell = 32 * 2 * 1024 * 2
    flash = amounts(Phase.DECODE, facts, **kept)
    assert (flash["link"], flash["host.cache"]) == (cell * 4096, 0)
    plain = amounts(Phase.DECODE, facts, flash_attn_type="disabled", **kept)
    assert (plain["link"], plain["host.plain_cache"], plain["0.plain_cache"]) == (0, cell * 4096, 0)


def test_a_window_bounds_what_is_read_and_attended_to() -> None:
    facts = FACTS["gemma-3-270m"]
    slim, whole = (
        amounts(Phase.DECODE, facts, depth=8000, n_gpu_layers=99, swa_full=swa_full) for swa_full in (False, True)
    )
    assert slim["0.cache"] < whole["0.cache"] / 3


def test_the_cpu_passes_over_masked_cells_here_and_elsewhere() -> None:
    """With flash attention: later tokens of a ubatch, and what lies outside a window even if the cache holds it."""
    facts = FACTS["gemma-3-270m"]
    remote = dataclasses.replace(ONE, devices=(DeviceRates(name="RPC0", offloads_ops=False),))
    here, there, card = (
        sum(
            amounts(Phase.PREFILL, facts, rig, n_prompt=64, depth=4000, n_gpu_layers=k)[f"{place}.attention"]
            for place in ("0", "host")
        )
        for rig, k in ((CPU_OF_ONE, 0), (remote, 99), (ONE, 99))
    )
    n_window, n_whole = sum(facts.is_swa), facts.n_layer - sum(facts.is_swa)
    a_cell = 64 * 2 * facts.n_head[0] * 2 * facts.n_embd_head_k
    assert here == there == a_cell * (n_window * 512 + n_whole * (4000 + 32))
    assert card == a_cell * facts.n_layer * (4000 + 64)
    for phase in Phase:
        near, far = (amounts(phase, facts, remote, depth=depth, n_gpu_layers=99) for depth in (600, 5000))
        windows_alone = n_window / facts.n_layer
        kind = "cache" if phase is Phase.DECODE else "attention"
        assert far[f"0.{kind}"] / near[f"0.{kind}"] < (1 - windows_alone) * 9 + windows_alone + 0.3


@given(name=shapes, k=layers)
def test_threads_slow_only_the_host(name: str, k: int) -> None:
    facts = FACTS[name]
    grid = Grid.over(facts.n_layer, n_gpu_layers=k, n_ctx=4096, flash=True, op_offload=False)
    for phase in Phase:
        plain, slowed = (
            amounts_of(phase, facts, grid, Work.over(1, n_prompt=300, slower_memory=slow, slower_compute=slow), ONE)
            for slow in (1.0, 3.0)
        )
        for term, before, after in zip(terms_of(phase, 1), plain[:, 0], slowed[:, 0], strict=True):
            counts = term.place == "host" and term.name != "host.blocks"
            assert after == pytest.approx(3 * before if counts else before)


def test_many_queries_are_each_what_it_is_alone() -> None:
    facts, chance = FACTS["qwen3-30b-a3b"], np.random.default_rng(7)
    n = 10_011
    columns = {
        "n_gpu_layers": chance.integers(0, 50, n),
        "n_cpu_moe": chance.integers(0, 49, n),
        "n_cpu_ffn": chance.integers(0, 49, n),
        "n_ubatch": chance.integers(1, 600, n),
        "flash": chance.integers(0, 2, n) == 1,
    }
    asked: dict[str, Any] = {"n_prompt": chance.integers(1, 3000, n), "depth": chance.integers(0, 3000, n)}
    for phase in Phase:
        together = amounts_of(
            phase, facts, Grid.over(facts.n_layer, n_ctx=8192, n_batch=600, **columns), Work.over(n, **asked), TWO
        )
        for i in (0, 4_999, 5_000, n - 1):
            grid = Grid.over(facts.n_layer, n_ctx=8192, n_batch=600, **{key: col[i] for key, col in columns.items()})
            alone: Floats = amounts_of(
                phase, facts, grid, Work.over(1, **{key: col[i] for key, col in asked.items()}), TWO
            )
            np.testing.assert_allclose(together[:, i], alone[:, 0], rtol=1e-12)


def test_without_devices_all_is_on_the_host() -> None:
    found = amounts(Phase.PREFILL, FACTS["llama-3-8b"], CPU, n_gpu_layers=0)
    assert found["link_pinned"] == found["mixed"] == 0
    assert found["host.flop"] > 512 * 2 * 6e9


def test_every_term_says_what_it_is() -> None:
    for phase in Phase:
        terms = terms_of(phase, 2)
        assert len({term.words for term in terms}) == len(terms)
        assert {term.unit for term in terms} == {"bytes", "count", "flop"}

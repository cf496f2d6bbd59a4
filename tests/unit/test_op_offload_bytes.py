"""What op offload copies: the scheduler's log is read as it is printed, and the rule foretells it to the byte."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts, Settings

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

streamed: Any = importlib.import_module("streamed_bytes")
runs: Any = importlib.import_module("op_offload_runs")

LOG = """\
load_tensors: layer   0 assigned to device CPU, is_swa = 0

## CLOCK 1000 700 30

## SPLIT #0: CPU # 0 inputs

## SPLIT #1: Vulkan0 # 1 inputs: [embd ( 144K)]\x20

## SPLIT #3: Vulkan0 # 2 inputs: [blk.0.attn_q.weight ( 202K)] [inp_pos (   0K)]\x20

## SPLIT #6: CPU # 2 inputs: [Kcur-0 (view) (  48K)] [Vcur-0 (reshaped) (reshaped) (  48K)]\x20

## SPLIT #7: Vulkan0 # 2 inputs: [cache_k_l0 (view) (permuted) (  96K)] [cache_v_l0 (view) (permuted) (  95M)]\x20

## CLOCK 5000 3700 40

## SPLIT #0: CPU # 0 inputs
"""
"""As llama.cpp v0.5.0 prints it; the lines of the clocks are the worker's."""

FIELDS: dict[str, Any] = {"load_mode": "none", "n_outputs_max": 1, "flash_attn_type": "enabled"}
N_BLOCKS = 30
BLOCK_BYTES = 2_216_448
FFN_OF_LAST_BYTES = 3 * 576 * 1536 * 20 // 32 + 576 * 4
KV_BYTES_OF_256 = 2 * 256 * 192 * 2


@pytest.fixture(scope="module")
def facts(smollm2_path: Path) -> GgufFacts:
    return read_gguf(smollm2_path)


def settings(**fields: Any) -> Settings:
    return Settings(**(FIELDS | fields))


def bytes_of(facts: GgufFacts, asked: Settings, n_prompt: int = 128) -> list[int]:
    """Bytes that each ubatch has streamed, by the rule."""
    return [
        sum(n_bytes for _, n_bytes in streamed.copies_by_rule(facts, asked, one))
        for one in streamed.ubatches_of(n_prompt, asked.n_ubatch)
    ]


def log_of(copies: list[tuple[str, int]]) -> str:
    """A graph that copies these, one a split."""
    lines = ["## CLOCK 0 0 0", "## SPLIT #0: CPU # 0 inputs"]
    for i, (name, n_bytes) in enumerate(copies, 1):
        lines.append(f"## SPLIT #{i}: Vulkan0 # 1 inputs: [{name} ({streamed.printed_size(n_bytes):>5})] ")
    return "\n".join(lines)


# --- the log ---


def test_the_log_is_read_as_it_is_printed() -> None:
    first, second = streamed.graphs_of(LOG)
    assert (first.at_ns, first.at_cpu_ns, first.at_busy_ns) == (1000, 700, 30)
    assert (second.at_ns, second.copies) == (5000, ())
    assert [(copy.name, copy.printed) for copy in first.to_device] == [
        ("embd", "144K"),
        ("blk.0.attn_q.weight", "202K"),
        ("inp_pos", "0K"),
        ("cache_k_l0 (view) (permuted)", "96K"),
        ("cache_v_l0 (view) (permuted)", "95M"),
    ]
    assert [copy.name for copy in first.copies if copy.is_to_host] == ["Kcur-0 (view)", "Vcur-0 (reshaped) (reshaped)"]


def test_bytes_by_the_log_are_those_of_the_file(facts: GgufFacts) -> None:
    found = streamed.streamed_by_log(streamed.graphs_of(LOG)[0], facts)
    assert found == streamed.Streamed(
        n_copies=3, weights_bytes=576 * 576 * 20 // 32, cache_bytes=(96 << 10) + (95 << 20)
    )


@pytest.mark.parametrize(
    "broken",
    [
        "## CLOCK 0 0 0\n## SPLIT #1: Vulkan0 # 2 inputs: [embd ( 144K)] ",
        "## CLOCK 0 0 0\n## SPLIT #1: Vulkan0 # 1 inputs: [embd ( 14",
        "## SPLIT #0: CPU # 0 inputs",
    ],
    ids=["an input is missing", "cut off", "no clock"],
)
def test_a_log_that_is_not_understood_is_no_log_without_copies(broken: str) -> None:
    with pytest.raises(ValueError, match="not understood"):
        streamed.graphs_of(broken)


@given(st.integers(0, 1 << 40))
def test_sizes_are_printed_rounded_down(n_bytes: int) -> None:
    text = streamed.printed_size(n_bytes)
    unit = 1 << 20 if text.endswith("M") else 1 << 10
    assert int(text[:-1]) * unit <= n_bytes < (int(text[:-1]) + 1) * unit


# --- the rule ---


def test_a_whole_host_streams_all_blocks_but_what_follows_the_last_attention(facts: GgufFacts) -> None:
    expected = N_BLOCKS * (BLOCK_BYTES + KV_BYTES_OF_256) - FFN_OF_LAST_BYTES
    assert bytes_of(facts, settings(n_ubatch=128)) == [expected]
    assert bytes_of(facts, settings(n_ubatch=64)) == [expected] * 2  # the second sees no more than 256 cells either


def test_half_a_host_streams_whole_blocks(facts: GgufFacts) -> None:
    assert bytes_of(facts, settings(n_gpu_layers=15, n_ubatch=128)) == [16 * (BLOCK_BYTES + KV_BYTES_OF_256)]


@pytest.mark.parametrize(
    ("asked", "n_prompt"),
    [
        (settings(op_offload=False), 128),
        (settings(n_gpu_layers=31), 128),
        (settings(n_ubatch=31), 124),
    ],
    ids=["not asked for", "all on the device", "too few tokens"],
)
def test_nothing_is_streamed(facts: GgufFacts, asked: Settings, n_prompt: int) -> None:
    assert not any(bytes_of(facts, asked, n_prompt))


def test_what_is_left_of_a_prompt_streams_from_32_tokens_on(facts: GgufFacts) -> None:
    assert [bool(n_bytes) for n_bytes in bytes_of(facts, settings(n_ubatch=64), 64 + 31)] == [True, False]
    assert [bool(n_bytes) for n_bytes in bytes_of(facts, settings(n_ubatch=64), 64 + 32)] == [True, True]


def test_the_view_of_values_without_flash_attention_reaches_over_the_context(facts: GgufFacts) -> None:
    ubatch = streamed.ubatches_of(32, 64)[0]
    asked = settings(flash_attn_type="disabled", type_v="f32", n_ctx=131072)
    keys, values = streamed.cache_view_bytes(facts, asked, ubatch, 0)
    assert (keys, values) == (256 * 192 * 2, (191 * 131072 + 256) * 4)
    assert streamed.printed_size(values) == "95M"  # as the log has it


@given(n_prompt=st.integers(1, 3000), n_ubatch=st.integers(1, 600))
def test_ubatches_are_the_prompt(n_prompt: int, n_ubatch: int) -> None:
    found = streamed.ubatches_of(n_prompt, n_ubatch)
    assert sum(one.n_tokens for one in found) == n_prompt
    assert len(found) == math.ceil(n_prompt / n_ubatch)
    assert [one.n_outputs for one in found] == [0] * (len(found) - 1) + [1]
    assert all(after.depth == before.depth + before.n_tokens for before, after in itertools.pairwise(found))


# --- side by side ---


def test_log_and_rule_agree_where_they_are_alike(facts: GgufFacts) -> None:
    copies = streamed.copies_by_rule(facts, settings(), streamed.ubatches_of(128, 128)[0])
    (graph,) = streamed.graphs_of(log_of(copies))
    assert streamed.differences(graph, copies, facts) == []
    assert streamed.streamed_by_log(graph, facts) == streamed.streamed_by_rule(copies)


def test_what_one_of_them_lacks_is_named(facts: GgufFacts) -> None:
    copies = streamed.copies_by_rule(facts, settings(), streamed.ubatches_of(128, 128)[0])
    (graph,) = streamed.graphs_of(log_of(copies[1:]))
    assert streamed.differences(graph, copies, facts) == [
        f"only by the rule: {copies[0][0]} {streamed.printed_size(copies[0][1])}"
    ]
    (graph,) = streamed.graphs_of(log_of([*copies, copies[-1]]))
    assert streamed.differences(graph, copies, facts) == [f"only in the log: {copies[-1][0]} 96K"]


def test_a_size_that_differs_is_named(facts: GgufFacts) -> None:
    copies = streamed.copies_by_rule(facts, settings(), streamed.ubatches_of(128, 128)[0])
    name, n_bytes = copies[-1]
    (graph,) = streamed.graphs_of(log_of([*copies[:-1], (name, 2 * n_bytes)]))
    assert streamed.differences(graph, copies, facts) == [
        f"only in the log: {name} 192K",
        f"only by the rule: {name} 96K",
    ]


# --- the work ---


def test_streamed_blocks_are_computed_by_the_device(facts: GgufFacts) -> None:
    on_device = runs.configured(facts, runs.settings_of(31, 64, op_offload=True), 128).work
    lent = runs.configured(facts, runs.settings_of(15, 64, op_offload=True), 128).work
    assert lent["device_flop"] == on_device["device_flop"]
    assert lent["device_bytes"] == on_device["device_bytes"]
    assert (lent["host_flop"], on_device["streamed_bytes"]) == (0, 0)
    assert lent["streamed_bytes"] == 2 * 16 * (BLOCK_BYTES + KV_BYTES_OF_256)


@given(n_gpu_layers=st.integers(0, 31), n_ubatch=st.integers(1, 256), op_offload=st.booleans())
def test_products_are_computed_somewhere_whatever_the_placement(
    facts: GgufFacts, n_gpu_layers: int, n_ubatch: int, *, op_offload: bool
) -> None:
    asked = runs.settings_of(n_gpu_layers, n_ubatch, op_offload=op_offload)
    whole = runs.configured(facts, asked.replace(n_gpu_layers=31), 128).work
    work = runs.configured(facts, asked, 128).work
    assert work["device_flop"] + work["host_flop"] == pytest.approx(whole["device_flop"])
    assert work["ubatches"] == math.ceil(128 / n_ubatch)

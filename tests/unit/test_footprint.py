"""Predicted bytes: golden vectors of the real engine (reference/llama_cpp_internals.md), and what must always hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import MIB, made_up_facts

from offloadtune.footprint import Footprint, estimate_footprint, kv_cache_bytes, kv_cache_layer_bytes, pad_256
from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts, Settings, TensorFacts

FULL = 1 << 20
CELLS = st.integers(1, 40_000)
BATCHES = st.integers(1, 4096)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> GgufFacts:
    return read_gguf(smollm2_path)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> GgufFacts:
    return read_gguf(gemma3_path)


# --- golden vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_gpu_layers", "weights_bytes"),
    [
        (0, 0),
        (1, 30_083_328),
        (2, 32_299_776),
        (10, 50_031_360),
        (30, 94_360_320),
        (31, 96_576_768),
        (99, 96_576_768),
        (-1, 96_576_768),
    ],
)
def test_weights_on_the_device_are_those_of_the_engine(
    smollm2: GgufFacts, n_gpu_layers: int, weights_bytes: int
) -> None:
    assert estimate_footprint(smollm2, Settings(n_gpu_layers=n_gpu_layers)).weights_bytes == weights_bytes


@pytest.mark.parametrize(
    ("kv_type", "cache_bytes"), [("f16", 94_371_840), ("q8_0", 50_135_040), ("f32", 188_743_680), ("q4_0", 26_542_080)]
)
def test_cache_is_that_of_the_engine(smollm2: GgufFacts, kv_type: str, cache_bytes: int) -> None:
    settings = Settings(n_ctx=4096, type_k=kv_type, type_v=kv_type)
    assert kv_cache_bytes(smollm2, settings) == cache_bytes
    assert estimate_footprint(smollm2, settings.replace(n_gpu_layers=31)).kv_cache_bytes == cache_bytes


@pytest.mark.parametrize(("n_gpu_layers", "n_layers_with_cache"), [(0, 0), (1, 0), (2, 1), (10, 9), (30, 29), (31, 30)])
def test_cache_follows_its_layer(smollm2: GgufFacts, n_gpu_layers: int, n_layers_with_cache: int) -> None:
    footprint = estimate_footprint(smollm2, Settings(n_gpu_layers=n_gpu_layers, n_ctx=4096))
    assert footprint.kv_cache_bytes == 94_371_840 * n_layers_with_cache // 30


def test_keys_and_values_may_differ(smollm2: GgufFacts) -> None:
    mixed = kv_cache_bytes(smollm2, Settings(n_ctx=4096, type_k="q8_0"))
    assert mixed == (94_371_840 + 50_135_040) // 2


def test_cache_kept_on_the_host_takes_nothing_on_the_device(smollm2: GgufFacts) -> None:
    assert estimate_footprint(smollm2, Settings(n_gpu_layers=31, offload_kqv=False)).kv_cache_bytes == 0


@pytest.mark.parametrize(("flash_attn_type", "bytes_per_cell"), [("disabled", 4 * 9 + 4), ("enabled", 2), ("auto", 2)])
def test_compute_buffer_grows_with_the_context_as_the_engines_does(
    smollm2: GgufFacts, flash_attn_type: str, bytes_per_cell: int
) -> None:
    """Without flash attention every head's scores and the mask stand in memory, with it the mask alone."""
    settings = Settings(n_gpu_layers=31, n_ctx=4096, n_outputs_max=1, flash_attn_type=flash_attn_type)
    small, large = (estimate_footprint(smollm2, settings.replace(n_ctx=n)).compute_bytes for n in (4096, 16384))
    assert large - small == 512 * bytes_per_cell * (16384 - 4096)


def test_compute_buffer_of_one_token_is_the_measured_one(smollm2: GgufFacts) -> None:
    """The engine's takes 25364 bytes a token of the ubatch, mask apart, when everything is offloaded."""
    settings = Settings(n_gpu_layers=31, n_ctx=4096, flash_attn_type="enabled", n_outputs_max=1)
    one, two = (estimate_footprint(smollm2, settings.replace(n_ubatch=n)).compute_bytes for n in (100, 101))
    assert two - one - 2 * 4096 == 25_364


def test_compute_buffer_holds_a_row_of_logits_for_every_output(smollm2: GgufFacts) -> None:
    settings = Settings(n_gpu_layers=31, n_ctx=1024)
    assert estimate_footprint(smollm2, settings).compute_bytes == 512 * 4 * (49152 + 576)


# --- sliding window ------------------------------------------------------------------------------------------------


def test_full_size_window_cache_is_that_of_plain_attention(gemma3: GgufFacts) -> None:
    settings = Settings(n_ctx=8192, n_batch=2048, swa_full=True)
    plain = dataclasses.replace(gemma3, n_swa=0, is_swa=(False,) * gemma3.n_layer)
    assert kv_cache_bytes(gemma3, settings) == kv_cache_bytes(plain, settings) == 18 * 8192 * (256 + 256) * 2


def test_window_cache_holds_the_window_and_one_ubatch(gemma3: GgufFacts) -> None:
    """15 of Gemma-3's 18 blocks slide over 512 tokens: 512 + 512 cells there, 8192 in the other three."""
    settings = Settings(n_ctx=8192, n_batch=2048, swa_full=False)
    assert kv_cache_bytes(gemma3, settings) == (15 * 1024 + 3 * 8192) * (256 + 256) * 2
    larger = settings.replace(n_ubatch=1000)  # 512 + 1000, up to whole blocks of 256
    assert kv_cache_bytes(gemma3, larger) == (15 * 1536 + 3 * 8192) * (256 + 256) * 2


def test_window_cache_is_never_larger_than_the_context(gemma3: GgufFacts) -> None:
    settings = Settings(n_ctx=512, n_batch=2048, n_ubatch=2048, swa_full=False)
    assert kv_cache_bytes(gemma3, settings) == kv_cache_bytes(gemma3, settings.replace(swa_full=True))


def test_window_cache_of_several_sequences(gemma3: GgufFacts) -> None:
    """One shared cache holds a window for each sequence; separate ones split the context, a window and ubatch each."""
    settings = Settings(n_ctx=16384, n_seq_max=4, swa_full=False)
    i_swa, i_full = gemma3.is_swa.index(True), gemma3.is_swa.index(False)
    cell = (256 + 256) * 2
    shared = settings.replace(kv_unified=True)
    assert kv_cache_layer_bytes(gemma3, shared, i_swa) == (4 * 512 + 512) * cell
    assert kv_cache_layer_bytes(gemma3, settings, i_swa) == 4 * (512 + 512) * cell
    assert (
        kv_cache_layer_bytes(gemma3, shared, i_full) == kv_cache_layer_bytes(gemma3, settings, i_full) == 16384 * cell
    )


def test_separate_sequences_are_each_rounded_up(smollm2: GgufFacts) -> None:
    """512 cells over three sequences are 170 each, so 256 each."""
    apart, together = Settings(n_ctx=512, n_seq_max=3), Settings(n_ctx=512, n_seq_max=3, kv_unified=True)
    assert kv_cache_bytes(smollm2, apart) == kv_cache_bytes(smollm2, together) // 2 * 3


# --- what is only an estimate --------------------------------------------------------------------------------------

EVERYTHING = Settings(n_gpu_layers=13, n_ctx=4096)


@pytest.mark.parametrize(
    "key",
    [
        "llama.attention.compress_ratios",
        "llama.attention.shared_kv_layers",
        "llama.attention.recurrent_layers",
        "llama.ssm.state_size",
        "llama.wkv.head_size",
        "llama.wkv_head_size",
        "llama.time_mix_extra_dim",
        "llama.time_decay_extra_dim",
        "llama.token_shift_count",
        "llama.kda.head_dim",
        "llama.shortconv.l_cache",
        "llama.full_attention_interval",
    ],
)
def test_where_the_engine_may_keep_less_cache_than_the_rule_only_weights_are_certain(key: str) -> None:
    footprint = estimate_footprint(made_up_facts(keys={key: 4}), EVERYTHING)
    assert footprint.kv_cache_bytes > 0
    assert footprint.least_bytes == footprint.weights_bytes
    assert footprint.bytes == footprint.weights_bytes + footprint.kv_cache_bytes + footprint.compute_bytes


def test_keys_of_plain_attention_leave_the_cache_certain() -> None:
    facts = made_up_facts(
        keys={"llama.attention.key_length": 64, "llama.attention.kv_lora_rank": 8, "other.ssm.state_size": 1}
    )
    footprint = estimate_footprint(facts, EVERYTHING)
    assert footprint.least_bytes == footprint.weights_bytes + footprint.kv_cache_bytes


def test_shared_caches_are_kept_once() -> None:
    """Gemma 3n keeps caches for its first 20 blocks, Gemma 4 for all but those its header counts."""
    facts = made_up_facts((MIB,) * 24)
    plain = kv_cache_bytes(facts, EVERYTHING)
    shared = dataclasses.replace(
        made_up_facts((MIB,) * 24, keys={"gemma4.attention.shared_kv_layers": 6}), arch="gemma4"
    )
    assert kv_cache_bytes(dataclasses.replace(facts, arch="gemma3n"), EVERYTHING) == plain * 20 // 24
    assert kv_cache_bytes(shared, EVERYTHING) == plain * 18 // 24


def test_blocks_that_predict_further_tokens_take_a_place_but_no_bytes() -> None:
    """They stand at the end, so they are the first that n_gpu_layers counts after the output layer."""
    facts = made_up_facts((10 * MIB,) * 10 + (500 * MIB,) * 2, n_layer_nextn=2)
    output_only = estimate_footprint(facts, EVERYTHING.replace(n_gpu_layers=3))
    assert (output_only.weights_bytes, output_only.kv_cache_bytes) == (facts.output_bytes, 0)
    everything = estimate_footprint(facts, EVERYTHING)
    assert everything.weights_bytes == 100 * MIB + facts.output_bytes
    assert everything.least_bytes == everything.weights_bytes + everything.kv_cache_bytes
    assert (
        everything.kv_cache_bytes
        == kv_cache_bytes(facts, EVERYTHING)
        == 10 * kv_cache_layer_bytes(facts, EVERYTHING, 0)
    )


def test_embeddings_per_layer_are_not_copied_to_the_output() -> None:
    tied = made_up_facts(is_tied=True)
    tensors = (
        TensorFacts(
            name="per_layer_token_embd.weight", type_name="F16", shape=(1,), n_bytes=7 * MIB, offset=0, i_shard=0
        ),
    )
    with_more = dataclasses.replace(
        tied, tensors=tied.tensors + tensors, embedding_bytes=tied.embedding_bytes + 7 * MIB
    )
    assert estimate_footprint(with_more, EVERYTHING) == estimate_footprint(tied, EVERYTHING)


# --- what must always hold -----------------------------------------------------------------------------------------

FACTS = st.builds(
    made_up_facts,
    st.lists(st.integers(0, 1 << 20).map(lambda n: 32 * n), min_size=1, max_size=40),  # aligned as the engine aligns
    n_swa=st.sampled_from([0, 128, 1024]),
    is_tied=st.booleans(),
)
SETTINGS = st.builds(
    Settings,
    devices=st.sampled_from([None, ()]),
    n_gpu_layers=st.integers(-1, 60),
    n_ctx=CELLS,
    n_batch=BATCHES,
    n_ubatch=BATCHES,
    n_seq_max=st.integers(1, 4),
    n_outputs_max=st.sampled_from([0, 1, 4]),
    flash_attn_type=st.sampled_from(["auto", "disabled", "enabled"]),
    type_k=st.sampled_from(["f16", "q8_0", "q4_0"]),
    type_v=st.sampled_from(["f16", "q8_0", "q4_0"]),
    offload_kqv=st.booleans(),
    swa_full=st.booleans(),
    kv_unified=st.booleans(),
)


@given(FACTS, SETTINGS)
def test_bytes_are_never_negative_and_add_up(facts: GgufFacts, settings: Settings) -> None:
    footprint = estimate_footprint(facts, settings)
    assert min(dataclasses.astuple(footprint)) >= 0
    assert footprint.least_bytes == footprint.weights_bytes + footprint.kv_cache_bytes
    assert footprint.bytes == footprint.least_bytes + footprint.compute_bytes
    assert kv_cache_bytes(facts, settings) >= footprint.kv_cache_bytes


@given(FACTS, SETTINGS)
def test_nothing_offloaded_is_nothing_and_everything_is_the_file(facts: GgufFacts, settings: Settings) -> None:
    nothing = Footprint(weights_bytes=0, kv_cache_bytes=0, compute_bytes=0, least_bytes=0)
    assert estimate_footprint(facts, settings.replace(devices=())) == nothing
    assert estimate_footprint(facts, settings.replace(n_gpu_layers=0)) == nothing
    everything = estimate_footprint(facts, settings.replace(devices=None, n_gpu_layers=FULL))
    embedding = facts.embedding_bytes if facts.is_tied else 0
    assert everything.weights_bytes == sum(facts.layer_bytes) + facts.output_bytes + embedding


@given(FACTS, SETTINGS, st.integers(0, 60), st.integers(0, 60))
def test_more_layers_never_take_fewer_bytes(facts: GgufFacts, settings: Settings, one: int, other: int) -> None:
    """But for the compute buffer: what a place computes decides it, not how many layers it has."""
    less, more = (estimate_footprint(facts, settings.replace(n_gpu_layers=k)) for k in sorted((one, other)))
    assert less.weights_bytes <= more.weights_bytes
    assert less.kv_cache_bytes <= more.kv_cache_bytes
    assert less.least_bytes <= more.least_bytes


@given(FACTS, SETTINGS, CELLS, CELLS)
def test_more_context_never_takes_fewer_bytes(facts: GgufFacts, settings: Settings, one: int, other: int) -> None:
    """But for the compute buffer: a longer mask may leave a place that something else fits into."""
    less, more = (estimate_footprint(facts, settings.replace(n_ctx=n_ctx)) for n_ctx in sorted((one, other)))
    assert less.weights_bytes == more.weights_bytes
    assert less.kv_cache_bytes <= more.kv_cache_bytes
    assert less.least_bytes <= more.least_bytes


@given(FACTS, SETTINGS, BATCHES, BATCHES)
def test_larger_ubatch_never_takes_fewer_bytes(facts: GgufFacts, settings: Settings, one: int, other: int) -> None:
    less, more = (settings.replace(n_ubatch=n_ubatch) for n_ubatch in sorted((one, other)))
    assert_no_less(estimate_footprint(facts, less), estimate_footprint(facts, more))


@given(FACTS, SETTINGS)
def test_window_cache_is_never_larger_than_the_full_one(facts: GgufFacts, settings: Settings) -> None:
    slim, full = (kv_cache_bytes(facts, settings.replace(swa_full=swa_full)) for swa_full in (False, True))
    assert slim <= full
    if not facts.n_swa:
        assert slim == full


@given(CELLS)
def test_contexts_are_rounded_up_to_256(n_cells: int) -> None:
    assert pad_256(n_cells) % 256 == 0
    assert n_cells <= pad_256(n_cells) < n_cells + 256


def assert_no_less(less: Footprint, more: Footprint) -> None:
    assert all(a <= b for a, b in zip(dataclasses.astuple(less), dataclasses.astuple(more), strict=True))

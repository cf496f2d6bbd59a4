"""Laws that hold for every published shape, any settings, and any number of devices."""

from __future__ import annotations

import functools
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offloadtune import catalogue
from offloadtune.footprint import BYTES_OF_32, CUDA, GENERIC, HOST, Grid, Room, fits, grid_of, largest_contexts, reckon
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts, Settings

SHAPES = catalogue.shape_names()
QUANTS = ("Q4_K_M", "Q8_0", "IQ4_XS", "F16")
MIB = 1 << 20


@functools.cache
def facts_of(name: str, quant: str) -> GgufFacts:
    return facts_of_shape(name, quant)


FACTS = st.tuples(st.sampled_from(SHAPES), st.sampled_from(QUANTS)).map(lambda pair: facts_of(*pair))
FIELDS = st.fixed_dictionaries(
    {
        "n_gpu_layers": st.integers(0, 130),
        "n_ctx": st.integers(1, 300_000),
        "n_batch": st.integers(1, 4096),
        "n_ubatch": st.integers(1, 4096),
        "n_seq_max": st.integers(1, 8),
        "n_outputs_max": st.sampled_from([0, 8, 512]),
        "n_cpu_moe": st.integers(0, 130),
        "n_cpu_ffn": st.sampled_from([0, 1, 20, 130]),
        "k32": st.sampled_from(sorted(BYTES_OF_32.values())),
        "v32": st.sampled_from(sorted(BYTES_OF_32.values())),
        "flash": st.booleans(),
        "unified": st.booleans(),
        "swa_full": st.booleans(),
        "offload_kqv": st.booleans(),
        "op_offload": st.booleans(),
    }
)
SHARES = st.lists(st.floats(0.05, 100.0), min_size=1, max_size=4)


@given(FACTS, FIELDS, SHARES)
def test_what_is_not_on_a_device_is_on_the_host(facts: GgufFacts, fields: dict[str, Any], shares: list[float]) -> None:
    """Weights and cache are only moved about; a tied embedding and small shared tensors have a copy in each place."""
    n = len(shares)
    found = reckon(facts, Grid.over(facts.n_layer, **fields), (HOST,) * n, shares)
    home = reckon(facts, Grid.over(facts.n_layer, **{**fields, "n_gpu_layers": 0}), (HOST,) * n, shares)
    copies = sum(t.n_bytes for t in facts.tensors if t.name.startswith(("token_embd.", "rope_f"))) * (n + 1)
    weights = int(found.weights_bytes.sum()) + int(found.host_weights_bytes.sum())
    assert 0 <= weights - int(home.host_weights_bytes[0]) <= copies
    cache = int(found.kv_cache_bytes.sum()) + int(found.host_kv_cache_bytes.sum())
    assert cache == int(home.host_kv_cache_bytes[0])


@given(FACTS, FIELDS, SHARES, st.sampled_from([HOST, GENERIC, CUDA]))
def test_nothing_is_negative(facts: GgufFacts, fields: dict[str, Any], shares: list[float], backend: Any) -> None:
    found = reckon(facts, Grid.over(facts.n_layer, **fields), (backend,) * len(shares), shares)
    for name in found.__dataclass_fields__:
        assert (getattr(found, name) >= 0).all(), name
    assert (found.device_bytes == found.weights_bytes + found.kv_cache_bytes + found.compute_bytes).all()


@given(FACTS, FIELDS)
def test_weights_and_cache_grow_with_layers_and_context(facts: GgufFacts, fields: dict[str, Any]) -> None:
    layers = np.arange(facts.n_layer + 2)
    found = reckon(facts, Grid.over(facts.n_layer, **{**fields, "n_gpu_layers": layers}), (CUDA,))
    contexts = np.arange(1, 40) * 1000
    longer = reckon(facts, Grid.over(facts.n_layer, **{**fields, "n_ctx": contexts}), (CUDA,))
    for kind in (found.weights_bytes, found.kv_cache_bytes, longer.weights_bytes, longer.kv_cache_bytes):
        assert (np.diff(kind[0]) >= 0).all()


@given(FACTS, FIELDS)
def test_compute_grows_with_the_ubatch(facts: GgufFacts, fields: dict[str, Any]) -> None:
    """On the host only as long as no device begins to work for it."""
    ubatches = np.array([1, 16, 31, 32, 64, 512, 1000, 4096])
    grid = Grid.over(facts.n_layer, **{**fields, "n_batch": 4096, "n_ctx": 8192, "n_ubatch": ubatches})
    assert (np.diff(reckon(facts, grid, (CUDA,)).compute_bytes[0]) >= 0).all()
    assert (np.diff(reckon(facts, grid, (HOST,)).host_compute_bytes) >= 0).all()


@given(FACTS, FIELDS)
def test_experts_kept_in_main_memory_leave_the_device(facts: GgufFacts, fields: dict[str, Any]) -> None:
    kept = np.arange(facts.n_layer + 1)
    everything = {**fields, "n_gpu_layers": facts.n_layer + 1, "n_cpu_moe": kept}
    found = reckon(facts, Grid.over(facts.n_layer, **everything), (HOST,))
    weights = found.weights_bytes[0]
    assert (np.diff(weights) <= 0).all()
    assert (weights + found.host_weights_bytes == weights[0] + found.host_weights_bytes[0]).all()
    assert weights[0] - weights[-1] == sum(facts.expert_bytes[: facts.n_layer - facts.n_layer_nextn])


@given(FACTS, FIELDS)
def test_feed_forward_weights_kept_in_main_memory_leave_the_device(facts: GgufFacts, fields: dict[str, Any]) -> None:
    kept = np.arange(facts.n_layer + 1)
    everything = {**fields, "n_gpu_layers": facts.n_layer + 1, "n_cpu_ffn": kept}
    found = reckon(facts, Grid.over(facts.n_layer, **everything), (HOST,))
    weights = found.weights_bytes[0]
    assert (np.diff(weights) <= 0).all()
    assert (weights + found.host_weights_bytes == weights[0] + found.host_weights_bytes[0]).all()
    n_trunk = facts.n_layer - facts.n_layer_nextn
    named = re.compile(r"blk\.(\d+)\.ffn_(up|down|gate)\.")
    blocks = [(t, named.match(t.name)) for t in facts.tensors]
    assert weights[0] - weights[-1] == sum(-(-t.n_bytes // 32) * 32 for t, at in blocks if at and int(at[1]) < n_trunk)


@given(FACTS, FIELDS, st.integers(200, 60_000))
def test_the_largest_context_is_the_largest(facts: GgufFacts, fields: dict[str, Any], free_mib: int) -> None:
    """It fits, and 256 tokens more do not."""
    room = room_of(free_mib * MIB)
    settings = Settings(n_seq_max=1, n_outputs_max=1, swa_full=fields["swa_full"], flash_attn_type="enabled")
    layers = np.array([0, facts.n_layer // 2, facts.n_layer + 1])

    def do_fit(n_ctx: NDArray[np.int64]) -> NDArray[np.bool_]:
        grid = grid_of(facts, settings, n_gpu_layers=layers, n_ctx=n_ctx)
        return fits(reckon(facts, grid, room.backends, room.shares), room, is_mapped=True)

    n_ctx_most = facts.n_ctx_train or 1 << 17
    largest = largest_contexts(n_ctx_most, len(layers), do_fit)
    is_more_possible = largest + 256 <= n_ctx_most
    assert (do_fit(np.maximum(largest, 1)) | (largest == 0)).all()
    assert not (do_fit(largest + 256) & is_more_possible).any()


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_is_as_large_as_its_parts(name: str) -> None:
    """Everything on the device and the input's embedding on the host: all tensors, tied ones twice."""
    facts = facts_of(name, "Q4_K_M")
    found = reckon(facts, Grid.over(facts.n_layer, n_gpu_layers=-1), (HOST,))
    n_trunk = facts.n_layer - facts.n_layer_nextn
    loaded = sum(facts.layer_bytes[:n_trunk]) + facts.embedding_bytes + facts.output_bytes + facts.other_bytes
    tied = next(t.n_bytes for t in facts.tensors if t.name == "token_embd.weight") if facts.is_tied else 0
    padding = 32 * len(facts.tensors)
    total = int(found.weights_bytes[0, 0]) + int(found.host_weights_bytes[0])
    assert loaded + tied <= total <= loaded + tied + padding


@pytest.mark.slow
def test_a_million_settings_are_reckoned() -> None:
    """How many a second is printed, and not asserted."""
    facts, n, chance = facts_of("llama-3-8b", "Q4_K_M"), 1_000_000, np.random.default_rng(0)
    layers, contexts = chance.integers(0, facts.n_layer + 2, n), chance.integers(256, 8192, n)
    start_s = time.perf_counter()
    grid = Grid.over(facts.n_layer, n_gpu_layers=layers, n_ctx=contexts, n_ubatch=chance.integers(32, 512, n))
    found = reckon(facts, grid, (CUDA,))
    print(f"{n / (time.perf_counter() - start_s) / 1e6:.2f} million settings a second")
    assert found.device_bytes.shape == (1, n)


def room_of(free_bytes: int) -> Room:
    return Room(
        names=("GPU0",),
        backends=(GENERIC,),
        free_bytes=(free_bytes,),
        runtime_bytes=(0,),
        margin_bytes=(0,),
        shares=(1.0,),
    )

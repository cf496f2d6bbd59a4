"""A tensor_split over two virtual cards: the engine places the layers where the arithmetic says that it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CardMaker

from offloadtune.engine import Runner, VisitPlan
from offloadtune.export import llama_kwargs
from offloadtune.footprint import Grid, backend_of, reckon
from offloadtune.gguf import read_gguf
from offloadtune.plans import Forecast, Tier
from offloadtune.records import GgufFacts, MemoryUse, Outcome, Settings, Target, Trial, Workload

pytestmark = pytest.mark.engine

CARD_BYTES = 4 << 30
SPLITS = ((3, 1), (1, 3), (1, 0), (0, 1), (0.1, 0.2), (1, 1e9))
SETTINGS = Settings(
    load_mode="none", use_extra_bufts=False, n_ctx=2048, n_outputs_max=1, flash_attn_type="enabled", n_threads=1
)
PLAN = VisitPlan(workload=Workload(name="short", n_prefix_cached=0, n_prompt_new=32, n_gen=4), n_steps=2, n_visits=1)


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_layers_lie_where_the_split_says(make_card: CardMaker, request: pytest.FixtureRequest, name: str) -> None:
    """Weights and cache to the byte, nothing on a device without a layer, compute buffers within the band."""
    path: Path = request.getfixturevalue(name)
    facts = read_gguf(path)
    everything = facts.n_layer + 1
    whole = tuple((a, everything - a) for a in (1, everything // 2, everything - 2, everything - 1))
    cards = [make_card(1, CARD_BYTES), make_card(1, CARD_BYTES)]
    with Runner(path, [card.endpoint for card in cards]) as runner:
        names = tuple(device.name for device in runner.describe()[1] if device.kind == "gpu")
        assert len(names) == 2
        for k, split in [*((everything, one) for one in (*SPLITS, *whole)), *((9, one) for one in SPLITS)]:
            settings = SETTINGS.replace(n_gpu_layers=k, tensor_split=split)
            (forecast,) = runner.forecast([settings], timeout_s=60)
            assert forecast.tier is Tier.ENGINE, forecast.refusal
            check(facts, settings, names, forecast)


def check(facts: GgufFacts, settings: Settings, names: tuple[str, ...], forecast: Forecast) -> None:
    found = reckon(facts, Grid.of((settings,), facts.n_layer), tuple(map(backend_of, names)), (1.0, 1.0))
    for i, name in enumerate(names):
        theirs = [row for row in forecast.memory if row.device == name]
        weights, cache, compute = (sum_of(theirs, kind) for kind in ("weights", "kv_cache", "compute"))
        ours = (int(found.weights_bytes[i, 0]), int(found.kv_cache_bytes[i, 0]))
        assert ours == (weights, cache), (settings, name)
        assert int(found.compute_bytes[i, 0]) == pytest.approx(compute, rel=0.1), (settings, name)
    host = [row for row in forecast.memory if row.is_host]
    assert int(found.host_weights_bytes[0]) == sum_of(host, "weights")


def sum_of(rows: list[MemoryUse], kind: str) -> int:
    return sum(getattr(row, f"{kind}_bytes") for row in rows)


def test_a_split_is_measured_as_llama_is_told_it(make_card: CardMaker, smollm2_path: Path) -> None:
    """Through llama-cpp-python's own class; more shares than devices are an outcome, and the worker lives on."""
    endpoints = [make_card(1, CARD_BYTES).endpoint for _ in range(2)]
    settings = SETTINGS.replace(n_gpu_layers=31, n_ctx=256, n_batch=256, n_ubatch=256, n_outputs_max=0)
    first, other, many = (
        Trial(settings=settings.replace(tensor_split=split), target=Target.LLAMA_CPP_PYTHON, why="test")
        for split in ((28, 3), (0, 1), (1, 1, 1))
    )

    with Runner(smollm2_path, endpoints, arguments=lambda one: llama_kwargs(one.settings, one.told)) as runner:
        before, refused, after = (runner.run(one, PLAN, timeout_s=120) for one in (first, many, other))
    assert (before.outcome, before.reason, after.outcome, after.reason) == (Outcome.OK, "", Outcome.OK, "")
    held = {row.device: row.kv_cache_bytes for row in before.memory if not row.is_host}
    assert held["RPC0"] == 14 * held["RPC1"] > 0  # 28 blocks, and 2 with the output
    assert {row.device for row in after.memory if row.weights_bytes and not row.is_host} == {"RPC1"}
    assert refused.outcome is Outcome.UNSUPPORTED
    assert "tensor_split has 3 shares, and there are 2 devices" in refused.reason

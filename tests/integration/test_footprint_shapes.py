"""Arithmetic against the engine for models nobody downloaded: headers from the catalogue, opened without memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from conftest import CardMaker
from stand_in import write_stand_in
from test_footprint_exact import by_arithmetic, by_engine, each, on_device

from offloadtune import catalogue
from offloadtune.engine import Runner
from offloadtune.gguf import read_gguf
from offloadtune.plans import Tier
from offloadtune.records import Settings

SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))
FEW = ("llama-3.1-70b", "gpt-oss-20b", "qwen3.5-9b", "gemma-4-e2b", "deepseek-v2-lite", "qwen3-30b-a3b")
UNLOADABLE = {"phi-3-mini-4k"}
"""Shapes whose stand-in the engine does not take: the file wants more than the catalogue knows."""


@pytest.mark.parametrize(
    "names",
    [FEW, pytest.param(tuple(sorted({*catalogue.shape_names()} - UNLOADABLE)), marks=SLOW)],
    ids=["few", "all"],
)
def test_weights_and_cache_of_published_shapes_are_the_engines(
    make_card: CardMaker, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Part of the layers, all, the output alone; experts kept on the host; sequences apart and together."""
    card = make_card(1, 1 << 40)
    errors: list[float] = []
    for name in names:
        path = tmp_path / f"{name}.gguf"
        write_stand_in(path, catalogue.described(name, "Q4_K_M"))
        facts = read_gguf(path, identify=False)
        layers = (0, 1, 2, facts.n_layer // 2, facts.n_layer, facts.n_layer + 1)
        experts = (0, facts.n_layer // 3) if facts.n_expert else (0,)
        with Runner(path, [card.endpoint]) as runner:
            for n_gpu_layers, n_cpu_moe in itertools.product(layers, experts):
                asked = [
                    Settings(
                        n_gpu_layers=n_gpu_layers,
                        n_cpu_moe=n_cpu_moe,
                        load_mode="none",
                        use_extra_bufts=False,
                        n_ctx=n_ctx,
                        n_batch=2048,
                        n_outputs_max=n_seq_max,
                        n_seq_max=n_seq_max,
                        kv_unified=unified,
                        flash_attn_type="enabled",
                        swa_full=swa_full,
                    )
                    for n_ctx, (n_seq_max, unified), swa_full in itertools.product(
                        (2048, 8192), ((1, False), (4, True), (3, False)), (True, False)
                    )
                ]
                for forecast, found in zip(runner.forecast(asked, timeout_s=300), each(facts, asked), strict=True):
                    assert forecast.tier is Tier.ENGINE, (name, forecast.refusal)
                    assert by_engine(forecast) == by_arithmetic(found), (name, forecast.settings)
                    if reserved := on_device(forecast):
                        errors.append(abs(int(found.compute_bytes[0, 0]) / reserved - 1))
        path.unlink()
    shares = {bound: sum(error <= bound for error in errors) / len(errors) for bound in (0.001, 0.02, 0.1)}
    print(f"compute of {len(errors)} settings:", ", ".join(f"{of:.0%} within {at:.1%}" for at, of in shares.items()))
    assert shares[0.1] >= 0.75

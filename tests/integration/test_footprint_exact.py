"""Arithmetic against the engine's own word: weights and cache to the byte, compute once it is identified."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import CardMaker

from offloadtune.engine import Runner
from offloadtune.footprint import HOST, Footprints, Grid, identify, probes_of, reckon
from offloadtune.gguf import read_gguf
from offloadtune.plans import Forecast, Tier
from offloadtune.records import GgufFacts, Settings

CONTEXTS = (256, 512, 1000, 2048, 4096, 8192)
CACHE_TYPES = (("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("bf16", "bf16"), ("f32", "f32"), ("q8_0", "f16"))
MORE_CACHE_TYPES = (*CACHE_TYPES, ("q5_1", "q5_1"), ("q5_0", "q5_0"), ("q4_1", "q4_1"), ("iq4_nl", "iq4_nl"))
SEQUENCES = ((1, False), (3, False), (4, True))
CARD_BYTES = 8 << 30
SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
@pytest.mark.parametrize(
    ("step", "types"),
    [(10, CACHE_TYPES), pytest.param(1, MORE_CACHE_TYPES, marks=SLOW)],
    ids=["few", "all"],
)
def test_weights_and_cache_are_the_engines_to_the_byte(
    make_card: CardMaker, request: pytest.FixtureRequest, name: str, step: int, types: Sequence[tuple[str, str]]
) -> None:
    """Each n_gpu_layers with six contexts, cache types, flash attention, sequences together and apart, both windows."""
    path: Path = request.getfixturevalue(name)
    facts = read_gguf(path)
    n_compared = 0
    with Runner(path, [make_card(1, CARD_BYTES).endpoint]) as runner:
        for n_gpu_layers in sorted({*range(0, facts.n_layer + 2, step), 1, facts.n_layer + 1}):
            asked = list(settings_of(facts, n_gpu_layers, types))
            for forecast, found in zip(runner.forecast(asked, timeout_s=300), each(facts, asked), strict=True):
                assert forecast.tier is Tier.ENGINE, forecast.refusal
                assert by_engine(forecast) == by_arithmetic(found), forecast.settings
                n_compared += 1
    print(f"{n_compared} settings of {path.name} agree")


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_feed_forward_weights_in_main_memory_leave_the_device_as_the_engine_says(
    make_card: CardMaker, request: pytest.FixtureRequest, name: str
) -> None:
    """Weights and cache to the byte; compute buffers of the device and of the host nearly always, and never short."""
    path: Path = request.getfixturevalue(name)
    facts = read_gguf(path)
    n, exact = facts.n_layer, []
    with Runner(path, [make_card(1, CARD_BYTES).endpoint]) as runner:
        for n_gpu_layers, n_cpu_ffn in itertools.product((n // 2, n + 1), (0, 1, n // 3, n // 2 + 2, n)):
            base = Settings(n_gpu_layers=n_gpu_layers, n_cpu_ffn=n_cpu_ffn, load_mode="none", use_extra_bufts=False)
            asked = [
                base.replace(n_ctx=n_ctx, n_ubatch=n_ubatch, n_outputs_max=1, flash_attn_type=flash)
                for n_ctx, n_ubatch, flash in itertools.product((2048, 8192), (64, 512), ("enabled", "disabled"))
            ]
            for forecast, found in zip(runner.forecast(asked, timeout_s=300), each(facts, asked), strict=True):
                assert by_engine(forecast) == by_arithmetic(found), forecast.settings
                ours = (int(found.compute_bytes[0, 0]), int(found.host_compute_bytes[0]))
                on_host = sum(row.compute_bytes for row in forecast.memory if row.is_host)
                shares = [one / told for one, told in zip(ours, (on_device(forecast), on_host), strict=True)]
                assert min(shares) > 0.999, forecast.settings
                exact += [abs(share - 1) < 1e-3 for share in shares]
    print(f"{path.name}: {sum(exact)} of {len(exact)} compute buffers within 0.1 %")
    assert sum(exact) >= 0.95 * len(exact)


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_two_probes_make_the_compute_buffers_of_a_placement_known(
    make_card: CardMaker, request: pytest.FixtureRequest, name: str
) -> None:
    """From two contexts of a placement those of other lengths and ubatches follow: nearly all to the byte."""
    path: Path = request.getfixturevalue(name)
    facts = read_gguf(path)
    errors: list[float] = []
    with Runner(path, [make_card(1, CARD_BYTES).endpoint]) as runner:
        for n_gpu_layers, flash in itertools.product(
            (1, facts.n_layer // 2, facts.n_layer + 1), ("enabled", "disabled")
        ):
            base = Settings(n_gpu_layers=n_gpu_layers, n_ctx=2048, flash_attn_type=flash, use_extra_bufts=False)
            probes = probes_of(base)
            computed = [[on_device(one)] for one in runner.forecast(probes, timeout_s=60)]
            terms = identify(facts, probes, computed, (HOST,), (1.0,))
            others = [
                base.replace(n_ctx=n_ctx, n_ubatch=n_ubatch, n_outputs_max=n_outputs)
                for n_ctx, n_ubatch, n_outputs in itertools.product((1024, 4096, 8192), (128, 512), (0, 1))
            ]
            grid = Grid.of(others, facts.n_layer)
            predicted = reckon(facts, grid, (HOST,), terms=terms).compute_bytes[0].tolist()
            for forecast, ours in zip(runner.forecast(others, timeout_s=60), predicted, strict=True):
                errors.append(ours / on_device(forecast) - 1)
    n_exact = sum(abs(error) < 1e-3 for error in errors)
    print(f"{path.name}: {n_exact} of {len(errors)} within 0.1 %, worst {min(errors):+.1%} {max(errors):+.1%}")
    assert n_exact >= 0.8 * len(errors)
    assert max(map(abs, errors)) < 0.1


def settings_of(facts: GgufFacts, n_gpu_layers: int, types: Sequence[tuple[str, str]]) -> Iterator[Settings]:
    windows = (True, False) if facts.n_swa else (True,)
    for n_ctx, (type_k, type_v), flash, (n_seq_max, unified), swa_full in itertools.product(
        CONTEXTS, types, ("enabled", "disabled"), SEQUENCES, windows
    ):
        if flash == "disabled" and type_v not in {"f16", "bf16", "f32"}:
            continue  # the engine refuses a quantised V without it
        yield Settings(
            n_gpu_layers=n_gpu_layers,
            load_mode="none",
            use_extra_bufts=False,
            n_ctx=n_ctx,
            n_batch=256,
            n_ubatch=128,
            n_outputs_max=n_seq_max,
            n_seq_max=n_seq_max,
            kv_unified=unified,
            flash_attn_type=flash,
            type_k=type_k,
            type_v=type_v,
            swa_full=swa_full,
        )


def each(facts: GgufFacts, asked: Sequence[Settings]) -> Iterator[Footprints]:
    for settings in asked:
        yield reckon(facts, Grid.of((settings,), facts.n_layer), (HOST,))


def by_engine(forecast: Forecast) -> tuple[int, ...]:
    sums = [
        sum(getattr(row, kind) for row in forecast.memory if row.is_host == is_host)
        for is_host in (False, True)
        for kind in ("weights_bytes", "kv_cache_bytes")
    ]
    return tuple(sums)


def by_arithmetic(found: Footprints) -> tuple[int, ...]:
    return (
        int(found.weights_bytes[0, 0]),
        int(found.kv_cache_bytes[0, 0]),
        int(found.host_weights_bytes[0]),
        int(found.host_kv_cache_bytes[0]),
    )


def on_device(forecast: Forecast) -> int:
    return sum(row.compute_bytes for row in forecast.memory if not row.is_host)

"""Which stand-ins are written where the whole has no room, what their settings are to the whole, and how it is told."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden import check_golden
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from sample_records import estimate, report

from offloadtune.errors import NothingWorksError, UsageError
from offloadtune.footprint import Room, backend_of
from offloadtune.gguf.standin import kept_blocks, layer_counts
from offloadtune.pipeline import standin_sweeping
from offloadtune.pipeline.depths import ByDepths, check_fixed
from offloadtune.pipeline.rooms import Place
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.pipeline.spaces import begin_settings
from offloadtune.pipeline.surroundings import Surroundings, limited
from offloadtune.records import GgufFacts, Settings, StandsFor, Workload
from offloadtune.report import standin_sweep_json, standin_sweep_view
from offloadtune.sweeps import Extrapolation, StandinReport, SweepRequest, WholeFigures
from offloadtune.units import GIB, MIB

SHORT = Workload(name="short", n_prefix_cached=0, n_prompt_new=64, n_gen=8)
WHOLE = facts_of_shape("smollm2-135m", "Q4_1")
BIG = facts_of_shape("llama-3-70b", "Q4_K_M")


def around(free_bytes: int | None, available_bytes: int | None = 16 * GIB) -> Surroundings:
    """A machine with one card of so much free memory, None for none."""
    has_card = free_bytes is not None
    room = Room(
        names=("RPC0",) * has_card,
        backends=(backend_of("RPC0"),) * has_card,
        free_bytes=(free_bytes,) * has_card,
        runtime_bytes=(0,) * has_card,
        margin_bytes=(0,) * has_card,
        shares=(1.0,) * has_card,
        available_bytes=available_bytes,
    )
    return Surroundings(place=Place(room=room, bases=(), warnings=()))


def request(**fixed: Any) -> SweepRequest:
    return SweepRequest(path=Path(), workload=SHORT, budget_s=60.0, fixed=fixed)


def shorter(n_layer: int, whole: GgufFacts = WHOLE) -> GgufFacts:
    """A stand-in of the first so many layers, which are all alike."""
    per_layer = ("n_head", "n_head_kv", "is_swa", "layer_bytes", "expert_bytes")
    tensors = tuple(
        one for one in whole.tensors if not one.name.startswith("blk.") or int(one.name.split(".")[1]) < n_layer
    )
    fields = {name: getattr(whole, name)[:n_layer] for name in per_layer}
    return dataclasses.replace(whole, n_layer=n_layer, tensors=tensors, **fields)


def by_depths(card_bytes: int | None, **fixed: Any) -> ByDepths:
    return ByDepths(
        request=request(**fixed),
        whole=WHOLE,
        shallow=shorter(8),
        deep=shorter(16),
        around=around(card_bytes),
        why_fewer="no room",
    )


# --- which are written ---------------------------------------------------------------------------------------------


def test_the_two_are_of_8_and_16_layers_where_there_is_room_and_fewer_where_there_is_not() -> None:
    counts = layer_counts(BIG)
    small = Settings(n_ctx=512)
    assert standin_sweeping._depths(BIG, small, around(None), "no room") == (8, 16)
    sizes = {n: standin_sweeping._bytes_of(BIG, n) for n in counts}
    assert standin_sweeping._depths(BIG, small, around(None, sizes[8] + sizes[16]), "no room") in {(7, 15), (8, 15)}
    long = Settings(n_ctx=131072, flash_attn_type="enabled")  # 40 GiB of cache in 80 layers
    shallow, deep = standin_sweeping._depths(BIG, long, around(None, 24 * GIB), "no room")
    assert sizes[shallow] + sizes[deep] + (shallow + deep) * GIB // 2 < 24 * GIB
    assert deep < 16
    with pytest.raises(NothingWorksError, match="two stand-ins of fewer layers have none either"):
        standin_sweeping._depths(BIG, small, around(None, GIB), "no room")


def test_windows_keep_their_period() -> None:
    gemma = facts_of_shape("gemma-3-27b", "Q4_K_M")
    shallow, deep = standin_sweeping._depths(gemma, Settings(n_ctx=512), around(None, 64 * GIB), "no room")
    assert (shallow, deep) == (6, 12)
    assert kept_blocks(gemma, shallow)


def test_a_disk_too_small_is_told_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLOADTUNE_HOME", str(tmp_path / "not" / "yet" / "there"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=20 * GIB))
    words = standin_sweeping._full_disk([(BIG, BIG.n_layer)])
    assert words == f"it would take 39.7 GiB of the disk of {tmp_path}, which has 20.0 GiB free"
    assert standin_sweeping._full_disk([(BIG, 8), (BIG, 16)]) == ""


# --- what is the whole's -------------------------------------------------------------------------------------------


@given(st.integers(60, 400))
def test_the_deeper_one_is_given_the_share_of_the_card_that_the_whole_would_fill(n_mib: int) -> None:
    depths = by_depths(n_mib * MIB)
    begin = begin_settings(request(), WHOLE)
    n_most = depths.around.most_layers(WHOLE, begin)
    asked = depths.deep_request(30.0)
    if not n_most:
        assert asked.fixed["n_gpu_layers"] == 0
        return
    n_top = depths._n_top(n_most)
    assert (n_top - 2) / 16 < (n_most - 1) / 30 <= (n_top - 1) / 16
    assert asked.vram_limit_bytes is not None
    assert asked.vram_limit_bytes <= n_mib * MIB
    limited = around(asked.vram_limit_bytes + 32 * MIB)
    assert limited.most_layers(shorter(16), begin) >= n_top - 1
    best = depths._of_whole(begin.replace(n_gpu_layers=n_top))
    assert best.n_gpu_layers == n_most


def test_layers_that_the_user_fixed_are_those_of_the_whole() -> None:
    depths = by_depths(GIB, n_gpu_layers=12)
    asked = depths.deep_request(30.0)
    assert asked.fixed["n_gpu_layers"] == 7
    assert asked.vram_limit_bytes is None
    assert depths._of_whole(Settings(n_gpu_layers=7)).n_gpu_layers == 12
    everything = by_depths(GIB, n_gpu_layers=-1)
    assert everything.deep_request(30.0).fixed["n_gpu_layers"] == 17
    assert everything._of_whole(Settings(n_gpu_layers=17)).n_gpu_layers == 31


def test_a_limit_is_of_all_cards_together() -> None:
    one = around(24 * GIB).place.room
    both = dataclasses.replace(
        one,
        names=("CUDA0", "CUDA1"),
        backends=one.backends * 2,
        free_bytes=(24 * GIB, 8 * GIB),
        runtime_bytes=(0, 0),
        margin_bytes=(0, 0),
        shares=(3.0, 1.0),
    )
    free = Surroundings(place=Place(room=both, bases=(), warnings=()))
    few = limited(free, 8 * GIB)
    assert few.place.room.free_bytes == (6 * GIB, 2 * GIB)
    assert limited(free, 40 * GIB) == free
    settings = Settings(n_ctx=512)
    n_most = few.most_layers(BIG, settings)
    assert 0 < few.device_bytes(BIG, settings.replace(n_gpu_layers=n_most)) <= 8 * GIB


def test_layers_that_predict_further_tokens_are_on_the_card_first() -> None:
    """The whole with everything on the card is each stand-in with everything on it."""
    whole = facts_of_shape("qwen3.8-27b-mtp", "Q4_K_M")
    n_more = whole.n_layer_nextn
    assert n_more
    sides = {n: dataclasses.replace(whole, n_layer=n + n_more) for n in (8, 16)}
    depths = dataclasses.replace(by_depths(None), whole=whole, shallow=sides[8], deep=sides[16])
    for n, side in sides.items():
        assert depths._layers_around(side, whole.n_layer + 1) == (n + n_more + 1,)
        assert depths._layers_around(side, 0) == (0,)
        half = (whole.n_layer - n_more) // 2 + n_more + 1
        assert depths._layers_around(side, half) == (n // 2 + n_more + 1,)


def test_what_counts_layers_of_experts_is_refused() -> None:
    for name in ("n_cpu_moe", "n_cpu_ffn"):
        with pytest.raises(UsageError, match=f"{name} counts layers of the whole"):
            check_fixed(request(**{name: 4}))
    check_fixed(request(n_gpu_layers=4))


def test_experts_stay_with_their_layers_where_there_are_fewer_of_them() -> None:
    mixture = facts_of_shape("qwen3-30b-a3b", "Q4_K_M")
    depths = dataclasses.replace(
        by_depths(4 * GIB), whole=mixture, shallow=shorter(8, mixture), deep=shorter(16, mixture)
    )
    assert depths.deep_request(30.0).fixed["n_cpu_moe"] == 0
    dense = by_depths(4 * GIB).deep_request(30.0).fixed
    assert "n_cpu_moe" not in dense
    assert dense["n_cpu_ffn"] == 0


# --- how it is told ------------------------------------------------------------------------------------------------


def screen(view: RenderableType) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=100, highlight=False, markup=False, emoji=False, color_system=None)
    console.print(view, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def told(*, is_known: bool = True) -> StandinReport:
    """Two stand-ins of a 70B on a machine that cannot hold it."""
    facts = dataclasses.replace(
        report().facts, n_layer=16, stands_for=StandsFor(label="Llama-3-70B", quantisation="Q4_K_M", n_layer=80)
    )

    def phase(p50: float) -> Extrapolation:
        whole = estimate(p50) if is_known else None
        return Extrapolation(linear_s=estimate(p50), scaled_s=estimate(1.1 * p50), apart_frac=0.1, whole_s=whole)

    lacks = "main memory would have to hold 38.7 GiB and has 14.9 GiB available"
    rows = (("recommended", 41, 1.0), ("cpu_only", 0, 2.0))
    wholes = tuple(
        WholeFigures(
            name=name,
            settings=Settings(n_gpu_layers=n_gpu_layers, n_ctx=2816),
            ttft=phase(10.0 * times),
            token=phase(0.5 * times),
            turn_s=estimate(130.0 * times) if is_known else None,
            no_room=lacks if name == "cpu_only" else "",
        )
        for name, n_gpu_layers, times in rows
    )
    return StandinReport(
        sweep=dataclasses.replace(report(), facts=facts),
        apply_text="llm = Llama(...)\n",
        why_fewer=lacks,
        depths=(8, 16),
        n_layer=80,
        wholes=wholes,
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("known", told()),
        ("apart", told(is_known=False)),
        ("stopped", dataclasses.replace(told(), wholes=(), notes=("stopped by you",), is_interrupted=True)),
    ],
)
def test_view(name: str, found: StandinReport) -> None:
    check_golden(f"report/standin_sweep_{name}.txt", screen(standin_sweep_view(found)))


def test_json_says_what_is_not_known() -> None:
    value = standin_sweep_json(told(is_known=False))["whole"]
    assert value["figures"]["recommended"]["ttft_s"]["whole_s"] is None
    assert value["figures"]["recommended"]["turn_s"] is None
    assert value["why_fewer"].startswith("main memory")
    assert standin_sweep_json(StandinReport(sweep=report(), apply_text=""))["whole"] is None

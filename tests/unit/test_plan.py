"""Plans: what the screen says of them, that every knob moves the right bytes, and how a plan is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from command_line import Ended, InProcess, check_refused
from golden import check_golden
from test_gguf_refusals import KEYS, build, number, string, without
from test_report import screen

from offloadtune.pipeline.planning import report_of
from offloadtune.pipeline.rooms import named_place
from offloadtune.plans import (
    DevicePlan,
    HostPlan,
    LayerRow,
    MemoryPlan,
    PlanReport,
    PlanRequest,
    RuntimeBasis,
    Tier,
)
from offloadtune.records import Settings, Target
from offloadtune.report import plan_report_json, plan_view
from offloadtune.units import GIB, MIB

PROMISED = {"weights_bytes", "kv_cache_bytes", "compute_bytes", "runtime_bytes", "total_bytes"}

# --- the screen ----------------------------------------------------------------------------------------------------

CARD = DevicePlan(
    name="CUDA0",
    weights_bytes=4403 * MIB,
    kv_cache_bytes=512 * MIB,
    compute_bytes=258 * MIB,
    runtime_bytes=330 * MIB,
    runtime_basis=RuntimeBasis.PUBLISHED,
    band_bytes=26 * MIB,
    free_bytes=24084 * MIB,
)
HOST = HostPlan(
    weights_bytes=282 * MIB, kv_cache_bytes=0, compute_bytes=20 * MIB, output_bytes=501 << 10, is_mapped=True
)
PLAN = MemoryPlan(
    label="llama-3-8b.Q4_K_M.gguf",
    quantisation="Q4_K_M",
    target=Target.LLAMA_CPP_PYTHON,
    settings=Settings(n_gpu_layers=33, n_ctx=4096, flash_attn_type="enabled"),
    tier=Tier.ARITHMETIC,
    devices=(CARD,),
    host=HOST,
    fits=True,
)
REPORT = PlanReport(
    plan=PLAN,
    n_layer=32,
    n_ctx_train=8192,
    rows=tuple(
        LayerRow(n_gpu_layers=k, device_bytes=k and (864 + 140 * k) * MIB, n_ctx_max=8192, is_all=True)
        for k in range(34)
    ),
    layer_cost_bytes=148 * MIB,
    context_cost_bytes=512 * MIB,
    chose_layers=True,
)
LARGE = dataclasses.replace(CARD, weights_bytes=39 * GIB, kv_cache_bytes=5 * GIB)
LARGE_ROWS = tuple(
    LayerRow(
        n_gpu_layers=k,
        device_bytes=k and (600 + 560 * k) * MIB,
        n_ctx_max=max(0, min(131_072, (24_000 - 490 * k) * 8)) // 256 * 256,
        is_all=k < 15,
    )
    for k in range(82)
)


def report_with(plan: dict[str, Any], **changes: Any) -> PlanReport:
    changed = dataclasses.replace(PLAN, **{name: value for name, value in plan.items() if name != "settings"})
    changed = dataclasses.replace(changed, settings=PLAN.settings.replace(**plan.get("settings", {})))
    return dataclasses.replace(REPORT, plan=changed, **changes)


def too_large() -> PlanReport:
    return report_with(
        {
            "label": "llama-3.1-70b.Q4_K_M.gguf",
            "settings": {"n_gpu_layers": 81, "n_ctx": 16384},
            "devices": (LARGE,),
            "fits": False,
            "refusals": ("CUDA0 has 23.5 GiB to give and lacks 21.1 GiB.",),
        },
        n_layer=80,
        rows=LARGE_ROWS,
        chose_layers=False,
    )


def partly_offloaded() -> PlanReport:
    here = dataclasses.replace(CARD, weights_bytes=int(19.5 * GIB), runtime_basis=RuntimeBasis.CALIBRATED)
    host = dataclasses.replace(HOST, weights_bytes=19 * GIB, kv_cache_bytes=600 * MIB, available_bytes=48 * GIB)
    return report_with(
        {"settings": {"n_gpu_layers": 40}, "devices": (here,), "host": host},
        n_layer=80,
        rows=LARGE_ROWS,
        measured=(("CUDA0", 20 * GIB),),
    )


def on_two_devices() -> PlanReport:
    cards = tuple(dataclasses.replace(CARD, name=f"RPC{i}", runtime_bytes=None) for i in range(2))
    unused = dataclasses.replace(CARD, name="RPC2", weights_bytes=0, kv_cache_bytes=0, compute_bytes=0, band_bytes=0)
    unknown = [dataclasses.replace(one, runtime_basis=RuntimeBasis.UNKNOWN) for one in cards]
    tight = dataclasses.replace(unknown[1], free_bytes=5300 * MIB, draft_bytes=90 * MIB)
    first = dataclasses.replace(unknown[0], projector_bytes=600 * MIB)
    warned = ("What an image needs on RPC0 while it is encoded is not known, and comes on top.",)
    return report_with(
        {
            "devices": (first, tight, dataclasses.replace(unused, runtime_bytes=0)),
            "warnings": warned,
            "tier": Tier.ENGINE,
            "n_splits": (7, 3),
        }
    )


def on_the_cpu() -> PlanReport:
    host = dataclasses.replace(HOST, weights_bytes=4403 * MIB, kv_cache_bytes=512 * MIB, available_bytes=23 * GIB)
    return report_with(
        {"settings": {"n_gpu_layers": 0}, "devices": (), "host": host},
        rows=(),
        layer_cost_bytes=None,
        context_cost_bytes=None,
        chose_layers=False,
    )


def on_a_card_without_memory_of_its_own() -> PlanReport:
    card = dataclasses.replace(
        CARD, name="Vulkan0", free_bytes=None, runtime_bytes=None, runtime_basis=RuntimeBasis.UNKNOWN
    )
    rows = tuple(dataclasses.replace(row, n_ctx_max=None, is_all=False) for row in REPORT.rows)
    warned = ("Radeon 780M has no memory of its own: name what it may use with --vram-limit.",)
    return report_with({"devices": (card,), "fits": None, "warnings": warned}, rows=rows, chose_layers=False)


def for_a_server() -> PlanReport:
    server = {"n_batch": 2048, "n_seq_max": 4, "kv_unified": True, "flash_attn_type": "auto", "type_k": "q8_0"}
    host = dataclasses.replace(HOST, prompt_cache_bytes=8 * GIB, available_bytes=4 * GIB)
    warned = ("The server's cache of past prompts may outgrow main memory: limit it with --cache-ram.",)
    return report_with(
        {"settings": server, "host": host, "target": Target.LLAMA_SERVER, "warnings": warned, "tier": Tier.LOG}
    )


def too_little_main_memory() -> PlanReport:
    host = dataclasses.replace(HOST, weights_bytes=8 * GIB, is_mapped=False, available_bytes=4 * GIB)
    said = "Main memory has 4.00 GiB available and lacks 4.02 GiB"
    rows = tuple(dataclasses.replace(row, n_ctx_max=0, is_all=False) for row in REPORT.rows)
    return report_with(
        {
            "settings": {"load_mode": "none", "n_gpu_layers": 0},
            "host": host,
            "fits": False,
            "refusals": (f"{said}: mapped from the file, weights need less.",),
        },
        rows=rows,
    )


def experts_in_main_memory() -> PlanReport:
    card = dataclasses.replace(CARD, weights_bytes=11 * GIB, compute_bytes=633 * MIB)
    host = dataclasses.replace(HOST, weights_bytes=48 * GIB, available_bytes=32 * GIB)
    warned = ("Main memory cannot keep all mapped weights: some will be read from disk for every token.",)
    return report_with({"settings": {"n_cpu_moe": 30}, "devices": (card,), "host": host, "warnings": warned})


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("plan_fits", lambda: REPORT),
        ("plan_does_not_fit", too_large),
        ("plan_partly_offloaded", partly_offloaded),
        ("plan_two_devices", on_two_devices),
        ("plan_cpu_only", on_the_cpu),
        ("plan_unknown_size", on_a_card_without_memory_of_its_own),
        ("plan_server", for_a_server),
        ("plan_too_little_main_memory", too_little_main_memory),
        ("plan_experts", experts_in_main_memory),
    ],
)
def test_the_screen(name: str, report: Callable[[], PlanReport]) -> None:
    text = screen(plan_view(report()))
    check_golden(f"report/{name}.txt", text)
    assert max(map(len, text.splitlines())) <= 102


def test_the_screen_shows_no_control_characters() -> None:
    text = screen(plan_view(report_with({"label": "a\x1b[2J.gguf", "warnings": ("b\x1b[2J.",)})))
    assert "\x1b" not in text
    assert "a[2J.gguf" in text


def test_what_is_said_of_a_way_out_is_true() -> None:
    """At the n_gpu_layers, or the n_ctx, that the screen names the same plan fits."""
    request = PlanRequest(shape="llama-3.3-70b", quant="Q4_K_M", card="RTX 3090")
    full = dataclasses.replace(request, asked={"n_gpu_layers": 45, "n_ctx": 16384})
    text = screen(plan_view(report_of(full, named_place(full), None)))
    named = dict(re.findall(r"^- With (\w+)=(\d+) it fits", text, re.MULTILINE))
    assert set(named) == {"n_gpu_layers", "n_ctx"}
    for name, value in named.items():
        for more, expected in ((0, True), (256 if name == "n_ctx" else 1, False)):
            changed = dataclasses.replace(request, asked={**full.asked, name: int(value) + more})
            assert report_of(changed, named_place(changed), None).plan.fits is expected


# --- knobs, by the command line ------------------------------------------------------------------------------------

SHAPE = ("plan", "--shape", "llama-3-8b", "--quant", "Q4_K_M")
CARDED = (*SHAPE, "--card", "RTX 3090")
MIXTURE = ("plan", "--shape", "mixtral-8x7b", "--quant", "Q4_K_M", "--card", "RTX 3090")
WINDOW = ("plan", "--shape", "gemma-3-12b", "--quant", "Q4_K_M", "--card", "RTX 3090", "--target", "llama_server")


def planned(in_process: InProcess, *arguments: str | Path) -> dict[str, Any]:
    ended = in_process(*arguments, "--json")
    assert ended.code == 0, ended.err
    value: dict[str, Any] = json.loads(ended.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return value


def parts(value: dict[str, Any]) -> dict[str, int]:
    """Bytes by kind, the devices together."""
    found = {f"host {kind[:-6]}": value["host"][kind] for kind in ("weights_bytes", "kv_cache_bytes", "output_bytes")}
    for kind in ("weights_bytes", "kv_cache_bytes", "compute_bytes", "draft_bytes", "projector_bytes"):
        found[kind[:-6]] = sum(device[kind] for device in value["devices"].values())
    return found


def test_the_promised_keys_are_there(in_process: InProcess) -> None:
    value = planned(in_process, *CARDED)
    assert {"devices", "host", "fits", "tier"} <= set(value)
    assert all(set(device) >= PROMISED for device in value["devices"].values())
    assert set(value["host"]) >= PROMISED - {"runtime_bytes"}
    assert (value["tier"], value["fits"], list(value["devices"])) == ("C", True, ["CUDA0"])
    for one in (*value["devices"].values(), value["host"]):
        assert one["total_bytes"] == sum(
            size
            for name, size in one.items()
            if name.endswith("_bytes")
            and name
            not in {
                "total_bytes",
                "held_bytes",
                "free_bytes",
                "available_bytes",
                "band_bytes",
                "prompt_cache_bytes",
                "companions_mapped_bytes",
            }
        )


@pytest.mark.parametrize(
    ("base", "option", "moves"),
    [
        (CARDED, ["--n-gpu-layers", "20"], {"weights", "kv_cache", "compute", "host weights", "host kv_cache"}),
        (CARDED, ["--n-ctx", "8192"], {"kv_cache", "compute"}),
        (CARDED, ["--n-ubatch", "256"], {"compute"}),
        (CARDED, ["--n-ubatch", "1024"], {"compute"}),
        (CARDED, ["--type-k", "q8_0"], {"kv_cache", "compute"}),
        (CARDED, ["--type-v", "Q8_0"], {"kv_cache", "compute"}),
        (CARDED, ["--flash-attn", "off"], {"compute"}),
        (CARDED, ["--flash-attn", "auto"], set()),
        (CARDED, ["--n-outputs-max", "1"], {"compute"}),
        (CARDED, ["--n-seq-max", "2"], {"host output", "compute"}),
        (CARDED, ["--load-mode", "none"], set()),
        (MIXTURE, ["--n-cpu-moe", "32"], {"weights", "host weights", "compute"}),
        (WINDOW, ["--swa-full"], {"kv_cache", "compute"}),
        (WINDOW, ["--n-seq-max", "2", "--kv-unified"], {"kv_cache", "compute", "host output"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_knob_moves_the_right_bytes(
    base: tuple[str, ...], option: list[str], moves: set[str], in_process: InProcess
) -> None:
    layers = ("--n-gpu-layers", "-1") if "--n-gpu-layers" not in option else ()
    everything = ("--n-gpu-layers", "-1")
    before, after = (parts(planned(in_process, *base, *given)) for given in (everything, (*option, *layers)))
    moved = {kind for kind in before if before[kind] != after[kind]}
    assert moved <= moves
    assert moved >= (moves - {"compute"} or moves)


def test_the_cache_is_what_its_type_and_context_make_it(in_process: InProcess) -> None:
    per_token = 32 * 8 * 128 * 2  # blocks, heads, values of K and of V
    cache = {
        (n_ctx, kind): parts(planned(in_process, *CARDED, "--n-ctx", n_ctx, "--type-k", kind, "--type-v", kind))
        for n_ctx in ("4096", "5000", "5120")
        for kind in ("f16", "q8_0")
    }
    assert cache["4096", "f16"]["kv_cache"] == 4096 * per_token * 2
    assert cache["4096", "q8_0"]["kv_cache"] == 4096 * per_token * 34 // 32
    assert cache["5000", "f16"]["kv_cache"] == cache["5120", "f16"]["kv_cache"]  # whole blocks of 256 cells


def test_more_layers_than_there_are_means_all(in_process: InProcess) -> None:
    answers = [planned(in_process, *CARDED, "--n-gpu-layers", k) for k in ("999", "-1", "33")]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["settings"]["n_gpu_layers"] == 33


def test_without_layers_a_card_still_works_for_main_memory(in_process: InProcess) -> None:
    """Matrices of a prompt go there one by one; only few tokens at once, or an unknown card, leave it alone."""
    device = planned(in_process, *CARDED, "--n-gpu-layers", "0")["devices"]["CUDA0"]
    assert device["weights_bytes"] == device["kv_cache_bytes"] == 0
    assert device["compute_bytes"] > 0 < device["runtime_bytes"]
    few = planned(in_process, *CARDED, "--n-gpu-layers", "0", "--n-ubatch", "16")["devices"]["CUDA0"]
    assert few["total_bytes"] == 0


def test_fits_is_yes_no_or_unknown(in_process: InProcess) -> None:
    assert planned(in_process, *CARDED)["fits"] is True
    assert planned(in_process, *CARDED, "--n-gpu-layers", "-1", "--vram-limit", "2GiB")["fits"] is False
    assert planned(in_process, *SHAPE, "--card", "Radeon 780M")["fits"] is None
    assert planned(in_process, *SHAPE, "--card", "Radeon 780M", "--vram-limit", "16GiB")["fits"] is True
    assert planned(in_process, *CARDED, "--ram-limit", "1MiB")["fits"] is False
    assert planned(in_process, *CARDED, "--ram-limit", "100MiB")["fits"] is True
    assert planned(in_process, *CARDED, "--ram-limit", "100MiB", "--load-mode", "none")["fits"] is False


def test_the_layers_chosen_are_the_most_that_fit(in_process: InProcess) -> None:
    limit = ("--vram-limit", "3GiB")
    chosen = planned(in_process, *SHAPE, *limit)
    k = chosen["settings"]["n_gpu_layers"]
    assert chosen["fits"]
    assert 0 < k < 33
    assert planned(in_process, *SHAPE, *limit, "--n-gpu-layers", str(k + 1))["fits"] is False


def test_equal_cards_share_the_layers(in_process: InProcess) -> None:
    one, two = (planned(in_process, *CARDED, "--n-devices", n, "--n-gpu-layers", "-1") for n in ("1", "2"))
    assert list(two["devices"]) == ["CUDA0", "CUDA1"]
    assert parts(one)["kv_cache"] == parts(two)["kv_cache"]
    assert all(device["weights_bytes"] for device in two["devices"].values())


def test_a_context_above_the_training_is_answered_with_a_warning(in_process: InProcess) -> None:
    value = planned(in_process, *CARDED, "--n-ctx", "9000")
    assert any("9000 is more than the 8192 tokens" in sentence for sentence in value["warnings"])


def test_a_file_is_planned_as_a_shape_is(in_process: InProcess, smollm2_path: Path) -> None:
    value = planned(in_process, "plan", smollm2_path, "--card", "RTX 3090", "--n-gpu-layers", "-1")
    assert value["label"] == smollm2_path.name
    assert value["devices"]["CUDA0"]["kv_cache_bytes"] == 94_371_840


def test_numbers_beyond_any_computer(in_process: InProcess, smollm2_path: Path) -> None:
    huge = "9" * 30
    for option in ("--n-cpu-moe", "--n-outputs-max", "--n-gpu-layers"):
        assert planned(in_process, "plan", smollm2_path, "--vram-limit", "1G", option, huge)["tier"] == "C"
    for option in ("--n-ctx", "--n-ubatch"):
        check_refused(
            in_process("plan", smollm2_path, "--vram-limit", "1G", option, huge), 2, "more bytes than can be counted"
        )


def test_inspect_says_what_a_context_costs(in_process: InProcess, smollm2_path: Path, gemma3_path: Path) -> None:
    plain, sliding = (json.loads(in_process("inspect", path, "--json").out) for path in (smollm2_path, gemma3_path))
    assert (plain["kv_cache_bytes_per_token"], plain["kv_cache_fixed_bytes"]) == (30 * 192 * 2 * 2, 0)
    assert (sliding["kv_cache_bytes_per_token"], sliding["kv_cache_fixed_bytes"]) == (3 * 1024, 15 * 1024 * 1024)
    for value in (plain, sliding):
        tensors = value["biggest_tensors"]
        assert len(tensors) == 5
        assert [one["n_bytes"] for one in tensors] == sorted((one["n_bytes"] for one in tensors), reverse=True)
        assert tensors[0]["name"] == "token_embd.weight"
        assert set(tensors[0]) >= {"name", "shape", "type_name", "n_bytes"}


# --- companions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def projector(tmp_path: Path) -> Path:
    path = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_tensor("v.patch_embd.weight", np.zeros((3, 14, 14, 64), dtype=np.float16))
    writer.add_tensor("mm.0.weight", np.zeros((64, 128), dtype=np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def test_a_draft_model_is_added_to_the_last_device(in_process: InProcess, smollm2_path: Path) -> None:
    cards = ("--card", "RTX 3090", "--n-devices", "2", "--n-gpu-layers", "-1", "--n-ctx", "2048")
    alone = planned(in_process, "plan", smollm2_path, "--card", "RTX 3090", *cards[4:])["devices"]["CUDA0"]
    without_it = planned(in_process, *SHAPE, *cards)
    value = planned(in_process, *SHAPE, *cards, "--draft", smollm2_path)
    first, last = value["devices"].values()
    assert first == without_it["devices"]["CUDA0"]
    assert last["draft_bytes"] == sum(alone[kind] for kind in ("weights_bytes", "kv_cache_bytes", "compute_bytes"))
    assert last["total_bytes"] == without_it["devices"]["CUDA1"]["total_bytes"] + last["draft_bytes"]
    assert last["band_bytes"] > without_it["devices"]["CUDA1"]["band_bytes"]
    assert value["host"]["draft_bytes"] > value["host"]["companions_mapped_bytes"] > 0
    assert any("vocabulary" in sentence for sentence in value["warnings"])


def test_a_draft_model_leaves_room_for_fewer_layers_and_less_context(in_process: InProcess, smollm2_path: Path) -> None:
    limit = (*SHAPE, "--vram-limit", "3GiB")
    alone, with_draft = planned(in_process, *limit), planned(in_process, *limit, "--draft", smollm2_path)
    assert with_draft["fits"]
    assert 0 < with_draft["settings"]["n_gpu_layers"] < alone["settings"]["n_gpu_layers"]
    assert with_draft["context_cost_bytes_per_4096"] > alone["context_cost_bytes_per_4096"]
    for row, other in zip(with_draft["by_n_gpu_layers"], alone["by_n_gpu_layers"], strict=True):
        assert row["n_ctx_max"] <= other["n_ctx_max"]
        assert row["device_bytes"] > other["device_bytes"]


def test_the_largest_context_beside_a_draft_model_fits(in_process: InProcess, smollm2_path: Path) -> None:
    base = (*SHAPE, "--vram-limit", "3GiB", "--draft", smollm2_path, "--n-gpu-layers", "14")
    n_ctx = planned(in_process, *base)["by_n_gpu_layers"][14]["n_ctx_max"]
    assert 0 < n_ctx < 8192
    assert planned(in_process, *base, "--n-ctx", str(n_ctx))["fits"] is True
    assert planned(in_process, *base, "--n-ctx", str(n_ctx + 256))["fits"] is False


def test_a_projector_is_added_to_the_first_device(in_process: InProcess, projector: Path) -> None:
    value = planned(in_process, *CARDED, "--n-devices", "2", "--mmproj", projector)
    first, last = value["devices"].values()
    assert (first["projector_bytes"], last["projector_bytes"]) == (3 * 14 * 14 * 64 * 2 + 64 * 128 * 4, 0)
    assert any("is not known, and comes on top" in sentence for sentence in value["warnings"])
    assert "▞ projector" in in_process(*CARDED, "--mmproj", projector).out


def test_companions_that_are_none(in_process: InProcess, projector: Path, smollm2_path: Path, tmp_path: Path) -> None:
    check_refused(in_process(*CARDED, "--mmproj", smollm2_path), 11, "is no projector of images")
    check_refused(in_process(*CARDED, "--draft", projector), 11, "is the projector, not the model")
    check_refused(in_process(*CARDED, "--draft", tmp_path / "none.gguf"), 11, "none.gguf")
    check_refused(in_process("plan", projector, "--card", "RTX 3090"), 11, "is the projector, not the model")


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["plan"], 2, ["needs a file or a --shape"]),
        (["plan", "x.gguf", "--shape", "llama-3-8b"], 2, ["not both"]),
        (["plan", "--shape", "llama-3-8b"], 2, ["needs a quantisation"]),
        (["plan", "x.gguf", "--quant", "Q4_K_M"], 2, ["says its own quantisation"]),
        (["plan", "none.gguf", "--card", "RTX 3090"], 11, ["none.gguf"]),
        (["plan", ".", "--card", "RTX 3090"], 11, ["is a folder"]),
        (["plan", "--shape", "lama-3-8b", "--quant", "Q4_K_M", "--card", "3090"], 2, ["no model called 'lama-3-8b'"]),
        (["plan", "--shape", "llama-3-8b", "--quant", "Q4_K_MM", "--card", "3090"], 2, ["no quantisation called"]),
        ([*SHAPE, "--card", "RTX 3091"], 2, ["no card called 'RTX 3091'"]),
        ([*SHAPE, "--vram-limit", "much"], 2, ["is not an amount of memory"]),
        ([*SHAPE, "--card", "3090", "--type-k", "q9"], 2, ["--type-k 'q9' is not known"]),
        ([*SHAPE, "--card", "3090", "--flash-attn", "maybe"], 2, ["--flash-attn 'maybe' is not known"]),
        ([*SHAPE, "--card", "3090", "--type-v", "q8_0", "--flash-attn", "off"], 2, ["needs flash attention"]),
        ([*SHAPE, "--card", "3090", "--n-ubatch", "512", "--n-batch", "256"], 2, ["more than n_batch 256"]),
        ([*SHAPE, "--card", "3090", "--n-seq-max", "257"], 2, ["at most 256 sequences"]),
        ([*SHAPE, "--card", "3090", "--exact"], 2, ["asks this machine's engine"]),
        ([*SHAPE, "--exact"], 2, ["needs a file that the engine can open"]),
        (["plan", "--batch", "none.jsonl"], 2, ["'none.jsonl'", "No such file"]),
        (["plan", "--batch", "."], 2, ["'.'", "directory"]),
        (["plan", "--batch", "none.jsonl", "--card", "RTX 3090"], 2, ["goes with no other option"]),
    ],
    ids=lambda value: " ".join(value)[-50:] if isinstance(value, list) else str(value),
)
def test_a_plan_that_cannot_be_made(arguments: list[str], code: int, words: list[str], in_process: InProcess) -> None:
    check_refused(in_process(*arguments), code, *words)


@pytest.mark.parametrize(
    ("ended_with", "nearest"),
    [
        (["--shape", "lama-3-8b", "--quant", "Q4_K_M"], "Llama-3-8B"),
        (["--shape", "llama-3-8b", "--quant", "Q4_K_MM"], "Q4_K_M"),
        (["--shape", "llama-3-8b", "--quant", "Q4_K_M", "--card", "RTX 3091"], "RTX 3090"),
        (["--shape", "llama-3-8b", "--quant", "Q4_K_M", "--card", "3090", "--type-k", "q8"], "q8_0"),
    ],
)
def test_the_nearest_names_are_offered(ended_with: list[str], nearest: str, in_process: InProcess) -> None:
    assert nearest in in_process("plan", *ended_with).err.splitlines()[-1]


LYING = {
    "many heads": build(number("llama.attention.head_count_kv", 2**32 - 1)),
    "long heads": build(number("llama.attention.key_length", 2**32 - 1)),
    "wide network": build(number("llama.feed_forward_length", 2**32 - 1)),
    "wide model": build(number("llama.embedding_length", 2**31), keys=without("embedding_length")),
    "large state": build(
        number("mamba.block_count", 1),
        number("mamba.context_length", 64),
        number("mamba.embedding_length", 32),
        number("mamba.ssm.inner_size", 2**32 - 1),
        number("mamba.ssm.state_size", 2**32 - 1),
        keys=(string("general.architecture", "mamba"), KEYS[-1]),
    ),
}


@pytest.mark.parametrize("content", LYING.values(), ids=LYING)
def test_a_header_that_lies_is_refused_or_counted(content: bytes, tmp_path: Path, in_process: InProcess) -> None:
    """Never a traceback, never a negative size."""
    path = tmp_path / "lie.gguf"
    path.write_bytes(content)
    ended = in_process("plan", path, "--vram-limit", "8GiB", "--json")
    if ended.code:
        check_refused(ended, 2, "more bytes than can be counted")
    else:
        assert_nothing_negative(ended)
    inspected = in_process("inspect", path)
    assert inspected.code == 0, inspected.err


def test_a_header_that_claims_a_huge_context(tmp_path: Path, in_process: InProcess) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(build(number("llama.context_length", 2**32 - 1), keys=without("context_length")))
    assert_nothing_negative(in_process("plan", path, "--vram-limit", "8GiB", "--json"))


def assert_nothing_negative(ended: Ended) -> None:
    assert ended.code == 0, ended.err
    value = json.loads(ended.out)
    for one in (*value["devices"].values(), value["host"]):
        assert min(size for name, size in one.items() if name.endswith("_bytes") and size is not None) >= 0
    assert min(row["device_bytes"] for row in value["by_n_gpu_layers"]) >= 0


def test_a_report_as_json_has_what_lies_around_the_plan() -> None:
    value = plan_report_json(REPORT)
    assert {"layer_cost_bytes", "context_cost_bytes_per_4096", "by_n_gpu_layers", "measured_peak_bytes"} <= set(value)
    assert len(value["by_n_gpu_layers"]) == 34

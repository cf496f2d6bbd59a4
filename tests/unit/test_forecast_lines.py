"""Figures from llama.cpp's log, by lines it wrote (0.5.0, a remote card) or writes by its sources; refused tensors."""

from __future__ import annotations

import pytest

from offloadtune.engine.worker import lines
from offloadtune.engine.worker.placed import PlacedTensor, refused_tensors

CARD = "RPC0[127.0.0.1:41139]"
DEVICE_OF = {CARD: "RPC0", "CUDA0": "CUDA0"}
GEMMA = """\
load_tensors: layer   0 assigned to device CPU, is_swa = 1
load_tensors: layer   1 assigned to device RPC0, is_swa = 1
load_tensors: layer   2 assigned to device RPC0, is_swa = 0
load_tensors:          CPU model buffer size =     0.00 MiB
load_tensors: RPC0[127.0.0.1:41139] model buffer size =     0.00 MiB
llama_context: flash_attn            = auto
llama_context:        CPU  output buffer size =     1.00 MiB
llama_kv_cache_iswa: creating non-SWA KV cache, size = 512 cells
llama_kv_cache:        CPU KV buffer size =     0.00 MiB
llama_kv_cache: RPC0[127.0.0.1:41139] KV buffer size =     0.00 MiB
llama_kv_cache: size =    1.50 MiB (   512 cells,   3 layers,  1/1 seqs), K (f16):    0.75 MiB, V (f16):    0.75 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 512 cells
llama_kv_cache: size =    7.50 MiB (   512 cells,  15 layers,  1/1 seqs), K (f16):    3.75 MiB, V (f16):    3.75 MiB
resolve_fused_ops: Flash Attention enabled
sched_reserve: RPC0[127.0.0.1:41139] compute buffer size =   513.25 MiB
sched_reserve:        CPU compute buffer size =    18.77 MiB
sched_reserve: graph: nodes = 727, splits = 2, input objects = 4, input tensors = 9
""".splitlines()
RECURRENT = [
    "llama_memory_recurrent:      CUDA0 RS buffer size =    10.55 MiB",
    "llama_memory_recurrent: size =   10.55 MiB (     1 cells,  64 layers,  1 seqs  0 rs_seq), R (f32):    1.12 MiB",
]


def test_memory_by_the_log() -> None:
    card, host = (
        {"device": device, "is_host": is_host, "weights_bytes": 0, "kv_cache_bytes": 0, "compute_bytes": n_bytes}
        for device, is_host, n_bytes in (("RPC0", False, 538_181_632), ("host", True, 19_681_772))
    )
    assert lines.memory_from_lines(GEMMA, DEVICE_OF) == [host, card]
    assert lines.compute_mib(GEMMA) == {CARD: 513.25, "CPU": 18.77}
    assert lines.cache_total_bytes(GEMMA) == 9 << 20
    assert lines.output_mib(GEMMA) == 1.0


def test_a_recurrent_state_is_no_part_of_the_caches_total() -> None:
    assert lines.cache_total_bytes(RECURRENT) is None
    assert lines.memory_from_lines(RECURRENT, DEVICE_OF)[0]["kv_cache_bytes"] == round(10.55 * 2**20)


def test_where_host_memory_is_however_it_is_called() -> None:
    told = [f"{name} model buffer size =     2.00 MiB" for name in ("CPU_Mapped", "CUDA_Host", "AMX", "CPU_REPACK")]
    (row,) = lines.memory_from_lines(told, DEVICE_OF)
    assert (row["device"], row["is_host"], row["weights_bytes"]) == ("host", True, 8 << 20)


@pytest.mark.parametrize(
    ("line", "splits"),
    [
        (GEMMA[-1], (2, 2)),
        (
            "sched_reserve: graph (pp bs=512, tg bs=1): nodes = 936 / 996, splits = 128 / 2, input objects = 4",
            (128, 2),
        ),
        ("sched_reserve: reserving ...", None),
    ],
)
def test_splits_of_the_graph(line: str, splits: tuple[int, int] | None) -> None:
    assert lines.n_splits([line]) == splits


@pytest.mark.parametrize(
    ("asked", "said", "resolved"),
    [
        ("auto", "resolve_fused_ops: Flash Attention enabled", "enabled"),
        ("auto", "resolve_fused_ops: Flash Attention not supported, set to disabled", "disabled"),
        ("auto", "llama_init_from_model: enabling flash_attn since it is required for quantized V cache", "enabled"),
        ("enabled", "llama_init_from_model: flash_attn is not compatible with Grok - forcing off", "disabled"),
        ("disabled", "llama_context: flash_attn            = disabled", "disabled"),
        ("auto", "", "auto"),
    ],
)
def test_flash_attention_resolved(asked: str, said: str, resolved: str) -> None:
    assert lines.resolved_flash_attn(asked, [said]) == resolved


def test_layers_and_tensors_left_out() -> None:
    assert lines.layer_devices(GEMMA) == ["host", "RPC0", "RPC0"]
    unused = "model has unused tensor blk.46.attn_q.weight (size = 1048576 bytes) -- ignoring"
    assert lines.unused_bytes([unused, *GEMMA, unused]) == 2 << 20


def test_the_loaders_line_about_tensors_that_moved() -> None:
    by_host = (
        "done_getting_tensors: tensor 'token_embd.weight' (q8_0) (and 272 others) cannot be used with preferred buffer "
        "type CPU_REPACK, using CPU instead"
    )
    assert lines.refused_tensors([by_host], DEVICE_OF) == []
    by_card = by_host.replace("CPU_REPACK", CARD).replace("token_embd", "blk.3.ffn_up_exps")
    expected = {
        "example": "blk.3.ffn_up_exps.weight",
        "type_name": "q8_0",
        "n_tensors": 273,
        "refused_by": CARD,
        "kept_in": "CPU",
    }
    assert lines.refused_tensors([by_card], DEVICE_OF) == [expected]
    assert lines.refused_tensors([by_card], DEVICE_OF, kept=r"blk\.3\.ffn_(up|down)_exps") == []


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        (
            ["llama_init_from_model: quantized V cache requires flash_attn to be enabled"],
            "quantized V cache requires flash_attn to be enabled",
        ),
        (
            [
                "gguf_init_from_file: failed to open GGUF file '/x.gguf' (No such file or directory)",
                "llama_model_load: error loading model: llama_model_loader: failed to load model from /x.gguf",
                "llama_model_load_from_file_impl: failed to load model",
            ],
            "failed to open GGUF file '/x.gguf' (No such file or directory)",
        ),
        (["llama_model_load_from_file_impl: failed to load model"], "failed to load model"),
        ([], ""),
    ],
)
def test_errors_as_one_sentence(errors: list[str], reason: str) -> None:
    assert lines.reason_of(errors) == reason


def test_tensors_that_a_device_refuses_are_told_by_type() -> None:
    layers = ["host", "CUDA0", "CUDA0", "CUDA0"]
    table = [
        ("token_embd.weight", "q4_K", "host"),
        ("output_norm.weight", "f32", "CUDA0"),
        ("output.weight", "q6_K", "CUDA0"),
        ("blk.0.ffn_up.weight", "tq1_0", "host"),
        ("blk.1.ffn_up.weight", "tq1_0", "host"),
        ("blk.1.ffn_down.weight", "q2_0", "host"),
        ("blk.2.ffn_up.weight", "tq1_0", "host"),
        ("blk.2.ffn_up_exps.weight", "q4_K", "host"),
        ("blk.2.attn_q.weight", "q4_K", "CUDA0"),
    ]
    found = refused_tensors(placed(table), layers, DEVICE_OF, r"_exps")
    assert [(group["example"], group["type_name"], group["n_tensors"]) for group in found] == [
        ("blk.1.ffn_up.weight", "tq1_0", 2),
        ("blk.1.ffn_down.weight", "q2_0", 1),
    ]
    assert {(group["refused_by"], group["kept_in"]) for group in found} == {("CUDA0", "CPU")}


@pytest.mark.parametrize(("devices", "n_refused"), [(["host"], 1), (["host", "CUDA0"], 0)])
def test_a_tied_embedding_is_refused_where_no_copy_of_it_is_on_the_device(devices: list[str], n_refused: int) -> None:
    tensors = placed([("token_embd.weight", "q6_K", device) for device in devices])
    assert len(refused_tensors(tensors, ["CUDA0", "CUDA0"], DEVICE_OF, None)) == n_refused
    assert refused_tensors(tensors[:1], ["CUDA0", "host"], DEVICE_OF, None) == []


def placed(table: list[tuple[str, str, str]]) -> list[PlacedTensor]:
    return [
        PlacedTensor(name=name, type_name=type_name, buffer_name="CPU" if device == "host" else device, device=device)
        for name, type_name, device in table
    ]

"""What dead and refusing engines leave behind, and what becomes of it. The texts are llama.cpp's own."""

from __future__ import annotations

import pytest

from offloadtune.engine.classify import classify, is_engine_fault, refused_file
from offloadtune.records import Evidence, Outcome

CUDA_MALLOC = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 0: cudaMalloc failed: out of memory"
)
RPC_LOST = "/b/ggml/src/ggml-rpc/ggml-rpc.cpp:571: Remote RPC server crashed or returned malformed response"
AMX_DEATH = "llama_context: n_ctx_seq (512) < n_ctx_train (8192)"

DEVICE, HOST = Outcome.OUT_OF_MEMORY_DEVICE, Outcome.OUT_OF_MEMORY_HOST


def refused(phase: str, *lines: str) -> Evidence:
    return Evidence(phase=phase, last_lines=lines)


def died(phase: str, signal: str, *lines: str, abort_text: str | None = None) -> Evidence:
    return Evidence(phase=phase, signal=signal, last_lines=lines, abort_text=abort_text)


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        # the device's memory
        (
            refused(
                "load",
                CUDA_MALLOC,
                "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1073741824",
                "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
                "llama_model_load_from_file_impl: failed to load model",
            ),
            DEVICE,
        ),
        (
            refused(
                "open",
                CUDA_MALLOC,
                "ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 1073741824",
                "graph_reserve: failed to allocate compute buffers",
                "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
            ),
            DEVICE,
        ),
        (
            refused(
                "open", "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers"
            ),
            DEVICE,
        ),
        (refused("open", "failed to allocate compute tg buffers"), DEVICE),
        (refused("open", "graph_reserve: failed to allocate compute buffers"), DEVICE),
        (
            refused(
                "open",
                "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            ),
            DEVICE,
        ),
        (refused("open", "failed to initialize the context: failed to allocate buffer for rs cache"), DEVICE),
        (
            refused("load", "alloc_tensor_range: failed to allocate RPC0[127.0.0.1:50052] buffer of size 66355200"),
            DEVICE,
        ),
        (refused("load", "unable to allocate ROCm1 buffer"), DEVICE),
        (
            died("visit", "SIGABRT", abort_text="CUDA error: out of memory\n  current device: 0, in function alloc"),
            DEVICE,
        ),
        (died("visit", "SIGABRT", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), DEVICE),
        (
            refused(
                "load",
                "ggml_vulkan: Device memory allocation of size 2147483648 failed.",
                "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
            ),
            DEVICE,
        ),
        (
            refused("load", "Requested buffer size exceeds device memory allocation limit: ErrorOutOfDeviceMemory"),
            DEVICE,
        ),
        # main memory, although layers are offloaded
        (refused("load", "llama_model_load: error loading model: unable to allocate CPU buffer"), HOST),
        (refused("load", "alloc_tensor_range: failed to allocate CPU buffer of size 4294967296"), HOST),
        (refused("load", "alloc_tensor_range: failed to allocate CPU_REPACK buffer of size 4294967296"), HOST),
        (refused("load", "unable to allocate CUDA_Host buffer"), HOST),
        (refused("load", "unable to allocate SYCL_Host buffer"), HOST),
        (refused("load", "unable to allocate AMX buffer"), HOST),
        (refused("open", "output_reserve: failed to allocate output buffer of size 593.50 MiB"), HOST),
        (
            refused(
                "open",
                "ggml_gallocr_reserve_n_impl: failed to allocate CPU buffer of size 1073741824",
                "graph_reserve: failed to allocate compute buffers",
                "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
            ),
            HOST,
        ),
        (died("load", "SIGABRT", "terminate called after throwing an instance of 'std::bad_alloc'"), HOST),
        (refused("load", "error loading model: mmap failed: Cannot allocate memory"), HOST),
        (died("visit", "SIGKILL", "llama_context: graph nodes = 937"), HOST),
        # cannot be meant
        (
            refused("load", "llama_model_load: error loading model: unknown model architecture: 'foo'"),
            Outcome.UNSUPPORTED,
        ),
        (
            refused("open", "llama_init_from_model: quantized V cache requires flash_attn to be enabled"),
            Outcome.UNSUPPORTED,
        ),
        (refused("open", "quantized V cache was requested, but this requires Flash Attention"), Outcome.UNSUPPORTED),
        (refused("load", "device Vulkan0 does not support split buffers"), Outcome.UNSUPPORTED),
        (refused("load", "error loading model vocabulary: unknown pre-tokenizer type: 'new'"), Outcome.UNSUPPORTED),
        (refused("unsupported", "no device is named CUDA7"), Outcome.UNSUPPORTED),
        # said no
        (refused("load", "gguf_init_from_file_impl: failed to read tensor data"), Outcome.LOAD_FAILED),
        (refused("decode", "llama_decode returned 1 for 1 tokens at depth 511"), Outcome.LOAD_FAILED),
        (refused("load"), Outcome.LOAD_FAILED),
        # died
        (died("tiny", "SIGILL", AMX_DEATH), Outcome.CRASHED),
        (died("visit", "SIGSEGV"), Outcome.CRASHED),
        (
            died("visit", "SIGABRT", abort_text="/b/ggml/src/ggml.c:3204: GGML_ASSERT(n_dims <= 4) failed"),
            Outcome.CRASHED,
        ),
        (died("load", "SIGABRT", abort_text=RPC_LOST), Outcome.CRASHED),
        (Evidence(phase="visit", exit_code=3), Outcome.CRASHED),
    ],
)
def test_remains_tell_the_outcome(evidence: Evidence, outcome: Outcome) -> None:
    found, sentence = classify(evidence, offloads=True)
    assert found is outcome
    assert sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("line", ["failed to allocate compute pp buffers", "failed to allocate buffer for kv cache"])
def test_buffers_without_a_name_are_main_memory_when_nothing_is_offloaded(line: str) -> None:
    assert classify(refused("open", line), offloads=False)[0] is HOST
    assert classify(refused("open", line), offloads=True)[0] is DEVICE


@pytest.mark.parametrize("evidence", [died("visit", "SIGKILL", CUDA_MALLOC), refused("load"), Evidence(phase="visit")])
def test_time_out_wins_over_all_remains(evidence: Evidence) -> None:
    when = {"visit": "while measuring", "load": "while loading the file"}[evidence.phase]
    sentence = f"no answer in the time allowed, {when}"
    assert classify(evidence, offloads=True, timed_out=True) == (Outcome.TIMED_OUT, sentence)


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        (
            refused("load", CUDA_MALLOC, "llama_model_load_from_file_impl: failed to load model"),
            f"the device's memory ran out while loading the file: {CUDA_MALLOC}",
        ),
        (
            refused(
                "open",
                "reserve: failed to allocate CPU buffer of size 5",
                "failed to allocate compute pp buffers",
            ),
            "main memory ran out while opening the context: reserve: failed to allocate CPU buffer of size 5",
        ),
        (
            refused("open", "failed to allocate compute pp buffers"),
            "the device's memory ran out while opening the context: failed to allocate compute pp buffers",
        ),
        (died("tiny", "SIGILL"), "the engine died with SIGILL in the self-test: no message"),
        (
            Evidence(phase="canary", exit_code=3),
            "the engine died with exit code 3 while filling the context to its end: no message",
        ),
        (
            refused("load", "unknown model architecture: 'foo'"),
            "the engine does not support this: unknown model architecture: 'foo'",
        ),
        (
            died("visit", "SIGKILL"),
            "the system killed the engine while measuring, as it does when main memory runs out",
        ),
        (
            refused("load", "error: tensor is out of bounds", "done."),
            "refused while loading the file: error: tensor is out of bounds",
        ),
    ],
)
def test_sentence_names_what_when_and_the_telling_line(evidence: Evidence, sentence: str) -> None:
    assert classify(evidence, offloads=True)[1] == sentence


@pytest.mark.parametrize(
    ("abort_text", "shown"),
    [
        (RPC_LOST, "ggml-rpc.cpp:571: Remote RPC server crashed or returned malformed response"),
        (r"C:\Users\builder\llama.cpp\ggml\src\ggml.c:12: GGML_ASSERT(a) failed", "ggml.c:12: GGML_ASSERT(a) failed"),
        (
            "/home/b/.cache/pip-x/ggml/src/ggml-cuda/ggml-cuda.cu:98: CUDA error\n  next line",
            "ggml-cuda.cu:98: CUDA error",
        ),
        ("cannot open /models/a/b.gguf: error", "cannot open /models/a/b.gguf: error"),
    ],
)
def test_folders_of_whoever_built_the_engine_are_cut(abort_text: str, shown: str) -> None:
    assert classify(died("load", "SIGABRT", abort_text=abort_text), offloads=True)[1].endswith(f": {shown}")


@pytest.mark.parametrize(
    ("evidence", "is_fault"),
    [
        (died("tiny", "SIGILL"), True),
        (died("tiny", "SIGSEGV"), True),
        (died("tiny", "SIGABRT", abort_text="/b/ggml/src/ggml.c:3204: GGML_ASSERT(n_dims <= 4) failed"), True),
        (Evidence(phase="tiny", exit_code=1), True),
        (died("tiny", "SIGABRT", abort_text=RPC_LOST), False),
        (died("load", "SIGABRT", "Failed to connect to 127.0.0.1:50052"), False),
        (died("tiny", "SIGKILL"), False),
        (died("tiny", "SIGABRT", CUDA_MALLOC), False),
        (refused("load", "unable to allocate CPU buffer"), False),
        (refused("load", "unknown model architecture: 'foo'"), False),
    ],
)
def test_only_a_death_of_its_own_speaks_against_the_build(evidence: Evidence, is_fault: bool) -> None:  # noqa: FBT001
    assert is_engine_fault(evidence) is is_fault


@pytest.mark.parametrize(
    ("phase", "line", "told"),
    [
        ("load", "llama_model_load: error loading model: unknown model architecture: 'x'", "architecture: 'x'"),
        ("load", "error loading model: error loading model vocabulary: unknown pre-tokenizer type: 'y'", "type: 'y'"),
        ("load", "error loading model: key not found in model: x.block_count", "not found in model: x.block_count"),
        ("load", "error loading model: done_getting_tensors: wrong number of tensors; expected 3, got 2", "got 2"),
        ("load", "error loading model: unable to allocate CUDA0 buffer", None),
        ("open", "unknown model architecture: 'x'", None),
    ],
)
def test_what_the_engine_cannot_read_in_a_file(phase: str, line: str, told: str | None) -> None:
    found = refused_file(Evidence(phase=phase, last_lines=("loaded meta data", line, "failed to load model")))
    assert (found is None) == (told is None)
    assert found is None or found.endswith(told or "")


def test_no_evidence_is_no_refusal() -> None:
    assert refused_file(None) is None

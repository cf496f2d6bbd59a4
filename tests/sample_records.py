"""Fixed records for tests of what writes and shows them: a made-up machine, file and sweep."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime
from pathlib import Path

from offloadtune.recalls import JournalSummary, RecallReport, UnreadableJournal
from offloadtune.records import (
    WORKLOADS,
    Basis,
    Comparison,
    Cpu,
    Device,
    EngineBuild,
    Estimate,
    Evidence,
    Expected,
    Figures,
    GgufFacts,
    Goal,
    Host,
    Machine,
    MemoryUse,
    Note,
    NvmlGpu,
    Outcome,
    Ram,
    Recommendation,
    Settings,
    Target,
    TensorFacts,
    Trial,
    TrialResult,
    Verdict,
    Visit,
    Workload,
)
from offloadtune.store import SweepHeader
from offloadtune.sweeps import Explanation, Front, FrontPoint, Neighbour, RunnerUp, SweepReport, TimeShare

GIB = 1 << 30
CUDA0 = Device(
    name="CUDA0",
    description="NVIDIA GeForce RTX 4090",
    kind="gpu",
    total_bytes=24 * GIB,
    free_bytes=23 * GIB,
    device_id="0000:01:00.0",
)
CPU = Device(name="CPU", description="AMD Ryzen 9", kind="cpu", total_bytes=64 * GIB, free_bytes=48 * GIB)

SETTINGS = Settings(
    n_gpu_layers=24, n_ctx=2816, n_threads=8, n_threads_batch=16, flash_attn_type="enabled", n_ubatch=256
)
SERVER_SETTINGS = SETTINGS.replace(
    n_batch=2048,
    n_ubatch=1024,
    flash_attn_type="auto",
    swa_full=False,
    n_outputs_max=1,
    load_mode="mmap_mlock",
    type_k="q8_0",
    type_v="q8_0",
)
CPU_ONLY = Settings(devices=(), n_ctx=2816, n_threads=8, n_threads_batch=8, use_extra_bufts=False, op_offload=False)
TRIAL = Trial(settings=SETTINGS, target=Target.LLAMA_CPP_PYTHON, why="24 of 29 layers on the device")

MACHINE = Machine(
    host=Host(
        os="Linux 6.8 Ubuntu 24.04",
        cpu=Cpu(
            brand="AMD Ryzen 9 7950X 16-Core Processor",
            arch="x86_64",
            n_physical_cores=16,
            n_logical_cores=32,
            flags=("avx2", "avx512f"),
            l3_bytes=64 << 20,
        ),
        ram=Ram(
            total_bytes=64 * GIB,
            available_bytes=48 * GIB,
            kind="DDR5",
            configured_mt_per_s=5600,
            n_modules=2,
            read_bytes_per_s=61.2e9,
            n_threads_read=16,
        ),
        nvml_gpus=(
            NvmlGpu(
                index=0,
                name="NVIDIA GeForce RTX 4090",
                uuid="GPU-1",
                pci_bus_id="0000:01:00.0",
                total_bytes=24 * GIB,
                free_bytes=23 * GIB,
                driver="550.54.14",
                compute_capability="8.9",
                pcie_generation=None,
                n_pcie_lanes=16,
            ),
        ),
        notes=(Note(subject="nvml_gpus[0].pcie_generation", reason="The driver does not tell."),),
    ),
    devices=(CUDA0, CPU),
)
BARE_MACHINE = Machine(
    host=Host(
        os="Linux 6.1",
        cpu=Cpu(brand=None, arch="aarch64", n_physical_cores=None, n_logical_cores=1, flags=(), l3_bytes=None),
        ram=Ram(
            total_bytes=GIB,
            available_bytes=812 << 20,
            kind=None,
            configured_mt_per_s=None,
            n_modules=None,
            read_bytes_per_s=None,
            n_threads_read=None,
        ),
        nvml_gpus=None,
        notes=(Note(subject="cpu.brand", reason="The system does not name it."),),
    ),
    devices=None,
    notes=(Note(subject="devices", reason="No engine was asked."),),
)
ENGINE = EngineBuild(
    version="llama-cpp-python 0.3.36", build_id="0123456789ab", system_info="AVX2 = 1", library_dir="/venv/lib"
)
FACTS = GgufFacts(
    path=Path("/models/Qwen 3 [8B].gguf"),
    shard_paths=(Path("/models/Qwen 3 [8B].gguf"),),
    gguf_id="4f2c9ad01b77",
    file_bytes=4_920_000_000,
    version=3,
    arch="qwen3moe",
    name="Qwen 3 [8B] :smile:",
    quantisation="Q4_K_M",
    n_params=8_190_000_000,
    n_layer=28,
    n_layer_nextn=0,
    n_embd=4096,
    n_vocab=151_936,
    n_ctx_train=40_960,
    n_head=(32,) * 28,
    n_head_kv=(8,) * 28,
    n_embd_head_k=128,
    n_embd_head_v=128,
    n_swa=1024,
    is_swa=(True, False) * 14,
    n_expert=64,
    n_expert_used=8,
    is_tied=True,
    layer_bytes=(150_000_000,) * 27 + (160_000_000,),
    expert_bytes=(100_000_000,) * 28,
    embedding_bytes=500_000_000,
    output_bytes=16_384,
    other_bytes=0,
    type_bytes=(("Q4_K", 3_900_000_000), ("Q6_K", 800_000_000), ("F32", 10_000_000), ("F16", 16_384)),
    tensors=(
        TensorFacts(name="token_embd.weight", type_name="Q4_K", shape=(4096, 151_936), n_bytes=9, offset=0, i_shard=0),
    ),
    key_values=(
        ("general.name", "Qwen 3 [8B] :smile:"),
        ("a.nan", math.nan),
        ("a.inf", -math.inf),
        ("a.list", (1, 2.5)),
    ),
)


def visit(scale: float = 1.0, *, is_warmup: bool = False) -> Visit:
    """A passage of the workload, `scale` times as long as usual."""
    return Visit(
        is_warmup=is_warmup,
        i_load=2,
        n_prefix_cached=2048,
        n_prompt_new=256,
        tokenize_ns=round(200_000 * scale),
        prefill_ns=round(180_000_000 * scale),
        first_sample_ns=150_000,
        first_decode_ns=round(31_000_000 * scale),
        step_ns=(round(25_000_000 * scale), round(26_000_000 * scale)),
        sample_ns=(140_000, 160_000),
    )


def result(outcome: Outcome = Outcome.OK) -> TrialResult:
    """A result of every outcome: full when it went well, with the remains of the worker otherwise."""
    settings = SETTINGS.replace(n_ubatch=256 + list(Outcome).index(outcome))
    trial = Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why=f"to see {outcome.value}")
    if outcome is not Outcome.OK:
        remains = Evidence(
            phase="open",
            signal="SIGABRT" if outcome is Outcome.CRASHED else None,
            exit_code=-6 if outcome is Outcome.CRASHED else None,
            abort_text="ggml-cuda.cu:12: CUDA error: out of memory\n  in function x",
            last_lines=("llama_context: n_ctx = 2816", 'naïve "line" \\ \t \u2028 with � all'),
        )
        return TrialResult(
            trial=trial, outcome=outcome, reason="the device's memory ran out: 5 %", evidence=remains, load_ns=None
        )
    return TrialResult(
        trial=trial,
        outcome=outcome,
        reason="",
        visits=(visit(is_warmup=True), visit(), visit(1.1)),
        memory=(
            MemoryUse(device="CUDA0", is_host=False, weights_bytes=3 * GIB, kv_cache_bytes=308 << 20, compute_bytes=9),
            MemoryUse(device="host", is_host=True, weights_bytes=GIB, kv_cache_bytes=0, compute_bytes=7 << 20),
        ),
        device_peak_bytes=(("CUDA0", 5 * GIB),),
        device_predicted_bytes=(("CUDA0", 5 * GIB - (50 << 20)),),
        expected=Expected(ttft_s=estimate(0.19, 0.4, 0), decode_tok_per_s=estimate(41.0, 0.3, 0), bound_tok_per_s=88.0),
        host_peak_rss_bytes=2 * GIB,
        load_ns=1_234_567_890_123,
        effective=(("n_ctx", 2816), ("flash_attn_type", "enabled"), ("swa_full", False), ("n_seq_max", None)),
        started_at="2026-01-02T03:04:05+00:00",
        duration_s=12.345,
    )


def estimate(p50: float, spread: float = 0.05, n_samples: int = 9) -> Estimate:
    return Estimate(p50=p50, low=p50 * (1 - spread), high=p50 * (1 + spread), n_samples=n_samples, coverage_frac=0.9609)


def figures(scale: float = 1.0) -> Figures:
    """Figures `scale` times as slow as the best."""
    return Figures(
        ttft_s=estimate(0.1805 * scale),
        decode_tok_per_s=estimate(39.2 / scale),
        prefill_tok_per_s=estimate(1422.0 / scale),
        turn_s=estimate(6.68 * scale),
    )


UNDECIDED = Estimate(p50=1.02, low=-math.inf, high=math.inf, n_samples=1, coverage_frac=1.0, basis=Basis.CALIBRATED)


def recommendation(trial: Trial = TRIAL) -> Recommendation:
    """An answer with a win, and a comparison whose interval has no ends."""
    return Recommendation(
        goal=Goal.TURN,
        workload=WORKLOADS["chat"],
        trial=trial,
        figures=figures(),
        peak_bytes=(("CUDA0", 5 * GIB),),
        host_peak_rss_bytes=None,
        versus=(
            Comparison(against="cpu_only", ratio=estimate(2.5), verdict=Verdict.FASTER),
            Comparison(against="default", ratio=UNDECIDED, verdict=Verdict.SAME),
        ),
        reasons=(
            "24 of 29 layers are on the device, 5.00 GiB of 23.0 GiB; [one] more does not fit.",
            "2.50x faster than the CPU alone for the whole turn (95 % interval 2.38x to 2.63x, 9 rounds).",
        ),
        evidence_trial_ids=(trial.trial_id, "llama_cpp_python-0123456789ab"),
    )


def front(trial: Trial = TRIAL) -> Front:
    """More trade-offs than a screen shows; of one no device told what it takes."""
    others = [
        FrontPoint(
            trial=dataclasses.replace(trial, settings=trial.settings.replace(n_gpu_layers=24 - n)),
            changes=(f"{n} layers fewer", "n_ubatch 128", "8 threads for prompts", "op offload off")[: 1 + n % 4],
            ttft_s=0.1805 * (1 + n / 40),
            decode_tok_per_s=39.2 / (1 + n / 10),
            n_ctx=2816 * (1 + n // 6),
            device_bytes=None if n == 5 else 5 * GIB - n * (160 << 20),
            n_visits=1,
        )
        for n in range(2, 9)
    ]
    chosen = FrontPoint(
        trial=trial,
        changes=(),
        ttft_s=0.1805,
        decode_tok_per_s=39.2,
        n_ctx=2816,
        device_bytes=5 * GIB,
        n_visits=9,
    )
    return Front(points=(chosen, *others), n_ran=12, tolerance_frac=0.02)


def explanation(trial: Trial = TRIAL) -> Explanation:
    """Every kind of neighbour, more than a screen shows; the time of both phases; a runner-up that lost."""

    def neighbour(words: str, ratio: Estimate | None = None, more: int = 0, **why: str) -> Neighbour:
        return Neighbour(
            settings=trial.settings.replace(n_ubatch=64),
            words=words,
            cost_ratio=ratio,
            more_device_bytes=more,
            **why,
        )

    once = Estimate(p50=1.004, low=0.0, high=math.inf, n_samples=1, coverage_frac=1.0)
    law = dataclasses.replace(estimate(1.06, 0.02, 0), basis=Basis.CALIBRATED)
    return Explanation(
        neighbours=(
            neighbour("1 layer more", more=170 << 20, no_room="needs about 5.17 GiB, there are 5.10 GiB"),
            neighbour("1 layer fewer", law, -(170 << 20)),
            neighbour("n_ctx 5632", once, 308 << 20),
            neighbour("16 threads for decoding", unknown="it did not run when tried: [red]x\x1b[2J"),
            neighbour("n_ubatch 512", estimate(1.02, 0.01, 9)),
            neighbour("flash attention disabled", law, 1000),
            neighbour("op offload off", law),
        ),
        limits=(
            TimeShare(
                phase="prefill",
                term="0.flop",
                n_bytes=None,
                share_frac=0.61,
                low_frac=0.5,
                high_frac=0.72,
                words="multiplying the weights on the device: 61% of the time of the prompt",
                basis=Basis.CALIBRATED,
            ),
            TimeShare(
                phase="decode",
                term="host.weights",
                n_bytes=4_187_593_113,
                share_frac=0.71,
                low_frac=0.64,
                high_frac=0.78,
                words="each token reads 3.90 GiB of weights from main memory: 71% of its time",
                basis=Basis.CALIBRATED,
            ),
        ),
        runner_up=RunnerUp(
            trial=trial, changes=("1 layer fewer", "n_ubatch 512"), ratio=estimate(1.04, 0.02), verdict=Verdict.FASTER
        ),
    )


def header() -> SweepHeader:
    return SweepHeader(
        offloadtune_version="0.1.0",
        machine_id=MACHINE.machine_id,
        machine=MACHINE,
        engine=ENGINE,
        gguf_id=FACTS.gguf_id,
        gguf_path=FACTS.path,
        file_bytes=FACTS.file_bytes,
        workload=WORKLOADS["chat"],
        goal=Goal.TURN,
        target=Target.LLAMA_CPP_PYTHON,
        n_ctx=2816,
        fixed={"n_threads": 8, "flash_attn_type": "enabled", "swa_full": True},
        limit_bytes=None,
        started_at="2026-01-02T03:04:05+00:00",
    )


def report(trial: Trial = TRIAL, *, is_interrupted: bool = False) -> SweepReport:
    """A whole sweep's answer; two of its trials went well."""
    results = (result(), result(), *(result(outcome) for outcome in Outcome if outcome is not Outcome.OK))
    return SweepReport(
        machine=MACHINE,
        engine=ENGINE,
        facts=FACTS,
        sha256=None if is_interrupted else "a" * 64,
        results=results,
        n_rounds=5,
        n_resumed=0,
        n_model_loads=4,
        n_steps=32,
        baselines={"cpu_only": figures(2.5), "default": figures(1.02)},
        recommendation=recommendation(trial),
        skipped=("quantised KV cache: it changes the stored precision",),
        apply_text='llm = Llama(\n    model_path="/models/Qwen 3 [8B].gguf",\n)\n',
        profile_path=Path("/home/user/profiles/rtx/Qwen 3 [8B].toml"),
        apply_path=Path("/home/user/profiles/rtx/Qwen 3 [8B].llama_cpp_python.py"),
        journal_path=Path("/home/user/sweeps/rtx/x.jsonl"),
        is_interrupted=is_interrupted,
        duration_s=118.4,
        front=front(trial),
        explanation=explanation(trial),
    )


def summary() -> JournalSummary:
    """A finished sweep in the journals."""
    return JournalSummary(
        path=Path("/home/user/sweeps/rtx/Qwen 3 [8B]-0123456789ab.jsonl"),
        gguf_path=FACTS.path,
        started_at=header().started_at,
        written_at=datetime(2026, 1, 2, 3, 6, 5, tzinfo=UTC),
        machine_id=MACHINE.machine_id,
        engine_version=ENGINE.version,
        workload=WORKLOADS["chat"],
        goal=Goal.TURN,
        target=Target.LLAMA_CPP_PYTHON,
        n_ctx=2816,
        n_ok=12,
        n_failed=1,
        n_rounds=6,
        best=recommendation(),
        was_put_aside=False,
        is_interrupted=False,
        is_under_way=False,
    )


def recalled(trial: Trial = TRIAL) -> RecallReport:
    """A stored answer to another question than the one that was measured."""
    return RecallReport(
        path=FACTS.path,
        gguf_id=FACTS.gguf_id,
        recommendation=recommendation(trial),
        baselines={"cpu_only": figures(2.5), "default": figures(1.02)},
        skipped=("quantised KV cache: it changes the stored precision",),
        n_steps=32,
        apply_text=report().apply_text,
        rests_on=summary(),
        notes=("The search went after ttft: one that goes after turn may find better settings.",),
        front=front(trial),
        explanation=explanation(trial),
    )


def journals() -> list[JournalSummary | UnreadableJournal]:
    """A history with every kind of row, newest first."""
    custom = Workload(name="0/128/8/1", n_prefix_cached=0, n_prompt_new=128, n_gen=8)
    killed = dataclasses.replace(summary(), best=None, is_interrupted=True, n_ok=1, n_failed=0, n_rounds=0)
    aside = dataclasses.replace(summary(), workload=custom, goal=Goal.TTFT, was_put_aside=True, n_ctx=256)
    reason = "/home/user/sweeps/rtx/x-1.jsonl is damaged at line 3."
    unreadable = UnreadableJournal(
        path=Path("/home/user/sweeps/rtx/x-1.jsonl"), written_at=summary().written_at, reason=reason
    )
    under_way = dataclasses.replace(killed, is_interrupted=False, is_under_way=True, n_ok=0)
    return [under_way, summary(), killed, unreadable, aside]

"""Checking: what cannot be measured or written down is refused before anything is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offloadtune import export
from offloadtune.benches import BenchRequest
from offloadtune.errors import GgufError, UsageError
from offloadtune.footprint import Grid, has_dense_ffn, is_mapped, pad_256, reckon
from offloadtune.pipeline.lacking import check_limits
from offloadtune.pipeline.spaces import wanted_n_ctx
from offloadtune.records import GgufFacts, Goal, Machine, Settings, Target
from offloadtune.speeds import CalibrationRequest
from offloadtune.sweeps import SweepRequest
from offloadtune.units import format_bytes

_ENCODERS = {
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "t5encoder",
}


def check(request: SweepRequest, facts: GgufFacts) -> None:
    """Refuse what a sweep cannot do. Raises GgufError, UsageError, ExportError."""
    _check_generates(facts)
    if request.workload.n_parallel != 1:
        message = f"Workload {request.workload.name} asks for {request.workload.n_parallel} sequences at once."
        raise UsageError(message, hint="measure one sequence: this version does not measure several")
    needed = request.workload.n_ctx_needed
    if request.n_ctx is not None and request.n_ctx < needed:
        message = f"--n-ctx {request.n_ctx} cannot hold the workload {request.workload.name}: it fills {needed} tokens."
        raise UsageError(message, hint=f"use --n-ctx {pad_256(needed)} or a smaller --workload")
    if facts.n_ctx_train and max(needed, request.n_ctx or 0) > facts.n_ctx_train:
        asked = max(needed, request.n_ctx or 0)
        message = f"{facts.path.name} was trained for {facts.n_ctx_train} tokens of context; this asks for {asked}."
        raise UsageError(message, hint=f"stay within it: a smaller --workload or --n-ctx {facts.n_ctx_train}")
    _check_fixed(request.fixed, facts, wanted_n_ctx(request, facts))
    _check_counts(request)
    check_limits(request, facts)
    if request.target is Target.LLAMA_CPP_PYTHON:
        export.render_snippet(Settings(**request.fixed), facts.path)


def check_bench(request: BenchRequest, facts: GgufFacts) -> None:
    """Refuse what a bench cannot do. Raises GgufError, UsageError."""
    _check_generates(facts)
    if request.workload is not None and request.workload.n_parallel != 1:
        message = f"Workload {request.workload.name} asks for {request.workload.n_parallel} sequences at once."
        raise UsageError(message, hint="measure one sequence: this version does not measure several")


def check_calibration(request: CalibrationRequest, facts: GgufFacts, *, n_ctx: int) -> None:
    """Refuse what cannot be calibrated. Raises GgufError, UsageError, ExportError."""
    _check_generates(facts)
    if chosen := next((name for name in ("n_gpu_layers", "n_ubatch") if name in request.fixed), None):
        message = f"A calibration tries several values of {chosen} itself."
        raise UsageError(message, hint=f"leave out --set {chosen}")
    _check_fixed(request.fixed, facts, n_ctx)
    export.render_snippet(Settings(**request.fixed), facts.path)


def check_memory(fixed: Mapping[str, Any], facts: GgufFacts, machine: Machine, *, n_ctx: int) -> None:
    """Refuse to hold weights in main memory that it has no room for. Raises UsageError.

    Mapped from the file they need not be there at once; read or locked into memory they end in the system's killing.
    Every sweep tries the CPU alone, so all of them are counted.
    """
    least = {"n_ctx": n_ctx, "flash_attn_type": "enabled", "n_outputs_max": 1, **fixed}
    settings = Settings(**{**least, "devices": (), "n_gpu_layers": 0})
    if is_mapped(settings):
        return
    found = reckon(facts, Grid.of((settings,), facts.n_layer), ())
    held = int((found.host_weights_bytes + found.host_kv_cache_bytes + found.host_compute_bytes)[0])
    available = machine.host.ram.available_bytes
    if held > available:
        holds = f"load_mode={settings.load_mode} holds {format_bytes(held)} in main memory with the CPU alone"
        message = f"{holds}, and {format_bytes(available)} are available."
        raise UsageError(message, hint="leave it out: mapped from the file, weights need not all be in memory")


def _check_counts(request: SweepRequest) -> None:
    """Refuse to count tokens that the workload does not write."""
    counting = {
        "--goal decode": request.goal is Goal.DECODE,
        "--min-tok-per-s": request.limits.min_tok_per_s is not None,
    }
    if request.workload.n_gen == 1 and (option := next((name for name, is_set in counting.items() if is_set), None)):
        message = f"{option} counts the tokens after the first, and workload {request.workload.name} writes one only."
        raise UsageError(message, hint="use a workload that generates more, or --goal ttft")


def _check_fixed(fixed: Mapping[str, Any], facts: GgufFacts, n_ctx: int) -> None:
    """Refuse what the engine would round to something else: that would be measured and not recommended."""
    _check_kept_away(fixed, facts)
    for name in ("n_threads", "n_threads_batch", "n_batch", "n_ubatch"):
        if fixed.get(name) == 0:
            raise UsageError(f"--set {name}=0 needs a number above 0.", hint=f"write it like --set {name}=4")
    n_batch, n_ubatch = fixed.get("n_batch", n_ctx), fixed.get("n_ubatch", 1)
    if max(n_batch, n_ubatch) > n_ctx:
        message = f"A batch of {max(n_batch, n_ubatch)} is more than the context of {n_ctx}, which is all it can hold."
        raise UsageError(message, hint="use a larger --n-ctx or a smaller batch")
    if n_ubatch > n_batch:
        message = f"--set n_ubatch={n_ubatch} is more than n_batch={n_batch}, which it divides."
        raise UsageError(message, hint="set n_batch to at least as much")


def _check_kept_away(fixed: Mapping[str, Any], facts: GgufFacts) -> None:
    """Refuse to keep in main memory what the model does not have."""
    kept = (
        ("n_cpu_moe", facts.n_expert > 0, "experts"),
        ("n_cpu_ffn", has_dense_ffn(facts), "feed-forward weights besides experts"),
    )
    for name, has_some, what in kept:
        n_blocks = fixed.get(name, 0)
        if n_blocks and not has_some:
            message = f"--set {name}={n_blocks} means nothing here: {facts.path.name} has no {what}."
            raise UsageError(message, hint=f"leave out --set {name}")
        if n_blocks > facts.n_layer:
            message = f"--set {name}={n_blocks} is more than the {facts.n_layer} blocks of {facts.path.name}."
            raise UsageError(message, hint=f"name at most {facts.n_layer}")


def _check_generates(facts: GgufFacts) -> None:
    """Refuse what llama.cpp loads but what does not write one token after another."""
    key_values, name = dict(facts.key_values), facts.path.name
    hint = "name a file of a text-generating model"
    if facts.arch in _ENCODERS or key_values.get(f"{facts.arch}.pooling_type"):
        message = f"{name} is an embedding model ({facts.arch}): it makes vectors of text and does not generate any."
        raise GgufError(message, hint=hint)
    if facts.arch == "t5" or key_values.get(f"{facts.arch}.attention.causal") is False:
        message = f"{name} does not write one token after another ({facts.arch}): this version cannot measure that."
        raise GgufError(message, hint=hint)

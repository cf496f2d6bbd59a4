"""Every noun of the program, as frozen records with their units in their names.

Floor 0: standard library only. Raw values are integers as measured (`_ns`, `_bytes`); derived ones are SI floats.
`None` means "not known" in what the machine tells (a `Note` says why) and "the engine decides" in `Settings`.
Values of the enums are stored in journals: they may be added to, never renamed or removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

# --- what the user wants -------------------------------------------------------------------------------------------


class Goal(StrEnum):
    """What "best" means.

    `turn`: time to first token plus n_gen tokens; `ttft`: time to first token; `decode`: tokens per second;
    `throughput`: tokens read and written per second of a turn; `context`: the largest n_ctx, then turn.
    """

    TURN = "turn"
    TTFT = "ttft"
    DECODE = "decode"
    THROUGHPUT = "throughput"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What settings may not exceed, besides device memory; None for no limit.

    `host_bytes` is of main memory, weights mapped from the file too; `ttft_p95_s` the 95th percentile of the time to
    the first token; `min_tok_per_s` are tokens written a second, at least.
    """

    host_bytes: int | None = None
    ttft_p95_s: float | None = None
    min_tok_per_s: float | None = None

    @property
    def are_of_speed(self) -> bool:
        return self.ttft_p95_s is not None or self.min_tok_per_s is not None

    def over(self, others: Limits) -> Limits:
        """These, and those of `others` where these say nothing."""
        ours = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return dataclasses.replace(others, **ours)


NO_LIMITS = Limits()


class Target(StrEnum):
    """The front end whose settings are measured; it fixes what the user cannot set there."""

    LLAMA_CPP_PYTHON = "llama_cpp_python"
    LLAMA_SERVER = "llama_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One turn: `n_prefix_cached` tokens already in the cache, `n_prompt_new` to read, `n_gen` to write."""

    name: str
    n_prefix_cached: int
    n_prompt_new: int
    n_gen: int
    n_parallel: int = 1

    def __post_init__(self) -> None:
        if self.n_prefix_cached < 0 or self.n_prompt_new < 1 or self.n_gen < 1 or self.n_parallel < 1:
            message = "a workload needs at least 1 new prompt token, 1 generated token and 1 sequence"
            raise ValueError(message)

    @property
    def n_ctx_needed(self) -> int:
        """Cells the turn fills in the cache, all sequences together; a visit decodes at least two tokens."""
        return (self.n_prefix_cached + self.n_prompt_new + max(self.n_gen, 2)) * self.n_parallel


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="chat", n_prefix_cached=2048, n_prompt_new=256, n_gen=256),
        Workload(name="rag", n_prefix_cached=0, n_prompt_new=4096, n_gen=256),
        Workload(name="code", n_prefix_cached=6144, n_prompt_new=512, n_gen=128),
        Workload(name="long", n_prefix_cached=0, n_prompt_new=16384, n_gen=512),
    )
}

# --- the machine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why something is not known: `subject` is the field, `reason` a full sentence."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor; counts are what this process may use (affinity and cgroup quota honoured)."""

    brand: str | None
    arch: str
    n_physical_cores: int | None
    n_logical_cores: int
    flags: tuple[str, ...]
    l3_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ram:
    """Main memory; `total_bytes` and `available_bytes` honour a cgroup limit. `read_bytes_per_s` is measured."""

    total_bytes: int
    available_bytes: int
    kind: str | None
    configured_mt_per_s: int | None
    n_modules: int | None
    read_bytes_per_s: float | None
    n_threads_read: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One NVIDIA card as its driver describes it."""

    index: int
    name: str
    uuid: str | None
    pci_bus_id: str | None
    total_bytes: int | None
    free_bytes: int | None
    driver: str | None
    compute_capability: str | None
    pcie_generation: int | None
    n_pcie_lanes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One compute device of llama.cpp's own list; `kind` is gpu, igpu, accel or cpu.

    `pins_host` where it offers main memory that it reads directly, None where it was not asked.
    """

    name: str
    description: str
    kind: str
    total_bytes: int
    free_bytes: int
    device_id: str | None = None
    pins_host: bool | None = None

    @property
    def is_offload_target(self) -> bool:
        return self.kind in {"gpu", "igpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The computer without the engine's view of it."""

    os: str
    cpu: Cpu
    ram: Ram
    nvml_gpus: tuple[NvmlGpu, ...] | None
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The computer and the devices the engine can use on it. `devices` is None when no engine was asked."""

    host: Host
    devices: tuple[Device, ...] | None
    notes: tuple[Note, ...] = ()

    @property
    def offload_devices(self) -> tuple[Device, ...]:
        """The devices llama.cpp uses unasked: every discrete or remote GPU once, integrated ones only without those.

        Source: llama_prepare_model_devices. Two backends may list the same card; the first one has it.
        """
        gpus = {d.device_id or d.name: d for d in reversed(self.devices or ()) if d.kind == "gpu"}
        igpus = {d.device_id or d.name: d for d in reversed(self.devices or ()) if d.kind == "igpu"}
        return tuple(reversed((gpus or igpus).values()))

    def with_free(self, free_bytes: Mapping[str, int]) -> Machine:
        """The same with so much free memory of the devices named."""
        devices = tuple(replace(one, free_bytes=free_bytes.get(one.name, one.free_bytes)) for one in self.devices or ())
        return replace(self, devices=devices)

    def nvml_of(self, device: Device) -> NvmlGpu | None:
        """The driver's view of `device`, found by its PCI address (NVML writes the domain with eight digits)."""
        for gpu in self.host.nvml_gpus or ():
            ours, theirs = (device.device_id or "").lower(), (gpu.pci_bus_id or "").lower()
            if ours and theirs and theirs.endswith(ours.removeprefix("0000")):
                return gpu
        return None

    @property
    def machine_id(self) -> str:
        """Name of the folder of this machine's profiles: stable facts only, no free memory, no measured speed."""
        host = self.host
        gpus = tuple((device.name, device.description, device.total_bytes // 2**20) for device in self.offload_devices)
        facts = (
            host.os.split()[0],
            host.cpu.brand,
            host.cpu.n_logical_cores,
            round(host.ram.total_bytes / 2**30),
            gpus,
        )
        label = gpus[0][1] if gpus else host.cpu.brand or host.cpu.arch
        slug = "-".join("".join(c if c.isalnum() else " " for c in label.lower()).split())[:40]
        return f"{slug}-{_digest(facts)[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBuild:
    """The llama.cpp that runs the trials. `build_id` changes with its binary files."""

    version: str
    build_id: str
    system_info: str
    library_dir: str


# --- the file ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One tensor of the table.

    `shape` is in ggml's order, the contiguous dimension first; `offset` counts from its shard's data section.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    n_bytes: int
    offset: int
    i_shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StandsFor:
    """What a stand-in, a file with random weights, stands for: a model by name, its quantisation and its layers."""

    label: str
    quantisation: str
    n_layer: int

    def words(self, n_layer: int | None) -> str:
        """What a file of `n_layer` layers is, None where they are not known, in a few words of the file's own."""
        share = "" if n_layer in {None, self.n_layer} else f", {n_layer} of its {self.n_layer} layers"
        return f"stand-in for {self.label} {self.quantisation}{share}, with random weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFacts:
    """What the header says; no weight is read. Byte sums are of tensor data, without alignment padding.

    `layer_bytes[i]` holds every tensor of block i, `expert_bytes[i]` the part of it that belongs to routed experts.
    Per-layer counts have one entry a block; `n_layer` counts the `n_layer_nextn` blocks of multi-token prediction too.
    `gguf_id` identifies the content: size, headers and 64 samples spread over all shards. `path` is the first shard.
    `stands_for` is None for a real file.
    """

    path: Path
    shard_paths: tuple[Path, ...]
    gguf_id: str
    file_bytes: int
    version: int
    arch: str
    name: str | None
    quantisation: str
    n_params: int
    n_layer: int
    n_layer_nextn: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_embd_head_k: int
    n_embd_head_v: int
    n_swa: int
    is_swa: tuple[bool, ...]
    n_expert: int
    n_expert_used: int
    is_tied: bool
    layer_bytes: tuple[int, ...]
    expert_bytes: tuple[int, ...]
    embedding_bytes: int
    output_bytes: int
    other_bytes: int
    type_bytes: tuple[tuple[str, int], ...]
    tensors: tuple[TensorFacts, ...]
    key_values: tuple[tuple[str, Any], ...]
    stands_for: StandsFor | None = None

    @property
    def tensor_bytes(self) -> int:
        return sum(self.layer_bytes) + self.embedding_bytes + self.output_bytes + self.other_bytes

    @property
    def standin_words(self) -> str:
        """What a stand-in stands for, in a few words of the file's own; "" for a real file."""
        return self.stands_for.words(self.n_layer) if self.stands_for else ""


# --- what is tried -------------------------------------------------------------------------------------------------

PLACEMENT_FIELDS = (
    "devices",
    "n_gpu_layers",
    "n_cpu_moe",
    "n_cpu_ffn",
    "load_mode",
    "use_extra_bufts",
    "tensor_split",
    "no_host",
    "op_offload_min_batch",
)
"""Fields of `Settings` that need a new load; all others need only a new context."""

_YOUNGER = {"n_cpu_moe": 0, "n_cpu_ffn": 0, "tensor_split": None, "no_host": False, "op_offload_min_batch": None}
MIN_BATCH_VARIABLE = "GGML_OP_OFFLOAD_MIN_BATCH"
"""What a backend reads when it registers its devices, so that it must stand in the environment before."""

_N_SHARES_MAX = 15  # llama-server takes no more
_SHARE_LIMITS = (1e-9, 1e15)  # within them no sum of the engine's floats is 0 or without end


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Fields of llama_model_params and llama_context_params, spelled as there, enums as strings.

    `devices`: None for all of the engine's, () for the CPU alone. `n_gpu_layers` counts the output layer too,
    as llama.cpp does: n_layer + 1 is everything. `n_cpu_moe` stands for the tensor_buft_overrides that keep the
    routed experts of the first so many blocks in main memory, `n_cpu_ffn` for those that keep their other feed-forward
    weights there. `tensor_split`: in which proportions the devices take layers, in their order; None for the engine's
    own rule, by free memory. `no_host`: weights in main memory are not pinned for a device, so that the CPU may store
    them its own way. `op_offload_min_batch`: from so many tokens on a device works for matrices in main memory; no
    field of a struct, but GGML_OP_OFFLOAD_MIN_BATCH in the environment.
    """

    devices: tuple[str, ...] | None = None
    n_gpu_layers: int = 0
    n_cpu_moe: int = 0
    n_cpu_ffn: int = 0
    tensor_split: tuple[float, ...] | None = None
    load_mode: str = "mmap"
    use_extra_bufts: bool = True
    no_host: bool = False
    op_offload_min_batch: int | None = None
    n_ctx: int = 512
    n_batch: int = 512
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_outputs_max: int = 0
    n_threads: int = 1
    n_threads_batch: int = 1
    flash_attn_type: str = "disabled"
    type_k: str = "f16"
    type_v: str = "f16"
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = True
    kv_unified: bool = False

    def __post_init__(self) -> None:
        if self.tensor_split is None:
            return
        low, high = _SHARE_LIMITS
        shares = tuple(map(float, self.tensor_split))  # one spelling, so that equal ones have one settings_id
        if not 1 <= len(shares) <= _N_SHARES_MAX:
            message = f"a tensor_split has 1 to {_N_SHARES_MAX} shares, one a device"
            raise ValueError(message)
        if not all(share == 0 or low <= share <= high for share in shares) or not any(shares):
            message = f"shares of a tensor_split are 0 or from {low:g} to {high:g}, and not all 0"
            raise ValueError(message)
        object.__setattr__(self, "tensor_split", shares)

    @property
    def placement(self) -> tuple[Any, ...]:
        """What a loaded file depends on; equal placements share a load."""
        return tuple(getattr(self, name) for name in PLACEMENT_FIELDS)

    @property
    def offloads(self) -> bool:
        """Whether any layer is meant for a device besides the CPU."""
        return self.n_gpu_layers != 0 and self.devices != ()

    @property
    def settings_id(self) -> str:
        named = dataclasses.asdict(self)
        for name, unused in _YOUNGER.items():  # without them the names are those of older journals
            if named[name] == unused:
                del named[name]
        return _digest(named)[:12]

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the engine must find when it starts."""
        n_tokens = self.op_offload_min_batch
        return {} if n_tokens is None else {MIN_BATCH_VARIABLE: str(n_tokens)}

    def replace(self, **changes: Any) -> Settings:
        return dataclasses.replace(self, **changes)


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    OUT_OF_MEMORY_DEVICE = "out_of_memory_device"
    OUT_OF_MEMORY_HOST = "out_of_memory_host"
    LOAD_FAILED = "load_failed"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def is_out_of_memory(self) -> bool:
        return self in {Outcome.OUT_OF_MEMORY_DEVICE, Outcome.OUT_OF_MEMORY_HOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One question to the engine: these settings, as this target would run them. `why` is a few words.

    `told` names the settings that the front end is told, the rest being its own defaults already; None for all.
    """

    settings: Settings
    target: Target
    why: str
    told: tuple[str, ...] | None = None

    @property
    def trial_id(self) -> str:
        return f"{self.target.value}-{self.settings.settings_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One timed passage of the workload through a context. Times are raw; a warm-up is kept and marked.

    So is a disturbed visit, and another takes its place: `disturbed_by` says in full sentences what went on meanwhile.

    `prefill_ns` reads `n_prompt_new` tokens after `n_prefix_cached` restored ones; each entry of `step_ns` is one
    decode with its synchronisation, of `sample_ns` the sampling after it. The first decode stands apart.
    `i_load` tells which load of the file it ran in: figures scatter more between loads than within one.
    """

    is_warmup: bool
    i_load: int
    n_prefix_cached: int
    n_prompt_new: int
    tokenize_ns: int
    prefill_ns: int
    first_sample_ns: int
    first_decode_ns: int
    step_ns: tuple[int, ...]
    sample_ns: tuple[int, ...]
    disturbed_by: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        return not self.is_warmup and not self.disturbed_by

    @property
    def ttft_s(self) -> float:
        """Seconds from text to first token: tokenise, prefill, sample."""
        return (self.tokenize_ns + self.prefill_ns + self.first_sample_ns) / 1e9

    @property
    def token_s(self) -> float:
        """Seconds per generated token: mean decode plus mean sampling, first decode apart."""
        return (statistics.fmean(self.step_ns) + statistics.fmean(self.sample_ns)) / 1e9

    def turn_s(self, n_gen: int) -> float:
        """Seconds from text to the last of `n_gen` tokens, at the rate of the tokens timed.

        The first token comes with the prefill, the second with the first decode, which stands apart.
        """
        if n_gen == 1:
            return self.ttft_s
        return self.ttft_s + self.first_decode_ns / 1e9 + (n_gen - 2) * self.token_s

    @property
    def prefill_tok_per_s(self) -> float:
        return self.n_prompt_new / (self.prefill_ns / 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes one buffer type holds, as the engine reports them. `device` is llama.cpp's name of its device."""

    device: str
    is_host: bool
    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the dead or refusing worker left behind."""

    phase: str
    signal: str | None = None
    exit_code: int | None = None
    abort_text: str | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a trial was expected to reach before it ran, by what its estimates say they rest on.

    `bound_tok_per_s` is what no run of its placement can exceed when writing, and `bound_prefill_tok_per_s` when
    reading; None where a device or the memory does not say what it does at best.
    """

    ttft_s: Estimate
    decode_tok_per_s: Estimate
    bound_tok_per_s: float | None = None
    bound_prefill_tok_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What one trial showed. `reason` is a sentence when the outcome is not ok.

    `device_peak_bytes` is the fall of each device's free memory up to the end of the feasibility run, and
    `device_predicted_bytes` what was expected of it before, as `expected` is of its speed;
    `effective` holds the values the engine really used, where they differ from those asked.
    """

    trial: Trial
    outcome: Outcome
    reason: str
    visits: tuple[Visit, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    device_peak_bytes: tuple[tuple[str, int], ...] = ()
    device_predicted_bytes: tuple[tuple[str, int], ...] = ()
    expected: Expected | None = None
    host_peak_rss_bytes: int | None = None
    load_ns: int | None = None
    effective: tuple[tuple[str, Any], ...] = ()
    evidence: Evidence | None = None
    started_at: str = ""
    duration_s: float = 0.0


# --- what comes out ------------------------------------------------------------------------------------------------


class Basis(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    CATALOGUE = "catalogue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its interval. `coverage_frac` is the chance that the interval holds the true median."""

    p50: float
    low: float
    high: float
    n_samples: int
    coverage_frac: float
    basis: Basis = Basis.MEASURED


class Verdict(StrEnum):
    """A comparison that respects the noise."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`against` took `ratio` times as long for the goal as the recommended settings; above 1 is a win."""

    against: str
    ratio: Estimate
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a trial's visits say about the workload."""

    ttft_s: Estimate
    decode_tok_per_s: Estimate
    prefill_tok_per_s: Estimate
    turn_s: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached:
    """What the recommended settings reached of a limit of speed; `limit` is a field of `Limits`.

    `reached` of `ttft_p95_s` is the longest of `n_visits` where they are too few for a percentile.
    """

    limit: str
    allowed: float
    reached: float
    n_visits: int
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How far a cache of fewer bits moves the next token's probabilities from those with an f16 one, in one text.

    `kl_nats` is the mean Kullback-Leibler divergence after `n_tokens` tokens, of which `n_same_top` have the same
    likeliest next token.
    """

    kl_nats: float
    n_same_top: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer: settings that were measured, what they reached, and why they were chosen.

    `limits` are those of speed, where the user named some.
    """

    goal: Goal
    workload: Workload
    trial: Trial
    figures: Figures
    peak_bytes: tuple[tuple[str, int], ...]
    host_peak_rss_bytes: int | None
    versus: tuple[Comparison, ...]
    reasons: tuple[str, ...]
    evidence_trial_ids: tuple[str, ...]
    limits: tuple[LimitReached, ...] = ()


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()

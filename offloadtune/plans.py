"""Nouns of memory planning: what settings take before anything is loaded, and who says so.

Floor 0: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from offloadtune.records import MemoryUse, Settings, Target
from offloadtune.speeds import Gain, Prediction


class Tier(StrEnum):
    """Who speaks: A the engine itself, B its log lines and our arithmetic, C our arithmetic alone."""

    ENGINE = "A"
    LOG = "B"
    ARITHMETIC = "C"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedTensors:
    """Tensors of one ggml type that a device's backend cannot work with: the engine keeps them elsewhere.

    `example` is the first such tensor's name, `n_tensors` how many there are; buffer types by the engine's names.
    `is_whole_type` where the device holds no tensor of that type: else it may be an operation that it lacks.
    """

    example: str
    type_name: str
    n_tensors: int
    refused_by: str
    kept_in: str
    is_whole_type: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the engine says `settings` would take; nothing was loaded for it.

    `refusal` is why the engine would not open such a context, and "" where it would; with a refusal `memory` is empty.
    Where `is_foretold` is false `refusal` is why the engine's word cannot be trusted: it may open it all the same.
    `n_splits` counts the graph's pieces for a prompt and for one token; `flash_attn_type` is what "auto" became.
    `output_bytes` is the host buffer of logits, part of no breakdown, as a turn of one token a sequence needs
    it; `effective` as in `TrialResult`. `layer_devices` names the device of each block and then of the output layer,
    "host" for main memory. `memory` holds the host's weights as without mmap, whatever the load mode.

    At tier B `memory` has compute buffers and recurrent states only, to 0.01 MiB: weights and caches are to be added,
    layer by layer; `kv_cache_bytes` is what the engine says all caches take together, without recurrent states.
    """

    settings: Settings
    tier: Tier
    memory: tuple[MemoryUse, ...] = ()
    output_bytes: int | None = None
    n_splits: tuple[int, int] | None = None
    flash_attn_type: str | None = None
    effective: tuple[tuple[str, Any], ...] = ()
    refused: tuple[RefusedTensors, ...] = ()
    refusal: str = ""
    is_foretold: bool = True
    layer_devices: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None


class RuntimeBasis(StrEnum):
    """Where a device's runtime bytes come from."""

    CALIBRATED = "calibrated"
    PUBLISHED = "published"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What one device would hold. `free_bytes` is what it has to give, None where that is not known.

    `runtime_bytes` is what no breakdown of the engine lists: the driver's context, pools, workspaces. `band_bytes` is
    how far the compute buffer may lie above the rule, and a margin where the runtime is unknown; no part of the total,
    but there must be room for it. `draft_bytes` is all that a draft model takes, `projector_bytes` the weights of a
    projector of images.
    """

    name: str
    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    runtime_bytes: int | None = None
    runtime_basis: RuntimeBasis = RuntimeBasis.UNKNOWN
    band_bytes: int = 0
    free_bytes: int | None = None
    draft_bytes: int = 0
    projector_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        own = self.weights_bytes + self.kv_cache_bytes + self.compute_bytes + (self.runtime_bytes or 0)
        return own + self.draft_bytes + self.projector_bytes

    @property
    def short_bytes(self) -> int:
        """What is lacking; 0 where it fits or where nobody knows."""
        return 0 if self.free_bytes is None else max(0, self.total_bytes + self.band_bytes - self.free_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What main memory would hold. Mapped weights (`is_mapped`) are pages of the file, which the system may drop.

    `output_bytes` is the buffer of logits. `prompt_cache_bytes` is what a server's cache of past prompts may grow to;
    no part of the total. `is_pinned`: held buffers lie in memory that the device reads directly and nothing swaps.
    `draft_bytes` and `projector_bytes` as in `DevicePlan`; `companions_mapped_bytes` is the part that may be dropped.
    """

    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    output_bytes: int
    is_mapped: bool
    is_pinned: bool = False
    prompt_cache_bytes: int = 0
    available_bytes: int | None = None
    draft_bytes: int = 0
    projector_bytes: int = 0
    companions_mapped_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        own = self.weights_bytes + self.kv_cache_bytes + self.compute_bytes + self.output_bytes
        return own + self.draft_bytes + self.projector_bytes

    @property
    def held_bytes(self) -> int:
        """The part that cannot be dropped: all but mapped weights."""
        return self.total_bytes - (self.weights_bytes if self.is_mapped else 0) - self.companions_mapped_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What `settings` take. `fits` is None where what there is to give is not known.

    `refusals` say why it does not fit, one sentence each; `warnings` what else is to be known.
    `n_splits` as in `Forecast`, None where the engine was not asked. `prediction` is of the speed these settings have,
    or would have if they fitted; None where it cannot be made, and a warning says why.
    """

    label: str
    quantisation: str
    target: Target
    settings: Settings
    tier: Tier
    devices: tuple[DevicePlan, ...]
    host: HostPlan
    fits: bool | None
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    n_splits: tuple[int, int] | None = None
    prediction: Prediction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One n_gpu_layers: bytes on all devices at the context asked for, and the largest context that fits, 0 for none.

    `device_bytes` are totals as in `DevicePlan`.
    `is_all` where the whole trained context fits; `n_ctx_max` is None where what there is to give is not known.
    """

    n_gpu_layers: int
    device_bytes: int
    n_ctx_max: int | None
    is_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A plan with what lies around it. Costs are bytes on all devices together, None where there is no next step.

    `measured` holds, by device, the peaks of stored trials of these settings; `chose_layers` where we set n_gpu_layers.
    `gains` are what would help most, best first.
    """

    plan: MemoryPlan
    n_layer: int
    n_ctx_train: int
    rows: tuple[LayerRow, ...]
    layer_cost_bytes: int | None
    context_cost_bytes: int | None
    chose_layers: bool = False
    measured: tuple[tuple[str, int], ...] = ()
    gains: tuple[Gain, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is to be planned: a file, or a shape and the name of a quantisation; on this machine, or on cards by name.

    `asked` are the fields of `Settings` that were named, all others are the target's own. `n_devices` counts equal
    cards. `draft` is a draft model's file, `mmproj` a projector's. `is_exact` asks the engine itself.

    Speed is predicted for a prompt of `n_prompt` tokens, a usual one where that is None, after `depth` cached ones.
    Main memory is that of this machine, or unknown beside a card by name, unless `ram` ("ddr5-5600x2") or
    `ram_bytes_per_s` says what it moves at most.
    """

    path: Path | None = None
    shape: str | None = None
    quant: str | None = None
    card: str | None = None
    n_devices: int = 1
    limit_bytes: int | None = None
    ram_limit_bytes: int | None = None
    endpoints: tuple[str, ...] = ()
    target: Target = Target.LLAMA_CPP_PYTHON
    asked: Mapping[str, Any] = field(default_factory=dict)
    draft: Path | None = None
    mmproj: Path | None = None
    is_exact: bool = False
    ram: str | None = None
    ram_bytes_per_s: float | None = None
    n_prompt: int | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCost:
    """What a file's f16 cache takes for one sequence: bytes a token of context, and a part that does not grow.

    The fixed part is that of blocks with a sliding window or a recurrent state.
    """

    bytes_per_token: int
    fixed_bytes: int

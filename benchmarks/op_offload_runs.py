"""Prompts with and without op offload on software Vulkan: which are read, and what is recorded of them.

Of each visit: how long its ubatches took, what was computed meanwhile, here and by other programs. Of each
configuration: what the scheduler's log says was copied, beside what the rule foretells (streamed_bytes.py).

Host and device compute on the same cores, with two threads each, so that anything else that runs is in the way; and
what was computed cannot stand for what passed: streaming costs time in which nobody computes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter
from streamed_bytes import (
    LEAST_ROWS,
    Streamed,
    Ubatch,
    block_of,
    copies_by_rule,
    n_cells,
    n_host_blocks,
    n_rows,
    streamed_by_rule,
    ubatches_of,
)

from offloadtune.records import GgufFacts, Settings

N_PROMPT = 128
N_WIDE_CTX = 131072
TERMS = ("device_flop", "device_bytes", "streamed_bytes", "host_flop", "ubatches")
N_THREADS = 2
QUIET_CORES = 0.1
"""What other programs may take of a core during a visit that counts as undisturbed."""

_LAYERS = (0, 15, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A visit: when it began, in seconds of the session, and its prompt, ubatch by ubatch.

    `ubatch_ns` passed; `ubatch_cpu_ns` are what all threads of the process computed, waiting for a device included,
    and `ubatch_others_ns` what other programs did meanwhile. `i_round` pairs those of a round.
    """

    i_round: int
    at_s: float
    prefill_ns: int
    ubatch_ns: tuple[int, ...]
    ubatch_cpu_ns: tuple[int, ...]
    ubatch_others_ns: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return sum(self.ubatch_ns) / 1e9

    @property
    def others_cores(self) -> float:
        """How many cores other programs took, on average."""
        return sum(self.ubatch_others_ns) / sum(self.ubatch_ns)

    @property
    def is_quiet(self) -> bool:
        return self.others_cores <= QUIET_CORES


@dataclass(slots=True, kw_only=True)
class Configuration:
    """Settings and a prompt, what each of its ubatches has streamed, the work of it all, and its visits."""

    settings: Settings
    n_prompt: int
    by_rule: tuple[Streamed, ...]
    work: dict[str, float]
    by_log: tuple[Streamed, ...] | None = None
    differences: tuple[str, ...] = ()
    visits: list[Timed] = field(default_factory=list)

    @property
    def name(self) -> str:
        s = self.settings
        flash = "flash" if s.flash_attn_type == "enabled" else "plain"
        on = "on" if s.op_offload else "off"
        return f"ngl {s.n_gpu_layers:>2} op {on:<3} ubatch {s.n_ubatch:>3} {s.load_mode} {flash} ctx {s.n_ctx}"

    @property
    def quiet(self) -> list[Timed]:
        return [visit for visit in self.visits if visit.is_quiet]

    @property
    def telling(self) -> list[Timed]:
        """The undisturbed visits; where there is none, the least disturbed one."""
        return self.quiet or sorted(self.visits, key=lambda visit: visit.others_cores)[:1]


@dataclass(slots=True, kw_only=True)
class Session:
    """What was measured, where, with what."""

    about: str
    measured_at: str
    libraries: str
    engine: str
    build_id: str
    device: str
    cpu: str
    file: str
    gguf_id: str
    n_deaths: int
    grid: list[Configuration]
    wide: list[Configuration]
    bytes_only: list[Configuration]

    @property
    def configurations(self) -> list[Configuration]:
        return [*self.grid, *self.wide, *self.bytes_only]

    @property
    def n_rounds(self) -> int:
        return max((visit.i_round for one in self.configurations for visit in one.visits), default=0)

    def is_like(self, other: Session) -> bool:
        """Whether visits of both may stand together."""
        names = ("libraries", "engine", "build_id", "device", "cpu", "gguf_id")
        return all(getattr(self, name) == getattr(other, name) for name in names) and [
            (one.settings, one.n_prompt) for one in self.configurations
        ] == [(one.settings, one.n_prompt) for one in other.configurations]


# --- what is measured ------------------------------------------------------------------------------------------------


def settings_of(n_gpu_layers: int, n_ubatch: int, *, op_offload: bool) -> Settings:
    """One point of the grid. The host's weights lie in plain buffers: those repacked for the CPU are never streamed."""
    return Settings(
        n_gpu_layers=n_gpu_layers,
        load_mode="none",
        use_extra_bufts=False,
        n_ubatch=n_ubatch,
        n_outputs_max=1,
        n_threads=N_THREADS,
        n_threads_batch=N_THREADS,
        flash_attn_type="enabled",
        op_offload=op_offload,
    )


def configured(facts: GgufFacts, settings: Settings, n_prompt: int) -> Configuration:
    ubatches = ubatches_of(n_prompt, settings.n_ubatch)
    by_rule = tuple(streamed_by_rule(copies_by_rule(facts, settings, one)) for one in ubatches)
    return Configuration(settings=settings, n_prompt=n_prompt, by_rule=by_rule, work=work_of(facts, settings, ubatches))


def work_of(facts: GgufFacts, settings: Settings, ubatches: Sequence[Ubatch]) -> dict[str, float]:
    """Amounts of TERMS. Norms count as bytes only, attention as products over the cells of the view."""
    work = dict.fromkeys(TERMS, 0.0)
    n_host = n_host_blocks(facts, settings)
    output = ("token_embd" if facts.is_tied else "output") + ".weight"

    def compute(flop: float, n_bytes: int, *, on_device: bool) -> None:
        work["device_flop" if on_device else "host_flop"] += flop
        work["device_bytes"] += n_bytes if on_device else 0

    for ubatch in ubatches:
        copies = copies_by_rule(facts, settings, ubatch)
        streamed = {name for name, _ in copies}
        work["ubatches"] += 1
        work["streamed_bytes"] += sum(n_bytes for _, n_bytes in copies)
        for tensor in facts.tensors:
            block, rows = block_of(tensor), n_rows(tensor, facts, ubatch)
            if block is None:
                is_used, on_device, rows = tensor.name == output, settings.n_gpu_layers > 0, ubatch.n_outputs
            else:
                is_used, on_device = True, block >= n_host or tensor.name in streamed
            if is_used and rows:
                flop = 2.0 * math.prod(tensor.shape) * rows if len(tensor.shape) > 1 else 0.0
                compute(flop, tensor.n_bytes, on_device=on_device)
        attention = 2.0 * facts.n_head[0] * (facts.n_embd_head_k + facts.n_embd_head_v)
        for block in range(facts.n_layer):
            flop = attention * ubatch.n_tokens * n_cells(settings, ubatch)
            compute(flop, 0, on_device=block >= n_host or bool(streamed))
    return work


def grid_of(facts: GgufFacts) -> list[Configuration]:
    return [
        configured(facts, settings_of(n_gpu_layers, n_ubatch, op_offload=op_offload), N_PROMPT)
        for n_gpu_layers in _LAYERS
        for n_ubatch in (64, 128)
        for op_offload in (True, False)
    ]


def wide_of(facts: GgufFacts) -> list[Configuration]:
    """A narrow and a wide cache, the least prompt that streams: as many splits and products, many more bytes."""
    plain = settings_of(0, 64, op_offload=True).replace(flash_attn_type="disabled", type_v="f32")
    return [configured(facts, plain.replace(n_ctx=n_ctx), LEAST_ROWS) for n_ctx in (512, N_WIDE_CTX)]


def bytes_only_of(facts: GgufFacts) -> list[Configuration]:
    """Visited once, for the log: a file that is mapped, no flash attention, the output alone on the device."""
    half = settings_of(15, 128, op_offload=True)
    others = (half.replace(load_mode="mmap"), half.replace(flash_attn_type="disabled"), half.replace(n_gpu_layers=1))
    return [configured(facts, settings, LEAST_ROWS) for settings in others]


# --- on disk ---------------------------------------------------------------------------------------------------------


def read_session(path: Path) -> Session:
    return TypeAdapter(Session).validate_json(path.read_bytes())


def write_session(session: Session, path: Path) -> None:
    """Whole or not at all."""
    beside = path.with_suffix(".writing")
    beside.write_text(json.dumps(dataclasses.asdict(session), indent=1) + "\n", encoding="utf-8")
    beside.replace(path)

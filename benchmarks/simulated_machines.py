"""Machines that do not exist, drawn from the catalogue: cards, processors, memory and models that people have.

What the catalogue says of a card is what the speed law believes; what this piece of it really does is drawn beside it,
and has the form of `engine.synthetic`. At least half of the machines have a surprise that no law knows.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune import catalogue, search
from offloadtune.engine.synthetic import (
    Blocks,
    Curve,
    LyingFreeMemory,
    MemoryTaken,
    SlowKernel,
    SmtCollapse,
    Spill,
    Surprise,
    SyntheticCard,
    SyntheticHost,
    SyntheticMachine,
    SyntheticRunner,
    Throttle,
)
from offloadtune.footprint import CUDA, HOST, Backend, Grid, anatomy_of, pad_256, reckon
from offloadtune.footprint.anatomy import parameters_of, places_of
from offloadtune.pipeline.rigs import rig_of_cards
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import WORKLOADS, GgufFacts, Goal, Settings, Target, Workload
from offloadtune.search import FIT_MARGIN_BYTES, Space
from offloadtune.speeds import HostRates, Rig
from offloadtune.units import GIB, MIB

DEVICE = "CUDA0"
_USABLE_FRAC = 0.98
_RAM_FOR_FILE_FRAC = 0.75
_CARDS = (
    *("GTX 1080 Ti", "RTX 2070", "RTX 2080 Ti", "RTX 3060 12 GB", "RTX 3070", "RTX 3080", "RTX 3090", "RTX 4060"),
    *("RTX 4060 Ti 16 GB", "RTX 4070", "RTX 4070 Ti SUPER", "RTX 4080", "RTX 4090", "RTX 5060 Ti 16 GB", "RTX 5070"),
    *("RTX 5070 Ti", "RTX A4000", "Tesla P40", "RX 6800 XT", "RX 7900 XT", "RX 7900 XTX", "RX 9070 XT"),
)
_NO_CARD_FRAC = 0.08
_RAMS = ("ddr4-2666x2", "ddr4-3200x2", "ddr4-3600x2", "ddr5-4800x2", "ddr5-5600x2", "ddr5-6000x2")
_RAM_GIB = (16, 32, 32, 64, 64, 96, 128)
_CORES = (4, 6, 6, 8, 8, 12, 16)
_LINKS = ((3, 16), (3, 8), (4, 16), (4, 16), (4, 8), (4, 4), (5, 16))
_MODELS = (
    *(("llama-3.1-8b", quant) for quant in ("Q4_K_M", "Q6_K", "Q8_0")),
    *(("mistral-7b-v0.3", quant) for quant in ("Q4_0", "Q5_K_M", "F16")),
    *(("gemma-2-9b", "Q4_K_M"), ("qwen3-8b", "Q8_0"), ("mistral-nemo-12b", "Q5_K_M"), ("qwen2.5-14b", "Q4_K_M")),
    *(("phi-4", "Q6_K"), ("qwen3-14b", "IQ4_XS"), ("mistral-small-24b", "Q4_K_M"), ("gemma-3-27b", "Q4_K_M")),
    *(("qwen2.5-32b", "Q4_K_M"), ("qwen3-32b", "Q5_K_M"), ("llama-3.1-70b", "Q4_K_M"), ("qwen2.5-72b", "IQ3_M")),
    *(("qwen3-30b-a3b", "Q4_K_M"), ("qwen3-30b-a3b", "Q6_K"), ("gpt-oss-20b", "MXFP4_MOE")),
    *(("mixtral-8x7b", "Q4_K_M"), ("gpt-oss-120b", "MXFP4_MOE")),
)
_WORKLOADS = ("chat", "chat", "rag", "rag", "code", "code", "long")
_OLD_FAMILIES = {"pascal", "rdna1", "rdna2", "gcn", "vega"}
_FLASH_OF_OLD = 0.35
_COMPUTE_FACTORS = (0.93, 1.1)
_N_KINDS = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """A machine with a file and a turn to serve on it. `rig` is what makers say of it, which the law starts from."""

    machine: SyntheticMachine
    facts: GgufFacts
    rig: Rig
    workload: Workload
    target: Target
    seed: int

    @property
    def surprise(self) -> str:
        """The class that figures are reported by."""
        return self.machine.surprises[0].words if self.machine.surprises else "none"

    @property
    def n_ctx(self) -> int:
        return pad_256(self.workload.n_ctx_needed)

    def space(self, goal: Goal, runner: SyntheticRunner) -> Space:
        """What a sweep may try here, as the conductor makes it of what the engine says."""
        _, devices = runner.describe()
        host = self.machine.host
        space = Space(
            facts=self.facts,
            workload=self.workload,
            goal=goal,
            target=self.target,
            n_ctx=self.n_ctx,
            device_bytes=sum(device.free_bytes for device in devices),
            limit_bytes=None,
            n_physical_cores=host.n_cores,
            n_logical_cores=host.n_logical_cores,
            n_os_cpus=host.n_logical_cores,
            lists_devices=bool(devices),
        )
        if not devices:
            return space
        n_fit_layers, _ = runner.fit_layers(search.settings_to_fit(space), FIT_MARGIN_BYTES, timeout_s=1.0)
        return dataclasses.replace(space, n_fit_layers=n_fit_layers)


def draw_machines(n: int, seed: int) -> list[Case]:
    """`n` machines; every second has a surprise, the kinds in turn. The same seed draws the same ones."""
    return [draw_machine(i, seed) for i in range(n)]


def draw_machine(i: int, seed: int) -> Case:
    """The i-th machine of `draw_machines`, which depends on no other."""
    chance = random.Random(f"{seed} {i}")  # noqa: S311 - no secret
    ram_text, ram_gib, n_cores = chance.choice(_RAMS), chance.choice(_RAM_GIB), chance.choice(_CORES)
    shape, quant = _model_for(chance, ram_gib)
    facts = facts_for(shape, quant)
    card = None if chance.random() < _NO_CARD_FRAC else catalogue.find_card(chance.choice(_CARDS))
    peak = catalogue.find_ram(ram_text).bandwidth_bytes_per_s
    rates = HostRates(peak_bytes_per_s=peak, n_cores=n_cores)
    host = _host(chance, peak, n_cores, ram_gib)
    known = rig_of_cards(card, (DEVICE,) if card else (), rates, offloads_ops=True)
    workload = WORKLOADS[chance.choice(_WORKLOADS)]
    parts = (card.name if card else "no card", f"{n_cores} cores", f"{ram_gib} GiB {ram_text}", f"{shape} {quant}")
    machine = SyntheticMachine(
        name=f"synthetic {i}: {', '.join(parts)}",
        blocks=blocks_of(facts),
        card=_card(chance, card) if card else None,
        host=host,
        memory=memory_of(facts, has_card=card is not None, chance=chance),
        surprises=_surprises(i, chance, host, workload, has_card=card is not None),
    )
    target = Target.LLAMA_CPP_PYTHON if chance.random() < 0.7 else Target.LLAMA_SERVER
    return Case(machine=machine, facts=facts, rig=known, workload=workload, target=target, seed=chance.getrandbits(32))


def _model_for(chance: random.Random, ram_gib: int) -> tuple[str, str]:
    """One that main memory can hold."""
    while True:
        shape, quant = chance.choice(_MODELS)
        if facts_for(shape, quant).file_bytes <= _RAM_FOR_FILE_FRAC * ram_gib * GIB:
            return shape, quant


@functools.cache
def facts_for(shape: str, quant: str) -> GgufFacts:
    """The header of a model by name."""
    return facts_of_shape(shape, quant)


@functools.cache
def _blocks_of(shape_id: str) -> Blocks:
    _, shape, quant = shape_id.split(":")
    facts = facts_for(shape, quant)
    anatomy = anatomy_of(facts)
    stored, values = places_of(anatomy, HOST), parameters_of(anatomy)
    n = anatomy.n_layer
    used_frac = facts.n_expert_used / facts.n_expert if facts.n_expert else 1.0
    heads = np.array(facts.n_head, dtype=np.float64)
    return Blocks(
        dense_bytes=stored.dense[:n].astype(np.float64),
        ffn_bytes=stored.ffn[:n].astype(np.float64),
        expert_bytes=stored.experts[:n].astype(np.float64),
        dense_flop=2.0 * values.dense[:n].astype(np.float64),
        ffn_flop=2.0 * values.ffn[:n].astype(np.float64),
        expert_flop=2.0 * used_frac * values.experts[:n].astype(np.float64),
        cache_values=(anatomy.n_values_k + anatomy.n_values_v).astype(np.float64),
        attention_flop=2.0 * heads * (anatomy.head_k + anatomy.head_v),
        n_heads=heads,
        window=np.where(anatomy.is_swa, facts.n_swa, 0).astype(np.int64),
        output_bytes=float(stored.dense[-1] + stored.tied_copy),
        output_flop=2.0 * float(values.dense[-1] + values.tied_copy),
        n_embd=facts.n_embd,
        n_expert=facts.n_expert,
        n_expert_used=facts.n_expert_used,
        file_bytes=facts.file_bytes,
    )


def blocks_of(facts: GgufFacts) -> Blocks:
    """What a shape's blocks hold, as the simulated engine wants it."""
    return _blocks_of(facts.gguf_id)


def memory_of(
    facts: GgufFacts, *, has_card: bool, chance: random.Random
) -> Callable[[Sequence[Settings]], MemoryTaken]:
    """Bytes by the footprint, but for what it cannot know: the driver's own, and compute buffers somewhat off."""
    runtime_bytes = int(chance.uniform(180, 600) * MIB)
    factor = chance.uniform(*_COMPUTE_FACTORS)
    backends: tuple[Backend, ...] = (CUDA,) if has_card else ()

    def taken(settings: Sequence[Settings]) -> MemoryTaken:
        if not has_card:
            settings = [one.replace(n_gpu_layers=0, devices=()) for one in settings]
        found = reckon(facts, Grid.of(settings, facts.n_layer), backends)
        used = found.weights_bytes + found.kv_cache_bytes + (found.compute_bytes * factor).astype(np.int64)
        device = used.sum(axis=0) if has_card else np.zeros(len(settings), dtype=np.int64)
        host = found.host_weights_bytes + found.host_kv_cache_bytes + found.host_compute_bytes + found.output_bytes
        return MemoryTaken(device_bytes=device + runtime_bytes * (device > 0), host_bytes=host)

    return taken


# --- what this piece of a card, a processor, really does -----------------------------------------------------------


def _card(chance: random.Random, card: catalogue.Card) -> SyntheticCard:
    assert card.vram_bytes is not None
    generation, n_lanes = chance.choice(_LINKS)
    generation, n_lanes = min(generation, card.pcie_generation or 3), min(n_lanes, card.n_pcie_lanes or 16)
    usable = int(card.vram_bytes * _USABLE_FRAC)
    peak = max(card.fp16_flop_per_s or 0.0, card.fp32_flop_per_s or 0.0, (card.int8_op_per_s or 0.0) / 2)
    is_old = card.family in _OLD_FAMILIES
    flash = _FLASH_OF_OLD if is_old else chance.uniform(0.7, 1.3)
    return SyntheticCard(
        name=DEVICE,
        description=card.name,
        total_bytes=usable,
        free_bytes=usable - int(chance.choice((0, 0, 300, 700, 1300)) * MIB),
        read_bytes_per_s=(card.mem_bandwidth_bytes_per_s or 3e11) * chance.uniform(0.8, 0.96),
        op_per_s=peak * 0.55 * _about(chance, 0.3),
        link_bytes_per_s=catalogue.PCIE_LANE_BYTES_PER_S[generation] * n_lanes * chance.uniform(0.55, 0.85),
        reads=_curve(chance, (1e6, 8e6, 6.4e7, 2.56e8, 1e9), (0.4, 0.66, 0.86, 0.94, 0.97), 0.04),
        multiplies=_curve(
            chance,
            (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
            (0.05, 0.1, 0.18, 0.25, 0.3, 0.38, 0.52, 0.68, 0.82, 0.92, 0.97, 1.0, 0.98),
            0.06,
        ),
        flash_read=_curve(chance, (256, 2048, 8192, 32768), tuple(flash * y for y in (0.45, 0.55, 0.6, 0.6)), 0.05),
        plain_read=_curve(chance, (256, 2048, 8192, 32768), (0.5, 0.36, 0.24, 0.2), 0.1),
        flash_share=0.5 * flash,
        plain_share=0.45,
        launch_s=chance.uniform(30e-6, 110e-6),
        ubatch_s=chance.uniform(0.2e-3, 1e-3),
        overlap_frac=chance.choice((0.0, 0.0, 0.5, 0.9)),
    )


def _host(chance: random.Random, peak: float, n_cores: int, ram_gib: int) -> SyntheticHost:
    has_smt = chance.random() < 0.85
    read = peak * chance.uniform(0.58, 0.85)
    of_core = chance.uniform(9e9, 18e9)
    at_all = 1.0 - chance.uniform(0.0, 0.05)  # the last core has other work too
    smt = chance.uniform(0.85, 1.12)
    fracs = (0.125, 0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.0)
    reads = [min(1.0, frac * n_cores * of_core / read) for frac in fracs]
    reads = [y * (at_all if x >= 1 else 1.0) * (0.95 if x > 1 else 1.0) for x, y in zip(fracs, reads, strict=True)]
    multiplies = [min(x, 1.0) * (at_all if x >= 1 else 1.0) * (smt if x > 1 else 1.0) for x in fracs]
    return SyntheticHost(
        n_cores=n_cores,
        n_logical_cores=n_cores * (2 if has_smt else 1),
        ram_bytes=ram_gib * GIB,
        read_bytes_per_s=read,
        op_per_s=n_cores * 100e9 * _about(chance, 0.35),
        reads_by_threads=_curve(chance, fracs, tuple(reads), 0.02),
        multiplies_by_threads=_curve(chance, fracs, tuple(multiplies), 0.02),
        multiplies=_curve(chance, (1, 4, 16, 64, 512, 4096), (0.7, 0.65, 0.85, 1.0, 1.0, 0.93), 0.05),
        flash_share=chance.uniform(0.15, 0.9),
        plain_share=chance.uniform(0.3, 0.9),
        attends_share=chance.uniform(0.3, 0.8),
        barrier_s=chance.uniform(0.5e-6, 2.5e-6),
        handover_s=chance.uniform(25e-6, 70e-6),
        sample_s=chance.uniform(0.1e-3, 0.4e-3),
        disk_bytes_per_s=chance.choice((0.5e9, 2e9, 3.5e9, 6e9)),
        cached_bytes_per_s=chance.uniform(2e9, 8e9),
        load_s=chance.uniform(0.4, 1.5),
        open_s=chance.uniform(0.15, 0.5),
    )


def _surprises(
    i: int, chance: random.Random, host: SyntheticHost, workload: Workload, *, has_card: bool
) -> tuple[Surprise, ...]:
    if i % 2:
        return ()
    kind = (i // 2) % _N_KINDS
    has_smt = host.n_logical_cores > host.n_cores
    met = [n for n in (256, 512, 1024, 2048) if n <= workload.n_prompt_new]
    if kind == 0 and has_card:
        return (SlowKernel(n_tokens=chance.choice(met), times=chance.uniform(2.0, 4.0)),)
    if kind == 1 and has_card:
        return (Spill(near_frac=chance.uniform(0.02, 0.06), beyond_frac=0.3, token_times=3.0, prompt_times=1.6),)
    if kind == 2 and has_card:
        more = chance.choice((chance.uniform(-0.25, -0.08), chance.uniform(0.05, 0.2)))
        return (LyingFreeMemory(more_frac=more),)
    if kind == 3 and has_smt:
        return (SmtCollapse(times=chance.uniform(2.5, 5.0)),)
    return (Throttle(after_busy_s=chance.uniform(60.0, 600.0), times=chance.uniform(1.2, 1.3)),)


def _about(chance: random.Random, width: float) -> float:
    return float(np.exp(chance.gauss(0.0, width)))


def _curve(chance: random.Random, x: tuple[float, ...], y: tuple[float, ...], width: float) -> Curve:
    """A usual curve with each point off by chance, as those recorded on one machine are."""
    return Curve(x=x, y=tuple(one * _about(chance, width) for one in y))

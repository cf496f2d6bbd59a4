"""What the benchmarks of the search share: cases on virtual cards, grids of settings, regret. Pure.

The card is llama.cpp's RPC worker in another process, with two threads and as much memory as a case says, to the byte.
The host has one thread and plain buffers, in grids and sweeps alike: then the card is worth something on a machine of
two cores. An RPC device takes no operations of the host's (op offload), so grids on it do not vary that.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offloadtune import search, stats
from offloadtune.engine import VisitPlan
from offloadtune.footprint import estimate_footprint, estimate_footprints
from offloadtune.records import GgufFacts, Settings, Target, Workload

HOST: dict[str, Any] = {"use_extra_bufts": False, "n_threads": 1, "n_threads_batch": 1}
TARGET = Target.LLAMA_CPP_PYTHON
N_GRID_LEAST = 120
N_ROUNDS = 15
REGRET_MOST_FRAC = 0.03
CHOSEN, COPY = "chosen", "its copy"
MIB = 1 << 20
DRIVER_BYTES = 8 * MIB
"""What the card's driver takes as soon as anything lies there."""

_SLACK_BYTES = MIB
_MIDDLE_UBATCH = 64
_UBATCHES = ((32, 64, 128, 256, 512), (48, 96, 192, 384), (16, 24, 40, 80, 160, 320))
"""The finer ones where memory leaves too few placements for a grid."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A file and a turn that takes about `turn_s` here, after a load of about `load_s`; `file` "" is written first."""

    name: str
    file: str
    workload: Workload
    n_ctx: int
    load_s: float
    turn_s: float

    @property
    def base(self) -> Settings:
        """What all settings of a grid have in common, with the n_batch of a sweep."""
        return search.settings_of_target(TARGET).replace(
            n_ctx=self.n_ctx, n_batch=min(512, self.n_ctx), n_ubatch=min(512, self.n_ctx), **HOST
        )

    def plan(self, n_visits: int) -> VisitPlan:
        return VisitPlan(workload=self.workload, n_steps=self.workload.n_gen - 1, n_visits=n_visits)


def _turn(n_prompt: int, n_gen: int) -> Workload:
    return Workload(name="short", n_prefix_cached=0, n_prompt_new=n_prompt, n_gen=n_gen)


SAMPLES = {
    one.name: one
    for one in (
        Sample(
            name="smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            workload=_turn(128, 16),
            n_ctx=256,
            load_s=0.3,
            turn_s=0.7,
        ),
        Sample(
            name="gemma3",
            file="gemma-3-270m-q4_k_m.gguf",
            workload=_turn(128, 16),
            n_ctx=256,
            load_s=1.3,
            turn_s=0.55,
        ),
        Sample(name="mixture", file="", workload=_turn(384, 48), n_ctx=512, load_s=0.15, turn_s=0.6),
    )
}
QUICK_WORKLOAD = _turn(40, 4)
"""Whether it works, on a machine that is busy with something else."""

CAPS = {"all": 1.0, "two-thirds": 2 / 3, "third": 1 / 3}
"""Which share of the layers a card has room for; with an output as large as these files', that is not one of bytes."""


def needed_bytes(facts: GgufFacts, settings: Settings) -> int:
    """The least card on which `settings` run."""
    return estimate_footprint(facts, settings).bytes + DRIVER_BYTES + _SLACK_BYTES


def card_bytes_of(facts: GgufFacts, sample: Sample, share: float) -> int:
    """A card for this share of the layers: for all of them with any ubatch, else with a small one."""
    n_ubatch = sample.base.n_ubatch if share >= 1 else _MIDDLE_UBATCH
    n_gpu_layers = round(share * (facts.n_layer + 1))
    return needed_bytes(facts, sample.base.replace(n_gpu_layers=n_gpu_layers, n_ubatch=n_ubatch))


def grid_of(facts: GgufFacts, sample: Sample, card_bytes: int, n_least: int = N_GRID_LEAST) -> tuple[Settings, ...]:
    """Settings that fit, at least `n_least`: the CPU alone, steps of layers up to the wall, ubatch, flash attention.

    Ubatches are as fine as it takes; of the placements every n-th stays, and with each ubatch the largest to fit.
    Raises ValueError where there are too few.
    """
    sizes: tuple[int, ...] = ()
    fitting: list[Settings] = []
    for more in _UBATCHES:
        sizes = tuple(sorted({*sizes, *(n for n in more if n <= sample.n_ctx)}))
        fitting = _fitting(facts, _mesh(facts, sample.base, sizes), card_bytes)
        if len(fitting) >= n_least:
            return _thinned(facts, fitting, n_least)
    message = f"only {len(fitting)} settings of {sample.name} fit into {card_bytes} bytes"
    raise ValueError(message)


def _mesh(facts: GgufFacts, base: Settings, sizes: Sequence[int]) -> list[Settings]:
    everything, n_layer = facts.n_layer + 1, facts.n_layer
    placements = [base.replace(devices=()), *(base.replace(n_gpu_layers=k) for k in range(everything + 1))]
    if facts.n_expert:
        placements += [base.replace(n_gpu_layers=everything, n_cpu_moe=m) for m in range(1, n_layer + 1)]
    return [
        one.replace(n_ubatch=n_ubatch, flash_attn_type=flash)
        for one, n_ubatch, flash in itertools.product(placements, sizes, ("enabled", "disabled"))
    ]


def _fitting(facts: GgufFacts, settings: Sequence[Settings], card_bytes: int) -> list[Settings]:
    found = estimate_footprints(facts, settings)
    most = card_bytes - DRIVER_BYTES - _SLACK_BYTES
    return [one for one, size in zip(settings, found, strict=True) if size.bytes <= most]


def _thinned(facts: GgufFacts, fitting: Sequence[Settings], n_least: int) -> tuple[Settings, ...]:
    sizes = dict(zip(fitting, (one.bytes for one in estimate_footprints(facts, fitting)), strict=True))
    kinds = {(one.n_ubatch, one.flash_attn_type, one.n_cpu_moe > 0) for one in fitting}
    at_the_wall = {
        max(
            (one for one in fitting if (one.n_ubatch, one.flash_attn_type, one.n_cpu_moe > 0) == kind),
            key=sizes.__getitem__,
        ).placement
        for kind in kinds
    }
    placements = list(dict.fromkeys(one.placement for one in fitting))
    for step in range(len(placements), 0, -1):
        kept = {*placements[::step], *at_the_wall}
        found = tuple(one for one in fitting if one.placement in kept)
        if len(found) >= n_least:
            return found
    return tuple(fitting)


@dataclass(frozen=True, kw_only=True)
class Regret:
    """How much longer what was chosen took than the quickest of its rivals.

    `frac` by their medians, `low_frac` to `high_frac` by pairs of a round; `noise_frac` is how far a pair of the chosen
    with itself may be off.
    """

    rival: str
    frac: float
    low_frac: float
    high_frac: float
    noise_frac: float

    @property
    def is_met(self) -> bool:
        return self.frac <= REGRET_MOST_FRAC + self.noise_frac

    @property
    def words(self) -> str:
        return f"{self.frac:+.1%} ({self.low_frac:+.1%} to {self.high_frac:+.1%}), A/A {self.noise_frac:.1%}"


def regret_of(seconds: Mapping[str, Sequence[float]]) -> Regret:
    """From the times of each round of CHOSEN, its COPY and all rivals; the quickest of them was it by chance, too.

    That is to the chosen one's disadvantage.
    """
    rivals = [name for name in seconds if name not in {CHOSEN, COPY}]
    rival = min(rivals, key=lambda name: statistics.median(seconds[name]))
    paired = stats.paired_ratio(seconds[rival], seconds[CHOSEN])
    copies = stats.paired_ratio(seconds[CHOSEN], seconds[COPY])
    return Regret(
        rival=rival,
        frac=statistics.median(seconds[CHOSEN]) / statistics.median(seconds[rival]) - 1,
        low_frac=paired.low - 1,
        high_frac=paired.high - 1,
        noise_frac=max(copies.high - 1, 1 - copies.low),
    )


def settings_words(settings: Settings) -> str:
    """What grids and sweeps vary, in a few words."""
    where = "CPU" if settings.devices == () else f"{settings.n_gpu_layers} layers"
    experts = f" {settings.n_cpu_moe} without experts" if settings.n_cpu_moe else ""
    flash = "plain" if settings.flash_attn_type == "disabled" else "flash"
    lent = "" if settings.op_offload else " no op offload"
    return f"{where}{experts} u{settings.n_ubatch} {flash}{lent}"

"""Every setting that could reasonably be tried on a simulated machine, the best of them, and what all would take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from simulated_machines import Case

from offloadtune.engine.synthetic import Truth, truth
from offloadtune.engine.synthetic.truth import prompt_s
from offloadtune.records import Goal, Settings
from offloadtune.search import Space, baseline_trials, settings_of_target

N_FEASIBLE_LEAST = 2000
N_STEPS_MOST = 32
_UBATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
_MORE_UBATCHES = (96, 192, 384, 768, 1536, 3072)
_MOE_STEP_LAYERS = 4


class Point(NamedTuple):
    """One point of the grid."""

    n_gpu_layers: int
    n_cpu_moe: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    flash: str
    op_offload: bool

    def settings(self, base: Settings) -> Settings:
        """`base` at this point."""
        return base.replace(
            n_gpu_layers=self.n_gpu_layers,
            n_cpu_moe=self.n_cpu_moe,
            n_ubatch=self.n_ubatch,
            n_batch=max(base.n_batch, self.n_ubatch),
            n_threads=self.n_threads,
            n_threads_batch=self.n_threads_batch,
            flash_attn_type=self.flash,
            op_offload=self.op_offload,
        )


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The values of each axis. A placement is (n_gpu_layers, n_cpu_moe)."""

    placements: tuple[tuple[int, int], ...]
    n_ubatch: tuple[int, ...]
    n_threads: tuple[int, ...]
    flash: tuple[str, ...] = ("enabled", "disabled")
    op_offload: tuple[bool, ...] = (True, False)

    def points(self) -> Iterator[Point]:
        """The whole grid, those of a placement together."""
        rest = (self.n_ubatch, self.n_threads, self.n_threads, self.flash, self.op_offload)
        for placement, *others in itertools.product(self.placements, *rest):
            yield Point._make((*placement, *others))


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """The grid of a case, all of it feasible. `measuring_s` is that of the fewest settings that a grid must have."""

    axes: Axes
    base: Settings
    settings: tuple[Settings, ...]
    found: Truth
    measuring_s: float
    n_gen: int

    def best_cost(self, goal: Goal) -> float:
        """The exhaustive optimum."""
        return float(costs(self.found, goal, self.n_gen).min())


def costs(found: Truth, goal: Goal, n_gen: int) -> NDArray[np.float64]:
    """Seconds that a goal makes small."""
    if goal is Goal.TTFT:
        return found.ttft_s
    return found.token_s if goal is Goal.DECODE else found.turn_s(n_gen)


def base_of(case: Case) -> Settings:
    """What all settings of the grid have in common: as the target has it."""
    common = settings_of_target(case.target)
    n_batch = min(common.n_batch, case.n_ctx)
    return common.replace(n_ctx=case.n_ctx, n_batch=n_batch, n_ubatch=min(common.n_ubatch, n_batch))


def exhaustive(case: Case) -> Exhaustive:
    """Axes fine enough for the least number of feasible settings, without those that do not fit."""
    base, host = base_of(case), case.machine.host
    sizes: tuple[int, ...] = _UBATCHES
    threads = {max(host.n_cores // 2, 1), host.n_cores, host.n_logical_cores}
    for finer in range(4):
        allowed = tuple(one for one in sizes if one <= case.n_ctx)
        axes = Axes(placements=_placements(case), n_ubatch=allowed, n_threads=tuple(sorted(threads)))
        settings = [point.settings(base) for point in axes.points()]
        found = _truth_of(case, settings)
        feasible = np.flatnonzero(found.fits)
        if len(feasible) >= N_FEASIBLE_LEAST:
            break
        if finer == 0:
            sizes = tuple(sorted(_UBATCHES + _MORE_UBATCHES))
        else:
            threads |= {max(host.n_cores * part // 8, 1) for part in range(finer, 9, 2)}
    kept = tuple(settings[i] for i in feasible.tolist())
    part = Truth(
        ttft_s=found.ttft_s[feasible],
        token_s=found.token_s[feasible],
        device_bytes=found.device_bytes[feasible],
        host_bytes=found.host_bytes[feasible],
        fits=found.fits[feasible],
    )
    measuring_s = _measuring_s(case, kept, part) * min(1.0, N_FEASIBLE_LEAST / len(kept))
    return Exhaustive(
        axes=axes, base=base, settings=kept, found=part, measuring_s=measuring_s, n_gen=case.workload.n_gen
    )


def _placements(case: Case) -> tuple[tuple[int, int], ...]:
    if case.machine.card is None:
        return ((0, 0),)
    n_layer = case.facts.n_layer
    plain = [(k, 0) for k in range(n_layer + 2)]
    if not case.facts.n_expert:
        return tuple(plain)
    return (*plain[::_MOE_STEP_LAYERS], *((n_layer + 1, n) for n in range(n_layer + 1)))


def _truth_of(case: Case, settings: list[Settings]) -> Truth:
    workload = case.workload
    return truth(case.machine, settings, n_prompt=workload.n_prompt_new, depth=workload.n_prefix_cached)


def truth_of(case: Case, settings: Settings) -> Truth:
    """Of one setting."""
    return _truth_of(case, [settings])


def _measuring_s(case: Case, settings: tuple[Settings, ...], found: Truth) -> float:
    """A load a placement and a visit a setting, the cache filled to its end once for each, no search being smarter."""
    host, workload = case.machine.host, case.workload
    loads = len({one.placement for one in settings})
    load_s = host.load_s + case.machine.blocks.file_bytes / host.cached_bytes_per_s
    n_steps = min(workload.n_gen - 1, N_STEPS_MOST) + 1
    visits_s = found.ttft_s + n_steps * found.token_s + host.open_s
    fill_s = prompt_s(case.machine, settings[:: max(len(settings) // 100, 1)], n_prompt=case.n_ctx)
    return loads * load_s + float(visits_s.sum()) + float(fill_s.mean()) * loads


def best_baseline_cost(case: Case, space: Space, goal: Goal) -> float:
    """Of what the answer is compared with, by the truth; infinite where none runs."""
    found = math.inf
    for trial in baseline_trials(space).values():
        one = truth_of(case, trial.settings)
        if bool(one.fits[0]) and trial.settings.n_ctx >= case.workload.n_ctx_needed:
            found = min(found, float(costs(one, goal, case.workload.n_gen)[0]))
    return found

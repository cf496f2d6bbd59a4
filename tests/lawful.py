"""A made-up rig whose speed the law knows but for what a test adds: nothing here is measured."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from synthetic import MIB, WORKLOAD, made_up_facts, made_up_space, ok_result, visit

from offloadtune.footprint import estimate_footprint
from offloadtune.records import GgufFacts, Goal, Outcome, Settings, TensorFacts, Trial, TrialResult
from offloadtune.search import Space, next_trial
from offloadtune.search.columns import Columns, cards_of
from offloadtune.search.expecting import foretold
from offloadtune.search.grid import choices_of
from offloadtune.search.space import start_settings
from offloadtune.speed import Laws, laws_of
from offloadtune.speed.blocks import Floats
from offloadtune.speeds import DeviceRates, HostRates, Phase, Rig

N_TRIALS_MOST = 80
BUDGET_S = 3600.0
HOST = HostRates(peak_bytes_per_s=50e9, n_cores=4)
RIG = Rig(
    devices=(DeviceRates(name="CUDA0", read_bytes_per_s=500e9, flop_per_s=60e12, link_bytes_per_s=12e9),), host=HOST
)
CPU_RIG = Rig(devices=(), host=HOST)
FACTS = made_up_facts((100 * MIB,) * 24)
Times = Callable[[Settings], tuple[float, float]]


def with_experts(layer_bytes: Sequence[int]) -> GgufFacts:
    """Facts of a made-up mixture of eight experts: nine tenths of each block are theirs."""
    facts = made_up_facts(layer_bytes)
    experts = tuple(n * 9 // 10 for n in layer_bytes)
    blocks = [
        TensorFacts(name=f"blk.{i}.{name}.weight", type_name="I8", shape=(n,), n_bytes=n, offset=0, i_shard=0)
        for i, n_bytes in enumerate(layer_bytes)
        for name, n in (("attn_q", n_bytes - experts[i]), ("ffn_up_exps", experts[i]))
    ]
    others = [one for one in facts.tensors if not one.name.startswith("blk.")]
    return dataclasses.replace(facts, n_expert=8, n_expert_used=2, expert_bytes=experts, tensors=(*blocks, *others))


def with_ffn(layer_bytes: Sequence[int]) -> GgufFacts:
    """Facts of a made-up dense model: three quarters of each block multiply in its feed-forward network."""
    facts = made_up_facts(layer_bytes)
    blocks = [
        TensorFacts(name=f"blk.{i}.{name}.weight", type_name="I8", shape=(n // 64, 64), n_bytes=n, offset=0, i_shard=0)
        for i, n_bytes in enumerate(layer_bytes)
        for name, n in (("attn_q", n_bytes - n_bytes * 3 // 4), ("ffn_up", n_bytes * 3 // 4))
    ]
    others = [one for one in facts.tensors if not one.name.startswith("blk.")]
    return dataclasses.replace(facts, tensors=(*blocks, *others))


def lawful_space(facts: GgufFacts = FACTS, *, device_mib: int = 1200, goal: Goal = Goal.TURN, **given: object) -> Space:
    """A space over the made-up rig, with its laws."""
    space = made_up_space(facts, device_bytes=device_mib * MIB, goal=goal, **given)  # type: ignore[arg-type]
    return dataclasses.replace(space, laws=lambda settings: laws(facts, settings))


def laws(facts: GgufFacts, settings: Settings) -> Laws:
    """What makers say of the rig."""
    return laws_of(CPU_RIG if settings.devices == () else RIG, facts)


@dataclass(kw_only=True)
class LawfulEngine:
    """Takes as long as the law says, times `times` (of the prompt, of a token), with lognormal noise; loads count.

    What takes more than `wall_bytes` with `own_bytes` for the driver ends out of memory.
    """

    space: Space
    wall_bytes: int
    own_bytes: int = 20 * MIB
    times: Times = lambda _: (1.0, 1.0)
    noise_frac: float = 0.0
    seed: int = 0
    n_loads: int = 0
    placements: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)

    def used_bytes(self, settings: Settings) -> int:
        """What the settings take of the device."""
        return estimate_footprint(self.space.facts, settings).bytes + self.own_bytes if settings.offloads else 0

    def seconds(self, columns: Columns, settings: Sequence[Settings]) -> Floats:
        """The truth of `settings`, which `columns` are of: to the first token, and of a token; (2, n)."""
        base = start_settings(self.space)
        by_law = [
            foretold(self.space, lambda one: laws(self.space.facts, one), base, columns, phase).log_s
            for phase in (Phase.PREFILL, Phase.DECODE)
        ]
        return np.asarray(np.exp(by_law) * np.array([self.times(one) for one in settings]).T)

    def costs(self, columns: Columns, settings: Sequence[Settings]) -> Floats:
        """What the goal makes small, by the truth."""
        ttft_s, token_s = self.seconds(columns, settings)
        if self.space.goal in {Goal.TTFT, Goal.DECODE}:
            return np.asarray(ttft_s if self.space.goal is Goal.TTFT else token_s)
        return np.asarray(ttft_s + (self.space.workload.n_gen - 1) * token_s)

    def cost(self, settings: Settings) -> float:
        """That of one."""
        return float(self.costs(Columns.of(self.space.facts, (settings,), cards_of(self.space)), (settings,))[0])

    def least_cost(self) -> float:
        """That of the best that fits."""
        return self.cost(self.fastest())

    def fastest(self, n_ubatch: int | None = None) -> Settings:
        """The best that fits, of all or with one ubatch."""
        choices = choices_of(self.space)
        costs = self.costs(choices.columns, [choices.settings(i) for i in range(len(choices))])
        used = choices.columns.device_bytes + self.own_bytes * (choices.columns.device_bytes > 0)
        is_meant = (used <= self.wall_bytes) & ((n_ubatch is None) | (choices.columns.grid.n_ubatch == n_ubatch))
        return choices.settings(int(np.where(is_meant, costs, np.inf).argmin()))

    def run(self, trial: Trial) -> TrialResult:
        settings = trial.settings
        load_ns = round(2e9 + self.space.facts.file_bytes / 2)
        is_loaded = bool(self.placements) and self.placements[-1] == settings.placement
        self.placements.append(settings.placement)
        self.n_loads += not is_loaded
        used_bytes = self.used_bytes(settings)
        if used_bytes > self.wall_bytes:
            self.placements[-1] = None
            return TrialResult(trial=trial, outcome=Outcome.OUT_OF_MEMORY_DEVICE, reason="the made-up memory ran out")
        if settings.n_ctx < WORKLOAD.n_ctx_needed:
            return TrialResult(trial=trial, outcome=Outcome.UNSUPPORTED, reason="refused: the made-up context ends")
        (ttft_s,), (token_s,) = self.seconds(
            Columns.of(self.space.facts, (settings,), cards_of(self.space)), (settings,)
        )
        noise = np.exp(self.noise_frac * self._chance.standard_normal(2))
        one = visit(ttft_s=ttft_s * noise[0], token_s=token_s * noise[1])
        one = dataclasses.replace(one, i_load=self.n_loads)
        duration_s = 0.5 + 1.5 * (ttft_s + 4 * token_s) + load_ns / 1e9 * (not is_loaded)
        return dataclasses.replace(
            ok_result(trial, (one,), peak_bytes=used_bytes), load_ns=load_ns, duration_s=duration_s
        )

    def carry_out(self) -> list[TrialResult]:
        """The whole plan."""
        results: list[TrialResult] = []
        for _ in itertools.repeat(None, N_TRIALS_MOST):
            trial = next_trial(self.space, results, BUDGET_S - sum(one.duration_s for one in results))
            if trial is None:
                return results
            results.append(self.run(trial))
        raise AssertionError(f"the plan did not end within {N_TRIALS_MOST} trials")

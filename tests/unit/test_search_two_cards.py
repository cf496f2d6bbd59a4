"""Two cards of unequal speed or size: trials teach the rate of each, and the best division of the layers is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from lawful import HOST, LawfulEngine
from synthetic import MIB, made_up_facts, made_up_space

from offloadtune.footprint import Grid, backend_of, reckon
from offloadtune.pipeline.speed_memory import runs_of
from offloadtune.records import Goal, Outcome, Settings, Trial, TrialResult
from offloadtune.search import Space
from offloadtune.search.acquire import next_best
from offloadtune.search.columns import Columns, cards_of
from offloadtune.search.expecting import foretold
from offloadtune.search.grid import choices_of
from offloadtune.search.room import dominated, wall_of
from offloadtune.search.space import start_settings
from offloadtune.speed import Laws, laws_of
from offloadtune.speed.blocks import Floats
from offloadtune.speeds import DeviceRates, Phase, Rig

FACTS = made_up_facts((40 * MIB,) * 30)
NAMES = ("RPC0", "RPC1")


@dataclass(kw_only=True)
class TwoCards(LawfulEngine):
    """A machine of two cards whose rates nobody knows before they ran; each has a wall of its own."""

    space: Space
    rates: tuple[float, float]
    wall_bytes: int = 0
    laws_of_trials: dict[bool, Laws] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.truth = {True: self._laws(self.rates), False: laws_of(Rig(devices=(), host=HOST), FACTS)}
        self.laws_of_trials = {True: self._laws((None, None)), False: self.truth[False]}
        self.space = dataclasses.replace(self.space, laws=lambda one: self.laws_of_trials[one.devices != ()])

    def _laws(self, rates: tuple[float | None, float | None]) -> Laws:
        devices = tuple(
            DeviceRates(
                name=name,
                read_bytes_per_s=rate,
                flop_per_s=rate and rate * 100,
                offloads_ops=False,
            )
            for name, rate in zip(NAMES, rates, strict=True)
        )
        return laws_of(Rig(devices=devices, host=HOST, shares=tuple(map(float, self.space.device_free_bytes))), FACTS)

    def each_bytes(self, settings: Settings) -> list[int]:
        grid = Grid.of((settings,), FACTS.n_layer)
        shares = tuple(map(float, self.space.device_free_bytes))
        used: list[int] = reckon(FACTS, grid, tuple(map(backend_of, NAMES)), shares).device_bytes[:, 0].tolist()
        return [n + self.own_bytes * (n > 0) for n in used]

    def seconds(self, columns: Columns, settings: Sequence[Settings]) -> Floats:  # noqa: ARG002 - of the base
        base = start_settings(self.space)
        by_law = [
            foretold(self.space, lambda one: self.truth[one.devices != ()], base, columns, phase).log_s
            for phase in (Phase.PREFILL, Phase.DECODE)
        ]
        return np.asarray(np.exp(by_law))

    def run(self, trial: Trial) -> TrialResult:
        used = self.each_bytes(trial.settings)
        if any(n > free for n, free in zip(used, self.space.device_free_bytes, strict=True)):
            self.placements.append(None)
            return TrialResult(trial=trial, outcome=Outcome.OUT_OF_MEMORY_DEVICE, reason="the made-up memory ran out")
        self.wall_bytes = 1 << 60
        result = super().run(trial)
        if result.outcome is Outcome.OK:
            result = dataclasses.replace(result, device_peak_bytes=tuple(zip(NAMES, used, strict=True)))
            of_kind = trial.settings.devices != ()
            laws = self.laws_of_trials[of_kind]
            self.laws_of_trials[of_kind] = laws.with_runs(runs_of(FACTS, laws, result))
        return result


def cards(rates: tuple[float, float], free_mib: tuple[int, int], goal: Goal = Goal.TURN) -> TwoCards:
    free = tuple(mib * MIB for mib in free_mib)
    space = made_up_space(FACTS, device_bytes=sum(free), goal=goal)
    space = dataclasses.replace(
        space, lists_devices=True, n_devices=2, device_names=NAMES, device_free_bytes=free, n_physical_cores=4
    )
    return TwoCards(space=space, rates=rates, noise_frac=0.01)


def best_of(engine: TwoCards) -> tuple[Settings, float]:
    """The best candidate that each card has room for, by the truth."""
    choices = choices_of(engine.space)
    settings = [choices.settings(i) for i in range(len(choices))]
    costs = engine.costs(choices.columns, settings)
    used = choices.columns.bytes_of_each + engine.own_bytes * (choices.columns.bytes_of_each > 0)
    fit = (used <= np.array(engine.space.device_free_bytes)[:, None]).all(axis=0)
    i = int(np.where(fit, costs, np.inf).argmin())
    return settings[i], float(costs[i])


@pytest.mark.parametrize(
    ("rates", "free_mib"),
    [
        ((500e9, 100e9), (4000, 4000)),  # the first is faster and holds everything
        ((100e9, 500e9), (4000, 4000)),
        ((100e9, 500e9), (4000, 800)),  # the faster is too small for everything
        ((500e9, 100e9), (500, 500)),  # both together are
    ],
)
def test_most_goes_to_the_faster_card_that_still_has_room(
    rates: tuple[float, float], free_mib: tuple[int, int]
) -> None:
    engine = cards(rates, free_mib, Goal.DECODE)
    results = engine.carry_out()
    ran = [one.trial.settings for one in results if one.outcome is Outcome.OK]
    best, least_cost = best_of(engine)
    assert best.tensor_split is not None
    assert min(map(engine.cost, ran)) <= 1.02 * least_cost
    assert engine.n_loads <= 8


def test_trials_teach_the_rate_of_each_card() -> None:
    engine = cards((500e9, 100e9), (4000, 4000), Goal.DECODE)
    engine.carry_out()
    law = engine.laws_of_trials[True].decode
    rates = {term.place: 1 / mean for term, mean in zip(law.terms, law.mean, strict=True) if term.kind == "weights"}
    assert rates["0"] > 2.5 * rates["1"]


def test_each_card_has_a_wall_of_its_own() -> None:
    """What is free on the large card is no room for what lies on the small one; and trials tell what drivers take."""
    engine = cards((300e9, 300e9), (4000, 800))
    space, base = engine.space, start_settings(engine.space).replace(n_gpu_layers=31)
    splits = [(float(31 - n), float(n)) for n in range(32)]
    each = [base.replace(tensor_split=split) for split in splits]
    columns = Columns.of(FACTS, each, cards_of(space))
    chance = wall_of(space, []).chance_of(columns)
    fit = [engine.each_bytes(one)[1] < 800 * MIB for one in each]
    assert chance[fit.index(False) + 1] < 0.5 < chance[fit.index(False) - 2]
    assert chance[-1] < 0.01
    engine.own_bytes = 300 * MIB
    ran = engine.run(space.trial(each[4], "a test"))
    after = wall_of(space, [ran]).chance_of(columns)
    fit = [engine.each_bytes(one)[1] < 800 * MIB for one in each]
    assert after[fit.index(False)] < 0.2 < chance[fit.index(False)]


def test_only_what_takes_as_much_on_every_card_ends_as_another_did() -> None:
    engine = cards((300e9, 300e9), (4000, 800))
    space, base = engine.space, start_settings(engine.space).replace(n_gpu_layers=31)
    each = [base.replace(tensor_split=(float(31 - n), float(n))) for n in (10, 20, 25, 31)]
    columns = Columns.of(FACTS, each, cards_of(space))
    ended = engine.run(space.trial(each[1], "a test"))
    assert ended.outcome is Outcome.OUT_OF_MEMORY_DEVICE
    found = dominated(space, columns, [ended]).tolist()
    assert found == [False, True, False, False]  # whichever card it was that had no room, the others take less of one


def test_twins_of_one_make_are_as_fast_as_each_other() -> None:
    """A run on one card tells of the other where both are known to be the same; else of itself alone."""
    for make, is_same in (("Ampere", True), ("", False)):
        device = DeviceRates(name="", family=make, read_bytes_per_s=900e9 if make else None)
        rig = Rig(devices=tuple(dataclasses.replace(device, name=name) for name in NAMES), host=HOST)
        covariance = laws_of(rig, FACTS).decode.covariance
        i, j = (
            next(n for n, t in enumerate(laws_of(rig, FACTS).decode.terms) if t.name == f"{d}.weights") for d in (0, 1)
        )
        assert (covariance[i, j] > 0.9 * covariance[i, i]) == is_same


def test_where_nothing_is_foretold_divisions_are_tried_all_the_same() -> None:
    engine = cards((500e9, 100e9), (4000, 4000), Goal.DECODE)
    space = dataclasses.replace(engine.space, laws=None)
    results = [engine.run(space.trial(start_settings(space).replace(n_gpu_layers=31), "a test"))]
    trial = next_best(space, results)
    assert trial is not None
    assert "split " in trial.why or trial.settings.tensor_split is None


def test_what_is_tried_is_said_in_words() -> None:
    results = cards((500e9, 100e9), (4000, 4000), Goal.DECODE).carry_out()
    assert any("split 31,0" in one.trial.why for one in results)

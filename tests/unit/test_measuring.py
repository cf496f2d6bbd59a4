"""The rounds of a sweep: in which order, how many, and what recall makes of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synthetic import WORKLOAD, made_up_facts, made_up_space, ok_result, visit

from offloadtune.pipeline.measuring import Measuring, shuffled
from offloadtune.records import Settings, Trial, Verdict, Visit
from offloadtune.search import baseline_trials, round_s

SPACE = made_up_space(made_up_facts(), device_bytes=8 << 30)
DEFAULT, FIT = (baseline_trials(SPACE)[name] for name in ("default", "fit"))


def turn_visit(turn_s: float) -> Visit:
    return visit(ttft_s=turn_s / 2, token_s=turn_s / 2 / (WORKLOAD.n_gen - 1))


def compared(turn_s: Callable[[Settings], float], n_affordable: int, **earlier: Any) -> Any:
    """A sweep whose trials are done, after its rounds; each visit takes what `turn_s` says, in no time at all.

    The budget looks to be enough for so many rounds.
    """
    sweep: Any = object.__new__(Measuring)
    sweep.space = SPACE
    sweep.results = [ok_result(trial, (turn_visit(1.0),), peak_bytes=0) for trial in (FIT, DEFAULT)]
    sweep.all_rounds, sweep.plan, sweep.is_gone = [], None, False
    sweep.start_s = time.monotonic()
    sweep.told = []
    sweep.listen = sweep.told.append

    def revisit(trial: Trial, _plan: object, *, timeout_s: float) -> tuple[Visit, ...]:
        assert timeout_s > 0
        return (turn_visit(turn_s(trial.settings)),)

    sweep.undisturbed = SimpleNamespace(revisit=revisit, is_interrupted=False)
    sweep.journal = SimpleNamespace(append_round=lambda _visits: None)
    sweep.request = SimpleNamespace(budget_s=(n_affordable + 0.5) * round_s(sweep.results, (FIT, DEFAULT)))
    for name, value in earlier.items():
        setattr(sweep, name, value)
    sweep._compare()
    return sweep


def clearly(times: float = 1.06) -> Callable[[Settings], float]:
    """The defaults take so many times as long, but for a few percent."""
    jitter = itertools.cycle([1.0, 1.03, 0.98, 1.01, 0.99])
    return lambda settings: next(jitter) * (times if settings == DEFAULT.settings else 1.0)


def evenly() -> Callable[[Settings], float]:
    """The defaults take as long, and visits differ by a quarter."""
    swings = iter(np.exp(np.random.default_rng(3).normal(0, 0.25, 1000)).tolist())
    return lambda _settings: float(next(swings))


def test_rounds_end_at_the_first_look_that_decides() -> None:
    sweep = compared(clearly(), n_affordable=300)
    assert len(sweep.rounds) == len(sweep.told) == 7


def test_a_clear_loser_is_not_waited_for_and_its_verdict_stands() -> None:
    sweep = compared(clearly(times=3.0), n_affordable=300)
    assert len(sweep.rounds) == 3
    (versus,) = (one for one in sweep.best().versus if one.against == "default")
    assert (versus.verdict, versus.ratio.n_samples) == (Verdict.FASTER, 3)


def test_what_stays_open_takes_all_looks() -> None:
    assert len(compared(evenly(), n_affordable=300).rounds) == 35


def test_what_is_decided_is_not_measured_again_and_what_is_open_goes_on_up_to_the_last_look() -> None:
    done = compared(clearly(), n_affordable=300)
    again = compared(clearly(), n_affordable=300, all_rounds=list(done.rounds))
    assert again.rounds == done.rounds
    whole = compared(evenly(), n_affordable=300)
    longer = compared(evenly(), n_affordable=300, all_rounds=whole.rounds[:7])
    assert len(longer.rounds) > 7
    assert compared(evenly(), n_affordable=300, all_rounds=list(whole.rounds)).told == []


def test_no_time_no_round() -> None:
    sweep = compared(clearly(), n_affordable=0)
    assert (sweep.rounds, sweep.told) == ([], [])


def trials(n_placements: int, n_each: int) -> list[Trial]:
    return [
        SPACE.trial(FIT.settings.replace(n_gpu_layers=layers, n_ubatch=64 << i), "a test")
        for layers in range(n_placements)
        for i in range(n_each)
    ]


@pytest.mark.parametrize(("n_placements", "n_each"), [(1, 2), (1, 5), (2, 1), (3, 2)])
def test_the_order_of_a_round_is_by_chance_and_each_placement_is_loaded_once(n_placements: int, n_each: int) -> None:
    finalists = trials(n_placements, n_each)
    orders = [shuffled(finalists, seed) for seed in range(400)]
    assert orders == [shuffled(finalists, seed) for seed in range(400)]
    for order in orders:
        assert set(order) == set(finalists)
        assert len([key for key, _ in itertools.groupby(order, lambda t: t.settings.placement)]) == n_placements
    for one, other in itertools.combinations(finalists, 2):
        n_first = sum(order.index(one) < order.index(other) for order in orders)
        assert 150 < n_first < 250

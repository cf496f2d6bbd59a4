"""The benchmark of the intervals on recorded noise, in short; and that it sees what is wrong."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

bench: Any = importlib.import_module("interval_coverage")

N_SERIES = 150
SLACK = 4 * math.sqrt(0.05 * 0.95 / N_SERIES)


@pytest.fixture
def noise() -> Any:
    return bench.read_turns()


def far_off(bars: Iterator[Any]) -> list[str]:
    """The bars missed by more than so few series can miss them by chance."""
    return [
        bar.line()
        for bar in bars
        if (bar.least is not None and bar.found < bar.least - SLACK)
        or (bar.most is not None and bar.found > bar.most + SLACK)
    ]


def test_intervals_hold_on_recorded_noise(noise: Any) -> None:
    bars = itertools.chain(*(found(noise, N_SERIES) for found in (bench.look_bars, bench.quantile_bars)))
    assert far_off(bars) == []


def test_ratios_hold_on_recorded_noise(noise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_MORE_SERIES", 1)
    assert far_off(bench.ratio_bars(noise, N_SERIES)) == []


@pytest.mark.usefixtures("smollm2_path")
def test_a_sweep_over_settings_that_are_alike_seldom_calls_one_faster(noise: Any) -> None:
    assert far_off(bench.sweep_bars(noise, 40)) == []


def test_pairs_in_a_fixed_order_on_a_machine_that_slows_down_miss_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_MORE_SERIES", 1)
    slowing = bench.Noise(sessions=[np.exp(np.arange(900) / 50)])
    monkeypatch.setattr(bench.Noise, "rounds", lambda self, n_rounds, n: self.run(n_rounds * n).reshape(n_rounds, n))
    assert far_off(bench.ratio_bars(slowing, 20))


@pytest.mark.parametrize(
    ("found", "least", "most", "word"),
    [
        (0.95, 0.94, 0.965, "ok"),
        (0.93, 0.94, 0.965, "MISSED"),
        (0.97, 0.94, 0.965, "MISSED"),
        (0.97, 0.94, None, "ok"),
        (0.06, None, 0.05, "MISSED"),
        (0.3, None, None, "stated"),
    ],
)
def test_a_bar_says_whether_it_is_missed(found: float, least: float | None, most: float | None, word: str) -> None:
    bar = bench.Bar(what="a share", found=found, least=least, most=most)
    assert bar.line().endswith(word)
    assert bar.is_missed is (word == "MISSED")

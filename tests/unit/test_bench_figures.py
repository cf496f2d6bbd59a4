"""From visits to the figures of a bench: quantiles, shares of phases, what does not count, what is said of it."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from golden import check_golden
from rich.console import Console
from sample_runs import MEASURES, bench_run, bench_visit

from offloadtune.bench import figures_of, notes_of, quantiles
from offloadtune.benches import BenchReport, BenchRun
from offloadtune.report import bench_json, bench_view

TTFT, DECODE = MEASURES[0], MEASURES[3]
MANY = tuple(1 + 0.001 * i for i in range(80))


def with_visit(run: BenchRun, **changes: Any) -> BenchRun:
    """`run` and one more visit of the shortest prompt, a hundred times as slow as the others."""
    return dataclasses.replace(run, visits=(*run.visits, bench_visit(TTFT, 6, slower=100.0, **changes)))


def test_figures_are_those_of_the_visits() -> None:
    run = bench_run(scatter=(1.0, 2.0, 3.0))
    first = figures_of(run)[0]
    times = sorted(one.visit.ttft_s for one in run.visits_of(TTFT.name))
    assert first.measure == TTFT
    assert first.ttft_s.p50 == times[1]
    assert first.ttft_s.p95 is None
    assert first.ttft_s.reason == "3 samples cannot bound the 95 % quantile with 95 % confidence: 72 are needed."
    assert first.prefill_tok_per_s == pytest.approx(128 / (2 * 700_000 * 128 / 1e9))


def test_the_phases_share_the_first_token() -> None:
    shares = dict(figures_of(bench_run())[0].phase_fracs)
    assert list(shares) == ["tokenise", "prefill", "first sample"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["prefill"] == pytest.approx(700_000 * 128 / (701_000 * 128 + 150_000))


def test_token_to_token_is_over_all_visits() -> None:
    decode = next(one for one in figures_of(bench_run()) if one.measure == DECODE)
    assert decode.step_s.n_samples == 6 * DECODE.n_steps
    assert decode.step_s.p50 == pytest.approx(0.02515, rel=0.05)
    assert decode.decode_tok_per_s == pytest.approx(1 / 0.02515, rel=0.05)


def test_enough_samples_give_a_p95_with_its_interval() -> None:
    found = quantiles(MANY)
    assert found.p95 is not None
    assert found.p95_low is not None
    assert found.p95_high is not None
    assert found.p95_low < found.p95 < found.p95_high
    assert found.reason == ""


def test_one_sample_says_that_it_is_one() -> None:
    assert quantiles([1.5]).p50 == 1.5
    assert quantiles([1.5]).reason == "1 sample has no P95"


@pytest.mark.parametrize("changes", [{"disturbed_by": ("Other programs took 1.0 of 2 CPUs.",)}, {"is_warmup": True}])
def test_what_was_disturbed_or_thrown_away_does_not_count(changes: dict[str, Any]) -> None:
    run = bench_run()
    assert figures_of(with_visit(run, **changes))[0].ttft_s == figures_of(run)[0].ttft_s
    assert figures_of(with_visit(run))[0].ttft_s != figures_of(run)[0].ttft_s


def test_an_outlier_counts_and_is_told() -> None:
    run = with_visit(bench_run())
    assert figures_of(run)[0].n_outliers == 1
    assert figures_of(run)[0].n_visits == 7


def test_a_measure_without_visits_has_no_figures() -> None:
    run = bench_run()
    without = dataclasses.replace(run, visits=tuple(one for one in run.visits if one.measure != TTFT.name))
    assert TTFT.name not in {one.measure.name for one in figures_of(without)}


def test_disturbed_visits_are_told() -> None:
    run = with_visit(bench_run(), disturbed_by=("Other programs took 1.0 of 2 CPUs.",))
    told = [note for note in notes_of(run) if "disturbed" in note]
    words = "was disturbed and does not count: Other programs took 1.0 of 2 CPUs."
    assert told == [f"1 of 37 visits {words}"]


def test_a_turn_is_the_whole_of_it() -> None:
    turn = figures_of(bench_run(scatter=(1.0,)))[-1]
    assert turn.measure == MEASURES[5]
    assert turn.turn_s == pytest.approx(bench_visit(MEASURES[5], 0).visit.turn_s(256))
    assert figures_of(bench_run())[0].turn_s is None


def test_a_run_that_the_engine_ended_says_so() -> None:
    words = "The engine ended the run before its time: it died."
    assert words in notes_of(bench_run(ended_by=words))


def test_a_run_without_an_anchor_says_so() -> None:
    assert any("No anchor" in note for note in notes_of(bench_run(anchor_slower=None)))
    assert not any("No anchor" in note for note in notes_of(bench_run()))


def test_the_noise_of_the_run_is_told_from_twelve_visits_on() -> None:
    assert not any("A/A noise" in note for note in notes_of(bench_run()))
    assert any("A/A noise" in note for note in notes_of(bench_run(scatter=(1.0, 1.01) * 6)))


def test_a_run_that_gets_slower_and_slower_is_told() -> None:
    rising = tuple(1 + 0.02 * i for i in range(16))
    assert any("slower over the run" in note for note in notes_of(bench_run(scatter=rising)))


def test_the_screen() -> None:
    run = with_visit(bench_run(), disturbed_by=("Other programs took 1.0 of 2 CPUs.",))
    report = BenchReport(run=run, figures=figures_of(run), notes=tuple(notes_of(run)), trend_path=run.gguf_path)
    with io.StringIO() as out:
        Console(width=140, file=out).print(bench_view(report))
        check_golden("report/bench.txt", out.getvalue())
    assert bench_json(report)["measures"][0]["ttft_s"]["n_samples"] == 6

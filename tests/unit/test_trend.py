"""What a trend says: what changed, what is slower, what nobody can know yet; and how often it is wrong."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import ENGINE, MACHINE, SETTINGS
from sample_runs import ANCHOR, MEASURES, ON_CPU, bench_run, bench_visit, noisy_runs

from offloadtune.bench.baseline import N_EARLIER_MOST, N_EARLIER_NEEDED
from offloadtune.bench.changes import changes
from offloadtune.bench.student import upper_quantile, upper_tail
from offloadtune.bench.trend import (
    LEAST_SPREAD_LOG,
    check,
    run_figures,
    series,
    sparkline,
    sparks,
    usual_anchor,
)
from offloadtune.benches import BenchRun, BenchVisit
from offloadtune.records import Machine, Target, Verdict, Workload
from offloadtune.trends import FigureCheck, RunFigure, TrendCheck

STEADY = (1.0, 1.01, 0.99, 1.0, 1.012, 0.99, 1.004)
ELSEWHERE = dataclasses.replace(MACHINE, host=dataclasses.replace(MACHINE.host, os="Windows 11"))
NO_CARD = dataclasses.replace(MACHINE, host=dataclasses.replace(MACHINE.host, nvml_gpus=()), devices=())
OTHER = SETTINGS.replace(n_ubatch=64)
UPDATED = dataclasses.replace(ENGINE, version="llama-cpp-python 0.3.37", build_id="f" * 12)
NAMES = [
    "ttft 128",
    "ttft 2048",
    "second turn 1920+128",
    "decode at 0",
    "decode at 2048",
    "turn 2048+256+256",
]


def steady_runs(*last: BenchRun, **options: Any) -> list[BenchRun]:
    return [*(bench_run(i, slower=slower, **options) for i, slower in enumerate(STEADY)), *last]


def figures(run: BenchRun) -> dict[str, RunFigure]:
    return {one.name: one for one in run_figures(run, usual_anchor([run]))}


def of(found: TrendCheck, name: str = "ttft 128") -> FigureCheck:
    return next(one for one in found.figures if one.name == name)


def on(*, driver: str | None = None, mt_per_s: int | None = 5600, read_bytes_per_s: float | None = 61.2e9) -> Machine:
    """The sample machine with another driver or other memory."""
    host = MACHINE.host
    gpus = tuple(dataclasses.replace(gpu, driver=driver or gpu.driver) for gpu in host.nvml_gpus or ())
    ram = dataclasses.replace(host.ram, configured_mt_per_s=mt_per_s, read_bytes_per_s=read_bytes_per_s)
    return dataclasses.replace(MACHINE, host=dataclasses.replace(host, nvml_gpus=gpus, ram=ram))


def edited(run: BenchRun, measure: str, **edits: Any) -> BenchRun:
    """`run` with every visit of `measure` changed."""
    visits = [
        dataclasses.replace(one, visit=dataclasses.replace(one.visit, **edits)) if one.measure == measure else one
        for one in run.visits
    ]
    return dataclasses.replace(run, visits=tuple(visits))


# --- Student's t ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chance", "n_freedom", "t"),  # tables of the t distribution
    [
        (0.025, 1, 12.706),
        (0.025, 4, 2.776),
        (0.0005, 4, 8.610),
        (0.0005, 5, 6.869),
        (0.001, 10, 4.144),
        (0.0005, 19, 3.883),
        (0.2, 9, 0.883),
        (0.5, 3, 0.0),
    ],
)
def test_quantiles_are_those_of_the_tables(chance: float, n_freedom: int, t: float) -> None:
    assert upper_quantile(chance, n_freedom) == pytest.approx(t, abs=6e-4)


@given(chance=st.floats(1e-8, 0.4), n_freedom=st.integers(1, 60))
def test_a_quantile_has_its_tail(chance: float, n_freedom: int) -> None:
    assert upper_tail(upper_quantile(chance, n_freedom), n_freedom) == pytest.approx(chance, rel=1e-5)


def test_far_tails_are_those_of_another_formula() -> None:
    for t in (5.0, 40.0):
        assert upper_tail(t, 1) == pytest.approx(math.atan(1 / t) / math.pi, rel=1e-9)
        assert upper_tail(t, 2) == pytest.approx((1 - t / math.sqrt(2 + t * t)) / 2, rel=1e-9)


@pytest.mark.parametrize(("chance", "n_freedom"), [(0.6, 4), (1e-12, 4), (0.1, 0), (math.nan, 4)])
def test_no_quantile_is_made_up(chance: float, n_freedom: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        upper_quantile(chance, n_freedom)


# --- the figures of a run ------------------------------------------------------------------------------------------


def test_figures_are_medians_of_what_the_measure_is_after() -> None:
    run = bench_run(scatter=(1.0, 2.0, 1.1))
    usual = {measure.name: bench_visit(measure, 0, slower=1.1).visit for measure in MEASURES}
    found = figures(run)
    assert found["ttft 128"].raw_s == usual["ttft 128"].ttft_s
    assert found["second turn 1920+128"].raw_s == usual["second turn 1920+128"].ttft_s
    assert found["decode at 2048"].raw_s == usual["decode at 2048"].token_s
    assert found["turn 2048+256+256"].raw_s == pytest.approx(usual["turn 2048+256"].turn_s(256))
    assert [name for name in found if "P95" not in name] == NAMES


def test_a_p95_needs_twenty_visits() -> None:
    few, many = figures(bench_run())["ttft 128 P95"], figures(bench_run(scatter=[1 + i / 50 for i in range(20)]))
    assert (few.raw_s, few.n_visits) == (None, 6)
    p95 = many["ttft 128 P95"].raw_s
    assert p95 is not None
    assert 1.2 < p95 / bench_visit(MEASURES[0], 0).visit.ttft_s < 1.4


def test_disturbed_and_thrown_away_visits_do_not_count() -> None:
    run = bench_run()
    disturbed = edited(run, "ttft 128", disturbed_by=("Another program was busy.",))
    assert "ttft 128" not in figures(disturbed)
    assert "ttft 128" not in figures(edited(run, "ttft 128", is_warmup=True))


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=9))
def test_what_the_anchor_explains_is_taken_out(machine: list[float]) -> None:
    """Visits that are slow just as their anchors are have the same normalised time."""
    visits = tuple(
        bench_visit(measure, i, slower=slow, anchor_slower=slow)
        for i, slow in enumerate(machine)
        for measure in MEASURES
    )
    steady = bench_run(scatter=(1.0,) * len(machine))
    run = bench_run(visits=visits)
    for name, one in {one.name: one for one in run_figures(run, ANCHOR)}.items():
        if one.quantile_frac == 0.5:
            assert one.normalised_s == pytest.approx(figures(steady)[name].raw_s, rel=1e-4)


def test_one_visit_without_an_anchor_leaves_the_raw_figure_alone() -> None:
    run = bench_run()
    first = dataclasses.replace(run.visits[0], anchor=None)
    found = figures(dataclasses.replace(run, visits=(first, *run.visits[1:])))
    assert found["ttft 128"].normalised_s is None
    assert found["ttft 128"].raw_s
    assert found["ttft 2048"].normalised_s


def test_a_run_without_any_visit_has_no_figures() -> None:
    assert figures(bench_run(visits=())) == {}
    assert check([bench_run(0), bench_run(1, visits=())]).figures == ()


# --- what changed --------------------------------------------------------------------------------------------------


def test_nothing_changed_between_equal_runs() -> None:
    assert changes(bench_run(0), bench_run(1, slower=2)) == ()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"machine": on(driver="560.35")}, "driver 550.54.14 -> 560.35"),
        ({"machine": on(mt_per_s=4800)}, "RAM 5600 -> 4800 MT/s"),
        ({"machine": on(read_bytes_per_s=40e9)}, "RAM reads 61.2 GB/s -> 40.0 GB/s"),
        ({"machine": dataclasses.replace(MACHINE, devices=())}, "devices CUDA0 NVIDIA GeForce RTX 4090 -> none"),
        (
            {"engine": dataclasses.replace(ENGINE, version="llama-cpp-python 0.3.37", build_id="f" * 12)},
            "engine llama-cpp-python 0.3.36 -> llama-cpp-python 0.3.37",
        ),
        ({"engine": dataclasses.replace(ENGINE, build_id="f" * 12)}, "engine build 0123456789ab -> ffffffffffff"),
        ({"gguf_id": "ffff"}, "content of the file 4f2c9ad01b77 -> ffff"),
        ({"gguf_path": Path("/models/b.gguf")}, "file Qwen 3 [8B].gguf -> b.gguf"),
        ({"settings": SETTINGS.replace(n_ubatch=512)}, "n_ubatch 256 -> 512"),
        ({"settings": SETTINGS.replace(devices=())}, "devices all -> none"),
        ({"settings": SETTINGS.replace(tensor_split=(3, 0.5))}, "tensor_split by free memory -> 3/0.5"),
        ({"settings": SETTINGS.replace(n_ctx=4096)}, "n_ctx 2816 -> 4096"),
        ({"target": Target.LLAMA_SERVER}, "target llama_cpp_python -> llama_server"),
        ({"workload": None}, "workload 2048/256/256/1 -> none"),
        ({"endpoints": ("a:1",)}, "endpoints none -> a:1"),
        ({"offloadtune_version": "0.2.0"}, "offloadtune 0.1.0 -> 0.2.0"),
        ({"script": 2}, "script 1 -> 2, so the figures do not compare"),
    ],
)
def test_a_change_is_named_with_both_values(after: dict[str, Any], words: str) -> None:
    assert changes(bench_run(0), bench_run(1, **after)) == (words,)


@pytest.mark.parametrize("machine", [on(read_bytes_per_s=55e9), on(read_bytes_per_s=None), on(mt_per_s=None)])
def test_what_is_near_or_not_known_is_no_change(machine: Machine) -> None:
    assert changes(bench_run(0), bench_run(1, machine=machine)) == ()
    assert changes(bench_run(0, machine=machine), bench_run(1)) == ()


# --- series --------------------------------------------------------------------------------------------------------


def test_a_file_goes_on_with_its_trend_when_it_is_moved_or_exchanged() -> None:
    runs = [
        bench_run(0),
        bench_run(1, gguf_path=Path("/b/x.gguf"), gguf_id="other"),
        bench_run(2, gguf_path=Path("/moved/y.gguf")),
        bench_run(3, gguf_path=Path("/moved/y.gguf"), gguf_id="exchanged"),
        bench_run(4, machine=ELSEWHERE),
    ]
    assert series(runs) == [(runs[0], runs[2], runs[3]), (runs[1],), (runs[4],)]


def test_a_computer_whose_card_is_gone_goes_on_with_its_trend() -> None:
    runs = (bench_run(0), bench_run(1, machine=NO_CARD), bench_run(2))
    assert runs[0].machine.machine_id != runs[1].machine.machine_id
    assert series(runs) == [runs]


def test_two_files_that_turn_out_to_be_one_are_one_trend() -> None:
    runs = [
        bench_run(0, gguf_path=Path("/a"), gguf_id="1"),
        bench_run(1, gguf_path=Path("/b"), gguf_id="2"),
        bench_run(2, gguf_path=Path("/a"), gguf_id="2"),
        bench_run(3, gguf_path=Path("/b"), gguf_id="3"),
        bench_run(4, gguf_path=Path("/c"), gguf_id="1"),
    ]
    assert series(runs) == [tuple(runs)]


# --- the check -----------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(n_runs=st.integers(6, 24), slower=st.floats(0.01, 100), anchor_slower=st.none() | st.floats(0.1, 10))
def test_identical_runs_never_alarm(n_runs: int, slower: float, anchor_slower: float | None) -> None:
    runs = [bench_run(i, slower=slower, anchor_slower=anchor_slower) for i in range(n_runs)]
    found = check(runs)
    assert {one.verdict for one in found.figures} == {Verdict.SAME}
    assert (found.slower, found.warnings, found.changes) == ((), (), ())


@settings(max_examples=25)
@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=6))
def test_the_slower_the_more_surely_it_is_slower(factors: list[float]) -> None:
    order = {Verdict.FASTER: 0, Verdict.SAME: 1, Verdict.SLOWER: 2}
    found = [check(steady_runs(bench_run(9, slower=slower))) for slower in sorted(factors)]
    for name in NAMES:
        verdicts = [of(one, name).verdict for one in found]
        assert [order[one] for one in verdicts if one] == sorted(order[one] for one in verdicts if one)
        changed = [of(one, name).raw_change_frac or 0 for one in found]
        assert changed == sorted(changed)


def test_a_slowdown_beyond_the_limit_is_slower_and_one_within_is_not() -> None:
    limit = of(check(steady_runs(bench_run(9)))).limit_frac
    assert limit is not None
    assert 0.01 < limit < 0.2
    assert of(check(steady_runs(bench_run(9, slower=1 + 1.1 * limit)))).verdict is Verdict.SLOWER
    assert of(check(steady_runs(bench_run(9, slower=1 + 0.9 * limit)))).verdict is Verdict.SAME
    assert of(check(steady_runs(bench_run(9, slower=1 / (1 + 1.1 * limit))))).verdict is Verdict.FASTER


def test_only_the_figure_that_is_slower_is_named() -> None:
    slow = [bench_visit(MEASURES[3], i, slower=1.5) for i in range(6)]
    others = [one for one in bench_run().visits if one.measure != "decode at 0"]
    found = check(steady_runs(bench_run(9, visits=(*others, *slow))))
    assert [one.name for one in found.slower] == ["decode at 0"]
    assert of(found, "decode at 0").raw_change_frac == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("n_earlier", range(N_EARLIER_NEEDED))
def test_too_few_runs_judge_nothing(n_earlier: int) -> None:
    found = check([*(bench_run(i) for i in range(n_earlier)), bench_run(9, slower=3)])
    assert found.n_missing == N_EARLIER_NEEDED - n_earlier
    for one in found.figures:
        assert (one.verdict, one.limit_frac, one.change_frac) == (None, None, None)
        assert one.n_missing == found.n_missing


def test_runs_of_another_script_do_not_count() -> None:
    runs = [*(bench_run(i, script=0) for i in range(20)), *(bench_run(20 + i) for i in range(4))]
    assert (check(runs).n_earlier, check(runs).n_missing) == (3, 2)


def test_turns_of_another_length_do_not_compare() -> None:
    short = Workload(name="x", n_prefix_cached=2048, n_prompt_new=256, n_gen=16)
    found = check(steady_runs(bench_run(9, workload=short)))
    turn = of(found, "turn 2048+256+16")
    assert (turn.n_earlier, turn.verdict) == (0, None)
    assert of(found).verdict is Verdict.SAME


def test_only_the_newest_of_many_runs_are_compared_with() -> None:
    runs = [bench_run(i, slower=3 if i < 30 else 1) for i in range(31 + N_EARLIER_MOST)]
    found = check(runs)
    assert found.n_earlier == N_EARLIER_MOST
    assert of(found).raw_change_frac == pytest.approx(0)


def test_a_lucky_series_does_not_pretend_to_know_better() -> None:
    scattered = (0.7, 0.8, 0.9, 1.1, 1.2, 1.3)
    runs = [bench_run(i, scatter=scattered) for i in range(7)]
    noise = of(check(runs)).noise_frac
    assert noise is not None
    assert noise > 0.1
    exact = of(check([bench_run(i, scatter=(1.0,) * 6) for i in range(7)])).noise_frac
    assert exact == pytest.approx(LEAST_SPREAD_LOG, rel=0.01)


def test_a_short_run_is_given_more_room() -> None:
    scattered = (0.8, 0.9, 1.0, 1.1, 1.2) * 5
    earlier = [bench_run(i, scatter=scattered) for i in range(7)]
    long, short = (of(check([*earlier, bench_run(9, scatter=some)])) for some in (scattered, scattered[:5]))
    assert long.limit_frac is not None
    assert short.limit_frac is not None
    assert short.limit_frac > 1.5 * long.limit_frac


def on_cpu(i_run: int, slower: float, anchor_slower: float | None = 1.0) -> BenchRun:
    return bench_run(i_run, slower=slower, anchor_slower=anchor_slower, settings=ON_CPU)


MACHINE_SWINGS = (1.0, 1.3, 0.8, 1.2, 0.9, 1.4, 1.1)


def test_what_scatters_less_is_judged() -> None:
    follows = [on_cpu(i, slow, slow) for i, slow in enumerate(MACHINE_SWINGS)]
    found = of(check([*follows, on_cpu(9, 1.5 * 1.2, 1.5)]))
    assert found.is_normalised
    assert found.change_frac == found.normalised_change_frac == pytest.approx(0.2, rel=0.01)
    assert found.verdict is Verdict.SLOWER
    wild = [on_cpu(i, slow, far) for i, (slow, far) in enumerate(zip(STEADY, MACHINE_SWINGS, strict=True))]
    assert not of(check([*wild, on_cpu(9, 1.0)])).is_normalised


def test_a_run_without_anchors_is_judged_as_measured() -> None:
    runs = [on_cpu(i, slow, slow) for i, slow in enumerate(MACHINE_SWINGS)]
    found = of(check([*runs, on_cpu(9, 1.0, None)]))
    assert (found.is_normalised, found.normalised_change_frac) == (False, None)
    assert found.verdict is Verdict.SAME


def test_an_earlier_run_without_anchors_is_left_out_of_what_is_normalised() -> None:
    runs = [on_cpu(i, slow, slow) for i, slow in enumerate(MACHINE_SWINGS)]
    slow = on_cpu(9, 1.1 * 1.2, 1.1)
    for n_bare, is_normalised in ((2, True), (3, False)):
        bare = [on_cpu(i, slow, None) for i, slow in enumerate(MACHINE_SWINGS[:n_bare])]
        found = of(check([*bare, *runs[n_bare:], slow]))
        assert (found.is_normalised, found.n_earlier) == (is_normalised, 7)
        assert found.verdict is (Verdict.SLOWER if is_normalised else Verdict.SAME)


def test_a_slow_machine_is_a_warning_and_no_verdict_against_what_ran() -> None:
    found = check([*(on_cpu(i, slower) for i, slower in enumerate(STEADY)), on_cpu(9, 1.42, 1.42)])
    assert found.slower == ()
    assert of(found).is_machine
    assert of(found).raw_change_frac == pytest.approx(0.42, rel=0.01)
    assert found.warnings == (
        "The machine itself was slower: a fixed piece of work for its arithmetic took 1.42x the usual time.",
        "The machine itself was slower: a fixed piece of work for its main memory took 1.42x the usual time.",
    )


@pytest.mark.parametrize(("slower", "anchor_slower"), [(1.42 * 1.3, 1.42), (1.3, 1.6)])
def test_slower_by_more_or_less_than_the_machine_is_slower(slower: float, anchor_slower: float) -> None:
    """An anchor that would explain far more than there is explains nothing."""
    found = check([*(on_cpu(i, slower) for i, slower in enumerate(STEADY)), on_cpu(9, slower, anchor_slower)])
    assert len(found.slower) == len(found.figures)
    assert found.warnings


def test_the_cpu_is_no_excuse_where_a_card_does_the_work() -> None:
    found = check(steady_runs(bench_run(9, slower=1.42, anchor_slower=1.42)))
    assert len(found.slower) == len(found.figures)
    assert {one.normalised_change_frac for one in found.figures} == {None}
    slow_machine = bench_run(9, slower=1.42, anchor_slower=1.42, machine=NO_CARD)
    assert check(steady_runs(slow_machine, machine=NO_CARD)).slower == ()


def test_a_change_is_named_and_does_not_excuse() -> None:
    found = check(steady_runs(bench_run(9, slower=1.5, settings=OTHER)))
    assert found.slower
    assert (found.changes, found.changed_at) == (("n_ubatch 256 -> 64",), bench_run(9).started_at)
    later = check(steady_runs(*(bench_run(i, slower=1.5, settings=OTHER) for i in (9, 10))))
    assert (later.changes, later.changed_at) == (found.changes, found.changed_at)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"settings": OTHER}, "n_ubatch 256 -> 64"),
        ({"engine": UPDATED}, "engine llama-cpp-python 0.3.36 -> llama-cpp-python 0.3.37"),
        ({"gguf_id": "exchanged"}, "content of the file 4f2c9ad01b77 -> exchanged"),
        ({"target": Target.LLAMA_SERVER}, "target llama_cpp_python -> llama_server"),
        ({"machine": on(driver="560.35")}, "driver 550.54.14 -> 560.35"),
        ({"endpoints": ("a:1",)}, "endpoints none -> a:1"),
    ],
)
def test_what_a_change_makes_slower_is_told_while_it_is_young(changed: dict[str, Any], words: str) -> None:
    """From the first run after it, against the runs before it, until there are enough to be compared with."""
    for n_after in range(1, N_EARLIER_NEEDED + 1):
        found = check(steady_runs(*(bench_run(10 + i, slower=1.15, **changed) for i in range(n_after))))
        assert len(found.slower) == len(found.figures)
        assert (found.n_earlier, found.changes) == (7, (words,))
        assert found.changed_at == bench_run(10).started_at
        assert len(found.warnings) == 1
    settled = check(steady_runs(*(bench_run(10 + i, slower=1.15, **changed) for i in range(N_EARLIER_NEEDED + 1))))
    assert {one.verdict for one in settled.figures} == {Verdict.SAME}
    assert (settled.n_earlier, settled.changes, settled.warnings) == (N_EARLIER_NEEDED, (), ())


def test_a_large_change_makes_no_later_check_blind() -> None:
    after = [bench_run(10 + i, slower=4 * slower, settings=OTHER) for i, slower in enumerate(STEADY)]
    found = check(steady_runs(*after, bench_run(20, slower=4 * 1.15, settings=OTHER)))
    assert len(found.slower) == len(found.figures)
    assert found.n_earlier == len(after)


def test_profiles_in_turns_are_each_compared_with_their_own() -> None:
    turns = [
        bench_run(i, slower=slower * (1, 3)[i % 2], settings=(SETTINGS, OTHER)[i % 2])
        for i, slower in enumerate(2 * STEADY)
    ]
    assert [check(turns[: i + 1]).slower for i in range(len(turns))] == [()] * len(turns)
    for settings_now, usual in ((SETTINGS, 1), (OTHER, 3)):
        found = check([*turns, bench_run(20, slower=usual * 1.15, settings=settings_now)])
        assert len(found.slower) == len(found.figures)
        assert (found.n_earlier, found.changes, found.warnings) == (7, (), ())


def test_a_trial_of_something_else_does_not_end_a_stretch() -> None:
    runs = [bench_run(i, slower=slower) for i, slower in enumerate(STEADY)]
    runs.insert(4, bench_run(4, slower=3, settings=OTHER))
    found = check([*runs, bench_run(9, slower=1.15, engine=UPDATED)])
    assert len(found.slower) == len(found.figures)
    assert found.n_earlier == 7


def test_limits_that_span_a_change_are_told() -> None:
    runs = [bench_run(i, slower=(1, 3)[i // 4], settings=(SETTINGS, OTHER)[i // 4]) for i in range(8)]
    found = check([*runs, bench_run(9, slower=3, settings=OTHER)])
    assert (found.n_earlier, found.changes) == (8, ("n_ubatch 256 -> 64",))
    assert found.warnings == ("No 5 runs in a row are alike: what changed between them widens the limits.",)
    assert (of(found).limit_frac or 0) > 1
    assert check(runs[:4]).warnings == ()


def test_a_card_that_is_gone_is_told_at_once() -> None:
    found = check(steady_runs(bench_run(9, slower=8, anchor_slower=8, machine=NO_CARD)))
    assert len(found.slower) == len(found.figures)
    assert "devices CUDA0 NVIDIA GeForce RTX 4090 -> none" in found.changes


@pytest.mark.parametrize("end", [{"is_interrupted": True}, {"ended_by": "The engine ended."}])
def test_a_run_that_was_cut_short_is_compared_with_where_it_has_visits(end: dict[str, Any]) -> None:
    cut = bench_run(5, slower=3, scatter=(1.0, 1.0), **end)
    found = check(steady_runs(cut, bench_run(9)))
    assert {one.n_earlier for one in found.figures} == {7}
    half = check(steady_runs(bench_run(5, scatter=(1.0,) * 3, **end), bench_run(9)))
    assert {one.n_earlier for one in half.figures} == {8}
    assert check([*(bench_run(i, **end) for i in range(6)), bench_run(9)]).n_missing == 5


def test_what_a_run_that_was_cut_short_lacks_is_told() -> None:
    some = tuple(one for one in bench_run().visits if one.measure != "decode at 0")
    interrupted = check(steady_runs(bench_run(9, visits=some, is_interrupted=True)))
    assert interrupted.warnings == (
        "The run was interrupted, so that its figures rest on fewer visits or are missing.",
        "decode at 0 was not measured this time: the run ended before it.",
    )
    ended = check(steady_runs(bench_run(9, visits=some, ended_by="The engine ended.")))
    assert ended.warnings == ("The engine ended.", interrupted.warnings[1])
    after = check(steady_runs(bench_run(8, visits=(), is_interrupted=True), bench_run(9, visits=some)))
    assert after.warnings == ("decode at 0 was not measured this time: not one of its visits counts.",)


def test_what_could_be_measured_before_and_not_now_is_told() -> None:
    newest = edited(bench_run(9), "decode at 0", disturbed_by=("Another program was busy.",))
    gone = tuple(one for one in newest.visits if one.measure != "ttft 2048")
    skipped = (("ttft 2048", "The context is too small."), ("ttft 9999", "It never was measured."))
    found = check(steady_runs(dataclasses.replace(newest, visits=gone, skipped=skipped)))
    assert found.warnings == (
        "ttft 2048 was not measured this time: The context is too small.",
        "decode at 0 was not measured this time: every visit was disturbed.",
    )


# --- how often it is wrong -----------------------------------------------------------------------------------------


def alarm_frac(n_trends: int, **noise: Any) -> float:
    random = np.random.default_rng(1)
    runs = [noisy_runs(random, 16, **noise) for _ in range(n_trends)]
    return statistics.fmean(bool(check(some[: i + 1]).slower) for some in runs for i in range(5, 16))


@pytest.mark.parametrize("noise", [{}, {"rho": 0.9}, {"anchor_follows": True}, {"law": "stalls"}])
def test_unchanged_runs_stay_quiet(noise: dict[str, Any]) -> None:
    assert alarm_frac(12, **noise) <= 0.015  # one of 132 checks may alarm


def test_a_slowdown_as_large_as_printed_is_found_most_times() -> None:
    random = np.random.default_rng(3)
    found = []
    for _ in range(25):
        runs = noisy_runs(random, 11, n_visits=6)
        one = of(check(runs))
        assert one.detectable_frac is not None
        assert one.limit_frac is not None
        assert one.detectable_frac > one.limit_frac
        factor = 1 + one.detectable_frac
        slow = dataclasses.replace(runs[-1], visits=tuple(slowed(visit, factor) for visit in runs[-1].visits))
        found.append(of(check([*runs[:-1], slow])).verdict is Verdict.SLOWER)
    assert statistics.fmean(found) > 0.55


def slowed(one: BenchVisit, factor: float) -> BenchVisit:
    times = {
        name: round(getattr(one.visit, name) * factor) for name in ("tokenize_ns", "prefill_ns", "first_sample_ns")
    }
    return dataclasses.replace(one, visit=dataclasses.replace(one.visit, **times))


# --- sparklines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], "▅"),
        ([1.0, 1.0, 1.0], "▅▅▅"),
        ([1.0, 2.0, 3.0, 4.0], "▁▃▆█"),
        ([1.0, None, 2.0], "▁ █"),
        ([None, None], "  "),
        ([1.0, 1.01], "▄▅"),
    ],
)
def test_a_sparkline(values: Sequence[float | None], line: str) -> None:
    assert sparkline(values) == line


@given(st.lists(st.none() | st.floats(1e-9, 1e9), max_size=80))
def test_a_sparkline_is_short_and_rises_with_its_values(values: list[float | None]) -> None:
    line = sparkline(values)
    shown = values[-29:]
    assert len(line) == len(shown) < 30
    known = sorted((value, bar) for value, bar in zip(shown, line, strict=True) if value is not None)
    assert [bar for _, bar in known] == sorted(bar for _, bar in known)


def test_every_followed_figure_has_a_spark() -> None:
    runs = [bench_run(0), edited(bench_run(1), "decode at 0", is_warmup=True), bench_run(2, slower=2)]
    drawn = sparks([run_figures(run, None) for run in runs])
    assert [one.name for one in drawn] == NAMES
    decode = next(one for one in drawn if one.name == "decode at 0")
    assert decode.text == "█ ▁"  # tokens per second
    assert drawn[0].text == "▁▁█"
    assert decode.last_s == pytest.approx(2 * decode.first_s)

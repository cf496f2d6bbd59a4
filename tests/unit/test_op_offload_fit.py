"""The fit of op offload's times finds what made them, and what was recorded says what is claimed of it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offloadtune.gguf import read_gguf
from offloadtune.records import GgufFacts

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

bench: Any = importlib.import_module("op_offload")
runs: Any = importlib.import_module("op_offload_runs")

TRUE = {"device_flop": 2e-10, "device_bytes": 1e-8, "streamed_bytes": 3e-8, "host_flop": 2e-11, "ubatches": 0.01}


@pytest.fixture(scope="module")
def facts(smollm2_path: Path) -> GgufFacts:
    return read_gguf(smollm2_path)


@pytest.fixture
def grid(facts: GgufFacts) -> Any:
    return runs.grid_of(facts)


@pytest.fixture
def amounts(grid: Any) -> Any:
    return np.array([[one.work[term] for term in runs.TERMS] for one in grid])


def made_up_seconds(amounts: Any, noise_frac: float, **changed: float) -> Any:
    coefficients = np.array([(TRUE | changed)[term] for term in runs.TERMS])
    return amounts @ coefficients * (1 + noise_frac * np.random.default_rng(3).standard_normal(len(amounts)))


def timed(i_round: int, seconds: float, others_cores: float = 0.0) -> Any:
    ns = round(seconds * 1e9)
    return runs.Timed(
        i_round=i_round,
        at_s=0.0,
        prefill_ns=ns,
        ubatch_ns=(ns // 2, ns - ns // 2),
        ubatch_cpu_ns=(ns, ns),
        ubatch_others_ns=(0, round(ns * others_cores)),
    )


def visited(like: Any, *visits: Any) -> Any:
    return dataclasses.replace(like, visits=list(visits))


def test_the_fit_finds_what_made_the_times(amounts: Any) -> None:
    fit = bench.fit_law(amounts, made_up_seconds(amounts, 0.0))
    for term, value in TRUE.items():
        assert fit[term].value == pytest.approx(value, rel=1e-6)


def test_intervals_hold_what_made_the_times(amounts: Any) -> None:
    fit = bench.fit_law(amounts, made_up_seconds(amounts, 0.03))
    streaming = fit["streamed_bytes"]
    assert streaming.low < TRUE["streamed_bytes"] < streaming.high
    assert streaming.excludes_zero
    assert 0.01 < fit.error_frac < 0.09


def test_streaming_that_costs_nothing_is_not_found(amounts: Any) -> None:
    fit = bench.fit_law(amounts, made_up_seconds(amounts, 0.03, streamed_bytes=0.0))
    assert not fit["streamed_bytes"].excludes_zero


def test_disturbed_visits_are_left_out(grid: Any) -> None:
    one = visited(grid[0], timed(1, 9.0, 0.5), timed(2, 5.0, 0.01), timed(3, 7.0, 0.02))
    assert bench.seconds_of(one) == pytest.approx(6.0)


def test_the_least_disturbed_visit_speaks_where_all_are(grid: Any) -> None:
    one = visited(grid[0], timed(1, 9.0, 0.5), timed(2, 8.0, 0.4), timed(3, 7.0, 0.6))
    assert bench.seconds_of(one) == pytest.approx(8.0)


def test_pairs_are_compared_within_their_round(facts: GgufFacts) -> None:
    like, n_pairs = runs.wide_of(facts), 8
    each_s = [(i, 5.0 + i % 3) for i in range(n_pairs)]  # the machine is slower at times
    narrow = visited(like[0], *(timed(i, s) for i, s in each_s), timed(50, 9.0, 0.9))
    wide = visited(like[1], *(timed(i, s * 1.05) for i, s in reversed(each_s)), timed(50, 1.0), timed(99, 1.0))
    found = bench.bytes_alone(narrow, wide)
    assert (found.n_bytes, found.n_pairs) == (30 * 191 * (runs.N_WIDE_CTX - 512) * 4, n_pairs)
    assert found.seconds == pytest.approx(0.05 * 6.0)
    assert found.low_s == pytest.approx(found.high_s)


def test_too_few_pairs_say_so(facts: GgufFacts, capsys: pytest.CaptureFixture[str]) -> None:
    narrow, wide = (visited(one, timed(1, 5.0)) for one in runs.wide_of(facts))
    assert bench.bytes_alone(narrow, wide) is None
    bench.tell_bytes_alone(made_up_session(facts, wide=[narrow, wide]), fit=None)
    assert "too few" in capsys.readouterr().out


def made_up_session(facts: GgufFacts, **changed: Any) -> Any:
    """Times as TRUE makes them, a log that agrees with the rule."""
    words = ("about", "measured_at", "libraries", "engine", "build_id", "device", "cpu", "file")
    fields: dict[str, Any] = dict.fromkeys(words, "")
    grid = runs.grid_of(facts)
    amounts = np.array([[one.work[term] for term in runs.TERMS] for one in grid])
    for one, seconds in zip(grid, made_up_seconds(amounts, 0.02), strict=True):
        one.by_log, one.visits = one.by_rule, [timed(1, seconds)]
    pair = runs.wide_of(facts)
    for one, seconds in zip(pair, (5.0, 5.3), strict=True):
        one.by_log, one.visits = one.by_rule, [timed(i, seconds) for i in range(8)]
    fields |= {"gguf_id": facts.gguf_id, "n_deaths": 0, "grid": grid, "wide": pair, "bytes_only": []} | changed
    return runs.Session(**fields)


def told(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why the benchmark ended on what is recorded, "" where all is well."""
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps(dataclasses.asdict(session)), encoding="utf-8")
    monkeypatch.setattr(bench, "DATA", path)
    monkeypatch.setattr(sys, "argv", ["op_offload.py"])
    try:
        bench.main()
    except SystemExit as ended:
        return str(ended.code)
    return ""


def test_a_session_is_read_back_and_judged(
    facts: GgufFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(made_up_session(facts), tmp_path, monkeypatch) == ""
    out = capsys.readouterr().out
    assert out.count("agree") == 14
    assert "streaming to the device" in out
    assert "2.99 GB more, in as many copies, take 0.300 s longer" in out


def test_what_was_recorded_identifies_streaming(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["op_offload.py"])
    bench.main()
    out = capsys.readouterr().out
    assert out.count("agree") == len(bench.read_session(bench.DATA).configurations) == 17
    (streaming,) = (line for line in out.splitlines() if line.strip().startswith("streaming to the device"))
    assert streaming.endswith("excludes 0")


def test_a_copy_that_differs_is_told_and_fails(
    facts: GgufFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = made_up_session(facts)
    session.grid[0].differences = ("ubatch 0, only in the log: blk.0.attn_q.weight 202K",)
    assert told(session, tmp_path, monkeypatch) == "In 1 configurations the log and the rule differ."
    assert "only in the log: blk.0.attn_q.weight" in capsys.readouterr().out


def test_streaming_that_cannot_be_told_from_nothing_fails(
    facts: GgufFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = made_up_session(facts)
    for one in session.grid:
        one.visits = [timed(1, sum(TRUE[term] * one.work[term] for term in ("device_flop", "host_flop", "ubatches")))]
    assert told(session, tmp_path, monkeypatch) == "The interval of the streaming term holds 0."


def test_times_among_other_programs_are_no_times(
    facts: GgufFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = made_up_session(facts)
    session.grid[3].visits = [timed(1, 9.0, 0.8)]
    told(session, tmp_path, monkeypatch)
    assert "1 of 12 were never measured undisturbed" in capsys.readouterr().out


def test_half_a_record_is_not_judged(
    facts: GgufFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a measurement leaves it that was ended in the middle."""
    session = made_up_session(facts)
    session.grid[5].by_log, session.grid[5].visits = None, []
    assert told(session, tmp_path, monkeypatch) == ""
    out = capsys.readouterr().out
    assert out.count("not seen yet") == 1
    assert "1 of 12 are not measured yet" in out
    assert "streaming to the device" not in out


def test_nothing_recorded_says_how_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "DATA", tmp_path / "none.json")
    monkeypatch.setattr(sys, "argv", ["op_offload.py"])
    bench.main()
    assert "--measure" in capsys.readouterr().out


def test_a_session_is_continued_only_where_it_is_of_the_same_things(facts: GgufFacts, tmp_path: Path) -> None:
    measuring: Any = importlib.import_module("op_offload_bench")
    path, recorded = tmp_path / "recorded.json", made_up_session(facts)
    runs.write_session(recorded, path)
    new = made_up_session(facts, grid=runs.grid_of(facts), wide=runs.wide_of(facts))
    assert measuring._continued(new, path) == recorded
    assert recorded.n_rounds == 7
    for changed in ({"build_id": "another"}, {"cpu": "another"}, {"bytes_only": runs.bytes_only_of(facts)}):
        other = dataclasses.replace(new, **changed)
        assert measuring._continued(other, path) is other
    assert measuring._continued(new, tmp_path / "none.json") is new
    assert list(tmp_path.iterdir()) == [path]

"""The fit of op offload's times finds coefficients that made them, and what was recorded still says what it said."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offloadtune.gguf import read_gguf

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

bench: Any = importlib.import_module("op_offload")
runs: Any = importlib.import_module("op_offload_runs")

TRUE = {"device_flop": 2e-10, "device_bytes": 1e-8, "streamed_bytes": 3e-8, "host_flop": 2e-11, "ubatches": 0.01}


@pytest.fixture(scope="module")
def session() -> Any:
    return bench.read_session(bench.DATA)


@pytest.fixture
def amounts(session: Any) -> Any:
    return np.array([[one.work[term] for term in runs.TERMS] for one in session.grid])


def made_up_seconds(amounts: Any, noise_frac: float, **changed: float) -> Any:
    coefficients = np.array([(TRUE | changed)[term] for term in runs.TERMS])
    return amounts @ coefficients * (1 + noise_frac * np.random.default_rng(3).standard_normal(len(amounts)))


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


def timed(i_round: int, seconds: float, disturbed_frac: float = 0.0) -> Any:
    ns = round(seconds * 1e9)
    return runs.Timed(
        i_round=i_round,
        at_s=0.0,
        prefill_ns=ns,
        ubatch_ns=(ns // 2, ns - ns // 2),
        ubatch_cpu_ns=(ns // 2, ns - ns // 2),
        ubatch_waited_ns=(0, round(ns * disturbed_frac)),
    )


def visited(like: Any, *visits: Any) -> Any:
    return dataclasses.replace(like, visits=list(visits))


def test_disturbed_visits_are_left_out(session: Any) -> None:
    one = visited(session.grid[0], timed(1, 9.0, 0.5), timed(2, 5.0, 0.01), timed(3, 7.0, 0.02))
    assert bench.quiet_s(one) == pytest.approx(6.0)


def test_the_least_disturbed_visit_speaks_where_all_are(session: Any) -> None:
    one = visited(session.grid[0], timed(1, 9.0, 0.5), timed(2, 8.0, 0.4), timed(3, 7.0, 0.6))
    assert bench.quiet_s(one) == pytest.approx(8.0)


def test_pairs_are_compared_within_their_round(session: Any) -> None:
    n_pairs = 8
    narrow = visited(session.wide[0], *(timed(i, 5.0 + i) for i in range(n_pairs)))
    wide = visited(session.wide[1], *(timed(i, 5.25 + i) for i in reversed(range(n_pairs))), timed(99, 1.0))
    more_bytes, longer = bench.seconds_of_bytes(narrow, wide)
    assert more_bytes == 30 * 191 * (runs.N_WIDE_CTX - 512) * 4
    assert (longer.value, longer.n_samples) == (pytest.approx(0.25), n_pairs)


# --- what was recorded ---


def test_the_recorded_log_agrees_with_the_rule(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    everything = [*session.grid, *session.wide, *session.bytes_only]
    assert bench.tell_bytes(everything) == 0
    assert capsys.readouterr().out.count("agree") == len(everything)


def test_a_difference_is_told(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = dataclasses.replace(session.grid[0], differences=("ubatch 0, only in the log: blk.0.attn_q.weight 202K",))
    assert bench.tell_bytes([wrong]) == 1
    out = capsys.readouterr().out
    assert "DIFFER" in out
    assert "only in the log: blk.0.attn_q.weight" in out


def test_the_recorded_work_is_what_the_rule_says_today(session: Any, smollm2_path: Path) -> None:
    facts = read_gguf(smollm2_path)
    assert session.gguf_id == facts.gguf_id
    for one in [*session.grid, *session.wide, *session.bytes_only]:
        today = runs.configured(facts, one.settings, one.n_prompt)
        assert (today.by_rule, today.work) == (one.by_rule, one.work)


def test_flash_attention_has_log_and_rule_agree_to_the_byte(session: Any) -> None:
    """Its views are whole KiB, which the log prints without rounding."""
    assert len(session.grid) == 12
    for one in session.grid:
        assert one.by_log == one.by_rule


def test_the_streaming_term_is_identified(session: Any) -> None:
    assert bench.fit_grid(session.grid)["streamed_bytes"].excludes_zero

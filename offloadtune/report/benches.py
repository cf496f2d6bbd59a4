"""The figures of a bench as tables and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.benches import BenchReport, BenchRun, BenchVisit, LoadTimes, MeasureFigures, MeasureKind, Quantiles
from offloadtune.report.json_values import plain
from offloadtune.report.standins import standin_lines
from offloadtune.report.words import printable
from offloadtune.units import format_count, format_seconds, format_tok_per_s

_SHOWN = ("n_gpu_layers", "n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "flash_attn_type")


def bench_view(report: BenchReport) -> RenderableType:
    """Curve of the first token, second turn, writing by depth, loads, and how far all of it can be trusted."""
    run = report.run
    by_kind: dict[MeasureKind, list[MeasureFigures]] = {kind: [] for kind in MeasureKind}
    for one in report.figures:
        by_kind[one.measure.kind].append(one)
    parts: list[RenderableType] = [*standin_lines(run.stands_for, run.n_layer), Text()]
    first = [*by_kind[MeasureKind.TTFT], *by_kind[MeasureKind.SECOND_TURN], *by_kind[MeasureKind.TURN]]
    parts += [_ttft_table(first)] if first else []
    parts += [Text(line) for line in _turn_lines(run, by_kind[MeasureKind.TURN])]
    parts += [Text(), _decode_table(by_kind[MeasureKind.DECODE])] if by_kind[MeasureKind.DECODE] else []
    parts += [Text(), *(Text(line) for line in _load_lines(run.loads))]
    parts.append(Text(", ".join(f"{name}={getattr(run.settings, name)}" for name in _SHOWN), style="bold"))
    parts += [Text(f"- {printable(note)}") for note in report.notes]
    parts += [Text(f"- {line}", style="dim") for line in _outlier_lines(report.figures)]
    parts += [Text(f"- Not measured: {name}. {why}", style="dim") for name, why in run.skipped]
    stopped = "stopped by you after" if run.is_interrupted else "in"
    parts.append(Text(f"{format_count(_n_counting(run), 'visit')} {stopped} {format_seconds(run.duration_s)}", "dim"))
    if report.trend_path is not None:
        parts.append(Text(f"kept in {report.trend_path}; offloadtune history shows the trend"))
    return Group(*parts)


def bench_json(report: BenchReport) -> dict[str, Any]:
    """The figures, and every visit as it was timed."""
    run = report.run
    return {
        "started_at": run.started_at,
        "path": str(run.gguf_path),
        "gguf_id": run.gguf_id,
        "n_layer": run.n_layer,
        "stands_for": plain(run.stands_for),
        "machine_id": run.machine.machine_id,
        "engine": {"version": run.engine.version, "build_id": run.engine.build_id},
        "target": run.target.value,
        "settings": dataclasses.asdict(run.settings),
        "settings_from": run.settings_from,
        "measures": [_figures_json(one) for one in report.figures],
        "loads": None if run.loads is None else dataclasses.asdict(run.loads),
        "skipped": dict(run.skipped),
        "notes": list(report.notes),
        "visits": [_visit_json(one) for one in run.visits],
        "trend": None if report.trend_path is None else str(report.trend_path),
        "is_interrupted": run.is_interrupted,
        "ended_by": run.ended_by,
        "duration_s": run.duration_s,
    }


def visit_words(one: BenchVisit) -> str:
    """A visit in a few words, as it comes."""
    visit = one.visit
    timed = f"first token {format_seconds(visit.ttft_s)}"
    if one.measure.startswith("decode"):
        timed = format_tok_per_s(1 / visit.token_s)
    mark = f" - disturbed: {one.visit.disturbed_by[0]}" if one.visit.disturbed_by else ""
    return f"{one.measure}: {timed}{mark}"


def _ttft_table(figures: Sequence[MeasureFigures]) -> Table:
    table = _table("prompt", "first token P50", "P95", "reads", "tokenise", "prefill", "first sample", "visits")
    for one in figures:
        measure = one.measure
        prompt = f"{measure.n_prompt_new}"
        if measure.kind is not MeasureKind.TTFT:
            prompt = f"{measure.n_prefix_cached} cached + {measure.n_prompt_new}"
        table.add_row(
            prompt,
            _with_interval(one.ttft_s.p50, one.ttft_s.p50_low, one.ttft_s.p50_high, format_seconds),
            _p95(one.ttft_s, format_seconds),
            format_tok_per_s(one.prefill_tok_per_s),
            *(f"{frac:.1%}" for _, frac in one.phase_fracs),
            str(one.n_visits),
        )
    return table


def _decode_table(figures: Sequence[MeasureFigures]) -> Table:
    table = _table("depth", "writes", "token to token P50", "P95", "first decode", "visits")
    for one in figures:
        table.add_row(
            str(one.measure.n_prefix_cached),
            format_tok_per_s(one.decode_tok_per_s),
            format_seconds(one.step_s.p50),
            _p95(one.step_s, format_seconds),
            format_seconds(one.first_decode_s),
            str(one.n_visits),
        )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _with_interval(value: float, low: float | None, high: float | None, words: Callable[[float], str]) -> str:
    return words(value) if low is None or high is None else f"{words(value)} ({words(low)} to {words(high)})"


def _p95(found: Quantiles, words: Callable[[float], str]) -> str:
    if found.p95 is None:
        return f"too few of {found.n_samples}"
    return _with_interval(found.p95, found.p95_low, found.p95_high, words)


def _turn_lines(run: BenchRun, figures: Sequence[MeasureFigures]) -> Iterator[str]:
    for one in figures:
        if one.turn_s is not None and run.workload is not None:
            read = f"{one.measure.n_prefix_cached} cached and {one.measure.n_prompt_new} new"
            writes = f"writes {format_tok_per_s(one.decode_tok_per_s)}"
            yield f"a turn of {read}, {run.workload.n_gen} written: {format_seconds(one.turn_s)}, {writes}"


def _load_lines(loads: LoadTimes | None) -> Iterator[str]:
    if loads is None:
        return
    warm = f"{format_seconds(loads.warm_load_ns / 1e9)}, {format_seconds(loads.warm_ready_ns / 1e9)} until it answers"
    if loads.cold_load_ns is None or loads.cold_ready_ns is None:
        where = "from the system's cache" if loads.is_warm else "with what the system's cache held of the file"
        yield f"load {where}: {warm}; from the disk: not measured, {loads.why_not_cold}"
        return
    cold = f"{format_seconds(loads.cold_load_ns / 1e9)}, {format_seconds(loads.cold_ready_ns / 1e9)} until it answers"
    yield f"load from the disk: {cold}; from the system's cache: {warm}"


def _outlier_lines(figures: Sequence[MeasureFigures]) -> Iterator[str]:
    for one in figures:
        if one.n_outliers:
            outliers = format_count(one.n_outliers, "visit")
            yield f"{one.measure.name}: {outliers} far from the rest of {one.n_visits}; counted all the same."


def _n_counting(run: BenchRun) -> int:
    return sum(one.visit.counts for one in run.visits)


def _figures_json(one: MeasureFigures) -> dict[str, Any]:
    return {**dataclasses.asdict(one), "measure": one.measure.name, "phase_fracs": dict(one.phase_fracs)}


def _visit_json(one: BenchVisit) -> dict[str, Any]:
    return dataclasses.asdict(one)

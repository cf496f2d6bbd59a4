"""What is shown of a trend of benches: its runs, the check of the newest, profiles gone stale, rows of elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.benches import BenchRun, Measure, MeasureKind
from offloadtune.records import Settings, StandsFor
from offloadtune.report.json_values import plain
from offloadtune.report.standins import standin_lines, standin_words
from offloadtune.report.words import printable
from offloadtune.rows import BenchRow, ImportedRows
from offloadtune.trends import BrokenTrend, FigureCheck, StaleProfile, Trend, TrendCheck, TrendReport, TrendRow
from offloadtune.units import format_count, format_seconds, format_split, format_tok_per_s

_N_ROWS_SHOWN = 20
_LEGEND = """\
raw, normalised: change of the time taken, as measured and for a machine as fast as usual; noise: between earlier runs
limit: a larger change is no noise; finds: a true slowdown as large is found 4 times in 5; a P95 takes 20 visits"""


def trends_view(report: TrendReport) -> RenderableType:
    """Every trend, those of other machines apart and last, and what cannot be read or has gone stale."""
    here = [view for one in report.trends if one.is_here for view in _trend_lines(one)]
    elsewhere = [view for one in report.trends if not one.is_here for view in _trend_lines(one)]
    return Group(*here, *elsewhere, *map(_broken_line, report.broken), *map(_stale_line, report.stale))


def trends_json(report: TrendReport) -> dict[str, Any]:
    """Every trend with the figures of its runs, newest first; the raw visits stay in the files of the trend."""
    return {
        "trends": [
            {
                "gguf_path": str(one.gguf_path),
                "machine_id": one.machine_id,
                "is_here": one.is_here,
                "runs": [_run_json(row) for row in one.rows],
            }
            for one in report.trends
        ],
        "broken_trends": [plain(one) for one in report.broken],
        "stale_profiles": [plain(one) for one in report.stale],
    }


def checks_view(checks: Sequence[TrendCheck]) -> RenderableType:
    """The newest run of each trend against those before it."""
    if not checks:
        return Text("No bench to check was run on this machine yet: offloadtune bench FILE")
    return Group(*(line for one in checks for line in _check_lines(one)))


def checks_json(checks: Sequence[TrendCheck]) -> dict[str, Any]:
    return {"checks": [{**plain(one), "slower": [figure.name for figure in one.slower]} for one in checks]}


def regression_words(checks: Sequence[TrendCheck]) -> str:
    """The sentence of what ran slower; "" where nothing did."""
    found = [
        f"{_file_words(one.gguf_path, one.stands_for, one.n_layer)} runs slower than before: "
        f"{', '.join(map(_slower_words, one.slower))}"
        for one in checks
        if one.slower
    ]
    return f"{'; '.join(found)}." if found else ""


def imported_view(imported: ImportedRows) -> RenderableType:
    """What a file of llama-bench's rows held."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "test", "tok/s"):
        table.add_column(title, overflow="fold")
    for row in imported.rows[:_N_ROWS_SHOWN]:
        table.add_row(*map(printable, _row_cells(row)))
    n_more = len(imported.rows) - _N_ROWS_SHOWN
    kept = f"{format_count(len(imported.rows), 'row')} of {printable(imported.machine) or 'an unnamed machine'}"
    lines = [Text(f"{kept}, kept apart from this machine's own in {printable(str(imported.stored_path))}")]
    if imported.n_broken:
        broken = f"{format_count(imported.n_broken, 'line')} of {imported.path} left out: {imported.first_broken}"
        lines.append(Text(f"Warning: {printable(broken)}"))
    return Group(table, *([Text(f"and {n_more} more")] if n_more > 0 else []), *lines)


def imported_json(imported: ImportedRows) -> dict[str, Any]:
    return {"imported": plain(imported)}


# --- a trend -------------------------------------------------------------------------------------------------------


def _trend_lines(trend: Trend) -> Iterator[RenderableType]:
    where = "" if trend.is_here else ", another machine than this"
    yield Text(f"{printable(trend.gguf_path.name)} on {printable(trend.machine_id)}{where}", style="bold")
    yield from _standin_lines(row.run for row in trend.rows)
    if len(trend.rows) > 1:
        sparks = Table(box=None, show_header=False, pad_edge=False)
        for one in trend.sparks:
            first, last = (_figure_words(one.kind, seconds) for seconds in (one.first_s, one.last_s))
            sparks.add_row(printable(one.name), one.text, f"{first} -> {last}")
        yield sparks
    prompts, depths = _shown(trend.rows[0].run)
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = [*(f"{one.name} P50 / P95" for one in prompts), *(one.name for one in depths)]
    for title in ("when", *titles, "settings", "changed since the run before"):
        table.add_column(title, overflow="fold")
    cells = [[*(_prompt_cell(row, one) for one in prompts), *(_cell(row, one) for one in depths)] for row in trend.rows]
    above = None
    for row, figures in zip(trend.rows, cells, strict=True):
        settings = '"' if row.run.settings == above else _settings_words(row.run.settings)
        above = row.run.settings
        words = (_when(row.run.started_at) + _marks(row.run), *figures, settings, "; ".join(row.changes))
        table.add_row(*map(printable, words))
    yield table
    for run in (row.run for row in trend.rows if row.run.ended_by):
        yield Text(printable(f"The run of {_when(run.started_at)} was cut short: {run.ended_by}"))
    if any("of " in cell for figures in cells for cell in figures):
        yield Text('"of 6" stands where the P95 of so few visits is not known: it takes 20.', style="dim")
    yield Text("")


def _standin_lines(runs: Iterable[BenchRun]) -> Iterator[Text]:
    """What the runs were of, where that was no real file: once for each such file."""
    for stands_for, n_layer in dict.fromkeys((run.stands_for, run.n_layer) for run in runs):
        yield from standin_lines(stands_for, n_layer)


def _marks(run: BenchRun) -> str:
    marks = [", stand-in"] if run.stands_for else []
    marks += [", interrupted"] if run.is_interrupted else [", cut short"] if run.ended_by else []
    return "".join(marks)


def _shown(run: BenchRun) -> tuple[list[Measure], list[Measure]]:
    """The shortest and the longest prompt that the run measured, and decoding at the least and the greatest depth."""
    visited = {one.measure for one in run.visits if one.visit.counts}
    measures = [one for one in run.measures if one.name in visited]
    prompts = sorted((one for one in measures if one.kind is MeasureKind.TTFT), key=lambda one: one.n_prompt_new)
    depths = sorted((one for one in measures if one.kind is MeasureKind.DECODE), key=lambda one: one.n_prefix_cached)
    return _ends(prompts), _ends(depths)


def _ends(measures: list[Measure]) -> list[Measure]:
    return measures if len(measures) < 2 else [measures[0], measures[-1]]


def _prompt_cell(row: TrendRow, measure: Measure) -> str:
    median, p95 = row.figure(measure.name), row.figure(f"{measure.name} P95")
    if median is None or median.raw_s is None:
        return "-"
    far = format_seconds(p95.raw_s) if p95 and p95.raw_s is not None else f"of {median.n_visits}"
    return f"{format_seconds(median.raw_s)} / {far}"


def _cell(row: TrendRow, measure: Measure) -> str:
    figure = row.figure(measure.name)
    return "-" if figure is None or figure.raw_s is None else _figure_words(figure.kind, figure.raw_s)


def _figure_words(kind: MeasureKind, seconds: float) -> str:
    return format_tok_per_s(1 / seconds) if kind is MeasureKind.DECODE else format_seconds(seconds)


def _settings_words(settings: Settings) -> str:
    """What moves figures most, in short."""
    words = [
        f"n_gpu_layers {settings.n_gpu_layers}" if settings.offloads else "CPU only",
        f"n_ctx {settings.n_ctx}",
        f"n_ubatch {settings.n_ubatch}",
        f"threads {settings.n_threads}/{settings.n_threads_batch}",
    ]
    if settings.n_cpu_moe:
        words.append(f"n_cpu_moe {settings.n_cpu_moe}")
    if settings.n_cpu_ffn:
        words.append(f"n_cpu_ffn {settings.n_cpu_ffn}")
    if settings.tensor_split:
        words.append(f"split {format_split(settings.tensor_split)}")
    if (settings.type_k, settings.type_v) != ("f16", "f16"):
        words.append(f"cache {settings.type_k}/{settings.type_v}")
    return ", ".join(words)


def _run_json(row: TrendRow) -> dict[str, Any]:
    run = row.run
    return {
        "started_at": run.started_at,
        "script": run.script,
        "offloadtune_version": run.offloadtune_version,
        "gguf_id": run.gguf_id,
        "n_layer": run.n_layer,
        "stands_for": plain(run.stands_for),
        "engine": {"version": run.engine.version, "build_id": run.engine.build_id},
        "drivers": list(run.drivers),
        "settings": plain(run.settings),
        "target": run.target.value,
        "workload": plain(run.workload),
        "is_interrupted": run.is_interrupted,
        "ended_by": run.ended_by,
        "figures": [plain(one) for one in row.figures],
        "changes": list(row.changes),
    }


def _broken_line(broken: BrokenTrend) -> Text:
    n_more = len(broken.reasons) - 1
    more = f" Of that file {format_count(n_more, 'more line')} cannot be read." if n_more > 0 else ""
    return Text(f"Warning: left out of the trend: {printable(broken.reasons[0])}{more}")


def _stale_line(stale: StaleProfile) -> Text:
    what = _file_words(stale.gguf_path, stale.stands_for, None)
    words = f"{what}: its profile was made with {printable(stale.why)}; measure it anew with a short sweep:"
    return Text(f"{words} {printable(stale.command)}")


def _file_words(path: Path, stands_for: StandsFor | None, n_layer: int | None) -> str:
    name, standin = printable(path.name), standin_words(stands_for, n_layer)
    return f"{name} ({standin})" if standin else name


# --- a check -------------------------------------------------------------------------------------------------------


def _check_lines(check: TrendCheck) -> Iterator[RenderableType]:
    name, before = printable(check.gguf_path.name), format_count(check.n_earlier, "run")
    when = f"the run of {_when(check.started_at)} against {before} before it"
    yield Text(f"{name} on {printable(check.machine_id)}: {when}", style="bold")
    yield from standin_lines(check.stands_for, check.n_layer)
    judged = [one for one in check.figures if one.verdict]
    if judged:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("", "before", "now", "raw", "normalised", "judged", "noise", "limit", "finds", "verdict"):
            table.add_column(title, overflow="fold")
        for one in judged:
            table.add_row(*map(printable, _check_cells(one)))
        yield table
        yield Text(_LEGEND, style="dim")
    waiting = [one for one in check.figures if not one.verdict]
    if not check.figures:
        yield Text("Not one of its visits counts, so there is nothing to judge.")
    elif not judged:
        missing = format_count(min(one.n_missing for one in waiting), "more run")
        yield Text(f"Too few runs to judge by: {missing} must come first.")
    elif waiting:
        names = ", ".join(f"{one.name} ({one.n_missing})" for one in waiting)
        yield Text(printable(f"Not judged, for want of so many earlier runs: {names}"))
    if check.changes:
        yield Text(printable(f"Changed last, at the run of {_when(check.changed_at)}: {'; '.join(check.changes)}"))
    yield from (Text(printable(f"Warning: {warning}")) for warning in check.warnings)
    yield Text("")


def _check_cells(one: FigureCheck) -> tuple[str, ...]:
    verdict = "same, as the machine was slower" if one.is_machine else f"{one.verdict}"
    return (
        one.name,
        _figure_words(one.kind, one.before_s) if one.before_s else "-",
        _figure_words(one.kind, one.now_s),
        _signed(one.raw_change_frac),
        _signed(one.normalised_change_frac),
        "normalised" if one.is_normalised else "raw",
        _unsigned(one.noise_frac),
        _unsigned(one.limit_frac),
        _unsigned(one.detectable_frac),
        verdict,
    )


def _slower_words(one: FigureCheck) -> str:
    return f"{printable(one.name)} by {_unsigned(one.change_frac)}"


def _signed(frac: float | None) -> str:
    return "-" if frac is None else f"{frac:+.1%}"


def _unsigned(frac: float | None) -> str:
    return "-" if frac is None else f"{frac:.1%}"


def _when(started_at: str) -> str:
    return f"{datetime.fromisoformat(started_at).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# --- rows of elsewhere ---------------------------------------------------------------------------------------------


def _row_cells(row: BenchRow) -> tuple[str, str, str]:
    """As llama-bench prints them."""
    n_prompt, n_gen, n_depth = (row.fields.get(name) for name in ("n_prompt", "n_gen", "n_depth"))
    test = "+".join([*([f"pp{n_prompt}"] if n_prompt else []), *([f"tg{n_gen}"] if n_gen else [])])
    speed, spread = row.fields.get("avg_ts"), row.fields.get("stddev_ts")
    words = [f"{value:.2f}" for value in (speed, spread) if isinstance(value, int | float)]
    return str(row.fields.get("model_type", "")), f"{test} @ d{n_depth}" if n_depth else test, " ± ".join(words)

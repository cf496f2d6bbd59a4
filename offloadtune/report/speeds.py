"""What a calibration showed: coefficients in physical units, and how far the law is off."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.report.json_values import plain
from offloadtune.report.standins import standin_lines
from offloadtune.report.words import printable
from offloadtune.speeds import CalibrationReport, Coefficient, PassageMeasured, Phase, RunCheck
from offloadtune.units import (
    format_bytes_per_s,
    format_count,
    format_flop_per_s,
    format_seconds,
    format_tok_per_s,
)

_PHASES = {Phase.DECODE: "a token", Phase.PREFILL: "a prompt"}


def passage_words(event: PassageMeasured) -> str:
    """A passage as it comes: what ran, what was expected of it, and what it took."""
    parts = []
    for one in event.checks:
        if one.phase is Phase.DECODE:
            words = f"writes {format_tok_per_s(1 / one.measured_s)}, expected {format_tok_per_s(1 / one.expected_s)}"
            parts.append(f"{words} ({format_tok_per_s(1 / one.high_s)} to {format_tok_per_s(1 / one.low_s)})")
        else:
            words = f"first token {format_seconds(one.measured_s)}, expected {format_seconds(one.expected_s)}"
            parts.append(f"{words} ({format_seconds(one.low_s)} to {format_seconds(one.high_s)})")
    return f"{event.n_done} of at most {event.n_most}, {event.label}: {'; '.join(reversed(parts))}"


def calibration_view(report: CalibrationReport) -> RenderableType:
    """The coefficients that runs showed, the runs left out one by one, and what follows from them."""
    unshown = [one for one in report.coefficients if not one.is_shown]
    label = standin_lines(report.stands_for, report.n_layer)
    parts: list[RenderableType] = [*label, Text(), _coefficients(report)]
    if unshown:
        names = dict.fromkeys(one.words for one in unshown)
        parts.append(Text(f"not shown by any run: {', '.join(names)}", style="dim"))
    parts += [Text(), _checks(report)] if report.checks else []
    parts += [Text(), *(Text(f"- {printable(word)}") for word in report.words)]
    parts += [Text(f"- Did not run: {printable(failure)}") for failure in report.failures]
    what = f"{format_count(report.n_passages, 'run')} of a prompt and a few tokens, "
    what += format_count(report.n_loads, "load")
    stopped = "stopped by you after" if report.is_interrupted else "in"
    parts.append(Text(f"{what}, {stopped} {format_seconds(report.duration_s)}", style="dim"))
    parts.append(Text(f"{_files(report)}; kept in {report.store_path}"))
    return Group(*parts)


def calibration_json(report: CalibrationReport) -> dict[str, Any]:
    """All of it; a coefficient's `per_s` is what it does in a second, null where it takes no time that shows."""
    value: dict[str, Any] = plain(report)
    for one, shown in zip(report.coefficients, value["coefficients"], strict=True):
        shown["per_s"] = 1 / one.seconds if one.seconds > 0 else None
    for check, shown in zip(report.checks, value["checks"], strict=True):
        shown["off_frac"] = check.off_frac
    value["path"], value["store_path"] = str(report.path), str(report.store_path)
    return value


def _coefficients(report: CalibrationReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("shown here")
    for title in ("is", "90 % range"):
        table.add_column(title, justify="right", no_wrap=True)
    for phase, words in _PHASES.items():
        shown = [one for one in report.coefficients if one.phase is phase and one.is_shown]
        for one in shown:
            table.add_row(f"{words}: {one.words}", *_rate(one))
    return table


def _rate(one: Coefficient) -> tuple[str, str]:
    """A coefficient and its range: rates from slow to fast, times of a count from short to long."""
    if one.seconds <= 0:
        return "no time that shows", ""
    if one.unit == "count":
        return format_seconds(one.seconds), f"{format_seconds(one.low_s)} to {format_seconds(one.high_s)}"
    words = format_bytes_per_s if one.unit == "bytes" else format_flop_per_s
    return words(1 / one.seconds), f"{words(1 / one.high_s)} to {words(1 / one.low_s)}"


def _checks(report: CalibrationReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("left out")
    for title in ("took", "the others say", "off", ""):
        table.add_column(title, justify="right", no_wrap=True)
    for one in report.checks:
        table.add_row(one.label, *_check(one))
    return table


def _check(one: RunCheck) -> tuple[str, str, str, str]:
    miss = "outside its range" if one.is_miss else ""
    return format_seconds(one.measured_s), format_seconds(one.expected_s), f"{one.off_frac:+.1%}", miss


def _files(report: CalibrationReport) -> str:
    devices = ", ".join(map(printable, report.devices)) or "the CPU alone"
    kept = format_count(report.n_timings, "timing")
    return f"predictions for files of mostly {printable(report.type_name)} on {devices} now rest on {kept}"

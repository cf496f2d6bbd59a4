"""A sweep of a model that is not here, for the terminal and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.records import Estimate
from offloadtune.report.json_values import plain, sweep_json
from offloadtune.report.standins import STANDIN_LIMITS
from offloadtune.report.terminal import settings_words, sweep_view, use_lines
from offloadtune.report.words import printable
from offloadtune.sweeps import Extrapolation, StandinReport, WholeFigures
from offloadtune.units import format_count, format_seconds, format_tok_per_s

_NOT_KNOWN = "not known"


def standin_sweep_view(report: StandinReport) -> RenderableType:
    """The answer of a stand-in of full size; else what two of fewer layers say of the whole."""
    if not report.depths:
        return sweep_view(report.sweep)
    return Group(*_whole_lines(report))


def _whole_lines(report: StandinReport) -> Iterator[RenderableType]:
    real = report.sweep.facts.stands_for
    named = printable(f"{real.label} {real.quantisation}") if real else "the model"
    shallow, deep = report.depths
    yield Text()
    yield Text(f"{named}: {format_count(report.n_layer, 'layer')}, of which stand-ins have {shallow} and {deep}")
    yield Text(f"not all of them: {printable(report.why_fewer)}")
    if not report.wholes:
        yield Text("- What the whole comes to was not reckoned.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "first token", "writing", "turn"):
        table.add_column(title, justify="left" if not title else "right")
    for whole in report.wholes:
        table.add_row(
            whole.name.replace("_", " "),
            _seconds(whole.ttft.whole_s),
            _rate(whole.token.whole_s),
            _seconds(whole.turn_s),
            style="bold" if whole is report.wholes[0] else None,
        )
    yield Text()
    yield table
    best = report.wholes[0]
    yield Text(settings_words(best.settings), style="bold")
    yield from (Text(f"- {line}") for line in _reasons(best))
    yield from use_lines(report.sweep.recommendation, report.apply_text)
    yield Text(f"journal of the stand-in's sweep: {report.sweep.journal_path}", style="dim")


def _reasons(whole: WholeFigures) -> Iterator[str]:
    for words, phase in (("The first token", whole.ttft), ("Writing", whole.token)):
        apart = f"{words} is reckoned in two ways, by layers and by bytes, which are {phase.apart_frac:.0%} apart"
        yield f"{apart}." if phase.whole_s else f"{apart}: too far to name a figure."
    if whole.no_room:
        yield "The figures are those that this machine would reach if it had room for the whole."
    yield f"A stand-in has random weights: it {STANDIN_LIMITS}."


def _seconds(estimate: Estimate | None) -> str:
    if estimate is None:
        return _NOT_KNOWN
    return f"{format_seconds(estimate.low)} to {format_seconds(estimate.high)}"


def _rate(estimate: Estimate | None) -> str:
    """Seconds per token as tokens per second."""
    if estimate is None:
        return _NOT_KNOWN
    return f"{format_tok_per_s(1 / estimate.high)} to {format_tok_per_s(1 / estimate.low)}"


def standin_sweep_json(report: StandinReport) -> dict[str, Any]:
    """The stand-in's sweep; of one with fewer layers what it says of the whole under `whole`, else null."""
    value = sweep_json(report.sweep)
    if not report.depths:
        return value | {"whole": None}
    wholes = {
        whole.name: {
            "settings": plain(whole.settings),
            "ttft_s": _extrapolation(whole.ttft),
            "token_s": _extrapolation(whole.token),
            "turn_s": plain(whole.turn_s),
            "no_room": whole.no_room,
        }
        for whole in report.wholes
    }
    about = {"n_layer": report.n_layer, "depths": list(report.depths), "why_fewer": report.why_fewer}
    return value | {"whole": about | {"figures": wholes, "apply": report.apply_text}}


def _extrapolation(phase: Extrapolation) -> dict[str, Any]:
    value: dict[str, Any] = plain(phase)
    return value

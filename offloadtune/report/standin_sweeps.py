"""A sweep of a model that is not here, for the terminal and as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from offloadtune.units import format_count, format_ratio, format_seconds, format_tok_per_s

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
    if report.wholes:
        yield from _figures_lines(report.wholes)
    yield from (Text(f"- {printable(note[0].upper() + note[1:])}.") for note in report.notes)
    if not report.wholes:
        yield Text(
            f"found for the stand-in of {deep} layers: {settings_words(report.sweep.recommendation.trial.settings)}"
        )
    else:
        yield Text(f"- A stand-in has random weights: it {STANDIN_LIMITS}.")
        if report.wholes[0].ttft.whole_s or report.wholes[0].token.whole_s:
            yield from use_lines(report.sweep.recommendation, report.apply_text)
    yield Text(f"journal of the stand-in's sweep: {report.sweep.journal_path}", style="dim")


def _figures_lines(wholes: Sequence[WholeFigures]) -> Iterator[RenderableType]:
    """What the whole comes to, row by row, and what is to be known of it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "first token", "writing", "turn"):
        table.add_column(title, justify="left" if not title else "right")
    for whole in wholes:
        table.add_row(
            _row_words(whole),
            _seconds(whole.ttft.whole_s),
            _rate(whole.token.whole_s),
            _seconds(whole.turn_s),
            style="bold" if whole is wholes[0] else None,
        )
    yield Text()
    yield table
    yield Text(settings_words(wholes[0].settings), style="bold")
    for whole in wholes:
        if whole is not wholes[0]:
            yield Text(f"- {_against(whole, wholes[0])}")
        yield from (Text(f"- {line}") for line in _reasons(whole))


def _row_words(whole: WholeFigures) -> str:
    return whole.name.replace("_", " ")


def _against(other: WholeFigures, ours: WholeFigures) -> str:
    """Whether the ranges of a turn lie apart, and how far."""
    name = _row_words(other)
    if other.turn_s is None or ours.turn_s is None:
        return f"Against {name}: not known."
    low, high = other.turn_s.low / ours.turn_s.high, other.turn_s.high / ours.turn_s.low
    if low > 1:
        return f"Against {name}: a turn takes {format_ratio(low)} to {format_ratio(high)} as long there."
    words = "it is quicker" if high < 1 else "no difference is sure"
    return f"Against {name}: {words}, a turn takes {format_ratio(low)} to {format_ratio(high)} as long there."


def _reasons(whole: WholeFigures) -> Iterator[str]:
    name = _row_words(whole).capitalize()
    for words, phase in (("first token", whole.ttft), ("writing", whole.token)):
        if phase.whole_s is None:
            apart = f"{phase.apart_frac:.0%} apart" if math.isfinite(phase.apart_frac) else "apart by any measure"
            yield f"{name}, {words}: by layers and by bytes it would be {apart}, too far to name a figure."
    if phases := [phase.apart_frac for phase in (whole.ttft, whole.token) if phase.whole_s]:
        yield f"{name}: reckoned by layers and by bytes, which are up to {max(phases):.0%} apart."
    if whole.no_room:
        yield f"{name}: this machine has no room for it ({whole.no_room}); so it would be if it had."


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
    about: dict[str, Any] = {"n_layer": report.n_layer, "depths": list(report.depths), "why_fewer": report.why_fewer}
    about["notes"] = list(report.notes)
    return value | {"whole": about | {"figures": wholes, "apply": report.apply_text}}


def _extrapolation(phase: Extrapolation) -> dict[str, Any]:
    value: dict[str, Any] = plain(phase)
    return value

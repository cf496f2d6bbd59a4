"""What is shown of stored sweeps: an answer recalled, and the history of all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.recalls import JournalSummary, RecallReport, UnreadableJournal
from offloadtune.report.terminal import answer_lines, headline, use_lines
from offloadtune.units import format_count


def recall_view(report: RecallReport) -> RenderableType:
    """The answer as a sweep gives it, and what it rests on."""
    return Group(
        *answer_lines(report.recommendation, report.baselines, report.n_steps, report.skipped),
        *(Text(f"- {note}") for note in report.notes),
        *use_lines(report.recommendation, report.apply_text),
        Text(_basis_words(report.rests_on), style="dim"),
    )


def history_view(journals: Sequence[JournalSummary | UnreadableJournal]) -> RenderableType:
    """One row of two lines for each journal."""
    if not journals:
        return Text("Nothing was measured yet: offloadtune sweep FILE")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("when", "what", "best", "on"):
        table.add_column(title, overflow="fold")
    for one in journals:
        table.add_row(*(_unreadable_cells(one) if isinstance(one, UnreadableJournal) else _cells(one)))
    return table


def _cells(one: JournalSummary) -> tuple[str, str, str, str]:
    mark = "interrupted" if one.is_interrupted else "measured anew since" if one.was_put_aside else ""
    workload = one.workload
    numbers = f"{workload.n_prefix_cached}/{workload.n_prompt_new}/{workload.n_gen}/{workload.n_parallel}"
    name = "" if workload.name == numbers else f"{workload.name} "
    return (
        f"{_when(one.written_at)}\n{mark}",
        f"{one.gguf_path.name}\n{name}{numbers}, {one.goal}, {one.target}, n_ctx {one.n_ctx}",
        f"{headline(one.best) if one.best else 'no answer yet'}\n{_trial_words(one)}",
        f"{one.engine_version}\n{one.machine_id}",
    )


def _unreadable_cells(one: UnreadableJournal) -> tuple[str, str]:
    return _when(one.written_at), f"unreadable: {one.reason}"


def _basis_words(rests_on: JournalSummary) -> str:
    on = f"on {rests_on.machine_id} with {rests_on.engine_version}"
    return f"measured {_when(rests_on.written_at)} {on}: {_trial_words(rests_on)}; {rests_on.path}"


def _trial_words(one: JournalSummary) -> str:
    return f"{format_count(one.n_ok, 'trial')} ok, {one.n_failed} failed, {format_count(one.n_rounds, 'round')}"


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"

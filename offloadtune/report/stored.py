"""What is shown of stored sweeps: an answer recalled, and the history of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.recalls import JournalSummary, RecallReport, UnreadableJournal
from offloadtune.report.around import explanation_lines, front_lines
from offloadtune.report.standins import STANDIN_LIMITS, standin_lines, standin_words
from offloadtune.report.terminal import answer_lines, headline, use_lines
from offloadtune.report.words import printable


def recall_view(report: RecallReport) -> RenderableType:
    """The answer as a sweep gives it, and what it rests on."""
    return Group(
        *standin_lines(report.stands_for, report.n_layer),
        *answer_lines(report.recommendation, report.baselines, report.n_steps, report.skipped),
        *(Text(f"- {printable(note)}") for note in report.notes),
        *front_lines(report.front),
        *explanation_lines(report.explanation, report.recommendation.goal),
        *use_lines(report.recommendation, report.apply_text),
        Text(printable(report.rests_on.basis_words), style="dim"),
    )


def history_view(journals: Sequence[JournalSummary | UnreadableJournal], name: str | None = None) -> RenderableType:
    """One row of two lines for each journal, three for a stand-in's: all, or those of the file called `name`."""
    if not journals and name:
        return Text(f"Nothing was measured of {printable(name)}; `offloadtune history` lists everything.")
    if not journals:
        return Text("Nothing was measured yet: offloadtune sweep FILE")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("when", "what", "best", "on"):
        table.add_column(title, overflow="fold")
    for one in journals:
        cells = _unreadable_cells(one) if isinstance(one, UnreadableJournal) else _cells(one)
        table.add_row(*("\n".join(map(printable, lines)) for lines in cells))
    if any(isinstance(one, JournalSummary) and one.stands_for for one in journals):
        return Group(table, Text(f"A stand-in {STANDIN_LIMITS}.", style="dim"))
    return table


def _cells(one: JournalSummary) -> Iterator[tuple[str, ...]]:
    yield _when(one.written_at), _mark(one)
    words = standin_words(one.stands_for, one.n_layer)
    yield one.gguf_path.name, *([words] if words else []), one.question_words
    yield headline(one.best) if one.best else _no_answer_words(one), one.trial_words
    yield one.engine_version, one.machine_id


def _mark(one: JournalSummary) -> str:
    if one.is_under_way:
        return "being measured"
    return "interrupted" if one.is_interrupted else "measured anew since" if one.was_put_aside else ""


def _no_answer_words(one: JournalSummary) -> str:
    return "not finished" if one.is_interrupted and one.n_ok + one.n_failed else "no answer yet"


def _unreadable_cells(one: UnreadableJournal) -> Iterator[tuple[str, ...]]:
    yield (_when(one.written_at),)
    yield (f"unreadable: {one.reason}",)


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"

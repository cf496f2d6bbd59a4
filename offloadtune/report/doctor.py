"""What the doctor says: the ladder of bandwidths, what holds the machine back, and what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.hardware import Diagnosis, Finding, Medium, Severity
from offloadtune.report.json_values import plain
from offloadtune.report.terminal import facts_table
from offloadtune.report.words import printable
from offloadtune.units import format_bytes, format_bytes_per_s, format_count, format_tok_per_s

_STYLES = {Severity.PROBLEM: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
_LEGEND = "usual: what media of this class reach; prompts, writing: how good it is for reading and for the answer"
_CEILING = (
    "at most: tokens a second if all of the {} of this file that a token reads came from there, by what was measured"
)


def doctor_view(said: Diagnosis) -> RenderableType:
    profile = said.examination.profile
    facts = facts_table()
    is_asked = profile.machine.devices is not None  # without them nobody knows what the machine is called
    without = "not asked" if said.examination.measured_now else "none that runs"
    facts.add_row("machine", printable(profile.machine.machine_id) if is_asked else "not known without the engine")
    facts.add_row("engine", printable(profile.engine.version) if profile.engine else without)
    lines: list[RenderableType] = [facts, Text(), _ladder_table(said.ladder), Text(_LEGEND, style="dim")]
    if said.bytes_per_token and any(one.decode_ceiling_tok_per_s for one in said.ladder):
        lines.append(Text(_CEILING.format(format_bytes(said.bytes_per_token)), style="dim"))
    lines += [Text(), *_finding_lines(said.findings), *_change_lines(said.changes)]
    lines += [Text(printable(words), style="dim") for words in _unknown(said)]
    if said.machine_path:
        lines.append(Text(f"machine: {printable(str(said.machine_path))}"))
    return Group(*lines)


def doctor_json(said: Diagnosis) -> dict[str, Any]:
    """Everything the doctor saw and said; `changes` is null where nothing was compared."""
    examined, machine = said.examination, said.examination.profile.machine
    return {
        "machine_id": machine.machine_id if machine.devices is not None else None,
        **plain(examined.profile),
        "disks": plain(examined.disks),
        "ladder": plain(said.ladder),
        "bytes_per_token": said.bytes_per_token,
        "findings": plain(said.findings),
        "changes": plain(said.changes),
        "machine_path": str(said.machine_path) if said.machine_path else None,
    }


def finding_words(findings: Sequence[Finding]) -> str:
    """How many of each weight, in words: "1 problem, 2 warnings"; "" where there is none."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(format_count(counts[one], one.value) for one in _STYLES if counts[one])


def _ladder_table(ladder: Sequence[Medium]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    has_ceiling = any(one.decode_ceiling_tok_per_s for one in ladder)
    right = {"usual", "measured", "at most"}
    for title in ("bandwidth of", "class", "usual", "measured", "prompts", "writing", *(["at most"] * has_ceiling)):
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for one in ladder:
        cells: list[RenderableType] = [printable(one.name), printable(one.class_name)]
        cells += [_range(*one.class_bytes_per_s), _measured(one), one.fitness_prefill, one.fitness_decode]
        if has_ceiling:
            ceiling = one.decode_ceiling_tok_per_s
            cells.append(format_tok_per_s(ceiling) if ceiling else "")
        table.add_row(*cells)
    return table


def _range(low: float, high: float) -> str:
    return f"{format_bytes_per_s(low).removesuffix(' GB/s')} to {format_bytes_per_s(high)}"


def _measured(one: Medium) -> Text:
    if one.bytes_per_s is None:
        return Text("not measured", style="dim")
    low, high = one.class_bytes_per_s
    style = "yellow" if one.bytes_per_s < low else "green" if one.bytes_per_s >= (low + high) / 2 else ""
    return Text(format_bytes_per_s(one.bytes_per_s), style=style)


def _finding_lines(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    if not findings:
        yield Text("Nothing that can be seen from here holds this machine back.", style="green")
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        words = Text(printable(one.words), style="bold")
        table.add_row(Text(one.severity.value, style=_STYLES[one.severity]), words)
        table.add_row("", Text(printable(one.evidence), style="dim"))
        table.add_row("", Text(f"next: {printable(one.next_step)}"))
    yield table
    yield Text(f"{finding_words(findings)} found")


def _change_lines(changes: Sequence[str] | None) -> Iterator[Text]:
    if changes is None:
        return
    yield Text()
    yield Text("Changed since then:" if changes else "Nothing changed since then.", style="bold")
    yield from (Text(f"- {printable(one)}") for one in changes)


def _unknown(said: Diagnosis) -> Iterator[str]:
    """What was not measured or could not be read, and how it could."""
    profile = said.examination.profile
    notes = [note for note in profile.machine.host.notes if note.subject == "ram.read_bytes_per_s"]
    notes += [note for disk in said.examination.disks for note in disk.notes]
    yield from (f"{note.subject}: {note.reason}" for note in notes)
    yield from (f"{speed.device}: {speed.reason}" for speed in profile.device_speeds if speed.reason)
    yield from profile.hardware.root_would_add

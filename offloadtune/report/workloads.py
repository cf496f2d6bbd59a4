"""Workloads from life for the terminal and as JSON values."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offloadtune.records import Workload
from offloadtune.report.words import printable
from offloadtune.units import format_count
from offloadtune.workloads import RequestKind, Tally, WorkloadReport, WorkloadRule

_KINDS = {
    RequestKind.REQUEST: "of chat or completion",
    RequestKind.TIMINGS: "with a server's timings",
    RequestKind.PROMPT: "of the prompt alone",
}


def workload_view(report: WorkloadReport) -> RenderableType:
    """How long the requests were, what that says, the workload made of them and how to use it."""
    found = report.tally
    kinds = ", ".join(f"{n} {_KINDS[kind]}" for kind, n in found.kinds)
    return Group(
        Text(f"{printable(report.label)}: {format_count(found.n_requests, 'request')} ({kinds})", style="bold"),
        *_skipped_lines(found),
        Text(),
        _lengths_table(found),
        Text(),
        Text(_long_words(report)),
        Text(),
        Text(f"workload {_numbers(report.workload)} (cached/new/generated/sequences)", style="bold"),
        *([] if report.rule is WorkloadRule.P95 else [Text(f"by P95   {_numbers(report.by_p95)}", style="dim")]),
        *(Text(f"- {reason}", style="dim") for reason in report.reasons),
        Text(),
        *_use_lines(report),
    )


def workload_json(report: WorkloadReport) -> dict[str, Any]:
    """The same; what no request says is null."""
    found = report.tally
    skipped = found.first_skipped
    return {
        "log": printable(report.label),
        "n_requests": found.n_requests,
        "kinds": {kind.value: n for kind, n in found.kinds},
        "n_skipped_lines": found.n_skipped,
        "first_skipped": dataclasses.asdict(skipped) if skipped else None,
        "chars_per_token": report.chars_per_token,
        "n_prompts_estimated": found.n_estimated,
        "n_outputs_estimated": found.n_outputs_estimated,
        "seen_chars_per_token": found.seen_chars_per_token,
        "tokens": {key: dataclasses.asdict(one) if one else None for key, _, one in _rows(found)},
        "long_tokens": found.long_tokens,
        "n_long": found.n_long,
        "is_long": found.is_long,
        "rule": report.rule.value,
        "workload": _workload_json(report.workload),
        "workload_by_p95": _workload_json(report.by_p95),
        "n_ctx": report.n_ctx,
        "reasons": list(report.reasons),
        "written_to": str(report.written_to) if report.written_to else None,
    }


def _long_words(report: WorkloadReport) -> str:
    """Whether long requests are many, and what is to be tuned then."""
    found = report.tally
    n, long = found.n_requests, found.n_long
    share = f"{long} of {format_count(n, 'request')} ({100 * long / n:.1f} %)"
    verb = "exceeds" if long == 1 else "exceed"
    about = ", as estimated" if found.n_estimated or found.n_outputs_estimated else ""
    if found.is_long:
        way = "" if report.rule is WorkloadRule.P95 else " --rule p95 makes the workload one of the long ones."
        return (
            f"{share} {verb} {found.long_tokens} tokens{about}, more than 10 %: "
            f"attention and context are what to tune, not the cache.{way}"
        )
    return (
        f"{share} {verb} {found.long_tokens} tokens{about}, not more than 10 %: long contexts are not what to tune for."
    )


def _rows(found: Tally) -> tuple[tuple[str, str, Any], ...]:
    return (
        ("prompt", "prompt", found.prompt),
        ("shared_prefix", "  shared prefix", found.shared),
        ("new", "  new", found.fresh),
        ("output", "output", found.output),
        ("prompt_and_output", "prompt and output", found.turn),
    )


def _lengths_table(found: Tally) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tokens")
    for title in ("requests", "least", "median", "P95", "most"):
        table.add_column(title, justify="right")
    for _, title, one in _rows(found):
        known = (one.n_requests, one.low, one.p50, one.p95, one.high) if one else (0, *["unknown"] * 4)
        table.add_row(title, *map(str, known))
    return table


def _skipped_lines(found: Tally) -> Iterator[Text]:
    if found.first_skipped:
        lines = format_count(found.n_skipped, "line")
        first = found.first_skipped
        yield Text(f"{lines} skipped, the first is line {first.number}: {first.reason}.", style="yellow")


def _use_lines(report: WorkloadReport) -> Iterator[Text]:
    words = printable(shlex.quote(str(report.written_to))) if report.written_to else _numbers(report.workload)
    yield Text(f"A context of {report.n_ctx} holds the longest request of the log.")
    yield Text(f"  offloadtune sweep FILE --workload {words} --n-ctx {report.n_ctx}")


def _numbers(workload: Workload) -> str:
    return f"{workload.n_prefix_cached}/{workload.n_prompt_new}/{workload.n_gen}/{workload.n_parallel}"


def _workload_json(workload: Workload) -> dict[str, Any]:
    value = dataclasses.asdict(workload)
    del value["name"]
    return value

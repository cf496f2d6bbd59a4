"""Gathering a workload from a log of real requests."""

from __future__ import annotations

import math
from pathlib import Path

from offloadtune import export, lengths, logs
from offloadtune.errors import UsageError
from offloadtune.pipeline.using import write_export
from offloadtune.sweeps import Listener
from offloadtune.units import format_count
from offloadtune.workloads import SkippedLine, WorkloadReport, WorkloadRequest, WorkloadRule


def gather_workload(request: WorkloadRequest, listen: Listener) -> WorkloadReport:
    """What a log says, and its workload, written where that was asked for.

    Raises UsageError where no line of it is a request, ExportError.
    """
    path, chars_per_token, output = request.path, request.chars_per_token, request.output
    if not (math.isfinite(chars_per_token) and 0.1 <= chars_per_token <= 100):
        raise UsageError("--chars-per-token must be from 0.1 to 100.", hint="leave it out for 4, as of English text")
    if output is not None and _is_same(path, output):
        raise UsageError(f"--output {str(output)!r} is the log itself and stays as it is.", hint="name another file")
    label = "stdin" if str(path) == "-" else path.name
    found = lengths.tally(logs.read_log(path, chars_per_token))
    if not found.n_requests:
        raise _no_request(label, found.n_skipped, found.first_skipped)
    workload, by_p95 = (
        lengths.choose_workload(found, rule, request.n_parallel) for rule in (request.rule, WorkloadRule.P95)
    )
    reasons = lengths.reasons_for(found, request.rule, chars_per_token)
    if output is not None:
        write_export(output, export.render_workload(workload, reasons), listen)
    return WorkloadReport(
        label=label,
        tally=found,
        chars_per_token=chars_per_token,
        rule=request.rule,
        workload=workload,
        by_p95=by_p95,
        n_ctx=lengths.context_for(found, workload),
        reasons=reasons,
        written_to=output,
    )


def _is_same(path: Path, output: Path) -> bool:
    try:
        return output.samefile("/dev/stdin" if str(path) == "-" else path)
    except (OSError, ValueError):
        return False


def _no_request(label: str, n_skipped: int, first: SkippedLine | None) -> UsageError:
    if first is None:
        return UsageError(f"{label!r} is empty.", hint="give it requests as JSON lines, or prompts, one a line")
    message = (
        f"No line of {label!r} is a request: {format_count(n_skipped, 'line')} skipped, "
        f"the first is line {first.number}: {first.reason}."
    )
    return UsageError(message, hint='write a request a line, like {"messages": [...]}, or a prompt a line')

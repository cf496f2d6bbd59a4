"""Nouns of workloads from life: what a log of real requests says of their lengths, all in tokens.

Floor 0: standard library and records only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from offloadtune.records import Workload


class RequestKind(StrEnum):
    """What one line of a log is."""

    REQUEST = "request"
    TIMINGS = "timings"
    PROMPT = "prompt"


class WorkloadRule(StrEnum):
    """Which length of all those in a log a workload takes."""

    MEDIAN = "median"
    P95 = "p95"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """What is asked of the log at `path`, "-" for stdin. `output` is where the workload is to be written.

    `n_parallel` requests are served at once, which no log is asked for.
    """

    path: Path
    rule: WorkloadRule = WorkloadRule.MEDIAN
    n_parallel: int = 1
    chars_per_token: float = 4.0
    output: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request. `n_shared` tokens of its prompt begin an earlier one's too, or were found in the server's cache.

    None is what the line does not say. `is_estimated` where the prompt was counted by its characters, and
    `is_output_estimated` where the output was; `n_chars` of the prompt are None where its text is not there.
    `is_partial` where only the tokens that were not cached are known. `has_media` where it holds more than text.
    """

    kind: RequestKind
    n_prompt: int
    n_shared: int | None = None
    n_output: int | None = None
    n_chars: int | None = None
    is_estimated: bool = False
    is_output_estimated: bool = False
    is_partial: bool = False
    has_media: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLine:
    """A line of a log that is no request; `reason` is a clause that holds none of its text."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of one length over `n_requests`; quantiles are lengths that occurred.

    Quantiles are exact below 16384 tokens, and at most one part in 8192 too small above; `low` and `high` are exact.
    """

    n_requests: int
    low: int
    p50: int
    p95: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A whole log. Distributions are None where no request says that length.

    `turn` is prompt and output together, the prompt alone where the output is not known. `n_long` turns exceed
    `long_tokens`. `seen_chars_per_token` is that of the requests that have both their text and its count.
    """

    n_requests: int
    kinds: tuple[tuple[RequestKind, int], ...]
    n_estimated: int
    n_outputs_estimated: int
    n_partial: int
    n_media: int
    n_skipped: int
    first_skipped: SkippedLine | None
    prompt: Lengths | None
    shared: Lengths | None
    fresh: Lengths | None
    output: Lengths | None
    turn: Lengths | None
    n_long: int
    long_tokens: int
    is_long: bool
    seen_chars_per_token: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReport:
    """What a log says, and the workload made of it by `rule`.

    `by_p95` is what P95 would make of it. `n_ctx` holds the longest request in each sequence. `reasons` say where the
    numbers come from, one sentence each. `written_to` is the file of the workload, None where none was asked for.
    """

    label: str
    tally: Tally
    chars_per_token: float
    rule: WorkloadRule
    workload: Workload
    by_p95: Workload
    n_ctx: int
    reasons: tuple[str, ...]
    written_to: Path | None = None

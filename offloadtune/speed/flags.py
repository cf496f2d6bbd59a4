"""Measured speeds that cannot be what they seem: above the roofline, or far below what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from offloadtune.records import TrialResult, Visit
from offloadtune.units import format_tok_per_s

_ABOVE_FRAC = 1.1
"""A clock and a data sheet may differ by a tenth."""

_BELOW_FRAC = 0.5
"""Of the least that was expected: slower than this has a cause that the law does not know."""


def strange(result: TrialResult, visits: Sequence[Visit]) -> tuple[str, ...]:
    """What is to be doubted of the figures of `visits`, those of `result` that count; full sentences.

    Too fast: a prompt that was in the cache already, speculation, another file. Too slow: weights that a driver moved
    to main memory, a hot processor, the wrong backend. `result` must hold what was expected of it.
    """
    expected = result.expected
    if expected is None or not visits:
        return ()
    reads = median(visit.prefill_tok_per_s for visit in visits)
    writes = median(1.0 / visit.token_s for visit in visits)
    n_prompt = visits[0].n_prompt_new
    ttft = expected.ttft_s
    low_reads = n_prompt / ttft.high
    return (
        *_doubts("reads", reads, expected.bound_prefill_tok_per_s, low_reads),
        *_doubts("writes", writes, expected.bound_tok_per_s, expected.decode_tok_per_s.low),
    )


def _doubts(verb: str, rate: float, bound: float | None, low: float) -> Iterator[str]:
    shown = format_tok_per_s(rate)
    if bound is not None and rate > _ABOVE_FRAC * bound:
        yield (
            f"It {verb} {shown}, and memory and links allow {format_tok_per_s(bound)} at most: something else was "
            "measured (a prompt kept in the cache, speculation, another file)."
        )
    elif rate < _BELOW_FRAC * low:
        yield (
            f"It {verb} {shown}, and at least {format_tok_per_s(low)} was expected: memory of the device may have been "
            "moved to main memory by its driver, the clock be held down by heat, or the wrong backend be at work."
        )

"""Measured speeds that cannot be what they seem: above the roofline, or far below what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from offloadtune.records import Basis, TrialResult, Visit
from offloadtune.units import format_tok_per_s

_ABOVE_FRAC = 1.1
"""A clock and a data sheet may differ by a tenth."""

_BELOW_FRAC = 0.5
"""Of the least that was expected: slower than this has a cause that the law does not know."""

_WHY_SLOW = {
    True: "the driver may have moved memory of the device to main memory, heat may hold the clock down, or the wrong "
    "backend be at work",
    False: "heat may hold the clock down, or another program the cores",
}
"""By whether a device is at work."""


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
    ttft, decode = expected.ttft_s, expected.decode_tok_per_s
    # runs showed it, or a data sheet: of a processor none says what it computes at best
    least_reads = visits[0].n_prompt_new / ttft.high if ttft.basis is Basis.CALIBRATED else 0.0
    is_known = decode.basis is Basis.CALIBRATED or expected.bound_tok_per_s is not None
    why_slow = _WHY_SLOW[result.trial.settings.offloads]
    return (
        *_doubts("reads", reads, expected.bound_prefill_tok_per_s, least_reads, why_slow),
        *_doubts("writes", writes, expected.bound_tok_per_s, decode.low if is_known else 0.0, why_slow),
    )


def _doubts(verb: str, rate: float, bound: float | None, least: float, why_slow: str) -> Iterator[str]:
    shown = format_tok_per_s(rate)
    if bound is not None and rate > _ABOVE_FRAC * bound:
        yield (
            f"It {verb} {shown}, and memory and links allow {format_tok_per_s(bound)} at most: something else was "
            "measured (a prompt kept in the cache, speculation, another file)."
        )
    elif rate < _BELOW_FRAC * least:
        yield (f"It {verb} {shown}, and at least {format_tok_per_s(least)} was expected: {why_slow}.")

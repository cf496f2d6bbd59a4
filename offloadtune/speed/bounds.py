"""The roofline: what no run of a placement can exceed, because each byte must be read and each product computed.

    step [s] >= sum over places of  bytes of weights and cache / peak bandwidth       (places take turns)
    prompt [s] >= sum over devices of  max(flop / peak rate, bytes / peak bandwidth)
                  + streamed bytes / peak of the link + bytes of host blocks / peak bandwidth of main memory

A measurement above the bound did something else: a cached prompt, speculation, another file. What lies in a cache is
read faster than memory, so there is no bound where most of a place's bytes do.
"""

from __future__ import annotations

import numpy as np

from offloadtune.speed.terms import Floats, terms_of
from offloadtune.speeds import DeviceRates, Phase, Rig

_CACHED_TIMES = 2.0
"""A place with less than so many times its largest cache may be read from there."""

_MEASURED_MARGIN = 1.25
"""A bandwidth that was measured, not promised, may be exceeded by so much."""


def least_seconds(phase: Phase, amounts: Floats, rig: Rig) -> Floats:
    """The bound on the seconds of each query, shape (n_queries,), for `amounts` (n_terms, n_queries).

    NaN where a place that has work says neither what it reads at best nor can be left out. Rates of computing that
    nobody says are left out, which loosens the bound but keeps it one.
    """
    row = {term.name: amounts[i] for i, term in enumerate(terms_of(phase, len(rig.devices)))}
    total = np.zeros(amounts.shape[1])
    host_peak = rig.host.peak_bytes_per_s or (rig.host.read_bytes_per_s or 0.0) * _MEASURED_MARGIN or None
    places = [(str(i), one.read_bytes_per_s, one.last_level_bytes) for i, one in enumerate(rig.devices)]
    for place, peak, cache in (*places, ("host", host_peak, rig.host.last_level_bytes)):
        n_bytes = row[f"{place}.weights"]
        if phase is Phase.DECODE:
            n_bytes = n_bytes + row[f"{place}.cache"] + row[f"{place}.plain_cache"]
        seconds = n_bytes / peak if peak else np.where(n_bytes > 0, np.nan, 0.0)
        seconds = np.where((n_bytes > 0) & (n_bytes < _CACHED_TIMES * (cache or 0)), np.nan, seconds)
        flop_peak = None if place == "host" else _peak_of(rig.devices[int(place)])
        if phase is Phase.PREFILL and flop_peak:
            seconds = np.maximum(seconds, (row[f"{place}.flop"] + row[f"{place}.attention"]) / flop_peak)
        total = total + seconds
    link_peak = rig.devices[0].link_bytes_per_s if rig.devices else None
    streamed = sum(row[name] for name in ("link", "link_pinned", "link_pageable") if name in row)
    return total + (streamed / link_peak if link_peak else 0.0)


def _peak_of(device: DeviceRates) -> float | None:
    """Products a second in whichever precision is faster: llama.cpp multiplies quantised weights as 8-bit numbers."""
    return max(device.flop_per_s or 0.0, device.int8_op_per_s or 0.0) or None

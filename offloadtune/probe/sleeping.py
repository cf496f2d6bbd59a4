"""How long the machine was suspended: two of its clocks, of which one stands still meanwhile."""

from __future__ import annotations

import ctypes
import sys
import time

_TICKS_PER_S = 10_000_000
"""Windows counts in steps of 100 ns."""


def slept_s() -> float | None:
    """Seconds of suspension since the machine started, or a fixed number more; None where it does not tell."""
    try:
        if sys.platform == "win32":
            return _slept_on_windows_s()
        if sys.platform == "darwin":
            return time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - time.clock_gettime(time.CLOCK_UPTIME_RAW)
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    except (AttributeError, OSError):
        return None


def _slept_on_windows_s() -> float:
    library = getattr(ctypes, "windll").kernel32  # noqa: B009 - only there
    awake, since_start = ctypes.c_ulonglong(), ctypes.c_ulonglong()
    library.QueryUnbiasedInterruptTime(ctypes.byref(awake))
    library.GetTickCount64.restype = ctypes.c_ulonglong
    since_start.value = library.GetTickCount64() * (_TICKS_PER_S // 1000)
    return (since_start.value - awake.value) / _TICKS_PER_S

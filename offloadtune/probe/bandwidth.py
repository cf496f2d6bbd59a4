"""How fast this machine reads and copies main memory, with one thread and with more.

Reading is what generating a token costs, so reading is what counts; a copy is told beside it. The maximum of integers
is bound by memory where a sum is bound by arithmetic, and numpy lets other threads run meanwhile.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from offloadtune.hardware import MemorySpeed
from offloadtune.units import GIB, MIB

N_PASSES = 5
N_PASSES_LEAST = 2
ENOUGH_NS = 300_000_000
LEAST_CACHE_MULTIPLE = 4
LEAST_BYTES = 128 * MIB
LEAST_BYTES_PER_THREAD = 16 * MIB
MOST_BYTES_PER_THREAD = GIB
START_DEADLINE_S = 2.0

_Cells = np.ndarray[Any, np.dtype[np.int64]]
_Move = Callable[[_Cells], object]
"""Moves as many bytes as the array has."""


def bytes_to_read(n_threads: int, l3_bytes: int | None, most_bytes: int) -> int | None:
    """Size of the arrays, all threads together; None when `most_bytes` would measure the caches instead.

    At four times the third-level cache a virtual EPYC still reads a tenth too fast, at eight times it does not.
    """
    least = max(LEAST_BYTES, LEAST_BYTES_PER_THREAD * n_threads, LEAST_CACHE_MULTIPLE * (l3_bytes or 0))
    return min(2 * least, most_bytes) if most_bytes >= least else None


def measure_read(n_threads: int, n_bytes: int) -> float | None:
    """Bytes per second that `n_threads` read together, None when memory or threads ran out."""
    speeds = _measure(n_threads, n_bytes, (_read,))
    return speeds[0] if speeds else None


def measure_speeds(
    n_threads_most: int, l3_bytes: int | None, most_bytes: int, deadline: float = math.inf
) -> tuple[MemorySpeed, ...]:
    """The speeds of 1, 2, 4, ... and `n_threads_most` threads, without those that memory or threads do not allow.

    `deadline` is of time.monotonic(). All threads are timed whatever it says; fewer are where as much time is left as
    any took so far.
    """
    speeds: list[MemorySpeed] = []
    longest_s = 0.0
    for n_threads in _most_telling_first(n_threads_most):
        n_bytes = bytes_to_read(n_threads, l3_bytes, most_bytes)
        if n_bytes is None:
            continue
        started_s = time.monotonic()
        if speeds and started_s + longest_s > deadline:
            break
        # caches that large are split among the cores: few threads have but a part of them
        found = _measure(n_threads, min(n_bytes, n_threads * MOST_BYTES_PER_THREAD), (_read, _copy))
        if found:
            read, copy = found
            speeds.append(MemorySpeed(n_threads=n_threads, read_bytes_per_s=read, copy_bytes_per_s=copy))
        longest_s = max(longest_s, time.monotonic() - started_s)
    return tuple(sorted(speeds, key=lambda one: one.n_threads))


def _most_telling_first(n_most: int) -> tuple[int, ...]:
    """All threads, one, and then the powers of two between from above: whether half of the threads are as fast."""
    between = (1 << i for i in reversed(range(1, (n_most - 1).bit_length())))
    return (n_most, *([1] if n_most > 1 else []), *between)


def _read(cells: _Cells) -> object:
    return cells.max()


def _copy(cells: _Cells) -> None:
    half = len(cells) // 2
    np.copyto(cells[:half], cells[half : 2 * half])


def _measure(n_threads: int, n_bytes: int, moves: tuple[_Move, ...]) -> tuple[float, ...] | None:
    """Bytes per second of each of `moves` by all threads together, None when memory or threads ran out.

    Each thread goes over its own share several times; the sum of the threads' median speeds leaves out the ragged
    start and end, where not all of them are running.
    """
    start = threading.Barrier(n_threads, timeout=START_DEADLINE_S)
    share = n_bytes // n_threads
    try:
        with ThreadPoolExecutor(n_threads) as pool:
            by_thread = list(pool.map(lambda _: _move_share(share, moves, start), range(n_threads)))
    except (MemoryError, RuntimeError):  # RuntimeError: no new thread, or the barrier broke because of one
        return None
    return tuple(map(sum, zip(*by_thread, strict=True)))


def _move_share(n_bytes: int, moves: tuple[_Move, ...], start: threading.Barrier) -> list[float]:
    # written, not only allocated: untouched pages are all one page of zeros, which stays in the cache; and written
    # here, so that the pages lie in the memory next to this thread
    cells = np.ones(n_bytes // 8, dtype=np.int64)
    speeds = []
    for move in moves:
        start.wait()
        speeds.append(cells.nbytes / (_median_ns(move, cells) / 1e9))
    return speeds


def _median_ns(move: _Move, cells: _Cells) -> float:
    durations_ns: list[int] = []
    while len(durations_ns) < N_PASSES_LEAST or (len(durations_ns) < N_PASSES and sum(durations_ns) < ENOUGH_NS):
        started_ns = time.perf_counter_ns()
        move(cells)
        durations_ns.append(time.perf_counter_ns() - started_ns)
    return statistics.median(durations_ns)

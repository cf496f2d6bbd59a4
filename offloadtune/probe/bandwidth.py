"""How fast this machine reads main memory with all its cores at once.

Reading is what generating a token costs, so reading is what is timed: copying would count its writes too. The
maximum of integers is bound by memory where a sum is bound by arithmetic, and numpy lets other threads run meanwhile.
"""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from offloadtune.units import MIB

N_PASSES = 5
LEAST_CACHE_MULTIPLE = 4
LEAST_BYTES = 128 * MIB
LEAST_BYTES_PER_THREAD = 16 * MIB
START_DEADLINE_S = 2.0


def bytes_to_read(n_threads: int, l3_bytes: int | None, most_bytes: int) -> int | None:
    """Size of the arrays, all threads together; None when `most_bytes` would measure the caches instead.

    At four times the third-level cache a virtual EPYC still reads a tenth too fast, at eight times it does not.
    """
    least = max(LEAST_BYTES, LEAST_BYTES_PER_THREAD * n_threads, LEAST_CACHE_MULTIPLE * (l3_bytes or 0))
    return min(2 * least, most_bytes) if most_bytes >= least else None


def measure_read(n_threads: int, n_bytes: int) -> float | None:
    """Bytes per second that `n_threads` read together, None when memory or threads ran out.

    Each thread goes over its own share several times; the sum of the threads' median speeds leaves out the ragged
    start and end, where not all of them are running.
    """
    start = threading.Barrier(n_threads, timeout=START_DEADLINE_S)
    share = n_bytes // n_threads
    try:
        with ThreadPoolExecutor(n_threads) as pool:
            return sum(pool.map(lambda _: _read_share(share, start), range(n_threads)))
    except (MemoryError, RuntimeError):  # RuntimeError: no new thread, or the barrier broke because of one
        return None


def _read_share(n_bytes: int, start: threading.Barrier) -> float:
    # written, not only allocated: untouched pages are all one page of zeros, which stays in the cache; and written
    # here, so that the pages lie in the memory next to this thread
    cells = np.ones(n_bytes // 8, dtype=np.int64)
    start.wait()
    durations_ns = []
    for _ in range(N_PASSES):
        started_ns = time.perf_counter_ns()
        cells.max()
        durations_ns.append(time.perf_counter_ns() - started_ns)
    return cells.nbytes / (statistics.median(durations_ns) / 1e9)

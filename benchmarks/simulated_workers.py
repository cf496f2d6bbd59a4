"""Processes that share out simulated machines, each with a single thread for its arithmetic.

Arrays here are small: several threads of BLAS in each of several processes take five times as long as one.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

_NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def workers(n_jobs: int) -> ProcessPoolExecutor:
    """A pool of `n_jobs` processes; they load numpy anew, for it heeds these names only when it is loaded."""
    for name in _NAMES:
        os.environ.setdefault(name, "1")
    return ProcessPoolExecutor(n_jobs, mp_context=multiprocessing.get_context("spawn"))

"""When the rounds side by side are judged: at looks fixed beforehand, so that looking again errs no more.

Stopping at the first round that looks significant would make every interval a lie. All looks have the same level
(Pocock's, for the most looks there may be), whatever the budget: the same command again goes on at that level, up to
the same last look, so no number of runs errs more than one.

What is clearly slower than the best leaves the rounds before, at a level so strict that asking after each round errs
little more: its verdict stands by the rounds that it had.
"""

from __future__ import annotations

from statistics import NormalDist

N_ROUNDS_A_LOOK = 7
"""The fewest that can decide by ranks at the level of a look."""
N_ROUNDS_LEAST = 3
"""Fewer give no verdict: the best of several by two rounds is too often one that was lucky twice."""
N_LOOKS_MOST = 5
N_ROUNDS_MOST = N_LOOKS_MOST * N_ROUNDS_A_LOOK
LEAVING_CONFIDENCE = 0.999
_CONFIDENCE = 0.95
_CRITICAL = 2.413
"""Two-sided error of 5 % over five looks: Pocock, Biometrika 64 (1977), 191-199; Jennison and Turnbull, Group
Sequential Methods with Applications to Clinical Trials (2000), table 2.1."""
_CONFIDENCE_OF_A_LOOK = 2 * NormalDist().cdf(_CRITICAL) - 1


def are_used_up(n_rounds: int) -> bool:
    """Whether no look is left after so many rounds."""
    return n_rounds >= N_LOOKS_MOST * N_ROUNDS_A_LOOK


def confidence_at(n_rounds: int) -> float:
    """Confidence of an interval after `n_rounds`, so that those of all looks hold together in 95 of 100 sweeps.

    Where the budget ends before the first look, what there is is judged once: no sweep stops for that verdict. Where it
    ends between two looks, it is judged as at the next.
    """
    return _CONFIDENCE if n_rounds < N_ROUNDS_A_LOOK else _CONFIDENCE_OF_A_LOOK

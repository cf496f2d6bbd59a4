"""When the rounds side by side are judged: at looks fixed before the first round, so that looking again errs no more.

Stopping at the first round that looks significant would make every interval a lie. All looks have the same level
(Pocock's), so the answer at any number of rounds needs to know only how many looks were planned.
"""

from __future__ import annotations

from offloadtune import stats

N_ROUNDS_A_LOOK = 7
"""The fewest that can decide by ranks at the level of each of up to five looks."""
N_ROUNDS_LEAST = 3
"""Fewer give no verdict: the best of several by two rounds is too often one that was lucky twice."""
N_LOOKS_MOST = 5
N_ROUNDS_MOST = N_LOOKS_MOST * N_ROUNDS_A_LOOK
_CONFIDENCE = 0.95


def plan_looks(n_rounds: int) -> int:
    """How many looks so many rounds have room for: one at least, though it may come early, when the budget ends.

    What is still open then may be planned anew with a larger budget, at the stricter level of more looks.
    """
    return min(max(1, n_rounds // N_ROUNDS_A_LOOK), N_LOOKS_MOST)


def confidence_at(n_rounds: int, n_looks: int) -> float:
    """Confidence of an interval after `n_rounds`, so that those of all planned looks hold together in 95 of 100 sweeps.

    A sweep that ends before its first look is judged once. One that ends between two looks is judged then instead of at
    the next.
    """
    return _CONFIDENCE if n_rounds < N_ROUNDS_A_LOOK else stats.look_confidence_frac(1, n_looks)

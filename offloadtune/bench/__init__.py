"""The fixed script of a bench and what it says: pure functions of records.

script    what is measured, and which measure is visited next
figures   from visits to P50 and P95, and what is to be said of them
trend     runs over time, and whether the newest is slower than those before it
baseline  which of those before it
changes   what two of them have in common, and what changed between them
student   the law of how far an unchanged run may stray
"""

from offloadtune.bench.figures import figures_of, main_time_s, notes_of, quantiles
from offloadtune.bench.script import (
    N_VISITS_WANTED,
    Attempt,
    Pace,
    expected_s,
    measures_of,
    n_wanted,
    next_measure,
    pace_of,
    timed_s,
    too_dear,
    too_long,
)

__all__ = [
    "N_VISITS_WANTED",
    "Attempt",
    "Pace",
    "expected_s",
    "figures_of",
    "main_time_s",
    "measures_of",
    "n_wanted",
    "next_measure",
    "notes_of",
    "pace_of",
    "quantiles",
    "timed_s",
    "too_dear",
    "too_long",
]

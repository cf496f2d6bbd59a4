"""Which earlier runs the newest is compared with: those like it, or else those before the last change.

A deliberate change moves figures at once. Were runs from before and after it taken together, its jump would count as
noise, and hide every slowdown until the last of them is forgotten.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offloadtune.bench.changes import changes, kind
from offloadtune.benches import BenchRun
from offloadtune.units import format_count

N_EARLIER_NEEDED = 5
N_EARLIER_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Runs to compare with, the oldest first. `changes`, begun `changed_at`, are the last on the way from them to it.

    `warning` is a sentence, "" where all of them are like the newest.
    """

    runs: tuple[BenchRun, ...]
    changes: tuple[str, ...]
    changed_at: str
    warning: str = ""


def baseline_of(newest: BenchRun, earlier: Sequence[BenchRun]) -> Baseline:
    """The runs like the newest, where enough are; else those of the last kind before it; else all, with a warning."""
    alike = [run for run in earlier if kind(run) == kind(newest)]
    if n_whole(alike[-N_EARLIER_MOST:]) >= N_EARLIER_NEEDED:
        return _together(newest, alike)
    if before := _before_change(newest, earlier):
        after = earlier[earlier.index(before[-1]) + 1 :]
        first = next(run for run in (*after, newest) if kind(run) == kind(newest))
        words = f"Only {format_count(len(alike), 'earlier run')} of this kind" if alike else "The first run of its kind"
        return Baseline(
            runs=tuple(before[-N_EARLIER_MOST:]),
            changes=changes(before[-1], newest),
            changed_at=first.started_at,
            warning=f"{words}, so that it is compared with those before the change.",
        )
    is_mixed = len(alike) < len(earlier) and n_whole(earlier) >= N_EARLIER_NEEDED
    words = f"No {N_EARLIER_NEEDED} runs in a row are alike: what changed between them widens the limits."
    return _together(newest, earlier, words if is_mixed else "")


def is_cut_short(run: BenchRun) -> bool:
    """Whether the run ended before its script did."""
    return run.is_interrupted or bool(run.ended_by)


def n_whole(runs: Sequence[BenchRun]) -> int:
    """How many went on to the end of the script."""
    return sum(not is_cut_short(run) for run in runs)


def _together(newest: BenchRun, runs: Sequence[BenchRun], warning: str = "") -> Baseline:
    """The last of `runs`, and when something last changed between them and what."""
    last = tuple(runs[-N_EARLIER_MOST:])
    for before, after in reversed(list(itertools.pairwise((*last, newest)))):
        if changed := changes(before, after):
            return Baseline(runs=last, changes=changed, changed_at=after.started_at, warning=warning)
    return Baseline(runs=last, changes=(), changed_at="", warning=warning)


def _before_change(newest: BenchRun, earlier: Sequence[BenchRun]) -> list[BenchRun]:
    """Enough runs of one kind with none of the newest's kind between them, the last such; [] where there are none.

    Two profiles in turns are no change: of them neither is measured by the other.
    """
    found: list[BenchRun] = []
    for is_alike, stretch in itertools.groupby(earlier, lambda run: kind(run) == kind(newest)):
        if not is_alike:
            of_kind: dict[tuple[Any, ...], list[BenchRun]] = {}
            for run in stretch:
                same = of_kind.setdefault(kind(run), [])
                same.append(run)
                if n_whole(same[-N_EARLIER_MOST:]) >= N_EARLIER_NEEDED:
                    found = same
    return found

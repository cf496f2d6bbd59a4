"""Nouns of a trend: what the runs of a bench say of one file on one machine, and how the newest of them compares.

Floor 0: standard library and records only. All figures are seconds, those of decoding seconds a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offloadtune.benches import BenchRun, MeasureKind
from offloadtune.records import StandsFor, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigure:
    """One figure of one run, unique in it by `name`.

    `raw_s` is as measured, None where `n_visits` are too few for the quantile. `normalised_s` is what it would have
    been had the anchor been as fast as it usually is, None where a visit has no anchor. The scatters are standard
    deviations of the logarithm from visit to visit.
    """

    name: str
    kind: MeasureKind
    quantile_frac: float
    n_visits: int
    raw_s: float | None
    raw_scatter_log: float
    normalised_s: float | None
    normalised_scatter_log: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureCheck:
    """The newest run's figure against those of `n_earlier` runs before it; `before_s` is their median.

    `is_normalised` tells which of the two is judged: the one that scattered less between the earlier runs, by
    `noise_frac`; always raw where a device besides the CPU took part. A change beyond `limit_frac` is not taken for
    noise; a true slowdown of `detectable_frac` would be found with a chance of 80 %. All of them, and the verdict, are
    None while `n_missing` runs are lacking. `is_machine`: slower as measured, but by as much as the machine itself was,
    and so no verdict against what ran.
    """

    name: str
    kind: MeasureKind
    n_earlier: int
    n_missing: int
    now_s: float
    before_s: float | None
    raw_change_frac: float | None
    normalised_change_frac: float | None
    is_normalised: bool
    noise_frac: float | None
    limit_frac: float | None
    detectable_frac: float | None
    verdict: Verdict | None
    is_machine: bool = False

    @property
    def change_frac(self) -> float | None:
        """The change that is judged."""
        return self.normalised_change_frac if self.is_normalised else self.raw_change_frac


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendCheck:
    """The newest run of a trend, begun `started_at`, against `n_earlier` before it, where enough are those like it.

    `changes` are the last ones between them and it, first in the run begun `changed_at`. `warnings` are sentences.
    `n_layer` and `stands_for` are those of the newest run, as in `BenchRun`.
    """

    gguf_path: Path
    machine_id: str
    started_at: str
    n_earlier: int
    n_missing: int
    figures: tuple[FigureCheck, ...]
    changes: tuple[str, ...]
    changed_at: str
    warnings: tuple[str, ...]
    n_layer: int | None = None
    stands_for: StandsFor | None = None

    @property
    def slower(self) -> tuple[FigureCheck, ...]:
        return tuple(one for one in self.figures if one.verdict is Verdict.SLOWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRow:
    """One run of a trend and what changed since the run before it."""

    run: BenchRun
    figures: tuple[RunFigure, ...]
    changes: tuple[str, ...]

    def figure(self, name: str) -> RunFigure | None:
        return next((one for one in self.figures if one.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """A figure over the runs of a trend, the oldest first: a character a run, and the first and last value."""

    name: str
    kind: MeasureKind
    text: str
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The runs of one file on one computer, newest first. `machine_id` is that of the newest. `is_here`: this one's."""

    gguf_path: Path
    machine_id: str
    is_here: bool
    rows: tuple[TrendRow, ...]
    sparks: tuple[Spark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenTrend:
    """A file among the trends of which lines cannot be read; `reasons` are full sentences, each with its line."""

    path: Path
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleProfile:
    """A file whose newest sweep was made on something else than is here now: `why` says what, `command` measures."""

    gguf_path: Path
    why: str
    command: str
    stands_for: StandsFor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendReport:
    """All trends that were asked for, those of this machine first."""

    trends: tuple[Trend, ...]
    broken: tuple[BrokenTrend, ...]
    stale: tuple[StaleProfile, ...]

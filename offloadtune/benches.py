"""Nouns of a bench: what the fixed script measures, what one run of it showed, and what was seen beside it.

Floor 0: standard library and records only. Times are raw nanoseconds, as in `Visit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from offloadtune.records import EngineBuild, Machine, Settings, StandsFor, Target, Visit, Workload
from offloadtune.sweeps import Said

SCRIPT = 1
"""Version of the fixed script. Runs of two scripts measure different things and are never compared."""


class MeasureKind(StrEnum):
    """What a measure is after.

    `ttft`: a prompt read anew; `second_turn`: most of the prompt is in the cache; `decode`: writing after so many
    tokens; `turn`: the workload of the user.
    """

    TTFT = "ttft"
    SECOND_TURN = "second_turn"
    DECODE = "decode"
    TURN = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of the script: `n_prefix_cached` tokens restored, `n_prompt_new` read, `n_steps` decodes timed."""

    kind: MeasureKind
    n_prefix_cached: int
    n_prompt_new: int
    n_steps: int

    @property
    def name(self) -> str:
        """Unique in a script: "ttft 512", "second turn 1920+128", "decode at 4096", "turn 2048+256"."""
        if self.kind is MeasureKind.TTFT:
            return f"ttft {self.n_prompt_new}"
        if self.kind is MeasureKind.DECODE:
            return f"decode at {self.n_prefix_cached}"
        return f"{self.kind.value.replace('_', ' ')} {self.n_prefix_cached}+{self.n_prompt_new}"

    @property
    def n_ctx_needed(self) -> int:
        """Cells a visit fills: the prompt, the first decode and the steps timed."""
        return self.n_prefix_cached + self.n_prompt_new + 1 + self.n_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorReading:
    """A fixed piece of work on the CPU, in a process of its own: what the machine could do at that moment.

    `multiply_ns`: a product of matrices that fit the caches, as reading a prompt is; `stream_ns`: one vector through
    more weights than the caches hold, as writing is. The quickest of several, so that it tells of the machine's speed
    and not of a stall.
    """

    multiply_ns: int
    stream_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchVisit:
    """One visit of the measure named `measure`, `at_s` after the run began.

    The first ones of a new engine build or driver compile and fill caches: they are marked as warm-ups.
    `anchor` is the reading taken just before it.
    """

    measure: str
    at_s: float
    visit: Visit
    anchor: AnchorReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """What it takes until the file can answer: load it, and (`ready`) open a context and read a few tokens besides.

    `cold` follows the dropping of the file, and of it alone, from the page cache; None where that was not possible,
    and `why_not_cold` says why. `is_warm`: all of the file was in the cache before the warm load; None: not known.
    """

    cold_load_ns: int | None
    cold_ready_ns: int | None
    warm_load_ns: int
    warm_ready_ns: int
    why_not_cold: str = ""
    is_warm: bool | None = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One run of the script, as it stands in the trend. `settings_from` says in words where the settings came from.

    `skipped` maps measures that were left out to the reason, a full sentence. `ended_by` is why the engine ended the
    run before its time, "" where it did not. `n_layer` are the file's own layers, None where they were not written
    down; `stands_for` as in `GgufFacts`.
    """

    script: int
    started_at: str
    offloadtune_version: str
    gguf_path: Path
    gguf_id: str
    machine: Machine
    engine: EngineBuild
    settings: Settings
    target: Target
    settings_from: str
    workload: Workload | None
    endpoints: tuple[str, ...]
    measures: tuple[Measure, ...]
    visits: tuple[BenchVisit, ...]
    loads: LoadTimes | None
    skipped: tuple[tuple[str, str], ...]
    duration_s: float
    is_interrupted: bool = False
    ended_by: str = ""
    n_layer: int | None = None
    stands_for: StandsFor | None = None

    @property
    def drivers(self) -> tuple[str | None, ...]:
        return tuple(gpu.driver for gpu in self.machine.host.nvml_gpus or ())

    def visits_of(self, measure: str) -> tuple[BenchVisit, ...]:
        """The visits that count."""
        return tuple(one for one in self.visits if one.measure == measure and one.visit.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """P50 and P95 with their 95 % intervals. What the samples are too few for is None; `reason` says so of the P95."""

    p50: float
    p50_low: float | None
    p50_high: float | None
    p95: float | None
    p95_low: float | None
    p95_high: float | None
    n_samples: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureFigures:
    """What the visits of one measure that count say.

    `ttft_s` runs from text to first token, `phase_fracs` are the median shares of its phases in that; `step_s` is from
    one token to the next, over all visits. `turn_s` is the median of the whole turn of the workload, where this is its
    measure. `n_outliers` visits lie far from the rest; they count all the same.
    """

    measure: Measure
    n_visits: int
    n_disturbed: int
    n_outliers: int
    ttft_s: Quantiles
    prefill_tok_per_s: float
    phase_fracs: tuple[tuple[str, float], ...]
    first_decode_s: float
    step_s: Quantiles
    decode_tok_per_s: float
    turn_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What `offloadtune bench` shows. `notes` are full sentences; `trend_path` None where it could not be kept."""

    run: BenchRun
    figures: tuple[MeasureFigures, ...]
    notes: tuple[str, ...]
    trend_path: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What the user asked for. `profile_path` None: the stored recommendation, else the front end's defaults.

    `worker_command` starts another worker than ours, for tests.
    """

    path: Path
    profile_path: Path | None = None
    workload: Workload | None = None
    budget_s: float = 120.0
    n_ctx: int | None = None
    endpoints: tuple[str, ...] = ()
    worker_command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureVisited:
    """A visit ended. `n_done` of `n_wanted` visits of the script count by now."""

    visit: BenchVisit
    n_done: int
    n_wanted: int
    remaining_s: float


BenchEvent = Said | MeasureVisited
BenchListener = Callable[[BenchEvent], None]

"""What goes into a sweep, what it tells while it runs, and what comes out.

Floor 0: standard library and records only. Progress displays and logs listen to the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offloadtune.records import (
    NO_LIMITS,
    Basis,
    EngineBuild,
    Estimate,
    Figures,
    GgufFacts,
    Goal,
    Limits,
    Machine,
    Recommendation,
    Settings,
    Target,
    Trial,
    TrialResult,
    Verdict,
    Workload,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """What the user asked for.

    `n_ctx` None means what the workload needs; with the goal `context` it is the least wanted. `fixed` are settings not
    to be tried; `allow_kv_quant` lets a cache of fewer bits be tried; `is_fresh` puts aside what an earlier run of the
    same command left. `worker_command` starts another worker than ours, for tests.
    """

    path: Path
    workload: Workload
    budget_s: float
    goal: Goal = Goal.TURN
    target: Target = Target.LLAMA_CPP_PYTHON
    n_ctx: int | None = None
    vram_limit_bytes: int | None = None
    limits: Limits = NO_LIMITS
    endpoints: tuple[str, ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    allow_kv_quant: bool = False
    prove: bool = False
    is_fresh: bool = False
    worker_command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One line for the user: what was found or decided."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A trial begins. `remaining_s` is what the budget still allows for everything.

    `least_s` is about what this trial and the first comparison take, None where nothing tells.
    """

    trial: Trial
    n_done: int
    elapsed_s: float
    remaining_s: float
    least_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial ended and stands in the journal. `best` is the answer if the sweep stopped now."""

    result: TrialResult
    best: Recommendation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFinished:
    """A round of the side-by-side comparison ended.

    The sweep takes at most `remaining_s` more, by its budget and the rounds there may be, and about `least_s` where the
    next look decides.
    """

    n_rounds: int
    n_finalists: int
    remaining_s: float
    best: Recommendation | None
    least_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGrows:
    """A stand-in is being written: so many bytes of so many."""

    path: Path
    n_done_bytes: int
    n_all_bytes: int


Event = Said | TrialStarted | TrialFinished | RoundFinished | FileGrows
Listener = Callable[[Event], None]
Teller = Callable[[Said], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """Measured settings that no others equal in everything and beat in something.

    `changes` say what they have otherwise than the recommended ones, () for these. `device_bytes` is the peak on all
    devices together, None where no device told it. Times are medians over `n_visits`; one says little.
    """

    trial: Trial
    changes: tuple[str, ...]
    ttft_s: float
    decode_tok_per_s: float
    n_ctx: int
    device_bytes: int | None
    n_visits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What can be had for what, of `n_ran` settings: the recommended first, the others by how far they are from them.

    Times that differ by no more than `tolerance_frac` count as equal, bytes that differ by 2 % at most always do.
    """

    points: tuple[FrontPoint, ...] = ()
    n_ran: int = 0
    tolerance_frac: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Settings one step from the recommended ones: `words` say which.

    They take `cost_ratio` times as long for the goal: measured side by side, or by a visit each where its `n_samples`
    is 1; or reckoned, as its basis says. It is None where `no_room` says what memory they lack, or `unknown` why nobody
    knows. They take `more_device_bytes` of the devices by the file's sizes, negative where that is less.
    """

    settings: Settings
    words: str
    cost_ratio: Estimate | None
    more_device_bytes: int
    no_room: str = ""
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """What takes `share_frac` of the time of a phase, "prefill" or "decode", as the speed law has it.

    The true share lies between `low_frac` and `high_frac` in 90 of 100 cases. `term` is the law's name of it, and
    `n_bytes` what is read or copied each time, None for what is not counted in bytes. `words` are a sentence without
    its full stop.
    """

    phase: str
    term: str
    n_bytes: int | None
    share_frac: float
    low_frac: float
    high_frac: float
    words: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The next best: `changes` say what it has otherwise.

    It took `ratio` times as long for the goal as the recommended settings, and `verdict` is on these.
    """

    trial: Trial
    changes: tuple[str, ...]
    ratio: Estimate
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why the recommended settings: what lies around them, what limits them, and who came next.

    `neighbours` are those first that tell most, `limits` the largest of each phase first. `unknown` says why nothing
    could be reckoned, "" where it could.
    """

    neighbours: tuple[Neighbour, ...] = ()
    limits: tuple[TimeShare, ...] = ()
    runner_up: RunnerUp | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep found and where it stands. `baselines` holds those that ran, by name.

    `n_resumed` trials were measured by an earlier run; `n_model_loads` counts this one's. `n_steps` tokens were timed
    in a visit. `apply_text` is what the target takes, kept at `apply_path` too: a Python program or a shell command.
    `ended` says in a few words why the sweep ended, `changes` in sentences what changed in the machine meanwhile.
    """

    machine: Machine
    engine: EngineBuild
    facts: GgufFacts
    sha256: str | None
    results: tuple[TrialResult, ...]
    n_rounds: int
    n_resumed: int
    n_model_loads: int
    n_steps: int
    baselines: dict[str, Figures]
    recommendation: Recommendation
    skipped: tuple[str, ...]
    apply_text: str
    profile_path: Path
    apply_path: Path
    journal_path: Path
    is_interrupted: bool
    duration_s: float
    front: Front = field(default_factory=Front)
    explanation: Explanation = field(default_factory=Explanation)
    ended: str = ""
    changes: tuple[str, ...] = ()

    @property
    def chosen(self) -> TrialResult | None:
        """The trial of the recommended settings."""
        trial_id = self.recommendation.trial.trial_id
        return next((result for result in self.results if result.trial.trial_id == trial_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTimes:
    """Seconds of one phase in a stand-in of `n_layer` layers, `n_gpu_layers` of them on devices, round by round.

    `n_bytes` are weights that the phase reads. The same place in `seconds` of several is the same round.
    """

    n_layer: int
    n_gpu_layers: int
    n_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """Seconds of one phase of the whole model, by two ways from stand-ins of fewer layers.

    `linear_s` adds what further layers took; `scaled_s` goes by the bytes read. `whole_s` spans both, None where
    they are too far apart to be believed: `apart_frac` is by how much.
    """

    linear_s: Estimate
    scaled_s: Estimate
    apart_frac: float
    whole_s: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFigures:
    """What settings would reach with the whole model, as its stand-ins of fewer layers say.

    `name` is "recommended" or a baseline's. `turn_s` is None where a phase is. `no_room` says what memory the whole
    lacks here with these settings, "" where it lacks none.
    """

    name: str
    settings: Settings
    ttft: Extrapolation
    token: Extrapolation
    turn_s: Estimate | None
    no_room: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandinReport:
    """A sweep of a model that is not here, by a stand-in.

    `sweep` is that of the stand-in. Where it has fewer layers than the model, `why_fewer` says why and `wholes` hold
    the recommended settings first, then those it is compared with, as found in `depths`; else "" and (). `notes` say
    what is missing there. `apply_text` is what the target takes for the model itself, with a placeholder for its path.
    """

    sweep: SweepReport
    apply_text: str
    why_fewer: str = ""
    depths: tuple[int, ...] = ()
    n_layer: int = 0
    wholes: tuple[WholeFigures, ...] = ()
    notes: tuple[str, ...] = ()
    is_interrupted: bool = False

"""Nouns of speed prediction: what a rig can do, what was measured of it, and what is expected of it.

Floor 0: standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from offloadtune.records import Basis, StandsFor
from offloadtune.sweeps import Said


class Phase(StrEnum):
    """What is timed: reading a prompt, or one step of generating."""

    DECODE = "decode"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a device does at best, by its maker or as measured; None where nobody says.

    `family` is that of the catalogue of cards, "" where the card is not in it. `read_bytes_per_s` is of its own memory,
    `flop_per_s` of half-precision products, `int8_op_per_s` of 8-bit ones, `link_bytes_per_s` from main memory to it.
    `last_level_bytes` is its largest cache: what lies in it is read faster than memory. `offloads_ops` as in
    `footprint.Backend`. `is_measured` where `read_bytes_per_s` is what a copy was seen to reach, which reading alone
    may exceed.
    """

    name: str
    family: str = ""
    read_bytes_per_s: float | None = None
    flop_per_s: float | None = None
    int8_op_per_s: float | None = None
    link_bytes_per_s: float | None = None
    last_level_bytes: int | None = None
    offloads_ops: bool = True
    is_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """What the CPU and main memory do at best; None where nobody says.

    `peak_bytes_per_s` is what the modules promise, `read_bytes_per_s` what was measured with all cores.
    `last_level_bytes` is the largest cache: what lies in it is read faster than memory.
    """

    peak_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    n_cores: int | None = None
    last_level_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """The devices that take layers by their `shares`, in llama.cpp's order, and the host; () for equal shares."""

    devices: tuple[DeviceRates, ...]
    host: HostRates
    shares: tuple[float, ...] = ()

    @property
    def lender(self) -> int | None:
        """Index of the device that works for matrices in main memory: the first that can (ggml-backend.cpp)."""
        return next((i for i, device in enumerate(self.devices) if device.offloads_ops), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured passage, as the law sees it: how much of each term it had, and how long it took.

    `amounts` are (name of the term, bytes or operations or count). `seconds` are those of a whole prompt or of one
    step, a median; `noise_frac` is how far repetitions lay from it (standard deviation). `label` says what ran.
    """

    phase: Phase
    amounts: tuple[tuple[str, float], ...]
    seconds: float
    noise_frac: float
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A predicted value; the truth lies between `low` and `high` in 90 of 100 cases."""

    value: float
    low: float
    high: float
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is expected of settings, before it is measured: for a prompt of `n_prompt_tokens` after `depth` cached ones.

    Decode is at `decode_depth` cached tokens. Bounds are what no run of this placement can exceed, None where a device
    or the memory does not say what it does at best. `words` are full sentences on what the figures rest on and what
    widened them.
    """

    n_prompt_tokens: int
    depth: int
    decode_depth: int
    decode_tok_per_s: Figure
    prefill_tok_per_s: Figure
    ttft_s: Figure
    bound_tok_per_s: float | None
    bound_prefill_tok_per_s: float | None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What one change of the machine or the file would bring to decode and to the first token, as shares.

    `what` is a noun phrase ("the next 2.1 GiB of device memory"); `decode_frac` 0.38 is 38 % more tokens a second, and
    `ttft_frac` 0.1 is a tenth less time to the first token.
    """

    what: str
    decode_frac: float
    ttft_frac: float


# --- calibration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """What is to be calibrated, and with what time. `fixed` are settings that hold in every run.

    `is_fresh` forgets what earlier runs showed. `worker_command` starts another worker than ours, for tests.
    """

    path: Path
    budget_s: float
    vram_limit_bytes: int | None = None
    endpoints: tuple[str, ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    is_fresh: bool = False
    worker_command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """A run against what is said of it by all that is known but itself: seconds, and between which they should lie."""

    phase: Phase
    label: str
    measured_s: float
    expected_s: float
    low_s: float
    high_s: float
    is_miss: bool

    @property
    def off_frac(self) -> float:
        """How far the expectation lies from what was measured, as a part of it: 0.1 is 10 % too slow."""
        return self.expected_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageMeasured:
    """A prompt and the tokens after it ran; `checks` are of what was expected before, the prompt's and a token's."""

    label: str
    n_done: int
    n_most: int
    remaining_s: float
    checks: tuple[RunCheck, ...]


CalibrationEvent = Said | PassageMeasured


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """A coefficient of a law: seconds for each of `unit` ("bytes", "flop", "count"), with its 90 % range.

    `words` say what it is of. It is 0 where nothing is left for it, and then has no range. `is_shown` is false where no
    run showed more of it than was believed before.
    """

    phase: Phase
    words: str
    unit: str
    seconds: float
    low_s: float
    high_s: float
    is_shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """What a calibration showed. `checks` leave out one passage after the other; `words` are full sentences.

    `failures` say what did not run. `n_timings` are those of prompts and of tokens that the laws now rest on. `n_layer`
    and `stands_for` are the file's, as in `GgufFacts`.
    """

    machine_id: str
    engine_version: str
    path: Path
    type_name: str
    devices: tuple[str, ...]
    n_passages: int
    n_loads: int
    n_timings: int
    coefficients: tuple[Coefficient, ...]
    checks: tuple[RunCheck, ...]
    failures: tuple[str, ...]
    words: tuple[str, ...]
    store_path: Path
    is_interrupted: bool
    duration_s: float
    n_layer: int | None = None
    stands_for: StandsFor | None = None

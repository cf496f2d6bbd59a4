"""What a journal may say beyond the types of its records: a file anyone can write must not trip who reads it later.

Raises ValueError with a few words.
"""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from offloadtune.benches import BenchRun
from offloadtune.conditions import MemoryChange
from offloadtune.records import Figures, Recommendation, Settings, TrialResult, Visit
from offloadtune.store.codec import from_json, to_json

if TYPE_CHECKING:
    from offloadtune.records import Machine
    from offloadtune.store.journal import SweepHeader

_CACHE_TYPES = {"f32", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "bf16"}
WORDS = {
    "flash_attn_type": {"auto", "disabled", "enabled"},
    "load_mode": {"auto", "none", "mmap", "mlock", "mmap_mlock", "direct_io"},
    "type_k": _CACHE_TYPES,
    "type_v": _CACHE_TYPES,
}
"""The settings that are words, and all words that front ends and the engine know for them."""


def check_header(header: SweepHeader) -> None:
    """Names that are printed or become part of a path, and the settings that the user fixed."""
    check_fixed(header.fixed)
    _check_machine(header.machine)
    _require(PurePath(header.machine_id).name == header.machine_id, "a machine_id that is no name of a folder")
    texts = (header.machine_id, header.engine.version, header.started_at, *header.endpoints)
    _require(all(map(_is_clean, texts)), "a name that cannot be printed")
    _require(0 < header.n_ctx < 1 << 31, "a context of impossible size")
    limits = (header.limits.ttft_p95_s, header.limits.min_tok_per_s)
    _require(all(one is None or 0 < one < math.inf for one in limits), "a limit that nothing keeps")


def check_run(run: BenchRun) -> None:
    """One run of a bench: names that are printed, and times of which every figure can be made."""
    _check_machine(run.machine)
    check_settings(run.settings)
    texts = (run.engine.version, run.engine.build_id, run.offloadtune_version, run.gguf_id, *run.endpoints)
    _require(all(map(_is_clean, texts)), "a name that cannot be printed")
    started_at = datetime.fromisoformat(run.started_at)
    _require(started_at.tzinfo is not None and 1970 <= started_at.year < 9999, "no moment that has a place in a trend")
    measures = {measure.name: measure for measure in run.measures}
    _require(len(measures) == len(run.measures), "a measure that is there twice")
    counts = [n for one in run.measures for n in (one.n_prefix_cached, one.n_prompt_new, one.n_steps)]
    _require(all(0 <= n < 1 << 31 for n in (*counts, run.settings.n_ctx)), "a count of impossible size")
    for one in run.visits:
        _require(one.measure in measures, "a visit of no measure")
        _require(math.isfinite(one.at_s), "a moment that is no number")
        _require(one.anchor is None or min(one.anchor.multiply_ns, one.anchor.stream_ns) > 0, "an anchor in no time")
        _require(min(one.visit.tokenize_ns, one.visit.first_sample_ns, one.visit.first_decode_ns) >= 0, "negative time")
    _check_visits(one.visit for one in run.visits)
    _require(math.isfinite(run.duration_s), "a length that is no number")


def check_fixed(settings: Mapping[str, Any]) -> None:
    """Some of the fields of Settings, by name."""
    _require(settings.keys() <= {field.name for field in dataclasses.fields(Settings)}, "an unknown setting")
    check_settings(from_json(Settings, {**to_json(Settings()), **settings}))


def check_settings(settings: Settings) -> None:
    for name, words in WORDS.items():
        _require(getattr(settings, name) in words, f"an unknown {name}")
    _require(all(map(_is_clean, settings.devices or ())), "a device that cannot be printed")


def check_result(result: TrialResult) -> None:
    check_settings(result.trial.settings)
    _check_visits(result.visits)


def check_change(change: MemoryChange) -> None:
    """Names and words that are printed, and memory that can be."""
    _require(
        all(map(_is_clean, (change.words, change.no_fit, *dict(change.free_bytes)))), "words that cannot be printed"
    )
    _require(all(n_bytes >= 0 for _, n_bytes in change.free_bytes), "memory of impossible size")


def check_round(visits: Mapping[str, Iterable[Visit]]) -> None:
    """Every trial in a round has a visit that counts."""
    for some in visits.values():
        _require(any(not visit.is_warmup for visit in some), "a round without a visit that counts")
        _check_visits(some)


def check_answer(answer: Recommendation) -> None:
    """Figures are finite; what was compared by a single round has an interval without ends."""
    check_settings(answer.trial.settings)
    figures = [getattr(answer.figures, field.name) for field in dataclasses.fields(Figures)]
    numbers = [number for one in figures for number in (one.p50, one.low, one.high, one.coverage_frac)]
    _require(all(math.isfinite(number) for number in numbers), "a figure that is no number")


def _check_machine(machine: Machine) -> None:
    _require(machine.host.os.split() != [], "a system without a name")
    devices = [text for device in machine.devices or () for text in (device.name, device.description)]
    drivers = [gpu.driver or "" for gpu in machine.host.nvml_gpus or ()]
    _require(all(map(_is_clean, (*devices, *drivers))), "a device that cannot be printed")
    rate = machine.host.ram.read_bytes_per_s
    _require(rate is None or 0 < rate < math.inf, "memory of impossible speed")


def _check_visits(visits: Iterable[Visit]) -> None:
    for visit in visits:
        _require(visit.prefill_ns > 0 and visit.n_prompt_new > 0, "a prompt read in no time")
        steps = (*visit.step_ns, *visit.sample_ns)
        _require(bool(visit.step_ns and visit.sample_ns) and min(steps) >= 0 < sum(steps), "tokens written in no time")


def _is_clean(text: str) -> bool:
    """Whether it holds neither what a terminal would obey nor half a character; drivers may say anything else."""
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)


def _require(is_sound: bool, words: str) -> None:  # noqa: FBT001
    if not is_sound:
        raise ValueError(words)

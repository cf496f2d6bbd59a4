"""From the worker's answer to forecasts, and from its death to an error: the parent's side of a forecast."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from offloadtune.engine.classify import classify
from offloadtune.engine.process import WorkerDiedError, WorkerRefusedError
from offloadtune.errors import EngineError
from offloadtune.plans import Forecast, RefusedTensors, Tier
from offloadtune.records import MemoryUse, Settings

_MEMORY = TypeAdapter(tuple[MemoryUse, ...])
_REFUSED = TypeAdapter(tuple[RefusedTensors, ...])


def forecasts_of(asked: Sequence[Settings], answers: Sequence[dict[str, Any]]) -> tuple[Forecast, ...]:
    """The worker's answers in the order asked."""
    return tuple(_forecast(settings, answer) for settings, answer in zip(asked, answers, strict=True))


def is_misreading(error: WorkerDiedError) -> bool:
    """Whether the worker may have died of reading a C++ object that another compiler laid out.

    What is read wrongly may do harm later, in any way but by taking time or memory.
    """
    return not error.timed_out and error.evidence.signal != "SIGKILL"


def unforetold(error: WorkerDiedError | WorkerRefusedError, settings: Settings) -> EngineError:
    """What to raise for a worker that died of a forecast or was not given the file."""
    if isinstance(error, WorkerRefusedError):
        hint = "check that the file is whole and that this engine knows its architecture, or take a newer engine"
        if error.evidence.phase == "unsupported":
            hint = "name devices that the engine lists"
        return EngineError(f"Memory cannot be foretold: {error}.", hint=hint)
    _, reason = classify(error.evidence, offloads=settings.offloads, timed_out=error.timed_out)
    return EngineError(f"Memory cannot be foretold: {reason}.", hint="try again, or measure without a forecast")


def _forecast(settings: Settings, answer: dict[str, Any]) -> Forecast:
    asked = dataclasses.asdict(settings)
    effective = answer.get("effective", {}).items()
    splits = answer.get("n_splits")
    return Forecast(
        settings=settings,
        tier=Tier(answer["tier"]),
        memory=_MEMORY.validate_python(answer.get("memory", ())),
        kv_cache_bytes=answer.get("kv_cache_bytes"),
        output_bytes=answer.get("output_bytes"),
        n_splits=(splits[0], splits[1]) if splits else None,
        flash_attn_type=answer.get("flash_attn_type"),
        effective=tuple((name, value) for name, value in effective if asked[name] != value),
        layer_devices=tuple(answer["layer_devices"]),
        refused=_REFUSED.validate_python(answer["refused"]),
        refusal=answer.get("refusal", ""),
        is_foretold=answer.get("is_foretold", True),
    )

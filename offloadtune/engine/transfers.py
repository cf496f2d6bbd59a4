"""From the worker's answer to a device's speed, and from its death to the reason there is none."""

from __future__ import annotations

import dataclasses
from typing import Any

from offloadtune.engine.classify import classify
from offloadtune.engine.process import WorkerDiedError, WorkerRefusedError
from offloadtune.hardware import DeviceSpeed


def speed_of(device: str, answer: dict[str, Any]) -> DeviceSpeed:
    """The worker's answer; its reasons are for the figures that are None."""
    return DeviceSpeed(device=device, **answer["speeds"], reason=" ".join(answer["reasons"]) or None)


def unmeasured(device: str, error: WorkerDiedError | WorkerRefusedError) -> DeviceSpeed:
    """No figure at all, and why."""
    if isinstance(error, WorkerRefusedError):
        reason = str(error)
    else:
        evidence = dataclasses.replace(error.evidence, phase="visit")
        _, reason = classify(evidence, offloads=True, timed_out=error.timed_out)
    return DeviceSpeed(
        device=device,
        to_pageable_bytes_per_s=None,
        from_pageable_bytes_per_s=None,
        to_pinned_bytes_per_s=None,
        from_pinned_bytes_per_s=None,
        memory_bytes_per_s=None,
        reason=f"{reason[:1].upper()}{reason[1:]}.",
    )

"""Does this engine build run at all here, and if it dies, what keeps it alive?

The known case: GCC 12 drops the AMX tile set-up, and the first decode dies with SIGILL; without the extra buffer
types it runs. Rather than knowing such cases, try the knobs that change which code runs, one at a time, then all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from offloadtune.engine.classify import is_engine_fault
from offloadtune.engine.runner import Runner
from offloadtune.records import Outcome, Settings

_SAVING_KNOBS: tuple[dict[str, Any], ...] = (
    {"use_extra_bufts": False},
    {"flash_attn_type": "disabled"},
    {"flash_attn_type": "enabled"},
    {"op_offload": False},
    {"load_mode": "none"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """`knobs` are the settings to keep to, none where the build lives as it is; `sentence` is for the user.

    `signal` is what ended a broken one. `is_conclusive` is false when running out of memory, of time or of luck left
    the question open.
    """

    knobs: dict[str, Any] | None
    sentence: str = ""
    signal: str | None = None
    is_conclusive: bool = True


def self_test(runner: Runner, settings: Settings, *, timeout_s: float) -> SelfTest:
    """Run a tiny turn with `settings`; where it dies, find by trial which knob saves it.

    Only a crash is searched: running out of memory or being refused says nothing about the build. The placement
    stays loaded, so a trial of it that follows needs no load of its own.
    """
    deadline = time.monotonic() + timeout_s
    outcome, reason, evidence = runner.try_tiny(settings, timeout_s=timeout_s)
    if evidence is None or outcome is not Outcome.CRASHED or not is_engine_fault(evidence):
        return SelfTest(knobs={}, is_conclusive=evidence is None)
    together = {
        name: value for knob in _SAVING_KNOBS for name, value in knob.items() if knob != {"flash_attn_type": "enabled"}
    }
    for knobs in (*_SAVING_KNOBS, together):
        if all(getattr(settings, name) == value for name, value in knobs.items()):
            continue
        left_s = max(0.0, deadline - time.monotonic())
        survived, _, _ = runner.try_tiny(settings.replace(**knobs), timeout_s=left_s)
        if survived is Outcome.OK:
            words = ", ".join(f"{name}={value}" for name, value in knobs.items())
            return SelfTest(
                knobs=knobs,
                sentence=f"This engine build is broken here ({reason}); it runs with {words}, so that is kept.",
                signal=evidence.signal,
            )
    return SelfTest(knobs=None, sentence=f"This engine build does not run here: {reason}.", signal=evidence.signal)

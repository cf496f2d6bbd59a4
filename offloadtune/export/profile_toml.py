"""The profile: one TOML file per machine and model file, with the settings, what they reached and on what."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter

from offloadtune.errors import UsageError
from offloadtune.records import EngineBuild, Estimate, GgufFacts, Machine, Recommendation, Settings, Target

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything a profile says."""

    offloadtune_version: str
    machine: Machine
    engine: EngineBuild
    facts: GgufFacts
    sha256: str | None
    recommendation: Recommendation
    apply_text: str
    journal_path: Path
    measured_at: str


def render_profile(profile: Profile) -> str:
    """The profile as TOML. What is not known is left out: TOML has no null."""
    answer = profile.recommendation
    host, real = profile.machine.host, profile.facts.stands_for
    document = {
        "format": FORMAT,
        "offloadtune": profile.offloadtune_version,
        "measured_at": profile.measured_at,
        "target": answer.trial.target.value,
        "goal": answer.goal.value,
        "reasons": list(answer.reasons),
        "machine": {
            "machine_id": profile.machine.machine_id,
            "os": host.os,
            "cpu": host.cpu.brand,
            "n_physical_cores": host.cpu.n_physical_cores,
            "ram_bytes": host.ram.total_bytes,
            "devices": [
                {"name": device.name, "description": device.description, "total_bytes": device.total_bytes}
                for device in profile.machine.offload_devices
            ],
        },
        "engine": {"version": profile.engine.version, "build_id": profile.engine.build_id},
        "gguf": {
            "path": str(profile.facts.path),
            "identity": profile.facts.gguf_id,
            "sha256": profile.sha256,
            "file_bytes": profile.facts.file_bytes,
            "n_layer": profile.facts.n_layer if real else None,
            "stands_for": dataclasses.asdict(real) if real else None,
        },
        "workload": dataclasses.asdict(answer.workload),
        "settings": dataclasses.asdict(answer.trial.settings),
        "measured": {
            "ttft_s": _estimate(answer.figures.ttft_s),
            "decode_tok_per_s": _estimate(answer.figures.decode_tok_per_s),
            "prefill_tok_per_s": _estimate(answer.figures.prefill_tok_per_s),
            "turn_s": _estimate(answer.figures.turn_s),
            "device_peak_bytes": dict(answer.peak_bytes),
            "host_peak_rss_bytes": answer.host_peak_rss_bytes,
        },
        "versus": [
            {"against": one.against, "verdict": one.verdict.value, "ratio": _estimate(one.ratio)}
            for one in answer.versus
        ],
        "evidence": {"journal": str(profile.journal_path), "trial_ids": list(answer.evidence_trial_ids)},
        "apply": {_APPLY_KEYS[answer.trial.target]: profile.apply_text},
    }
    return tomli_w.dumps(_without_none(document), multiline_strings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedProfile:
    """What a profile read back says that settings can be measured by."""

    machine_id: str
    gguf_id: str
    target: Target
    settings: Settings


def read_profile(path: Path) -> SavedProfile:
    """A profile read back. Raises UsageError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        if document["format"] > FORMAT:
            raise UsageError(f"{path} was written by a newer offloadtune.", hint="update offloadtune")
        return SavedProfile(
            machine_id=str(document["machine"]["machine_id"]),
            gguf_id=str(document["gguf"]["identity"]),
            target=Target(document["target"]),
            settings=TypeAdapter(Settings).validate_python(document["settings"]),
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"The profile {path} cannot be read: {reason}.", hint="check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"{path} is not a profile of offloadtune."
        raise UsageError(message, hint="name a .toml file that a sweep wrote, or leave --settings out") from None


_APPLY_KEYS = {Target.LLAMA_CPP_PYTHON: "python", Target.LLAMA_SERVER: "command"}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {**dataclasses.asdict(estimate), "basis": estimate.basis.value}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value if inner is not None]
    return value

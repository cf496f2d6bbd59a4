"""What `--json` prints: one object per command. Keys are only ever added."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from offloadtune.plans import CacheCost
from offloadtune.recalls import JournalSummary, RecallReport, UnreadableJournal
from offloadtune.records import Comparison, Figures, GgufFacts, Outcome, Recommendation
from offloadtune.report.words import largest_tensors
from offloadtune.sweeps import SweepReport


def inspect_json(facts: GgufFacts, cache: CacheCost | None) -> dict[str, Any]:
    """The header's facts; of the tensor table its sums and the largest. Cache costs are null for an absurd header."""
    value: dict[str, Any] = plain(facts)
    value["n_tensors"] = len(facts.tensors)
    value["tensor_bytes"] = facts.tensor_bytes
    value["key_values"] = plain(dict(facts.key_values))
    value["type_bytes"] = dict(facts.type_bytes)
    value["kv_cache_bytes_per_token"] = cache.bytes_per_token if cache else None
    value["kv_cache_fixed_bytes"] = cache.fixed_bytes if cache else None
    value["biggest_tensors"] = [plain(tensor) for tensor in largest_tensors(facts)]
    del value["tensors"]
    return value


def sweep_json(report: SweepReport) -> dict[str, Any]:
    """The whole answer of a sweep."""
    outcomes = Counter(result.outcome for result in report.results)
    return {
        "machine_id": report.machine.machine_id,
        "engine": plain(report.engine),
        "gguf": {
            "identity": report.facts.gguf_id,
            "sha256": report.sha256,
            "file_bytes": report.facts.file_bytes,
            "path": str(report.facts.path),
            "n_layer": report.facts.n_layer,
            "stands_for": plain(report.facts.stands_for),
        },
        "trials": {
            "ok": outcomes[Outcome.OK],
            "failed": sum(outcomes.values()) - outcomes[Outcome.OK] - outcomes[Outcome.CANCELLED],
            "resumed": report.n_resumed,
            "model_loads": report.n_model_loads,
            "rounds": report.n_rounds,
            "outcomes": {outcome.value: count for outcome, count in sorted(outcomes.items())},
        },
        "baselines": {name: _figures(one) for name, one in report.baselines.items()},
        "recommended": _recommended(report.recommendation),
        "expected": _expected(report),
        "memory": _memory(report),
        **_around(report),
        "skipped": list(report.skipped),
        "apply": report.apply_text,
        "profile_path": str(report.profile_path),
        "apply_path": str(report.apply_path),
        "journal_path": str(report.journal_path),
        "interrupted": report.is_interrupted,
        "duration_s": round(report.duration_s, 3),
        "ended": report.ended,
        "changes": list(report.changes),
    }


def _expected(report: SweepReport) -> dict[str, Any] | None:
    """What was expected of the recommended settings before they ran; null where nothing was."""
    expected = report.chosen.expected if report.chosen else None
    if expected is None:
        return None
    figures = {"ttft_s": expected.ttft_s, "decode_tok_per_s": expected.decode_tok_per_s}
    return {
        **{
            name: {"value": one.p50, "low": one.low, "high": one.high, "basis": one.basis.value}
            for name, one in figures.items()
        },
        "bound_tok_per_s": expected.bound_tok_per_s,
        "bound_prefill_tok_per_s": expected.bound_prefill_tok_per_s,
    }


def _memory(report: SweepReport) -> dict[str, Any]:
    """Peak and expectation of each device under the recommended settings."""
    chosen = report.chosen
    predicted = dict(chosen.device_predicted_bytes) if chosen else {}
    return {
        name: {"peak_bytes": peak, "predicted_bytes": predicted.get(name)}
        for name, peak in (chosen.device_peak_bytes if chosen else ())
    }


def recall_json(report: RecallReport) -> dict[str, Any]:
    """A stored answer, with the same keys as a sweep's where they mean the same."""
    rests_on = report.rests_on
    return {
        "machine_id": rests_on.machine_id,
        "engine": {"version": rests_on.engine_version},
        "gguf": {
            "identity": report.gguf_id,
            "path": str(report.path),
            "n_layer": report.n_layer,
            "stands_for": plain(report.stands_for),
        },
        "trials": {"ok": rests_on.n_ok, "failed": rests_on.n_failed, "rounds": rests_on.n_rounds},
        "baselines": {name: _figures(one) for name, one in report.baselines.items()},
        "recommended": _recommended(report.recommendation),
        **_around(report),
        "skipped": list(report.skipped),
        "apply": report.apply_text,
        "rests_on": _journal(rests_on),
        "notes": list(report.notes),
    }


def _around(report: SweepReport | RecallReport) -> dict[str, Any]:
    """What else can be had, the recommended settings first, and why these won."""
    second = report.explanation.runner_up
    return {
        "front": [
            {
                "settings": plain(point.trial.settings),
                "changes": list(point.changes),
                "ttft_s": point.ttft_s,
                "decode_tok_per_s": point.decode_tok_per_s,
                "n_ctx": point.n_ctx,
                "device_bytes": point.device_bytes,
                "n_visits": point.n_visits,
            }
            for point in report.front.points
        ],
        "front_tolerance_frac": report.front.tolerance_frac,
        "explanation": {
            "neighbours": plain(report.explanation.neighbours),
            "limits": plain(report.explanation.limits),
            "runner_up": second
            and {
                "settings": plain(second.trial.settings),
                "changes": list(second.changes),
                "ratio": plain(second.ratio),
                "verdict": second.verdict.value,
            },
            "unknown": report.explanation.unknown or None,
        },
    }


def history_json(journals: Sequence[JournalSummary | UnreadableJournal]) -> dict[str, Any]:
    """Every journal, newest first; `unreadable` is the reason where one cannot be read, and then there is no more."""
    return {"journals": [_journal(one) for one in journals]}


def _journal(one: JournalSummary | UnreadableJournal) -> dict[str, Any]:
    written_at = one.written_at.isoformat(timespec="seconds")
    if isinstance(one, UnreadableJournal):
        return {"journal_path": str(one.path), "written_at": written_at, "unreadable": one.reason}
    return {
        "journal_path": str(one.path),
        "written_at": written_at,
        "unreadable": None,
        "started_at": one.started_at,
        "gguf_path": str(one.gguf_path),
        "n_layer": one.n_layer,
        "stands_for": plain(one.stands_for),
        "machine_id": one.machine_id,
        "engine_version": one.engine_version,
        "workload": plain(one.workload),
        "goal": one.goal.value,
        "target": one.target.value,
        "n_ctx": one.n_ctx,
        "trials": {"ok": one.n_ok, "failed": one.n_failed, "rounds": one.n_rounds},
        "put_aside": one.was_put_aside,
        "interrupted": one.is_interrupted,
        "under_way": one.is_under_way,
        "recommended": _recommended(one.best) if one.best else None,
    }


def _recommended(answer: Recommendation) -> dict[str, Any]:
    by_name = {one.against: one for one in answer.versus}
    return {
        "settings": plain(answer.trial.settings),
        "target": answer.trial.target.value,
        "goal": answer.goal.value,
        "workload": plain(answer.workload),
        **_figures(answer.figures),
        "peak_bytes": {**dict(answer.peak_bytes), "host_rss": answer.host_peak_rss_bytes},
        "verdict_vs_default": _verdict(by_name.get("default")),
        "versus": {name: plain(one) for name, one in by_name.items()},
        "limits": [plain(one) for one in answer.limits],
        "reasons": list(answer.reasons),
        "evidence_trial_ids": list(answer.evidence_trial_ids),
    }


def _verdict(comparison: Comparison | None) -> str | None:
    return comparison.verdict.value if comparison else None


def _figures(figures: Figures) -> dict[str, Any]:
    value: dict[str, Any] = plain(figures)
    return value


def plain(value: Any) -> Any:
    """JSON value of records, paths, enums and what they hold; infinity and not-a-number become null, which JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, StrEnum):
        return value.value
    return str(value) if isinstance(value, Path) else value

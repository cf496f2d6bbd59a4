"""Loading: what it takes until a file can answer, from the disk and from the system's cache."""

from __future__ import annotations

from offloadtune.benches import LoadTimes
from offloadtune.engine import Runner, cached_frac, drop_cached
from offloadtune.records import GgufFacts, Trial
from offloadtune.units import format_bytes, format_seconds

_SLOW_DISK_BYTES_PER_S = 0.5e9  # of a SATA drive
_COLD_SHARE = 1 / 3
_WARM_FRAC = 0.98


def time_loads(runner: Runner, facts: GgufFacts, trial: Trial, budget_s: float, timeout_s: float) -> LoadTimes:
    """Load cold, where that cannot take most of the budget on a slow disk, then warm; it stays loaded.

    Raises TrialFailedError.
    """
    cold_load_ns, cold_ready_ns, why = None, None, _too_slow(facts, budget_s)
    if not why:
        runner.unload()
        why = _dropped(facts)
    if not why:
        cold_load_ns, cold_ready_ns = runner.time_load(trial, timeout_s=timeout_s)
    is_warm = True if cold_load_ns is not None else _is_cached(facts)
    warm_load_ns, warm_ready_ns = runner.time_load(trial, timeout_s=timeout_s)
    return LoadTimes(
        cold_load_ns=cold_load_ns,
        cold_ready_ns=cold_ready_ns,
        warm_load_ns=warm_load_ns,
        warm_ready_ns=warm_ready_ns,
        why_not_cold=why,
        is_warm=is_warm,
    )


def _too_slow(facts: GgufFacts, budget_s: float) -> str:
    expected_s = facts.file_bytes / _SLOW_DISK_BYTES_PER_S
    if expected_s <= budget_s * _COLD_SHARE:
        return ""
    size = format_bytes(facts.file_bytes)
    return f"{size} may take {format_seconds(expected_s)} from the disk, which is too much of the budget"


def _dropped(facts: GgufFacts) -> str:
    """Why the file is not cold now, "" where it is."""
    try:
        return next((why for path in facts.shard_paths if (why := drop_cached(path))), "")
    except OSError as error:
        return f"the file could not be dropped from the cache: {error.strerror or error}"


def _is_cached(facts: GgufFacts) -> bool | None:
    """Whether all of the file is in the cache, None where the system does not say."""
    try:
        shares = [cached_frac(path) for path in facts.shard_paths]
    except OSError:
        return None
    return None if None in shares else all(share is not None and share >= _WARM_FRAC for share in shares)

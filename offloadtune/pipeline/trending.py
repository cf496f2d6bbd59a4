"""Trending."""

from __future__ import annotations

from pathlib import Path

from offloadtune.benches import BenchRun


def keep_run(run: BenchRun) -> Path:
    return Path(run.started_at)

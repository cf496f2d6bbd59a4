"""A sweep without an engine or a machine: what its rounds need besides results and visits, for tests to fill."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from offloadtune.pipeline.measuring import Measuring


def bare_sweep() -> Any:
    """A `Measuring` on which nothing changes, whose placements are loaded one at a time."""
    sweep: Any = object.__new__(Measuring)
    sweep.runner = SimpleNamespace(n_model_loads=0, loaded=frozenset(), keep_abreast=lambda _placements: None)
    sweep.free_memory = SimpleNamespace(free_bytes={}, look=lambda _settings, **_how: None)
    sweep.header = SimpleNamespace(free_bytes={})
    sweep.results, sweep.rounds, sweep.all_rounds, sweep.told, sweep.changes = [], [], [], [], []
    sweep.plan, sweep.ended, sweep.abreast = None, "", frozenset()
    sweep.is_gone = sweep.may_be_abreast = False
    sweep.is_plan_done = True
    return sweep

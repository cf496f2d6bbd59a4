"""A look that may not take seconds, and two questions that take seconds side by side."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from offloadtune.probe import Door, hardware, read_hardware

HOSTS = Path(__file__).parents[1] / "hosts"
PATIENCE_S = 30.0


@pytest.mark.parametrize(
    ("machine", "untold"),
    [("windows_desktop", {"memory.modules", "gpus.windows"}), ("macbook_m3_pro", {"memory.modules"})],
)
def test_no_program_that_takes_seconds_is_started(
    machine: str, untold: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Door.command

    def quick_command(door: Door, name: str, *arguments: str, **options: Any) -> str | None:
        assert name not in {"powershell", "system_profiler"}
        return command(door, name, *arguments, **options)

    monkeypatch.setattr(Door, "command", quick_command)
    reasons = {note.subject: note.reason for note in read_hardware(Door(HOSTS / machine), may_be_slow=False).notes}
    assert all("takes seconds" in reasons[subject] for subject in untold)


def test_modules_and_cards_are_asked_for_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    both_asked = threading.Barrier(2, timeout=PATIENCE_S)

    def slots(*_: Any, **__: Any) -> str:
        both_asked.wait()
        return "There are none."

    def gpus(*_: Any, **__: Any) -> Any:
        both_asked.wait()
        return (), ()

    monkeypatch.setattr(hardware, "read_slots", slots)
    monkeypatch.setattr(hardware, "read_gpu_hardware", gpus)
    assert read_hardware().gpus == ()

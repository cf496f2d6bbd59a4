"""What the probe and the doctor make of each recorded machine, whole: golden files in tests/golden/hosts."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from golden import FOLDER, check_golden

from offloadtune.doctor import examine
from offloadtune.hardware import Examination, MachineProfile
from offloadtune.probe import Door, probe_host, read_conditions, read_hardware
from offloadtune.records import Machine

HOSTS = Path(__file__).parents[1] / "hosts"
MACHINES = sorted(file.parent.name for file in HOSTS.glob("*/system.json"))


def examined(door: Door) -> dict[str, Any]:
    """The machine in depth, and the codes of what holds it back, the worst first."""
    hardware = read_hardware(door)
    profile = MachineProfile(
        machine=Machine(host=probe_host(measure=False, door=door), devices=()),
        engine=None,
        hardware=hardware,
        device_speeds=(),
        measured_at="2026-01-01T00:00:00Z",
    )
    examination = Examination(profile=profile, now=read_conditions(door=door))
    findings = examine(examination)
    return {"findings": [finding.code for finding in findings], "hardware": dataclasses.asdict(hardware)}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_recorded_machine_is_read_and_judged_as_before(machine: str) -> None:
    name = f"hosts/{machine}.json"
    if not (FOLDER / name).exists() and os.environ.get("OFFLOADTUNE_UPDATE_GOLDEN") != "1":
        pytest.fail(f"{FOLDER / name} is missing: OFFLOADTUNE_UPDATE_GOLDEN=1 writes it; read it before you commit it")
    check_golden(name, json.dumps(examined(Door(HOSTS / machine)), indent=1, sort_keys=True) + "\n")


def test_every_golden_file_has_its_machine() -> None:
    assert {path.stem for path in (FOLDER / "hosts").glob("*")} <= set(MACHINES)


def test_every_machine_is_in_the_readme() -> None:
    text = (HOSTS / "README.md").read_text(encoding="utf-8")
    assert [machine for machine in MACHINES if f"`{machine}`" not in text] == []

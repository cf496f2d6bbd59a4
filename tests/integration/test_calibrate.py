"""`offloadtune calibrate` on the real engine: on the CPU alone and with the virtual card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import check_refused, offloadtune
from conftest import MIB, CardMaker

from offloadtune import pipeline
from offloadtune.speeds import CalibrationEvent, CalibrationRequest, PassageMeasured

pytestmark = pytest.mark.engine

PLAIN = ("--set", "use_extra_bufts=false")


def test_the_cpu_alone(smollm2_path: Path, home: Path) -> None:
    events: list[CalibrationEvent] = []
    request = CalibrationRequest(path=smollm2_path, budget_s=40.0, fixed={"use_extra_bufts": False})
    report = pipeline.calibrate(request, events.append)
    passages = [event for event in events if isinstance(event, PassageMeasured)]
    assert 1 <= report.n_passages == len(passages) <= 8
    assert report.devices == ()
    assert report.store_path == home / "profiles" / report.machine_id / "speed.json"
    assert {len(event.checks) for event in passages} == {2}
    assert all(check.measured_s > 0 for event in passages for check in event.checks)
    reading = next(one for one in report.coefficients if one.words == "reading the weights, host")
    assert 1e8 < 1 / reading.seconds < 1e12


def test_a_card_and_the_host_by_the_command_line(smollm2_path: Path, make_card: CardMaker, home: Path) -> None:
    card = make_card(1, 600 * MIB)
    ended = offloadtune("calibrate", smollm2_path, "--rpc", card.endpoint, "--budget", "45s", "--json", *PLAIN)
    assert ended.code == 0, ended.err
    value = json.loads(ended.out)
    assert 1 <= value["n_passages"] <= 8
    assert value["devices"] == ["RPC0"]
    assert "1 of at most 8, 0+64 tokens at n_gpu_layers 31, n_ubatch 512: first token " in ended.err
    (stored,) = (home / "profiles").glob("*/speed.json")
    assert str(stored) == value["store_path"]
    names = {
        name for _, runs in json.loads(stored.read_text())["kinds"] for one in runs for name, _ in one["run"]["amounts"]
    }
    assert "0.weights" in names


def test_a_budget_that_is_too_small_for_anything(smollm2_path: Path) -> None:
    check_refused(offloadtune("calibrate", smollm2_path, "--budget", "10ms", *PLAIN), 12, "10.0 ms")


def test_what_it_tries_itself_cannot_be_set(smollm2_path: Path) -> None:
    check_refused(offloadtune("calibrate", smollm2_path, "--set", "n_gpu_layers=3"), 2, "n_gpu_layers")


def test_a_file_that_is_not_there() -> None:
    check_refused(offloadtune("calibrate", "nothing.gguf"), 11, "nothing.gguf")

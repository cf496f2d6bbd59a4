"""What a device moves, on the real llama.cpp: the CPU, the virtual card, and cards that die or are too small."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import MIB, CardMaker

from offloadtune.engine import Runner, holding
from offloadtune.hardware import DeviceSpeed
from offloadtune.records import Device

pytestmark = pytest.mark.engine

TIMEOUT_S = 60.0


def device_of(runner: Runner, kind: str) -> Device:
    """The CPU, or the virtual card: this machine may have a card of its own."""
    return next(
        device
        for device in runner.describe()[1]
        if device.kind == kind and (kind != "gpu" or device.name.startswith("RPC"))
    )


def moved(speed: DeviceSpeed) -> tuple[float | None, ...]:
    return speed.to_pageable_bytes_per_s, speed.from_pageable_bytes_per_s


def check_small(speed: DeviceSpeed) -> None:
    """Its link is timed; its memory is not, as so little would lie in a cache."""
    assert all(one is not None and one > 0 for one in moved(speed)), speed.reason
    assert speed.memory_bytes_per_s is None
    assert "Too little of its memory is free to copy more than its caches hold." in (speed.reason or "")


def pinned(speed: DeviceSpeed) -> tuple[float | None, ...]:
    return speed.to_pinned_bytes_per_s, speed.from_pinned_bytes_per_s


def test_the_cpu_and_the_card_move_data_and_have_no_pinned_buffers(make_card: CardMaker) -> None:
    card = make_card(2, 1100 * MIB)
    with Runner(Path(), (card.endpoint,)) as runner:
        for kind in ("cpu", "gpu"):
            device = device_of(runner, kind)
            speed = runner.transfers(device.name, timeout_s=TIMEOUT_S, n_threads=2)
            print(speed)
            assert speed.device == device.name
            assert all(one is not None and one > 0 for one in moved(speed)), speed.reason
            assert speed.memory_bytes_per_s is not None
            assert speed.memory_bytes_per_s > 0
            assert pinned(speed) == (None, None)
            assert speed.reason == "It has no pinned buffers in main memory."
        assert device_of(runner, "gpu").free_bytes > 1000 * MIB  # nothing is left behind


def test_tensors_are_a_power_of_two_so_that_what_is_copied_is_whole_tensors() -> None:
    """In a process of its own: only the worker loads the engine."""
    sizes = (0, 1, MIB - 1, MIB, 192 * MIB)
    program = f"from offloadtune.engine.worker.transfers import _power_of_two as f; print([f(n) for n in {sizes}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str([0, 1, MIB // 2, MIB, 128 * MIB])


def test_a_card_too_small_for_usual_sizes_is_measured_with_less(make_card: CardMaker) -> None:
    card = make_card(1, 8 * MIB)
    with Runner(Path(), (card.endpoint,)) as runner:
        speed = runner.transfers(device_of(runner, "gpu").name, timeout_s=TIMEOUT_S)
    check_small(speed)


def test_a_card_without_free_memory_gives_a_reason(make_card: CardMaker) -> None:
    card = make_card(1, MIB // 4)
    with Runner(Path(), (card.endpoint,)) as runner:
        speed = runner.transfers(device_of(runner, "gpu").name, timeout_s=TIMEOUT_S)
        assert (*moved(speed), speed.memory_bytes_per_s) == (None, None, None)
        assert speed.reason == "The device has no memory free to measure with."
        assert runner.transfers(device_of(runner, "cpu").name, timeout_s=TIMEOUT_S).memory_bytes_per_s


def test_a_card_that_claims_more_than_it_gives_is_measured_with_less(make_card: CardMaker) -> None:
    """Its driver takes most of it as soon as anything is asked for."""
    card = make_card(1, 64 * MIB, driver_bytes=54 * MIB)
    with Runner(Path(), (card.endpoint,)) as runner:
        speed = runner.transfers(device_of(runner, "gpu").name, timeout_s=TIMEOUT_S)
    check_small(speed)


def test_a_card_that_dies_gives_a_reason_and_the_next_request_a_figure(make_card: CardMaker) -> None:
    card = make_card(1, 512 * MIB)
    with Runner(Path(), (card.endpoint,)) as runner:
        name = device_of(runner, "gpu").name
        pid = card.pid
        os.kill(pid, signal.SIGSTOP)  # so that it surely dies in the middle

        def kill() -> None:
            time.sleep(0.5)
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        speed = runner.transfers(name, timeout_s=TIMEOUT_S)
        killer.join()
        assert (*moved(speed), speed.memory_bytes_per_s) == (None, None, None)
        assert speed.reason is not None
        assert speed.reason.startswith("The remote device went away while measuring: ")
        again = runner.transfers(name, timeout_s=TIMEOUT_S)
        assert all(one is not None and one > 0 for one in moved(again)), again.reason


def test_a_card_that_hangs_is_given_up(make_card: CardMaker) -> None:
    card = make_card(1, 512 * MIB)
    with Runner(Path(), (card.endpoint,)) as runner:
        name = device_of(runner, "gpu").name
        os.kill(card.pid, signal.SIGSTOP)
        speed = runner.transfers(name, timeout_s=1.0)
        assert moved(speed) == (None, None)
        assert speed.reason == "No answer in the time allowed, while measuring."
        assert runner.pids == ()


def test_without_time_nothing_is_begun_and_the_worker_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "_ANSWER_S", TIMEOUT_S)
    with Runner(Path()) as runner:
        speed = runner.transfers(device_of(runner, "cpu").name, timeout_s=TIMEOUT_S)
        assert runner.pids
    assert (*moved(speed), *pinned(speed), speed.memory_bytes_per_s) == (None,) * 5
    assert (speed.reason or "").count("No time was left to measure its ") == 3


SLOW_AT_FIRST = """\
import subprocess
import sys
from types import SimpleNamespace
from offloadtune.engine.worker import __main__ as worker
from offloadtune.engine.worker import transfers

passed_s = []

def pageable(device):
    passed_s.append(40.0)
    return 2.0, 3.0

transfers.time = SimpleNamespace(monotonic=lambda: sum(passed_s))
transfers._pageable = pageable
worker.main(sys.argv[1:])
"""


def test_what_was_measured_before_time_ran_out_is_kept() -> None:
    """The first part takes 40 of 60 seconds by the worker's clock."""
    with Runner(Path(), command=(sys.executable, "-c", SLOW_AT_FIRST)) as runner:
        speed = runner.transfers(device_of(runner, "cpu").name, timeout_s=TIMEOUT_S)
    assert moved(speed) == (2.0, 3.0)
    assert (*pinned(speed), speed.memory_bytes_per_s) == (None, None, None)
    assert speed.reason == (
        "No time was left to measure its transfers with pinned memory. No time was left to measure its own memory."
    )


def test_an_engine_that_does_not_start_in_the_time_allowed_is_given_up() -> None:
    with Runner(Path(), command=(sys.executable, "-c", "import sys; sys.stdin.read()")) as runner:
        speed = runner.transfers("CUDA0", timeout_s=0.5)
        assert runner.pids == ()
    assert moved(speed) == (None, None)
    assert speed.reason == "No answer in the time allowed, while measuring."


def test_a_device_that_is_not_there_is_told(make_card: CardMaker) -> None:
    card = make_card(1, 64 * MIB)
    with Runner(Path(), (card.endpoint,)) as runner:
        speed = runner.transfers("CUDA7", timeout_s=TIMEOUT_S)
    assert moved(speed) == (None, None)
    assert speed.reason == "The engine lists no device named CUDA7."

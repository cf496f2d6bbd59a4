"""A watch over stretches of work: real ones beside a process that burns a CPU, and scripted ones."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from offloadtune.conditions import Conditions, DisturbanceKind
from offloadtune.engine import Runner
from offloadtune.pipeline.watching import Watch
from offloadtune.probe import read_conditions

BURN = "while True: pass"
STRETCH_S = 0.5
N_TRIES = 8

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what else runs here is told apart as Linux tells it")


@contextmanager
def ours_burning(n: int) -> Iterator[None]:
    # a little behind the stranger, so that it is seen on a machine that has more to do than this test
    processes = [subprocess.Popen(["nice", "-n", "5", sys.executable, "-c", BURN]) for _ in range(n)]  # noqa: S607
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def stranger_burning() -> Iterator[psutil.Process]:
    """A burner whose parent has ended: no child of ours."""
    start = (
        "from subprocess import DEVNULL, Popen; import sys\n"
        f"print(Popen([sys.executable, '-c', {BURN!r}], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL).pid)"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True, timeout=60)
    stranger = psutil.Process(int(done.stdout))
    try:
        while stranger.cpu_times().user < 0.05:  # it has started
            time.sleep(0.01)
        yield stranger
    finally:
        with suppress(ProcessLookupError):
            os.kill(stranger.pid, signal.SIGKILL)


def all_as_ours(except_for: psutil.Process | None, ours: Sequence[int]) -> Conditions:
    """The machine with all its programs counted as ours but one: the test's machine is used by others too."""
    now = read_conditions([1, *ours], with_gpus=False)
    assert now.ours_cpu_s is not None
    if except_for is None:
        return now
    times = except_for.cpu_times()
    return dataclasses.replace(now, ours_cpu_s=now.ours_cpu_s - times.user - times.system)


def cpu_words(watch: Watch) -> str | None:
    watch.begin()
    time.sleep(STRETCH_S)
    return next((one.words for one in watch.end() if one.kind is DisturbanceKind.CPU), None)


@on_linux
@pytest.mark.parametrize("n_ours", [1, 2])
def test_a_stranger_that_burns_a_cpu_is_noticed_and_our_own_burning_is_not(n_ours: int) -> None:
    with ours_burning(n_ours), stranger_burning() as stranger:
        watch = Watch(lambda: (), read=lambda ours: all_as_ours(stranger, ours))
        assert any((cpu_words(watch) or "").startswith("Other programs took ") for _ in range(N_TRIES))
        calm = Watch(lambda: (), read=lambda ours: all_as_ours(None, ours))
        assert None in [cpu_words(calm) for _ in range(N_TRIES)]


@on_linux
def test_a_process_that_is_named_as_ours_disturbs_nobody() -> None:
    with stranger_burning() as stranger:
        before, named_before = read_conditions(), read_conditions([stranger.pid])
        while stranger.cpu_times().user < 0.5:
            time.sleep(0.01)
        after, named_after = read_conditions(), read_conditions([stranger.pid])
    named = (named_after.ours_cpu_s or 0) - (named_before.ours_cpu_s or 0)
    assert named - ((after.ours_cpu_s or 0) - (before.ours_cpu_s or 0)) > 0.3


@pytest.mark.engine
def test_the_worker_is_ours_while_it_lives() -> None:
    with Runner(Path()) as runner:
        assert not runner.pids
        runner.describe()
        (pid,) = runner.pids
        assert psutil.Process(pid).ppid() == os.getpid()
        watch = Watch(lambda: runner.pids)
        watch.begin()
        assert isinstance(watch.end(), tuple)
        os.kill(pid, signal.SIGKILL)
        while runner.pids:
            time.sleep(0.01)


# --- scripted --------------------------------------------------------------------------------------------------------


def moment(at_s: float, others_s: float, *, on_battery: bool = False) -> Conditions:
    """Of a machine with two CPUs that ours keep full, whatever others take of them."""
    return Conditions(
        at_s=at_s,
        n_cpus=2,
        busy_cpu_s=2 * at_s,
        stolen_cpu_s=0.0,
        ours_cpu_s=2 * at_s - others_s,
        available_bytes=None,
        total_bytes=None,
        swapped_bytes=None,
        memory_stall_s=None,
        on_battery=on_battery,
        power_profile=None,
        governor=None,
    )


def watched(*moments: Conditions) -> list[list[str]]:
    """What is told of stretches whose ends are `moments`."""
    script = iter(moments)
    watch = Watch(lambda: (), read=lambda _: next(script))
    told = []
    for _ in range(len(moments) // 2):
        watch.begin()
        told.append([one.words for one in watch.end()])
    return told


def test_a_long_stretch_is_judged_alone() -> None:
    assert watched(moment(0, 0), moment(2, 1.4), moment(2, 1.4), moment(4, 1.4)) == [
        ["Other programs took 0.7 of 2 CPUs."],
        [],
    ]


def test_short_stretches_are_judged_together() -> None:
    """Of the first 50 ms nothing can be said; of a third of a second made of such pieces it can."""
    moments = [moment(0.05 * i, 0.67 * 0.05 * i) for i in range(12) for _ in (0, 1)][1:-1]
    told = watched(*moments)
    assert not told[0]
    assert all(told[6:])
    assert told[6] == ["Other programs took 0.7 of 2 CPUs."]


def test_a_burst_is_forgotten_after_a_third_of_a_second() -> None:
    moments = [moment(0.05 * i, min(0.2, 0.1 * i)) for i in range(20) for _ in (0, 1)][1:-1]
    told = watched(*moments)
    assert any(told[:7])
    assert not any(told[8:])


def test_stretches_far_apart_are_not_joined() -> None:
    burst = [moment(0, 0), moment(0.2, 0.3)]
    assert watched(*burst, moment(0.25, 0.3), moment(0.3, 0.3))[1]
    assert not watched(*burst, moment(5, 0.3), moment(5.05, 0.3))[1]


def test_what_does_not_pass_is_told_once() -> None:
    ends = [moment(0, 0), moment(1, 0, on_battery=True)]
    told = watched(*ends, moment(1, 0), moment(2, 0, on_battery=True))
    assert told == [["The machine is on battery: plugged in, it may be faster."], []]


def test_a_watch_never_raises() -> None:
    def refuse(*_: object) -> tuple[int, ...]:
        raise RuntimeError

    watch = Watch(refuse)
    assert watch.end() == ()
    watch.begin()
    assert watch.end() == ()
    script = iter([moment(0, 0), None, moment(1, 1), moment(2, 2)])  # the second reading fails

    def read(_: Sequence[int]) -> Conditions:
        found = next(script)
        if found is None:
            raise OSError
        return found

    watch = Watch(lambda: (), read=read)
    watch.begin()
    assert watch.end() == ()
    watch.begin()
    assert watch.end() != ()
    watch.begin()  # the script is over
    assert watch.end() == ()

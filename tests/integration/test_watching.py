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

from offloadtune.conditions import Conditions, DisturbanceKind, GpuConditions, GpuProcess
from offloadtune.engine import Runner
from offloadtune.pipeline.watching import Watch, asleep
from offloadtune.probe import read_conditions, slept_s

BURN = "while True: pass"
STRETCH_S = 0.5
N_TRIES = 8
N_OFF_MOST = 2  # on a machine that has more to do than this test
PATIENCE_S = 20.0
N_CPUS_MUCH = 0.4
"""Of two full CPUs: what a stranger that gets so much takes is noticed; on a busy machine it gets less now and then."""
SLACK_S = 0.1  # of the counters' ticks, and of what this process itself does between two readings

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="what else runs here is told apart as Linux tells it")


@contextmanager
def ours_burning(n: int) -> Iterator[list[psutil.Process]]:
    # a little behind the stranger, so that it is seen on a machine that has more to do than this test
    processes = [subprocess.Popen(["nice", "-n", "5", sys.executable, "-c", BURN]) for _ in range(n)]  # noqa: S607
    try:
        yield [psutil.Process(process.pid) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def stranger_burning() -> Iterator[psutil.Process]:
    """A burner whose parent has ended: no child of ours."""
    start = f"{sys.executable} -c '{BURN}' </dev/null >/dev/null 2>&1 & echo $!"
    done = subprocess.run(["/bin/sh", "-c", start], capture_output=True, text=True, check=True, timeout=60)
    stranger = psutil.Process(int(done.stdout))
    try:
        while stranger.cpu_times().user < 0.05:  # it has started
            time.sleep(0.01)
        yield stranger
    finally:
        with suppress(ProcessLookupError):
            os.kill(stranger.pid, signal.SIGKILL)


@pytest.fixture
def two_cpus() -> Iterator[None]:
    """One burner is much of two CPUs, whatever the machine has."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:2])
    yield
    os.sched_setaffinity(0, allowed)


def cpu_s(*processes: psutil.Process) -> float:
    return sum(times.user + times.system for times in (one.cpu_times() for one in processes))


def grown(before: Conditions, after: Conditions) -> tuple[float, float]:
    """CPU seconds that all others, and that ours took."""
    ours_s = (after.ours_cpu_s or 0) - (before.ours_cpu_s or 0)
    return (after.busy_cpu_s or 0) - (before.busy_cpu_s or 0) - ours_s, ours_s


@on_linux
@pytest.mark.usefixtures("two_cpus")
def test_our_burning_is_ours_and_a_strangers_is_not_unless_it_is_named() -> None:
    """Whatever else runs on the machine: the readings differ in whether they name the stranger."""
    with ours_burning(1) as (child,), stranger_burning() as stranger:
        befores = read_conditions(with_gpus=False), read_conditions([stranger.pid], with_gpus=False)
        child_before_s, stranger_before_s, began_s = cpu_s(child), cpu_s(stranger), time.monotonic()
        child_s = stranger_s = 0.0
        while min(child_s, stranger_s) < 5 * SLACK_S:
            if time.monotonic() - began_s > PATIENCE_S:
                pytest.skip("the machine is too busy to burn beside it")
            time.sleep(0.1)
            child_s, stranger_s = cpu_s(child) - child_before_s, cpu_s(stranger) - stranger_before_s
        afters = read_conditions(with_gpus=False), read_conditions([stranger.pid], with_gpus=False)
    (others_s, ours_s), (_, named_ours_s) = map(grown, befores, afters)
    assert ours_s == pytest.approx(child_s, abs=SLACK_S)
    assert named_ours_s == pytest.approx(child_s + stranger_s, abs=2 * SLACK_S)
    assert others_s >= stranger_s - SLACK_S


def all_as_ours(ours: Sequence[int]) -> Conditions:
    """The machine with all its programs counted as ours: the test's machine is used by others too."""
    now = read_conditions([1, *ours], with_gpus=False)
    assert now.ours_cpu_s is not None
    return now


@on_linux
@pytest.mark.usefixtures("two_cpus")
@pytest.mark.parametrize("n_ours", [1, 2])
def test_a_watch_marks_what_a_stranger_burned_beside_and_little_else(n_ours: int) -> None:
    """In the same stretches, on the same readings: one watch counts the stranger as ours, the other does not."""
    last: list[Conditions] = []

    def read(ours: Sequence[int]) -> Conditions:
        last[:] = [all_as_ours(ours)]
        return last[0]

    def read_again(_: Sequence[int]) -> Conditions:
        return dataclasses.replace(last[0], ours_cpu_s=(last[0].ours_cpu_s or 0) - cpu_s(stranger))

    with ours_burning(n_ours), stranger_burning() as stranger:
        watches = Watch(lambda: (), read=read), Watch(lambda: (), read=read_again)
        found, took = [], []
        for _ in range(N_TRIES):
            for watch in watches:
                watch.begin()
            before_s, began_s = cpu_s(stranger), time.monotonic()
            time.sleep(STRETCH_S)
            took.append((cpu_s(stranger) - before_s) / (time.monotonic() - began_s))
            found.append([DisturbanceKind.CPU in {one.kind for one in watch.end()} for watch in watches])
    calm, beside_stranger = zip(*found, strict=True)
    assert sum(calm) <= N_OFF_MOST, found
    noticed = [is_noticed for is_noticed, n_cpus in zip(beside_stranger, took, strict=True) if n_cpus >= N_CPUS_MUCH]
    assert all(noticed), [found, took]
    if not noticed:
        pytest.skip("the machine is too busy to burn beside it")


@pytest.mark.engine
def test_the_worker_is_ours_while_it_lives() -> None:
    with Runner(Path()) as runner:
        assert not runner.pids
        runner.describe()
        (pid,) = runner.pids
        assert psutil.Process(pid).ppid() == os.getpid()
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


def test_too_busy_is_of_now_and_told_once() -> None:
    script = iter([moment(0, 0), moment(2, 1.4), moment(2, 1.4), moment(4, 1.4), moment(4, 1.4), moment(6, 2.8)])
    watch, told, states = Watch(lambda: (), read=lambda _: next(script)), list[str](), []
    for _ in range(3):
        watch.begin()
        watch.end_and_tell(told.append)
        states.append(watch.too_busy)
    busy = "The machine is too busy to measure: other programs took 0.7 of 2 CPUs."
    assert states == [busy, None, busy]
    assert len(told) == 1


def test_a_long_stretch_tells_of_itself_alone() -> None:
    """An hour of a little disturbed stretches does not hide that the machine is busy now."""
    ends = [moment(0, 0), moment(3600, 1080), moment(3600, 1080), moment(3602, 1081.4)]
    script = iter(ends)
    watch = Watch(lambda: (), read=lambda _: next(script))
    for is_busy in (False, True):
        watch.begin()
        assert watch.end()
        assert bool(watch.too_busy) is is_busy


def card(name: str, *processes: GpuProcess, index: int = 0) -> GpuConditions:
    return GpuConditions(
        index=index,
        name="card",
        clock_mhz=None,
        most_clock_mhz=None,
        temperature_c=None,
        throttle_reasons=None,
        other_processes=processes,
        pci_bus_id=name,
    )


def test_a_program_that_stays_on_a_card_disturbs_each_stretch_that_uses_the_card() -> None:
    """Not those on the CPU alone or on another card."""
    game = GpuProcess(pid=7, name="game", n_bytes=2**30)
    cards = card("00:01"), card("00:02", index=1)
    playing = card("00:01", game), cards[1]
    script = iter(
        [
            dataclasses.replace(moment(at_s, 0), gpus=gpus)
            for at_s, gpus in [(0, cards), (1, playing), *((at_s, playing) for at_s in (1, 2, 2, 3, 3, 4, 4, 5, 5, 6))]
        ]
    )
    used: list[str] = []
    watch = Watch(lambda: (), read=lambda _: next(script), cards=lambda: used)
    told = []
    for used[:] in ([], ["00:01"], ["00:01"], ["00:02"], ["00:02", "00:01"], ["00:01"]):
        watch.begin()
        told.append(len(watch.end()))
    assert told == [0, 1, 1, 0, 1, 1]


def test_a_stretch_that_the_machine_slept_in_is_disturbed_and_no_other() -> None:
    slept, script = iter([7.0, 7.0, 7.0, 48.0, 48.0, 48.001]), iter([moment(at_s, 0) for at_s in range(6)])
    watch = Watch(lambda: (), read=lambda _: next(script), sleep=lambda: next(slept))
    told = []
    for _ in range(3):
        watch.begin()
        told.append([one.words for one in watch.end()])
    assert told == [[], ["The machine slept for 41.0 s."], []]


def test_a_machine_that_does_not_tell_of_sleep_did_not_sleep() -> None:
    assert asleep(None, 9.0) == asleep(9.0, None) == asleep(None, None) == ()


def test_nobody_suspends_the_machine_while_this_runs() -> None:
    before_s = slept_s()
    time.sleep(0.05)
    assert asleep(before_s, slept_s()) == ()
    assert (before_s is not None) >= (sys.platform == "linux")


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

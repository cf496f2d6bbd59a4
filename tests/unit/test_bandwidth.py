"""Main memory measured on the very machine that runs the tests; no time and no speed is asserted."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offloadtune.hardware import MemorySpeed
from offloadtune.probe import Door, bandwidth, probe_host
from offloadtune.probe.bandwidth import bytes_to_read, measure_read, measure_speeds
from offloadtune.probe.inventory import memory_speeds
from offloadtune.records import Host, Note
from offloadtune.units import GIB, MIB

HOSTS = Path(__file__).parent.parent / "hosts"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a busy machine start late."""
    monkeypatch.setattr(bandwidth, "START_DEADLINE_S", 60.0)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_reading_gives_a_speed(n_threads: int) -> None:
    speed = measure_read(n_threads, 4 * MIB)
    assert speed is not None
    assert speed > 0


def test_threads_that_cannot_be_fed_give_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(2))
    ones = np.ones

    def one_refusal(*arguments: object, **options: object) -> object:
        if next(calls) == 0:
            raise MemoryError
        return ones(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(bandwidth, "START_DEADLINE_S", 0.05)
    monkeypatch.setattr(np, "ones", one_refusal)
    assert measure_read(2, MIB) is None


@pytest.mark.parametrize(
    ("n_threads", "l3_bytes", "most_bytes", "expected"),
    [
        (2, None, 3 * GIB, 256 * MIB),
        (16, 64 * MIB, 8 * GIB, 512 * MIB),
        (32, 32 * MIB, 8 * GIB, GIB),
        (2, 32 * MIB, 130 * MIB, 130 * MIB),  # still four times the cache
        (2, 54 * MIB, 200 * MIB, None),
    ],
)
def test_arrays_outgrow_the_caches_or_are_not_read(
    n_threads: int, l3_bytes: int | None, most_bytes: int, expected: int | None
) -> None:
    assert bytes_to_read(n_threads, l3_bytes, most_bytes) == expected


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Threads and bytes of every measurement, which is not made: each thread reads 10 bytes per second and copies 4."""
    asked: list[tuple[int, int]] = []

    def measure(n_threads: int, n_bytes: int, _moves: object) -> tuple[float, float]:
        asked.append((n_threads, n_bytes))
        return 10.0 * n_threads, 4.0 * n_threads

    monkeypatch.setattr(bandwidth, "_measure", measure)
    return asked


@pytest.mark.parametrize(
    ("n_most", "steps"),
    [(1, [1]), (2, [2, 1]), (3, [3, 1, 2]), (8, [8, 1, 4, 2]), (64, [64, 1, 32, 16, 8, 4, 2]), (6, [6, 1, 4, 2])],
)
def test_threads_double_up_to_all_cores(n_most: int, steps: list[int], sizes: list[tuple[int, int]]) -> None:
    speeds = measure_speeds(n_most, 32 * MIB, 64 * GIB)
    assert [n_threads for n_threads, _ in sizes] == steps
    assert [one.n_threads for one in speeds] == sorted(steps)
    assert speeds[-1] == MemorySpeed(n_threads=n_most, read_bytes_per_s=10.0 * n_most, copy_bytes_per_s=4.0 * n_most)


def test_no_thread_has_to_write_more_than_a_gibibyte(sizes: list[tuple[int, int]]) -> None:
    measure_speeds(16, 1152 * MIB, 64 * GIB)
    assert sizes == [(16, 9 * GIB), (1, GIB), (8, 8 * GIB), (4, 4 * GIB), (2, 2 * GIB)]


@pytest.mark.parametrize(("deadline", "steps"), [(0.0, [16]), (5.0, [16]), (6.0, [1, 16]), (9.0, [1, 8, 16])])
def test_the_most_telling_threads_are_timed_first_while_there_is_time(
    deadline: float, steps: list[int], sizes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each measurement takes three seconds."""
    monkeypatch.setattr(time, "monotonic", lambda: 3.0 * len(sizes))
    speeds = measure_speeds(16, 32 * MIB, 64 * GIB, deadline)
    assert [one.n_threads for one in speeds] == steps


def test_where_memory_is_short_no_step_is_measured(sizes: list[tuple[int, int]]) -> None:
    assert measure_speeds(4, 32 * MIB, 127 * MIB) == ()
    assert sizes == []


def test_both_speeds_are_measured_with_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "LEAST_BYTES", MIB)
    monkeypatch.setattr(bandwidth, "LEAST_BYTES_PER_THREAD", MIB // 2)
    speeds = measure_speeds(2, None, GIB)
    assert [one.n_threads for one in speeds] == [1, 2]
    assert all(one.read_bytes_per_s > 0 and (one.copy_bytes_per_s or 0) > 0 for one in speeds)


def test_a_copy_counts_what_it_reads_and_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks a second a reading, the speed is the number of bytes moved."""
    seconds = itertools.count()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(seconds) * 10**9)
    moved = []
    copyto = np.copyto

    def noting(target: Any, source: Any) -> None:
        moved.append(target.nbytes + source.nbytes)
        copyto(target, source)

    monkeypatch.setattr(np, "copyto", noting)
    assert bandwidth._move_share(8 * MIB, (bandwidth._copy,), threading.Barrier(1)) == [8 * MIB]
    assert set(moved) == {8 * MIB}


def test_a_copy_leaves_the_half_it_reads() -> None:
    cells = np.arange(10, dtype=np.int64)
    bandwidth._copy(cells)
    assert list(cells) == [5, 6, 7, 8, 9, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("pass_s", [0.01, 0.2, 3.0])
def test_slow_passes_are_fewer(pass_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    passes: list[int] = []
    monkeypatch.setattr(time, "perf_counter_ns", lambda: int(next(ticks) * pass_s * 1e9))
    took_ns = bandwidth._median_ns(lambda _cells: passes.append(1), np.ones(1, dtype=np.int64))
    assert took_ns == pytest.approx(pass_s * 1e9)
    assert len(passes) == {0.01: 5, 0.2: 2, 3.0: 2}[pass_s]


def test_the_steps_of_a_host_and_why_there_are_none(sizes: list[tuple[int, int]]) -> None:
    door = Door(HOSTS / "desktop_ryzen_ddr5_rtx4090")
    host = probe_host(door=door, measure=False)
    recorded = memory_speeds(host, door)
    assert isinstance(recorded, Note)
    assert "recorded" in recorded.reason
    assert sizes == []
    speeds = memory_speeds(host)
    assert not isinstance(speeds, Note)
    assert [one.n_threads for one in speeds][-1] == host.cpu.n_physical_cores
    assert all(n_bytes <= host.ram.available_bytes // 8 for _, n_bytes in sizes)
    poor = memory_speeds(with_available(host, 64 * MIB))
    assert isinstance(poor, Note)
    assert "memory" in poor.reason


def with_available(host: Host, n_bytes: int) -> Host:
    return dataclasses.replace(host, ram=dataclasses.replace(host.ram, available_bytes=n_bytes))

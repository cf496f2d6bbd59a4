"""The probe on the very machine that runs the tests; no time is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offloadtune.probe import Door, bandwidth, host, probe_host
from offloadtune.probe.bandwidth import bytes_to_read, measure_read
from offloadtune.units import GIB, MIB


def test_this_machine() -> None:
    found = probe_host()
    assert found.os.split()[0] in {"Linux", "macOS", "Windows"}
    assert found.cpu.arch
    assert 1 <= found.cpu.n_logical_cores <= (os.cpu_count() or 1)
    assert found.cpu.n_physical_cores is None or 1 <= found.cpu.n_physical_cores <= found.cpu.n_logical_cores
    assert 0 < found.ram.available_bytes <= found.ram.total_bytes
    if found.ram.read_bytes_per_s is None:
        assert "ram.read_bytes_per_s" in {note.subject for note in found.notes}
    else:
        assert found.ram.read_bytes_per_s > 0
        assert found.ram.n_threads_read == (found.cpu.n_physical_cores or found.cpu.n_logical_cores)


def test_importing_the_probe_loads_neither_numpy_nor_pynvml() -> None:
    program = "import sys, offloadtune.probe.gpu_hardware; print({'numpy', 'pynvml'} & set(sys.modules))"
    assert run_python(program) == "set()"


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is set through a Linux call")
def test_affinity_is_honoured() -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from offloadtune.probe import probe_host; cpu = probe_host(measure=False).cpu;"
        "print(cpu.n_logical_cores, cpu.n_physical_cores)"
    )
    assert run_python(program) in {"1 1", "1 None"}


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


def test_the_door_gives_none_for_what_is_not_there(tmp_path: Path) -> None:
    assert Door().text("/no/such/file") is None
    assert Door(tmp_path).text("nul\0byte") is None
    assert Door(tmp_path).names("/no/such/folder") == ()
    assert Door().command("no-such-command-anywhere") is None


def test_a_command_may_fail_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Door().command(sys.executable, "-c", "print('told')") == f"told{os.linesep}"
    assert Door().command(sys.executable, "-c", "raise SystemExit(1)") is None
    monkeypatch.setattr(host, "COMMAND_DEADLINE_S", 0.05)
    assert Door().command(sys.executable, "-c", "import time; time.sleep(60)") is None


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()

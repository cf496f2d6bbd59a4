"""The probe on the very machine that runs the tests; no time is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from offloadtune.probe import Door, host, probe_host


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

"""What a user hears whose engine is not the one this machine could have: at the command line and in a sweep."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SHORT, InProcess
from conftest import ROOT

from offloadtune import pipeline
from offloadtune.install import plan_build, read_toolchain
from offloadtune.install.backend import DISTRIBUTION, ENGINE_VERSION
from offloadtune.pipeline import measuring, probing, rebuilding
from offloadtune.probe import Door, probe_host
from offloadtune.records import Host, Workload
from offloadtune.sweeps import Event, Said, SweepRequest

pytestmark = pytest.mark.engine

TURN = Workload(name="short", n_prefix_cached=0, n_prompt_new=16, n_gen=4)
CARD = "NVML sees NVIDIA GeForce RTX 4090, but this engine was built without CUDA: "


def host_with_a_card(*, measure: bool = True) -> Host:
    """The computer at hand, with the recorded desktop's card as its driver would show it."""
    recorded = probe_host(door=Door(ROOT / "tests/hosts/desktop_ryzen_ddr5_rtx4090"))
    return dataclasses.replace(probe_host(measure=measure), nvml_gpus=recorded.nvml_gpus)


def test_a_card_the_engine_was_not_built_for(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch, smollm2_path: Path
) -> None:
    if any(device.is_offload_target for device in pipeline.probe(measure=False)[0].devices or ()):
        pytest.skip("this engine was built for a device of this machine")
    monkeypatch.setattr(probing, "probe_host", host_with_a_card)
    monkeypatch.setattr(measuring, "probe_host", host_with_a_card)
    probed = in_process("probe", "--quick")
    assert [line.startswith(f"devices: {CARD}") for line in probed.out.splitlines()].count(True) == 1
    swept = in_process("sweep", smollm2_path, *SHORT, "--budget", "20s", "--set=n_threads=1", "--set=n_threads_batch=1")
    assert swept.code == 0, swept.err
    told = [line for line in swept.err.splitlines() if line.startswith(CARD)]
    assert len(told) == 1
    for ended in (probed.out, told[0]):
        assert "CMAKE_ARGS=" in ended
        assert f"{sys.executable} -m pip install --force-reinstall --no-cache-dir 'llama-cpp-python>=" in ended


def said(path: Path, command: tuple[str, ...]) -> str:
    events: list[Event] = []
    request = SweepRequest(path=path, workload=TURN, budget_s=15, worker_command=command)
    report = pipeline.sweep(request, events.append)
    assert report.recommendation.trial.settings.use_extra_bufts is False
    return "\n".join(event.text for event in events if isinstance(event, Said))


@pytest.mark.parametrize("has_tiles", [True, False])
def test_a_broken_engine_is_told_with_what_a_rebuild_is_worth(
    has_tiles: bool,  # noqa: FBT001
    smollm2_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = {"amx_tile"} if has_tiles else set()

    def host(*, measure: bool = True) -> Host:
        here = probe_host(measure=measure)
        others = [flag for flag in here.cpu.flags if flag != "amx_tile"]
        return dataclasses.replace(here, cpu=dataclasses.replace(here.cpu, flags=(*others, *flags)))

    toolchain = dataclasses.replace(read_toolchain({}), is_gcc=True, cpu_flags=frozenset(flags))
    monkeypatch.setattr(measuring, "probe_host", host)
    monkeypatch.setattr(rebuilding, "read_toolchain", lambda _environ: toolchain)
    told = said(smollm2_path, (sys.executable, str(ROOT / "tests/faulty_worker.py"), "s['use_extra_bufts']", "SIGILL"))
    (line,) = [line for line in told.splitlines() if "SIGILL" in line]
    assert "runs with use_extra_bufts=False" in line
    assert "CMAKE_ARGS=" in line
    assert ("847 tok/s" in line and "-fno-dse" in line) == has_tiles
    assert ("cannot be known before" in line) != has_tiles


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_really_broken_engine_is_found_and_worked_round(smollm2_path: Path, tmp_path: Path) -> None:
    """llama.cpp as GCC builds it unasked, which loses the AMX tile set-up; OFFLOADTUNE_BROKEN_ENGINE may name one."""
    toolchain = read_toolchain({})
    if "amx_tile" not in toolchain.cpu_flags or not toolchain.is_gcc:
        pytest.skip("only GCC on a CPU with amx_tile builds an engine that is broken in this way")
    folder = os.environ.get("OFFLOADTUNE_BROKEN_ENGINE") or str(tmp_path / "broken engine")
    if not Path(folder).exists():
        cmake_args = plan_build(toolchain).cpu_args.replace("-DCMAKE_CXX_FLAGS=-fno-dse", "")
        pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-cache-dir", "--no-binary", DISTRIBUTION)
        subprocess.run(
            [*pip, "--target", folder, f"{DISTRIBUTION}=={ENGINE_VERSION}"],
            check=True,
            env={**os.environ, "CMAKE_ARGS": cmake_args, "CC": "cc", "CXX": "c++"},
        )
    search = os.pathsep.join((folder, str(ROOT)))
    told = said(smollm2_path, ("env", f"PYTHONPATH={search}", sys.executable, "-m", "offloadtune.engine.worker"))
    (line,) = [line for line in told.splitlines() if "SIGILL" in line]
    assert "runs with use_extra_bufts=False" in line
    assert "847 tok/s" in line

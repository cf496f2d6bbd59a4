"""What the doctor looks at and what it leaves alone, and what of a machine stays written down."""

from __future__ import annotations

import dataclasses
import os
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sample_machines import CUDA0_SPEED, PROFILE, QUIET, RTX4090, SOUND, WHOLE_ENGINE, changed
from sample_records import CUDA0, FACTS, MACHINE

from offloadtune import store
from offloadtune.hardware import EngineFault, MachineProfile
from offloadtune.install import Gpu, Toolchain
from offloadtune.pipeline import examining, probing, rebuilding
from offloadtune.pipeline.reaching import backends_in, closed_paths
from offloadtune.pipeline.spaces import SelfTestMemory
from offloadtune.records import Machine

LATER = "2026-06-01T00:00:00+00:00"
UNMEASURED = dataclasses.replace(
    CUDA0_SPEED,
    to_pageable_bytes_per_s=None,
    from_pageable_bytes_per_s=None,
    to_pinned_bytes_per_s=None,
    from_pinned_bytes_per_s=None,
    memory_bytes_per_s=None,
    pcie_generation=None,
    n_pcie_lanes=None,
    reason="No answer in the time allowed, while measuring.",
)
PLAIN = Toolchain(
    python_tag="cp311", platform="linux-x86_64", compiler="g++ 12", is_gcc=True, cpu_flags=frozenset({"avx2"})
)


# --- beside a sweep ------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that measures now; what would disturb it fails the test."""
    owner = store.Owner(pid=1, what="a.gguf", began_at=datetime.now(UTC))
    monkeypatch.setattr(store, "owner_now", lambda _folder: owner)
    for place, name in ((probing, "Runner"), (examining, "drop_cached"), (rebuilding, "read_toolchain")):
        monkeypatch.setattr(place, name, lambda *_, name=name, **__: pytest.fail(f"{name} was called"))
    monkeypatch.setattr(examining, "read_conditions", lambda _ours: QUIET)


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize("is_quick", [False, True])
def test_beside_a_sweep_neither_engine_nor_disk_is_touched(
    *, smollm2_path: Path, is_quick: bool, tmp_path: Path
) -> None:
    since = tmp_path / "machine.toml"
    since.write_text(store.render_machine(PROFILE, "0.1.0"))
    said = examining.diagnose(smollm2_path, since=since, is_quick=is_quick)
    codes = [finding.code for finding in said.findings]
    assert "measuring_now" in codes
    assert "engine_missing" not in codes
    assert not [one for one in said.changes or () if "engine" in one.lower()]
    (disk,) = said.examination.disks
    assert (disk.cold_bytes_per_s, disk.warm_bytes_per_s) == (None, None)
    assert {"a.gguf is being measured now, so nothing was timed beside it."} <= {note.reason for note in disk.notes}
    assert said.examination.profile.device_speeds == ()
    assert examining.keep_machine(said.examination) is None


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize("measure", [False, True])
def test_nor_does_the_probe_start_an_engine(*, measure: bool) -> None:
    profile = probing.probe_machine(measure=measure)
    assert profile.engine is None
    assert profile.machine.devices is None
    (note,) = profile.machine.notes
    assert "must not be asked" in note.reason


# --- written down --------------------------------------------------------------------------------------------------


@pytest.fixture
def machine_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(store, "machine_path", lambda _machine: tmp_path / "machine.toml")
    return tmp_path / "machine.toml"


def keep(profile: MachineProfile) -> None:
    examining.keep_machine(dataclasses.replace(SOUND, profile=profile))


def test_what_a_machine_was_is_kept_until_it_changes_again(machine_toml: Path) -> None:
    previous = machine_toml.with_name("machine.previous.toml")
    keep(PROFILE)
    keep(changed(PROFILE, {"measured_at": LATER}))
    assert not previous.exists()
    new = changed(PROFILE, {"hardware.gpus": (dataclasses.replace(RTX4090, driver="560.1"),)})
    keep(new)
    slower = tuple(dataclasses.replace(one, read_bytes_per_s=1e9) for one in new.hardware.memory.speeds)
    new = changed(new, {"hardware.memory.speeds": slower})
    keep(new)
    assert store.read_machine(previous) == store.at_rest(changed(PROFILE, {"measured_at": LATER}))
    assert store.read_machine(machine_toml) == store.at_rest(new)


def test_a_damaged_file_is_written_anew(machine_toml: Path) -> None:
    machine_toml.write_text("[machine")
    keep(PROFILE)
    assert store.read_machine(machine_toml) == store.at_rest(PROFILE)


def test_a_figure_that_was_measured_outlives_one_that_was_not(machine_toml: Path) -> None:
    keep(PROFILE)
    half = dataclasses.replace(UNMEASURED, memory_bytes_per_s=5e11)
    kept = dataclasses.replace(CUDA0_SPEED, memory_bytes_per_s=5e11)
    for speeds in ((half,), (UNMEASURED,), ()):
        keep(changed(PROFILE, {"device_speeds": speeds, "measured_at": LATER}))
        (speed,) = store.read_machine(machine_toml).device_speeds
        assert dataclasses.replace(speed, reason=None) == kept
        assert (speed.reason or "").endswith(f"Some of it was measured {PROFILE.measured_at}.")


def test_figures_of_another_card_are_not_taken_over() -> None:
    def with_device(**fields: Any) -> MachineProfile:
        devices = (dataclasses.replace(CUDA0, **fields),)
        return changed(PROFILE, {"machine.devices": devices, "device_speeds": (UNMEASURED,)})

    assert store.with_figures_of(PROFILE, with_device(device_id="0000:41:00.0")) == (UNMEASURED,)
    assert store.with_figures_of(PROFILE, with_device(description="Another")) == (UNMEASURED,)
    assert store.with_figures_of(PROFILE, with_device()) != (UNMEASURED,)


# --- what a self-test found ----------------------------------------------------------------------------------------


def test_the_placement_that_failed_is_kept() -> None:
    assert list(examining._faults(FACTS, PROFILE)) == []
    SelfTestMemory(FACTS, PROFILE.machine, WHOLE_ENGINE).put({"op_offload": False}, offloads=True)
    (fault,) = examining._faults(FACTS, PROFILE)
    assert fault == EngineFault(knobs=(("op_offload", "False"),), offloads=True, worth=fault.worth)
    assert "cannot be known before it is done" in fault.worth
    assert list(examining._faults(FACTS, changed(PROFILE, {"engine.build_id": "other"}))) == []
    assert list(examining._faults(FACTS, changed(PROFILE, {"engine": None}))) == []


def test_without_a_file_the_last_journal_tells_and_no_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    journals = [types.SimpleNamespace(content=types.SimpleNamespace(kept=kept)) for kept in (None, {"a": 1}, {"b": 2})]
    monkeypatch.setattr(examining, "read_all", lambda _wanted: (journals, []))
    (fault,) = examining._faults(None, PROFILE)
    assert (fault.knobs, fault.offloads) == ((("a", "1"),), None)


# --- another build -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "gpus", "has_line", "vendors"),
    [
        (MACHINE, (), False, []),  # nvcc is gone: the line would leave out the card that is used now
        (MACHINE, (Gpu(backend="CUDA", toolkit="nvcc", device="x"),), True, []),
        (dataclasses.replace(MACHINE, devices=()), (), True, ["nvidia"]),
        (
            dataclasses.replace(MACHINE, devices=(), host=dataclasses.replace(MACHINE.host, nvml_gpus=())),
            (Gpu(backend="ROCm", toolkit="hipcc", device="x"),),
            True,
            ["amd"],
        ),
    ],
)
def test_a_line_never_takes_a_card_away(
    machine: Machine,
    gpus: tuple[Gpu, ...],
    vendors: list[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_line: bool,
) -> None:
    monkeypatch.setattr(rebuilding, "read_toolchain", lambda _environ: dataclasses.replace(PLAIN, gpus=gpus))
    advice = rebuilding.advise(machine, WHOLE_ENGINE)
    assert (advice.line is not None) == has_line
    assert [vendor for vendor, _ in advice.cards] == vendors
    assert all(not has_line or vendor == "nvidia" or (advice.line or "") in words for vendor, words in advice.cards)


# --- what stands between the engine and a card ---------------------------------------------------------------------


def test_the_backends_of_an_engine_are_its_libraries(tmp_path: Path) -> None:
    assert backends_in(tmp_path / "none") is None
    names = ("libggml.so", "libggml-base.so", "libggml-cpu.so", "libggml-cpu.so.0", "libggml-vulkan.so", "libllama.so")
    for name in names:
        (tmp_path / name).touch()
    assert backends_in(tmp_path) == ("cpu", "vulkan")
    (tmp_path / "libggml-cpu.so").unlink()
    assert backends_in(tmp_path) is None  # all in one
    for name in ("ggml-cpu-haswell.dll", "ggml-cuda.dll"):
        (tmp_path / name).touch()
    assert backends_in(tmp_path) == ("cpu", "cuda", "vulkan")


def test_device_files_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, kfd = tmp_path / "dri" / "renderD128", tmp_path / "kfd"
    assert closed_paths({"amd"}, None, in_container=False, dev=tmp_path) == ()
    assert closed_paths({"amd"}, None, in_container=True, dev=tmp_path) == (("amd", kfd), ("amd", tmp_path / "dri"))
    assert closed_paths({"amd"}, ("cpu", "vulkan"), in_container=True, dev=tmp_path) == (("amd", tmp_path / "dri"),)
    node.parent.mkdir()
    node.touch()
    kfd.touch()
    assert closed_paths({"amd", "intel"}, None, in_container=True, dev=tmp_path) == ()
    monkeypatch.setattr(os, "access", lambda path, _how: path != node)
    assert closed_paths({"intel"}, None, in_container=False, dev=tmp_path) == (("intel", node),)
    assert closed_paths({"nvidia"}, None, in_container=False, dev=tmp_path) == ()

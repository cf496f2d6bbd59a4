"""machine.toml: written, read back equal, refused when it is not ours; and what changed since."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_machines import CUDA0_SPEED, MODULES, PROFILE, RADEON, RTX4090, changed
from sample_records import BARE_MACHINE, GIB

from offloadtune import doctor
from offloadtune.conditions import GpuProcess
from offloadtune.errors import UsageError
from offloadtune.hardware import DeviceSpeed, GpuHardware, MachineProfile, MemoryModule, MemorySpeed, NumaNode
from offloadtune.records import Device, EngineBuild, Machine, Note
from offloadtune.store import MACHINE_FORMAT, at_rest, machine_path, read_machine, render_machine

BUSY_CARD = dataclasses.replace(
    RTX4090, throttle_reasons=("hw_slowdown",), processes=(GpuProcess(pid=1, name="x", n_bytes=None),)
)


def written(profile: MachineProfile, folder: Path) -> Path:
    path = folder / "machine.toml"
    path.write_bytes(render_machine(profile, "0.1.0").encode())
    return path


# --- there and back ------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
COUNTS = st.integers(0, 1 << 50)
SPEEDS = st.floats(1, 1e15)
MODULE = st.builds(
    MemoryModule,
    slot=st.none() | TEXTS,
    channel=st.none() | TEXTS,
    kind=st.none() | TEXTS,
    n_bytes=st.none() | COUNTS,
    rated_mt_per_s=st.none() | COUNTS,
    configured_mt_per_s=st.none() | COUNTS,
    n_bits=st.none() | COUNTS,
)
GPU = st.builds(
    GpuHardware,
    vendor=TEXTS,
    index=COUNTS,
    name=TEXTS,
    kind=TEXTS,
    driver=st.none() | TEXTS,
    free_bytes=st.none() | COUNTS,
    pcie_generation=st.none() | COUNTS,
    power_limit_w=st.none() | SPEEDS,
    throttle_reasons=st.none() | st.tuples(TEXTS),
    processes=st.none() | st.just((GpuProcess(pid=1, name="x", n_bytes=None),)),
)
SPEED = st.builds(
    DeviceSpeed,
    device=TEXTS,
    to_pageable_bytes_per_s=st.none() | SPEEDS,
    from_pageable_bytes_per_s=st.none() | SPEEDS,
    to_pinned_bytes_per_s=st.none() | SPEEDS,
    from_pinned_bytes_per_s=st.none() | SPEEDS,
    memory_bytes_per_s=st.none() | SPEEDS,
    reason=st.none() | TEXTS,
)
READS = st.builds(MemorySpeed, n_threads=COUNTS, read_bytes_per_s=SPEEDS, copy_bytes_per_s=st.none() | SPEEDS)
DEVICE = st.builds(
    Device,
    name=TEXTS,
    description=TEXTS,
    kind=TEXTS,
    total_bytes=COUNTS,
    free_bytes=COUNTS,
    device_id=st.none() | TEXTS,
)
NODE = st.builds(NumaNode, index=COUNTS, cpus=st.lists(COUNTS, max_size=3).map(tuple), total_bytes=st.none() | COUNTS)
ENGINE = st.builds(EngineBuild, version=TEXTS, build_id=TEXTS, system_info=TEXTS, library_dir=TEXTS)
NOTES = st.lists(st.builds(Note, subject=TEXTS, reason=TEXTS), max_size=2).map(tuple)
PARTS = st.fixed_dictionaries(
    {
        "engine": st.none() | ENGINE,
        "device_speeds": st.lists(SPEED, max_size=2).map(tuple),
        "hardware.memory.modules": st.none() | st.lists(MODULE, max_size=3).map(tuple),
        "hardware.memory.speeds": st.lists(READS, max_size=3).map(tuple),
        "hardware.memory.numa_nodes": st.lists(NODE, max_size=2).map(tuple),
        "hardware.memory.theoretical_bytes_per_s": st.none() | SPEEDS,
        "hardware.cpu.has_smt": st.none() | st.booleans(),
        "hardware.gpus": st.lists(GPU, max_size=3).map(tuple),
        "hardware.limits.cpus": st.none() | st.floats(0.1, 512),
        "hardware.surroundings.container": st.none() | TEXTS,
        "hardware.notes": NOTES,
        "hardware.root_would_add": st.lists(TEXTS, max_size=2).map(tuple),
        "machine.devices": st.none() | st.lists(DEVICE, max_size=2).map(tuple),
        "machine.notes": NOTES,
        "machine.host.cpu.brand": st.none() | TEXTS,
    }
)


@given(machine=st.sampled_from([PROFILE.machine, BARE_MACHINE]), parts=PARTS)
def test_what_is_written_is_read_back(
    machine: Machine, parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    profile = changed(dataclasses.replace(PROFILE, machine=machine), parts)
    assert read_machine(written(profile, tmp_path_factory.mktemp("m"))) == at_rest(profile)


def test_at_rest_is_at_rest_and_the_same_machine(tmp_path: Path) -> None:
    resting = at_rest(changed(PROFILE, {"hardware.gpus": (BUSY_CARD,)}))
    assert at_rest(resting) == resting
    assert resting.machine.machine_id == PROFILE.machine.machine_id
    assert read_machine(written(PROFILE, tmp_path)).machine.machine_id == PROFILE.machine.machine_id


def test_what_passes_by_itself_is_not_in_the_file(tmp_path: Path) -> None:
    text = written(changed(PROFILE, {"hardware.gpus": (BUSY_CARD,)}), tmp_path).read_text()
    document = tomllib.loads(text)
    assert (document["format"], document["offloadtune"]) == (MACHINE_FORMAT, "0.1.0")
    assert document["machine_id"] == PROFILE.machine.machine_id
    assert document["measured_at"] == "2026-05-04T03:02:01+00:00"
    passing = ("free_bytes", "available_bytes", "processes", "temperature", "throttle", "clock_mhz =", "pid")
    kept = ("most_clock_mhz", "memory_clock_mhz")
    lines = [line for line in text.splitlines() if not line.startswith(kept)]
    assert [line for line in lines for word in passing if word in line] == []
    assert document["hardware"]["gpus"][0]["power_limit_w"] == 450.0
    assert document["device_speeds"][0]["pcie_generation"] == 4
    assert "pcie_generation" not in document["hardware"]["gpus"][0]


def test_a_path_that_is_no_unicode_is_still_written(tmp_path: Path) -> None:
    odd = changed(PROFILE, {"engine.library_dir": os.fsdecode(b"/home/\xff/lib")})
    back = read_machine(written(odd, tmp_path))
    assert back.engine is not None
    assert back.engine.library_dir == "/home/?/lib"


def test_the_file_lies_beside_the_profiles_of_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "profiles" / PROFILE.machine.machine_id
    assert machine_path(PROFILE.machine) == folder / "machine.toml"


# --- what is refused -----------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_machine(path)
    assert caught.value.hint
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = written(PROFILE, tmp_path)
    path.write_text(path.read_text().replace(f"format = {MACHINE_FORMAT}", f"format = {MACHINE_FORMAT + 1}"))
    assert "newer offloadtune" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"format = 1",
        b'format = "x"',
        b"format = 1\nmachine = 3",
        b"format = 1\nmachine = {host = {ram = 1}}",
        b"a = " + b"[" * 5000,
        b"[machine",
        b"# " + b"x" * (9 << 20),
    ],
    ids=["empty", "binary", "bare", "no number", "no table", "no ram", "deep", "torn", "huge"],
)
def test_what_is_no_machine_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_bytes(content)
    assert "is no machine file of offloadtune, or is damaged" in refusal(path)


def test_a_file_cut_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    path = written(PROFILE, tmp_path)
    whole = path.read_bytes()
    refused = 0
    for n_bytes in range(0, len(whole), 97):
        path.write_bytes(whole[:n_bytes])
        try:
            read_machine(path)
        except UsageError:
            refused += 1
    assert refused > len(whole) // 97 // 2


def test_a_number_without_measure_is_refused(tmp_path: Path) -> None:
    path = written(PROFILE, tmp_path)
    path.write_text(path.read_text().replace(f"total_bytes = {64 * GIB}", f"total_bytes = 1{'0' * 400}"))
    assert "is damaged" in refusal(path)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.toml")
    assert "it is no file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "it is no file" in refusal(tmp_path / "pipe")
    assert "cannot be read" in refusal(Path("a\0b"))
    assert "\x1b" not in refusal(tmp_path / "a\x1b[2J.toml")


# --- what changed --------------------------------------------------------------------------------------------------


def test_nothing_changed_at_rest() -> None:
    assert doctor.changes(PROFILE, PROFILE) == ()
    assert doctor.changes(at_rest(PROFILE), at_rest(changed(PROFILE, {"hardware.gpus": (BUSY_CARD,)}))) == ()


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"machine.host.os": "Linux 6.9"}, "The system is Linux 6.9, it was Linux 6.8 Ubuntu 24.04."),
        ({"machine.host.cpu.brand": "Z"}, "The processor is Z, it was AMD Ryzen 9 7950X 16-Core Processor."),
        ({"machine.host.cpu.n_logical_cores": 8}, "The number of CPUs is 8, it was 32."),
        ({"machine.host.ram.total_bytes": 128 * GIB}, "Main memory is 128 GiB, it was 64.0 GiB."),
        ({"hardware.memory.modules": MODULES[:1]}, "Memory modules changed: went 1 x 32.0 GiB DDR5."),
        (
            {"hardware.memory.modules": tuple(dataclasses.replace(one, n_bytes=16 * GIB) for one in MODULES)},
            "Memory modules changed: came 2 x 16.0 GiB DDR5, went 2 x 32.0 GiB DDR5.",
        ),
        (
            {"hardware.memory.configured_mt_per_s": 4800},
            "The speed of memory is 4800 MT/s, it was 5600 MT/s.",
        ),
        ({"hardware.memory.n_channels": 1}, "The number of memory channels used is 1, it was 2."),
        ({"hardware.gpus": (RTX4090, RADEON)}, "AMD Radeon RX 7900 XTX was added (0000:03:00.0)."),
        ({"hardware.gpus": ()}, "NVIDIA GeForce RTX 4090 is gone (00000000:01:00.0)."),
        (
            {"hardware.gpus": (dataclasses.replace(RTX4090, driver="560.1"),)},
            "The driver of nvidia cards is 560.1, it was 550.54.14.",
        ),
        (
            {"hardware.gpus": (dataclasses.replace(RTX4090, n_pcie_lanes_most=8),)},
            "The PCIe link that NVIDIA GeForce RTX 4090 could have is PCIe 4 x8, it was PCIe 4 x16.",
        ),
        (
            {"hardware.gpus": (dataclasses.replace(RTX4090, power_limit_w=300.0),)},
            "The power limit of NVIDIA GeForce RTX 4090 is 300 W, it was 450 W.",
        ),
        (
            {"device_speeds": (dataclasses.replace(CUDA0_SPEED, pcie_generation=3),)},
            "The PCIe link to CUDA0 under load is PCIe 3 x16, it was PCIe 4 x16.",
        ),
        ({"engine": None}, "The engine llama-cpp-python 0.3.36 is gone."),
        ({"engine.version": "0.3.37"}, "The engine is 0.3.37, it was llama-cpp-python 0.3.36."),
        ({"engine.build_id": "ffff"}, "The engine was built anew: its build is ffff, it was 0123456789ab."),
        (
            {"hardware.memory.speeds": (MemorySpeed(n_threads=16, read_bytes_per_s=40e9, copy_bytes_per_s=None),)},
            "Main memory is 35% slower: 40.0 GB/s, it was 61.2 GB/s.",
        ),
        (
            {"device_speeds": (dataclasses.replace(CUDA0_SPEED, to_pinned_bytes_per_s=12.9e9),)},
            "The link to CUDA0 (pinned) is 49% slower: 12.9 GB/s, it was 25.3 GB/s.",
        ),
        (
            {"device_speeds": (dataclasses.replace(CUDA0_SPEED, memory_bytes_per_s=1842e9),)},
            "The memory of CUDA0 is 100% faster: 1842 GB/s, it was 921 GB/s.",
        ),
    ],
)
def test_what_changed_is_a_sentence(parts: dict[str, Any], sentence: str) -> None:
    assert doctor.changes(PROFILE, changed(PROFILE, parts)) == (sentence,)


def test_an_engine_that_came_is_told() -> None:
    before = changed(PROFILE, {"engine": None})
    assert doctor.changes(before, PROFILE) == ("The engine llama-cpp-python 0.3.36 was installed.",)


def test_two_cards_with_a_new_driver_are_one_change() -> None:
    two = (RTX4090, dataclasses.replace(RTX4090, index=1, pci_bus_id="00000000:41:00.0"))
    before = changed(PROFILE, {"hardware.gpus": two})
    after = changed(PROFILE, {"hardware.gpus": tuple(dataclasses.replace(one, driver="560.1") for one in two)})
    assert doctor.changes(before, after) == ("The driver of nvidia cards is 560.1, it was 550.54.14.",)


def test_what_firmware_and_kernel_keep_of_memory_is_no_change() -> None:
    before = changed(PROFILE, {"machine.host.ram.total_bytes": int(15.51 * GIB)})
    for size, n_changes in ((15.49, 0), (15.6, 0), (15.0, 1), (16.0, 1)):
        after = changed(PROFILE, {"machine.host.ram.total_bytes": int(size * GIB)})
        assert len(doctor.changes(before, after)) == n_changes, size


@given(st.floats(1e9, 1e12), st.floats(0.5, 2.0))
def test_noise_is_no_change(speed: float, ratio: float) -> None:
    def reads(bytes_per_s: float) -> MachineProfile:
        one = MemorySpeed(n_threads=1, read_bytes_per_s=bytes_per_s, copy_bytes_per_s=None)
        return changed(PROFILE, {"hardware.memory.speeds": (one,)})

    found = doctor.changes(reads(speed), reads(speed * ratio))
    if 0.88 < ratio < 1.14:
        assert found == ()
    if ratio < 0.86 or ratio > 1.16:
        assert len(found) == 1
        assert ("faster" in found[0]) == (ratio > 1)


def test_what_was_not_known_is_no_change() -> None:
    blind = changed(
        PROFILE,
        {
            "hardware.memory.modules": None,
            "hardware.memory.configured_mt_per_s": None,
            "hardware.memory.speeds": (),
            "device_speeds": (),
        },
    )
    assert doctor.changes(blind, PROFILE) == ()
    assert doctor.changes(PROFILE, blind) == ()

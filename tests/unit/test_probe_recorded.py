"""Recorded machines (tests/hosts) read as if they stood here."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

from offloadtune.errors import ProbeError
from offloadtune.probe import Door, probe_host
from offloadtune.records import Host
from offloadtune.units import GIB

HOSTS = Path(__file__).parents[1] / "hosts"
MACHINES = sorted(file.parent.name for file in HOSTS.glob("*/system.json"))


def recorded(machine: str) -> Host:
    return probe_host(door=Door(HOSTS / machine))


def reasons(host: Host) -> dict[str, str]:
    return {note.subject: note.reason for note in host.notes}


def unknown_fields(prefix: str, record: Any) -> set[str]:
    return {f"{prefix}.{field.name}" for field in dataclasses.fields(record) if getattr(record, field.name) is None}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_unknown_has_a_note_and_every_note_is_a_sentence(machine: str) -> None:
    host = recorded(machine)
    unknown = unknown_fields("cpu", host.cpu) | unknown_fields("ram", host.ram)
    for gpu in host.nvml_gpus or ():
        unknown |= unknown_fields(f"nvml_gpus[{gpu.index}]", gpu)
    covered = set(reasons(host)) | {"ram.n_threads_read"}  # goes with ram.read_bytes_per_s
    if "nvml_gpus.driver" in covered:
        covered |= {f"nvml_gpus[{gpu.index}].driver" for gpu in host.nvml_gpus or ()}
    assert unknown <= covered
    assert len(reasons(host)) == len(host.notes)
    assert all(note.reason.endswith(".") and len(note.reason.split()) > 2 for note in host.notes)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_recorded_machine_asks_nothing_of_this_one(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a recorded door reached the live machine")

    monkeypatch.setattr(subprocess, "run", refuse)
    for name in ("read_nvml", "_live_system"):
        monkeypatch.setattr(f"offloadtune.probe.host.{name}", refuse)
    monkeypatch.setattr("offloadtune.probe.bandwidth.measure_read", refuse)
    assert recorded(machine).ram.read_bytes_per_s is None


@pytest.mark.parametrize(
    ("machine", "os", "brand", "n_physical", "n_logical", "l3_mib"),
    [
        ("desktop_ryzen_ddr5_rtx4090", "Linux 6.8 Ubuntu 24.04", "AMD Ryzen 9 7950X 16-Core Processor", 16, 32, 64),
        ("laptop_hybrid_intel", "Linux 6.1 Debian 12", "13th Gen Intel(R) Core(TM) i5-1340P", 12, 16, 12),
        (
            "container_cgroup2_limit",
            "Linux 5.15 Debian 12",
            "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz",
            2,
            2,
            54,
        ),
        ("vm_without_dmi", "Linux 6.18 Debian 12", "AMD EPYC", 1, 1, 32),
        (
            "server_nvml_refusals",
            "Linux 5.14 Red Hat Enterprise Linux 9.4",
            "Intel(R) Xeon(R) Gold 6434",
            6,
            12,
            None,
        ),
        ("macbook_m3_pro", "macOS 14.5", "Apple M3 Pro", 11, 11, None),
        ("windows_desktop", "Windows 11", "Intel64 Family 6 Model 151 Stepping 2, GenuineIntel", 12, 20, None),
    ],
)
def test_system_and_processor(
    *, machine: str, os: str, brand: str, n_physical: int, n_logical: int, l3_mib: int | None
) -> None:
    host = recorded(machine)
    assert host.os == os
    assert host.cpu.brand == brand
    assert (host.cpu.n_physical_cores, host.cpu.n_logical_cores) == (n_physical, n_logical)
    assert host.cpu.l3_bytes == (None if l3_mib is None else l3_mib * 2**20)


@pytest.mark.parametrize(
    ("machine", "total_bytes", "available_bytes", "kind", "mt_per_s", "n_modules"),
    [
        ("desktop_ryzen_ddr5_rtx4090", 65543216 * 1024, 58110480 * 1024, "DDR5", 6000, 2),
        ("laptop_hybrid_intel", 15993164 * 1024, 9120448 * 1024, None, 5200, 8),
        # the pod's limit rules, not the roomier ones above it; its own page cache of 1 GiB counts as free
        ("container_cgroup2_limit", 8 * GIB, 6 * GIB, None, None, None),
        ("vm_without_dmi", 16 * GIB, 14 * GIB, None, None, None),
        ("server_nvml_refusals", 527951232 * 1024, 498073600 * 1024, "DDR5", 4800, 8),
        ("macbook_m3_pro", 18 * GIB, 9 * GIB, None, None, None),
        ("windows_desktop", 34133696512, 20937965568, None, None, None),
    ],
)
def test_memory(
    *,
    machine: str,
    total_bytes: int,
    available_bytes: int,
    kind: str | None,
    mt_per_s: int | None,
    n_modules: int | None,
) -> None:
    ram = recorded(machine).ram
    assert (ram.total_bytes, ram.available_bytes) == (total_bytes, available_bytes)
    assert (ram.kind, ram.configured_mt_per_s, ram.n_modules) == (kind, mt_per_s, n_modules)


def test_flags_are_those_that_all_cores_share() -> None:
    flags = recorded("laptop_hybrid_intel").cpu.flags
    assert {"avx2", "avx_vnni"} <= set(flags)
    assert "serialize" not in flags


def test_ddr5_out_of_specification_is_explained() -> None:
    assert "systemd before 256" in reasons(recorded("laptop_hybrid_intel"))["ram.kind"]


def test_a_card_that_answers() -> None:
    gpus = recorded("desktop_ryzen_ddr5_rtx4090").nvml_gpus
    assert gpus is not None
    (gpu,) = gpus
    assert gpu.name == "NVIDIA GeForce RTX 4090"
    assert (gpu.total_bytes, gpu.free_bytes) == (25757220864, 24691736576)
    assert (gpu.driver, gpu.compute_capability, gpu.pci_bus_id) == ("560.35.03", "8.9", "00000000:01:00.0")
    assert (gpu.pcie_generation, gpu.n_pcie_lanes) == (4, 16)


def test_a_refusal_costs_one_field_or_one_card() -> None:
    host = recorded("server_nvml_refusals")
    assert host.nvml_gpus is not None
    first, third = host.nvml_gpus
    assert (first.index, third.index) == (0, 2)
    assert (first.uuid, first.total_bytes, first.pcie_generation, first.driver) == (None, None, None, None)
    assert (first.name, first.n_pcie_lanes) == ("NVIDIA H100 80GB HBM3", 16)
    assert (third.name, third.n_pcie_lanes) == ("NVIDIA GPU", 8)
    assert "GpuIsLost" in reasons(host)["nvml_gpus[1]"]
    assert reasons(host)["nvml_gpus[0].uuid"] == "nvmlDeviceGetUUID failed: NoPermission."


@pytest.mark.parametrize(
    ("answers", "gpus"),
    [
        ('{"error": "LibraryNotFound"}', ()),
        ('{"error": "DriverNotLoaded"}', ()),
        ('{"devices": []}', ()),
        ('{"error": "LibRmVersionMismatch"}', None),
        ('{"devices": 3}', None),
        ("[]", None),
        (None, None),
    ],
)
def test_no_cards_and_unknown_cards_differ(tmp_path: Path, answers: str | None, gpus: tuple[()] | None) -> None:
    record(tmp_path)
    if answers is not None:
        (tmp_path / "nvml.json").write_text(answers)
    host = probe_host(door=Door(tmp_path))
    assert host.nvml_gpus == gpus
    assert "nvml_gpus" in reasons(host)


def test_a_bare_system_is_still_a_host(tmp_path: Path) -> None:
    record(tmp_path)
    host = probe_host(measure=False, door=Door(tmp_path))
    assert (host.os, host.cpu.brand, host.cpu.n_physical_cores, host.cpu.n_logical_cores) == ("Plan9 4", None, None, 1)
    assert reasons(host)["ram.read_bytes_per_s"] == "Measuring was not asked for."


def test_a_folder_without_a_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"system\.json"):
        probe_host(door=Door(tmp_path))


def test_a_machine_without_memory_is_refused(tmp_path: Path) -> None:
    record(tmp_path, memory=False)
    with pytest.raises(ProbeError, match="how much memory"):
        probe_host(door=Door(tmp_path))


def record(folder: Path, *, memory: bool = True) -> None:
    sizes = ', "total_bytes": 8589934592, "available_bytes": 4294967296' if memory else ""
    text = f'{{"name": "Plan9", "release": "4", "arch": "x86_64", "allowed_cpus": [0]{sizes}}}'
    (folder / "system.json").write_text(text)

"""The next step of a finding is of its own cause: of the card, of the engine's build, of the machine around both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sample_machines import CPU_ALONE, CUDA0_SPEED, RADEON, RTX4090, SOUND, WHOLE_ENGINE, changed
from sample_records import CUDA0

from offloadtune import doctor
from offloadtune.hardware import Disk, EngineFault, Finding, Severity
from offloadtune.records import Note
from offloadtune.units import GIB

GPUS, DEVICES, SPEEDS = "profile.hardware.gpus", "profile.machine.devices", "profile.device_speeds"
INFO, SETS = "profile.engine.system_info", "profile.hardware.cpu.instruction_sets"
SURROUNDINGS = "profile.hardware.surroundings"
CPU_INFO = "CPU : AVX2 = 1 | FMA = 1 |"
TURING = dataclasses.replace(RTX4090, name="NVIDIA GeForce RTX 2080", compute_capability="7.5")
LAPTOP = dataclasses.replace(RTX4090, name="NVIDIA GeForce RTX 4090 Laptop GPU")
MISMATCH = Note(subject="nvml_gpus", reason="NVML answered LibRmVersionMismatch.")
KFD = ("amd", Path("/dev/kfd"))
ARC = dataclasses.replace(RADEON, vendor="intel", name="Intel Arc A770", driver="xe")


def found(parts: dict[str, Any]) -> dict[str, Finding]:
    return {one.code: one for one in doctor.examine(changed(SOUND, parts))}


def speed(**fields: Any) -> Any:
    return (dataclasses.replace(CUDA0_SPEED, **fields),)


def test_each_finding_has_a_step_of_its_own() -> None:
    """A card hidden by a variable, and an engine that is old, broken, and lacks instruction sets."""
    parts = {
        DEVICES: CPU_ALONE,
        "profile.engine": dataclasses.replace(
            WHOLE_ENGINE, version="llama-cpp-python 0.3.16", system_info=f"CUDA : ARCHS = 890 | {CPU_INFO}"
        ),
        "card_advice": (("nvidia", "It may be hidden."),),
        "rebuild_line": "LINE",
        "faults": (EngineFault(knobs=(("op_offload", "False"),), offloads=None, worth="Not known."),),
    }
    steps = {code: one.next_step for code, one in found(parts).items()}
    assert steps == {
        "engine_crashes": "Not known. To rebuild: LINE",
        "engine_without_gpu": "It may be hidden.",
        "engine_old": "LINE",
        "instruction_sets_unused": "LINE",
    }
    steps = {code: one.next_step for code, one in found({**parts, "rebuild_line": None}).items()}
    assert "would leave the card out" in steps["engine_old"]
    assert not [step for step in steps.values() if "make sweep" in step]


def test_the_advice_for_one_makers_cards_is_not_anothers() -> None:
    parts = {GPUS: (RTX4090, RADEON), "rebuild_line": "CPU LINE", "card_advice": (("nvidia", "N"), ("intel", "I"))}
    assert "hipcc" in found(parts)["engine_without_gpu"].next_step
    parts["card_advice"] = (("amd", "A"),)
    assert found(parts)["engine_without_gpu"].next_step == "A"


@pytest.mark.parametrize(
    ("parts", "words", "step"),
    [
        ({}, "unused.", "hipcc"),
        ({"backends": ("cpu", "cuda")}, "built without a way to it", "hipcc"),
        ({"backends": ("cpu", "vulkan")}, "something hides it", "GGML_VK_VISIBLE_DEVICES"),
        ({INFO: f"ROCm : NO_VMM = 1 | {WHOLE_ENGINE.system_info}"}, "something hides it", "HIP_VISIBLE_DEVICES"),
        (
            {"backends": ("cpu", "hip"), "variables": ("HIP_VISIBLE_DEVICES",)},
            "something hides it",
            "Unset HIP_VISIBLE_DEVICES",
        ),
        (
            {"backends": ("cpu",), "variables": ("HIP_VISIBLE_DEVICES",)},
            "built without a way to it",
            "hipcc",
        ),
        (
            {"backends": ("cpu", "hip"), "closed_paths": (KFD,)},
            "something hides it",
            "usermod -aG render,video",
        ),
        (
            {"backends": ("cpu", "hip"), "closed_paths": (KFD,), f"{SURROUNDINGS}.container": "docker"},
            "something hides it",
            "--device /dev/kfd",
        ),
        ({GPUS: (RTX4090, ARC)}, "unused.", "glslc"),
        ({GPUS: (RTX4090, ARC), "backends": ("cpu", "vulkan", "cuda")}, "something hides it", "ONEAPI_DEVICE_SELECTOR"),
    ],
)
def test_why_a_card_is_unused_is_said_as_far_as_it_is_known(parts: dict[str, Any], words: str, step: str) -> None:
    finding = found({GPUS: (RTX4090, RADEON), **parts})["engine_without_gpu"]
    assert words in finding.words
    assert step in finding.next_step


def test_files_of_other_makers_say_nothing_of_an_nvidia_card() -> None:
    finding = found({DEVICES: CPU_ALONE, "closed_paths": (KFD,)})["engine_without_gpu"]
    assert "usermod" not in finding.next_step


def test_after_a_mismatch_nothing_else_is_said_of_the_card() -> None:
    parts = {
        "profile.machine.host.notes": (MISMATCH,),
        "profile.machine.host.nvml_gpus": None,
        DEVICES: CPU_ALONE,
        INFO: WHOLE_ENGINE.system_info.partition("| ")[2],
    }
    assert list(found(parts)) == ["driver_mismatch"]
    assert found(parts)["driver_mismatch"].next_step.startswith("Restart the machine")
    inside = found({**parts, f"{SURROUNDINGS}.container": "docker"})
    assert inside["driver_mismatch"].next_step.startswith("Make the container anew")


@pytest.mark.parametrize(
    ("offloads", "words"),
    [(False, "on the CPU alone"), (True, "with the card"), (None, "with a file that was measured here before")],
)
def test_a_crash_is_laid_to_what_crashed(*, offloads: bool | None, words: str) -> None:
    finding = found({"faults": (EngineFault(knobs=(("a", "b"),), offloads=offloads),)})["engine_crashes"]
    assert f"crashes {words}, as it computes by default" in finding.words
    assert "may die" in finding.words


def test_avx_vnni_is_not_missed_where_its_wider_kin_is_used() -> None:
    sets = ("AVX2", "FMA", "AVX_VNNI", "AVX512", "AVX512_VNNI")
    assert found({SETS: sets}) == {}
    finding = found({SETS: sets, INFO: CPU_INFO})["instruction_sets_unused"]
    assert "does not use AVX_VNNI, AVX512, AVX512_VNNI" in finding.words


def test_a_radeon_that_only_radeon_drives_is_told_of_amdgpu() -> None:
    finding = found({GPUS: (RTX4090, dataclasses.replace(RADEON, driver="radeon"))})["no_driver"]
    assert "amdgpu.si_support=1" in finding.next_step
    assert "amdgpu.cik_support=1" in finding.next_step
    assert "older" in finding.next_step


@pytest.mark.parametrize(
    ("card", "is_found"),
    [(RTX4090, True), (TURING, False), (dataclasses.replace(RTX4090, compute_capability=None), False), (ARC, True)],
)
def test_a_small_window_is_told_of_cards_that_can_have_a_larger_one(*, card: Any, is_found: bool) -> None:
    assert ("small_bar1" in found({GPUS: (dataclasses.replace(card, bar1_bytes=256 << 20),)})) == is_found


@pytest.mark.parametrize(
    ("parts", "severity", "step"),
    [
        ({}, Severity.WARNING, "sudo nvidia-smi -i 0 -pl 450"),
        ({"profile.machine.host.os": "Windows 11"}, Severity.WARNING, "as administrator: nvidia-smi -i 0 -pl 450"),
        ({f"{SURROUNDINGS}.is_portable": True}, Severity.NOTE, "charger"),
        ({"now.on_battery": False}, Severity.NOTE, "charger"),
        ({"now.on_battery": False, f"{SURROUNDINGS}.is_portable": False}, Severity.WARNING, "sudo"),
        ({GPUS: (LAPTOP,)}, Severity.NOTE, "charger"),
    ],
)
def test_the_step_for_a_power_limit_is_one_that_the_machine_takes(
    parts: dict[str, Any], severity: Severity, step: str
) -> None:
    cards = tuple(dataclasses.replace(one, power_limit_w=300.0) for one in parts.get(GPUS, (RTX4090,)))
    finding = found({**parts, GPUS: cards})["power_limit_low"]
    assert (finding.severity, step in finding.next_step) == (severity, True)


def test_a_laptops_link_is_as_it_is() -> None:
    parts: dict[str, Any] = {SPEEDS: speed(n_pcie_lanes=4, to_pinned_bytes_per_s=6.4e9)}
    desktop, laptop = found(parts)["pcie_narrow"], found({**parts, f"{SURROUNDINGS}.is_portable": True})["pcie_narrow"]
    assert (desktop.severity, "slot" in desktop.next_step) == (Severity.WARNING, True)
    assert (laptop.severity, "slot" in laptop.next_step) == (Severity.NOTE, False)


def test_a_card_made_with_few_lanes_has_no_more() -> None:
    card = dataclasses.replace(RTX4090, n_pcie_lanes_most=4)
    finding = found({GPUS: (card,), SPEEDS: speed(n_pcie_lanes=4, to_pinned_bytes_per_s=6.4e9)})["pcie_narrow"]
    assert (finding.severity, "slot" in finding.next_step) == (Severity.NOTE, False)


def test_vulkan_may_write_through_the_cards_window() -> None:
    slow = {"to_pinned_bytes_per_s": 5e9}
    assert "pcie_slow" in found({SPEEDS: speed(**slow)})
    vulkan = dataclasses.replace(CUDA0, name="Vulkan0")
    assert found({DEVICES: (vulkan,), SPEEDS: speed(device="Vulkan0", **slow)}) == {}


def test_beside_a_sweep_what_it_does_itself_is_no_fault() -> None:
    parts = {"now.on_battery": True, "now.swap_total_bytes": 8 * GIB, "now.swap_free_bytes": 0}
    assert {"on_battery", "swap_full"} <= found(parts).keys()
    assert found({**parts, "measured_now": "a.gguf"}).keys() == {"measuring_now"}


def test_a_short_read_says_nothing_of_a_drive() -> None:
    disk = Disk(path=Path("a.gguf"), mount_point="/", filesystem="ext4", kind="nvme", cold_bytes_per_s=4e8)
    assert found({"disks": (dataclasses.replace(disk, n_bytes_read=5 << 20),)}) == {}
    assert "disk_slow" in found({"disks": (dataclasses.replace(disk, n_bytes_read=256 << 20),)})

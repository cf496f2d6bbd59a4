"""The doctor's rules on a sound machine with one thing wrong at a time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sample_machines import (
    CARD_NOW,
    CPU_ALONE,
    CUDA0_SPEED,
    DISK,
    MODULES,
    QUIET,
    RADEON,
    RAPHAEL,
    RTX4090,
    SOUND,
    WHOLE_ENGINE,
    changed,
)
from sample_records import BARE_MACHINE, CPU, CUDA0, GIB

from offloadtune import doctor
from offloadtune.conditions import GpuProcess
from offloadtune.doctor import engine
from offloadtune.hardware import (
    CpuHardware,
    Examination,
    Hardware,
    Limits,
    MachineProfile,
    MemoryHardware,
    MemorySpeed,
    NumaNode,
    Severity,
    Surroundings,
)
from offloadtune.install.backend import ENGINE_REQUIREMENT
from offloadtune.records import Note

MEMORY = "profile.hardware.memory"
GPUS = "profile.hardware.gpus"
SPEEDS = "profile.device_speeds"
DEVICES = "profile.machine.devices"
NVML = "profile.machine.host.nvml_gpus"
NOTES = "profile.machine.host.notes"
SURROUNDINGS = "profile.hardware.surroundings"
WSL = Surroundings(is_wsl=True, container=None, hypervisor="microsoft")
VIRTUAL = Surroundings(is_wsl=False, container=None, hypervisor="kvm")
SLOW_READS = (MemorySpeed(n_threads=16, read_bytes_per_s=30e9, copy_bytes_per_s=None),)
TWO_NODES = tuple(NumaNode(index=i, cpus=tuple(range(16 * i, 16 * i + 16)), total_bytes=32 * GIB) for i in (0, 1))
IGPU = dataclasses.replace(CUDA0, name="Vulkan0", kind="igpu", description="AMD Raphael", device_id="0000:0c:00.0")
MISMATCH = Note(
    subject="nvml_gpus", reason="NVML could not be asked for NVIDIA cards: it answered LibRmVersionMismatch."
)
NOT_INSTALLED = Note(subject="nvml_gpus", reason="NVML is not installed here, so no NVIDIA driver can be used.")
NO_DRIVER = Note(subject="gpus[1].driver", reason="No driver has taken this card.")
UNNAMED = Note(subject="gpus[1].driver", reason="The kernel does not name the driver of this card.")
LOST = Note(subject="gpus.nvml[0]", reason="NVML lists card 0 but cannot open it: GpuIsLost.")


def gpu(**fields: Any) -> Any:
    return (dataclasses.replace(RTX4090, **fields),)


def speed(**fields: Any) -> Any:
    return (dataclasses.replace(CUDA0_SPEED, **fields),)


def card_now(**fields: Any) -> Any:
    return (dataclasses.replace(CARD_NOW, **fields),)


def disk(**fields: Any) -> Any:
    return (dataclasses.replace(DISK, **fields),)


def held(n_bytes: int) -> Any:
    return card_now(other_processes=(GpuProcess(pid=7, name="firefox", n_bytes=n_bytes),))


WRONG: list[tuple[dict[str, Any], str, Severity, tuple[str, ...]]] = [
    (
        {f"{MEMORY}.n_channels": 1, f"{MEMORY}.modules": MODULES[:1], f"{MEMORY}.theoretical_bytes_per_s": 44.8e9},
        "single_channel",
        Severity.WARNING,
        ("1 module in 4 slots (DIMM_A2 32.0 GiB)", "44.8 GB/s", "61.2 GB/s (137%) with 16 threads", "50%"),
    ),
    ({f"{MEMORY}.n_channels_most": 8}, "channels_unused", Severity.WARNING, ("2 channels of 8", "25%")),
    (
        {f"{MEMORY}.configured_mt_per_s": 4800},
        "memory_below_rated_speed",
        Severity.WARNING,
        ("rated 5600 MT/s, set to 4800 MT/s (86%)", "EXPO"),
    ),
    (
        {f"{MEMORY}.configured_mt_per_s": 4800, f"{MEMORY}.kind": "LPDDR5"},
        "memory_below_rated_speed",
        Severity.NOTE,
        ("soldered",),
    ),
    ({f"{MEMORY}.speeds": SLOW_READS}, "memory_slow", Severity.WARNING, ("89.6 GB/s", "30.0 GB/s (33%)", "40%")),
    (
        {"profile.hardware.limits": Limits(memory_bytes=8 * GIB), "profile.machine.host.ram.total_bytes": 8 * GIB},
        "memory_limited",
        Severity.NOTE,
        ("8.00 GiB of the machine's 64.0 GiB",),
    ),
    (
        {"profile.hardware.limits": Limits(memory_bytes=3 * GIB), "profile.machine.host.ram.total_bytes": 3 * GIB},
        "memory_limited",
        Severity.WARNING,
        ("less than the file has", "3.00 GiB", "4.00 GiB"),
    ),
    ({"now.swap_free_bytes": 7 * GIB}, "swap_used", Severity.NOTE, ("1.00 GiB of 8.00 GiB",)),
    ({"now.swap_free_bytes": 4 * GIB}, "swap_used", Severity.WARNING, ("4.00 GiB of 8.00 GiB",)),
    ({"now.swap_free_bytes": 64 << 20}, "swap_full", Severity.WARNING, ("64.0 MiB of 8.00 GiB are free",)),
    ({f"{MEMORY}.numa_nodes": TWO_NODES}, "numa_nodes", Severity.NOTE, ("32.0 GiB, 32.0 GiB", "--numa distribute")),
    (
        {"profile.hardware.limits": Limits(address_space_bytes=2 * GIB)},
        "address_space_limited",
        Severity.PROBLEM,
        ("2.00 GiB", "4.00 GiB", "ulimit -v unlimited"),
    ),
    (
        {"profile.hardware.limits": Limits(address_space_bytes=32 * GIB)},
        "address_space_limited",
        Severity.WARNING,
        ("32.0 GiB", "64.0 GiB"),
    ),
    (
        {"profile.hardware.limits": Limits(locked_bytes=8 << 20)},
        "locked_memory_limited",
        Severity.NOTE,
        ("8.00 MiB", "--mlock"),
    ),
    ({NOTES: (MISMATCH,), NVML: None}, "driver_mismatch", Severity.PROBLEM, ("LibRmVersionMismatch", "Restart")),
    ({"profile.hardware.notes": (LOST,)}, "gpu_lost", Severity.PROBLEM, ("GpuIsLost",)),
    (
        {GPUS: gpu(driver="nouveau"), NOTES: (NOT_INSTALLED,), NVML: (), DEVICES: CPU_ALONE},
        "nouveau",
        Severity.WARNING,
        ("nouveau, its driver, cannot compute", "NVML is not installed", "Install NVIDIA's driver"),
    ),
    (
        {GPUS: gpu(driver=None), NOTES: (NOT_INSTALLED,), NVML: (), DEVICES: CPU_ALONE},
        "no_driver",
        Severity.WARNING,
        ("NVIDIA GeForce RTX 4090 cannot be used", "NVML is not installed"),
    ),
    (
        {GPUS: (RTX4090, dataclasses.replace(RADEON, driver=None)), "profile.hardware.notes": (NO_DRIVER,)},
        "no_driver",
        Severity.WARNING,
        ("AMD Radeon RX 7900 XTX", "No driver has taken this card", "amdgpu"),
    ),
    (
        {
            GPUS: gpu(driver="nvidia 550.54.14"),
            NOTES: (NOT_INSTALLED,),
            NVML: (),
            DEVICES: CPU_ALONE,
            f"{SURROUNDINGS}.container": "docker",
        },
        "driver_libraries_missing",
        Severity.WARNING,
        ("GPU 0 (NVIDIA GeForce RTX 4090)", "NVML is not installed", "--gpus all"),
    ),
    (
        {SPEEDS: speed(n_pcie_lanes=4, to_pinned_bytes_per_s=6.4e9)},
        "pcie_narrow",
        Severity.WARNING,
        ("PCIe 4 x4 while data moved; at most it could be PCIe 4 x16", "6.40 GB/s"),
    ),
    (
        {SPEEDS: speed(pcie_generation=1, to_pinned_bytes_per_s=2.9e9)},
        "pcie_narrow",
        Severity.WARNING,
        ("PCIe 1 x16 while data moved", "2.90 GB/s"),
    ),
    (
        {SPEEDS: speed(n_pcie_lanes=8, to_pinned_bytes_per_s=12.9e9)},
        "pcie_narrow",
        Severity.NOTE,
        ("PCIe 4 x8 while data moved",),
    ),
    (
        {SPEEDS: speed(to_pinned_bytes_per_s=6.1e9)},
        "pcie_slow",
        Severity.WARNING,
        ("6.10 GB/s over PCIe 4 x16", "25.0 GB/s to 26.0 GB/s"),
    ),
    ({GPUS: gpu(power_limit_w=300.0)}, "power_limit_low", Severity.WARNING, ("300 W", "450 W", "nvidia-smi -i 0 -pl")),
    ({"now.gpus": held(1 << 30)}, "gpu_memory_shared", Severity.NOTE, ("1.00 GiB in all", "firefox 1.00 GiB")),
    ({"now.gpus": held(6 * GIB)}, "gpu_memory_taken", Severity.WARNING, ("6.00 GiB", "firefox")),
    (
        {"now.gpus": card_now(throttle_reasons=("sw_thermal_slowdown",))},
        "gpu_throttled",
        Severity.WARNING,
        ("60 °C", "1200 of 3105 MHz"),
    ),
    ({"now.on_battery": True}, "on_battery", Severity.WARNING, ("battery",)),
    ({"now.governor": "powersave"}, "power_saver", Severity.WARNING, ("powersave", "performance")),
    ({"now.power_profile": "low-power"}, "power_saver", Severity.WARNING, ("low-power",)),
    ({GPUS: gpu(bar1_bytes=256 << 20)}, "small_bar1", Severity.NOTE, ("256 MiB", "24.0 GiB", "Resizable BAR")),
    (
        {GPUS: (RTX4090, RAPHAEL), DEVICES: (CUDA0, IGPU, CPU)},
        "integrated_gpu",
        Severity.NOTE,
        ("AMD Raphael", "64.0 GiB", "512 MiB", "32.0 GiB"),
    ),
    ({"profile.engine": None}, "engine_missing", Severity.PROBLEM, ("make sweep",)),
    (
        {"profile.engine": dataclasses.replace(WHOLE_ENGINE, version="llama-cpp-python 0.3.16")},
        "engine_old",
        Severity.WARNING,
        ("0.3.16", "0.3.36"),
    ),
    (
        {DEVICES: CPU_ALONE, "advice": "NVML sees it, but this engine was built without CUDA: CMAKE_ARGS=x pip"},
        "engine_without_gpu",
        Severity.WARNING,
        ("GPU 0 (NVIDIA GeForce RTX 4090)", "lists CPU", "550.54.14", "CMAKE_ARGS=x pip"),
    ),
    (
        {GPUS: (RTX4090, RADEON)},
        "engine_without_gpu",
        Severity.WARNING,
        ("AMD Radeon RX 7900 XTX", "amdgpu", "ROCm"),
    ),
    (
        {"needs": (("use_extra_bufts", "False"),), "advice": "Worth knowing: it is not measured. To rebuild: LINE"},
        "engine_crashes",
        Severity.PROBLEM,
        ("use_extra_bufts=False", "LINE"),
    ),
    (
        {"profile.engine.system_info": "CPU : AVX2 = 1 | FMA = 1 |", "advice": "LINE"},
        "instruction_sets_unused",
        Severity.WARNING,
        ("AVX512, AVX512_VNNI", "The engine uses AVX2, FMA", "LINE"),
    ),
    (
        {"profile.machine.host.os": "Windows 11"},
        "sysmem_fallback",
        Severity.NOTE,
        ("NVIDIA GeForce RTX 4090", "CUDA - Sysmem Fallback Policy"),
    ),
    ({SURROUNDINGS: WSL}, "sysmem_fallback", Severity.NOTE, ("WSL on Windows",)),
    (
        {"config_paths": (Path("/etc/llama.cpp/config.ini"),)},
        "config_file",
        Severity.NOTE,
        ("/etc/llama.cpp/config.ini",),
    ),
    ({"variables": ("LLAMA_ARG_THREADS",)}, "environment_settings", Severity.NOTE, ("LLAMA_ARG_THREADS",)),
    (
        {"disks": disk(kind="network", filesystem="nfs4", mount_point="/mnt/nas", cold_bytes_per_s=0.1e9)},
        "disk_network",
        Severity.WARNING,
        ("a.gguf lies on a network drive", "/mnt/nas (nfs4)", "0.10 GB/s", "42.9 s"),
    ),
    ({"disks": disk(kind="wsl_mount")}, "disk_wsl_mount", Severity.WARNING, ("WSL",)),
    ({"disks": disk(kind="hdd", cold_bytes_per_s=0.15e9)}, "disk_hdd", Severity.WARNING, ("hard disk", "0.15 GB/s")),
    ({"disks": disk(kind="memory", cold_bytes_per_s=None)}, "disk_in_memory", Severity.NOTE, ("was not measured",)),
    (
        {"disks": disk(cold_bytes_per_s=0.9e9)},
        "disk_slow",
        Severity.WARNING,
        ("NVMe SSD", "0.90 GB/s", "3.00 GB/s to 7.00 GB/s"),
    ),
]


def test_a_sound_machine_has_no_finding() -> None:
    assert doctor.examine(SOUND) == ()


@pytest.mark.parametrize(
    ("parts", "code", "severity", "words"), WRONG, ids=[f"{i}-{w[1]}" for i, w in enumerate(WRONG)]
)
def test_one_thing_wrong_is_one_finding(
    parts: dict[str, Any], code: str, severity: Severity, words: tuple[str, ...]
) -> None:
    (finding,) = doctor.examine(changed(SOUND, parts))
    assert (finding.code, finding.severity) == (code, severity)
    text = f"{finding.words} {finding.evidence} {finding.next_step}"
    assert [one for one in words if one not in text] == []


def test_each_rule_has_its_case() -> None:
    examined = [changed(SOUND, parts) for parts, *_ in WRONG]
    assert [rule.__name__ for rule in doctor.RULES if not any(list(rule(one)) for one in examined)] == []


def test_every_finding_is_of_full_sentences_and_has_a_code_of_its_own() -> None:
    found: dict[str, set[str]] = {}
    for parts, *_ in WRONG:
        for one in doctor.examine(changed(SOUND, parts)):
            for text in (one.words, one.evidence):
                assert text[:1].isalnum() or text[0] == "/", text
                assert text.endswith("."), text
            assert one.next_step
            found.setdefault(one.code, set()).add(one.severity)
    assert len(found) == 38


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({f"{MEMORY}.n_channels": 1, SURROUNDINGS: VIRTUAL}, "modules of a virtual machine are made up"),
        ({f"{MEMORY}.configured_mt_per_s": 4800, SURROUNDINGS: VIRTUAL}, "modules of a virtual machine are made up"),
        ({f"{MEMORY}.speeds": SLOW_READS, SURROUNDINGS: VIRTUAL}, "modules of a virtual machine are made up"),
        ({f"{MEMORY}.speeds": SLOW_READS, f"{MEMORY}.theoretical_bytes_per_s": None}, "no claim without theory"),
        ({f"{MEMORY}.speeds": SLOW_READS, f"{MEMORY}.n_channels": 8, f"{MEMORY}.n_channels_most": 8}, "many channels"),
        ({f"{MEMORY}.speeds": SLOW_READS, "profile.hardware.cpu.allowed_cpus": (0, 1)}, "two of many CPUs"),
        ({f"{MEMORY}.speeds": SLOW_READS, "profile.hardware.limits": Limits(cpus=2.0)}, "a quota of CPUs"),
        ({f"{MEMORY}.n_channels": 1, f"{MEMORY}.n_channels_most": None}, "nobody says there is a second"),
        ({f"{MEMORY}.configured_mt_per_s": 5580}, "rounded"),
        ({f"{MEMORY}.configured_mt_per_s": None}, "not known"),
        ({SPEEDS: ()}, "an idle link sleeps"),
        ({SPEEDS: speed(pcie_generation=None, n_pcie_lanes=None, to_pinned_bytes_per_s=1e9)}, "a link not seen"),
        ({SPEEDS: speed(to_pinned_bytes_per_s=None)}, "not measured"),
        ({GPUS: gpu(power_limit_w=445.0)}, "nearly its default"),
        ({GPUS: gpu(power_limit_w=500.0)}, "more than its default"),
        ({GPUS: gpu(bar1_bytes=None)}, "not known"),
        ({GPUS: (RTX4090, dataclasses.replace(RADEON, driver=None)), "profile.hardware.notes": (UNNAMED,)}, "unnamed"),
        ({GPUS: (RTX4090, dataclasses.replace(RADEON, driver="vfio-pci"))}, "given to a virtual machine"),
        ({GPUS: (RTX4090, RAPHAEL)}, "an integrated GPU that nobody uses"),
        ({DEVICES: (dataclasses.replace(CUDA0, device_id=None), CPU)}, "a device without an address may be the card"),
        (
            {GPUS: (RTX4090, dataclasses.replace(RTX4090, index=1, pci_bus_id="00000000:41:00.0"))},
            "one of two alike is hidden on purpose",
        ),
        ({"now.swap_free_bytes": 8 * GIB - (100 << 20)}, "a little swap"),
        ({"now.swap_free_bytes": None}, "swap not known"),
        ({"now.governor": "powersave", "now.governed_by": "intel_pstate"}, "the usual governor there"),
        ({"now.gpus": held(100 << 20)}, "a desktop"),
        ({GPUS: gpu(driver="31.0.15.4601"), NVML: (), DEVICES: CPU_ALONE}, "NVML does not tell of it"),
        ({"profile.hardware.limits": Limits(address_space_bytes=1 << 46)}, "more than there is memory"),
        ({"profile.hardware.limits": Limits(locked_bytes=8 << 20), "file_bytes": None}, "no file, no locking"),
        ({"profile.hardware.limits": Limits(memory_bytes=64 * GIB)}, "a limit that does not bind"),
        ({"profile.engine.version": "built from source"}, "a version that is none"),
        ({"profile.engine.system_info": ""}, "nothing is said of instruction sets"),
        ({"disks": disk(cold_bytes_per_s=None)}, "not measured"),
        ({"disks": disk(kind=None, cold_bytes_per_s=0.01e9)}, "a drive of unknown kind"),
        ({"disks": ()}, "no file"),
    ],
)
def test_nothing_is_claimed(parts: dict[str, Any], what: str) -> None:
    assert doctor.examine(changed(SOUND, parts)) == (), what


def test_the_worst_comes_first() -> None:
    parts = {"variables": ("X",), "now.on_battery": True, "needs": (("op_offload", "False"),)}
    found = doctor.examine(changed(SOUND, parts))
    assert [finding.severity for finding in found] == [Severity.PROBLEM, Severity.WARNING, Severity.NOTE]
    assert doctor.worst(found) is Severity.PROBLEM
    assert doctor.worst(found[1:]) is Severity.WARNING
    assert doctor.worst(()) is None


def test_a_machine_of_which_nothing_is_known_has_no_fault_but_its_engine() -> None:
    nothing = Hardware(
        memory=MemoryHardware(
            kind=None,
            rated_mt_per_s=None,
            configured_mt_per_s=None,
            modules=None,
            n_slots=None,
            n_channels=None,
            n_channels_most=None,
            theoretical_bytes_per_s=None,
            source=None,
        ),
        cpu=CpuHardware(
            n_performance_cores=None,
            n_efficiency_cores=None,
            has_smt=None,
            n_online_cpus=None,
            allowed_cpus=(),
            instruction_sets=(),
        ),
        gpus=(),
        limits=Limits(),
        surroundings=Surroundings(is_wsl=False, container=None, hypervisor=None),
    )
    profile = MachineProfile(
        machine=BARE_MACHINE, engine=None, hardware=nothing, device_speeds=(), measured_at="2026-05-04T03:02:01+00:00"
    )
    now = dataclasses.replace(QUIET, governor=None, swap_total_bytes=None, swap_free_bytes=None)
    (finding,) = doctor.examine(Examination(profile=profile, now=now))
    assert finding.code == "engine_missing"
    assert finding.evidence == "No engine was asked."


def test_a_mismatch_is_told_once_and_not_as_a_missing_driver() -> None:
    parts = {GPUS: gpu(driver=None), NOTES: (MISMATCH,), NVML: None, DEVICES: CPU_ALONE}
    assert [one.code for one in doctor.examine(changed(SOUND, parts))] == ["driver_mismatch"]


def test_the_oldest_engine_is_that_of_the_pin() -> None:
    assert f">={'.'.join(map(str, engine.OLDEST))}," in ENGINE_REQUIREMENT

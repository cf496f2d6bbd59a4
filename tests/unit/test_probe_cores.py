"""Cores, instruction sets, limits and surroundings, and the look in depth as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloadtune.hardware import Hardware, Limits, Surroundings
from offloadtune.probe import Door, engine_instruction_sets, host, read_hardware
from offloadtune.probe.instructions import NEEDED_FLAGS, cpu_instruction_sets, parse_mac_flags
from offloadtune.units import GIB

HOSTS = Path(__file__).parents[1] / "hosts"
MACHINES = sorted(file.parent.name for file in HOSTS.glob("*/system.json"))
SYSTEM = {"name": "Linux", "release": "6.8", "arch": "x86_64", "total_bytes": 2**33, "available_bytes": 2**32}
CPU = "sys/devices/system/cpu"


def read(folder: Path, n_cpus: int = 4, **system: object) -> Hardware:
    fields = {**SYSTEM, "allowed_cpus": list(range(n_cpus)), **system}
    (folder / "system.json").write_text(json.dumps(fields))
    return read_hardware(Door(folder))


def write(folder: Path, path: str, content: str) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)


def cores(folder: Path, *siblings: str) -> None:
    """The list of hardware threads of each CPU in turn."""
    for cpu, text in enumerate(siblings):
        write(folder, f"{CPU}/cpu{cpu}/topology/core_cpus_list", f"{text}\n")


def numbers(folder: Path, name: str, *values: int) -> None:
    for cpu, value in enumerate(values):
        write(folder, f"{CPU}/cpu{cpu}/{name}", f"{value}\n")


def reasons(hardware: Hardware) -> dict[str, str]:
    return {note.subject: note.reason for note in hardware.notes}


def kinds(hardware: Hardware) -> tuple[int | None, int | None]:
    return hardware.cpu.n_performance_cores, hardware.cpu.n_efficiency_cores


def test_a_mixed_intel_processor_counts_cores_not_threads(tmp_path: Path) -> None:
    cores(tmp_path, "0-1", "0-1", "2-3", "2-3", "4", "5", "6")
    write(tmp_path, "sys/devices/cpu_core/cpus", "0-3\n")
    write(tmp_path, "sys/devices/cpu_atom/cpus", "4-5\n")
    write(tmp_path, "sys/devices/cpu_lowpower/cpus", "6\n")
    hardware = read(tmp_path, 7)
    assert kinds(hardware) == (2, 3)
    assert hardware.cpu.has_smt is True
    assert kinds(read(tmp_path, allowed_cpus=[0, 1, 4])) == (1, 1)
    assert kinds(read(tmp_path, allowed_cpus=[4, 5])) == (0, 2)


def test_cores_of_arm_by_their_capacity(tmp_path: Path) -> None:
    cores(tmp_path, "0", "1", "2", "3")
    numbers(tmp_path, "cpu_capacity", 414, 414, 1002, 1024)
    numbers(tmp_path, "cpufreq/cpuinfo_max_freq", 1, 1, 1, 1)
    assert kinds(read(tmp_path, arch="aarch64")) == (2, 2)
    write(tmp_path, f"{CPU}/online", "0-3\n")
    assert kinds(read(tmp_path, 2, arch="aarch64")) == (0, 2)  # though none of the fast ones is ours
    numbers(tmp_path, "cpu_capacity", 1024, 1024, 1024, 1024)
    assert kinds(read(tmp_path, arch="aarch64")) == (4, 0)


@pytest.mark.parametrize(
    ("clocks_mhz", "expected"),
    [
        ((5100, 5100, 3300, 3300), (2, 2)),
        ((5881, 5881, 5500, 5500), (4, 0)),  # the better of two dies
        ((5000, 5000, 4300, 4300), (None, None)),
        ((5000, 5000, 4300), (None, None)),
    ],
)
def test_clocks_tell_cores_apart_only_where_they_clearly_differ(
    tmp_path: Path, clocks_mhz: tuple[int, ...], expected: tuple[int | None, int | None]
) -> None:
    cores(tmp_path, "0", "1", "2", "3")
    numbers(tmp_path, "cpufreq/cpuinfo_max_freq", *(1000 * mhz for mhz in clocks_mhz))
    hardware = read(tmp_path)
    assert kinds(hardware) == expected
    assert ("cpu.n_efficiency_cores" in reasons(hardware)) == (expected == (None, None))


def test_cores_that_nobody_lists_are_not_counted(tmp_path: Path) -> None:
    numbers(tmp_path, "cpu_capacity", 1024, 1024, 1024, 1024)
    cores(tmp_path, "0", "1", "2")
    hardware = read(tmp_path)
    assert kinds(hardware) == (None, None)
    assert "share a core" in reasons(hardware)["cpu.n_performance_cores"]


@pytest.mark.parametrize(
    ("told", "arch", "expected"),
    [
        ({0: "5", 1: "6"}, "arm64", (5, 6)),
        ({0: "4"}, "arm64", (4, 0)),
        ({}, "arm64", (None, None)),
        ({0: "Apple M3 Pro"}, "arm64", (None, None)),
        ({}, "x86_64", (11, 0)),
    ],
)
def test_levels_of_a_mac(
    tmp_path: Path, told: dict[int, str], arch: str, expected: tuple[int | None, int | None]
) -> None:
    for level, text in told.items():
        write(tmp_path, f"sysctl_-n_hw.perflevel{level}.physicalcpu.txt", f"{text}\n")
    hardware = read(tmp_path, 11, name="macOS", arch=arch, n_physical_cores=11)
    assert kinds(hardware) == expected
    assert (hardware.cpu.n_online_cpus, hardware.cpu.has_smt) == (11, False)


@pytest.mark.parametrize(
    ("n_allowed", "n_physical", "n_online", "has_smt"),
    [(20, 12, 20, True), (4, 12, 20, True), (12, 12, 12, False), (20, 12, None, True), (12, 12, None, None)],
)
def test_windows(
    tmp_path: Path, n_allowed: int, n_physical: int, n_online: int | None, *, has_smt: bool | None
) -> None:
    hardware = read(tmp_path, n_allowed, name="Windows", n_physical_cores=n_physical, n_online_cpus=n_online)
    assert (hardware.cpu.has_smt, hardware.cpu.n_online_cpus) == (has_smt, n_online)
    assert ("cpu.has_smt" in reasons(hardware)) == (has_smt is None)
    assert {"cpu.n_performance_cores", "cpu.instruction_sets", "surroundings.hypervisor"} <= set(reasons(hardware))


def test_hardware_threads(tmp_path: Path) -> None:
    cores(tmp_path, "0,2", "1,3", "0,2", "1,3")
    assert read(tmp_path).cpu.has_smt is True
    assert read(tmp_path, allowed_cpus=[0, 1]).cpu.has_smt is True  # though a thread of each core is not ours
    write(tmp_path, f"{CPU}/smt/active", "0\n")
    assert read(tmp_path).cpu.has_smt is False


def test_cpus_that_are_online_need_not_be_ours(tmp_path: Path) -> None:
    write(tmp_path, f"{CPU}/online", "0-5,8-9\n")
    cpu = read(tmp_path, allowed_cpus=[8, 9]).cpu
    assert (cpu.n_online_cpus, cpu.allowed_cpus) == (8, (8, 9))


def test_instruction_sets_of_x86_and_arm(tmp_path: Path) -> None:
    laptop = read_hardware(Door(HOSTS / "laptop_hybrid_intel")).cpu
    assert laptop.instruction_sets == ("AVX", "AVX_VNNI", "AVX2", "F16C", "FMA", "BMI2")
    server = read_hardware(Door(HOSTS / "server_nvml_refusals")).cpu
    assert {"AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8"} <= set(server.instruction_sets)
    write(tmp_path, "proc/cpuinfo", "processor : 0\nFeatures : fp asimd asimdhp asimddp sve i8mm bf16\n")
    arm = ("NEON", "ARM_FMA", "FP16_VA", "DOTPROD", "MATMUL_INT8", "SVE")
    assert read(tmp_path, arch="aarch64").cpu.instruction_sets == arm


def test_instruction_sets_of_macs(tmp_path: Path) -> None:
    told = "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\nhw.optional.neon: 1\nhw.optional.fma: 10\n"
    assert parse_mac_flags(told) == ("asimd", "asimddp")
    write(tmp_path, "sysctl_hw.optional.txt", told)
    assert read(tmp_path, name="macOS").cpu.instruction_sets == ("NEON", "ARM_FMA", "DOTPROD")


def test_a_set_takes_all_its_flags() -> None:
    assert cpu_instruction_sets(["avx", "avx2", "amx_int8", "hypervisor"]) == ("AVX", "AVX2")


@pytest.mark.parametrize(
    ("system_info", "expected"),
    [
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | LLAMAFILE = 1 | REPACK = 1 | ", ("AVX", "AVX2", "AVX512")),
        ("AVX = 1 | AVX_VNNI = 0 | AVX2 = 1 | AVX512 = 0 | FMA = 1 | NEON = 0", ("AVX", "AVX2", "FMA")),
        ("CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : NEON = 1 | SVE = 1 | SVE_CNT = 16 | SME = 10", ("NEON", "SVE")),
        ("Metal : EMBED_LIBRARY = 1 | CPU : NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 |", ("NEON", "ARM_FMA", "DOTPROD")),
        ("", ()),
    ],
)
def test_what_an_engine_was_built_with(system_info: str, expected: tuple[str, ...]) -> None:
    assert engine_instruction_sets(system_info) == expected


@given(st.sets(st.sampled_from(sorted(NEEDED_FLAGS))))
def test_an_engine_says_what_it_was_built_with(names: set[str]) -> None:
    words = " | ".join(f"{name} = {int(name in names)}" for name in NEEDED_FLAGS)
    assert set(engine_instruction_sets(f"CPU : {words} | ")) == names


def test_limits(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", f"MemTotal: {8 * GIB // 1024} kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", f"{2 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/job/cpu.max", "150000 100000\n")
    hardware = read(tmp_path, address_space_bytes=4 * GIB, locked_bytes=65536)
    assert hardware.limits == Limits(memory_bytes=2 * GIB, cpus=1.5, address_space_bytes=4 * GIB, locked_bytes=65536)


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", f"MemTotal: {8 * GIB // 1024} kB\n")
    write(tmp_path, "proc/self/cgroup", "4:memory:/\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "400000 100000\n")
    hardware = read(tmp_path)
    assert hardware.limits == Limits()
    assert not [subject for subject in reasons(hardware) if subject.startswith("limits.")]


def test_groups_that_are_not_mounted_are_said(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    assert {"limits.memory_bytes", "limits.cpus"} <= set(reasons(read(tmp_path)))


def test_limits_of_the_live_process(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {1: (5 * GIB, -1), 2: (-1, -1)}
    resource = types.SimpleNamespace(RLIMIT_AS=1, RLIMIT_MEMLOCK=2, RLIM_INFINITY=-1, getrlimit=limits.__getitem__)
    monkeypatch.setitem(sys.modules, "resource", resource)
    assert (host._limit_bytes("RLIMIT_AS"), host._limit_bytes("RLIMIT_MEMLOCK")) == (5 * GIB, None)
    assert host._limit_bytes("RLIMIT_OF_ANOTHER_SYSTEM") is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Surroundings(is_wsl=False, container=None, hypervisor=None)),
        (
            {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n", "run/systemd/container": "wsl\n"},
            Surroundings(is_wsl=True, container=None, hypervisor="hyperv"),
        ),
        (
            {"proc/version": "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)\n"},
            Surroundings(is_wsl=True, container=None, hypervisor="hyperv"),
        ),
        ({".dockerenv": ""}, Surroundings(is_wsl=False, container="docker", hypervisor=None)),
        ({"run/.containerenv": ""}, Surroundings(is_wsl=False, container="podman", hypervisor=None)),
        (
            {"proc/self/cgroup": "0::/kubepods.slice/cri-containerd-9ad2.scope\n", ".dockerenv": ""},
            Surroundings(is_wsl=False, container="kubernetes", hypervisor=None),
        ),
        (
            {"run/secrets/kubernetes.io/serviceaccount/namespace": "x"},
            Surroundings(is_wsl=False, container="kubernetes", hypervisor=None),
        ),
        ({"proc/1/cgroup": "0::/lxc.payload.box\n"}, Surroundings(is_wsl=False, container="lxc", hypervisor=None)),
        (
            {"run/systemd/container": "systemd-nspawn\n"},
            Surroundings(is_wsl=False, container="systemd-nspawn", hypervisor=None),
        ),
        (
            {"proc/self/cgroup": "0::/system.slice/docker.service\n", "proc/1/cgroup": "0::/init.scope\n"},
            Surroundings(is_wsl=False, container=None, hypervisor=None),
        ),
        (
            {"proc/cpuinfo": "processor : 0\nflags : fpu hypervisor avx\n"},
            Surroundings(is_wsl=False, container=None, hypervisor="unnamed"),
        ),
        (
            {"sys/class/dmi/id/sys_vendor": "QEMU\n", "sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9)\n"},
            Surroundings(is_wsl=False, container=None, hypervisor="kvm"),
        ),
        (
            {"sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n", "sys/class/dmi/id/product_name": "Surface 9\n"},
            Surroundings(is_wsl=False, container=None, hypervisor=None),
        ),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
                "sys/class/dmi/id/product_name": "Virtual Machine\n",
            },
            Surroundings(is_wsl=False, container=None, hypervisor="hyperv"),
        ),
        (
            {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "m7g.metal\n"},
            Surroundings(is_wsl=False, container=None, hypervisor=None),
        ),
        (
            {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "m7g.large\n"},
            Surroundings(is_wsl=False, container=None, hypervisor="kvm"),
        ),
        ({"sys/hypervisor/type": "xen\n"}, Surroundings(is_wsl=False, container=None, hypervisor="xen")),
    ],
)
def test_surroundings(tmp_path: Path, files: dict[str, str], expected: Surroundings) -> None:
    for path, content in files.items():
        write(tmp_path, path, content)
    assert read(tmp_path).surroundings == expected


FILES = (
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/self/cgroup",
    "proc/version",
    "proc/device-tree/model",
    "run/systemd/container",
    "sys/class/dmi/id/sys_vendor",
    "sys/class/dmi/id/product_name",
    "sys/hypervisor/type",
    "sys/firmware/dmi/tables/DMI",
    "sys/devices/cpu_core/cpus",
    "sys/devices/cpu_atom/cpus",
    f"{CPU}/online",
    f"{CPU}/smt/active",
    f"{CPU}/cpu0/cpu_capacity",
    f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq",
    f"{CPU}/cpu0/topology/core_cpus_list",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/meminfo",
    "udevadm.txt",
    "powershell.txt",
    "system_profiler.txt",
    "sysctl.txt",
)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(
    name=st.sampled_from(["Linux", "Windows", "macOS", "FreeBSD"]),
    contents=st.dictionaries(st.sampled_from(FILES), st.binary(max_size=200), max_size=len(FILES)),
)
def test_no_content_of_any_file_makes_the_look_in_depth_raise(
    name: str, contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("host")
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    hardware = read(folder, 1, name=name)
    subjects = {note.subject for note in hardware.notes}
    assert hardware.memory.modules or "memory.modules" in subjects
    assert hardware.cpu.n_performance_cores is not None or "cpu.n_performance_cores" in subjects


@pytest.mark.parametrize("machine", MACHINES)
def test_a_recorded_machine_asks_nothing_of_this_one(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a recorded door reached the live machine")

    monkeypatch.setattr(subprocess, "run", refuse)
    for name in ("_live_system", "_limit_bytes", "_allowed_cpus"):
        monkeypatch.setattr(f"offloadtune.probe.host.{name}", refuse)
    assert read_hardware(Door(HOSTS / machine)).cpu.allowed_cpus


def test_this_machine() -> None:
    hardware = read_hardware()
    assert hardware.cpu.allowed_cpus
    assert (hardware.cpu.n_online_cpus or 0) >= len(hardware.cpu.allowed_cpus)
    assert {note.subject.partition(".")[0] for note in hardware.notes} <= {
        "memory",
        "cpu",
        "gpus",
        "limits",
        "surroundings",
    }


@pytest.mark.parametrize(
    ("chassis", "is_portable"),
    [("10\n", True), ("31\n", True), ("3\n", False), ("2\n", None), ("x", None), (None, None)],
)
def test_a_laptop_is_told_by_its_chassis(chassis: str | None, tmp_path: Path, *, is_portable: bool | None) -> None:
    if chassis is not None:
        (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
        (tmp_path / "sys/class/dmi/id/chassis_type").write_text(chassis)
    assert read(tmp_path).surroundings.is_portable is is_portable

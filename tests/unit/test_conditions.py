"""The conditions of recorded machines (tests/hosts), and of the machine that runs the tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.conditions import Conditions, GpuProcess
from offloadtune.interference import standing
from offloadtune.probe import Door, nvml, read_conditions
from offloadtune.probe.conditions import local_servers
from offloadtune.probe.host import UNSEEN_PID, Listener
from offloadtune.probe.load import cpu_times, parse_process
from offloadtune.units import GIB, MIB

HOSTS = Path(__file__).parents[1] / "hosts"
MACHINES = sorted(file.parent.name for file in HOSTS.glob("*/system.json"))


def recorded(machine: str, *ours: int) -> Conditions:
    return read_conditions(ours, door=Door(HOSTS / machine))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_recorded_machine_asks_nothing_of_this_one(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a recorded door reached the live machine")

    for name in ("read_nvml_moment", "_live_moment", "_allowed_cpus", "psutil.Process", "psutil.net_connections"):
        monkeypatch.setattr(f"offloadtune.probe.host.{name}", refuse)
    assert recorded(machine).n_cpus >= 1
    assert local_servers(["myhost:50052"], door=Door(HOSTS / machine)) == ()


def test_a_laptop_on_battery() -> None:
    now = recorded("laptop_on_battery", 5000)
    assert now.n_cpus == 2
    assert now.busy_cpu_s == pytest.approx(14.00 + 27.00)  # of the two CPUs allowed; the guest's time counts once
    assert now.stolen_cpu_s == pytest.approx(0.15)
    # itself with its ended children, its worker (the child of a thread), the worker's child, and the server
    assert now.ours_cpu_s == pytest.approx(2.25 + 11.00 + 0.02 + 3.30)
    assert now.swapped_bytes == 4000 * 4096
    assert now.memory_stall_s == pytest.approx(2.5)
    assert (now.swap_total_bytes, now.swap_free_bytes) == (7911420 * 1024, 197120 * 1024)
    assert (now.on_battery, now.power_profile) == (True, "low-power")
    assert (now.governor, now.governed_by) == ("powersave", "intel_pstate")
    assert now.gpus == ()
    assert [one.words for one in standing(now)] == [
        "The machine is on battery: plugged in, it may be faster.",
        "The power profile is 'low-power', which holds the clock down.",
        "Swap is full: 192 MiB of 7.54 GiB are free.",
    ]


def test_a_server_whose_card_is_hot_and_taken() -> None:
    now = recorded("server_busy_h100", 7100)
    assert now.busy_cpu_s == pytest.approx(60.0)  # the container numbers its two CPUs anew
    assert now.stolen_cpu_s == pytest.approx(7.0)
    assert now.ours_cpu_s == pytest.approx(1.0 + 2.0 + 3.0 + 4.0)  # by the parents: this kernel lists no children
    assert now.memory_stall_s == pytest.approx(0.04)  # of its own group, not of the machine
    busy, idle = now.gpus
    assert (busy.index, busy.clock_mhz, busy.most_clock_mhz, busy.temperature_c) == (0, 1155, 1980, 88)
    assert (busy.pci_bus_id, busy.hot_ns) == ("00000000:3B:00.0", 4_000_000_000)
    assert busy.throttle_reasons == ("sw_thermal_slowdown", "hw_thermal_slowdown")
    assert busy.other_processes == (GpuProcess(pid=7001, name="vllm[2J::worker", n_bytes=40 * GIB),)  # nor unseen ones
    assert (busy.others_bytes, busy.ours_bytes) == (42 * GIB, 8 * GIB)
    assert busy.clock_is_free is True
    assert (idle.index, idle.pci_bus_id, idle.hot_ns, idle.other_processes) == (2, None, None, None)
    assert (idle.throttle_reasons, idle.clock_is_free) == ((), False)
    assert [one.words for one in standing(now)] == [
        "GPU 0 (NVIDIA H100 80GB HBM3) is throttled at 88 °C: sw thermal slowdown, hw thermal slowdown.",
        "Other programs hold 42.0 GiB of GPU 0 (NVIDIA H100 80GB HBM3): vllm[2J::worker 40.0 GiB.",
    ]


def test_what_a_server_that_is_not_seen_takes_is_not_called_others() -> None:
    now = recorded("server_busy_h100", UNSEEN_PID)
    assert now.ours_cpu_s is None
    assert [gpu.other_processes for gpu in now.gpus] == [None, None]
    assert recorded("macbook_m3_pro", UNSEEN_PID).ours_cpu_s is None


def test_a_machine_without_proc_is_told_by_psutil() -> None:
    now = recorded("macbook_m3_pro")
    assert (now.n_cpus, now.busy_cpu_s, now.ours_cpu_s, now.stolen_cpu_s) == (11, 5000.5, 4.75, None)
    assert (now.on_battery, now.swapped_bytes) == (True, MIB)


def test_a_quota_is_what_there_is_to_share(tmp_path: Path) -> None:
    system = '{"name": "Linux", "release": "6", "arch": "x86_64", "allowed_cpus": [0, 1, 2, 3]}'
    files = {
        "system.json": system,
        "proc/stat": "".join(f"cpu{cpu} 100 0 0 900 0 0 0 50\n" for cpu in range(4)),
        "proc/self/cgroup": "0::/pod/me\n",
        "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/pod/cpu.stat": "usage_usec 7250000\nthrottled_usec 90000\n",
        "sys/fs/cgroup/pod/me/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/me/cpu.stat": "usage_usec 1000000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    now = read_conditions(door=Door(tmp_path))
    assert (now.n_cpus, now.busy_cpu_s, now.stolen_cpu_s) == (2, 7.25, None)
    (tmp_path / "sys/fs/cgroup/pod/cpu.stat").unlink()
    now = read_conditions(door=Door(tmp_path))
    assert (now.n_cpus, now.busy_cpu_s) == (2, None)
    (tmp_path / "sys/fs/cgroup/pod/cpuacct.usage").write_text("3000000000\n")
    assert read_conditions(door=Door(tmp_path)).busy_cpu_s == 3.0
    (tmp_path / "sys/fs/cgroup/pod/cpu.max").write_text("800000 100000\n")  # more than there are CPUs
    now = read_conditions(door=Door(tmp_path))
    assert (now.n_cpus, now.busy_cpu_s, now.stolen_cpu_s) == (4, 4.0, 2.0)


def test_two_threads_of_a_core_are_one_core() -> None:
    now = recorded("desktop_ryzen_ddr5_rtx4090")
    assert (now.n_cpus, now.n_cores) == (32, 16)


def test_what_a_machine_does_not_tell_is_none() -> None:
    now = recorded("windows_desktop")
    assert (now.busy_cpu_s, now.ours_cpu_s, now.swapped_bytes, now.memory_stall_s, now.on_battery) == (None,) * 5
    assert standing(now) == ()


@pytest.mark.parametrize("machine", MACHINES)
def test_cards_can_be_left_out(machine: str) -> None:
    assert read_conditions(door=Door(HOSTS / machine), with_gpus=False).gpus == ()


@pytest.mark.parametrize("name", ["system.json", "nvml.json", "moment.json", "proc/stat", "proc/meminfo"])
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"devices": [3, {"nvmlDeviceGetName": 7}]}', "cpu0 x\ncpu", "\0"]
)
def test_nonsense_raises_nothing(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / name).write_text(text)
    now = read_conditions(door=Door(tmp_path))
    assert (now.busy_cpu_s, now.n_cpus) == (None, 1)


SUPPLIES = {
    "plugged in": ({"AC": "Mains 1", "BAT0": "Battery Charging"}, False),
    "plugged in, and still discharging": ({"AC": "Mains 1", "BAT0": "Battery Discharging"}, False),
    "through USB": ({"AC": "Mains 0", "BAT0": "Battery Full", "usb": "USB 1"}, False),
    "full, and no more said": ({"BAT0": "Battery Full"}, False),
    "unplugged": ({"AC": "Mains 0", "BAT0": "Battery Discharging", "BAT1": "Battery Unknown"}, True),
    "a battery that does not say": ({"BAT0": "Battery Unknown"}, None),
    "no battery": ({}, None),
    "a UPS": ({"ups": "UPS Discharging"}, None),
    "a mouse": ({"mouse": "Battery Discharging"}, None),
}


@pytest.mark.parametrize("case", SUPPLIES)
def test_battery(case: str, tmp_path: Path) -> None:
    supplies, expected = SUPPLIES[case]
    for name, words in supplies.items():
        folder = tmp_path / "sys/class/power_supply" / name
        folder.mkdir(parents=True)
        kind, state = words.split()
        if name == "mouse":
            (folder / "scope").write_text("Device\n")
        (folder / "type").write_text(f"{kind}\n")
        (folder / ("status" if kind in {"Battery", "UPS"} else "online")).write_text(f"{state}\n")
    assert read_conditions(door=Door(tmp_path)).on_battery is expected


@pytest.mark.parametrize(
    ("profile", "hint", "expected"),
    [
        ("balanced", "balance_performance", "balanced"),
        ("balanced", "power", "power"),
        ("low-power", "power", "low-power"),
        (None, "power", "power"),
        (None, "performance", None),
    ],
)
def test_power_profile(profile: str | None, hint: str, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "system.json").write_text('{"name": "Linux", "release": "6", "arch": "x86_64", "allowed_cpus": [3]}')
    files = {
        "sys/firmware/acpi/platform_profile": profile,
        "sys/devices/system/cpu/cpu3/cpufreq/energy_performance_preference": hint,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if text:
            (tmp_path / name).write_text(f"{text}\n")
    assert read_conditions(door=Door(tmp_path)).power_profile == expected


def test_the_slowest_governor_counts(tmp_path: Path) -> None:
    (tmp_path / "system.json").write_text('{"name": "Linux", "release": "6", "arch": "x86_64", "allowed_cpus": [0, 2]}')
    for cpu, name in enumerate(["schedutil", "powersave", "ondemand"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{name}\n")
    assert read_conditions(door=Door(tmp_path)).governor == "ondemand"  # CPU 1 is not ours to use


@given(st.text())
def test_any_text_for_the_counters_is_survived(text: str) -> None:
    assert cpu_times(text, (0,)) is None or text.startswith("cpu")
    assert parse_process(text) is None or len(text.split()) > 10


# --- NVML ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A driver with one card on which this process and another compute; the calls that opened or closed it."""
    calls: list[str] = []
    rows = [
        pynvml.nvmlStructToFriendlyObject(pynvml.c_nvmlProcessInfo_v3_t(pid=os.getpid(), usedGpuMemory=3 * GIB)),
        pynvml.nvmlStructToFriendlyObject(pynvml.c_nvmlProcessInfo_v3_t(pid=os.getppid(), usedGpuMemory=512 * MIB)),
    ]
    answers: dict[str, Any] = {
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetName": b"NVIDIA GeForce RTX 4090",
        "nvmlDeviceGetClockInfo": 2520,
        "nvmlDeviceGetComputeRunningProcesses": rows,
        "nvmlDeviceGetMemoryInfo": pynvml.c_nvmlMemory_t(total=24 * GIB, free=20 * GIB, used=4 * GIB),
    }
    for name in nvml.MOMENT_CALLS:
        monkeypatch.setattr(pynvml, name, refusing)
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(nvml, "_kept", nvml._Kept())
    monkeypatch.setattr(nvml, "_stuck", [])
    return calls


def refusing(*_: object) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_every_call_may_be_refused_alone_and_the_driver_stays_open(driver: list[str]) -> None:
    for _ in range(3):
        (gpu,) = read_conditions().gpus
    assert driver == ["nvmlInit"]
    assert (gpu.name, gpu.clock_mhz, gpu.most_clock_mhz) == ("NVIDIA GeForce RTX 4090", 2520, None)
    assert (gpu.temperature_c, gpu.hot_ns, gpu.throttle_reasons, gpu.clock_is_free) == (None, None, None, None)
    assert (gpu.others_bytes, gpu.ours_bytes) == (GIB, 3 * GIB)
    (other,) = gpu.other_processes or ()
    assert (other.pid, other.name, other.n_bytes) == (os.getppid(), psutil.Process(os.getppid()).name(), 512 * MIB)


def test_a_driver_that_hangs_is_asked_once(driver: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object) -> int:
        driver.append("hung")
        let_go.wait(60)
        return 1

    let_go = threading.Event()
    assert read_conditions().gpus
    monkeypatch.setattr(nvml, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", hang)
    began_s = time.monotonic()
    assert [read_conditions().gpus for _ in range(3)] == [(), (), ()]
    assert nvml.read_nvml() == {"error": "Timeout"}
    assert driver == ["nvmlInit", "hung"]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    let_go.set()
    nvml._stuck[0].join()
    assert read_conditions().gpus  # it was late, not wedged
    assert time.monotonic() - began_s < 60


def test_a_driver_that_does_not_open_is_asked_a_few_times(driver: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(n_times: int) -> None:
        driver.append("asked")
        if len(driver) <= n_times:
            refusing()

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: refuse(1))
    assert [len(read_conditions().gpus) for _ in range(3)] == [0, 1, 1]
    assert len(driver) == 2
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: refuse(100))
    monkeypatch.setattr(nvml, "_kept", nvml._Kept())
    assert [read_conditions().gpus for _ in range(9)] == [()] * 9
    assert len(driver) == 2 + 3


# --- this machine ----------------------------------------------------------------------------------------------------


def test_this_machine_counts_on() -> None:
    before = read_conditions()
    sum(range(3_000_000))
    after = read_conditions()
    assert after.at_s > before.at_s
    assert after.n_cpus >= 1
    assert (after.busy_cpu_s or 0) >= (before.busy_cpu_s or 0)
    assert (after.ours_cpu_s or 0) >= (before.ours_cpu_s or 0) > 0


def test_ended_children_still_count() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before = read_conditions()
    subprocess.run([sys.executable, "-c", burn], check=True)
    after = read_conditions()
    assert before.ours_cpu_s is not None
    assert after.ours_cpu_s is not None
    assert after.ours_cpu_s - before.ours_cpu_s >= 0.25


def test_a_foreign_process_counts_only_when_named() -> None:
    others = [one.pid for one in psutil.process_iter() if one.pid in {1, os.getppid()}]
    without, named = read_conditions(), read_conditions(others)
    assert (named.ours_cpu_s or 0) > (without.ours_cpu_s or 0)
    assert read_conditions([2**22 + 1]).ours_cpu_s is not None  # a process that does not exist


def test_a_server_on_this_machine_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert local_servers([f"127.0.0.1:{port}"]) == local_servers([f"localhost:{port}"]) == (os.getpid(),)
        assert local_servers([f"{socket.gethostname()}:{port}"]) == (os.getpid(),)
        assert local_servers([f"192.0.2.1:{port}", f"no-name-of-ours:{port}"]) == ()  # another machine's
    assert local_servers([]) == local_servers(["", ":", "localhost", "localhost:http"]) == ()


class _Listening(Door):
    """A machine with two servers, one open to all."""

    def addresses(self) -> frozenset[str]:
        return frozenset({"192.168.1.7", "::1"})

    def host_names(self) -> frozenset[str]:
        return frozenset({"box", "box.example.org"})

    def listeners(self) -> tuple[Listener, ...]:
        return (
            Listener(address="0.0.0.0", port=50052, pid=11),  # noqa: S104
            Listener(address="127.0.0.1", port=50053, pid=12),
        )


@pytest.mark.parametrize(
    ("endpoint", "pids"),
    [
        ("192.168.1.7:50052", (11,)),
        ("192.168.1.8:50052", ()),
        ("127.0.0.1:50052", (11,)),
        ("localhost:50053", (12,)),
        ("192.168.1.7:50053", (UNSEEN_PID,)),  # not open to this address
        ("[::1]:50052", (11,)),
        ("localhost:50054", (UNSEEN_PID,)),  # another user's
        ("Box:50053", (12,)),
        ("box.example.org:50052", (11,)),
        ("box.example.com:50052", ()),
        ("localhost:http", ()),
    ],
)
def test_which_server_an_endpoint_is(endpoint: str, pids: tuple[int, ...]) -> None:
    assert local_servers([endpoint], door=_Listening(HOSTS)) == pids

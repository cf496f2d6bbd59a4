"""What people and programs read of the machine in depth, and of what the doctor found."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
import types
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest
from command_line import InProcess, check_refused
from golden import check_golden
from rich.console import Console, RenderableType
from sample_machines import CUDA0_SPEED, DISK, HARDWARE, PROFILE, QUIET, RADEON, RTX4090, SOUND, WHOLE_ENGINE, changed
from sample_records import BARE_MACHINE, CPU, CUDA0, GIB, MACHINE

from offloadtune import doctor, probe, store
from offloadtune.cli import console
from offloadtune.conditions import GpuProcess
from offloadtune.errors import EngineMissingError
from offloadtune.hardware import (
    DeviceSpeed,
    Diagnosis,
    EngineFault,
    Hardware,
    Limits,
    MachineProfile,
    MemorySpeed,
    NumaNode,
    Surroundings,
)
from offloadtune.pipeline import examining, probing
from offloadtune.records import Device, Note
from offloadtune.report import doctor_json, doctor_view, finding_words, probe_json, probe_view

BUSY = dataclasses.replace(
    RTX4090,
    processes=(GpuProcess(pid=3, name="firefox", n_bytes=1 << 30), GpuProcess(pid=4, name="Xorg", n_bytes=None)),
    throttle_reasons=("sw_power_cap",),
    power_limit_w=300.0,
)
WHY = "udev lists no memory modules: virtual machines, containers and systemd before 248 have no such list."
SERVER = changed(
    PROFILE,
    {
        "hardware.gpus": (BUSY, RADEON),
        "hardware.memory.numa_nodes": tuple(
            NumaNode(index=i, cpus=tuple(range(16)), total_bytes=32 * GIB if i else None) for i in (0, 1)
        ),
        "hardware.memory.configured_mt_per_s": 4800,
        "hardware.cpu.allowed_cpus": (0, 1),
        "hardware.cpu.n_performance_cores": 8,
        "hardware.cpu.n_efficiency_cores": 8,
        "hardware.limits": Limits(memory_bytes=8 * GIB, cpus=2.5, address_space_bytes=GIB, locked_bytes=8 << 20),
        "hardware.surroundings": Surroundings(is_wsl=False, container="docker", hypervisor="kvm"),
        "hardware.root_would_add": ("With root's rights the tables of the firmware would tell the memory modules.",),
        "hardware.notes": (Note(subject="memory.kind", reason=WHY), Note(subject="memory.modules", reason=WHY)),
        "device_speeds": (dataclasses.replace(CUDA0_SPEED, n_pcie_lanes=4, reason="It refused a buffer."),),
    },
)
ILL = dataclasses.replace(
    SOUND,
    profile=changed(
        PROFILE,
        {
            "hardware.memory.n_channels": 1,
            "device_speeds": (dataclasses.replace(CUDA0_SPEED, pcie_generation=1, to_pinned_bytes_per_s=2.9e9),),
            "hardware.root_would_add": ("With root's rights more could be read.",),
        },
    ),
    faults=(
        EngineFault(
            knobs=(("use_extra_bufts", "False"),), offloads=False, worth="Worth knowing: it is not measured here."
        ),
    ),
    rebuild_line='CMAKE_ARGS="-DGGML_RPC=ON" pip install x',
    variables=("LLAMA_ARG_THREADS",),
    disks=(
        dataclasses.replace(
            DISK, cold_bytes_per_s=None, notes=(Note(subject="disk.cold_bytes_per_s", reason="It stays cached."),)
        ),
    ),
)


def diagnosis(examined: Any = SOUND, **fields: Any) -> Diagnosis:
    return Diagnosis(
        examination=examined,
        ladder=doctor.ladder(examined.profile, examined.disks, fields.get("bytes_per_token")),
        findings=doctor.examine(examined),
        **fields,
    )


def screen(view: RenderableType, width: int = 120) -> str:
    """`view` as a terminal shows it, without its colours."""
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None).print(
        view, soft_wrap=True
    )
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def probed(profile: MachineProfile) -> RenderableType:
    return probe_view(profile.machine, profile.engine, (), profile.hardware, profile.device_speeds)


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("probe_desktop", lambda: probed(PROFILE)),
        ("probe_server", lambda: probed(SERVER)),
        ("doctor_sound", lambda: doctor_view(diagnosis(machine_path=Path("/p/machine.toml"), changes=()))),
        (
            "doctor_ill",
            lambda: doctor_view(
                diagnosis(
                    ILL,
                    bytes_per_token=4.2e9,
                    changes=("Main memory is 35% slower: 40.0 GB/s, it was 61.2 GB/s.",),
                    machine_path=Path("/p/machine.toml"),
                )
            ),
        ),
    ],
)
def test_the_screen(name: str, view: Callable[[], RenderableType]) -> None:
    check_golden(f"report/{name}.txt", screen(view()))


def test_a_device_without_an_address_is_the_only_card() -> None:
    apple = dataclasses.replace(RADEON, vendor="apple", index=0, name="Apple M3 Pro", pci_bus_id=None, driver="Metal")
    metal = Device(name="MTL0", description="Apple M3 Pro", kind="gpu", total_bytes=GIB, free_bytes=GIB)
    mac = changed(PROFILE, {"hardware.gpus": (apple,), "machine.devices": (metal, CPU), "machine.host.nvml_gpus": ()})
    text = screen(probed(mac))
    assert "device MTL0" in text
    assert "driver Metal" in text
    assert "apple 0" not in text
    windows = changed(mac, {"machine.devices": (dataclasses.replace(metal, device_id="0000:03:00.0"), CPU)})
    assert "apple 0" in (text := screen(probed(windows)))
    assert "lists no device" not in text  # at what address, nobody tells
    assert "lists no device" in screen(probed(changed(windows, {"hardware.gpus": (RTX4090,)})))


def test_names_from_outside_are_made_safe() -> None:
    evil = "a\x1b[2Jb [red]c"
    card = dataclasses.replace(
        RTX4090, name=evil, driver=evil, processes=(GpuProcess(pid=1, name=evil, n_bytes=1 << 32),), power_limit_w=300.0
    )
    modules = tuple(dataclasses.replace(one, slot=evil) for one in PROFILE.hardware.memory.modules or ())
    profile = changed(
        PROFILE,
        {
            "hardware.gpus": (card,),
            "hardware.memory.modules": modules,
            "hardware.memory.n_channels": 1,
            "hardware.notes": (Note(subject=evil, reason=evil),),
            "hardware.surroundings.container": evil,
            "machine.host.cpu.brand": evil,
            "machine.devices": (dataclasses.replace(CUDA0, name=evil, description=evil), CPU),
            "device_speeds": (dataclasses.replace(CUDA0_SPEED, device=evil, reason=evil),),
        },
    )
    examined = dataclasses.replace(
        SOUND,
        profile=profile,
        variables=(evil,),
        disks=(dataclasses.replace(DISK, kind="network", path=Path(evil), mount_point=evil),),
    )
    for view in (probed(profile), doctor_view(diagnosis(examined, changes=(evil,), machine_path=Path(evil)))):
        text = screen(view, width=10_000)
        assert "\x1b" not in text
        assert "a[2Jb [red]c" in text


def test_output_that_is_no_terminal_keeps_lines_whole(capsys: pytest.CaptureFixture[str]) -> None:
    line = "CMAKE_ARGS=x " + "pip " * 200
    console.show(doctor_view(diagnosis(dataclasses.replace(ILL, rebuild_line=line))))
    assert any(line.strip() in shown for shown in capsys.readouterr().out.splitlines())


def test_how_many_of_each_weight() -> None:
    assert finding_words(()) == ""
    findings = doctor.examine(ILL)
    assert finding_words(findings) == "1 problem, 2 warnings, 1 note"


# --- JSON ----------------------------------------------------------------------------------------------------------


def strict(value: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Any:
    console.show_json(value)
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_probe_has_the_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    value = strict(probe_json(PROFILE.machine, PROFILE.engine, (), PROFILE.hardware, PROFILE.device_speeds), capsys)
    hardware = value["hardware"]
    assert hardware["memory"]["n_channels"] == 2
    assert [one["n_threads"] for one in hardware["memory"]["speeds"]] == [1, 16]
    assert hardware["gpus"][0]["pcie_generation_most"] == 4
    assert hardware["limits"]["memory_bytes"] is None
    assert value["device_speeds"][0]["to_pinned_bytes_per_s"] == 25.3e9
    assert [device["nvml_index"] for device in value["devices"]] == [0, None]
    bare = strict(probe_json(BARE_MACHINE, None), capsys)
    assert (bare["hardware"], bare["device_speeds"]) == (None, [])


def test_the_doctor_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    said = diagnosis(ILL, bytes_per_token=4.2e9, changes=("It changed.",), machine_path=Path("/p/machine.toml"))
    value = strict(doctor_json(said), capsys)
    assert value["machine_id"] == PROFILE.machine.machine_id
    assert value["machine_path"] == "/p/machine.toml"
    assert value["changes"] == ["It changed."]
    assert [one["code"] for one in value["findings"]] == [one.code for one in said.findings]
    assert set(value["findings"][0]) == {"code", "severity", "words", "evidence", "next_step"}
    assert value["findings"][0]["severity"] == "problem"
    rung = next(one for one in value["ladder"] if one["name"] == "main memory")
    assert rung["decode_ceiling_tok_per_s"] == pytest.approx(61.2e9 / 4.2e9)
    assert rung["class_bytes_per_s"] == [50e9, 200e9]
    assert value["disks"][0]["path"] == "/models/a.gguf"
    assert value["hardware"]["memory"]["source"] == "udev"
    nothing = strict(doctor_json(diagnosis()), capsys)
    assert (nothing["changes"], nothing["machine_path"], nothing["findings"]) == (None, None, [])


# --- the commands, on a made-up machine ----------------------------------------------------------------------------


class MadeUp:
    """What the commands find; `measured` lists what was asked to be timed."""

    def __init__(self) -> None:
        self.hardware = changed(HARDWARE, {"memory.speeds": ()})
        self.speeds: tuple[MemorySpeed, ...] = HARDWARE.memory.speeds
        self.pids: tuple[int, ...] = (1,)
        self.now = QUIET
        self.has_engine = True
        self.dies = False
        self.measured: list[tuple[str, float]] = []

    def __call__(self, *_: Any, **_ignored: Any) -> Self:
        """As the class of the runner."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe(self) -> Any:
        if not self.has_engine:
            raise EngineMissingError("llama-cpp-python is not installed here.")
        return WHOLE_ENGINE, (CUDA0, CPU)

    def read_hardware(self, *, may_be_slow: bool) -> Hardware:
        self.was_slow = may_be_slow
        return self.hardware

    def transfers(self, device: str, *, timeout_s: float) -> DeviceSpeed:
        self.measured.append((device, timeout_s))
        if self.dies:
            self.pids = ()
        return dataclasses.replace(CUDA0_SPEED, device=device)

    def measure_speeds(
        self, n_threads_most: int, l3_bytes: int | None, most_bytes: int, deadline: float
    ) -> tuple[MemorySpeed, ...]:
        assert (n_threads_most, l3_bytes, most_bytes) == (16, 64 << 20, 6 * GIB)
        self.measured.append(("memory", 0.0))
        self.memory_deadline = deadline
        return self.speeds


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    one = MadeUp()
    host = dataclasses.replace(
        MACHINE.host,
        ram=dataclasses.replace(MACHINE.host.ram, read_bytes_per_s=None, n_threads_read=None),
        notes=(Note(subject="ram.read_bytes_per_s", reason="Measuring was not asked for."),),
    )
    monkeypatch.setattr(probing, "Runner", one)
    monkeypatch.setattr(probing, "probe_host", lambda *, measure: host if not measure else pytest.fail("timed twice"))
    monkeypatch.setattr(probe, "read_hardware", one.read_hardware, raising=False)
    monkeypatch.setattr(examining, "read_conditions", lambda _ours: one.now)
    monkeypatch.setattr(probing, "read_conditions", lambda _ours: one.now)
    monkeypatch.setattr(examining, "variables", lambda _names: ())
    monkeypatch.setattr(examining, "config_paths", lambda *_: ())
    for name, function in (
        ("bandwidth", one.measure_speeds),
        ("disk", lambda path, *_, **__: dataclasses.replace(DISK, path=path)),
        ("instructions", lambda _info: ("AVX2", "FMA", "AVX512", "AVX512_VNNI")),
    ):
        module: Any = types.ModuleType(f"offloadtune.probe.{name}")
        setattr(
            module, {"bandwidth": "measure_speeds", "disk": "read_disk"}.get(name, "engine_instruction_sets"), function
        )
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return one


def machine_toml(home: Path) -> Path:
    return home / "profiles" / MACHINE.machine_id / "machine.toml"


def test_the_doctor_writes_the_machine_down(made_up: MadeUp, in_process: InProcess, home: Path) -> None:
    ended = in_process("doctor")
    path = machine_toml(home)
    assert (ended.code, ended.err) == (0, "")
    assert f"machine: {path}" in ended.out.splitlines()
    assert "Nothing that can be seen from here holds this machine back." in ended.out
    assert store.read_machine(path) == store.at_rest(
        changed(
            PROFILE,
            {
                "measured_at": store.read_machine(path).measured_at,
                "machine.host.notes": (),
            },
        )
    )
    assert made_up.measured == [("memory", 0.0), ("CUDA0", 30.0)]


def test_the_doctor_says_what_changed(made_up: MadeUp, in_process: InProcess, home: Path) -> None:
    in_process("doctor")
    assert "Nothing changed since then." in in_process("doctor", "--since", machine_toml(home)).out
    made_up.hardware = changed(made_up.hardware, {"gpus": (dataclasses.replace(RTX4090, driver="560.1"),)})
    after = in_process("doctor", "--since", machine_toml(home))
    assert "- The driver of nvidia cards is 560.1, it was 550.54.14." in after.out.splitlines()
    told = json.loads(in_process("doctor", "--json", "--since", machine_toml(home)).out)
    assert told["changes"] == []  # it was written down meanwhile
    check_refused(in_process("doctor", "--since", home / "none.toml"), 2, "none.toml", "No such file")


@pytest.mark.parametrize(
    ("parts", "code", "words"),
    [
        ({}, 0, ""),
        ({"memory.numa_nodes": (HARDWARE.memory.numa_nodes[0],) * 2}, 0, ""),
        ({"memory.n_channels": 1}, 5, "1 warning"),
        ({"memory.n_channels": 1, "limits": Limits(address_space_bytes=1 << 20)}, 6, "1 problem, 1 warning"),
    ],
)
def test_strict_has_a_code_for_the_worst(  # noqa: PLR0917 - fixtures
    parts: dict[str, Any], code: int, words: str, made_up: MadeUp, in_process: InProcess, smollm2_path: Path
) -> None:
    made_up.hardware = changed(made_up.hardware, parts)
    asked = ("doctor", smollm2_path)
    assert in_process(*asked).code == 0
    ended = in_process(*asked, "--strict")
    assert ended.code == code
    assert ended.err == (
        f"offloadtune: The doctor found {words}.\n  next: do what is named above, worst first\n" if code else ""
    )
    assert "machine:" in ended.out


def test_a_quick_look_measures_nothing_and_replaces_nothing_that_was(
    made_up: MadeUp, in_process: InProcess, home: Path
) -> None:
    quick = in_process("doctor", "--quick")
    assert made_up.measured == []
    assert "not measured" in quick.out
    assert store.read_machine(machine_toml(home)).hardware.memory.speeds == ()
    in_process("doctor")
    written = machine_toml(home).read_bytes()
    made_up.hardware = changed(made_up.hardware, {"memory.n_channels": 1})
    assert "Main memory runs on one channel of 2" in in_process("doctor", "--quick").out
    assert machine_toml(home).read_bytes() == written


def test_what_was_found_is_shown_even_where_it_cannot_be_kept(
    made_up: MadeUp, in_process: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(store.home, "data_dir", lambda: tmp_path / "file")
    ended = in_process("doctor", "--strict")
    assert ended.code == 16
    assert "holds this machine back" in ended.out
    assert "machine.toml cannot be written" in ended.err
    assert made_up.measured


def test_beside_a_sweep_nothing_is_timed(
    made_up: MadeUp, in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = store.Owner(pid=1, what="a.gguf", began_at=datetime.now(UTC))
    monkeypatch.setattr(store, "owner_now", lambda _folder: owner)
    ended = in_process("probe")
    assert made_up.measured == []
    assert "ram.read_bytes_per_s: a.gguf is being measured now, so nothing was timed beside it." in ended.out


def test_the_probe_shows_what_it_measured(made_up: MadeUp, in_process: InProcess) -> None:
    ended = in_process("probe")
    assert ended.code == 0
    assert "61.2 GB/s with 16 threads (68% of theory)" in ended.out
    assert "Measuring was not asked for" not in ended.out
    ((_, _), (device, left_s)) = made_up.measured
    assert device == "CUDA0"
    assert 0 < left_s <= probing.PROBE_S
    assert made_up.was_slow
    told = json.loads(in_process("probe", "--json").out)
    assert (told["host"]["ram"]["read_bytes_per_s"], told["host"]["ram"]["n_threads_read"]) == (61.2e9, 16)
    assert told["hardware"]["memory"]["speeds"][0]["n_threads"] == 1


def test_a_quick_probe_measures_nothing(made_up: MadeUp, in_process: InProcess) -> None:
    told = json.loads(in_process("probe", "--quick", "--json").out)
    assert made_up.measured == []
    assert told["device_speeds"] == []
    assert told["host"]["notes"][0]["reason"] == "Measuring was not asked for."
    assert not made_up.was_slow
    in_process("doctor", "--quick")
    assert made_up.was_slow


def test_memory_that_could_not_be_timed_is_said(made_up: MadeUp, in_process: InProcess) -> None:
    made_up.speeds = ()
    for command in ("probe", "doctor"):
        assert "ram.read_bytes_per_s: Too little memory is free" in in_process(command).out


def test_without_an_engine_there_is_the_line_that_brings_one(made_up: MadeUp, in_process: InProcess) -> None:
    made_up.has_engine = False
    ended = in_process("doctor", "--strict", "--quick")
    assert ended.code == 6
    assert "llama-cpp-python is not installed here." in ended.out
    assert "next: CMAKE_ARGS=" in ended.out


def test_devices_share_the_time_that_is_left(made_up: MadeUp) -> None:
    runner: Any = made_up
    two = (CUDA0, dataclasses.replace(CUDA0, name="CUDA1"))
    late = probing._timed_devices(runner, two, time.monotonic() - 1, None)
    assert made_up.measured == []
    assert [(one.device, one.memory_bytes_per_s) for one in late] == [("CUDA0", None), ("CUDA1", None)]
    assert all(one.reason and one.reason.startswith("No time was left") for one in late)
    probing._timed_devices(runner, two, time.monotonic() + 1000, None)
    (_, first_s), (_, second_s) = made_up.measured
    assert first_s <= 500 < second_s <= 1000


def test_where_time_is_short_the_first_devices_have_enough_of_it(
    made_up: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes all the time it is given."""
    runner: Any = made_up
    three = tuple(dataclasses.replace(CUDA0, name=f"CUDA{i}") for i in range(3))
    monkeypatch.setattr(time, "monotonic", lambda: sum(left_s for _, left_s in made_up.measured))
    one_s = probing._LEAST_TRANSFER_S
    found = probing._timed_devices(runner, three, 2.5 * one_s, None)
    assert made_up.measured == [("CUDA0", 1.25 * one_s), ("CUDA1", 1.25 * one_s)]
    assert [(one.reason or "")[:16] == "No time was left" for one in found] == [False, False, True]


def test_no_time_of_a_probe_is_for_another_start_of_the_engine(made_up: MadeUp) -> None:
    runner: Any = made_up
    made_up.dies = True
    two = (CUDA0, dataclasses.replace(CUDA0, name="CUDA1"))
    found = probing._timed_devices(runner, two, time.monotonic() + 1000, None)
    assert [device for device, _ in made_up.measured] == ["CUDA0"]
    assert (found[1].reason or "").startswith("No time was left")
    probing._timed_devices(runner, two, time.monotonic(), 30.0)  # the doctor takes it
    assert made_up.measured[1:] == [("CUDA0", 30.0), ("CUDA1", 30.0)]


def test_memory_leaves_the_devices_their_time(made_up: MadeUp) -> None:
    probing.probe_machine(start_s=-1000.0)
    assert made_up.memory_deadline == -1000 + probing.PROBE_S - probing._LEAST_TRANSFER_S
    assert [device for device, _ in made_up.measured] == ["memory"]


def test_the_files_that_change_settings_unseen(tmp_path: Path) -> None:
    own, fallback = tmp_path / "xdg" / "llama.cpp" / "config.ini", tmp_path / ".config" / "llama.cpp" / "config.ini"
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert own not in examining.config_paths(environ, "linux")
    for path in (own, fallback):
        path.parent.mkdir(parents=True)
        path.write_text("[*]\n")
    assert examining.config_paths(environ, "linux")[-1] == own
    assert examining.config_paths({"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}, "linux")[-1] == fallback
    assert examining.config_paths({"APPDATA": str(tmp_path / "xdg")}, "win32") == (own,)
    assert examining.config_paths({"HOME": "a\0b"}, "linux") == examining.config_paths({}, "linux")


def test_the_variables_that_change_settings_unseen() -> None:
    of_backends = ("CUDA_VISIBLE_DEVICES", "GGML_CUDA_NO_PINNED", "GGML_METAL_NDEBUG", "HSA_OVERRIDE_GFX_VERSION")
    meant = (*of_backends, "LLAMA_ARG_THREADS", "ONEAPI_DEVICE_SELECTOR")
    assert examining.variables(("PATH", *meant, "GGML_NO_BACKTRACE")) == meant

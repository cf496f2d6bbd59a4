"""Every GPU in depth, from NVML's answers and from machines written down file by file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.conditions import GpuProcess
from offloadtune.hardware import GpuHardware
from offloadtune.probe import Door, nvml
from offloadtune.probe.gpu_hardware import read_gpu_hardware
from offloadtune.probe.nvidia import READERS
from offloadtune.records import Note
from offloadtune.units import GIB, MIB

HOSTS = Path(__file__).parents[1] / "hosts"
NO_NVML = '{"error": "LibraryNotFound"}'

Found = tuple[tuple[GpuHardware, ...], tuple[Note, ...]]


def machine(folder: Path, files: Mapping[str, str], *, system: str = "Linux", nvml_json: str = NO_NVML) -> Door:
    told = {"name": system, "release": "6.8", "arch": "x86_64", "allowed_cpus": [0]}
    write(folder, {"system.json": json.dumps(told), "nvml.json": nvml_json, **files})
    return Door(folder)


def write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def reasons(notes: tuple[Note, ...]) -> dict[str, str]:
    assert all(note.reason.endswith(".") and len(note.reason.split()) > 2 for note in notes)
    assert len({note.subject for note in notes}) == len(notes)
    return {note.subject: note.reason for note in notes}


def fields(gpu: GpuHardware) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in gpu.__dataclass_fields__}


# --- NVIDIA --------------------------------------------------------------------------------------------------------

RTX_4090: dict[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090",
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetPciInfo": {"busId": "00000000:01:00.0"},
    "nvmlDeviceGetMemoryInfo": {"total": 25757220864, "free": 24691736576, "used": 1065484288},
    "nvmlDeviceGetCudaComputeCapability": [8, 9],
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": 256 * MIB, "bar1Free": 255 * MIB, "bar1Used": MIB},
    "nvmlDeviceGetEnforcedPowerLimit": 300_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 450_000,
    "nvmlDeviceGetClockInfo": 210,
    "nvmlDeviceGetMaxClockInfo": 3105,
    "nvmlDeviceGetMaxClockInfo:memory": 10501,
    "nvmlDeviceGetMemoryBusWidth": 384,
    "nvmlDeviceGetTemperature": 41,
    "nvmlDeviceGetViolationStatus": {"referenceTime": 1, "violationTime": 0},
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4,
    "nvmlDeviceGetComputeRunningProcesses": [{"pid": 7, "usedGpuMemory": GIB}],
    "nvmlDeviceGetGraphicsRunningProcesses": [{"pid": 8, "usedGpuMemory": None}],
}
TOLD_BY: dict[str, set[str]] = {
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetUUID": set(),
    "nvmlDeviceGetPciInfo": {"pci_bus_id"},
    "nvmlDeviceGetMemoryInfo": {"total_bytes", "free_bytes"},
    "nvmlDeviceGetCudaComputeCapability": {"compute_capability"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_most"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"n_pcie_lanes"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"n_pcie_lanes_most"},
    "nvmlDeviceGetBAR1MemoryInfo": {"bar1_bytes"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetPowerManagementDefaultLimit": {"power_limit_default_w"},
    "nvmlDeviceGetClockInfo": {"clock_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"most_clock_mhz"},
    "nvmlDeviceGetMaxClockInfo:memory": {"memory_clock_mhz", "memory_theoretical_bytes_per_s"},
    "nvmlDeviceGetMemoryBusWidth": {"memory_theoretical_bytes_per_s"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetViolationStatus": set(),
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"throttle_reasons"},
    "nvmlDeviceGetComputeRunningProcesses": {"processes"},
    "nvmlDeviceGetGraphicsRunningProcesses": {"processes"},
}
NVML_ERRORS = sorted(name.removeprefix("NVMLError_") for name in dir(pynvml) if name.startswith("NVMLError_"))


def answering(folder: Path, *devices: Any, driver: Any = "560.35.03") -> Door:
    if not (folder / "system.json").exists():
        machine(folder, {"proc/7/comm": "python\n", "proc/8/comm": "Xorg\n"})
    answers = {"nvmlSystemGetDriverVersion": driver, "devices": list(devices)}
    (folder / "nvml.json").write_text(json.dumps(answers))
    return Door(folder)


def test_an_nvidia_card_in_depth(tmp_path: Path) -> None:
    (gpu,), notes = read_gpu_hardware(answering(tmp_path, RTX_4090))
    assert notes == ()
    assert gpu == GpuHardware(
        vendor="nvidia",
        index=0,
        name="NVIDIA GeForce RTX 4090",
        kind="discrete",
        pci_bus_id="00000000:01:00.0",
        driver="560.35.03",
        compute_capability="8.9",
        total_bytes=25757220864,
        free_bytes=24691736576,
        bar1_bytes=256 * MIB,
        pcie_generation=1,
        pcie_generation_most=4,
        n_pcie_lanes=8,
        n_pcie_lanes_most=16,
        power_limit_w=300.0,
        power_limit_default_w=450.0,
        clock_mhz=210,
        most_clock_mhz=3105,
        memory_clock_mhz=10501,
        temperature_c=41,
        throttle_reasons=("sw_power_cap",),
        processes=(
            GpuProcess(pid=7, name="python", n_bytes=GIB),
            GpuProcess(pid=8, name="Xorg", n_bytes=None),
        ),
        memory_theoretical_bytes_per_s=10501e6 * 2 * 384 / 8,
    )


@pytest.mark.parametrize(
    ("mhz", "n_bits", "specified_gb_per_s"),
    [
        (5505, 352, 484.4),  # GTX 1080 Ti, GDDR5X
        (5001, 256, 320.0),  # Tesla T4, GDDR6
        (9751, 384, 936.2),  # RTX 3090, GDDR6X
        (10501, 384, 1008.0),  # RTX 4090, GDDR6X
        (1593, 5120, 2039.0),  # A100 80GB, HBM2e
        (2619, 5120, 3352.0),  # H100, HBM3
    ],
)
def test_memory_speed_is_that_of_the_data_sheet(
    tmp_path: Path, mhz: int, n_bits: int, specified_gb_per_s: float
) -> None:
    asked = {"nvmlDeviceGetMaxClockInfo:memory": mhz, "nvmlDeviceGetMemoryBusWidth": n_bits}
    (gpu,), _ = read_gpu_hardware(answering(tmp_path, RTX_4090 | asked))
    assert gpu.memory_theoretical_bytes_per_s == pytest.approx(specified_gb_per_s * 1e9, rel=1e-3)


def test_every_call_is_among_those_tried() -> None:
    assert set(TOLD_BY) == set(RTX_4090) == {*nvml.DEVICE_CALLS, *nvml.MOMENT_CALLS}
    assert {call for call, _ in READERS.values()} == set(TOLD_BY)
    assert len(NVML_ERRORS) > 20


@pytest.mark.parametrize("call", TOLD_BY)
def test_each_call_may_fail_alone_in_every_way(call: str, tmp_path: Path) -> None:
    (whole,), _ = read_gpu_hardware(answering(tmp_path, RTX_4090))
    own = TOLD_BY[call]
    for error in (*NVML_ERRORS, "AttributeError"):
        (gpu,), notes = read_gpu_hardware(answering(tmp_path, RTX_4090 | {call: {"error": error}}))
        expected = fields(whole) | dict.fromkeys(own) | ({"name": "NVIDIA GPU"} if "name" in own else {})
        assert fields(gpu) == expected
        assert reasons(notes) == {f"gpus[0].{field}": f"{call} failed: {error}." for field in own}


@pytest.mark.parametrize("call", TOLD_BY)
def test_a_call_may_be_answered_by_nothing_or_by_nonsense(call: str, tmp_path: Path) -> None:
    (whole,), _ = read_gpu_hardware(answering(tmp_path, RTX_4090))
    answers: tuple[Any, ...] = (None, {}, [[]], [0], -1, True, "\x1b[2J" * 100, 1 << 64, float("inf"))
    for nonsense in answers:
        (gpu,), notes = read_gpu_hardware(answering(tmp_path, RTX_4090 | {call: nonsense}))
        own = TOLD_BY[call]
        assert {f: v for f, v in fields(gpu).items() if f not in own} == {
            f: v for f, v in fields(whole).items() if f not in own
        }
        assert set(reasons(notes)) <= {f"gpus[0].{field}" for field in own}
        assert all(len(note.reason) < 200 and note.reason.isprintable() for note in notes)
        for field in own - {"name"}:
            assert (getattr(gpu, field) is None) == (f"gpus[0].{field}" in reasons(notes))


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetCurrPcieLinkWidth"])
def test_nought_is_not_told(call: str, tmp_path: Path) -> None:
    (gpu,), notes = read_gpu_hardware(answering(tmp_path, RTX_4090 | {call: 0}))
    (field,) = TOLD_BY[call]
    assert getattr(gpu, field) is None
    assert reasons(notes) == {f"gpus[0].{field}": f"{call} gave an answer that cannot be read: 0."}


def test_the_driver_may_not_tell_its_version(tmp_path: Path) -> None:
    (gpu,), notes = read_gpu_hardware(answering(tmp_path, RTX_4090, driver={"error": "Unknown"}))
    assert gpu.driver is None
    assert reasons(notes) == {"gpus[0].driver": "nvmlSystemGetDriverVersion failed: Unknown."}


def test_a_lost_card_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    (first, last), notes = read_gpu_hardware(answering(tmp_path, RTX_4090, {"error": "GpuIsLost"}, 3, RTX_4090))
    assert (first.index, last.index) == (0, 3)
    assert reasons(notes) == {
        "gpus.nvml[1]": "NVML lists card 1 but cannot open it: GpuIsLost.",
        "gpus.nvml[2]": "NVML lists card 2 but tells nothing of it.",
    }


@pytest.mark.parametrize("error", NVML_ERRORS)
def test_nvml_may_refuse_altogether(error: str, tmp_path: Path) -> None:
    gpus, notes = read_gpu_hardware(machine(tmp_path, {}, nvml_json=json.dumps({"error": error})))
    assert gpus == ()
    assert list(reasons(notes)) == ["gpus.nvml"]


def test_memory_of_the_host_makes_a_card_integrated(tmp_path: Path) -> None:
    (gpu,), _ = read_gpu_hardware(answering(tmp_path, RTX_4090 | {"nvmlDeviceGetName": "NVIDIA GB10"}))
    assert gpu.kind == "integrated"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["total", "pid", "busId"]), inner),
    max_leaves=5,
)


@given(
    answers=st.dictionaries(
        st.sampled_from(["error", "devices", "nvmlSystemGetDriverVersion"]),
        JSON | st.lists(JSON | st.dictionaries(st.sampled_from([*TOLD_BY, "error"]), JSON), max_size=2),
    )
)
def test_no_answer_makes_the_reader_raise(answers: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    gpus, notes = read_gpu_hardware(machine(tmp_path_factory.getbasetemp() / "any", {}, nvml_json=json.dumps(answers)))
    assert all(isinstance(gpu.name, str) and gpu.name.isprintable() for gpu in gpus)
    reasons(notes)


# --- NVIDIA, live --------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver with one card that answers each call, some by what they are asked with."""
    by_argument: dict[str, Callable[..., Any]] = {
        "nvmlDeviceGetMaxClockInfo": lambda _, clock: {1: 3105, 2: 10501}[clock],
        "nvmlDeviceGetPciInfo": lambda _: pynvml.nvmlPciInfo_t(busId=b"00000000:01:00.0"),
        "nvmlDeviceGetBAR1MemoryInfo": lambda _: pynvml.c_nvmlBAR1Memory_t(bar1Total=32 * GIB),
        "nvmlDeviceGetMemoryInfo": lambda _: pynvml.c_nvmlMemory_t(total=24 * GIB, free=23 * GIB, used=GIB),
    }
    alone = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 1, "nvmlSystemGetDriverVersion": "560"}
    for call, answer in {**RTX_4090, **alone, "nvmlDeviceGetHandleByIndex": object()}.items():
        if ":" not in call:
            monkeypatch.setattr(pynvml, call, by_argument.get(call, lambda *_, answer=answer: answer))
    monkeypatch.setattr(nvml, "_kept", nvml._Kept())
    monkeypatch.setattr(nvml, "_stuck", [])
    return monkeypatch


def refuse(*_: object) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.mark.usefixtures("driver")
def test_a_live_card_is_asked_everything() -> None:
    gpus, notes = read_gpu_hardware(Door())
    assert [note for note in notes if note.subject.startswith("gpus[0]")] == []
    assert (gpus[0].most_clock_mhz, gpus[0].memory_clock_mhz, gpus[0].bar1_bytes) == (3105, 10501, 32 * GIB)
    assert (gpus[0].total_bytes, gpus[0].pci_bus_id) == (24 * GIB, "00000000:01:00.0")


@pytest.mark.parametrize("call", sorted({call.partition(":")[0] for call in TOLD_BY}))
def test_a_live_call_may_be_refused_or_absent(call: str, driver: pytest.MonkeyPatch) -> None:
    own = TOLD_BY[call] | TOLD_BY.get(f"{call}:memory", set())
    driver.setattr(pynvml, call, refuse)
    refused = read_gpu_hardware(Door())
    driver.delattr(pynvml, call)
    absent = read_gpu_hardware(Door())
    for (gpu, *_), notes in (refused, absent):
        assert {note.subject for note in notes if "[0]" in note.subject} == {f"gpus[0].{field}" for field in own}
        assert all(getattr(gpu, field) is None for field in own - {"name"})


def test_a_driver_that_hangs_at_the_moment_leaves_what_it_told(driver: pytest.MonkeyPatch) -> None:
    counts = iter(range(1))
    ended = threading.Event()

    def hang_the_second_time() -> int:
        if next(counts, None) is None:
            ended.wait()
        else:
            driver.setattr(nvml, "_OPENING_PATIENCE_S", 0.2)
        return 1

    driver.setattr(pynvml, "nvmlDeviceGetCount", hang_the_second_time)
    (gpu, *_), notes = read_gpu_hardware(Door())
    ended.set()
    assert (gpu.total_bytes, gpu.clock_mhz, gpu.processes) == (24 * GIB, None, None)
    assert "nvmlDeviceGetClockInfo failed: Timeout." in {note.reason for note in notes}


# --- cards in sysfs ------------------------------------------------------------------------------------------------

PCI = "sys/bus/pci/devices"


def folder_of(card: str, files: Mapping[str, str]) -> dict[str, str]:
    return {f"sys/class/drm/{card}/device/{name}": text for name, text in files.items()}


def link(now: str, most: str) -> dict[str, str]:
    """Files of a link given as "16.0 x8"."""
    (speed, width), (most_speed, most_width) = now.split(" x"), most.split(" x")
    return {
        "current_link_speed": f"{speed} GT/s PCIe\n",
        "current_link_width": f"{width}\n",
        "max_link_speed": f"{most_speed} GT/s PCIe\n",
        "max_link_width": f"{most_width}\n",
    }


def bridge(address: str, vendor: str, bus_below: int, files: Mapping[str, str]) -> dict[str, str]:
    told = {"vendor": vendor + "\n", "class": "0x060400\n", "secondary_bus_number": f"{bus_below}\n", **files}
    return {f"{PCI}/{address}/{name}": text for name, text in told.items()}


RX_7900_XTX = {
    "vendor": "0x1002\n",
    "device": "0x744c\n",
    "revision": "0xc8\n",
    "class": "0x030000\n",
    "uevent": "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SLOT_NAME=0000:03:00.0\n",
    "mem_info_vram_total": f"{24 * GIB}\n",
    "mem_info_vram_used": f"{GIB}\n",
    "mem_info_gtt_total": f"{64 * GIB}\n",
    "mem_info_vis_vram_total": f"{256 * MIB}\n",
    "pp_dpm_sclk": "0: 500Mhz \n1: 40Mhz *\n2: 2526Mhz \n",
    "pp_dpm_mclk": "0: 96Mhz *\n1: 456Mhz \n2: 772Mhz \n3: 1249Mhz \n",
    "hwmon/hwmon4/in0_label": "vddgfx\n",
    "hwmon/hwmon4/power1_cap": "263000000\n",
    "hwmon/hwmon4/power1_cap_default": "339000000\n",
    "hwmon/hwmon4/temp1_input": "46500\n",
    **link("16.0 x16", "16.0 x16"),  # inside the card, whatever the slot gives
}
ABOVE_IT = {
    **bridge("0000:02:00.0", "0x1002", 3, link("16.0 x16", "16.0 x16")),
    **bridge("0000:01:00.0", "0x1002", 2, link("2.5 x8", "16.0 x16")),
    **bridge("0000:00:01.1", "0x1022", 1, link("2.5 x8", "8.0 x8")),
    **bridge("0000:00:03.1", "0x1022", 9, link("5.0 x1", "5.0 x1")),  # leads elsewhere
    **bridge("0001:00:03.1", "0x1022", 3, link("5.0 x1", "5.0 x1")),
}
AMD_TOLD_BY: dict[str, set[str]] = {
    "mem_info_vram_total": {"total_bytes", "free_bytes"},
    "mem_info_vram_used": {"free_bytes"},
    "mem_info_vis_vram_total": {"bar1_bytes"},
    "mem_info_gtt_total": set(),
    "pp_dpm_sclk": {"clock_mhz", "most_clock_mhz"},
    "pp_dpm_mclk": {"memory_clock_mhz"},
    "hwmon/hwmon4/power1_cap": {"power_limit_w"},
    "hwmon/hwmon4/power1_cap_default": {"power_limit_default_w"},
    "hwmon/hwmon4/temp1_input": {"temperature_c"},
}
SPEED_UNTOLD = "gpus[0].memory_theoretical_bytes_per_s"


def test_an_amd_card_in_depth(tmp_path: Path) -> None:
    outputs = {"sys/class/drm/card0-DP-1/device/vendor": "0x1002\n", "sys/class/drm/renderD128/device/vendor": "0x1002"}
    (gpu,), notes = read_gpu_hardware(machine(tmp_path, folder_of("card0", RX_7900_XTX) | ABOVE_IT | outputs))
    assert set(reasons(notes)) == {"gpus.nvml", SPEED_UNTOLD}
    assert gpu == GpuHardware(
        vendor="amd",
        index=0,
        name="AMD GPU [1002:744c]",
        kind="discrete",
        pci_bus_id="0000:03:00.0",
        driver="amdgpu",
        total_bytes=24 * GIB,
        free_bytes=23 * GIB,
        bar1_bytes=256 * MIB,
        pcie_generation=1,
        pcie_generation_most=3,
        n_pcie_lanes=8,
        n_pcie_lanes_most=8,
        power_limit_w=263.0,
        power_limit_default_w=339.0,
        clock_mhz=40,
        most_clock_mhz=2526,
        memory_clock_mhz=1249,
        temperature_c=46,
    )


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_live_tree_of_links_reads_as_its_record(tmp_path: Path) -> None:
    recorded = read_gpu_hardware(machine(tmp_path / "plain", folder_of("card0", RX_7900_XTX) | ABOVE_IT))
    chain = "sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0"
    files = {f"{chain}/{name}": text for name, text in RX_7900_XTX.items()}
    for path, text in ABOVE_IT.items():
        address, _, name = path.removeprefix(f"{PCI}/").partition("/")
        if address in chain:
            files[f"{chain.partition(address)[0]}{address}/{name}"] = text
    door = machine(tmp_path / "live", files)
    for place in ("sys/class/drm/card0", PCI):
        (tmp_path / "live" / place).mkdir(parents=True)
    (tmp_path / "live/sys/class/drm/card0/device").symlink_to(tmp_path / "live" / chain)
    for address in ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / "live" / PCI / address).symlink_to(tmp_path / "live" / chain.partition(address)[0] / address)
    assert read_gpu_hardware(door) == recorded


@pytest.mark.parametrize("file", AMD_TOLD_BY)
@pytest.mark.parametrize("text", [None, "", "\0", "-5\n", "9" * 5000, "a few\n"])
def test_each_file_of_a_card_may_be_missing_or_nonsense(file: str, text: str | None, tmp_path: Path) -> None:
    (whole,), _ = read_gpu_hardware(machine(tmp_path / "whole", folder_of("card0", RX_7900_XTX) | ABOVE_IT))
    told = {name: kept for name, kept in RX_7900_XTX.items() if name != file} | ({} if text is None else {file: text})
    (gpu,), notes = read_gpu_hardware(machine(tmp_path / "part", folder_of("card0", told) | ABOVE_IT))
    own = AMD_TOLD_BY[file]
    assert fields(gpu) == fields(whole) | dict.fromkeys(own)
    assert set(reasons(notes)) == {"gpus.nvml", SPEED_UNTOLD, *(f"gpus[0].{field}" for field in own)}


@pytest.fixture(scope="module")
def written_card(tmp_path_factory: pytest.TempPathFactory) -> Door:
    return machine(tmp_path_factory.mktemp("card"), folder_of("card0", RX_7900_XTX) | ABOVE_IT)


@given(
    texts=st.dictionaries(
        st.sampled_from([*RX_7900_XTX, "product_name", "resource"]),
        st.text(max_size=30) | st.from_regex(r"(0x)?[0-9a-f]{1,20}( GT/s)?|[0-9]: [0-9]{1,9}Mhz \*?"),
        max_size=5,
    ),
    vendor=st.sampled_from(["0x1002", "0x8086", "0x10de", "0x1a03", "x"]),
)
def test_no_file_makes_the_reader_raise(texts: dict[str, str], vendor: str, written_card: Door) -> None:
    folder = written_card.root / "sys/class/drm/card0/device"
    for name, text in {**texts, "vendor": vendor}.items():
        (folder / name).write_bytes(text.encode(errors="replace"))
    gpus, notes = read_gpu_hardware(written_card)
    for name in texts:
        (folder / name).write_text(RX_7900_XTX.get(name, ""))
    assert len(gpus) == (vendor in {"0x1002", "0x8086", "0x10de"})
    assert all(gpu.name.isprintable() and (gpu.driver or "x").isprintable() for gpu in gpus)
    assert all(note.reason.isprintable() for note in notes)


@pytest.mark.parametrize(
    ("device", "slot", "root", "expected"),
    [
        (("16.0 x16", "16.0 x16"), ("16.0 x16", "16.0 x16"), ("16.0 x16", "16.0 x16"), (4, 16, 4, 16)),
        (("16.0 x16", "16.0 x16"), ("16.0 x4", "16.0 x16"), ("16.0 x4", "32.0 x4"), (4, 4, 4, 4)),
        (("32.0 x16", "32.0 x16"), ("64.0 x8", "64.0 x8"), ("64.0 x8", "64.0 x16"), (6, 8, 6, 8)),
        (("2.5 x1", "2.5 x1"), ("5.0 x16", "16.0 x16"), ("5.0 x16", "16.0 x16"), (2, 16, 4, 16)),  # Intel's inside
        (("16.0 x16", "16.0 x16"), ("8.0 x16", "16.0 x16"), ("2.5 x1", "2.5 x1"), (3, 16, 3, 16)),  # a virtual slot
        (("16.0 x16", "16.0 x16"), ("Unknown x63", "Unknown x255"), ("Unknown x0", "8.0 x16"), (None, None, 3, 16)),
    ],
)
def test_the_link_is_that_of_the_slot(
    device: tuple[str, str],
    slot: tuple[str, str],
    root: tuple[str, str],
    expected: tuple[int | None, ...],
    tmp_path: Path,
) -> None:
    above = {
        **bridge("0000:02:00.0", "0x1002", 3, link(*device)),
        **bridge("0000:01:00.0", "0x1002", 2, link(*slot)),
        **bridge("0000:00:01.1", "0x1022", 1, link(*root)),
    }
    (gpu,), _ = read_gpu_hardware(machine(tmp_path, folder_of("card0", RX_7900_XTX | link(*device)) | above))
    link_read = (gpu.pcie_generation, gpu.n_pcie_lanes, gpu.pcie_generation_most, gpu.n_pcie_lanes_most)
    assert link_read == expected


def test_a_switch_on_the_board_may_be_what_is_narrow(tmp_path: Path) -> None:
    above = {
        **bridge("0000:02:00.0", "0x10b5", 3, link("16.0 x16", "16.0 x16")),
        **bridge("0000:01:00.0", "0x10b5", 2, link("8.0 x4", "8.0 x16")),
        **bridge("0000:00:01.1", "0x1022", 1, link("8.0 x4", "16.0 x4")),
    }
    (gpu,), _ = read_gpu_hardware(machine(tmp_path, folder_of("card0", RX_7900_XTX) | above))
    assert (gpu.pcie_generation, gpu.n_pcie_lanes, gpu.n_pcie_lanes_most) == (3, 4, 4)


def test_a_card_without_bridges_or_in_a_ring_of_them_has_its_own_link(tmp_path: Path) -> None:
    alone = machine(tmp_path / "alone", folder_of("card0", RX_7900_XTX))
    ring = bridge("0000:03:01.0", "0x10b5", 3, link("16.0 x16", "16.0 x16"))
    circular = machine(tmp_path / "ring", folder_of("card0", RX_7900_XTX) | ring)
    for door in (alone, circular):
        (gpu,), _ = read_gpu_hardware(door)
        assert (gpu.pcie_generation, gpu.n_pcie_lanes) == (4, 16)
    untold = {name: text for name, text in RX_7900_XTX.items() if "link" not in name}
    (gpu,), notes = read_gpu_hardware(machine(tmp_path / "untold", folder_of("card0", untold)))
    assert gpu.pcie_generation is None
    assert sum("slot" in reason for reason in reasons(notes).values()) == 4


def test_the_link_of_a_card_outside_is_not_known(tmp_path: Path) -> None:
    outside = RX_7900_XTX | {"removable": "removable\n"}
    (gpu,), notes = read_gpu_hardware(machine(tmp_path, folder_of("card0", outside) | ABOVE_IT))
    assert (gpu.pcie_generation, gpu.n_pcie_lanes, gpu.pcie_generation_most, gpu.n_pcie_lanes_most) == (None,) * 4
    assert sum("outside" in reason for reason in reasons(notes).values()) == 4


def test_an_amd_apu(tmp_path: Path) -> None:
    apu = {
        "vendor": "0x1002\n",
        "device": "0x150e\n",
        "uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c4:00.0\n",
        "mem_info_vram_total": f"{16 * GIB}\n",  # a large carve-out
        "mem_info_vram_used": f"{GIB}\n",
        "mem_info_gtt_total": f"{8 * GIB}\n",
        "mem_info_vis_vram_total": f"{16 * GIB}\n",
        "pp_dpm_sclk": "0: 600Mhz *\n1: 1100Mhz \n2: 2900Mhz \n",
        "pp_dpm_mclk": "0: 1000Mhz *\n1: 2400Mhz \n",
        "hwmon/hwmon7/in1_label": "vddnb\n",
        "hwmon/hwmon7/temp1_input": "40000\n",
        **link("16.0 x16", "16.0 x16"),
    }
    (gpu,), notes = read_gpu_hardware(machine(tmp_path, folder_of("card1", apu)))
    assert (gpu.kind, gpu.total_bytes, gpu.free_bytes, gpu.shared_bytes) == ("integrated", 16 * GIB, 15 * GIB, 8 * GIB)
    assert (gpu.clock_mhz, gpu.most_clock_mhz, gpu.memory_clock_mhz, gpu.temperature_c) == (600, 2900, 2400, 40)
    assert (gpu.bar1_bytes, gpu.pcie_generation) == (None, None)
    assert set(reasons(notes)) == {"gpus.nvml", "gpus[0].power_limit_w", "gpus[0].power_limit_default_w"}


@pytest.mark.parametrize(
    ("total_gib", "shared_gib", "kind"), [(0.5, 15, "integrated"), (24, 32, "discrete"), (4, 4, "discrete")]
)
def test_without_voltages_sizes_tell_an_apu(total_gib: float, shared_gib: int, kind: str, tmp_path: Path) -> None:
    told = {"mem_info_vram_total": f"{int(total_gib * GIB)}\n", "mem_info_gtt_total": f"{shared_gib * GIB}\n"}
    files = {name: text for name, text in RX_7900_XTX.items() if "hwmon" not in name} | told
    (gpu,), _ = read_gpu_hardware(machine(tmp_path, folder_of("card0", files)))
    assert gpu.kind == kind


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"sys/class/drm/card0/device/product_name": "Radeon \x1b[2JPRO W7900\n"}, "Radeon [2JPRO W7900"),
        (
            {"usr/share/libdrm/amdgpu.ids": "# ids\n1.0.0\n744C,\tC4,\tAMD X\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n"},
            None,
        ),
        (
            {
                "usr/share/hwdata/pci.ids": "1001  Other\n\t744c  Wrong\n1002  AMD\n# a\n\t744c  Navi 31 [Radeon]\n"
                "\t\t1002 744c  Board\n1003  Third\n\t744c  Wrong\n"
            },
            "Navi 31 [Radeon]",
        ),
        ({"usr/share/misc/pci.ids": "1002  AMD\n\t744d  Other\n1003  X\n\t744c  Wrong\n"}, "AMD GPU [1002:744c]"),
    ],
)
def test_names_come_from_the_board_or_from_tables(files: dict[str, str], name: str | None, tmp_path: Path) -> None:
    (gpu,), _ = read_gpu_hardware(machine(tmp_path, folder_of("card0", RX_7900_XTX) | files))
    assert gpu.name == (name or "AMD Radeon RX 7900 XTX")


def test_intel_in_the_processor_and_on_a_card(tmp_path: Path) -> None:
    files = {
        **folder_of("card0", {"vendor": "0x8086", "device": "0xa7a0", "uevent": uevent("i915", "0000:00:02.0")}),
        **folder_of(
            "card1",
            {
                "vendor": "0x8086",
                "device": "0x56a0",
                "uevent": uevent("xe", "0000:03:00.0"),
                "resource": "0x82000000 0x82ffffff 0x140204\n0x0 0x0 0x0\n0x6000000000 0x63ffffffff 0x14220c\n",
                **link("2.5 x1", "2.5 x1"),
            },
        ),
        **bridge("0000:02:01.0", "0x8086", 3, link("2.5 x1", "2.5 x1")),
        **bridge("0000:01:00.0", "0x8086", 2, link("16.0 x8", "16.0 x16")),
        **bridge("0000:00:01.0", "0x8086", 1, link("16.0 x8", "32.0 x16")),
    }
    (inside, card), notes = read_gpu_hardware(machine(tmp_path, files))
    assert (inside.kind, inside.name, inside.driver) == ("integrated", "Intel GPU [8086:a7a0]", "i915")
    assert (card.kind, card.driver, card.bar1_bytes) == ("discrete", "xe", 16 * GIB)
    assert (card.pcie_generation, card.n_pcie_lanes, card.n_pcie_lanes_most) == (4, 8, 16)
    untold = {"gpus.nvml", "gpus[0].shared_bytes", "gpus[1].total_bytes", "gpus[1].free_bytes"}
    assert set(reasons(notes)) == untold


def uevent(driver: str, address: str) -> str:
    return f"DRIVER={driver}\nPCI_SLOT_NAME={address}\n" if driver else f"PCI_SLOT_NAME={address}\n"


@pytest.mark.parametrize(
    ("vendor", "driver", "reason"),
    [
        ("0x10de", "nouveau", "The NVIDIA driver is not loaded; nouveau drives it."),
        ("0x10de", "nvidia", "The NVIDIA driver drives this card, but its library NVML does not tell of it here."),
        ("0x10de", "", "No driver has taken this card."),
        ("0x1002", "", "No driver has taken this card."),
        ("0x1002", "vfio-pci", "The driver vfio-pci has this card, and llama.cpp cannot use it through that."),
    ],
)
def test_a_card_that_cannot_be_used_is_listed_with_the_reason(
    vendor: str, driver: str, reason: str, tmp_path: Path
) -> None:
    told = {"vendor": vendor, "device": "0x2684", "class": "0x030000\n", "uevent": uevent(driver, "0000:01:00.0")}
    (gpu,), notes = read_gpu_hardware(
        machine(tmp_path, {f"{PCI}/0000:01:00.0/{name}": text for name, text in told.items()})
    )
    assert (gpu.kind, gpu.driver, gpu.pci_bus_id) == ("discrete", driver or None, "0000:01:00.0")
    assert reasons(notes)["gpus[0].driver"] == reason
    assert "gpus[0].total_bytes" in reasons(notes)


def test_a_card_is_listed_once(tmp_path: Path) -> None:
    """NVML's card in both folders of sysfs; one of nouveau's and one of AMD's beside it, and what is no GPU."""
    nvidia = {"vendor": "0x10de", "device": "0x2684", "class": "0x030000", "uevent": uevent("nvidia", "0000:01:00.0")}
    old = {"vendor": "0x10de", "device": "0x0fc6", "class": "0x030000", "uevent": uevent("nouveau", "0000:02:00.0")}
    processor = {"vendor": "0x8086", "device": "0x7d1d", "class": "0x120000", "uevent": uevent("vpu", "0000:00:0b.0")}
    answers = {"nvmlSystemGetDriverVersion": "560", "devices": [RTX_4090]}
    files = {
        **folder_of("card0", nvidia),
        **folder_of("card1", old),
        **folder_of("card2", RX_7900_XTX),
        **folder_of("card3", {"vendor": "0x1a03", "device": "0x2000"}),
        **{f"{PCI}/0000:01:00.0/{name}": text for name, text in nvidia.items()},
        **{f"{PCI}/0000:02:00.0/{name}": text for name, text in old.items()},
        **{f"{PCI}/0000:03:00.0/{name}": text for name, text in RX_7900_XTX.items()},
        **{f"{PCI}/0000:00:0b.0/{name}": text for name, text in processor.items()},
    }
    gpus, notes = read_gpu_hardware(machine(tmp_path, files, nvml_json=json.dumps(answers)))
    assert [(gpu.index, gpu.vendor, gpu.driver) for gpu in gpus] == [
        (0, "nvidia", "560"),
        (1, "nvidia", "nouveau"),
        (2, "amd", "amdgpu"),
    ]
    assert reasons(notes)["gpus[1].driver"] == "The NVIDIA driver is not loaded; nouveau drives it."


# --- macOS and Windows ---------------------------------------------------------------------------------------------


def commanding(monkeypatch: pytest.MonkeyPatch, printed: Mapping[str, str | None]) -> None:
    monkeypatch.setattr(Door, "command", lambda _, *words, **_options: printed.get(words[-1]))


@pytest.mark.parametrize(
    ("n_mb", "working_set_bytes", "reason"),
    [
        ("28672\n", 28 * GIB, None),
        ("0\n", None, "not set"),
        (None, None, "not set"),
        ("many\n", None, "not set"),
        ("40000\n", None, "more than the machine has"),
    ],
)
def test_an_apple_chip(
    n_mb: str | None,
    working_set_bytes: int | None,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    told = {"machdep.cpu.brand_string": "Apple M3 Pro\n", "hw.memsize": f"{36 * GIB}\n", "iogpu.wired_limit_mb": n_mb}
    commanding(monkeypatch, told)
    (gpu,), notes = read_gpu_hardware(machine(tmp_path, {}, system="macOS"))
    assert (gpu.vendor, gpu.kind, gpu.name, gpu.shared_bytes) == ("apple", "integrated", "Apple M3 Pro", 36 * GIB)
    assert gpu.working_set_bytes == working_set_bytes
    assert (reason or "") in reasons(notes).get("gpus[0].working_set_bytes", "")
    assert len(notes) == 1 + (reason is not None)


def test_a_recorded_mac_may_tell_less() -> None:
    (gpu,), notes = read_gpu_hardware(Door(HOSTS / "macbook_m3_pro"))
    assert gpu.name == "Apple M3 Pro"
    assert gpu.working_set_bytes is None
    assert "gpus[0].working_set_bytes" in reasons(notes)


def test_a_mac_of_intel_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commanding(monkeypatch, {"machdep.cpu.brand_string": "Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz\n"})
    gpus, notes = read_gpu_hardware(machine(tmp_path, {}, system="macOS"))
    assert gpus == ()
    assert set(reasons(notes)) == {"gpus.nvml", "gpus.apple"}


def windows_row(name: str, vendor: str, place: str = r"6&1A2B3C&0&00080008") -> dict[str, str]:
    identity = rf"PCI\VEN_{vendor}&DEV_1234&SUBSYS_00000000&REV_C8\{place}"
    return {"Name": name, "DriverVersion": "32.0.1", "PNPDeviceID": identity}


def on_windows(folder: Path, printed: str | None, monkeypatch: pytest.MonkeyPatch, nvml_json: str = NO_NVML) -> Found:
    monkeypatch.setattr(Door, "command", lambda *_, **_options: printed)
    return read_gpu_hardware(machine(folder, {}, system="Windows", nvml_json=nvml_json))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (windows_row("AMD Radeon RX 7900 XTX", "1002"), "discrete"),
        (windows_row("AMD Radeon PRO W7900", "1002"), "discrete"),
        (windows_row("AMD Radeon(TM) Graphics", "1002"), "integrated"),
        (windows_row("AMD Radeon(TM) 780M", "1002"), "integrated"),
        (windows_row("AMD Radeon(TM) RX Vega 11 Graphics", "1002"), "integrated"),
        (windows_row("Intel(R) Iris(R) Xe Graphics", "8086", r"3&11583659&0&10"), "integrated"),
        (windows_row("Intel(R) Arc(TM) 140V GPU (16GB)", "8086", r"3&11583659&0&10"), "integrated"),
        (windows_row("Intel(R) Arc(TM) A770 Graphics", "8086"), "discrete"),
    ],
)
def test_windows_tells_names(row: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (gpu,), notes = on_windows(tmp_path, json.dumps(row), monkeypatch)
    assert (gpu.name, gpu.kind, gpu.driver, gpu.total_bytes) == (row["Name"], kind, "32.0.1", None)
    assert set(reasons(notes)) == {"gpus.nvml", "gpus[0].total_bytes"}


def test_windows_lists_what_nvml_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [
        windows_row("NVIDIA GeForce RTX 4090", "10DE"),
        windows_row("AMD Radeon(TM) Graphics", "1002"),
        {"Name": "Remote", "PNPDeviceID": "SWD\\REMOTEDISPLAYENUM\\1"},
    ]
    answers = json.dumps({"nvmlSystemGetDriverVersion": "560", "devices": [RTX_4090]})
    gpus, _ = on_windows(tmp_path, json.dumps(rows), monkeypatch, answers)
    assert [(gpu.index, gpu.vendor) for gpu in gpus] == [(0, "nvidia"), (1, "amd")]
    gpus, notes = on_windows(tmp_path, json.dumps(rows), monkeypatch)
    assert [(gpu.index, gpu.vendor, gpu.kind) for gpu in gpus] == [(0, "nvidia", "discrete"), (1, "amd", "integrated")]
    assert "NVIDIA driver" in reasons(notes)["gpus[0].driver"]


@pytest.mark.parametrize("printed", [None, "", "[", "3", "[3, {}]", "null", "[" * 100_000, '{"PNPDeviceID": 3}'])
def test_windows_may_print_anything(printed: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus, notes = on_windows(tmp_path, printed, monkeypatch)
    assert gpus == ()
    assert "gpus.nvml" in reasons(notes)


# --- recorded machines and this one --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(file.parent.name for file in HOSTS.glob("*/system.json")))
def test_a_recorded_machine_asks_nothing_of_this_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object, **__: object) -> None:
        pytest.fail("a recorded door reached the live machine")

    for live in ("subprocess.run", "read_nvml", "read_nvml_moment", "_live_system", "psutil.Process"):
        monkeypatch.setattr(f"offloadtune.probe.host.{live}", reached)
    reasons(read_gpu_hardware(Door(HOSTS / name))[1])


def test_this_machine() -> None:
    gpus, notes = read_gpu_hardware(Door())
    assert all(gpu.kind in {"discrete", "integrated"} for gpu in gpus)
    assert len({gpu.index for gpu in gpus}) == len(gpus)
    reasons(notes)

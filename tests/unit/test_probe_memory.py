"""Main memory in depth: who tells of the modules, which channels they are on, and what they could move."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.hardware import Hardware, MemoryHardware, NumaNode
from offloadtune.probe import Door, probe_host, read_hardware
from offloadtune.probe.channels import channel_of, channels_of
from offloadtune.probe.dmi import Slot, parse_tables
from offloadtune.probe.modules import WINDOWS_COMMAND
from offloadtune.units import GIB, MIB

HOSTS = Path(__file__).parents[1] / "hosts"
MACHINES = sorted(file.parent.name for file in HOSTS.glob("*/system.json"))
SYSTEM = {"name": "Linux", "release": "6.8", "arch": "x86_64", "allowed_cpus": [0], "total_bytes": 2**33}
LOCATORS = st.text() | st.from_regex(r"(P\d|CPU\d|Node\d)?[ _-]?(DIMM|Channel|CH)[ _-]?[A-H]?\d?", fullmatch=True)


def reasons(hardware: Hardware) -> dict[str, str]:
    return {note.subject: note.reason for note in hardware.notes}


def machine(folder: Path, /, **system: object) -> Door:
    (folder / "system.json").write_text(json.dumps({**SYSTEM, "available_bytes": 2**32, **system}))
    return Door(folder)


def write(folder: Path, path: str, content: str | bytes) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())


def udev(*slots: str) -> str:
    """Each slot as "LOCATOR|BANK|KIND|BITS|RATED|CONFIGURED"; without a kind it is empty."""
    lines = [f"MEMORY_ARRAY_NUM_DEVICES={len(slots)}"]
    for i, slot in enumerate(slots):
        locator, bank, kind, bits, rated, configured = (*slot.split("|"), *[""] * 6)[:6]
        fields = {"LOCATOR": locator, "BANK_LOCATOR": bank}
        fields |= {"PRESENT": "0"} if not kind else {"SIZE": str(8 * GIB), "TYPE": kind, "DATA_WIDTH": bits}
        fields |= {"SPEED_MTS": rated, "CONFIGURED_SPEED_MTS": configured} if kind else {}
        lines += [f"MEMORY_DEVICE_{i}_{name}={value}" for name, value in fields.items() if value]
    return "\n".join(lines)


def read_udev(folder: Path, *slots: str) -> Hardware:
    write(folder, "udevadm.txt", udev(*slots))
    return read_hardware(machine(folder))


def structure(kind: int, handle: int, body: bytes, *texts: str) -> bytes:
    head = struct.pack("<BBH", kind, 4 + len(body), handle)
    return head + body + (b"".join(text.encode() + b"\0" for text in texts) or b"\0") + b"\0"


def array(handle: int, *, use: int = 3, n_slots: int) -> bytes:
    return structure(16, handle, struct.pack("<BBBIHH", 3, use, 3, 0, 0xFFFE, n_slots))


def device(handle: int, of_array: int, *texts: str, size: int, kind: int, rated: int = 0, configured: int = 0) -> bytes:
    body = struct.pack("<HHHHHBBBBBHH", of_array, 0xFFFE, 72, 64, min(size, 0x7FFF), 9, 0, 1, 2, kind, 0, rated)
    body += bytes(4) + b"\0" + struct.pack("<IH", size if size >= 0x7FFF else 0, configured)
    return structure(17, handle, body, *texts)


def test_a_table_of_two_dimms(tmp_path: Path) -> None:
    table = (
        structure(0, 0, bytes(20), "a BIOS", "of no interest")
        + array(0x10, n_slots=4)
        + array(0x20, use=5, n_slots=1)  # of the BIOS chip
        + device(0x11, 0x10, "DIMM 1", "P0 CHANNEL A", size=32768, kind=0x22, rated=4800, configured=6000)
        + device(0x12, 0x10, "DIMM 0", "P0 CHANNEL A", size=0, kind=0x02)
        + device(0x13, 0x10, "DIMM 1", "P0 CHANNEL B", size=16384, kind=0x22, rated=5600, configured=5600)
        + device(0x14, 0x10, "DIMM 0", "P0 CHANNEL B", size=0, kind=0x02)
        + device(0x21, 0x20, "BIOS", "ROM", size=16, kind=0x09)
        + structure(127, 0xFE, b"")
        + device(0x15, 0x10, "behind the end", "", size=1, kind=0x1A)
    )
    write(tmp_path, "sys/firmware/dmi/tables/DMI", table)
    memory = read_hardware(machine(tmp_path)).memory
    assert (memory.source, memory.kind, memory.n_slots) == ("DMI tables", "DDR5", 4)
    assert (memory.n_channels, memory.n_channels_most) == (2, 2)
    assert (memory.rated_mt_per_s, memory.configured_mt_per_s) == (4800, 5600)
    assert memory.theoretical_bytes_per_s == 2 * 8 * 5600e6
    assert memory.modules is not None
    assert [(one.slot, one.channel, one.n_bytes, one.n_bits) for one in memory.modules] == [
        ("DIMM 1", "A", 32 * GIB, 64),
        ("DIMM 1", "B", 16 * GIB, 64),
    ]
    host = probe_host(measure=False, door=Door(tmp_path))
    assert (host.ram.kind, host.ram.configured_mt_per_s, host.ram.n_modules) == ("DDR5", 5600, 2)


def test_sizes_below_a_mebibyte_and_beyond_32_gibibytes() -> None:
    small = device(1, 9, "a", "b", size=0x8000 | 512, kind=0x1A).replace(b"\xff\x7f", b"\x00\x82", 1)
    large = device(2, 9, "a", "b", size=65536, kind=0x1A)
    found = parse_tables(small + large)
    assert found is not None
    assert [slot.n_bytes for slot in found.slots] == [MIB // 2, 64 * GIB]
    assert found.n_slots == 2


@pytest.mark.parametrize(
    "table",
    [
        b"",
        bytes([17, 0, 0, 0, 0, 0]),
        bytes([17, 0x5C, 0, 0]),
        device(1, 2, "DIMM 0", "BANK 0", size=1024, kind=0x1A)[:-1],
        structure(17, 1, bytes(8)),
        bytes(64),
    ],
    ids=["nothing", "no length", "cut off", "without an end", "too short", "zeros"],
)
def test_a_broken_table_tells_nothing(table: bytes) -> None:
    assert parse_tables(table) is None


def test_tables_mend_what_an_old_systemd_calls_out_of_specification(tmp_path: Path) -> None:
    write(tmp_path, "udevadm.txt", udev("DIMM_A1||<OUT OF SPEC>|64|5600|5600"))
    door = machine(tmp_path)
    assert "systemd before 256" in reasons(read_hardware(door))["memory.kind"]
    assert read_hardware(door).root_would_add == ()
    (tmp_path / "sys/firmware/dmi/tables/DMI").mkdir(parents=True)  # there, and cannot be read
    assert read_hardware(door).root_would_add == (
        "With root's rights /sys/firmware/dmi/tables would tell the kind of the memory.",
    )
    (tmp_path / "sys/firmware/dmi/tables/DMI").rmdir()
    write(tmp_path, "sys/firmware/dmi/tables/DMI", device(1, 9, "DIMM_A1", "", size=8192, kind=0x22))
    hardware = read_hardware(door)
    assert (hardware.memory.kind, hardware.memory.source, hardware.root_would_add) == ("DDR5", "DMI tables", ())


def test_what_made_up_modules_could_move_is_not_told(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx2 hypervisor\n")
    hardware = read_udev(tmp_path, "DIMM_A1||DDR4|64|3200|3200")
    assert (hardware.memory.n_channels, hardware.memory.theoretical_bytes_per_s) == (1, None)
    assert "virtual machine" in reasons(hardware)["memory.theoretical_bytes_per_s"]


def test_root_would_add_the_modules_where_there_are_tables(tmp_path: Path) -> None:
    door = machine(tmp_path)
    assert read_hardware(door).root_would_add == ()
    write(tmp_path, "sys/firmware/dmi/tables/DMI", b"")  # recorded by somebody who could not read it
    assert read_hardware(door).root_would_add == (
        "With root's rights /sys/firmware/dmi/tables would tell the memory modules.",
    )


def test_a_board_without_smbios_is_named(tmp_path: Path) -> None:
    write(tmp_path, "proc/device-tree/model", b"Raspberry Pi 5 Model B Rev 1.0\0")
    found = reasons(read_hardware(machine(tmp_path, arch="aarch64")))
    assert (
        found["memory.kind"]
        == "The device tree of this board (Raspberry Pi 5 Model B Rev 1.0) lists no memory modules."
    )


@pytest.mark.parametrize(
    ("locator", "bank", "channel"),
    [
        ("DIMM 1", "P0 CHANNEL A", "CPU0 A"),
        ("DIMM_A1", "BANK 0", "A"),
        ("DIMMB2", None, "B"),
        ("DIMM A", "Not Specified", "A"),
        ("DDR5_B2", None, "B"),
        ("CHA_DIMM1", None, "A"),
        ("ChannelA-DIMM0", "BANK 0", "A"),
        ("BANK 2/ChannelB-DIMM0", None, "B"),
        ("Controller0-ChannelA-DIMM0", "BANK 0", "Controller0 A"),
        ("Controller1-ChannelA-DIMM1", "BANK 0", "Controller1 A"),
        ("Controller1-DIMM1", "BANK 0", "Controller1"),
        ("CPU0_DIMM_A1", "BANK 0", "CPU0 A"),
        ("CPU1_DIMM_A1", "NODE 1", "CPU1 A"),
        ("DIMM_A1", "NODE 1", "Node1 A"),
        ("DIMM_P1_C0", "BANK 4", "CPU1 C"),
        ("P1-DIMMA1", "P0_Node0_Channel0_Dimm0", "CPU0 Node0 0"),
        ("DIMM000 J11", "SOCKET 0 CHANNEL 10 DIMM 0", "CPU0 10"),
        ("Node0_Dimm1", "Node0_Bank0", None),
        ("A1", "Not Specified", None),
        ("PROC 1 DIMM 1", "Not Specified", None),
        ("DIMM 0", "BANK 0", None),
        ("Bottom-Slot 1(left)", "BANK 0", None),
        ("Motherboard", None, None),
        ("DIMM Bottom", None, None),
        (None, None, None),
    ],
)
def test_channels_by_the_names_of_slots(locator: str | None, bank: str | None, channel: str | None) -> None:
    assert channel_of(locator, bank) == channel


@given(st.lists(st.tuples(st.none() | LOCATORS, st.none() | LOCATORS), max_size=8))
def test_shortened_channels_are_as_distinct_as_whole_ones(names: list[tuple[str | None, str | None]]) -> None:
    whole = [channel_of(*pair) for pair in names]
    short = channels_of([Slot(locator=locator, bank=bank) for locator, bank in names])
    assert [one is None for one in short] == [one is None for one in whole]
    assert len(set(short)) == len(set(whole))


INTEL_LAPTOP = [
    f"Controller{controller}-Channel{letter}-DIMM0|BANK {i}" + ("|DDR4|64|3200|3200" if letter == "A" else "")
    for i, (controller, letter) in enumerate((controller, letter) for controller in (0, 1) for letter in "ABCD")
]
"""As 11th to 14th generation firmware names the slots, of which a board has but two."""


@pytest.mark.parametrize(
    ("locators", "channels"),
    [
        (("DIMM_A1", "DIMM_A2"), ("A", "A")),
        (("CPU0_DIMM_A1", "CPU0_DIMM_B1"), ("A", "B")),
        (("CPU0_DIMM_A1", "CPU1_DIMM_A1"), ("CPU0 A", "CPU1 A")),
        (("Controller0-DIMM0", "Controller0-DIMM1"), ("Controller0", "Controller0")),
        (("CPU0_DIMM_A1", "DIMM 2"), ("A", None)),
        ((), ()),
    ],
)
def test_words_that_all_channels_share_are_left_out(
    locators: tuple[str, ...], channels: tuple[str | None, ...]
) -> None:
    assert channels_of([Slot(locator=locator, bank=None) for locator in locators]) == channels


@pytest.mark.parametrize(
    ("slots", "n_channels", "n_channels_most", "gb_per_s"),
    [
        (["DIMM_A1|", "DIMM_A2||DDR4|64|3200|3200", "DIMM_B1|", "DIMM_B2||DDR4|64|3200|3200"], 2, 2, 51.2),
        (["DIMM_A1|", "DIMM_A2||DDR4|64|3200|3200", "DIMM_B1|", "DIMM_B2|"], 1, 2, 25.6),
        (["DIMM_A1||DDR4|64|3200|3200", "DIMM_A2||DDR4|64|3200|2666", "DIMM_B1|", "DIMM_B2|"], 1, 2, 21.328),
        (["CPU1_DIMM_A1||DDR4|64|3200|3200", "CPU2_DIMM_A1||DDR4|64|3200|3200"], 2, 2, 51.2),
        (["Controller0-DIMM1||DDR5|64|5600|5600", "Controller1-DIMM1||DDR5|64|5600|5600"], 2, 2, 89.6),
        (INTEL_LAPTOP, 2, 2, 51.2),
        ([*INTEL_LAPTOP[:4], *(row.partition("|")[0] + "|" for row in INTEL_LAPTOP[4:])], 1, 2, 25.6),
        (["DIMM_A2||DDR5|32|6000|6000", "DIMM_B2||DDR5|32|6000|6000"], 2, 2, 96.0),  # half of a DIMM is 32 bits wide
        (["DIMM 1||DDR4|64|3200|3200", "DIMM 2|"], 1, None, 25.6),
        (["DIMM 1||DDR4|64|3200|3200", "DIMM 2||DDR4|64|3200|3200"], None, None, None),
        ([f"DIMM 0|P0 CHANNEL {letter}|LPDDR5|32|6400|6400" for letter in "ABCD"], 2, 2, 102.4),
        ([f"DIMM 0|P0 CHANNEL {letter}|LPDDR5|32|8000|8000" for letter in "ABCDEFGH"], 4, 4, 256.0),
        (["DIMM 0||LPDDR4|32|3200|3200"], None, None, 12.8),
        (["ChannelA||LPDDR5|64|6400|6400", "ChannelB||LPDDR5|32|6400|6400", "ChannelC|"], None, None, 76.8),
        (["ChannelA-DIMM0||LPDDR5||6400|6400"], None, None, None),
        (["DIMM_A1||DDR4|64|3200|1600"], 1, 1, None),
        (["DIMM_A1||DDR4|64||"], 1, 1, None),
    ],
    ids=[
        "two channels",
        "one of two",
        "two in one",
        "two sockets",
        "controllers",
        "controllers with channels of chips",
        "one of two controllers with channels of chips",
        "halves",
        "single unnamed",
        "two unnamed",
        "soldered",
        "wide soldered",
        "narrow soldered",
        "uneven soldered",
        "no width",
        "clock for transfers",
        "no speed",
    ],
)
def test_channels_and_what_they_could_move(
    *, tmp_path: Path, slots: list[str], n_channels: int | None, n_channels_most: int | None, gb_per_s: float | None
) -> None:
    hardware = read_udev(tmp_path, *slots)
    memory = hardware.memory
    assert (memory.n_channels, memory.n_channels_most) == (n_channels, n_channels_most)
    if gb_per_s is None:
        assert memory.theoretical_bytes_per_s is None
    else:
        assert memory.theoretical_bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert unexplained(hardware) == set()


def test_slots_that_only_the_board_counts_may_be_more_channels(tmp_path: Path) -> None:
    write(tmp_path, "udevadm.txt", udev("DIMM_A1||DDR4|64|3200|3200") + "\nMEMORY_ARRAY_NUM_DEVICES=4\n")
    hardware = read_hardware(machine(tmp_path))
    assert (hardware.memory.n_slots, hardware.memory.n_channels, hardware.memory.n_channels_most) == (4, 1, None)
    assert "4 slots" in reasons(hardware)["memory.n_channels_most"]


def test_the_chip_of_the_firmware_is_no_memory(tmp_path: Path) -> None:
    memory = read_udev(tmp_path, "DIMM_A1||DDR4|64|3200|3200", "SYSTEM ROM||Flash|8|33|33").memory
    assert (memory.kind, memory.configured_mt_per_s, len(memory.modules or ())) == ("DDR4", 3200, 1)
    found = parse_tables(
        device(1, 9, "DIMM_A1", "", size=8192, kind=0x1A) + device(2, 9, "SYSTEM ROM", "", size=8, kind=0x09)
    )
    assert found is not None
    assert [slot.kind for slot in found.slots] == ["DDR4"]


def test_half_the_rating_is_not_taken_for_the_speed(tmp_path: Path) -> None:
    hardware = read_udev(tmp_path, "DIMM_A1||DDR4|64|2133|1067")
    assert hardware.memory.rated_mt_per_s == 2133
    assert reasons(hardware)["memory.configured_mt_per_s"] == (
        "The firmware gives 1067 for memory rated 2133 MT/s: half, which may be its clock."
    )


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("desktop_ryzen_ddr5_rtx4090", ("DDR5", 4800, 6000, 2, 4, 2, 2, 96e9)),
        ("laptop_hybrid_intel", (None, 5200, 5200, 8, 8, 2, 2, 83.2e9)),
        ("server_nvml_refusals", ("DDR5", 4800, 4800, 8, 32, None, None, None)),
    ],
)
def test_recorded_machines(recorded: str, expected: tuple[object, ...]) -> None:
    memory = read_hardware(Door(HOSTS / recorded)).memory
    n_modules = len(memory.modules or ())
    speeds = (memory.rated_mt_per_s, memory.configured_mt_per_s)
    counts = (n_modules, memory.n_slots, memory.n_channels, memory.n_channels_most)
    assert (memory.kind, *speeds, *counts, memory.theoretical_bytes_per_s) == expected
    assert memory.source == "udev"


def test_windows(tmp_path: Path) -> None:
    rows = [
        {
            "DeviceLocator": f"Controller{i}-DIMM1",
            "BankLabel": "BANK 0",
            "SMBIOSMemoryType": 34,
            "Capacity": 16 * GIB,
            "Speed": 5600,
            "ConfiguredClockSpeed": 4800,
            "DataWidth": 64,
            "TotalWidth": 64,
        }
        for i in (0, 1)
    ]
    told = {"modules": rows, "arrays": [{"MemoryDevices": 4}]}
    write(tmp_path, "powershell.txt", json.dumps(told))
    door = machine(tmp_path, name="Windows")
    hardware = read_hardware(door)
    memory = hardware.memory
    assert (memory.source, memory.kind, memory.rated_mt_per_s, memory.configured_mt_per_s) == (
        "Windows",
        "DDR5",
        5600,
        4800,
    )
    assert (memory.n_slots, memory.n_channels, memory.n_channels_most) == (4, 2, None)
    assert memory.theoretical_bytes_per_s == 2 * 8 * 4800e6
    assert unexplained(hardware) == set()
    ram = probe_host(measure=False, door=door).ram
    assert ram.kind is None  # it takes PowerShell a second, which only this look in depth may take

    write(tmp_path, "powershell.txt", json.dumps(rows[0]))  # a list of one as PowerShell writes it
    hardware = read_hardware(door)
    assert (hardware.memory.n_slots, hardware.memory.n_channels) == (None, 1)
    assert reasons(hardware)["memory.n_slots"] == "Windows does not tell how many slots there are."


def test_an_intel_mac(tmp_path: Path) -> None:
    items = [
        {"_name": f"BANK {2 * i}/Channel{c}-DIMM0", "dimm_size": "8 GB", "dimm_speed": "2667 MHz", "dimm_type": "DDR4"}
        for i, c in enumerate("AB")
    ]
    empty = {"_name": "BANK 1/ChannelA-DIMM1", "dimm_size": "empty", "dimm_speed": "empty", "dimm_type": "empty"}
    told = {"SPMemoryDataType": [{"_name": "global_name", "_items": [*items, empty]}]}
    write(tmp_path, "system_profiler.txt", json.dumps(told))
    hardware = read_hardware(machine(tmp_path, name="macOS"))
    memory = hardware.memory
    assert (memory.source, memory.kind, memory.configured_mt_per_s, memory.n_slots) == ("macOS", "DDR4", 2667, 3)
    assert (memory.n_channels, memory.n_channels_most, memory.theoretical_bytes_per_s) == (2, 2, 2 * 8 * 2667e6)
    assert memory.modules is not None
    assert [(one.channel, one.n_bytes) for one in memory.modules] == [("A", 8 * GIB), ("B", 8 * GIB)]
    assert unexplained(hardware) == set()


@pytest.mark.parametrize(
    ("chip", "n_cores", "gb_per_s"),
    [
        ("Apple M1", 8, 68.25),
        ("Apple M3 Pro", 11, 150),
        ("Apple M4 Max", 14, 410),
        ("Apple M4 Max", 16, 546),
        ("Apple M4 Max", None, None),
        ("Apple M99", 8, None),
        ("", 8, None),
    ],
)
def test_apple_chips(tmp_path: Path, chip: str, n_cores: int | None, gb_per_s: float | None) -> None:
    told = {"SPMemoryDataType": [{"SPMemoryDataType": "18 GB", "dimm_type": "LPDDR5", "dimm_manufacturer": "Hynix"}]}
    write(tmp_path, "system_profiler.txt", json.dumps(told))
    write(tmp_path, "sysctl_-n_machdep.cpu.brand_string.txt", f"{chip}\n")
    hardware = read_hardware(machine(tmp_path, name="macOS", arch="arm64", n_physical_cores=n_cores))
    memory = hardware.memory
    assert (memory.source, memory.kind, memory.modules, memory.n_channels) == ("macOS", "LPDDR5", None, None)
    assert memory.theoretical_bytes_per_s == (None if gb_per_s is None else gb_per_s * 1e9)
    assert "part of the chip" in reasons(hardware)["memory.modules"]
    assert unexplained(hardware) == set()


def test_memory_nodes(tmp_path: Path) -> None:
    for node, cpus, total in ((0, "0-1,4", "Node 0 MemTotal:       1024 kB\n"), (2, "", "nonsense"), (10, "2-3", "")):
        write(tmp_path, f"sys/devices/system/node/node{node}/cpulist", cpus)
        write(tmp_path, f"sys/devices/system/node/node{node}/meminfo", total)
    write(tmp_path, "sys/devices/system/node/online", "0,2,10")
    assert read_hardware(machine(tmp_path)).memory.numa_nodes == (
        NumaNode(index=0, cpus=(0, 1, 4), total_bytes=MIB),
        NumaNode(index=2, cpus=(), total_bytes=None),
        NumaNode(index=10, cpus=(2, 3), total_bytes=None),
    )


def test_the_same_command_with_other_words_is_recorded_apart(tmp_path: Path) -> None:
    door = machine(tmp_path)
    write(tmp_path, "sysctl.txt", "for all")
    write(tmp_path, "sysctl_-n_hw.memsize.txt", "17179869184")
    assert door.command("sysctl", "-n", "hw.memsize") == "17179869184"
    assert door.command("sysctl", "-n", "hw.ncpu") == "for all"
    assert door.command("powershell", "-Command", WINDOWS_COMMAND) is None
    write(
        tmp_path,
        "powershell_-Command_modules_Get-CimInstance_Win32_PhysicalMemory_Select-Object_DeviceLocator_BankLabel_SMBIOSMemoryType_.txt",
        "long",
    )
    assert door.command("powershell", "-Command", WINDOWS_COMMAND) == "long"


def test_bytes_are_read_up_to_a_bound(tmp_path: Path) -> None:
    write(tmp_path, "sys/large", bytes(2 * MIB))
    assert len(Door(tmp_path).bytes("/sys/large") or b"") == MIB
    assert Door(tmp_path).bytes("/sys/none") is None
    assert Door(tmp_path).bytes("/sys") is None


@pytest.mark.parametrize("recorded", MACHINES)
def test_every_unknown_of_a_recorded_machine_is_explained(recorded: str) -> None:
    hardware = read_hardware(Door(HOSTS / recorded))
    assert unexplained(hardware) == set()
    assert all(note.reason.endswith(".") and len(note.reason.split()) > 2 for note in hardware.notes)
    assert len(reasons(hardware)) == len(hardware.notes)


def unexplained(hardware: Hardware) -> set[str]:
    memory: MemoryHardware = hardware.memory
    unknown = {f"memory.{field.name}" for field in dataclasses.fields(memory) if getattr(memory, field.name) is None}
    unknown |= {
        f"cpu.{one.name}" for one in dataclasses.fields(hardware.cpu) if getattr(hardware.cpu, one.name) is None
    }
    return unknown - set(reasons(hardware))

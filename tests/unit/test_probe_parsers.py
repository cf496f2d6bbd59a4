"""The readers of kernel and firmware text: exact on true text, unmoved by any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.probe.cgroup import cpu_quota, group_folders, memory_bounds
from offloadtune.probe.cpu import parse_cache_bytes, parse_cpuinfo
from offloadtune.probe.dmi import Slot, Slots, parse_tables
from offloadtune.probe.facts import parse_cpu_list, parse_int, parse_positive, printable
from offloadtune.probe.gpu import FIELDS, read_gpus
from offloadtune.probe.host import Door
from offloadtune.probe.instructions import engine_instruction_sets, parse_mac_flags
from offloadtune.probe.inventory import parse_os_release
from offloadtune.probe.modules import parse_mac, parse_udev, parse_windows
from offloadtune.probe.ram import parse_meminfo
from offloadtune.units import GIB

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("error"), inner, max_size=3),
    max_leaves=8,
)
ROW_FIELDS = ["Capacity", "Speed", "SMBIOSMemoryType", "DeviceLocator", "dimm_size", "dimm_speed", "dimm_type", "_name"]
CALLS = [call for call, _ in FIELDS.values()] + ["nvmlDeviceGetName", "error"]


@given(st.text())
def test_no_text_makes_a_parser_raise(text: str) -> None:
    parse_int(text)
    parse_cpuinfo(text)
    parse_cache_bytes(text)
    parse_meminfo(text)
    parse_os_release(text)
    parse_udev(text)
    parse_windows(text)
    parse_mac(text)
    parse_mac_flags(text)
    engine_instruction_sets(text)
    parse_cpu_list(text)
    for controller in ("memory", "cpu"):
        assert all(folder.startswith("/sys/fs/cgroup") for folder in group_folders(text, controller))


@given(st.lists(st.sampled_from(["0::", "4:memory:", "/", "..", "a", "\n", ":", ",", "cpu,cpuacct"])).map("".join))
def test_no_cgroup_path_leads_out_of_the_mount(text: str) -> None:
    assert all(".." not in folder.split("/") for folder in group_folders(text, "memory"))


@given(st.dictionaries(st.sampled_from(["SIZE", "TYPE", "CONFIGURED_SPEED_MTS", "LOCATOR", "DATA_WIDTH"]), st.text()))
def test_no_property_value_makes_the_module_reader_raise(properties: dict[str, str]) -> None:
    parse_udev("\n".join(f"MEMORY_DEVICE_0_{name}={value}" for name, value in properties.items()))


@given(rows=JSON | st.lists(st.dictionaries(st.sampled_from(ROW_FIELDS), JSON)))
def test_no_json_makes_the_module_readers_raise(rows: Any) -> None:
    parse_windows(json.dumps(rows))
    parse_windows(json.dumps({"modules": rows, "arrays": rows}))
    parse_mac(json.dumps({"SPMemoryDataType": [{"_items": rows}]}))
    parse_mac(json.dumps({"SPMemoryDataType": rows}))


def test_json_nested_without_end_is_no_list_of_modules() -> None:
    assert parse_windows("[" * 100_000) is None


@given(st.binary())
def test_no_bytes_make_the_reader_of_tables_raise(table: bytes) -> None:
    found = parse_tables(table)
    assert found is None or found.slots


@given(data=st.data())
def test_no_damage_makes_the_reader_of_tables_raise(data: st.DataObject) -> None:
    table = bytearray(2 * (bytes([17, 0x5C, 1, 0]) + bytes(range(0x58)) + b"A\0B\0\0") + bytes([127, 4, 0, 0, 0, 0]))
    for _ in range(data.draw(st.integers(0, 4))):
        table[data.draw(st.integers(0, len(table) - 1))] = data.draw(st.integers(0, 255))
    found = parse_tables(bytes(table[: data.draw(st.integers(0, len(table)))]))
    assert found is None or len(found.slots) <= 2


@given(text=st.text(), most=st.integers(1, 2**64))
def test_a_positive_number_is_within_its_bound(text: str, most: int) -> None:
    for value in (text, f"{most}", f"{most + 1}", most + 1, True, 1.5, None):
        number = parse_positive(value, most=most)
        assert number is None or 0 < number <= most
    assert parse_positive(str(most), most=most) == parse_positive(most, most=most) == most
    assert parse_positive(most + 1, most=most) is None
    assert parse_positive(value=True, most=most) is None


@given(st.sets(st.integers(0, 9999)))
def test_a_list_of_cpus_comes_back(cpus: set[int]) -> None:
    assert parse_cpu_list(",".join(map(str, cpus))) == tuple(sorted(cpus))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8\n", (0, 1, 2, 3, 8)),
        ("5", (5,)),
        ("", ()),
        (None, ()),
        ("0-99999999999999", ()),
        ("3-1", ()),
        ("-1", ()),
        ("0-1,x", ()),
    ],
)
def test_lists_of_cpus(text: str | None, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@given(st.text())
def test_what_firmware_wrote_is_made_printable(text: str) -> None:
    shown = printable(text)
    assert shown is None or (shown.isprintable() and 0 < len(shown) <= 60)


@given(answers=JSON | st.fixed_dictionaries({"devices": st.lists(st.dictionaries(st.sampled_from(CALLS), JSON))}))
def test_no_nvml_answer_makes_the_reader_raise(answers: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("host")
    (folder / "nvml.json").write_text(json.dumps(answers))
    gpus, notes = read_gpus(Door(folder))
    assert gpus or notes


def test_group_folders_climb_from_the_own_group_to_the_mount() -> None:
    assert group_folders("0::/a.slice/b.scope\n", "memory") == (
        "/sys/fs/cgroup/a.slice/b.scope",
        "/sys/fs/cgroup/a.slice",
        "/sys/fs/cgroup",
    )
    assert group_folders("2:cpu,cpuacct:/docker\n4:memory:/\n", "cpu") == (
        "/sys/fs/cgroup/cpu/docker",
        "/sys/fs/cgroup/cpu",
    )


@given(limits=st.lists(st.integers(0, 2**63), min_size=1, max_size=5), usage=st.integers(0, 2**63))
def test_bounds_are_never_negative_and_never_above_their_limit(
    limits: list[int], usage: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("host")
    names = [f"g{i}" for i in range(len(limits))]
    write(folder, "proc/self/cgroup", f"0::/{'/'.join(names)}\n")
    for depth, limit in enumerate(limits, start=1):
        group = "/".join(("sys/fs/cgroup", *names[:depth]))
        write(folder, f"{group}/memory.max", f"{limit}\n")
        write(folder, f"{group}/memory.current", f"{usage}\n")
    bounds = memory_bounds(Door(folder))
    assert [bound.limit_bytes for bound in bounds] == limits[::-1]
    assert all(0 <= bound.available_bytes <= bound.limit_bytes for bound in bounds)


def test_memory_high_is_a_limit_too(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.high", f"{4 * GIB}\n")
    assert [bound.limit_bytes for bound in memory_bounds(Door(tmp_path))] == [4 * GIB]


@pytest.mark.parametrize(
    ("text", "quota"),
    [("200000 100000", 2.0), ("50000 100000", 0.5), ("max 100000", None), ("0 0", None), ("nonsense", None)],
)
def test_cpu_quota(tmp_path: Path, text: str, quota: float | None) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", f"{text}\n")
    write(tmp_path, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert cpu_quota(Door(tmp_path)) == quota


def test_meminfo_is_in_bytes_and_leaves_counts_out() -> None:
    assert parse_meminfo("MemTotal:  24684092 kB\nHugePages_Total:  0\n") == {"MemTotal": 24684092 * 1024}


def test_modules_are_the_filled_slots() -> None:
    text = (
        "MEMORY_ARRAY_NUM_DEVICES=2\nMEMORY_DEVICE_0_PRESENT=0\nMEMORY_DEVICE_0_TYPE=Unknown\n"
        "MEMORY_DEVICE_0_LOCATOR=DIMM 0\n"
        "MEMORY_DEVICE_1_SIZE=17179869184\nMEMORY_DEVICE_1_TYPE=DDR4\nMEMORY_DEVICE_1_SPEED_MTS=3600\n"
        "MEMORY_DEVICE_1_CONFIGURED_SPEED_MTS=3200\nMEMORY_DEVICE_1_TOTAL_WIDTH=72\nMEMORY_DEVICE_1_DATA_WIDTH=64\n"
    )
    filled = Slot(
        locator=None, bank=None, kind="DDR4", n_bytes=2**34, rated_mt_per_s=3600, configured_mt_per_s=3200, n_bits=64
    )
    found = parse_udev(text)
    assert found is not None
    assert found == Slots(source="udev", slots=(Slot(locator="DIMM 0", bank=None, kind="Unknown"), filled), n_slots=2)
    assert found.filled == (filled,)


def test_os_release_loses_its_quotes() -> None:
    assert parse_os_release("# c\nNAME=\"Arch Linux\"\nID='arch'\nX\n") == {"NAME": "Arch Linux", "ID": "arch"}


def write(folder: Path, path: str, text: str) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)

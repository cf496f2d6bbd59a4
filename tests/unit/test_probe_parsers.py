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
from offloadtune.probe.facts import parse_int
from offloadtune.probe.gpu import FIELDS, read_gpus
from offloadtune.probe.host import Door
from offloadtune.probe.inventory import parse_os_release
from offloadtune.probe.ram import Module, parse_meminfo, parse_modules
from offloadtune.units import GIB

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("error"), inner, max_size=3),
    max_leaves=8,
)
CALLS = [call for call, _ in FIELDS.values()] + ["nvmlDeviceGetName", "error"]


@given(st.text())
def test_no_text_makes_a_parser_raise(text: str) -> None:
    parse_int(text)
    parse_cpuinfo(text)
    parse_cache_bytes(text)
    parse_meminfo(text)
    parse_modules(text)
    parse_os_release(text)
    for controller in ("memory", "cpu"):
        assert all(folder.startswith("/sys/fs/cgroup") for folder in group_folders(text, controller))


@given(st.lists(st.sampled_from(["0::", "4:memory:", "/", "..", "a", "\n", ":", ",", "cpu,cpuacct"])).map("".join))
def test_no_cgroup_path_leads_out_of_the_mount(text: str) -> None:
    assert all(".." not in folder.split("/") for folder in group_folders(text, "memory"))


@given(st.fixed_dictionaries({}, optional={"SIZE": st.text(), "TYPE": st.text(), "CONFIGURED_SPEED_MTS": st.text()}))
def test_no_property_value_makes_the_module_reader_raise(properties: dict[str, str]) -> None:
    parse_modules("\n".join(f"MEMORY_DEVICE_0_{name}={value}" for name, value in properties.items()))


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
        "MEMORY_DEVICE_1_SIZE=17179869184\nMEMORY_DEVICE_1_TYPE=DDR4\nMEMORY_DEVICE_1_SPEED_MTS=3600\n"
        "MEMORY_DEVICE_1_CONFIGURED_SPEED_MTS=3200\n"
    )
    assert parse_modules(text) == (Module(kind="DDR4", configured_mt_per_s=3200),)


def test_os_release_loses_its_quotes() -> None:
    assert parse_os_release("# c\nNAME=\"Arch Linux\"\nID='arch'\nX\n") == {"NAME": "Arch Linux", "ID": "arch"}


def write(folder: Path, path: str, text: str) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)

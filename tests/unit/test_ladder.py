"""The ladder of bandwidths, and what a token reads of a file."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_machines import CUDA0_SPEED, DISK, PROFILE, RADEON, RAPHAEL, RTX4090, changed
from sample_records import CPU, CUDA0, FACTS, GIB

from offloadtune import doctor
from offloadtune.doctor.classes import card_class, disk_class, memory_class, pcie_class
from offloadtune.hardware import Medium
from offloadtune.records import Device, GgufFacts, TensorFacts

GPUS, DEVICES = "hardware.gpus", "machine.devices"
DENSE = dataclasses.replace(
    FACTS,
    n_layer=2,
    n_layer_nextn=0,
    n_expert=0,
    n_expert_used=0,
    is_tied=False,
    layer_bytes=(100, 200),
    expert_bytes=(0, 0),
    embedding_bytes=1000,
    output_bytes=700,
    other_bytes=5,
    tensors=(),
)


def by_name(profile: Any = PROFILE, bytes_per_token: float | None = None) -> dict[str, Medium]:
    return {one.name: one for one in doctor.ladder(profile, (DISK,), bytes_per_token)}


# --- what a token reads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "n_bytes"),
    [
        (DENSE, 100 + 200 + 700 + 5),
        (dataclasses.replace(DENSE, is_tied=True, output_bytes=2), 100 + 200 + 2 + 5 + 1000),
        (dataclasses.replace(DENSE, n_layer_nextn=1), 100 + 700 + 5),
        (dataclasses.replace(DENSE, n_expert=8, n_expert_used=2, expert_bytes=(80, 160)), 20 + 20 + 40 + 40 + 705),
        (dataclasses.replace(DENSE, n_expert=2, n_expert_used=9, expert_bytes=(80, 160)), 300 + 705),
    ],
    ids=["dense", "tied", "blocks that predict", "experts", "absurd experts"],
)
def test_what_a_token_reads(facts: GgufFacts, n_bytes: float) -> None:
    assert doctor.bytes_per_token(facts) == n_bytes


def test_rows_for_each_block_are_not_read_whole() -> None:
    """Gemma 3n has a table of rows for its blocks beside the embedding that is its output."""
    tables = [("token_embd.weight", 400), ("per_layer_token_embd.weight", 600)]
    tensors = tuple(
        TensorFacts(name=name, type_name="Q4_0", shape=(1,), n_bytes=n_bytes, offset=0, i_shard=0)
        for name, n_bytes in tables
    )
    facts = dataclasses.replace(DENSE, is_tied=True, tensors=tensors)
    assert doctor.bytes_per_token(facts) == 100 + 200 + 700 + 5 + 400


def test_an_empty_header_reads_nothing_that_is_known() -> None:
    nothing = dataclasses.replace(DENSE, layer_bytes=(0, 0), output_bytes=0, other_bytes=0)
    assert doctor.bytes_per_token(nothing) is None


@given(
    layers=st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0, 1)), max_size=8),
    n_expert=st.integers(0, 512),
    n_used=st.integers(0, 512),
    is_tied=st.booleans(),
)
def test_a_token_reads_no_more_than_there_is(
    layers: list[tuple[int, float]],
    n_expert: int,
    n_used: int,
    is_tied: bool,  # noqa: FBT001
) -> None:
    facts = dataclasses.replace(
        DENSE,
        n_layer=len(layers),
        layer_bytes=tuple(n for n, _ in layers),
        expert_bytes=tuple(int(n * share) for n, share in layers),
        n_expert=n_expert,
        n_expert_used=n_used,
        is_tied=is_tied,
    )
    n_bytes = doctor.bytes_per_token(facts)
    assert n_bytes is not None
    assert 0 < n_bytes <= facts.tensor_bytes + 1
    if not n_expert:
        assert n_bytes == facts.tensor_bytes - (0 if is_tied else facts.embedding_bytes)


# --- the rungs -----------------------------------------------------------------------------------------------------


def test_the_rungs_of_a_desktop() -> None:
    rungs = by_name()
    assert [(one.name, one.class_name, one.bytes_per_s) for one in rungs.values()] == [
        ("CUDA0 NVIDIA GeForce RTX 4090", "GDDR5 to GDDR7", 921e9),
        ("main memory", "DDR5", 61.2e9),
        ("main memory to CUDA0", "PCIe 4 x16", 25.3e9),
        ("disk of /", "NVMe SSD", 5.1e9),
    ]
    assert [(one.fitness_prefill, one.fitness_decode) for one in rungs.values()] == [
        ("good", "good"),
        ("slow", "usable"),
        ("good", "no"),
        ("slow", "no"),
    ]
    assert all(one.decode_ceiling_tok_per_s is None for one in rungs.values())


def test_the_ceiling_is_bandwidth_over_bytes_and_only_of_what_was_measured() -> None:
    assert by_name(bytes_per_token=4e9)["main memory"].decode_ceiling_tok_per_s == pytest.approx(15.3)
    unmeasured = changed(PROFILE, {"device_speeds": (), "hardware.memory.speeds": ()})
    unmeasured = changed(unmeasured, {"machine.host.ram.read_bytes_per_s": None})
    rungs = by_name(unmeasured, 4e9)
    assert [one.name for one in rungs.values() if one.decode_ceiling_tok_per_s] == ["disk of /"]
    assert rungs["main memory to CUDA0"].class_name == "PCIe 4 x16"


def test_what_was_not_measured_has_a_word_only_where_all_of_its_class_have_it() -> None:
    unmeasured = changed(PROFILE, {"device_speeds": (), "hardware.memory.speeds": ()})
    unmeasured = changed(unmeasured, {"machine.host.ram.read_bytes_per_s": None})
    rungs = {one.name: one for one in doctor.ladder(unmeasured, (dataclasses.replace(DISK, cold_bytes_per_s=None),), 1)}
    assert [(one.fitness_prefill, one.fitness_decode) for one in rungs.values()] == [
        ("good", "unknown"),
        ("slow", "unknown"),
        ("good", "no"),
        ("unknown", "no"),
    ]


def test_a_disk_too_fast_to_be_a_hard_disk_is_of_unknown_kind() -> None:
    for cold, name in ((0.2e9, "hard disk"), (0.4e9, "drive of unknown kind"), (None, "hard disk")):
        (rung,) = doctor.ladder(PROFILE, (dataclasses.replace(DISK, kind="hdd", cold_bytes_per_s=cold),), None)[3:]
        assert rung.class_name == name


def test_without_pinned_memory_the_link_is_said_to_be_otherwise() -> None:
    rungs = by_name(
        changed(PROFILE, {"device_speeds": (dataclasses.replace(CUDA0_SPEED, to_pinned_bytes_per_s=None),)})
    )
    assert rungs["main memory to CUDA0 (not pinned)"].bytes_per_s == CUDA0_SPEED.to_pageable_bytes_per_s


def test_a_card_that_the_engine_leaves_alone_is_on_the_ladder() -> None:
    rungs = by_name(changed(PROFILE, {DEVICES: (CPU,), "device_speeds": ()}))
    assert rungs["GPU 0 (NVIDIA GeForce RTX 4090), not used by the engine"].bytes_per_s is None
    assert rungs["main memory to GPU 0 (NVIDIA GeForce RTX 4090)"].class_name == "PCIe 4 x16"


def test_a_device_without_an_address_is_the_only_card() -> None:
    nameless = dataclasses.replace(CUDA0, device_id=None)
    assert "CUDA0 NVIDIA GeForce RTX 4090" in by_name(changed(PROFILE, {DEVICES: (nameless, CPU)}))
    two = by_name(changed(PROFILE, {DEVICES: (nameless, CPU), GPUS: (RTX4090, RADEON)}))
    assert [name for name in two if "not used" in name] == []
    assert two["main memory to CUDA0"].class_name == "PCIe 4 x16"  # as its own driver said under load


def test_an_integrated_gpu_has_main_memory_and_no_link() -> None:
    igpu = dataclasses.replace(CUDA0, name="Vulkan0", kind="igpu", device_id="0000:0c:00.0")
    rungs = by_name(changed(PROFILE, {DEVICES: (igpu, CPU), GPUS: (RAPHAEL,)}))
    assert rungs["Vulkan0 AMD Raphael"].class_name == "DDR5, shared"
    assert [name for name in rungs if "main memory to" in name] == []


def test_another_machines_device_is_behind_a_network() -> None:
    remote = Device(name="RPC0", description="10.0.0.2:50052", kind="gpu", total_bytes=GIB, free_bytes=GIB)
    rungs = by_name(changed(PROFILE, {DEVICES: (remote, CPU), GPUS: ()}))
    assert rungs["RPC0 10.0.0.2:50052"].class_name == "another machine's"
    assert rungs["network to RPC0"].class_name == "network"


def test_apples_memory_is_shared() -> None:
    apple = dataclasses.replace(RAPHAEL, vendor="apple", index=0, name="Apple M3 Pro", pci_bus_id=None)
    metal = Device(name="MTL0", description="Apple M3 Pro", kind="gpu", total_bytes=GIB, free_bytes=GIB)
    parts = {DEVICES: (metal, CPU), GPUS: (apple,), "machine.host.os": "macOS 14.5", "machine.host.cpu.arch": "arm64"}
    rungs = by_name(changed(PROFILE, parts))
    assert {one.class_name for name, one in rungs.items() if "disk" not in name} == {"memory shared with the GPU"}
    assert [name for name in rungs if "main memory to" in name] == []


# --- classes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("NVIDIA H200", "HBM3 to HBM3e"),
        ("NVIDIA B200", "HBM3 to HBM3e"),
        ("NVIDIA H20", "HBM3 to HBM3e"),
        ("NVIDIA GH200 480GB", "HBM3 to HBM3e"),
        ("AMD Instinct MI300X OAM", "HBM3 to HBM3e"),
        ("NVIDIA H100 PCIe", "HBM2 to HBM3"),
        ("NVIDIA A100-SXM4-40GB", "HBM2 to HBM3"),
        ("AMD Instinct MI250X", "HBM2 to HBM3"),
        ("Intel(R) Data Center GPU Max 1550", "HBM2 to HBM3"),
        ("Tesla V100-SXM2-16GB", "HBM2"),
        ("Tesla P100-PCIE-16GB", "HBM2"),
        ("Quadro GV100", "HBM2"),
        ("AMD Radeon VII (RADV VEGA20)", "HBM2"),
        ("AMD Radeon RX Vega 64", "HBM2"),
        ("AMD Radeon RX Vega (RADV VEGA10)", "HBM2"),
        ("AMD Radeon RX Vega 10 Graphics", "GDDR5 to GDDR7"),
        ("Quadro P1000", "GDDR5 to GDDR7"),
        ("NVIDIA A10", "GDDR5 to GDDR7"),
        ("NVIDIA RTX A6000", "GDDR5 to GDDR7"),
        ("NVIDIA GeForce RTX 5090", "GDDR5 to GDDR7"),
        ("Intel Arc B580", "GDDR5 to GDDR7"),
    ],
)
def test_the_class_of_a_card(name: str, class_name: str) -> None:
    assert card_class(name)[0] == class_name


@pytest.mark.parametrize(
    ("generation", "n_lanes", "name", "low", "high"),
    [
        (3, 16, "PCIe 3 x16", 10e9, 13e9),
        (4, 16, "PCIe 4 x16", 25e9, 26e9),
        (5, 16, "PCIe 5 x16", 52e9, 56e9),
        (4, 4, "PCIe 4 x4", 6.25e9, 6.5e9),
        (4, 32, "PCIe 4 x32", 25e9, 26e9),
        (None, 16, "PCIe link of unknown width", 2.5e9, 56e9),
        (9, 16, "PCIe link of unknown width", 2.5e9, 56e9),
        (4, None, "PCIe link of unknown width", 2.5e9, 56e9),
    ],
)
def test_the_class_of_a_link(generation: int | None, n_lanes: int | None, name: str, low: float, high: float) -> None:
    assert pcie_class(generation, n_lanes) == (name, (low, high))


def test_what_is_not_known_has_the_widest_class() -> None:
    assert memory_class("DDR4") == ("DDR4", (20e9, 50e9))
    assert memory_class(None)[0] == "memory of unknown type"
    assert memory_class("HBM2") == ("HBM2", memory_class(None)[1])
    assert disk_class("floppy") == disk_class(None)
    assert disk_class("hdd") == ("hard disk", (0.1e9, 0.25e9))


@given(
    read=st.one_of(st.none(), st.floats(1e6, 1e13)),
    kind=st.sampled_from(["DDR5", "DDR4", "LPDDR5X", None]),
    bytes_per_token=st.one_of(st.none(), st.floats(1, 1e12)),
)
def test_a_ladder_is_made_of_any_machine(read: float | None, kind: str | None, bytes_per_token: float | None) -> None:
    speeds = (dataclasses.replace(CUDA0_SPEED, memory_bytes_per_s=read, to_pinned_bytes_per_s=read),)
    profile = changed(PROFILE, {"device_speeds": speeds, "hardware.memory.kind": kind, "machine.host.ram.kind": kind})
    for one in doctor.ladder(profile, (dataclasses.replace(DISK, cold_bytes_per_s=read),), bytes_per_token):
        low, high = one.class_bytes_per_s
        assert 0 < low < high
        assert {one.fitness_prefill, one.fitness_decode} <= {"good", "usable", "slow", "very slow", "no", "unknown"}
        assert (one.decode_ceiling_tok_per_s is None) == (one.bytes_per_s is None or bytes_per_token is None)

"""Rigs: what cards by name and this machine can do at best, and that nothing written down badly stops them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sample_machines import CUDA0_SPEED, PROFILE, RAPHAEL, RTX4090, changed
from sample_records import BARE_MACHINE, CUDA0, GIB, MACHINE

from offloadtune.catalogue import find_card
from offloadtune.errors import UnknownNameError, UsageError
from offloadtune.hardware import DeviceSpeed, MachineProfile
from offloadtune.pipeline.rigs import host_of_request, rates_of_card, rig_of_cards, rig_of_machine
from offloadtune.pipeline.rooms import named_place
from offloadtune.plans import PlanRequest
from offloadtune.records import Device, Machine
from offloadtune.speeds import DeviceRates, HostRates
from offloadtune.store import machine_path, render_machine

CARD = find_card("RTX 4090")
DIRECTIONS = ("to_pageable", "from_pageable", "to_pinned", "from_pinned", "memory")
NOTHING_MEASURED: dict[str, Any] = dict.fromkeys(f"{name}_bytes_per_s" for name in DIRECTIONS)


def on(*devices: Device, **ram: Any) -> Machine:
    machine = dataclasses.replace(MACHINE, devices=devices)
    return changed(machine, {f"host.ram.{name}": value for name, value in ram.items()})


def write_down(profile: MachineProfile, machine: Machine = MACHINE) -> None:
    path = machine_path(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_machine(profile, "0.1.0"), encoding="utf-8")


def with_speed(**figures: Any) -> MachineProfile:
    speed = DeviceSpeed(device="CUDA0", **{**NOTHING_MEASURED, **figures})
    return dataclasses.replace(PROFILE, device_speeds=(speed,))


# --- this machine --------------------------------------------------------------------------------------------------


def test_a_device_is_what_the_catalogue_says_of_its_card() -> None:
    (device,) = rig_of_machine(MACHINE).devices
    assert device == dataclasses.replace(rates_of_card(CARD), name="CUDA0", offloads_ops=True)
    assert device.read_bytes_per_s == pytest.approx(1008e9, rel=0.01)
    assert device.family == "ada"
    assert device.link_bytes_per_s == pytest.approx(31.5e9, rel=0.01)


def test_the_memory_that_the_driver_names_chooses_the_card() -> None:
    description = "NVIDIA GeForce RTX 4060 Ti"
    for size in (8, 16):
        device = dataclasses.replace(CUDA0, description=description, total_bytes=int(size * GIB * 0.98))
        assert rig_of_machine(on(device)).devices[0].read_bytes_per_s == pytest.approx(288e9, rel=0.01)


@pytest.mark.parametrize(
    "device",
    [
        Device(name="RPC0", description="10.0.0.7:50052", kind="gpu", total_bytes=GIB, free_bytes=GIB),
        Device(name="Vulkan0", description="llvmpipe (LLVM 15)", kind="gpu", total_bytes=GIB, free_bytes=GIB),
        Device(name="CUDA0", description="NVIDIA H100 MIG 1g.10gb", kind="gpu", total_bytes=GIB, free_bytes=GIB),
        Device(name="CUDA0", description="\x1b[2J", kind="gpu", total_bytes=0, free_bytes=0),
    ],
    ids=lambda device: device.description,
)
def test_of_a_device_that_the_catalogue_lacks_nothing_is_known(device: Device) -> None:
    (found,) = rig_of_machine(on(device)).devices
    expected = DeviceRates(name=device.name, offloads_ops=not device.name.startswith("RPC"))
    assert found == expected


def test_devices_share_by_what_is_free_on_them() -> None:
    second = dataclasses.replace(CUDA0, name="CUDA1", device_id="0000:02:00.0", free_bytes=11 * GIB)
    assert rig_of_machine(on(CUDA0, second)).shares == (float(23 * GIB), float(11 * GIB))


def test_main_memory_is_what_its_modules_promise_and_what_was_read() -> None:
    host = rig_of_machine(MACHINE).host
    assert host == HostRates(peak_bytes_per_s=89.6e9, read_bytes_per_s=61.2e9, n_cores=16, last_level_bytes=64 << 20)


@pytest.mark.parametrize(
    ("ram", "peak"),
    [
        ({"n_modules": 1}, None),  # 44.8 promised, 61.2 read
        ({"n_modules": 1, "read_bytes_per_s": None}, 44.8e9),
        ({"n_modules": 4}, None),  # two channels, or four
        ({"kind": "LPDDR5"}, None),
        ({"kind": None}, None),
        ({"configured_mt_per_s": None}, None),
        ({"n_modules": None}, None),
    ],
)
def test_modules_that_do_not_say_enough_promise_nothing(ram: dict[str, Any], peak: float | None) -> None:
    assert rig_of_machine(on(CUDA0, **ram)).host.peak_bytes_per_s == peak


def test_a_bare_machine_has_a_rig() -> None:
    rig = rig_of_machine(BARE_MACHINE)
    assert (rig.devices, rig.shares, rig.host) == ((), (), HostRates())


# --- what doctor wrote down ----------------------------------------------------------------------------------------


def test_the_link_is_as_it_was_while_data_moved() -> None:
    write_down(with_speed(pcie_generation=3, n_pcie_lanes=8, to_pinned_bytes_per_s=6.4e9))
    assert rig_of_machine(MACHINE).devices[0].link_bytes_per_s == pytest.approx(7.88e9)
    write_down(with_speed(to_pinned_bytes_per_s=48e9))  # more than the card's own link is said to move
    assert rig_of_machine(MACHINE).devices[0].link_bytes_per_s == 48e9
    write_down(with_speed(pcie_generation=9, n_pcie_lanes=8))  # of the future
    assert rig_of_machine(MACHINE).devices[0].link_bytes_per_s == CARD.pcie_bytes_per_s


def test_a_device_that_is_measured_far_below_its_card_is_what_was_measured() -> None:
    for measured, expected in ((921e9, 1008e9), (300e9, 300e9), (1100e9, 1100e9)):
        write_down(with_speed(memory_bytes_per_s=measured))
        assert rig_of_machine(MACHINE).devices[0].read_bytes_per_s == pytest.approx(expected, rel=0.01)


def test_an_unknown_card_is_what_its_driver_says_or_what_was_measured() -> None:
    unknown = dataclasses.replace(CUDA0, description="NVIDIA Graphics Device")
    machine = on(unknown)
    write_down(changed(PROFILE, {"machine": machine, "device_speeds": ()}), machine)
    assert rig_of_machine(machine).devices[0].read_bytes_per_s == RTX4090.memory_theoretical_bytes_per_s
    write_down(changed(PROFILE, {"machine": machine, "hardware.gpus": ()}), machine)
    assert rig_of_machine(machine).devices[0].read_bytes_per_s == CUDA0_SPEED.memory_bytes_per_s


def test_memory_by_channels_goes_before_memory_by_modules() -> None:
    quad = changed(PROFILE, {"hardware.memory.theoretical_bytes_per_s": 179.2e9})
    machine = on(CUDA0, n_modules=4, read_bytes_per_s=None)
    write_down(quad, machine)
    host = rig_of_machine(machine).host
    assert (host.peak_bytes_per_s, host.read_bytes_per_s) == (179.2e9, 61.2e9)


def test_graphics_in_a_processor_read_main_memory() -> None:
    igpu = Device(name="Vulkan0", description=RAPHAEL.name, kind="igpu", total_bytes=GIB, free_bytes=GIB)
    assert rig_of_machine(on(igpu)).devices[0].read_bytes_per_s == 89.6e9


@pytest.mark.parametrize("content", [b"", b"format = 1\n", b"\xff\xfe", b"format = 99\n", b"[" * 10_000])
def test_a_damaged_file_is_as_none(content: bytes) -> None:
    before = rig_of_machine(MACHINE)
    path = machine_path(MACHINE)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert rig_of_machine(MACHINE) == before


def test_a_folder_in_its_place_is_as_none() -> None:
    machine_path(MACHINE).mkdir(parents=True)
    assert rig_of_machine(MACHINE).devices[0].family == "ada"


# --- cards by name -------------------------------------------------------------------------------------------------


def test_cards_by_name_are_alike_and_share_evenly() -> None:
    place = named_place(PlanRequest(card="RTX 4090", n_devices=3, ram="ddr5-6000x2"))
    assert place.rig is not None
    assert [device.name for device in place.rig.devices] == ["CUDA0", "CUDA1", "CUDA2"]
    assert {dataclasses.replace(one, name=CARD.name) for one in place.rig.devices} == {rates_of_card(CARD)}
    assert place.rig.shares == (1.0, 1.0, 1.0)
    assert place.rig.host == HostRates(peak_bytes_per_s=96e9)


def test_beside_a_card_by_name_this_machine_says_nothing() -> None:
    place = named_place(PlanRequest(card="RTX 4090"))
    assert place.rig is not None
    assert place.rig.host == HostRates()


def test_a_device_of_a_given_size_is_unknown() -> None:
    place = named_place(PlanRequest(limit_bytes=8 * GIB), HostRates(read_bytes_per_s=50e9))
    assert place.rig is not None
    assert place.rig.devices == (DeviceRates(name="GPU0"),)
    assert place.rig.host.read_bytes_per_s == 50e9


def test_a_row_that_lacks_figures_leaves_them_unknown() -> None:
    blank = dataclasses.replace(
        CARD,
        mem_bandwidth_bytes_per_s=None,
        fp16_flop_per_s=0.0,
        int8_op_per_s=None,
        pcie_generation=None,
        l2_bytes=None,
    )
    rates = rates_of_card(blank)
    assert rates == DeviceRates(name=CARD.name, family="ada")
    shared = dataclasses.replace(blank, vram_bytes=None)
    (device,) = rig_of_cards(shared, ("GPU0",), HostRates(peak_bytes_per_s=90e9), offloads_ops=True).devices
    assert device.read_bytes_per_s == 90e9


def test_main_memory_by_text_or_by_bandwidth() -> None:
    assert host_of_request(PlanRequest()) == HostRates()
    assert host_of_request(PlanRequest(ram="ddr4-3200x2")).peak_bytes_per_s == 51.2e9
    assert host_of_request(PlanRequest(ram_bytes_per_s=51.2e9)).peak_bytes_per_s == 51.2e9
    with pytest.raises(UsageError, match="named twice"):
        host_of_request(PlanRequest(ram="ddr4-3200x2", ram_bytes_per_s=51.2e9))
    with pytest.raises(UnknownNameError):
        host_of_request(PlanRequest(ram="dr4-3200x2"))

"""The doctor on recorded machines, each with an engine for its CPU alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sample_machines import WHOLE_ENGINE
from sample_records import CPU

from offloadtune import doctor, probe
from offloadtune.hardware import Examination, MachineProfile
from offloadtune.probe import Door, probe_host, read_conditions
from offloadtune.records import Machine

HOSTS = Path(__file__).parents[1] / "hosts"
OF_MODULES = {"single_channel", "channels_unused", "memory_below_rated_speed", "memory_slow"}


def examined(host: str) -> Examination:
    door = Door(HOSTS / host)
    hardware = probe.read_hardware(door)
    told = " | ".join(f"{name} = 1" for name in hardware.cpu.instruction_sets)
    profile = MachineProfile(
        machine=Machine(host=probe_host(door=door), devices=(CPU,)),
        engine=dataclasses.replace(WHOLE_ENGINE, system_info=f"CPU : {told} |"),
        hardware=hardware,
        device_speeds=(),
        measured_at="2026-05-04T03:02:01+00:00",
    )
    return Examination(profile=profile, now=read_conditions(door=door))


@pytest.mark.parametrize(
    ("host", "found", "not_found"),
    [
        ("desktop_single_channel", {"single_channel"}, {"engine_without_gpu"}),
        ("desktop_ryzen_ddr5_rtx4090", {"engine_without_gpu"}, OF_MODULES | {"power_limit_low", "no_driver"}),
        ("desktop_two_rtx3090", {"power_limit_low", "small_bar1"}, {"pcie_narrow", "pcie_slow", "memory_limited"}),
        ("desktop_rx7900xtx", {"engine_without_gpu"}, {"no_driver", "nouveau", "integrated_gpu"}),
        ("old_pc_nouveau", {"nouveau"}, {"engine_without_gpu"}),
        ("server_nvml_refusals", {"gpu_lost"}, {"driver_mismatch"}),
        ("server_two_sockets_a100", {"numa_nodes"}, OF_MODULES),
        ("laptop_on_battery", {"on_battery", "power_saver", "swap_full"}, {"swap_used"}),
        ("container_cgroup2_limit", {"memory_limited"}, OF_MODULES),
        ("vm_without_dmi", {"memory_limited"}, OF_MODULES),
        ("wsl2_rtx3060", {"sysmem_fallback"}, {"no_driver"}),
        ("windows_desktop", {"driver_mismatch"}, {"no_driver", "engine_without_gpu"}),
        ("raspberry_pi_5", set(), OF_MODULES | {"engine_without_gpu"}),
    ],
)
def test_what_holds_a_recorded_machine_back(host: str, found: set[str], not_found: set[str]) -> None:
    codes = {finding.code for finding in doctor.examine(examined(host))}
    assert found <= codes
    assert codes & not_found == set()


@pytest.mark.parametrize("host", sorted(path.parent.name for path in HOSTS.glob("*/system.json")))
def test_every_recorded_machine_has_a_ladder(host: str) -> None:
    rungs = doctor.ladder(examined(host).profile, (), 4e9)
    assert [one.name for one in rungs].count("main memory") == 1
    assert all(one.bytes_per_s is None and one.decode_ceiling_tok_per_s is None for one in rungs)

"""A made-up machine in depth, sound in every part, and ways to change a part of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from sample_records import CPU, CUDA0, ENGINE, GIB, MACHINE

from offloadtune.conditions import Conditions, GpuConditions
from offloadtune.hardware import (
    CpuHardware,
    DeviceSpeed,
    Disk,
    Examination,
    GpuHardware,
    Hardware,
    Limits,
    MachineProfile,
    MemoryHardware,
    MemoryModule,
    MemorySpeed,
    NumaNode,
    Surroundings,
)
from offloadtune.records import EngineBuild

Record = TypeVar("Record")

MODULES = tuple(
    MemoryModule(
        slot=f"DIMM_{channel}2",
        channel=channel,
        kind="DDR5",
        n_bytes=32 * GIB,
        rated_mt_per_s=5600,
        configured_mt_per_s=5600,
        n_bits=64,
    )
    for channel in "AB"
)
RTX4090 = GpuHardware(
    vendor="nvidia",
    index=0,
    name="NVIDIA GeForce RTX 4090",
    kind="discrete",
    pci_bus_id="00000000:01:00.0",
    driver="550.54.14",
    compute_capability="8.9",
    total_bytes=24 * GIB,
    free_bytes=23 * GIB,
    bar1_bytes=32 * GIB,
    pcie_generation=1,
    pcie_generation_most=4,
    n_pcie_lanes=16,
    n_pcie_lanes_most=16,
    power_limit_w=450.0,
    power_limit_default_w=450.0,
    clock_mhz=210,
    most_clock_mhz=3105,
    memory_clock_mhz=10501,
    temperature_c=38,
    throttle_reasons=(),
    processes=(),
    memory_theoretical_bytes_per_s=1008.1e9,
)
RADEON = GpuHardware(
    vendor="amd",
    index=1,
    name="AMD Radeon RX 7900 XTX",
    kind="discrete",
    pci_bus_id="0000:03:00.0",
    driver="amdgpu",
    total_bytes=24 * GIB,
)
RAPHAEL = GpuHardware(
    vendor="amd",
    index=1,
    name="AMD Raphael",
    kind="integrated",
    pci_bus_id="0000:0c:00.0",
    driver="amdgpu",
    total_bytes=GIB // 2,
    shared_bytes=32 * GIB,
)
HARDWARE = Hardware(
    memory=MemoryHardware(
        kind="DDR5",
        rated_mt_per_s=5600,
        configured_mt_per_s=5600,
        modules=MODULES,
        n_slots=4,
        n_channels=2,
        n_channels_most=2,
        theoretical_bytes_per_s=89.6e9,
        source="udev",
        speeds=(
            MemorySpeed(n_threads=1, read_bytes_per_s=32.1e9, copy_bytes_per_s=30.2e9),
            MemorySpeed(n_threads=16, read_bytes_per_s=61.2e9, copy_bytes_per_s=58.4e9),
        ),
        numa_nodes=(NumaNode(index=0, cpus=tuple(range(32)), total_bytes=64 * GIB),),
    ),
    cpu=CpuHardware(
        n_performance_cores=16,
        n_efficiency_cores=0,
        has_smt=True,
        n_online_cpus=32,
        allowed_cpus=tuple(range(32)),
        instruction_sets=("AVX2", "FMA", "AVX512", "AVX512_VNNI"),
    ),
    gpus=(RTX4090,),
    limits=Limits(),
    surroundings=Surroundings(is_wsl=False, container=None, hypervisor=None),
)
CUDA0_SPEED = DeviceSpeed(
    device="CUDA0",
    to_pageable_bytes_per_s=14.2e9,
    from_pageable_bytes_per_s=13.1e9,
    to_pinned_bytes_per_s=25.3e9,
    from_pinned_bytes_per_s=26.1e9,
    memory_bytes_per_s=921e9,
    pcie_generation=4,
    n_pcie_lanes=16,
)
WHOLE_ENGINE = EngineBuild(
    version=ENGINE.version,
    build_id=ENGINE.build_id,
    system_info="CUDA : ARCHS = 890 | CPU : AVX2 = 1 | FMA = 1 | AVX512 = 1 | AVX512_VNNI = 1 | OPENMP = 1 |",
    library_dir=ENGINE.library_dir,
)
PROFILE = MachineProfile(
    machine=MACHINE,
    engine=WHOLE_ENGINE,
    hardware=HARDWARE,
    device_speeds=(CUDA0_SPEED,),
    measured_at="2026-05-04T03:02:01+00:00",
)
QUIET = Conditions(
    at_s=1.0,
    n_cpus=32,
    busy_cpu_s=1.0,
    stolen_cpu_s=0.0,
    ours_cpu_s=0.5,
    swapped_bytes=0,
    memory_stall_s=0.0,
    on_battery=None,
    power_profile=None,
    governor="performance",
    swap_total_bytes=8 * GIB,
    swap_free_bytes=8 * GIB,
)
CARD_NOW = GpuConditions(
    index=0,
    name="NVIDIA GeForce RTX 4090",
    clock_mhz=1200,
    most_clock_mhz=3105,
    temperature_c=60,
    throttle_reasons=(),
    other_processes=(),
)
DISK = Disk(
    path=Path("/models/a.gguf"),
    mount_point="/",
    filesystem="ext4",
    kind="nvme",
    cold_bytes_per_s=5.1e9,
    warm_bytes_per_s=11e9,
    n_bytes_read=1 << 28,
)
SOUND = Examination(profile=PROFILE, now=QUIET, disks=(DISK,), file_bytes=4 * GIB)
CPU_ALONE = (CPU,)
WITH_CARD = (CUDA0, CPU)


def changed(record: Record, parts: dict[str, Any]) -> Record:
    """`record` with the parts named by their path ("hardware.memory.n_channels") exchanged."""
    one: Any = record
    for path, value in parts.items():
        name, _, rest = path.partition(".")
        inner = changed(getattr(one, name), {rest: value}) if rest else value
        one = dataclasses.replace(one, **{name: inner})
    result: Record = one
    return result

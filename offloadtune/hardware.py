"""Nouns of the machine in depth: what its media can do, and what holds them back.

Floor 0: standard library only. `None` is "not known", and a Note in `Hardware.notes` says why. Speeds are bytes per
second as measured here; what a data sheet promises is called theoretical.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from offloadtune.conditions import Conditions, GpuProcess
from offloadtune.records import EngineBuild, Machine, Note

# --- main memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModule:
    """One module in its slot, as the firmware describes it; `channel` where the slot's name tells it ("A")."""

    slot: str | None
    channel: str | None
    kind: str | None
    n_bytes: int | None
    rated_mt_per_s: int | None
    configured_mt_per_s: int | None
    n_bits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpeed:
    """Measured by `n_threads` at once. A copy moves each byte twice, once read and once written: both are counted."""

    n_threads: int
    read_bytes_per_s: float
    copy_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """Memory and the CPUs next to it."""

    index: int
    cpus: tuple[int, ...]
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHardware:
    """Main memory. `source` names who told of the modules ("udev", "DMI tables", "Windows", "macOS").

    `n_channels` are those with a module, `n_channels_most` those the board has; both of 64 bits, so that a DDR5 module
    counts as one. `theoretical_bytes_per_s` is channels x 8 bytes x transfers per second.
    """

    kind: str | None
    rated_mt_per_s: int | None
    configured_mt_per_s: int | None
    modules: tuple[MemoryModule, ...] | None
    n_slots: int | None
    n_channels: int | None
    n_channels_most: int | None
    theoretical_bytes_per_s: float | None
    source: str | None
    speeds: tuple[MemorySpeed, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()

    @property
    def fastest(self) -> MemorySpeed | None:
        """The speed of as many threads as read the most, None before any was measured."""
        return max(self.speeds, key=lambda one: one.read_bytes_per_s, default=None)


# --- processors ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHardware:
    """What `Cpu` leaves out. Core counts are of the CPUs this process may use.

    `instruction_sets` are those that help llama.cpp and that this CPU has, spelled as in the engine's system_info
    ("AVX2", "AVX512_VNNI", "AMX_INT8", "NEON"); on a CPU whose cores are all alike every core is a performance core.
    """

    n_performance_cores: int | None
    n_efficiency_cores: int | None
    has_smt: bool | None
    n_online_cpus: int | None
    allowed_cpus: tuple[int, ...]
    instruction_sets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHardware:
    """One card, by its driver or the system. `vendor` is nvidia, amd, intel or apple; `kind` discrete or integrated.

    An idle link sleeps: `pcie_generation` and `n_pcie_lanes` are those of now, `..._most` what card and slot could do
    at once. `memory_theoretical_bytes_per_s` is memory clock x bus width. `working_set_bytes` is what Apple lets a GPU
    have of the memory it shares; `total_bytes` of an integrated GPU is its carve-out, None where it has none.
    """

    vendor: str
    index: int
    name: str
    kind: str
    pci_bus_id: str | None = None
    driver: str | None = None
    compute_capability: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    bar1_bytes: int | None = None
    pcie_generation: int | None = None
    pcie_generation_most: int | None = None
    n_pcie_lanes: int | None = None
    n_pcie_lanes_most: int | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    clock_mhz: int | None = None
    most_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    memory_theoretical_bytes_per_s: float | None = None
    working_set_bytes: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """What a device of the engine's list moves, measured through ggml: to it, from it, and in its own memory.

    Pinned is from host memory the backend allocated, pageable from ordinary memory; None where it has no such buffers
    or the measurement failed. The link is what the driver said while data moved.
    """

    device: str
    to_pageable_bytes_per_s: float | None
    from_pageable_bytes_per_s: float | None
    to_pinned_bytes_per_s: float | None
    from_pinned_bytes_per_s: float | None
    memory_bytes_per_s: float | None
    pcie_generation: int | None = None
    n_pcie_lanes: int | None = None
    reason: str | None = None


# --- disk ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Where a file lies and how fast it is read: cold after its pages were dropped, warm from the page cache.

    `kind` is nvme, ssd, hdd, network, wsl_mount or memory.
    """

    path: Path
    mount_point: str | None
    filesystem: str | None
    kind: str | None
    cold_bytes_per_s: float | None = None
    warm_bytes_per_s: float | None = None
    n_bytes_read: int | None = None
    notes: tuple[Note, ...] = ()


# --- the rest ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds this process: None is no limit, except for what the machine does not say (a Note tells).

    `address_space_bytes` is RLIMIT_AS, `locked_bytes` RLIMIT_MEMLOCK, `memory_bytes` and `cpus` the cgroup's.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    address_space_bytes: int | None = None
    locked_bytes: int | None = None


UNNAMED_HYPERVISOR = "unnamed"
"""It is there, and does not say what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the system runs inside. `container` and `hypervisor` are names ("docker", "kvm"), None outside of one.

    `is_portable` is whether the firmware calls it a laptop, a tablet or the like, None where it does not say.
    """

    is_wsl: bool
    container: str | None
    hypervisor: str | None
    is_portable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machine in depth. `root_would_add` says in full sentences what more could be read with root's rights."""

    memory: MemoryHardware
    cpu: CpuHardware
    gpus: tuple[GpuHardware, ...]
    limits: Limits
    surroundings: Surroundings
    notes: tuple[Note, ...] = ()
    root_would_add: tuple[str, ...] = ()

    def card_at(self, address: str | None) -> GpuHardware | None:
        """The card at a PCI address, of whose domain the engine writes four digits and NVML eight."""
        ours = (address or "").lower().removeprefix("0000")
        return next((gpu for gpu in self.gpus if ours and (gpu.pci_bus_id or "").lower().endswith(ours)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """All that is known of a machine, as kept in machine.toml. `measured_at` is ISO 8601 in UTC."""

    machine: Machine
    engine: EngineBuild | None
    hardware: Hardware
    device_speeds: tuple[DeviceSpeed, ...]
    measured_at: str


# --- the doctor ----------------------------------------------------------------------------------------------------


class Severity(StrEnum):
    """`note` is good to know, `warning` costs speed or memory, `problem` stops runs or makes them wrong."""

    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing the doctor found: `code` is stable ("single_channel"), the others are full sentences.

    `words` says what is wrong, `evidence` what was seen, with its figures, `next_step` what to do.
    """

    code: str
    severity: Severity
    words: str
    evidence: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """A self-test that the engine build did not survive as it computes by default, and the settings it lives with.

    `offloads` is whether it was a card's test or the CPU's alone, None where that was not kept. `worth` is a sentence
    on what a rebuild would bring.
    """

    knobs: tuple[tuple[str, str], ...]
    offloads: bool | None
    worth: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the doctor judges by.

    `rebuild_line` builds the engine for this machine; None where no line here would build one that is as good.
    `card_advice` is for each vendor what to do so that the engine can use its cards. `backends` are what the engine was
    built with ("cpu", "cuda", "vulkan"), `closed_paths` the device files that this process cannot open, each with the
    vendor of its card. `config_paths` are files that change runs unseen, and so do `variables`, names of the
    environment. `disks` are where the model files asked about lie, `file_bytes` the size of the largest of these.
    `measured_now` names what is being measured, None where nothing is: neither the engine nor its devices were asked
    beside it.
    """

    profile: MachineProfile
    now: Conditions
    rebuild_line: str | None = None
    card_advice: tuple[tuple[str, str], ...] = ()
    backends: tuple[str, ...] | None = None
    closed_paths: tuple[tuple[str, Path], ...] = ()
    faults: tuple[EngineFault, ...] = ()
    measured_now: str | None = None
    config_paths: tuple[Path, ...] = ()
    disks: tuple[Disk, ...] = ()
    file_bytes: int | None = None
    variables: tuple[str, ...] = ()


# --- the ladder ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """One rung of the bandwidth ladder: a medium of this machine beside the range of its class.

    `bytes_per_s` is measured, None where it was not; `fitness_*` are words ("good", "slow", "no"). The decode ceiling
    is bandwidth over the bytes a token reads, for the file that was named.
    """

    name: str
    class_name: str
    class_bytes_per_s: tuple[float, float]
    bytes_per_s: float | None
    fitness_prefill: str
    fitness_decode: str
    decode_ceiling_tok_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that the doctor says. `changes` is None where nothing was compared.

    `bytes_per_token` are what the file that was named reads of its weights for a token. `machine_path` is where the
    machine is written down, None where it is not.
    """

    examination: Examination
    ladder: tuple[Medium, ...]
    findings: tuple[Finding, ...]
    bytes_per_token: float | None = None
    changes: tuple[str, ...] | None = None
    machine_path: Path | None = None

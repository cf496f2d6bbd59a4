"""Nouns of the interference guard: what else goes on in the machine while something is measured.

Floor 0: standard library only. Counters are cumulative, so that two moments tell what happened between them; None
where the machine does not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that is not ours and has memory of a card, how much where the driver says."""

    pid: int
    name: str
    n_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConditions:
    """One card at one moment, by its driver.

    `throttle_reasons` are NVML's names, without "idle" and what the user set; `clock_is_free` where neither of these
    two holds the clock down, so that under load it should be near its most. `others_bytes` is what is taken of its
    memory and not ours, by processes that are not seen from here too; `ours_bytes` what the driver says is ours, None
    where it tells of none of our processes, whose memory may then be among the others'. `hot_ns` is the time in which
    heat slowed the card. `pci_bus_id` is spelled as in `NvmlGpu`.
    """

    index: int
    name: str
    clock_mhz: int | None
    most_clock_mhz: int | None
    temperature_c: int | None
    throttle_reasons: tuple[str, ...] | None
    other_processes: tuple[GpuProcess, ...] | None
    others_bytes: int | None = None
    clock_is_free: bool | None = None
    ours_bytes: int | None = None
    hot_ns: int | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The machine at one moment.

    CPU seconds are summed over the `n_cpus` this process may use: `busy_cpu_s` of everybody, `stolen_cpu_s` taken by
    the hypervisor, `ours_cpu_s` of the processes that do the measuring. Where a container's quota is less than its
    CPUs, `n_cpus` is the quota and everybody is who shares it. `n_cores` are the physical cores of the `n_cpus`.
    `memory_stall_s` is Linux's pressure: time in which something waited for memory. `governor` and `governed_by` are
    Linux's cpufreq governor and its driver.
    """

    at_s: float
    n_cpus: int
    busy_cpu_s: float | None
    stolen_cpu_s: float | None
    ours_cpu_s: float | None
    swapped_bytes: int | None
    memory_stall_s: float | None
    on_battery: bool | None
    power_profile: str | None
    governor: str | None
    gpus: tuple[GpuConditions, ...] = ()
    governed_by: str | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    n_cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChange:
    """Free device memory that became less, or more again, while a sweep was under way, which went on with that.

    `free_bytes` by device, nothing of ours loaded; `words` say what happened in full sentences. `n_fit_layers` and
    `no_fit` are what llama.cpp's --fit rule says from then on, as in `SweepHeader`.
    """

    free_bytes: tuple[tuple[str, int], ...]
    words: str
    n_fit_layers: int | None = None
    no_fit: str = ""


class DisturbanceKind(StrEnum):
    """What disturbed a measurement, or stands to."""

    CPU = "cpu"
    STOLEN = "stolen"
    MEMORY = "memory"
    SWAP = "swap"
    GPU_PROCESS = "gpu_process"
    GPU_THROTTLE = "gpu_throttle"
    BATTERY = "battery"
    POWER_PROFILE = "power_profile"
    SLEEP = "sleep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """`words` is a full sentence with the figure. `is_passing`: waiting may mend it, so the repeat is worth another."""

    kind: DisturbanceKind
    words: str
    is_passing: bool

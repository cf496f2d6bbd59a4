"""Nouns of the interference guard: what else goes on in the machine while something is measured.

Floor 0: standard library only. Counters are cumulative, so that two moments tell what happened between them; None
where the machine does not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConditions:
    """One card at one moment, by its driver.

    `throttle_reasons` are NVML's names, without "idle" and what the user set; `other_processes` are names with their
    memory, "firefox 412 MiB", of processes that are not ours.
    """

    index: int
    name: str
    clock_mhz: int | None
    most_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None
    throttle_reasons: tuple[str, ...] | None
    other_processes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The machine at one moment.

    CPU seconds are summed over the `n_cpus` this process may use: `busy_cpu_s` of everybody, `stolen_cpu_s` taken by
    the hypervisor, `ours_cpu_s` of the processes that do the measuring. `memory_stall_s` is Linux's pressure: time in
    which something waited for memory.
    """

    at_s: float
    n_cpus: int
    busy_cpu_s: float | None
    stolen_cpu_s: float | None
    ours_cpu_s: float | None
    available_bytes: int | None
    total_bytes: int | None
    swapped_bytes: int | None
    memory_stall_s: float | None
    on_battery: bool | None
    power_profile: str | None
    governor: str | None
    gpus: tuple[GpuConditions, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """`words` is a full sentence with the figure. `is_passing`: waiting may mend it, so the repeat is worth another."""

    kind: DisturbanceKind
    words: str
    is_passing: bool

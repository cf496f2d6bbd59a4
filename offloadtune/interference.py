"""What disturbed a measurement: pure judgement of two moments of the machine.

`disturbances` says what went on between two moments, `standing` what stands against measuring before it begins, and
`is_too_busy` when repeats cannot help. What is not known disturbs nobody: a guard that cries at every machine that
does not tell is switched off.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from offloadtune.conditions import Conditions, Disturbance, DisturbanceKind, GpuConditions, GpuProcess
from offloadtune.units import GIB, MIB, format_bytes, format_count

TICK_S = 0.01
"""Linux counts CPU time in this step, by who runs when the clock ticks."""

N_SLACK_TICKS = 3
"""What counting in ticks, and the kernel's own work, may be off for one CPU; of many it partly cancels, and grows as
their root. On two CPUs that were busy throughout, a few hundredths of a second were seen, whatever the window."""

FULL_FRAC = 0.75
"""With this share of the cores busy, what others take is taken from ours: some of our threads share a CPU, and in a
product of matrices all threads wait for the last. Not higher, since between the pieces of its work the engine idles."""

FULL_OTHERS_FRAC = 0.1
"""Share of full CPUs that others may take. A whole busy process against as many threads of ours as there are CPUs
takes a third of 2, a ninth of 8; on 16 a browser takes less than this, and measuring goes on beside it."""

OTHERS_FRAC = 0.25
"""Share of the CPUs that others may take where there is room for all: memory, caches and the power budget are shared
all the same."""

TOO_BUSY_FULL_FRAC, TOO_BUSY_FRAC = 0.25, 0.45
"""The same two shares from which on every repeat would be disturbed as much: one busy process on 2 CPUs takes 0.33 of
them from two threads of ours, and half of them while ours rest."""

STOLEN_FRAC = 0.05
"""Share of the CPU time asked for that the hypervisor may keep: about the noise of a quiet virtual machine."""

STALL_FRAC = 0.05
"""Share of the time in which something may wait for memory."""

SWAPPED_BYTES_PER_S = 2 * MIB
"""A page that comes back costs about 0.1 ms: at this rate a thread waits a twentieth of its time."""

LEAST_SWAPPED_BYTES = MIB

LOST_FRAC = 0.25
"""Share of the time stolen, or waiting for memory, from which on repeats cannot help."""

LOW_CLOCK_FRAC = 0.6
"""Of a card's most clock. Under load within its power limit a card runs above it; a laptop's card on a small adapter,
or one in a wrong power state, below."""

HOT_REASONS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"})
"""These slow a card whatever it does. To be at its power limit is a card's usual state under load."""

HOT_FRAC = 0.05
"""Share of the time in which heat may slow a card."""

APPEARED_BYTES = 64 * MIB
"""Least memory of a card with which a process that comes to it, or grows, counts: a window of a desktop has less."""

STAYED_BYTES = 256 * MIB
"""The same since the work began, in hours of which a browser grows; and for memory of no process that is seen, since
the driver keeps some for itself."""

HELD_BYTES = 2 * GIB
"""Memory of a card held by others from which on somebody computes on it: a desktop and its browser hold less."""

FULL_SWAP_FRAC = 0.05
"""Swap with less of it free than this is full."""

SLOW_PROFILES = frozenset({"low-power", "quiet", "power"})
"""Of the firmware the first two; "power" is what the operating system hints the CPU to save."""

_SELF_GOVERNED = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers under which the CPU chooses its clock itself, and "powersave" is the usual governor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """CPU time of a window: in CPUs, `others` and everybody, of `n_cpus`; `slack` is what `others` may be off.

    Two threads that share a core slow each other: the machine is full when its `n_cores` are.
    """

    others: float
    busy: float
    slack: float
    n_cpus: int
    n_cores: int

    @property
    def is_full(self) -> bool:
        return self.busy >= FULL_FRAC * self.n_cores

    def exceeds(self, full_frac: float, frac: float) -> bool:
        """Whether others took more than their share, surely."""
        return self.others - self.slack >= (full_frac if self.is_full else frac) * self.n_cpus

    @property
    def words(self) -> str:
        return f"{self.others:.1f} of {format_count(self.n_cpus, 'CPU')}"


def disturbances(before: Conditions, after: Conditions, *, since: Conditions | None = None) -> tuple[Disturbance, ...]:
    """What others did between two moments, and what began to slow the machine meanwhile.

    What stood before and still stands is not told again: that is `standing`'s. Only who came to a card after `since`,
    or took more of it, disturbs as long as they stay.
    """
    duration_s = after.at_s - before.at_s
    if duration_s <= 0:
        return ()
    return (
        *_cpu(before, after),
        *_stolen(before, after),
        *_memory(before, after, duration_s),
        *_slowed(before, after),
        *_gpus(before, after, since or before),
    )


def standing(now: Conditions) -> tuple[Disturbance, ...]:
    """What stands against measuring at a moment at which nothing of ours is loaded."""
    return (*_held_down(now), *_swap_full(now), *(found for gpu in now.gpus for found in _gpu_standing(gpu)))


def on_cards(now: Conditions, pci_bus_ids: Collection[str] | None) -> Conditions:
    """The same moment with only these cards: what goes on at the others disturbs nobody. None: all of them."""
    if pci_bus_ids is None:
        return now
    used = {name.lower() for name in pci_bus_ids}
    return replace(now, gpus=tuple(gpu for gpu in now.gpus if gpu.pci_bus_id and gpu.pci_bus_id.lower() in used))


def is_too_busy(before: Conditions, after: Conditions) -> str | None:
    """Why repeats cannot help, a full sentence, where others took too much of the machine; None else.

    Both moments should be a second or more apart: a shorter burst of others is over before the repeat.
    """
    load = _load(before, after)
    if load and load.exceeds(TOO_BUSY_FULL_FRAC, TOO_BUSY_FRAC):
        return f"The machine is too busy to measure: other programs took {load.words}."
    if (frac := _stolen_frac(before, after)) >= LOST_FRAC:
        return f"The machine is too busy to measure: the hypervisor took {frac:.0%} of the CPU time."
    if (frac := _stall_frac(before, after)) >= LOST_FRAC:
        return f"The machine is too short of memory to measure: programs waited for it {frac:.0%} of the time."
    return None


# --- CPU and memory --------------------------------------------------------------------------------------------------


def _load(before: Conditions, after: Conditions) -> Load | None:
    """None where the machine does not tell, or a counter of ours fell: a server of ours has ended."""
    duration_s = after.at_s - before.at_s
    busy_s, ours_s = _grown(before.busy_cpu_s, after.busy_cpu_s), _grown(before.ours_cpu_s, after.ours_cpu_s)
    if duration_s <= 0 or busy_s is None or ours_s is None:
        return None
    return Load(
        others=max(0.0, busy_s - ours_s) / duration_s,
        busy=busy_s / duration_s,
        slack=N_SLACK_TICKS * TICK_S * math.sqrt(after.n_cpus) / duration_s,
        n_cpus=after.n_cpus,
        n_cores=after.n_cores or after.n_cpus,
    )


def _cpu(before: Conditions, after: Conditions) -> Iterator[Disturbance]:
    load = _load(before, after)
    if load and load.exceeds(FULL_OTHERS_FRAC, OTHERS_FRAC):
        words = f"Other programs took {load.words}."
        yield Disturbance(kind=DisturbanceKind.CPU, words=words, is_passing=True)


def _stolen(before: Conditions, after: Conditions) -> Iterator[Disturbance]:
    if (frac := _stolen_frac(before, after)) >= STOLEN_FRAC:
        words = f"The hypervisor took {frac:.0%} of the CPU time."
        yield Disturbance(kind=DisturbanceKind.STOLEN, words=words, is_passing=True)


def _stolen_frac(before: Conditions, after: Conditions) -> float:
    """Of the time that programs asked for; 0 when it may be but ticks."""
    stolen_s, busy_s = _grown(before.stolen_cpu_s, after.stolen_cpu_s), _grown(before.busy_cpu_s, after.busy_cpu_s)
    if not stolen_s or busy_s is None or stolen_s <= N_SLACK_TICKS * TICK_S:
        return 0.0
    return stolen_s / (busy_s + stolen_s)


def _memory(before: Conditions, after: Conditions, duration_s: float) -> Iterator[Disturbance]:
    if (frac := _stall_frac(before, after)) >= STALL_FRAC:
        words = f"Programs waited for memory {frac:.0%} of the time."
        yield Disturbance(kind=DisturbanceKind.MEMORY, words=words, is_passing=True)
    swapped_bytes = _grown(before.swapped_bytes, after.swapped_bytes) or 0
    if swapped_bytes >= max(LEAST_SWAPPED_BYTES, SWAPPED_BYTES_PER_S * duration_s):
        words = f"The system swapped {format_bytes(swapped_bytes)}."
        yield Disturbance(kind=DisturbanceKind.SWAP, words=words, is_passing=True)


def _stall_frac(before: Conditions, after: Conditions) -> float:
    stall_s, duration_s = _grown(before.memory_stall_s, after.memory_stall_s) or 0.0, after.at_s - before.at_s
    return min(1.0, stall_s / duration_s) if duration_s > 0 else 0.0


def _grown(before: float | None, after: float | None) -> float | None:
    """How much a counter grew, None where it is not known or fell."""
    return after - before if before is not None and after is not None and after >= before else None


def _swap_full(now: Conditions) -> Iterator[Disturbance]:
    total_bytes, free_bytes = now.swap_total_bytes, now.swap_free_bytes
    if total_bytes and free_bytes is not None and free_bytes < FULL_SWAP_FRAC * total_bytes:
        words = f"Swap is full: {format_bytes(free_bytes)} of {format_bytes(total_bytes)} are free."
        yield Disturbance(kind=DisturbanceKind.SWAP, words=words, is_passing=False)


# --- what holds the clock down ---------------------------------------------------------------------------------------


def _held_down(now: Conditions) -> Iterator[Disturbance]:
    if now.on_battery:
        words = "The machine is on battery: plugged in, it may be faster."
        yield Disturbance(kind=DisturbanceKind.BATTERY, words=words, is_passing=False)
    if now.power_profile in SLOW_PROFILES:
        words = f"The power profile is {now.power_profile!r}, which holds the clock down."
        yield Disturbance(kind=DisturbanceKind.POWER_PROFILE, words=words, is_passing=False)
    if now.governor == "powersave" and now.governed_by not in _SELF_GOVERNED:
        words = "The CPU's governor is 'powersave', which keeps the clock at its least."
        yield Disturbance(kind=DisturbanceKind.POWER_PROFILE, words=words, is_passing=False)


def _slowed(before: Conditions, after: Conditions) -> Iterator[Disturbance]:
    """What of it began meanwhile: the two ends were measured on two machines, as it were."""
    stood = set(_held_down(before))
    return (one for one in _held_down(after) if one not in stood)


# --- cards -----------------------------------------------------------------------------------------------------------


def _gpus(before: Conditions, after: Conditions, since: Conditions) -> Iterator[Disturbance]:
    earlier = {gpu.index: gpu for gpu in before.gpus}
    first = {gpu.index: gpu for gpu in since.gpus}
    for gpu in after.gpus:
        slowed = [*_throttled(gpu)]
        if not slowed and gpu.index in earlier:
            slowed = [*_was_hot(earlier[gpu.index], gpu, after.at_s - before.at_s)]
        yield from slowed
        came = [*_appeared(earlier.get(gpu.index), gpu, APPEARED_BYTES)]
        yield from came or _appeared(first.get(gpu.index), gpu, STAYED_BYTES)


def _was_hot(before: GpuConditions, after: GpuConditions, duration_s: float) -> Iterator[Disturbance]:
    """Between the two moments, at which the card may have rested."""
    frac = (_grown(before.hot_ns, after.hot_ns) or 0) / 1e9 / duration_s
    if frac >= HOT_FRAC:
        yield _slow_card(f"{_card(after)} was throttled by heat {min(1.0, frac):.0%} of the time.", is_passing=True)


def _throttled(gpu: GpuConditions) -> Iterator[Disturbance]:
    hot = [reason for reason in gpu.throttle_reasons or () if reason in HOT_REASONS]
    if hot:
        at = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C"
        yield _slow_card(f"{_card(gpu)} is throttled{at}: {_reasons(hot)}.", is_passing=True)
    elif gpu.clock_is_free and 0 < (gpu.clock_mhz or 0) < LOW_CLOCK_FRAC * (gpu.most_clock_mhz or 0):
        why = f": {_reasons(gpu.throttle_reasons)}" if gpu.throttle_reasons else ""
        words = f"{_card(gpu)} runs at {gpu.clock_mhz} of {gpu.most_clock_mhz} MHz{why}."
        yield _slow_card(words, is_passing=not gpu.throttle_reasons)


def _gpu_standing(gpu: GpuConditions) -> Iterator[Disturbance]:
    if HOT_REASONS & {*(gpu.throttle_reasons or ())}:  # a low clock alone says nothing of a card without load
        yield from _throttled(gpu)
    processes = gpu.other_processes or ()
    held_bytes = gpu.others_bytes
    if held_bytes is None:
        held_bytes = sum(process.n_bytes or 0 for process in processes)
    if held_bytes >= HELD_BYTES:
        largest = sorted(processes, key=lambda process: -(process.n_bytes or 0))
        who = ", ".join(_process(process) for process in largest[:3])
        yield _on_card(f"Other programs hold {format_bytes(held_bytes)} of {_card(gpu)}{f': {who}' if who else ''}.")


def _appeared(before: GpuConditions | None, after: GpuConditions, least_bytes: int) -> Iterator[Disturbance]:
    """Processes that came to the card, or took more of it: those work there."""
    if before is None or before.other_processes is None or after.other_processes is None:
        return
    earlier = {process.pid: process.n_bytes or 0 for process in before.other_processes}
    found = [one for one in after.other_processes if (one.n_bytes or 0) - earlier.get(one.pid, 0) >= least_bytes]
    for process in found:
        came = "took more of" if process.pid in earlier else "came to"
        yield _on_card(f"Another program {came} {_card(after)}: {_process(process)}.")
    # without a figure of ours the others' holds what we loaded
    grown_bytes = int(_grown(before.others_bytes, after.others_bytes) or 0) if after.ours_bytes else 0
    if not found and grown_bytes >= STAYED_BYTES:
        yield _on_card(f"Other programs took {format_bytes(grown_bytes)} more of {_card(after)}.")


def _on_card(words: str) -> Disturbance:
    return Disturbance(kind=DisturbanceKind.GPU_PROCESS, words=words, is_passing=True)


def _slow_card(words: str, *, is_passing: bool) -> Disturbance:
    return Disturbance(kind=DisturbanceKind.GPU_THROTTLE, words=words, is_passing=is_passing)


def _card(gpu: GpuConditions) -> str:
    return f"GPU {gpu.index} ({gpu.name})"


def _process(process: GpuProcess) -> str:
    return process.name if process.n_bytes is None else f"{process.name} {format_bytes(process.n_bytes)}"


def _reasons(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)

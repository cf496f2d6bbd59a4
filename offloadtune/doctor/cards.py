"""What holds cards back: drivers, links, power, other programs.

A link is judged only by what the driver said while data moved: at rest it sleeps at a lower generation.
"""

from __future__ import annotations

from collections.abc import Iterator

from offloadtune.doctor.classes import pcie_class
from offloadtune.doctor.joining import card_of, is_mobile, is_remote, speed_of, title
from offloadtune.hardware import DeviceSpeed, Examination, Finding, GpuHardware, MachineProfile, Severity
from offloadtune.interference import HELD_BYTES
from offloadtune.records import Device, Note
from offloadtune.units import MIB, format_bytes, format_bytes_per_s

NARROW_LANES = 4
SLOW_LINK_FRAC = 0.6
"""Of the low end of the link's class."""

LOW_POWER_FRAC = 0.97
TAKEN_WORTH_SAYING_BYTES = 256 * MIB
SMALL_BAR1_BYTES = 256 * MIB
AMPERE = 8
"""The first of compute capabilities whose cards have a resizable window."""

_MISMATCH, _LOST = "LibRmVersionMismatch", "GpuIsLost"


def driver_mismatch(examined: Examination) -> Iterator[Finding]:
    if note := _refusal(examined, _MISMATCH):
        yield Finding(
            code="driver_mismatch",
            severity=Severity.PROBLEM,
            words="The NVIDIA driver that is loaded is not the version whose libraries are installed: no program can"
            " use the card.",
            evidence=note.reason,
            next_step="Make the container anew; the driver was updated since it was made."
            if examined.profile.hardware.surroundings.container
            else "Restart the machine; the driver was updated while it ran.",
        )


def card_lost(examined: Examination) -> Iterator[Finding]:
    if note := _refusal(examined, _LOST):
        yield Finding(
            code="gpu_lost",
            severity=Severity.PROBLEM,
            words="A card has fallen off the bus.",
            evidence=note.reason,
            next_step="Restart the machine; if it happens again, check the card's power cables, its seat, any riser.",
        )


def no_driver(examined: Examination) -> Iterator[Finding]:
    """A discrete card whose driver cannot compute. After a mismatch nothing is known of it."""
    if _refusal(examined, _MISMATCH):
        return
    for gpu in examined.profile.hardware.gpus:
        cannot = driver_name(gpu) in CANNOT_COMPUTE
        if gpu.kind != "discrete" or not (cannot or _is_undriven(gpu, examined)) or _is_used(gpu, examined):
            continue
        yield Finding(
            code="nouveau" if driver_name(gpu) == "nouveau" else "no_driver",
            severity=Severity.WARNING,
            words=f"{gpu.name} cannot be used: "
            + (f"{gpu.driver}, its driver, cannot compute." if cannot else "no driver for it is loaded."),
            evidence=_driver_reason(gpu, examined),
            next_step=_OF_RADEON
            if driver_name(gpu) == "radeon"
            else _DRIVER_STEPS.get(gpu.vendor, "Install the card's driver."),
        )


_OF_RADEON = (
    "Start the kernel with radeon.si_support=0 amdgpu.si_support=1 (GCN 1), or with radeon.cik_support=0"
    " amdgpu.cik_support=1 (GCN 2); a card older than these cannot compute."
)
"""amdgpu has no support of what came before GCN, and leaves the first two of that to radeon unless it is told."""

CANNOT_COMPUTE = frozenset({"nouveau", "nova_core", "radeon"})
GIVEN_AWAY = frozenset({"vfio-pci", "pci-stub"})
"""A card that is kept for a virtual machine, on purpose."""

_DRIVER_STEPS = {
    "nvidia": "Install NVIDIA's driver (on Ubuntu: sudo ubuntu-drivers install), then restart.",
    "amd": "Install a kernel and firmware that have the amdgpu driver for this card, then restart.",
    "intel": "Install a kernel that has the i915 or xe driver for this card, then restart.",
}


def libraries_missing(examined: Examination) -> Iterator[Finding]:
    """A card that the kernel's NVIDIA driver has, and that no program here can reach: mostly a container without it."""
    profile = examined.profile
    cards = [gpu for gpu in profile.hardware.gpus if driver_name(gpu) == "nvidia" and not _is_used(gpu, examined)]
    if cards and profile.machine.host.nvml_gpus == ():
        container = profile.hardware.surroundings.container
        yield Finding(
            code="driver_libraries_missing",
            severity=Severity.WARNING,
            words=f"Programs cannot use {', '.join(map(title, cards))} from here: the driver's libraries are missing.",
            evidence=_driver_reason(cards[0], examined),
            next_step="Start the container with the card: --gpus all, and NVIDIA's container toolkit on the machine."
            if container
            else "Install the libraries of the same version as the driver (on Ubuntu: libnvidia-compute).",
        )


def can_compute(gpu: GpuHardware, profile: MachineProfile) -> bool:
    """Whether a discrete card's driver lets programs here compute on it; of an NVIDIA card NVML must tell."""
    if gpu.kind != "discrete" or driver_name(gpu) in {"", *CANNOT_COMPUTE, *GIVEN_AWAY}:
        return False
    return gpu.vendor != "nvidia" or any(one.index == gpu.index for one in profile.machine.host.nvml_gpus or ())


def narrow_link(examined: Examination) -> Iterator[Finding]:
    """Fewer lanes or a lower generation under load than could be, or no more than four lanes at all.

    Eight lanes of sixteen are but good to know: what drivers call the most lanes is often the card's own, and many
    slots have eight. So is the link of a laptop, and that of a card made with few lanes: nobody can change them.
    """
    for device, speed, gpu in _linked(examined):
        generation, n_lanes = speed.pcie_generation, speed.n_pcie_lanes
        if not generation or not n_lanes:
            continue
        most = (gpu.pcie_generation_most or generation, gpu.n_pcie_lanes_most or n_lanes)
        if n_lanes >= most[1] and generation >= most[0] and n_lanes > NARROW_LANES:
            continue
        moved = speed.to_pinned_bytes_per_s
        reached = f"; a copy to the card reached {format_bytes_per_s(moved)}" if moved else ""
        is_fixed = is_mobile(gpu, examined)
        is_all = generation >= most[0] and n_lanes >= most[1]
        is_bad = (n_lanes <= NARROW_LANES or generation < most[0]) and not is_fixed and not is_all
        yield Finding(
            code="pcie_narrow",
            severity=Severity.WARNING if is_bad else Severity.NOTE,
            words=f"The link to {device.name} ({gpu.name}) is narrow: slow to load over, and slow in reading prompts"
            " where a part of the model stays in main memory.",
            evidence=f"PCIe {generation} x{n_lanes} while data moved; at most it could be"
            f" PCIe {most[0]} x{most[1]}{reached}.",
            next_step="It is wired so in this machine: choose settings with which the whole model is on the card."
            if is_fixed
            else "The card, or the adapter it is in, has no more: choose settings with which the whole model is on it."
            if is_all
            else "Where it is in a slot, move the card to the one next to the CPU, reseat it, or look in the firmware's"
            " settings for what shares its lanes; an adapter (M.2, OCuLink, riser) has no more.",
        )


def slow_link(examined: Examination) -> Iterator[Finding]:
    """A copy far below what its own link, under load, should reach."""
    for device, speed, gpu in _linked(examined):
        moved = speed.to_pinned_bytes_per_s
        is_mapped = device.name.startswith("Vulkan")  # it may write through the card's window, at a thread's speed
        if not moved or not speed.pcie_generation or not speed.n_pcie_lanes or is_mapped:
            continue
        name, (low, high) = pcie_class(speed.pcie_generation, speed.n_pcie_lanes)
        if moved < SLOW_LINK_FRAC * low and "unknown" not in name:
            usual = f"{format_bytes_per_s(low)} to {format_bytes_per_s(high)}"
            reached = f"{format_bytes_per_s(moved)} over {name}"
            yield Finding(
                code="pcie_slow",
                severity=Severity.WARNING,
                words=f"Data moves to {device.name} ({gpu.name}) slower than its link allows.",
                evidence=f"A copy from pinned memory reached {reached}; usual is {usual}.",
                next_step="Close what else uses the card or the memory, and run offloadtune doctor again.",
            )


def power_limit(examined: Examination) -> Iterator[Finding]:
    for gpu in examined.profile.hardware.gpus:
        limit, usual = gpu.power_limit_w, gpu.power_limit_default_w
        if limit and usual and limit < LOW_POWER_FRAC * usual:
            yield Finding(
                code="power_limit_low",
                severity=Severity.NOTE if is_mobile(gpu, examined) else Severity.WARNING,
                words=f"{title(gpu)} may take less power than it is made for, which slows prompts most.",
                evidence=f"Its limit is {limit:.0f} W, by default {usual:.0f} W.",
                next_step=_power_step(gpu, examined),
            )


def _power_step(gpu: GpuHardware, examined: Examination) -> str:
    if is_mobile(gpu, examined):
        return "Choose the laptop maker's fastest power profile, and plug in its own charger."
    if gpu.vendor != "nvidia":
        return "If that is not meant, set it back with the tool of the card's maker."
    command = f"nvidia-smi -i {gpu.index} -pl {gpu.power_limit_default_w or 0:.0f}"
    if examined.profile.machine.host.os.startswith("Windows"):
        return f"If that is not meant, as administrator: {command}"
    return f"If that is not meant: sudo {command}"


def memory_taken(examined: Examination) -> Iterator[Finding]:
    """Less than what stands against measuring, which is another rule's: good to know when a model just does not fit."""
    for gpu in examined.now.gpus if examined.measured_now is None else ():
        processes = sorted(gpu.other_processes or (), key=lambda one: -(one.n_bytes or 0))
        n_bytes = sum(one.n_bytes or 0 for one in processes)
        if n_bytes >= TAKEN_WORTH_SAYING_BYTES and max(n_bytes, gpu.others_bytes or 0) < HELD_BYTES:
            largest = ", ".join(f"{one.name} {format_bytes(one.n_bytes or 0)}" for one in processes[:3])
            yield Finding(
                code="gpu_memory_shared",
                severity=Severity.NOTE,
                words=f"Other programs hold some memory of GPU {gpu.index} ({gpu.name}).",
                evidence=f"{format_bytes(n_bytes)} in all; the largest: {largest}.",
                next_step="Close them where a model just does not fit.",
            )


def small_bar1(examined: Examination) -> Iterator[Finding]:
    """NVIDIA's cards can have a larger window from Ampere on."""
    for gpu in examined.profile.hardware.gpus:
        is_small = gpu.bar1_bytes and gpu.bar1_bytes <= SMALL_BAR1_BYTES < (gpu.total_bytes or 0)
        if is_small and gpu.kind == "discrete" and _can_resize(gpu):
            yield Finding(
                code="small_bar1",
                severity=Severity.NOTE,
                words=f"The CPU sees the memory of {title(gpu)} only through a small window.",
                evidence=f"The window (BAR1) has {format_bytes(gpu.bar1_bytes or 0)}, the card"
                f" {format_bytes(gpu.total_bytes or 0)}.",
                next_step="Where the firmware's settings have Above 4G Decoding and Resizable BAR, switch them on;"
                " llama.cpp gains little by it.",
            )


def _can_resize(gpu: GpuHardware) -> bool:
    major = (gpu.compute_capability or "").partition(".")[0]
    return gpu.vendor != "nvidia" or (major.isdecimal() and int(major) >= AMPERE)


def integrated(examined: Examination) -> Iterator[Finding]:
    ram = examined.profile.machine.host.ram
    for gpu in examined.profile.hardware.gpus:
        if gpu.kind != "integrated" or not _is_used(gpu, examined):
            continue
        bounds = [
            f"{words} {format_bytes(n_bytes)}"
            for words, n_bytes in (
                ("it may have", gpu.working_set_bytes),
                ("set aside for it are", gpu.total_bytes),
                ("it may share", gpu.shared_bytes),
            )
            if n_bytes
        ]
        yield Finding(
            code="integrated_gpu",
            severity=Severity.NOTE,
            words=f"{gpu.name} has no memory of its own: what it takes, programs lack.",
            evidence=f"Main memory has {format_bytes(ram.total_bytes)}{''.join(f'; {one}' for one in bounds)}.",
            next_step="Count the weights once, in main memory; prompts still gain by its arithmetic.",
        )


def _linked(examined: Examination) -> Iterator[tuple[Device, DeviceSpeed, GpuHardware]]:
    """Discrete cards of this machine whose device was measured."""
    profile = examined.profile
    for device in profile.machine.offload_devices:
        speed, gpu = speed_of(device, profile), card_of(device, profile)
        if speed is not None and gpu is not None and gpu.kind == "discrete" and not is_remote(device):
            yield device, speed, gpu


def _is_used(gpu: GpuHardware, examined: Examination) -> bool:
    """Whether the engine lists a device for it."""
    profile = examined.profile
    return any(card_of(device, profile) == gpu for device in profile.machine.devices or ())


def _refusal(examined: Examination, error: str) -> Note | None:
    notes = (*examined.profile.machine.host.notes, *examined.profile.hardware.notes)
    return next((note for note in notes if error in note.reason), None)


def driver_name(gpu: GpuHardware) -> str:
    """Without the version; "" where none is known."""
    return (gpu.driver or "").partition(" ")[0]


def _is_undriven(gpu: GpuHardware, examined: Examination) -> bool:
    """Whether the card surely has no driver: that its name is not told is not enough."""
    return gpu.driver is None and any(words in _driver_reason(gpu, examined) for words in _UNDRIVEN)


_UNDRIVEN = ("No driver has", "NVML is not installed", "driver is not loaded")


def _driver_reason(gpu: GpuHardware, examined: Examination) -> str:
    """What the probe noted of the card's driver, else of NVIDIA's."""
    subjects = [f"gpus[{gpu.index}].driver"]
    if gpu.vendor == "nvidia":
        subjects += ["gpus.nvml", "nvml_gpus"]
    notes = (*examined.profile.hardware.notes, *examined.profile.machine.host.notes)
    reasons = (note.reason for subject in subjects for note in notes if note.subject == subject)
    return next(reasons, f"It is on the bus at {gpu.pci_bus_id or 'an unknown address'}.")

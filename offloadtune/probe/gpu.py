"""NVIDIA cards as their driver describes them; every field stands or falls alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offloadtune.hardware import GpuHardware
from offloadtune.probe.cards import seen_processes
from offloadtune.probe.facts import Fact, known, label, notes_in
from offloadtune.probe.host import Door
from offloadtune.probe.nvidia import READERS, error_in, fact, read_answer, throttle_reasons
from offloadtune.probe.nvml import MOMENT_CALLS
from offloadtune.records import Note, NvmlGpu

ABSENT = {
    "LibraryNotFound": "NVML is not installed here, so no NVIDIA driver can be used.",
    "DriverNotLoaded": "NVML is installed, but the NVIDIA driver is not loaded.",
}
"""Refusals that mean "no usable NVIDIA card"; after any other one the cards are unknown."""

FIELDS = {
    **{field: READERS[field] for field in ("uuid", "pci_bus_id", "total_bytes", "free_bytes", "compute_capability")},
    "pcie_generation": READERS["pcie_generation_most"],  # an idle link drops it to save power
    "n_pcie_lanes": READERS["n_pcie_lanes"],
}
"""Field of NvmlGpu -> the NVML call that answers it, and how to read the answer."""

_HARDWARE_FIELDS = (
    "pci_bus_id",
    "compute_capability",
    "total_bytes",
    "free_bytes",
    "bar1_bytes",
    "pcie_generation",
    "pcie_generation_most",
    "n_pcie_lanes",
    "n_pcie_lanes_most",
    "power_limit_w",
    "power_limit_default_w",
    "clock_mhz",
    "most_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
)
"""Fields of GpuHardware that are one of READERS as it is answered."""

_INTEGRATED_NAMES = ("GB10", "Orin", "Thor", "Xavier", "Tegra")  # NVML does not tell them; their memory is the host's


def read_gpus(door: Door) -> tuple[tuple[NvmlGpu, ...] | None, tuple[Note, ...]]:
    """The cards, () when there is no driver, None when NVML could not be asked; and what is not known."""
    answers = door.nvml()
    devices = _devices("nvml_gpus", answers)
    if isinstance(devices, Note):
        return (() if _is_without_card(answers) else None), (devices,)
    driver = _driver("nvml_gpus.driver", answers)
    cards = [_read_gpu(index, device, known(driver)) for index, device in enumerate(devices)]
    gpus = tuple(gpu for gpu, _ in cards if gpu is not None)
    return gpus, (*notes_in(driver), *(note for _, notes in cards for note in notes))


def read_nvidia_hardware(door: Door) -> tuple[tuple[GpuHardware, ...] | None, tuple[Note, ...]]:
    """The cards in depth, None when the driver told of none; and what is not known.

    `index` is the driver's. NVML is asked, never CUDA, which would take memory of each card.
    """
    answers = door.nvml()
    devices = _devices("gpus.nvml", answers)
    if isinstance(devices, Note):
        return None, (devices,)
    moments = door.nvml_moment()
    driver = answers.get("nvmlSystemGetDriverVersion")
    cards = [
        _read_hardware(door, index, _with_moment(device, moments, index), driver)
        for index, device in enumerate(devices)
    ]
    return tuple(gpu for gpu, _ in cards if gpu is not None), tuple(note for _, notes in cards for note in notes)


def _devices(subject: str, answers: Mapping[str, Any]) -> Fact[list[Any]]:
    error, devices = error_in(answers), answers.get("devices")
    if error is not None:
        reason = ABSENT.get(error, f"NVML could not be asked for NVIDIA cards: it answered {error}.")
        return Note(subject=subject, reason=reason)
    if not isinstance(devices, list):
        return Note(subject=subject, reason="NVML gave no list of cards.")
    return devices or Note(subject=subject, reason="The NVIDIA driver is loaded but lists no card.")


def _is_without_card(answers: Mapping[str, Any]) -> bool:
    error = error_in(answers)
    return answers.get("devices") == [] if error is None else error in ABSENT


def _driver(subject: str, answers: Mapping[str, Any]) -> Fact[str]:
    return read_answer(subject, answers, "nvmlSystemGetDriverVersion", lambda version: label(str(version)))


def _lost(subject: str, index: int, answers: Any) -> Note | None:
    """Why nothing is known of a card, None where something may be."""
    error = error_in(answers)
    if error is not None:
        return Note(subject=subject, reason=f"NVML lists card {index} but cannot open it: {error}.")
    if not isinstance(answers, Mapping):
        return Note(subject=subject, reason=f"NVML lists card {index} but tells nothing of it.")
    return None


def _read_gpu(index: int, answers: Any, driver: str | None) -> tuple[NvmlGpu | None, tuple[Note, ...]]:
    subject = f"nvml_gpus[{index}]"
    lost = _lost(subject, index, answers)
    if lost:
        return None, (lost,)
    name = fact(f"{subject}.name", answers, "name")
    facts = {field: read_answer(f"{subject}.{field}", answers, *how) for field, how in FIELDS.items()}
    values: dict[str, Any] = {field: known(one) for field, one in facts.items()}
    gpu = NvmlGpu(index=index, name=known(name) or "NVIDIA GPU", driver=driver, **values)
    return gpu, notes_in(name, *facts.values())


# --- in depth ------------------------------------------------------------------------------------------------------


def _with_moment(device: Any, moments: Mapping[str, Any], index: int) -> Any:
    """The answers about a card and about this moment of it. They are asked one after the other, and either may fail."""
    if not isinstance(device, Mapping) or "error" in device:
        return device
    listed = moments.get("devices")
    moment = listed[index] if isinstance(listed, list) and index < len(listed) else moments
    error = error_in(moment)
    if error is not None:
        return {**{call: {"error": error} for call in MOMENT_CALLS}, **device}
    return {**moment, **device} if isinstance(moment, Mapping) else device


def _read_hardware(door: Door, index: int, answers: Any, driver: Any) -> tuple[GpuHardware | None, tuple[Note, ...]]:
    lost = _lost(f"gpus.nvml[{index}]", index, answers)
    if lost:
        return None, (lost,)
    subject = f"gpus[{index}]"
    name = fact(f"{subject}.name", answers, "name")
    facts = {field: fact(f"{subject}.{field}", answers, field) for field in _HARDWARE_FIELDS}
    facts["driver"] = _driver(f"{subject}.driver", {"nvmlSystemGetDriverVersion": driver})
    facts["throttle_reasons"] = _throttle_reasons(f"{subject}.throttle_reasons", answers)
    facts["processes"] = _processes(f"{subject}.processes", answers, door)
    facts["memory_theoretical_bytes_per_s"] = _bandwidth(f"{subject}.memory_theoretical_bytes_per_s", answers)
    values: dict[str, Any] = {field: known(one) for field, one in facts.items()}
    words = known(name) or "NVIDIA GPU"
    kind = "integrated" if any(one in words.split() for one in _INTEGRATED_NAMES) else "discrete"
    return GpuHardware(vendor="nvidia", index=index, name=words, kind=kind, **values), notes_in(name, *facts.values())


def _throttle_reasons(subject: str, answers: Mapping[str, Any]) -> Fact[tuple[str, ...]]:
    bits = fact(subject, answers, "throttle_bits")
    return bits if isinstance(bits, Note) else throttle_reasons(bits)


def _processes(subject: str, answers: Mapping[str, Any], door: Door) -> Fact[Any]:
    """Those seen from here that compute or draw; half of them would read as all."""
    computing, drawing = fact(subject, answers, "computing"), fact(subject, answers, "drawing")
    if isinstance(computing, Note):
        return computing
    if isinstance(drawing, Note):
        return drawing
    return seen_processes(door, {**drawing, **computing})


def _bandwidth(subject: str, answers: Mapping[str, Any]) -> Fact[float]:
    """What memory would move at its highest clock: two bits a clock and wire, whatever kind it is.

    NVML gives the clock that is doubled, not that of the memory's own data sheet, so that one rule holds for all:
    GTX 1080 Ti (GDDR5X) 5505 MHz x 352 bits is 484 GB/s, Tesla T4 (GDDR6) 5001 x 256 is 320, RTX 4090 (GDDR6X)
    10501 x 384 is 1008, A100 80GB (HBM2e) 1593 x 5120 is 2039, H100 (HBM3) 2619 x 5120 is 3352; each as specified.
    Where memory is the host's (GB10) NVML knows no memory clock, and says that the bus has 0 bits.
    """
    clock, n_bits = fact(subject, answers, "memory_clock_mhz"), fact(subject, answers, "n_memory_bits")
    if isinstance(clock, Note):
        return clock
    return n_bits if isinstance(n_bits, Note) else float(clock * 1e6 * 2 * n_bits / 8)

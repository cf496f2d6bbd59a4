"""NVIDIA cards as their driver describes them; every field stands or falls alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offloadtune.probe.facts import Fact, known, notes_in
from offloadtune.probe.host import Door
from offloadtune.records import Note, NvmlGpu

ABSENT = {
    "LibraryNotFound": "NVML is not installed here, so no NVIDIA driver can be used.",
    "DriverNotLoaded": "NVML is installed, but the NVIDIA driver is not loaded.",
}
"""Refusals that mean "no usable NVIDIA card"; after any other one the cards are unknown."""

FIELDS: Mapping[str, tuple[str, Callable[[Any], str | int]]] = {
    "uuid": ("nvmlDeviceGetUUID", str),
    "pci_bus_id": ("nvmlDeviceGetPciInfo", lambda pci: str(pci["busId"])),
    "total_bytes": ("nvmlDeviceGetMemoryInfo", lambda memory: int(memory["total"])),
    "free_bytes": ("nvmlDeviceGetMemoryInfo", lambda memory: int(memory["free"])),
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability", lambda pair: f"{int(pair[0])}.{int(pair[1])}"),
    # an idle link drops its generation to save power, so the current one says little; its width it keeps, and the
    # maximum width is the card's own, whatever the slot gives
    "pcie_generation": ("nvmlDeviceGetMaxPcieLinkGeneration", int),
    "n_pcie_lanes": ("nvmlDeviceGetCurrPcieLinkWidth", int),
}
"""Field of NvmlGpu -> the NVML call that answers it, and how to read the answer."""


def read_gpus(door: Door) -> tuple[tuple[NvmlGpu, ...] | None, tuple[Note, ...]]:
    """The cards, () when there is no driver, None when NVML could not be asked; and what is not known."""
    answers = door.nvml()
    error = _error(answers)
    if error is not None:
        reason = ABSENT.get(error, f"NVML could not be asked for NVIDIA cards: it answered {error}.")
        return (() if error in ABSENT else None), (Note(subject="nvml_gpus", reason=reason),)
    devices = answers.get("devices")
    if not isinstance(devices, list):
        return None, (Note(subject="nvml_gpus", reason="NVML gave no list of cards."),)
    if not devices:
        return (), (Note(subject="nvml_gpus", reason="The NVIDIA driver is loaded but lists no card."),)
    driver = _fact("nvml_gpus.driver", answers, "nvmlSystemGetDriverVersion", str)
    cards = [_read_gpu(index, device, known(driver)) for index, device in enumerate(devices)]
    gpus = tuple(gpu for gpu, _ in cards if gpu is not None)
    return gpus, (*notes_in(driver), *(note for _, notes in cards for note in notes))


def _read_gpu(index: int, answers: Any, driver: str | None) -> tuple[NvmlGpu | None, tuple[Note, ...]]:
    subject = f"nvml_gpus[{index}]"
    error = _error(answers)
    if error is not None:
        return None, (Note(subject=subject, reason=f"NVML lists card {index} but cannot open it: {error}."),)
    name = _fact(f"{subject}.name", answers, "nvmlDeviceGetName", str)
    facts = {field: _fact(f"{subject}.{field}", answers, call, read) for field, (call, read) in FIELDS.items()}
    values: dict[str, Any] = {field: known(fact) for field, fact in facts.items()}
    gpu = NvmlGpu(index=index, name=str(known(name) or "NVIDIA GPU"), driver=driver, **values)
    return gpu, notes_in(name, *facts.values())


def _fact(subject: str, answers: Mapping[str, Any], call: str, read: Callable[[Any], Any]) -> Fact[Any]:
    answer = answers.get(call)
    error = _error(answer)
    if error is not None:
        return Note(subject=subject, reason=f"{call} failed: {error}.")
    if answer is None:
        return Note(subject=subject, reason=f"{call} gave no answer.")
    try:
        return read(answer)
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return Note(subject=subject, reason=f"{call} gave an answer that cannot be read: {answer!r}.")


def _error(answer: Any) -> str | None:
    return str(answer["error"]) if isinstance(answer, Mapping) and "error" in answer else None

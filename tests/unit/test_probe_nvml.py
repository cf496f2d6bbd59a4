"""The live NVML reader, against pynvml with its driver replaced by a few answers and refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from offloadtune.probe import Door, nvml
from offloadtune.probe.gpu import read_gpus
from offloadtune.probe.links import Links
from offloadtune.probe.nvml import read_nvml


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*_: object) -> Any:
        raise pynvml.NVMLError(code)

    return refuse


def answering(answer: Any) -> Callable[..., Any]:
    return lambda *_: answer


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver with one RTX 4090."""
    memory = pynvml.c_nvmlMemory_t(total=25757220864, free=24691736576, used=1065484288)
    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlSystemGetDriverVersion": "560.35.03",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetName": b"NVIDIA GeForce RTX 4090",  # older bindings answer in bytes
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetPciInfo": pynvml.nvmlPciInfo_t(busId=b"00000000:01:00.0"),
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetCudaComputeCapability": (8, 9),
        "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
    }
    for call, answer in answers.items():
        monkeypatch.setattr(pynvml, call, answering(answer))
    return monkeypatch


@pytest.mark.usefixtures("driver")
def test_answers_become_a_card() -> None:
    gpus, notes = read_gpus(Door())
    assert gpus is not None
    (gpu,) = gpus
    assert notes == ()
    assert (gpu.name, gpu.pci_bus_id, gpu.compute_capability) == ("NVIDIA GeForce RTX 4090", "00000000:01:00.0", "8.9")
    assert (gpu.total_bytes, gpu.free_bytes, gpu.n_pcie_lanes) == (25757220864, 24691736576, 8)


def test_each_call_may_be_refused_alone(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refusing(pynvml.NVML_ERROR_NOT_SUPPORTED))
    driver.delattr(pynvml, "nvmlDeviceGetUUID")  # an older binding
    (device,) = read_nvml()["devices"]
    assert device["nvmlDeviceGetMemoryInfo"] == {"error": "NotSupported"}
    assert device["nvmlDeviceGetUUID"] == {"error": "AttributeError"}
    assert device["nvmlDeviceGetCudaComputeCapability"] == (8, 9)


def test_a_lost_card_and_a_failing_shutdown_are_survived(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(pynvml, "nvmlDeviceGetHandleByIndex", refusing(pynvml.NVML_ERROR_GPU_IS_LOST))
    driver.setattr(pynvml, "nvmlShutdown", refusing(pynvml.NVML_ERROR_UNKNOWN))
    assert read_nvml()["devices"] == [{"error": "GpuIsLost"}]


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_refused_start_is_the_whole_answer(driver: pytest.MonkeyPatch, call: str) -> None:
    driver.setattr(pynvml, call, refusing(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert read_nvml() == {"error": "DriverNotLoaded"}


def test_a_missing_binding_leaves_the_cards_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus, (note,) = read_gpus(Door())
    assert gpus is None
    assert "NoPythonBinding" in note.reason


def test_links_are_asked_again_and_again_without_opening_anew(driver: pytest.MonkeyPatch) -> None:
    openings: list[int] = []
    driver.setattr(nvml, "_kept", nvml._Kept())
    driver.setattr(pynvml, "nvmlInit", lambda: openings.append(1))
    links, seen = Links(), []
    others = links.now().keys() - {at for at, _ in links._nvidia()}  # cards that this machine has
    for generation in (1, 4):
        driver.setattr(pynvml, "nvmlDeviceGetCurrPcieLinkGeneration", answering(generation))
        seen += [(link.generation, link.n_lanes) for at, link in links.now().items() if at not in others]
    assert seen == [(1, 8), (4, 8)]
    assert openings == [1]

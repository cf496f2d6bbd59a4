"""What NVML answers, as plain JSON values, each call by itself: one refusal never hides the other answers.

Opened by `host.Door` alone. NVML looks at the driver, not at CUDA: no context is made, no device memory taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

DEVICE_CALLS = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
)


def read_nvml() -> dict[str, Any]:
    """`{"nvmlSystemGetDriverVersion": ..., "devices": [{call: answer, ...}, ...]}`.

    `{"error": NAME}` stands in the place of any answer, of a device, or of the whole, where NVML refused; NAME is
    that of pynvml's exception without its prefix, such as NotSupported.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return {"error": "NoPythonBinding"}
    refusal = _ask(nvml, "nvmlInit")
    if refusal is not None:
        return {"error": refusal["error"]}
    with _shutting_down(nvml):
        n_devices = _ask(nvml, "nvmlDeviceGetCount")
        if not isinstance(n_devices, int):
            return {"error": n_devices["error"]}
        return {
            "nvmlSystemGetDriverVersion": _ask(nvml, "nvmlSystemGetDriverVersion"),
            "devices": [_ask_device(nvml, index) for index in range(n_devices)],
        }


def _ask_device(nvml: ModuleType, index: int) -> dict[str, Any]:
    handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, dict):
        return handle
    return {call: _ask(nvml, call, handle) for call in DEVICE_CALLS}


def _ask(nvml: ModuleType, call: str, *arguments: Any) -> Any:
    try:
        return _plain(getattr(nvml, call)(*arguments))
    except nvml.NVMLError as error:
        return {"error": type(error).__name__.removeprefix("NVMLError_")}
    except (AttributeError, OSError, ValueError) as error:  # a call this binding or driver does not have
        return {"error": type(error).__name__}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Structure):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    return value


@contextlib.contextmanager
def _shutting_down(nvml: ModuleType) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

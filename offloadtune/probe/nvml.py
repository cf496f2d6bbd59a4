"""What NVML answers, as plain JSON values, each call by itself: one refusal never hides the other answers.

Opened by `host.Door` alone. NVML looks at the driver, not at CUDA: no context is made, no device memory taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Iterator, Mapping
from functools import cache
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

_CLOCK_SM, _TEMPERATURE_GPU = 1, 0
MOMENT_CALLS: Mapping[str, tuple[int, ...]] = {
    "nvmlDeviceGetName": (),
    "nvmlDeviceGetClockInfo": (_CLOCK_SM,),
    "nvmlDeviceGetMaxClockInfo": (_CLOCK_SM,),
    "nvmlDeviceGetTemperature": (_TEMPERATURE_GPU,),
    "nvmlDeviceGetPowerUsage": (),
    "nvmlDeviceGetEnforcedPowerLimit": (),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (),  # the later name, ...EventReasons, is not in older drivers
    "nvmlDeviceGetMemoryInfo": (),
    "nvmlDeviceGetComputeRunningProcesses": (),
    "nvmlDeviceGetGraphicsRunningProcesses": (),
}
"""What a card is asked about a moment, and what it is asked with besides its handle."""


def read_nvml() -> dict[str, Any]:
    """`{"nvmlSystemGetDriverVersion": ..., "devices": [{call: answer, ...}, ...]}`.

    `{"error": NAME}` stands in the place of any answer, of a device, or of the whole, where NVML refused; NAME is
    that of pynvml's exception without its prefix, such as NotSupported.
    """
    nvml, error = _open()
    if nvml is None:
        return {"error": error}
    with _shutting_down(nvml):
        n_devices = _ask(nvml, "nvmlDeviceGetCount")
        if not isinstance(n_devices, int):
            return {"error": n_devices["error"]}
        return {
            "nvmlSystemGetDriverVersion": _ask(nvml, "nvmlSystemGetDriverVersion"),
            "devices": [_ask_device(nvml, index, dict.fromkeys(DEVICE_CALLS, ())) for index in range(n_devices)],
        }


def read_nvml_moment() -> dict[str, Any]:
    """The devices of `read_nvml`, each with the answers to MOMENT_CALLS.

    NVML stays open from the first call on: without a driver that persists, opening it wakes the cards up, which takes
    longer than what is measured.
    """
    nvml, error = _kept_open()
    if nvml is None:
        return {"error": error}
    n_devices = _ask(nvml, "nvmlDeviceGetCount")
    if not isinstance(n_devices, int):
        return {"error": n_devices["error"]}
    return {"devices": [_ask_device(nvml, index, MOMENT_CALLS) for index in range(n_devices)]}


def _open() -> tuple[ModuleType | None, str]:
    """NVML opened, or why not."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None, "NoPythonBinding"
    refusal = _ask(nvml, "nvmlInit")
    return (nvml, "") if refusal is None else (None, refusal["error"])


_kept_open = cache(_open)


def _ask_device(nvml: ModuleType, index: int, calls: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, dict):
        return handle
    return {call: _ask(nvml, call, handle, *arguments) for call, arguments in calls.items()}


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
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if type(value).__name__ == "nvmlFriendlyObject":  # pynvml's copy of a structure, where it has mended a field
        return {name: _plain(one) for name, one in vars(value).items()}
    return value


@contextlib.contextmanager
def _shutting_down(nvml: ModuleType) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

"""What NVML answers, as plain JSON values, each call by itself: one refusal never hides the other answers.

Opened by `host.Door` alone. NVML looks at the driver, not at CUDA: no context is made, no device memory taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_OPENING_PATIENCE_S = 30.0  # without a driver that persists, opening wakes the cards up: seconds for each
_PATIENCE_S = 2.0
_N_OPENINGS = 3

_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU, _BY_HEAT = 1, 2, 0, 1
DEVICE_CALLS: Mapping[str, tuple[int, ...]] = {
    "nvmlDeviceGetName": (),
    "nvmlDeviceGetUUID": (),
    "nvmlDeviceGetPciInfo": (),
    "nvmlDeviceGetMemoryInfo": (),
    "nvmlDeviceGetCudaComputeCapability": (),
    "nvmlDeviceGetMaxPcieLinkGeneration": (),
    "nvmlDeviceGetCurrPcieLinkWidth": (),
    "nvmlDeviceGetCurrPcieLinkGeneration": (),
    "nvmlDeviceGetMaxPcieLinkWidth": (),
    "nvmlDeviceGetBAR1MemoryInfo": (),
    "nvmlDeviceGetEnforcedPowerLimit": (),
    "nvmlDeviceGetPowerManagementDefaultLimit": (),
    "nvmlDeviceGetMaxClockInfo:memory": (_CLOCK_MEMORY,),
    "nvmlDeviceGetMemoryBusWidth": (),
}
"""What a card is asked, and what it is asked with besides its handle.

A word after a colon is ours: it tells two questions apart that one call answers.
"""
MOMENT_CALLS: Mapping[str, tuple[int, ...]] = {
    "nvmlDeviceGetName": (),
    "nvmlDeviceGetPciInfo": (),
    "nvmlDeviceGetClockInfo": (_CLOCK_SM,),
    "nvmlDeviceGetMaxClockInfo": (_CLOCK_SM,),
    "nvmlDeviceGetTemperature": (_TEMPERATURE_GPU,),
    "nvmlDeviceGetViolationStatus": (_BY_HEAT,),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (),  # the later name, ...EventReasons, is not in older drivers
    "nvmlDeviceGetMemoryInfo": (),
    "nvmlDeviceGetComputeRunningProcesses": (),
    "nvmlDeviceGetGraphicsRunningProcesses": (),
}
"""What a card is asked about a moment."""
LINK_CALLS: Mapping[str, tuple[int, ...]] = {
    "nvmlDeviceGetPciInfo": (),
    "nvmlDeviceGetCurrPcieLinkGeneration": (),
    "nvmlDeviceGetCurrPcieLinkWidth": (),
}
"""What a card is asked about its link, again and again while data moves."""


def read_nvml() -> dict[str, Any]:
    """`{"nvmlSystemGetDriverVersion": ..., "devices": [{call: answer, ...}, ...]}`.

    `{"error": NAME}` stands in the place of any answer, of a device, or of the whole, where NVML refused; NAME is
    that of pynvml's exception without its prefix, such as NotSupported; Timeout where it did not answer in time.
    """
    return _patiently(_read_all, _OPENING_PATIENCE_S)


def _read_all() -> dict[str, Any]:
    nvml, error = _open()
    if nvml is None:
        return {"error": error}
    with _shutting_down(nvml):
        n_devices = _ask(nvml, "nvmlDeviceGetCount")
        if not isinstance(n_devices, int):
            return {"error": n_devices["error"]}
        return {
            "nvmlSystemGetDriverVersion": _ask(nvml, "nvmlSystemGetDriverVersion"),
            "devices": [_ask_device(nvml, index, DEVICE_CALLS) for index in range(n_devices)],
        }


def read_nvml_moment() -> dict[str, Any]:
    """The devices of `read_nvml`, each with the answers to MOMENT_CALLS.

    NVML stays open from the first call on: without a driver that persists, opening it wakes the cards up, which takes
    longer than what is measured.
    """
    return _patiently(lambda: _read_moment(MOMENT_CALLS), _PATIENCE_S if _kept.nvml else _OPENING_PATIENCE_S)


def read_nvml_links() -> dict[str, Any]:
    """The same with the answers to LINK_CALLS alone."""
    return _patiently(lambda: _read_moment(LINK_CALLS), _PATIENCE_S if _kept.nvml else _OPENING_PATIENCE_S)


def _read_moment(calls: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    nvml, error = _kept.opened()
    if nvml is None:
        return {"error": error}
    n_devices = _ask(nvml, "nvmlDeviceGetCount")
    if not isinstance(n_devices, int):
        return {"error": n_devices["error"]}
    return {"devices": [_ask_device(nvml, index, calls) for index in range(n_devices)]}


def _open() -> tuple[ModuleType | None, str]:
    """NVML opened, or why not."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None, "NoPythonBinding"
    refusal = _ask(nvml, "nvmlInit")
    return (nvml, "") if refusal is None else (None, refusal["error"])


@dataclass(slots=True)
class _Kept:
    """NVML kept open. A refusal may pass, so a few more times it is tried."""

    nvml: ModuleType | None = None
    error: str = ""
    n_left: int = _N_OPENINGS

    def opened(self) -> tuple[ModuleType | None, str]:
        if self.nvml is None and self.n_left:
            self.n_left -= 1
            self.nvml, self.error = _open()
        return self.nvml, self.error


_kept = _Kept()
_stuck: list[threading.Thread] = []
"""A call that did not return: while it does not, the driver is not asked again."""


def _patiently(read: Callable[[], dict[str, Any]], patience_s: float) -> dict[str, Any]:
    """What `read` answers, from a thread that can be left behind: a wedged driver would hold this process forever."""
    if any(thread.is_alive() for thread in _stuck):
        return {"error": "Timeout"}
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        try:
            answers.append(read())
        except Exception as error:  # noqa: BLE001 - whatever a driver's library raises is its refusal
            answers.append({"error": type(error).__name__})

    thread = threading.Thread(target=ask, name="nvml", daemon=True)
    thread.start()
    thread.join(patience_s)
    _stuck[:] = [thread] if thread.is_alive() else []
    return answers[0] if answers else {"error": "Timeout"}


def _ask_device(nvml: ModuleType, index: int, calls: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, dict):
        return handle
    return {key: _ask(nvml, key.partition(":")[0], handle, *arguments) for key, arguments in calls.items()}


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

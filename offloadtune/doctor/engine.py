"""What holds the engine back: it is missing, old, broken, or built without the card or instruction sets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from offloadtune.doctor.cards import can_compute
from offloadtune.doctor.joining import card_of, device_of, local_devices, title
from offloadtune.hardware import Examination, Finding, GpuHardware, Severity

OLDEST = (0, 3, 36)
"""The oldest llama-cpp-python whose results are known to mean the same."""

_SWITCHED_ON = re.compile(r"\b(\w+) = 1\b")
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")

MATTERING_SETS = (
    "AVX2",
    "F16C",
    "FMA",
    "AVX_VNNI",
    "AVX512",
    "AVX512_VNNI",
    "AVX512_BF16",
    "AMX_INT8",
    "NEON",
    "DOTPROD",
    "MATMUL_INT8",
    "SVE",
)
"""Those that llama.cpp has code of its own for."""

_SYSTEM_SWITCH = {"nvidia": "CUDA", "amd": "ROCm", "intel": "SYCL"}


def missing(examined: Examination) -> Iterator[Finding]:
    machine = examined.profile.machine
    if examined.profile.engine is None:
        reason = next((note.reason for note in machine.notes if note.subject == "devices"), "")
        yield Finding(
            code="engine_missing",
            severity=Severity.PROBLEM,
            words="There is no engine here that runs, so nothing can be measured.",
            evidence=reason or "No engine answered.",
            next_step=examined.advice or "Install llama-cpp-python: `make sweep` builds it for this machine.",
        )


def old(examined: Examination) -> Iterator[Finding]:
    engine = examined.profile.engine
    found = _VERSION.search(engine.version) if engine else None
    if engine and found and tuple(map(int, found.groups())) < OLDEST:
        yield Finding(
            code="engine_old",
            severity=Severity.WARNING,
            words="The engine is older than offloadtune is made for.",
            evidence=f"It is {engine.version}; {'.'.join(map(str, OLDEST))} or newer is expected.",
            next_step=examined.advice or "Install a newer llama-cpp-python: `make sweep` builds it for this machine.",
        )


def without_card(examined: Examination) -> Iterator[Finding]:
    """Discrete cards that work, and that the engine lists no device for.

    Where it lists some of a vendor's cards the others are hidden on purpose, and where a device has no address it may
    be any of them.
    """
    profile = examined.profile
    engine = profile.engine
    if engine is None or any(card_of(device, profile) is None for device in local_devices(profile)):
        return
    working = [gpu for gpu in profile.hardware.gpus if can_compute(gpu, profile)]
    for vendor in dict.fromkeys(gpu.vendor for gpu in working):
        cards = [gpu for gpu in working if gpu.vendor == vendor]
        if any(device_of(gpu, profile) for gpu in cards):
            continue
        has_backend = _SYSTEM_SWITCH.get(vendor, "Vulkan") in engine.system_info
        yield Finding(
            code="engine_without_gpu",
            severity=Severity.WARNING,
            words=f"The engine leaves {_named(cards)} unused"
            + (": something hides it from the engine." if has_backend else ": it was built without a way to it."),
            evidence=f"The engine lists {_listed(examined)}; the driver of {_named(cards)} is {cards[0].driver}.",
            next_step=examined.advice or _hint(vendor, has_backend=has_backend),
        )


def broken_path(examined: Examination) -> Iterator[Finding]:
    """What a rebuild is worth is said only by who knows it: the advice."""
    if examined.needs:
        settings = ", ".join(f"{name}={value}" for name, value in examined.needs)
        yield Finding(
            code="engine_crashes",
            severity=Severity.PROBLEM,
            words="This engine build crashes on this CPU in the way it computes by default; other programs that use it"
            " will die.",
            evidence=f"A self-test found that it runs only with {settings}.",
            next_step=examined.advice or "Rebuild the engine with another compiler; what that is worth is not known.",
        )


def unused_instruction_sets(examined: Examination) -> Iterator[Finding]:
    engine, cpu = examined.profile.engine, examined.profile.hardware.cpu
    used = set(_SWITCHED_ON.findall(engine.system_info)) if engine else set()
    if "CPU" not in (engine.system_info if engine else ""):
        return
    unused = [name for name in MATTERING_SETS if name in cpu.instruction_sets and name not in used]
    names = ", ".join(name for name in MATTERING_SETS if name in used)
    if unused:
        yield Finding(
            code="instruction_sets_unused",
            severity=Severity.WARNING,
            words=f"The engine does not use {', '.join(unused)}, which this CPU has, so prompts are read slower on it.",
            evidence=f"The engine uses {names or 'none of those that matter'}.",
            next_step=examined.advice or "Build the engine on this machine itself: `make sweep`.",
        )


def _named(cards: list[GpuHardware]) -> str:
    return ", ".join(map(title, cards))


def _listed(examined: Examination) -> str:
    return ", ".join(device.name for device in examined.profile.machine.devices or ()) or "no device"


def _hint(vendor: str, *, has_backend: bool) -> str:
    if has_backend:
        return "Look for CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ONEAPI_DEVICE_SELECTOR in the environment."
    return f"Install {_TOOLKITS.get(vendor, _VULKAN)}, then `make sweep`."


_VULKAN = "Vulkan's compiler (glslc) with recent headers"
_TOOLKITS = {"nvidia": "NVIDIA's CUDA toolkit (nvcc)", "amd": f"ROCm (hipcc), or {_VULKAN}"}

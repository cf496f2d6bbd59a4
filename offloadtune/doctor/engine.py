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

_WAYS = {"nvidia": ("cuda", "vulkan"), "amd": ("hip", "vulkan"), "intel": ("sycl", "vulkan"), "apple": ("metal",)}
"""Vendor -> the backends that reach its cards, as libraries of the engine are called."""

_TELLING = {"nvidia": "CUDA", "amd": "ROCm"}
"""Of the backends only these tell of themselves in the engine's system_info."""

_HIDING = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES", "GGML_DISABLE_VULKAN"),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES", "GGML_DISABLE_VULKAN"),
    "intel": ("ONEAPI_DEVICE_SELECTOR", "GGML_VK_VISIBLE_DEVICES", "GGML_DISABLE_VULKAN"),
}
"""Vendor -> the variables that may hide its cards from the engine."""


def missing(examined: Examination) -> Iterator[Finding]:
    machine = examined.profile.machine
    if examined.profile.engine is None and examined.measured_now is None:
        reason = next((note.reason for note in machine.notes if note.subject == "devices"), "")
        yield Finding(
            code="engine_missing",
            severity=Severity.PROBLEM,
            words="There is no engine here that runs, so nothing can be measured.",
            evidence=reason or "No engine answered.",
            next_step=examined.rebuild_line or "Install llama-cpp-python with pip.",
        )


def not_asked(examined: Examination) -> Iterator[Finding]:
    """Who measures must not be disturbed, so of the engine and its devices nothing is known."""
    if examined.measured_now is not None:
        yield Finding(
            code="measuring_now",
            severity=Severity.NOTE,
            words="Something is being measured here now, so the engine, its devices and the disk were left alone.",
            evidence=f"{examined.measured_now} is being measured.",
            next_step="Run offloadtune doctor again when it is done.",
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
            next_step=_rebuild_step(examined),
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
        has_way = _has_way(vendor, examined)
        why = {True: ": something hides it from the engine.", False: ": it was built without a way to it.", None: "."}
        yield Finding(
            code="engine_without_gpu",
            severity=Severity.WARNING,
            words=f"The engine leaves {_named(cards)} unused{why[has_way]}",
            evidence=f"The engine lists {_listed(examined)}; the driver of {_named(cards)} is {cards[0].driver}.",
            next_step=_card_step(vendor, examined, has_way=has_way),
        )


def broken_path(examined: Examination) -> Iterator[Finding]:
    for fault in examined.faults:
        settings = ", ".join(f"{name}={value}" for name, value in fault.knobs)
        yield Finding(
            code="engine_crashes",
            severity=Severity.PROBLEM,
            words=f"This engine build crashes {_WHERE[fault.offloads]}, as it computes by default; other programs that"
            " use it may die.",
            evidence=f"A self-test found that it runs only with {settings}.",
            next_step=f"{fault.worth} To rebuild: {_rebuild_step(examined)}".strip(),
        )


_WHERE = {
    False: "on the CPU alone",
    True: "with the card",
    None: "with a file that was measured here before",
}


def unused_instruction_sets(examined: Examination) -> Iterator[Finding]:
    """Where AVX512_VNNI is used, llama.cpp takes it for what AVX_VNNI would do (ggml-cpu/arch/x86/quants.c)."""
    engine, cpu = examined.profile.engine, examined.profile.hardware.cpu
    used = set(_SWITCHED_ON.findall(engine.system_info)) if engine else set()
    if "CPU" not in (engine.system_info if engine else ""):
        return
    needless = {"AVX_VNNI"} if "AVX512_VNNI" in used else set()
    unused = [name for name in MATTERING_SETS if name in {*cpu.instruction_sets} - used - needless]
    names = ", ".join(name for name in MATTERING_SETS if name in used)
    if unused:
        yield Finding(
            code="instruction_sets_unused",
            severity=Severity.WARNING,
            words=f"The engine does not use {', '.join(unused)}, which this CPU has, so prompts are read slower on it.",
            evidence=f"The engine uses {names or 'none of those that matter'}.",
            next_step=_rebuild_step(examined),
        )


def _rebuild_step(examined: Examination) -> str:
    """Where there is no line, the toolkit of the card that is used now is not here."""
    return examined.rebuild_line or (
        "Build llama-cpp-python on this machine, after the toolkit of the card it uses now was installed: without that"
        " the new build would leave the card out."
    )


def _has_way(vendor: str, examined: Examination) -> bool | None:
    """Whether the engine was built with a backend that reaches this vendor's cards, None where it does not tell."""
    engine, told = examined.profile.engine, _TELLING.get(vendor)
    if engine is not None and told is not None and told in engine.system_info:
        return True
    if examined.backends is None:
        return None
    return any(way in examined.backends for way in _WAYS[vendor])


def _named(cards: list[GpuHardware]) -> str:
    return ", ".join(map(title, cards))


def _listed(examined: Examination) -> str:
    return ", ".join(device.name for device in examined.profile.machine.devices or ()) or "no device"


def _card_step(vendor: str, examined: Examination, *, has_way: bool | None) -> str:
    """First what is known to stand in the way, then what may."""
    hiding = [name for name in _HIDING.get(vendor, ()) if name in examined.variables]
    if hiding and has_way is not False:
        return f"Unset {' and '.join(hiding)}, or name the card there."
    closed = [str(path) for of, path in examined.closed_paths if of == vendor and has_way is not False]
    if closed and examined.profile.hardware.surroundings.container:
        return f"Start the container with the card's device files: {' '.join(f'--device {path}' for path in closed)}."
    if closed:
        return f"This user may not open {', '.join(closed)}: sudo usermod -aG render,video $USER, then log in again."
    if advice := dict(examined.card_advice).get(vendor):
        return advice
    if has_way:
        names = ", ".join(_HIDING.get(vendor, ()))
        return f"Look for what hides it ({names}), and whether the runtime libraries of its driver are installed."
    return f"Install {_TOOLKITS.get(vendor, _VULKAN)}, then run offloadtune doctor again for the line that rebuilds."


_VULKAN = "Vulkan's compiler (glslc) with recent headers"
_TOOLKITS = {"nvidia": "NVIDIA's CUDA toolkit (nvcc)", "amd": f"ROCm (hipcc), or {_VULKAN}"}

"""Which llama.cpp to build on a machine, and under which name to keep it: facts in, a plan out.

Pure judgement: it looks at nothing itself (facts.py does), so a test can hand it any machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offloadtune.records import EngineBuild, Machine, NvmlGpu

DISTRIBUTION = "llama-cpp-python"
ENGINE_REQUIREMENT = f"{DISTRIBUTION}>=0.3.36,<0.4"
ENGINE_VERSION = "0.3.36"
"""What `make` builds: one fixed version of those allowed, so that a finished build can be found again offline."""

COMMON_ARGS = ("-DGGML_RPC=ON", "-DLLAVA_BUILD=OFF")
"""RPC offloads to other machines (and to the virtual card of the tests); the vision library is never loaded here."""

KEEP_TILE_CONFIG = "-DCMAKE_CXX_FLAGS=-fno-dse"

_CUSTOM = "custom"


class _Words(NamedTuple):
    """How a backend is switched on, and what its two halves are called in a sentence."""

    switch: str
    toolkit: str
    device: str


_BACKENDS = {
    "CUDA": _Words("GGML_CUDA", "nvcc", "NVIDIA device"),
    "ROCm": _Words("GGML_HIP", "hipcc", "AMD compute device"),
    "Metal": _Words("GGML_METAL", "the Xcode command line tools", "Apple GPU"),
    "Vulkan": _Words("GGML_VULKAN", "glslc with Vulkan headers that know VK_EXT_layer_settings", "Vulkan device"),
}
"""In order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One way to a GPU: `toolkit` compiles for it, `device` would run it; None is "not here".

    `locate_args` tell CMake where a toolkit is that stands outside PATH.
    """

    backend: str
    toolkit: str | None = None
    device: str | None = None
    locate_args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """All that decides how the engine is built here. `compiler` is None when there is none.

    `cmake_args` and `flags` are the user's own, from the environment.
    """

    python_tag: str
    platform: str
    compiler: str | None
    is_gcc: bool
    cpu_flags: frozenset[str]
    gpus: tuple[Gpu, ...] = ()
    cmake_args: str = ""
    flags: tuple[tuple[str, str], ...] = ()
    engine_version: str = ENGINE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What to build and why. Equal `key`s mean interchangeable wheels: it names their folder in the cache.

    `cpu_args` are `cmake_args` without the GPU, to fall back on.
    """

    cmake_args: str
    cpu_args: str
    backend: str
    reasons: tuple[str, ...]
    key: str
    engine_version: str

    @property
    def title(self) -> str:
        built = "with your CMAKE_ARGS" if self.backend == _CUSTOM else f"for {self.backend}"
        return f"{DISTRIBUTION} {self.engine_version} {built}"


def plan_build(toolchain: Toolchain) -> BuildPlan:
    """The build that suits `toolchain`; the user's own CMAKE_ARGS, where given, are taken as they stand."""
    if toolchain.cmake_args:
        backend, cmake_args, cpu_args = _CUSTOM, toolchain.cmake_args, toolchain.cmake_args
        reasons = ["CMAKE_ARGS is set and used as it stands.", *_warn_of_lost_tiles(toolchain)]
    else:
        backend, gpu_args, reasons = _choose_backend(toolchain.gpus)
        cpu_args = " ".join(COMMON_ARGS)
        if _loses_tiles(toolchain):
            cpu_args += f" {KEEP_TILE_CONFIG}"
            reasons.append("GCC drops this CPU's AMX tile configuration and the engine dies; -fno-dse keeps it.")
        cmake_args = " ".join((*gpu_args, cpu_args))
    return BuildPlan(
        cmake_args=cmake_args,
        cpu_args=cpu_args,
        backend=backend,
        reasons=tuple(reasons),
        key=_build_key(toolchain, backend, cmake_args),
        engine_version=toolchain.engine_version,
    )


def engine_line(plan: BuildPlan, install_command: Sequence[str]) -> str:
    """The shell line that builds and installs the same engine without make.

    An earlier, different build must neither stay (--force-reinstall) nor come back out of pip's wheel cache, which
    knows nothing of CMAKE_ARGS (--no-cache-dir).
    """
    command = shlex.join(install_command)
    return f"CMAKE_ARGS={_quote(plan.cmake_args)} {command} --force-reinstall --no-cache-dir '{ENGINE_REQUIREMENT}'"


def unused_gpus(machine: Machine) -> tuple[NvmlGpu, ...]:
    """NVIDIA cards that the driver shows and the engine cannot use, () where that cannot be told.

    A local device without an address may be any of the cards.
    """
    local = [d for d in machine.devices or () if d.is_offload_target and not d.name.startswith("RPC")]
    if machine.devices is None or any(device.device_id is None for device in local):
        return ()
    used = [machine.nvml_of(device) for device in local]
    return tuple(gpu for gpu in machine.host.nvml_gpus or () if gpu.pci_bus_id and gpu not in used)


def backend_advice(
    machine: Machine, engine: EngineBuild, look_around: Callable[[], Toolchain], install_command: Sequence[str]
) -> str | None:
    """What to do so that the engine can use the NVIDIA cards it leaves alone; None where there are none."""
    cards = unused_gpus(machine)
    if not cards:
        return None
    names = ", ".join(dict.fromkeys(card.name for card in cards))
    if "CUDA" in engine.system_info:
        if len(cards) < len(machine.host.nvml_gpus or ()):  # some are listed: the others are hidden on purpose
            return None
        return (
            f"NVML sees {names}, but this engine, built with CUDA, does not list it: CUDA_VISIBLE_DEVICES may hide it."
        )
    toolchain = look_around()
    found = {gpu.backend: gpu for gpu in toolchain.gpus}
    found["CUDA"] = dataclasses.replace(found.get("CUDA", Gpu(backend="CUDA")), device=names)
    plan = plan_build(dataclasses.replace(toolchain, gpus=tuple(found.values()), cmake_args=""))
    before = ""
    has_vulkan = any(device.name.startswith("Vulkan") for device in machine.devices or ())
    if plan.backend not in {"CUDA", "Vulkan"} or (plan.backend == "Vulkan" and has_vulkan):
        before = "install NVIDIA's CUDA toolkit (nvcc), then "
        found["CUDA"] = dataclasses.replace(found["CUDA"], toolkit="nvcc")
        plan = plan_build(dataclasses.replace(toolchain, gpus=(found["CUDA"],), cmake_args=""))
    line = engine_line(plan, install_command)
    return f"NVML sees {names}, but this engine was built without CUDA: {before}{line}"


def make_line(cmake_args: str) -> str:
    """The shell line that has make build with these arguments."""
    return f"CMAKE_ARGS={_quote(cmake_args)} make sweep"


def _choose_backend(gpus: tuple[Gpu, ...]) -> tuple[str, tuple[str, ...], list[str]]:
    """Backend, its CMake arguments, and the sentences that explain it."""
    known = {gpu.backend: gpu for gpu in gpus}
    ranked = [known[backend] for backend in _BACKENDS if backend in known]
    for gpu in ranked:
        if gpu.toolkit and gpu.device:
            switch = f"-D{_BACKENDS[gpu.backend].switch}=ON"
            why = f"{gpu.backend}: the device is {gpu.device}, the toolkit {gpu.toolkit}."
            return gpu.backend, (switch, *gpu.locate_args), [why]
    return "CPU", (), [sentence for gpu in ranked for sentence in _explain_half(gpu)] or ["No GPU is in sight."]


def _explain_half(gpu: Gpu) -> list[str]:
    words = _BACKENDS[gpu.backend]
    if gpu.toolkit:
        return [f"{gpu.backend} is left out: {gpu.toolkit} is here, but no {words.device}."]
    if gpu.device:
        return [f"{gpu.backend} is left out: {gpu.device} is here, but not {words.toolkit}; install it to use the GPU."]
    return []


def _loses_tiles(toolchain: Toolchain) -> bool:
    """Whether compiled AMX code would die with SIGILL.

    GCC declares the operand of _tile_loadconfig as 8 bytes instead of 64, so its dead-store elimination removes most
    of the configuration.
    """
    return toolchain.is_gcc and "amx_tile" in toolchain.cpu_flags


def _warn_of_lost_tiles(toolchain: Toolchain) -> list[str]:
    if not _loses_tiles(toolchain) or "-fno-dse" in toolchain.cmake_args:
        return []
    return [f"GCC drops this CPU's AMX tile configuration and the engine may die; {KEEP_TILE_CONFIG} would keep it."]


def _build_key(toolchain: Toolchain, backend: str, cmake_args: str) -> str:
    """A readable start and a hash of everything that goes into the binary: it is built for this CPU and this GPU."""
    gpus = [dataclasses.astuple(gpu) for gpu in toolchain.gpus if _BACKENDS[gpu.backend].switch in cmake_args]
    ingredients = (
        toolchain.engine_version,
        toolchain.python_tag,
        toolchain.platform,
        toolchain.compiler,
        sorted(toolchain.cpu_flags),
        toolchain.flags,
        cmake_args,
        gpus,
    )
    digest = hashlib.sha256(json.dumps(ingredients).encode()).hexdigest()[:12]
    return f"{toolchain.engine_version}-{toolchain.python_tag}-{backend.lower()}-{digest}"


def _quote(text: str) -> str:
    return shlex.quote(text) if any(c in text for c in '"$`\\!') else f'"{text}"'

"""What this machine has to build an engine with; backend.py judges it."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from offloadtune.install.backend import Gpu, Toolchain

_FLAG_VARIABLES = ("CC", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDAARCHS", "CUDAFLAGS", "HIPFLAGS")
_INCLUDE_FOLDERS = ("/usr/include", "/usr/local/include")


def read_toolchain(environ: Mapping[str, str]) -> Toolchain:
    """Look around; a program that is missing, hangs or fails counts as absent."""
    version_text = _output(*compiler_command(environ), "--version")
    return Toolchain(
        python_tag=f"cp{sys.version_info.major}{sys.version_info.minor}",
        platform=" ".join((sysconfig.get_platform(), *platform.libc_ver())).strip(),
        compiler=_first_line(version_text),
        is_gcc="Free Software Foundation" in version_text,  # its first line is "c++ (Debian ...)": no GCC in it
        cpu_flags=_read_cpu_flags(),
        gpus=(_find_cuda(environ), _find_rocm(), _find_metal(), _find_vulkan(environ)),
        cmake_args=environ.get("CMAKE_ARGS", "").strip(),
        flags=tuple((name, environ[name]) for name in _FLAG_VARIABLES if environ.get(name)),
    )


def install_command() -> list[str]:
    """What installs into the Python that runs this: its own pip, or uv, whose environments have none."""
    if importlib.util.find_spec("pip") is None:
        return ["uv", "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install"]


def compiler_command(environ: Mapping[str, str]) -> list[str]:
    """The C++ compiler as CXX names it (perhaps behind ccache), else the system's."""
    return shlex.split(environ.get("CXX") or "c++")


def _read_cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset({_output("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.processor()})
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def _find_cuda(environ: Mapping[str, str]) -> Gpu:
    on_path = shutil.which("nvcc")
    homes = (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), "/usr/local/cuda")
    nvcc = on_path or next((found for home in homes if home and (found := shutil.which(f"{home}/bin/nvcc"))), None)
    release = next((line for line in _output(nvcc, "--version").splitlines() if "release" in line), "") if nvcc else ""
    return Gpu(
        backend="CUDA",
        toolkit=f"nvcc {release.rpartition(' V')[2]}".strip() if nvcc else None,
        device=_find_nvidia_device(),
        locate_args=(f"-DCMAKE_CUDA_COMPILER={nvcc}",) if nvcc and not on_path else (),
    )


def _find_nvidia_device() -> str | None:
    if shutil.which("nvidia-smi"):
        listed = [line for line in _output("nvidia-smi", "-L").splitlines() if line.startswith("GPU ")]
        return listed[0].partition(": ")[2].partition(" (UUID")[0] if listed else None
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None


def _find_rocm() -> Gpu:
    hipcc = shutil.which("hipcc") or shutil.which("/opt/rocm/bin/hipcc")
    version = _first_line(_output(hipcc, "--version")) if hipcc else None
    return Gpu(
        backend="ROCm",
        toolkit=f"hipcc ({version})" if hipcc else None,
        device="/dev/kfd" if Path("/dev/kfd").exists() else None,
    )


def _find_metal() -> Gpu:
    is_mac = sys.platform == "darwin"
    tools = _first_line(_output("xcode-select", "--version")) if is_mac else None
    is_apple_silicon = is_mac and platform.machine() == "arm64"
    return Gpu(backend="Metal", toolkit=tools, device="Apple silicon" if is_apple_silicon else None)


def _find_vulkan(environ: Mapping[str, str]) -> Gpu:
    glslc = shutil.which("glslc")
    sdk = environ.get("VULKAN_SDK")
    folders = (*((f"{sdk}/include",) if sdk else ()), *_INCLUDE_FOLDERS)
    headers = (Path(folder, "vulkan/vulkan_core.h") for folder in folders)
    header = next((path for path in headers if path.is_file()), None)
    # llama.cpp needs this extension; older headers (Debian 12's, for one) end in a compile error after minutes
    is_recent = header is not None and b"VK_EXT_layer_settings" in header.read_bytes()
    version = _first_line(_output(glslc, "--version")) if glslc else None
    return Gpu(
        backend="Vulkan",
        toolkit=f"glslc ({version})" if glslc and is_recent else None,
        device=_find_vulkan_device(),
    )


def _find_vulkan_device() -> str | None:
    if shutil.which("vulkaninfo"):
        return _hardware_in(_output("vulkaninfo", "--summary"))
    node = next(iter(sorted(Path("/dev/dri").glob("renderD*"))), None)
    return str(node) if node else None


def _hardware_in(summary: str) -> str | None:
    """Name of the first device in vulkaninfo's summary that is not the CPU itself (llvmpipe)."""
    kind = ""
    for line in summary.splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if name == "deviceType":
            kind = value
        elif name == "deviceName" and kind and "CPU" not in kind:
            return value
    return None


def _first_line(text: str) -> str | None:
    return text.strip().partition("\n")[0].strip() or None


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""

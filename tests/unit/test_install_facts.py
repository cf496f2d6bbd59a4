"""What is found on a machine, with the programs replaced by small scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloadtune.install.facts import _hardware_in, read_toolchain

GCC = "c++ (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc."
CLANG = "Debian clang version 18.1.8\nTarget: x86_64-pc-linux-gnu"
NVCC = "Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0"
CARDS = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, prints: str, exit_code: int = 0) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{prints}\nEND\nexit {exit_code}\n", encoding="utf-8")
    program.chmod(0o755)


@pytest.mark.parametrize(("version", "is_gcc"), [(GCC, True), (CLANG, False)])
def test_gcc_is_told_from_clang(programs: Path, version: str, *, is_gcc: bool) -> None:
    put(programs, "c++", version)
    toolchain = read_toolchain({})
    assert toolchain.is_gcc is is_gcc
    assert toolchain.compiler == version.partition("\n")[0]


def test_cxx_is_honoured(programs: Path) -> None:
    put(programs, "c++", GCC)
    put(programs, "my-clang", CLANG)
    assert read_toolchain({"CXX": "my-clang -m64"}).compiler == "Debian clang version 18.1.8"


def test_no_compiler_is_none(programs: Path) -> None:
    assert not list(programs.iterdir())
    assert read_toolchain({}).compiler is None


def test_nvidia_card_and_toolkit(programs: Path) -> None:
    put(programs, "nvcc", NVCC)
    put(programs, "nvidia-smi", CARDS)
    cuda = read_toolchain({}).gpus[0]
    assert (cuda.toolkit, cuda.device, cuda.locate_args) == ("nvcc 13.0.88", "NVIDIA H200", ())


def test_nvidia_driver_that_fails_is_no_card(programs: Path) -> None:
    put(programs, "nvidia-smi", "GPU 0: NVIDIA H200 (UUID: GPU-1)", exit_code=9)
    assert read_toolchain({}).gpus[0].device is None


def test_toolkit_outside_path_is_located(programs: Path, tmp_path: Path) -> None:
    home = tmp_path / "cuda" / "bin"
    home.mkdir(parents=True)
    put(home, "nvcc", NVCC)
    assert not list(programs.iterdir())
    cuda = read_toolchain({"CUDA_HOME": str(home.parent)}).gpus[0]
    assert cuda.locate_args == (f"-DCMAKE_CUDA_COMPILER={home}/nvcc",)


@pytest.mark.parametrize(("header", "is_usable"), [("VK_EXT_layer_settings", True), ("VK_old", False)])
def test_vulkan_needs_recent_headers(programs: Path, tmp_path: Path, header: str, *, is_usable: bool) -> None:
    put(programs, "glslc", "shaderc v2024")
    core = tmp_path / "sdk/include/vulkan/vulkan_core.h"
    core.parent.mkdir(parents=True)
    core.write_text(header, encoding="utf-8")
    vulkan = read_toolchain({"VULKAN_SDK": str(tmp_path / "sdk")}).gpus[3]
    assert (vulkan.toolkit is not None) is is_usable


def test_software_vulkan_is_no_device() -> None:
    software = "GPU0:\n\tdeviceType = PHYSICAL_DEVICE_TYPE_CPU\n\tdeviceName = llvmpipe (LLVM 15)\n"
    hardware = "GPU1:\n\tdeviceType = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU\n\tdeviceName = AMD Radeon RX 7900\n"
    assert _hardware_in(software) is None
    assert _hardware_in(software + hardware) == "AMD Radeon RX 7900"


def test_own_arguments_and_flags_are_kept() -> None:
    toolchain = read_toolchain({"CMAKE_ARGS": " -DX=1 ", "CXXFLAGS": "-O1", "CFLAGS": ""})
    assert (toolchain.cmake_args, toolchain.flags) == ("-DX=1", (("CXXFLAGS", "-O1"),))

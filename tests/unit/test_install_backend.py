"""Which engine is built on which machine."""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from pathlib import Path

import pytest

from offloadtune.install.backend import (
    ENGINE_REQUIREMENT,
    ENGINE_VERSION,
    Gpu,
    Toolchain,
    engine_line,
    make_line,
    plan_build,
)

PLAIN = Toolchain(
    python_tag="cp311",
    platform="linux-x86_64 glibc 2.36",
    compiler="c++ (Debian 12.2.0-14) 12.2.0",
    is_gcc=True,
    cpu_flags=frozenset({"avx2", "fma"}),
)
AMX = frozenset({"avx2", "amx_tile"})
CUDA = Gpu(backend="CUDA", toolkit="nvcc 13.0", device="NVIDIA H200")
ROCM = Gpu(backend="ROCm", toolkit="hipcc 6.4", device="/dev/kfd")
METAL = Gpu(backend="Metal", toolkit="xcode-select 2408", device="Apple silicon")
VULKAN = Gpu(backend="Vulkan", toolkit="glslc 2024", device="/dev/dri/renderD128")
COMMON = "-DGGML_RPC=ON -DLLAVA_BUILD=OFF"


def with_gpus(*gpus: Gpu) -> Toolchain:
    return dataclasses.replace(PLAIN, gpus=gpus)


@pytest.mark.parametrize(
    ("toolchain", "backend", "cmake_args", "reason"),
    [
        pytest.param(PLAIN, "CPU", COMMON, "No GPU", id="nothing but a CPU"),
        pytest.param(
            dataclasses.replace(PLAIN, cpu_flags=AMX),
            "CPU",
            f"{COMMON} -DCMAKE_CXX_FLAGS=-fno-dse",
            "AMX",
            id="GCC loses the AMX tiles",
        ),
        pytest.param(
            dataclasses.replace(PLAIN, cpu_flags=AMX, is_gcc=False, compiler="clang 18"),
            "CPU",
            COMMON,
            "No GPU",
            id="clang keeps the AMX tiles",
        ),
        pytest.param(
            with_gpus(dataclasses.replace(CUDA, device=None)),
            "CPU",
            COMMON,
            "CUDA is left out: nvcc 13.0 is here, but no NVIDIA device.",
            id="nvcc without a card",
        ),
        pytest.param(
            with_gpus(dataclasses.replace(CUDA, toolkit=None)),
            "CPU",
            COMMON,
            "CUDA is left out: NVIDIA H200 is here, but not nvcc; install it",
            id="card without nvcc",
        ),
        pytest.param(with_gpus(CUDA), "CUDA", f"-DGGML_CUDA=ON {COMMON}", "NVIDIA H200", id="CUDA"),
        pytest.param(with_gpus(ROCM), "ROCm", f"-DGGML_HIP=ON {COMMON}", "/dev/kfd", id="ROCm"),
        pytest.param(with_gpus(METAL), "Metal", f"-DGGML_METAL=ON {COMMON}", "Apple silicon", id="Metal"),
        pytest.param(with_gpus(VULKAN), "Vulkan", f"-DGGML_VULKAN=ON {COMMON}", "renderD128", id="Vulkan"),
        pytest.param(with_gpus(VULKAN, CUDA), "CUDA", f"-DGGML_CUDA=ON {COMMON}", "H200", id="CUDA before Vulkan"),
        pytest.param(
            with_gpus(dataclasses.replace(CUDA, toolkit=None), VULKAN),
            "Vulkan",
            f"-DGGML_VULKAN=ON {COMMON}",
            "glslc 2024",
            id="NVIDIA card with only Vulkan's toolkit",
        ),
        pytest.param(
            with_gpus(dataclasses.replace(CUDA, locate_args=("-DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc",))),
            "CUDA",
            f"-DGGML_CUDA=ON -DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc {COMMON}",
            "H200",
            id="nvcc outside PATH",
        ),
        pytest.param(
            dataclasses.replace(with_gpus(CUDA), cpu_flags=AMX),
            "CUDA",
            f"-DGGML_CUDA=ON {COMMON} -DCMAKE_CXX_FLAGS=-fno-dse",
            "AMX",
            id="CUDA on an AMX host",
        ),
        pytest.param(
            dataclasses.replace(with_gpus(CUDA), cmake_args="-DGGML_VULKAN=ON"),
            "custom",
            "-DGGML_VULKAN=ON",
            "as it stands",
            id="the user's own",
        ),
    ],
)
def test_each_machine_gets_its_build(toolchain: Toolchain, backend: str, cmake_args: str, reason: str) -> None:
    plan = plan_build(toolchain)
    assert (plan.backend, plan.cmake_args) == (backend, cmake_args)
    assert any(reason in sentence for sentence in plan.reasons)
    assert plan.key.startswith(f"{ENGINE_VERSION}-cp311-{backend.lower()}-")


def test_falling_back_leaves_out_only_the_gpu() -> None:
    plan = plan_build(dataclasses.replace(with_gpus(CUDA), cpu_flags=AMX))
    assert plan.cpu_args == f"{COMMON} -DCMAKE_CXX_FLAGS=-fno-dse"


def test_own_arguments_that_lose_the_tiles_are_remarked_upon() -> None:
    bare = dataclasses.replace(PLAIN, cpu_flags=AMX, cmake_args="-DGGML_RPC=ON")
    cured = dataclasses.replace(bare, cmake_args="-DCMAKE_CXX_FLAGS='-O3 -fno-dse'")
    assert any("-fno-dse" in sentence for sentence in plan_build(bare).reasons)
    assert not any("-fno-dse" in sentence for sentence in plan_build(cured).reasons)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(with_gpus(CUDA), engine_version="0.3.37"),
        dataclasses.replace(with_gpus(CUDA), python_tag="cp312"),
        dataclasses.replace(with_gpus(CUDA), platform="linux-x86_64 glibc 2.31"),
        dataclasses.replace(with_gpus(CUDA), compiler="c++ 13.1"),
        dataclasses.replace(with_gpus(CUDA), cpu_flags=frozenset({"avx2"})),
        dataclasses.replace(with_gpus(CUDA), flags=(("CXXFLAGS", "-O1"),)),
        dataclasses.replace(with_gpus(CUDA), cmake_args="-DGGML_CUDA=ON"),
        with_gpus(dataclasses.replace(CUDA, toolkit="nvcc 12.9")),
        with_gpus(dataclasses.replace(CUDA, device="NVIDIA L4")),
    ],
)
def test_every_ingredient_changes_the_key(other: Toolchain) -> None:
    assert plan_build(other).key != plan_build(with_gpus(CUDA)).key


def test_what_is_not_built_in_leaves_the_key_alone() -> None:
    idle_toolkit = dataclasses.replace(CUDA, device=None)
    assert plan_build(with_gpus(idle_toolkit)).key == plan_build(PLAIN).key


def test_own_arguments_with_a_gpu_are_keyed_on_its_toolkit() -> None:
    own = dataclasses.replace(with_gpus(CUDA), cmake_args="-DGGML_CUDA=ON")
    newer = dataclasses.replace(own, gpus=(dataclasses.replace(CUDA, toolkit="nvcc 13.1"),))
    assert plan_build(own).key != plan_build(newer).key


def test_line_for_those_without_make() -> None:
    plan = plan_build(with_gpus(CUDA))
    words = shlex.split(engine_line(plan, ["/opt/my tools/python", "-m", "pip", "install"]))
    assert words == [
        f"CMAKE_ARGS=-DGGML_CUDA=ON {COMMON}",
        *("/opt/my tools/python", "-m", "pip", "install", "--force-reinstall", "--no-cache-dir"),
        "llama-cpp-python>=0.3.36,<0.4",
    ]


@pytest.mark.parametrize("cmake_args", [COMMON, "-DCMAKE_CXX_FLAGS='-O3 -g'", '-DX="a b"', "-DX=$HOME"])
def test_a_shell_reads_the_arguments_back(cmake_args: str) -> None:
    assert shlex.split(make_line(cmake_args)) == [f"CMAKE_ARGS={cmake_args}", "make", "sweep"]


def test_requirement_is_the_one_of_the_package() -> None:
    pyproject = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["optional-dependencies"]["engine"] == [ENGINE_REQUIREMENT]

"""Cards that the driver shows and the engine leaves alone: what is said, on recorded machines."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest
from sample_records import CPU, CUDA0

from offloadtune.engine import SelfTest
from offloadtune.install import Gpu, Toolchain, backend_advice
from offloadtune.install.backend import unused_gpus
from offloadtune.pipeline import rebuilding
from offloadtune.probe import Door, probe_host
from offloadtune.records import Device, EngineBuild, Machine

HOSTS = Path(__file__).parents[1] / "hosts"
ENGINE = EngineBuild(version="0.3.36", build_id="b", system_info="CPU : AVX2 = 1 |", library_dir="/opt")
VIRTUAL = Device(name="RPC0", description="127.0.0.1:50052", kind="gpu", total_bytes=1, free_bytes=1)
VULKAN = dataclasses.replace(CUDA0, name="Vulkan0")
NAMELESS = dataclasses.replace(VULKAN, device_id=None)
ELSEWHERE = dataclasses.replace(CUDA0, device_id="0000:41:00.0")
TOOLCHAIN = Toolchain(python_tag="cp311", platform="linux", compiler="c++ 12", is_gcc=True, cpu_flags=frozenset())
NVCC = Gpu(backend="CUDA", toolkit="nvcc 13.0")
GLSLC = Gpu(backend="Vulkan", toolkit="glslc 2024", device="/dev/dri/renderD128")
PIP = ("/opt/venv/bin/python", "-m", "pip", "install")


def machine(*devices: Device, host: str = "desktop_ryzen_ddr5_rtx4090") -> Machine:
    return Machine(host=probe_host(door=Door(HOSTS / host)), devices=devices)


def advice(one: Machine, *gpus: Gpu, engine: EngineBuild = ENGINE) -> str | None:
    return backend_advice(one, engine, lambda: dataclasses.replace(TOOLCHAIN, gpus=gpus), PIP)


@pytest.mark.parametrize(
    ("devices", "is_unused"),
    [
        ((CPU,), True),
        ((CPU, VIRTUAL), True),
        ((CPU, ELSEWHERE), True),
        ((CPU, CUDA0), False),
        ((CPU, VULKAN), False),
        ((CPU, NAMELESS), False),  # it may well be the card
    ],
    ids=["CPU", "another machine's", "at another address", "CUDA", "Vulkan", "without an address"],
)
def test_which_cards_are_left_alone(devices: tuple[Device, ...], is_unused: bool) -> None:  # noqa: FBT001
    assert [gpu.name for gpu in unused_gpus(machine(*devices))] == ["NVIDIA GeForce RTX 4090"] * is_unused
    assert (advice(machine(*devices), NVCC) is not None) == is_unused


@pytest.mark.parametrize("host", ["container_cgroup2_limit", "macbook_m3_pro", "windows_desktop"])
def test_no_card_no_advice(host: str) -> None:
    assert advice(machine(CPU, host=host), NVCC) is None


def test_without_an_engine_nothing_is_known_of_its_backends() -> None:
    assert unused_gpus(dataclasses.replace(machine(), devices=None)) == ()


@pytest.mark.parametrize(
    ("gpus", "before", "switch"),
    [
        ((NVCC,), "", "-DGGML_CUDA=ON"),
        ((GLSLC,), "", "-DGGML_VULKAN=ON"),
        ((), "install NVIDIA's CUDA toolkit (nvcc), then ", "-DGGML_CUDA=ON"),
    ],
    ids=["nvcc", "only Vulkan's toolkit", "no toolkit"],
)
def test_the_line_builds_for_the_card(gpus: tuple[Gpu, ...], before: str, switch: str) -> None:
    told = advice(machine(CPU), *gpus)
    opening = f"NVML sees NVIDIA GeForce RTX 4090, but this engine was built without CUDA: {before}"
    assert told is not None
    assert told.startswith(opening)
    variable, *command = shlex.split(told.removeprefix(opening))
    assert variable.startswith(f"CMAKE_ARGS={switch} ")
    assert command == [*PIP, "--force-reinstall", "--no-cache-dir", "llama-cpp-python>=0.3.36,<0.4"]


def test_a_hidden_card_needs_no_rebuild() -> None:
    told = advice(machine(CPU), NVCC, engine=dataclasses.replace(ENGINE, system_info="CUDA : ARCHS = 890 | CPU"))
    assert told is not None
    assert "CUDA_VISIBLE_DEVICES may hide it" in told
    assert "CMAKE_ARGS" not in told


def test_of_two_cards_one_may_be_hidden_on_purpose() -> None:
    both = machine(CPU, CUDA0)
    (card,) = both.host.nvml_gpus or ()
    second = dataclasses.replace(card, index=1, pci_bus_id="00000000:41:00.0")
    both = dataclasses.replace(both, host=dataclasses.replace(both.host, nvml_gpus=(card, second)))
    with_cuda = dataclasses.replace(ENGINE, system_info="CUDA : ARCHS = 890 | CPU")
    assert len(unused_gpus(both)) == 1
    assert advice(both, NVCC, engine=with_cuda) is None


def test_vulkan_that_misses_the_card_is_not_built_again() -> None:
    elsewhere = dataclasses.replace(VULKAN, device_id="0000:41:00.0")
    told = advice(machine(CPU, elsewhere), GLSLC)
    assert told is not None
    assert "install NVIDIA's CUDA toolkit (nvcc)" in told
    assert "-DGGML_CUDA=ON" in told


# --- a broken build --------------------------------------------------------------------------------------------------

BROKEN = SelfTest(knobs={"use_extra_bufts": False}, sentence="This engine build is broken here.", signal="SIGILL")


@pytest.mark.parametrize(
    ("found", "flags", "is_known"),
    [
        (BROKEN, ("avx2", "amx_tile"), True),
        (BROKEN, ("avx2",), False),
        (dataclasses.replace(BROKEN, signal="SIGSEGV"), ("amx_tile",), False),
        (dataclasses.replace(BROKEN, knobs={"flash_attn_type": "disabled"}), ("amx_tile",), False),
        (dataclasses.replace(BROKEN, knobs=None), ("amx_tile",), False),
    ],
    ids=["lost tiles", "no tiles to lose", "another death", "another cure", "no cure"],
)
def test_a_figure_is_claimed_only_for_the_fault_it_was_measured_on(
    found: SelfTest,
    flags: tuple[str, ...],
    is_known: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toolchain = dataclasses.replace(TOOLCHAIN, cpu_flags=frozenset(flags))
    monkeypatch.setattr(rebuilding, "read_toolchain", lambda _environ: toolchain)
    host = probe_host(door=Door(HOSTS / "desktop_ryzen_ddr5_rtx4090"))
    here = Machine(host=dataclasses.replace(host, cpu=dataclasses.replace(host.cpu, flags=flags)), devices=())
    words = rebuilding.rebuild_words(found, here)
    assert "\n" not in words
    assert "CMAKE_ARGS=" in words
    assert ("-fno-dse" in words) == ("amx_tile" in flags)
    assert ("847 tok/s" in words) == is_known
    assert ("on another machine" in words and "here it is not measured" in words) == is_known
    assert ("cannot be known before" in words) != is_known


def test_a_sound_build_is_not_talked_about() -> None:
    assert rebuilding.rebuild_words(SelfTest(knobs={}), machine(CPU)) == ""

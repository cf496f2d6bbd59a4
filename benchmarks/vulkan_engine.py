"""An engine with a device that has op offload, on a machine without a card: llama.cpp on software Vulkan (llvmpipe).

Debian's mesa-vulkan-drivers holds llvmpipe, a Vulkan device that computes on the CPU's cores. The npm package PACKAGE
holds llama.cpp's libraries with the Vulkan backend, a little older than those of llama-cpp-python 0.3.36, with the same
structs of parameters. The worker is offloadtune's own, told to load those libraries: functions that they lack are only
missed when they are called.

Slow, and its speeds say nothing of any card; but placement, copies and splits are those of a real device. Nothing is
downloaded unless asked for:

    python benchmarks/vulkan_engine.py             says what is here
    python benchmarks/vulkan_engine.py --set-up    gets the libraries (24 MB) into the user's cache folder
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import platformdirs
import psutil

PACKAGE = "@node-llama-cpp/linux-x64-vulkan@3.22.1"
RELEASE = "v0.5.0"
"""The llama.cpp that the package says it was built from."""

CLOCK_MARK = "## CLOCK "
"""Begins the line before a graph's first split: nanoseconds passed, computed, and computed by all programs."""

_SHA512 = "bBxqU+JOcBu1nb5Qj2zcMci+JByT1E8EajHvYodyNfVIPkEhXh+/HMwR1/BT7xP08YK0hks+kM8fglER0P8JEg=="
_LINKS = {"libllama.so": f"libllama.vulkan.{RELEASE}.so", "libggml.so": f"libggml.vulkan.{RELEASE}.so"}
_DRIVER_FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
_LEVEL_DEBUG = 1


class VulkanMissingError(Exception):
    """One sentence on what is missing and how to get it."""


@dataclass(frozen=True, kw_only=True)
class VulkanEngine:
    """Libraries in `folder`, and the driver's description that points Vulkan to llvmpipe alone."""

    folder: Path
    driver: Path

    def command(self, log: Path) -> tuple[str, ...]:
        """The command of a worker for `Runner`; it adds to `log` what the scheduler tells of its splits."""
        return (sys.executable, __file__, "--worker", str(self.folder), str(self.driver), str(log))


def ensure_vulkan_engine() -> VulkanEngine:
    """The engine, its libraries downloaded first where they are not here. Raises VulkanMissingError."""
    driver, folder = find_driver(), libraries_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            _set_up(folder)
    return VulkanEngine(folder=folder, driver=driver)


def find_driver() -> Path:
    """The description of llvmpipe for Vulkan's loader. Raises VulkanMissingError."""
    get = "on Debian: apt-get install mesa-vulkan-drivers libvulkan1"
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        raise VulkanMissingError(f"Vulkan's loader, libvulkan.so.1, is not installed here; {get}.") from None
    for folder in _DRIVER_FOLDERS:
        for found in sorted(Path(folder).glob("lvp_icd*.json")):
            return found
    raise VulkanMissingError(f"Software Vulkan, Mesa's llvmpipe, is not installed here; {get}.")


def libraries_folder() -> Path:
    """Where the libraries lie, or will."""
    home = os.environ.get("OFFLOADTUNE_HOME")
    cache = Path(home).absolute() if home else Path(platformdirs.user_cache_dir("offloadtune"))
    return cache / "vulkan-engine" / PACKAGE.rpartition("@")[2]


def _set_up(folder: Path) -> None:
    """Whole or not at all: `folder` appears when everything is in it."""
    for leftover in folder.parent.glob("getting-*"):  # the lock is ours, so whoever made it was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="getting-", dir=folder.parent) as name:
        work = Path(name)
        archive, ready = _download(work), work / "ready"
        ready.mkdir()
        try:
            with tarfile.open(archive) as files:
                for member in files.getmembers():
                    if member.isfile() and member.name.endswith(".so"):
                        member.name = Path(member.name).name
                        files.extract(member, ready, filter="data")
        except tarfile.TarError as error:
            raise VulkanMissingError(f"{PACKAGE} cannot be unpacked: {error}; try again.") from None
        for link, target in _LINKS.items():
            (ready / link).symlink_to(target)
        ready.replace(folder)


def _download(work: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise VulkanMissingError(f"Getting {PACKAGE} takes npm, and there is none here; install npm and try again.")
    command = [npm, "pack", "--silent", "--pack-destination", str(work), PACKAGE]
    done = subprocess.run(  # noqa: S603 - our own words
        command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    archives = list(work.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        told = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
        raise VulkanMissingError(f"npm could not get {PACKAGE}: {told}; check the network and try again.")
    check_archive(archives[0])
    return archives[0]


def check_archive(archive: Path) -> None:
    """Raise VulkanMissingError unless it is the very package: libraries are code."""
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != _SHA512:
        raise VulkanMissingError(
            f"What npm got as {PACKAGE} is not that package, by its SHA-512; nothing was unpacked."
        )


# --- the worker ------------------------------------------------------------------------------------------------------


class TolerantLibrary(ctypes.CDLL):
    """A library whose missing functions can be declared, as llama_cpp declares all it knows, but not called."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return _missing(name)


def _missing(name: str) -> Callable[..., Any]:
    def function(*_args: Any) -> Any:
        raise NotImplementedError(f"this build of the engine has no {name}")

    return function


def busy_ns() -> int:
    """How long the machine's cores have computed, for whatever program."""
    times: dict[str, float] = psutil.cpu_times()._asdict()
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    return round(sum(times.get(kind, 0.0) for kind in kinds) * 1e9)


def serve(folder: str, driver: str, log: str, endpoints: list[str]) -> None:
    """The worker of offloadtune on the libraries in `folder`; what the engine says of level DEBUG goes to `log`."""
    os.environ |= {
        "LLAMA_CPP_LIB_PATH": folder,
        "VK_ICD_FILENAMES": driver,  # the loader's old name for it and its new one
        "VK_DRIVER_FILES": driver,
        "GGML_VK_VISIBLE_DEVICES": "0",  # ggml passes over a Vulkan device that is a CPU unless it is named
        "GGML_SCHED_DEBUG": "1",
    }
    ctypes.CDLL = TolerantLibrary  # type: ignore[misc]  # llama_cpp takes it from there
    from offloadtune.engine.worker import __main__ as worker  # noqa: PLC0415
    from offloadtune.engine.worker import native  # noqa: PLC0415 - loads the library

    stream = Path(log).open("a", encoding="utf-8")  # noqa: SIM115 - open until the worker ends

    class DebugLog(native.Log):
        """Splits are told in pieces of lines, which the log itself does not put together.

        Each graph is split right before it is computed, so the clocks there tell how long the one before took.
        """

        def _keep(self, level: int, text: bytes, user: Any) -> None:
            if level != _LEVEL_DEBUG:
                super()._keep(level, text, user)
                return
            piece = text.decode("utf-8", "replace")
            if "## SPLIT #0:" in piece:
                stream.write(f"\n{CLOCK_MARK}{time.perf_counter_ns()} {time.process_time_ns()} {busy_ns()}\n")
            stream.write(piece)
            if piece.endswith("\n"):
                stream.flush()

    native.Log = DebugLog  # type: ignore[misc]
    worker.main(endpoints)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        folder, driver, log = sys.argv[2:5]
        serve(folder, driver, log, sys.argv[5:])
        return
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--set-up", action="store_true", help="download what is not here")
    asked = options.parse_args()
    try:
        if asked.set_up:
            ensure_vulkan_engine()
        print(f"driver     {find_driver()}")
        libraries = libraries_folder()
        print(f"libraries  {libraries}" if libraries.exists() else "libraries  not here; get them with --set-up")
    except VulkanMissingError as missing:
        print(missing, file=sys.stderr)
        if asked.set_up:
            sys.exit(1)


if __name__ == "__main__":
    main()

"""The one door to the operating system: files below /proc, /sys and /etc, commands, psutil and NVML.

A door opened on another root replays a machine recorded there as plain files, and asks nothing of the machine it
runs on: `proc/`, `sys/`, `etc/` as they stood, `<command>.txt` for what a command printed, `system.json` for the
fields of `System`, `nvml.json` for what `read_nvml` returned.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from offloadtune.errors import ProbeError
from offloadtune.probe.nvml import read_nvml

T = TypeVar("T")

COMMAND_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What Python and psutil tell on every platform; None where a file tells it better or nobody does."""

    name: str
    release: str
    arch: str
    allowed_cpus: tuple[int, ...]
    processor: str | None = None
    n_physical_cores: int | None = None
    total_bytes: int | None = None
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """Opens on this machine, or on one recorded below `root`. Absent and unreadable are both None."""

    root: Path = Path("/")

    @property
    def is_recorded(self) -> bool:
        return self.root != Path("/")

    def text(self, path: str) -> str | None:
        """Content of the file at `path`, which is written from the root: "/proc/meminfo"."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):  # ValueError: a NUL in a path that came out of another file
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Names in the folder at `path`, sorted; none when there is no such folder."""
        try:
            return tuple(sorted(entry.name for entry in (self.root / path.lstrip("/")).iterdir()))
        except (OSError, ValueError):
            return ()

    def command(self, name: str, *arguments: str) -> str | None:
        """What the command prints, None when it is missing, fails or is slow."""
        if self.is_recorded:
            return self.text(f"{name}.txt")
        try:
            done = subprocess.run(  # noqa: S603 - fixed words from this package, no shell
                [name, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_DEADLINE_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode(errors="replace")

    def system(self) -> System:
        return self._recorded_system() if self.is_recorded else _live_system()

    def nvml(self) -> Mapping[str, Any]:
        """The answers of the NVIDIA driver, in the shape `read_nvml` describes."""
        if not self.is_recorded:
            return read_nvml()
        answers = json.loads(self.text("nvml.json") or '{"error": "NotRecorded"}')
        return answers if isinstance(answers, dict) else {"error": "NotRecorded"}

    def _recorded_system(self) -> System:
        try:
            fields = json.loads(self.text("system.json") or "")
            return System(**{**fields, "allowed_cpus": tuple(fields["allowed_cpus"])})
        except (ValueError, TypeError, KeyError) as error:
            message = f"{self.root} holds no recorded machine: its system.json is missing or incomplete."
            hint = "Name a folder with a system.json that gives name, release, arch and allowed_cpus."
            raise ProbeError(message, hint=hint) from error


THIS_MACHINE = Door()


def _live_system() -> System:
    memory = _unless_refused(psutil.virtual_memory)
    return System(
        name={"Darwin": "macOS"}.get(platform.system(), platform.system()),
        release=platform.mac_ver()[0] or platform.release(),
        arch=platform.machine(),
        allowed_cpus=_allowed_cpus(),
        processor=platform.processor() if sys.platform == "win32" else None,  # elsewhere it only repeats `arch`
        n_physical_cores=_unless_refused(lambda: psutil.cpu_count(logical=False)),
        total_bytes=memory.total if memory else None,
        available_bytes=memory.available if memory else None,
    )


def _allowed_cpus() -> tuple[int, ...]:
    """CPUs this process may run on."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    if sys.platform == "win32":
        return tuple(sorted(psutil.Process().cpu_affinity()))
    return tuple(range(os.cpu_count() or 1))  # macOS has no affinity


def _unless_refused(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except (psutil.Error, OSError):
        return None

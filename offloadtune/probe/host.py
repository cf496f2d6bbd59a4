"""The one door to the operating system: files below /proc, /sys and /etc, commands, psutil and NVML.

A door opened on another root replays a machine recorded there as plain files, and asks nothing of the machine it
runs on: `proc/`, `sys/`, `etc/` as they stood, `<command>.txt` for what a command printed (see `Door.command`),
`system.json` for the fields of `System`, `nvml.json` for what `read_nvml` and `read_nvml_moment` returned,
`moment.json` for the fields of `Moment` where there is no /proc.
"""

from __future__ import annotations

import builtins
import importlib
import json
import mmap
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from offloadtune.errors import ProbeError
from offloadtune.probe.nvml import read_nvml, read_nvml_links, read_nvml_moment

T = TypeVar("T")

UNSEEN_PID = 0
"""Stands for a process of ours that this user is not shown; no program has this number."""

COMMAND_DEADLINE_S = 2.0
MOST_BYTES = 2**20
_MOST_OF_A_NAME = 120
_COLON = "%3A"  # how a record writes ":" in the names of files
_USUAL_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What Python and psutil tell on every platform; None where a file tells it better or nobody does.

    `address_space_bytes` and `locked_bytes` are RLIMIT_AS and RLIMIT_MEMLOCK, None without such a limit.
    """

    name: str
    release: str
    arch: str
    allowed_cpus: tuple[int, ...]
    processor: str | None = None
    n_physical_cores: int | None = None
    total_bytes: int | None = None
    available_bytes: int | None = None
    n_online_cpus: int | None = None
    address_space_bytes: int | None = None
    locked_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What psutil tells of a moment, where no file does. CPU seconds and swapped bytes are since the start.

    `our_cpu_s` maps our processes, their children among them, to their CPU seconds.
    """

    busy_cpu_s: float | None = None
    our_cpu_s: Mapping[int, float] | None = None
    swapped_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    on_battery: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A process that takes connections at an address of this machine."""

    address: str
    port: int
    pid: int


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
            return self._file(path).read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):  # ValueError: a NUL in a path that came out of another file
            return None

    def bytes(self, path: str) -> builtins.bytes | None:
        """The same as bytes, no more than the first MOST_BYTES of them."""
        try:
            with self._file(path).open("rb") as file:
                return file.read(MOST_BYTES)
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Names in the folder at `path`, sorted; none when there is no such folder."""
        try:
            names = (entry.name for entry in self._file(path).iterdir())
            return tuple(sorted(name.replace(_COLON, ":") if self.is_recorded else name for name in names))
        except (OSError, ValueError):
            return ()

    def _file(self, path: str) -> Path:
        """Where `path` stands below the root. Windows has no names with a colon, and is to hold records too."""
        plain = self.root / path.lstrip("/")
        if not self.is_recorded or ":" not in path:
            return plain
        kept = self.root / path.lstrip("/").replace(":", _COLON)
        return kept if kept.exists() or not plain.exists() else plain

    def command(self, name: str, *arguments: str, deadline_s: float | None = None) -> str | None:
        """What the command prints, None when it is missing, fails or is slow.

        A recorded machine keeps it in a file called by all its words, `sysctl_-n_hw.memsize.txt`: each run of other
        characters than letters, digits, ".", "-" and "_" is one "_", and no more than 120 characters stand before the
        ".txt". Where that file is missing, `sysctl.txt` stands for every call of sysctl.
        """
        if self.is_recorded:
            words = re.sub(r"[^A-Za-z0-9._-]+", "_", " ".join((name, *arguments)))
            told = self.text(f"{words[:_MOST_OF_A_NAME]}.txt")
            return self.text(f"{name}.txt") if told is None else told
        try:
            done = subprocess.run(  # noqa: S603 - fixed words from this package, no shell
                [name, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=deadline_s or COMMAND_DEADLINE_S,
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
        return self._recorded_nvml()

    def nvml_moment(self) -> Mapping[str, Any]:
        """The same about this moment, in the shape `read_nvml_moment` describes."""
        return self._recorded_nvml() if self.is_recorded else read_nvml_moment()

    def nvml_links(self) -> Mapping[str, Any]:
        """The same about the links alone."""
        return self._recorded_nvml() if self.is_recorded else read_nvml_links()

    def allowed_cpus(self) -> tuple[int, ...]:
        """The CPUs this process may run on."""
        return self._recorded_system().allowed_cpus if self.is_recorded else _allowed_cpus()

    @property
    def page_bytes(self) -> int:
        return _USUAL_PAGE_BYTES if self.is_recorded else mmap.PAGESIZE

    def moment(self, ours: Sequence[int]) -> Moment:
        """What psutil tells now; `ours` are processes of ours besides this one."""
        if self.is_recorded:
            fields = json.loads(self.text("moment.json") or "{}")
            ours_ = {int(pid): cpu_s for pid, cpu_s in fields.pop("our_cpu_s", {}).items()}
            return Moment(**fields, our_cpu_s=ours_ or None)
        return _live_moment(self.allowed_cpus(), (os.getpid(), *ours))

    def process_name(self, pid: int) -> str | None:
        """None for a process that is not seen from here: it has ended, or runs outside of this container."""
        if self.is_recorded:
            return (self.text(f"/proc/{pid}/comm") or "").strip() or None
        return _unless_refused(lambda: psutil.Process(pid).name())

    def addresses(self) -> frozenset[str]:
        """The addresses of this machine's network cards."""
        cards = {} if self.is_recorded else _unless_refused(psutil.net_if_addrs) or {}
        return frozenset(one.address for card in cards.values() for one in card)

    def host_names(self) -> frozenset[str]:
        """What this machine calls itself, with and without its domain."""
        name = "" if self.is_recorded else socket.gethostname().lower()
        return frozenset({name, name.partition(".")[0]} - {""})

    def listeners(self) -> tuple[Listener, ...]:
        """Who listens for TCP connections here, as far as the system tells this user."""
        open_ = () if self.is_recorded else _unless_refused(lambda: psutil.net_connections("tcp")) or ()
        return tuple(
            Listener(address=one.laddr.ip, port=one.laddr.port, pid=one.pid)
            for one in open_
            if one.status == psutil.CONN_LISTEN and one.pid and one.laddr
        )

    def _recorded_nvml(self) -> Mapping[str, Any]:
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
        n_online_cpus=os.cpu_count(),
        address_space_bytes=_limit_bytes("RLIMIT_AS"),
        locked_bytes=_limit_bytes("RLIMIT_MEMLOCK"),
    )


def _limit_bytes(name: str) -> int | None:
    """The limit in force of this process, None where there is none."""
    if sys.platform == "win32":  # where nothing of the kind exists, nor the module
        return None
    resource = importlib.import_module("resource")
    number = getattr(resource, name, None)
    soft = resource.RLIM_INFINITY if number is None else resource.getrlimit(number)[0]
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _live_moment(cpus: Sequence[int], pids: Sequence[int]) -> Moment:
    swap = _unless_refused(psutil.swap_memory)
    battery = _unless_refused(getattr(psutil, "sensors_battery", lambda: None))
    tells_swapping = swap is not None and sys.platform != "win32"  # there psutil says 0 for "not told"
    return Moment(
        busy_cpu_s=_unless_refused(lambda: _busy_cpu_s(cpus)),
        our_cpu_s=_unless_refused(lambda: _our_cpu_s(pids)),
        swapped_bytes=swap.sin + swap.sout if swap and tells_swapping else None,
        swap_total_bytes=swap.total if swap else None,
        swap_free_bytes=swap.free if swap else None,
        on_battery=None if battery is None or battery.power_plugged is None else not battery.power_plugged,
    )


def _busy_cpu_s(cpus: Sequence[int]) -> float | None:
    per_cpu = psutil.cpu_times(percpu=True)
    if not cpus or max(cpus) >= len(per_cpu):
        return None
    return sum(
        getattr(per_cpu[cpu], name, 0.0) for cpu in cpus for name in ("user", "nice", "system", "irq", "softirq")
    )


def _our_cpu_s(pids: Sequence[int]) -> dict[int, float]:
    """A process that has ended meanwhile is left out; what its parent waited for stands with the parent."""
    trees = [_unless_refused(partial(_tree, pid)) or [] for pid in pids]
    times = {one.pid: _unless_refused(one.cpu_times) for tree in trees for one in tree}
    return {
        pid: sum(getattr(one, name, 0.0) for name in ("user", "system", "children_user", "children_system"))
        for pid, one in times.items()
        if one is not None
    }


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


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

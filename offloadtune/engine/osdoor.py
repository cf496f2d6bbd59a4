"""What differs between operating systems about processes: the one guarded place of the engine.

Everything here has an answer on Linux, macOS and Windows; where the system cannot say, the answer is None.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil


def own_group_options() -> dict[str, Any]:
    """Options for Popen that put the child in its own group, so that the terminal's Ctrl-C reaches only us."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End `process` and whatever it started, at once."""
    if process.poll() is not None:
        return
    if sys.platform == "win32":
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def forbid_core_dumps() -> None:
    """A crashed trial is expected; a core file of many gigabytes is not."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415 - POSIX only

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def signal_name(exit_code: int) -> str | None:
    """Name of the signal that ended a process, or None when it ended by itself. Windows reports an NTSTATUS."""
    if sys.platform == "win32":
        names = {0xC000001D: "SIGILL", 0xC0000005: "SIGSEGV", 0xC0000409: "SIGABRT", 3: "SIGABRT"}
        return names.get(exit_code & 0xFFFFFFFF)
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def reset_peak_rss() -> None:
    """Start the peak anew where the system allows it (Linux: "5" to clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_rss_bytes() -> int | None:
    """Largest resident memory of this process, or None where the system does not keep it."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "darwin":
        import resource  # noqa: PLC0415 - POSIX only

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = getattr(psutil.Process().memory_info(), "peak_wset", None)
    return int(peak) if peak is not None else None


def drop_cached(path: Path, begin: int = 0, end: int | None = None) -> str:
    """Drop the pages of the file at `path`, and of no other, from the system's cache; why it is not cold, "" if it is.

    Only those from byte `begin` on, up to `end` where one is given; `begin` as in `cached_frac`. Pages that another
    process has mapped stay, and so do some of a few file systems, so what is left is counted.
    """
    if sys.platform != "linux":
        return "only Linux lets a program without special rights drop a file from the cache"
    with path.open("rb") as stream:
        n_bytes = 0 if end is None else end - begin  # 0 is all that follows
        os.posix_fadvise(stream.fileno(), begin, n_bytes, os.POSIX_FADV_DONTNEED)
    cached = cached_frac(path, begin, end)
    if cached is None:
        return "the system does not say what it keeps of the file in its cache"
    if cached > _COLD_FRAC:
        return f"{cached:.0%} of the file stays in the cache, another program may hold it"
    return ""


_COLD_FRAC = 0.02
_WINDOW_BYTES = 1 << 30


def cached_frac(path: Path, begin: int = 0, end: int | None = None) -> float | None:
    """Share of the file's pages that are in the system's cache; None where the system does not say.

    Those from byte `begin` on, which begins a page, up to `end` where one is given. Linux says "all" of files that are
    not the asker's and that he may not write to.
    """
    if sys.platform != "linux":
        return None
    stat = path.stat()
    if stat.st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None
    with path.open("rb") as stream:
        return _resident_frac(stream.fileno(), begin, stat.st_size if end is None else min(end, stat.st_size))


def _resident_frac(descriptor: int, begin: int, end: int) -> float | None:
    """By mincore over windows of a mapping that touches no page."""
    libc = ctypes.CDLL(None, use_errno=True)
    n_pages = n_cached = 0
    for offset in range(begin, end, _WINDOW_BYTES):
        n_bytes = min(_WINDOW_BYTES, end - offset)
        with mmap.mmap(
            descriptor, n_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        ) as window:
            states = (ctypes.c_ubyte * -(-n_bytes // mmap.PAGESIZE))()
            address = ctypes.c_char.from_buffer(window)
            failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(n_bytes), states)
            del address  # the mapping cannot be closed while it is pointed to
        if failed:
            return None
        n_pages += len(states)
        n_cached += sum(state & 1 for state in states)
    return n_cached / n_pages if n_pages else None

"""What differs between operating systems about processes: the one guarded place of the engine.

Everything here has an answer on Linux, macOS and Windows; where the system cannot say, the answer is None.
"""

from __future__ import annotations

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

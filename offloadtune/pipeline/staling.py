"""Profiles gone stale: files whose newest sweep was made on something else than is here now."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from offloadtune.errors import OffloadTuneError
from offloadtune.footprint import pad_256
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.likeness import Here, Unlike
from offloadtune.pipeline.missing import workload_words
from offloadtune.pipeline.recalling import limit_options
from offloadtune.records import Goal, Target
from offloadtune.search import N_CTX_SHIPPED
from offloadtune.store import SweepHeader
from offloadtune.trends import StaleProfile

BUDGET_S = 30
"""Enough for the baselines and a few trials of a small file, once it is in memory."""
_DISK_BYTES_PER_S = 0.5e9


def stale_profiles(headers: Iterable[SweepHeader], here: Here) -> Iterator[StaleProfile]:
    """For every file that is still there: whether its newest sweep of this machine speaks for what is here now."""
    newest: dict[Path, SweepHeader] = {}
    for header in sorted(headers, key=lambda one: one.started_at):
        if here.unlike(header) is not Unlike.MACHINE:
            newest[header.gguf_path] = header
    for path, header in newest.items():
        why = " and ".join((*_content_words(header), *_unlike_words(header, here))) if _is_there(path) else ""
        if why:
            yield StaleProfile(gguf_path=path, why=why, command=_command(header), stands_for=header.stands_for)


def _is_there(path: Path) -> bool:
    """Whether a file stands at `path` and no pipe, whose reading would wait for ever."""
    try:
        return path.is_file()
    except OSError:  # in a folder that is not ours to read
        return False


def _content_words(header: SweepHeader) -> Iterator[str]:
    """Samples of a large file take a while to read: one that nobody touched since is left alone."""
    try:
        status = header.gguf_path.stat()
        touched_at = datetime.fromtimestamp(max(status.st_mtime, status.st_ctime), UTC)
        if touched_at >= datetime.fromisoformat(header.started_at):
            gguf_id = read_gguf(header.gguf_path).gguf_id
            if gguf_id != header.gguf_id:
                yield f"another content ({header.gguf_id[:8]}, now {gguf_id[:8]})"
    except (OSError, ValueError, TypeError):  # gone, or a moment that is none: nothing can be said
        return
    except OffloadTuneError:
        yield f"another content ({header.gguf_id[:8]}, now unreadable)"


def _unlike_words(header: SweepHeader, here: Here) -> Iterator[str]:
    unlike = here.unlike(header)
    if unlike is Unlike.DRIVER:
        now = tuple(gpu.driver for gpu in here.host.nvml_gpus or ())
        yield f"another driver ({_joined(header.drivers)}, now {_joined(now)})"
    elif unlike is Unlike.ENGINE:
        build = f"{header.engine.version}, build {header.engine.build_id[:8]}"
        yield f"another engine ({build}, now build {(here.build_id or '')[:8]})"
    elif unlike is Unlike.RULER:
        yield "an older way of measuring"


def _joined(drivers: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(driver or "unknown" for driver in drivers))


def _command(header: SweepHeader) -> str:
    """The sweep that asks the same question again."""
    words = ["offloadtune", "sweep", str(header.gguf_path)]
    workload = workload_words(header.workload)
    if workload != "chat":
        words += ["--workload", workload]
    if header.goal is not Goal.TURN:
        words += ["--goal", header.goal]
    if header.target is not Target.LLAMA_CPP_PYTHON:
        words += ["--target", header.target]
    if header.n_ctx > pad_256(max(header.workload.n_ctx_needed, N_CTX_SHIPPED)):
        words += ["--n-ctx", str(header.n_ctx)]
    for option in limit_options(header):
        words += option.split(" ", 1)
    return shlex.join([*words, "--budget", f"{_budget_s(header.file_bytes)}s"])


def _budget_s(file_bytes: int) -> int:
    """What a profile needs at least; whole minutes from one on."""
    needed_s = math.ceil(BUDGET_S + file_bytes / _DISK_BYTES_PER_S)
    return needed_s if needed_s <= 60 else 60 * math.ceil(needed_s / 60)

"""Reaching: what stands between the engine and a card, as far as files tell: its backends, and device files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

_BACKEND = re.compile(r"(?:lib)?ggml-([a-z0-9]+)(?:[-_][\w-]+)?\.(?:so|dylib|dll)")
_NO_BACKENDS = frozenset({"base"})


def backends_in(library_dir: Path) -> tuple[str, ...] | None:
    """The backends that an engine has libraries of ("cpu", "cuda", "hip", "vulkan"); None where they are not apart."""
    try:
        names = [path.name for path in library_dir.iterdir()]
    except (OSError, ValueError):
        return None
    found = {match[1] for name in names if (match := _BACKEND.fullmatch(name))} - _NO_BACKENDS
    return tuple(sorted(found)) if "cpu" in found else None


def closed_paths(
    vendors: Collection[str],
    backends: Collection[str] | None,
    *,
    in_container: bool,
    dev: Path = Path("/dev"),
) -> tuple[tuple[str, Path], ...]:
    """Device files of cards of these vendors that this process may not open, on Linux, each with its vendor.

    One that is missing is told only `in_container`, which is how a container is started without a card. Only ROCm, the
    backend "hip", opens AMD's own.
    """
    wanted = [("amd", dev / "kfd")] if "amd" in vendors and (backends is None or "hip" in backends) else []
    try:
        nodes = sorted(path for path in (dev / "dri").iterdir() if path.name.startswith("renderD"))
    except OSError:
        nodes = []
    wanted += [(one, path) for one in ("amd", "intel") if one in vendors for path in nodes or [dev / "dri"]]
    return tuple(
        (vendor, path)
        for vendor, path in wanted
        if (path.exists() or in_container) and not os.access(path, os.R_OK if path.is_dir() else os.R_OK | os.W_OK)
    )

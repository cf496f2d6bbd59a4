"""Small facts that are dear to find again (a file's SHA-256, what keeps an engine build alive), in one JSON file each.

Losing one costs time only, so trouble with the file never stops a sweep: it is read as empty and not written.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import filelock

_PATIENCE_S = 2.0


class FactFile:
    """A small dictionary on disk, written whole and atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Any:
        """The fact, or None when it is not known."""
        return self._read().get(key)

    def put(self, key: str, value: Any) -> None:
        with contextlib.suppress(OSError, filelock.Timeout):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{self._path}.lock", timeout=_PATIENCE_S):
                self._write({**self._read(), key: value})

    def _write(self, facts: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    json.dump(facts, stream, indent=1, sort_keys=True)
                Path(temporary).replace(self._path)
            finally:
                Path(temporary).unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            facts = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

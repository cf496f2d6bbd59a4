"""Folders opened one after another, within bounds: what could not be seen is said, and said once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

MOST_ENTRIES = 100_000
"""Of one place: more than any collection of models has, and listed in a second."""

DEEPEST = 8
"""Folders in folders."""


class Walk:
    """One look around. `notes` grow while it goes on."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most_entries = most_entries
        self._n_left = most_entries
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def begin_place(self) -> None:
        """From here on as much may be looked at as before."""
        self._n_left = self._most_entries

    def is_there(self, path: Path) -> bool | None:
        """Whether `path` exists; None where this user may not know, which is noted."""
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        except OSError as error:
            self._cannot_see(path, error)
            return None
        return True

    def files(self, root: Path, depth: int) -> Iterator[Path]:
        """Paths of all files in `root` and `depth` folders below it, upper ones first, each folder in order of names.

        Links to folders are followed, none twice; folders whose names begin with a dot are left out below `root`.
        """
        seen: set[tuple[int, int]] = set()
        waiting = deque([(root, 0)])
        while waiting:
            folder, level = waiting.popleft()
            if _is_seen(folder, seen):
                continue
            for entry in self.entries(folder):
                path = folder / entry.name
                if not _is_folder(entry):
                    yield path
                elif level < depth and not entry.name.startswith("."):
                    waiting.append((path, level + 1))
                elif level >= DEEPEST:
                    self._notes.setdefault(f"{root} holds folders in folders: only {DEEPEST} levels were opened.")

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """What lies in `folder`, in order of names; none where it cannot be read, which is noted."""
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(folder) as scan:
                for entry in scan:
                    if self._n_left <= 0:
                        self._notes.setdefault(f"{folder} was not read to its end: there are too many files in it.")
                        break
                    self._n_left -= 1
                    found.append(entry)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            pass
        except OSError as error:
            self._cannot_see(folder, error)
        return sorted(found, key=lambda entry: entry.name)

    def _cannot_see(self, path: Path, error: OSError) -> None:
        if isinstance(error, PermissionError):
            self._notes.setdefault(f"{path} may not be read by this user.")
        else:
            self._notes.setdefault(f"{path} cannot be read: {error.strerror or error}.")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in circles
        return False


def _is_seen(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """Whether this very folder was opened before, under whatever name; remembered from now on."""
    try:
        status = folder.stat()
    except (OSError, ValueError):  # opening it will say why
        return False
    key = (status.st_dev, status.st_ino)
    is_seen = key in seen
    seen.add(key)
    return is_seen

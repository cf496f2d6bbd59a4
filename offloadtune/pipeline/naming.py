"""Naming: the file that a word means where it is no path, and the word that commands take for a file."""

from __future__ import annotations

import difflib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from offloadtune import shelves
from offloadtune.errors import GgufError, UsageError
from offloadtune.listings import Shelved, ShelvedFile
from offloadtune.report.words import printable
from offloadtune.sweeps import Said, Teller

_N_SHOWN = 8
_N_NEAREST = 3
_ENDING = ".gguf"


def shelved_here(folders: Sequence[Path] = ()) -> Shelved:
    """The files in the usual places of this user, and in `folders`."""
    usual = shelves.usual_places(os.environ, Path(os.path.expanduser("~")), sys.platform)  # noqa: PTH111 - never raises
    return shelves.look((*usual, *shelves.given_places(folders)))


def resolve(text: str, listen: Teller) -> Path:
    """The path that `text` is, else that of the one file here of this name; which file a name took is told.

    Names are those of `offloadtune list`, with or without .gguf, in any case, or owner/name:QUANT as for llama.cpp's
    -hf; what ends in no .gguf may be the beginning of a name, or a part of it, that only one model has. Raises
    UsageError where several files are meant, GgufError where none is.
    """
    if is_path(text):
        return Path(text)
    files = shelved_here().files
    found = matches(text, files)
    handles = handles_of(files)
    if len(found) > 1:
        sentence = f"{text!r} names {len(found)} files here: {_list_words([handles[file] for file in found])}."
        raise UsageError(sentence, hint="write more of the name, or the path of one")
    if not found:
        hint = _nearest_words(text, [handles[file] for file in files if not file.companion])
        raise GgufError(f"{text} does not exist.", hint=hint)
    listen(Said(text=f"{text} is {printable(str(found[0].path))} ({found[0].program})."))
    return found[0].path


def is_path(text: str) -> bool:
    """Whether `text` can only be meant as a path: it exists, or is written as no name is."""
    if os.path.lexists(text) or not text or "\0" in text:
        return True
    if text.startswith((".", "~")) or Path(text).is_absolute():
        return True
    try:
        Path(text).lstat()
    except FileNotFoundError:
        return False
    except OSError:  # the reader says what is wrong with it
        return True
    return True


def handles_of(files: Sequence[ShelvedFile]) -> Mapping[ShelvedFile, str]:
    """What to call each file: its shortest name that no other has, else its path."""
    counts = Counter(name for file in files for name in {_folded(name) for name in file.names})
    return {
        file: next((name for name in file.names if counts[_folded(name)] == 1), str(file.path.absolute()))
        for file in files
    }


def matches(text: str, files: Sequence[ShelvedFile]) -> list[ShelvedFile]:
    """The files that `text` names: exactly where there are such, else by the beginning, else by a part of a name.

    A download given up that is known by its repository alone gives way to the finished files of that repository.
    """
    unusable: list[ShelvedFile] = []
    for is_meant in _ways(text):
        found = [file for file in files if is_meant(file)]
        usable = [file for file in found if _is_offered(file)]
        if usable or not all(file.repository in file.names for file in found):
            return usable or found
        unusable = unusable or found
    return unusable


def _ways(text: str) -> Iterator[Callable[[ShelvedFile], bool]]:
    """Ways to mean a file, from the strictest on."""
    asked = _folded(text)
    yield lambda file: any(_folded(name) == asked for name in file.names)
    repository, colon, quantisation = text.rpartition(":")
    if colon and "/" in repository and quantisation:
        yield lambda file: _is_of(file, repository) and shelves.has_quantisation(file.path.stem, quantisation)
    if text.lower().endswith(_ENDING):  # the whole name of a file that is not here
        return
    yield lambda file: _is_offered(file) and any(_folded(name).startswith(asked) for name in file.names)
    yield lambda file: _is_offered(file) and any(asked in _folded(name) for name in file.names)


def _is_of(file: ShelvedFile, repository: str) -> bool:
    """Whether the file came from `repository`; llama.cpp's older cache has it in the name of the file."""
    flat = f"{repository.replace('/', '_')}_".lower()
    return file.repository.lower() == repository.lower() or file.path.name.lower().startswith(flat)


def _is_offered(file: ShelvedFile) -> bool:
    return not file.trouble and not file.companion


def _folded(name: str) -> str:
    folded = name.casefold()
    return folded.removesuffix(_ENDING)


def _list_words(handles: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    n_more = len(handles) - _N_SHOWN
    more = f" and {n_more} more" if n_more > 0 else ""
    return ", ".join(map(printable, handles[:_N_SHOWN])) + more


def _nearest_words(text: str, handles: Sequence[str]) -> str:
    """What to do where nothing has the name `text`."""
    by_folded = {_folded(handle): handle for handle in handles}
    near = difflib.get_close_matches(_folded(Path(text).name), by_folded, n=_N_NEAREST, cutoff=0.5)
    if not near:
        return "check the spelling and the folder of the path; offloadtune list shows the files found on this machine"
    nearest = " or ".join(printable(by_folded[one]) for one in near)
    return f"use {nearest}, or another name that offloadtune list shows"

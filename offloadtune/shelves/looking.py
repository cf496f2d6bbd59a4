"""Looking: the files of every place, shards together, each file once however many paths lead to it."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from offloadtune.listings import Shelf, Shelved, ShelvedFile
from offloadtune.shelves.ollama import ollama_files
from offloadtune.shelves.places import Layout, Place
from offloadtune.shelves.titles import Title, companion_of, hub_repository, names_of, shard_words, title_of
from offloadtune.shelves.walking import Walk

_SNAPSHOT_DEPTH = 6
_REF_BYTES = 100
_UNFINISHED = "is a download under way, or one that was given up"
_UNFINISHED_BLOBS = (".incomplete", ".downloadInProgress")  # of huggingface_hub and of llama.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """A path that has the name of a GGUF file, with the folders that lead to it below its place."""

    path: Path
    title: Title
    folders: tuple[str, ...]
    repository: str = ""


def look(places: Iterable[Place], walk: Walk | None = None) -> Shelved:
    """What lies in `places`, as far as this user may see it. No file of a model is opened."""
    walk = walk or Walk()
    shelves: dict[Path, Shelf] = {}
    files: dict[object, ShelvedFile] = {}
    for place in places:
        walk.begin_place()
        if place.path not in shelves:
            shelves[place.path] = Shelf(program=place.program, path=place.path, is_there=walk.is_there(place.path))
        if not shelves[place.path].is_there:
            continue
        for file in _files_of(place, walk):
            key = _key_of(file.path)
            files[key] = _merged(files[key], file) if key in files else file
    return Shelved(files=tuple(files.values()), shelves=tuple(shelves.values()), notes=walk.notes)


def _merged(first: ShelvedFile, other: ShelvedFile) -> ShelvedFile:
    """One file seen twice answers to both its names."""
    names = tuple(dict.fromkeys((*first.names, *other.names)))
    return dataclasses.replace(first, names=names, repository=first.repository or other.repository)


def _key_of(path: Path) -> object:
    """What is the same for all paths of a file."""
    try:
        status = path.stat()
    except OSError:  # gone, or a link to nothing
        return path
    return (status.st_dev, status.st_ino) if status.st_ino else path.resolve()


def _files_of(place: Place, walk: Walk) -> Iterator[ShelvedFile]:
    if place.layout is Layout.OLLAMA:
        for one in ollama_files(place.path, walk):
            n_bytes, trouble = _sized((one.path,))
            yield ShelvedFile(
                path=one.path,
                program=place.program,
                names=one.names,
                file_bytes=n_bytes,
                companion=one.companion,
                trouble=one.trouble or trouble,
            )
    elif place.layout is Layout.HUB:
        for entry in walk.entries(place.path):
            if repository := hub_repository(entry.name):
                yield from _of_repository(place, repository, place.path / entry.name, walk)
    elif place.is_given and not place.path.is_dir():
        title = title_of(place.path.name)
        sight = _Sight(path=place.path, title=title or Title(stem=place.path.stem), folders=())
        yield _file(place, (sight,))
    else:
        yield from _grouped(place, _sights(place, walk))


def _sights(place: Place, walk: Walk) -> Iterator[_Sight]:
    for path in walk.files(place.path, place.depth):
        title = title_of(path.name)
        if title is None:
            continue
        folders = path.relative_to(place.path).parts[:-1]
        repository = "/".join(folders[:2]) if place.has_owners and len(folders) >= 2 else ""
        yield _Sight(path=path, title=title, folders=folders, repository=repository)


def _of_repository(place: Place, repository: str, folder: Path, walk: Walk) -> Iterator[ShelvedFile]:
    """Files of a repository in the Hugging Face cache: links in a folder for each revision, to blobs beside them."""
    main = _line(folder / "refs" / "main")
    revisions = [entry.name for entry in walk.entries(folder / "snapshots")]
    n_found = 0
    for revision in sorted(revisions, key=lambda name: name != main):  # what is in use first
        root = folder / "snapshots" / revision
        sights = [
            _Sight(path=path, title=title, folders=tuple(repository.split("/")), repository=repository)
            for path in walk.files(root, _SNAPSHOT_DEPTH)
            if (title := title_of(path.name))
        ]
        n_found += len(sights)
        yield from _grouped(place, sights)
    if n_found or "gguf" in repository.lower():
        for entry in walk.entries(folder / "blobs"):
            if entry.name.endswith(_UNFINISHED_BLOBS):
                path = folder / "blobs" / entry.name
                n_bytes, trouble = _sized((path,))
                yield ShelvedFile(
                    path=path,
                    program=place.program,
                    names=(repository,),
                    file_bytes=n_bytes,
                    repository=repository,
                    trouble=trouble or _UNFINISHED,
                )


def _line(path: Path) -> str:
    try:
        if not path.is_file():  # a pipe never ends
            return ""
        with path.open("rb") as file:
            return file.read(_REF_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _grouped(place: Place, sights: Iterable[_Sight]) -> Iterator[ShelvedFile]:
    """Shards of one model together; one that is still on its way counts as missing."""

    def group(sight: _Sight) -> tuple[str, str, int, bool]:
        is_alone = sight.title.total == 1
        return str(sight.path.parent), sight.title.stem, sight.title.total, is_alone and sight.title.is_unfinished

    for _, members in groupby(sorted(sights, key=group), key=group):
        found = sorted(members, key=lambda one: (one.title.number, one.path))
        if found[0].title.total > 1:
            yield _file(place, found)
        else:
            yield from (_file(place, (one,)) for one in found)


def _file(place: Place, sights: Sequence[_Sight]) -> ShelvedFile:
    """The file of these shards, of which those under way are left out unless there are no others."""
    whole = [one for one in sights if not one.title.is_unfinished]
    first, shards = (whole or sights)[0], tuple(one.path for one in whole or sights)
    title = first.title
    n_bytes, trouble = _sized(shards)
    if title.total > 1:
        trouble = shard_words({one.title.number for one in whole}, title.total) or trouble
    elif not whole:
        trouble = _UNFINISHED
    return ShelvedFile(
        path=first.path,
        program=place.program,
        names=(str(first.path),) if place.is_given else names_of(title.stem, first.folders),
        file_bytes=n_bytes,
        n_shards=title.total,
        repository=first.repository,
        companion=companion_of(title.stem),
        trouble=trouble,
    )


def _sized(paths: Iterable[Path]) -> tuple[int, str]:
    """Bytes of all, and what is wrong with the first that is no file that can be read, else ""."""
    n_bytes, trouble = 0, ""
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:
            trouble = trouble or "is a link to a file that is gone"
        except OSError as error:
            trouble = trouble or f"cannot be read: {error.strerror or error}"
        else:
            n_bytes += status.st_size
            if not stat.S_ISREG(status.st_mode):
                trouble = trouble or "is no file"
            elif not os.access(path, os.R_OK):
                trouble = trouble or "may not be read by this user"
    return n_bytes, trouble

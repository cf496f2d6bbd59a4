"""What names of files and folders say: is it a GGUF, whole or half there, a shard, a companion; whose repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

_GGUF = re.compile(r"(?P<stem>.*)\.gguf", re.IGNORECASE | re.DOTALL)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})", re.DOTALL)

_UNFINISHED_ENDINGS = (
    ".part",
    ".partial",
    ".incomplete",
    ".download",
    ".downloadinprogress",  # llama.cpp
    ".crdownload",
    ".aria2",
    ".tmp",
)
_UNFINISHED_BEGINNINGS = ("incomplete-", "downloading_")  # GPT4All, LM Studio

_COMPANIONS = {
    "mmproj": "projector of images",
    "imatrix": "importance matrix",
    "mtp-": "draft head",
    "eagle3-": "draft head",
    "dflash-": "draft head",
    "dspark-": "draft head",
}
"""Marks of files that llama.cpp takes for no model either (`gguf_filename_is_model` in its common/download.cpp)."""

_NAMES_OF_NOTHING = {"model", "ggml-model", "gguf"}
_HUB_FOLDER = "models--"


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """A file's name taken apart: `stem` without shard and ending; shard `number` of `total`, 1 of 1 without shards."""

    stem: str
    number: int = 1
    total: int = 1
    is_unfinished: bool = False


def title_of(file_name: str) -> Title | None:
    """What the name says; None where it is no GGUF file's, nor that of one under way."""
    lower = file_name.lower()
    ending = next((one for one in _UNFINISHED_ENDINGS if lower.endswith(one)), "")
    beginning = next((one for one in _UNFINISHED_BEGINNINGS if lower.startswith(one)), "")
    match = _GGUF.fullmatch(file_name[len(beginning) : len(file_name) - len(ending)])
    if match is None:
        return None
    shard = _SHARD.fullmatch(match["stem"])
    is_unfinished = bool(ending or beginning)
    if shard is None or not 1 <= int(shard["number"]) <= int(shard["total"]) or int(shard["total"]) == 1:
        return Title(stem=match["stem"], is_unfinished=is_unfinished)
    number, total = int(shard["number"]), int(shard["total"])
    return Title(stem=shard["stem"], number=number, total=total, is_unfinished=is_unfinished)


def companion_of(stem: str) -> str:
    """What a file of this name is beside a model; "" for a model."""
    return next((what for mark, what in _COMPANIONS.items() if mark in stem), "")


def names_of(stem: str, folders: Sequence[str]) -> tuple[str, ...]:
    """What a file answers to, given the folders that it lies in: its name, and its name with those folders.

    Where every file of a program has the same name, the folders are the name.
    """
    if not folders:
        return (stem,)
    if stem.lower() in _NAMES_OF_NOTHING:
        return ("/".join(folders),)
    return (stem, "/".join((*folders, stem)))


def hub_repository(folder_name: str) -> str:
    """owner/name of a folder in the Hugging Face cache; "" for what is no model's."""
    return folder_name.removeprefix(_HUB_FOLDER).replace("--", "/") if folder_name.startswith(_HUB_FOLDER) else ""


def has_quantisation(stem: str, quantisation: str) -> bool:
    """Whether llama.cpp's -hf owner/name:QUANT would take a file of this name for that quantisation."""
    return re.search(f"{re.escape(quantisation)}[.-]", f"{stem}.", re.IGNORECASE) is not None


def shard_words(numbers: AbstractSet[int], total: int) -> str:
    """Which shards are missing of `total`, as a sentence without its subject; "" where none is."""
    n_missing = total - len(numbers)
    if not n_missing:
        return ""
    if n_missing > 4:
        return f"lacks {n_missing} of its {total} shards"
    missing = sorted(set(range(1, total + 1)) - numbers)
    words = " and ".join(filter(None, (", ".join(map(str, missing[:-1])), str(missing[-1]))))
    return f"lacks shard{'' if n_missing == 1 else 's'} {words} of {total}"

"""Nouns of the list of GGUF files on this machine: where they lie, what they are, whether they fit.

Floor 0: standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """A folder where `program` keeps GGUF files; `is_there` is None where this user may not even see it."""

    program: str
    path: Path
    is_there: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelvedFile:
    """A file found, or the shards of one together; its header was not read.

    `path` is the first shard. `names` are what it answers to, the shortest first; `repository` is owner/name on Hugging
    Face where the folder says so. `companion` is what it is beside a model, as far as its name tells, `trouble` a
    sentence without its subject that says why it cannot be used as it is; both "" for nothing.
    """

    path: Path
    program: str
    names: tuple[str, ...]
    file_bytes: int
    n_shards: int = 1
    repository: str = ""
    companion: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelved:
    """All that was found, in the order of the shelves. `notes` are full sentences about what could not be seen."""

    files: tuple[ShelvedFile, ...]
    shelves: tuple[Shelf, ...]
    notes: tuple[str, ...] = ()


class FitVerdict(StrEnum):
    """How much of a model the devices hold: all layers, some of them, none, or not even with main memory's help."""

    ALL = "all"
    SOME = "some"
    MAIN_MEMORY = "main_memory"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFit:
    """`n_gpu_layers` is the most that fits, of `n_gpu_layers_all`, None where not even 0 does.

    Then `short_bytes` is what main memory lacks. `reason` is a full sentence where the verdict is not known.
    """

    verdict: FitVerdict
    n_gpu_layers: int | None = None
    n_gpu_layers_all: int | None = None
    short_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file with what its header says; a companion or a file in trouble says nothing more than that.

    `name` is what commands take in place of the path. `has_profile` is None where the machine's name is not known.
    """

    name: str
    path: Path
    program: str
    file_bytes: int
    n_shards: int = 1
    companion: str = ""
    trouble: str = ""
    arch: str | None = None
    quantisation: str | None = None
    n_params: int | None = None
    n_layer: int | None = None
    n_expert: int | None = None
    n_ctx_train: int | None = None
    is_standin: bool = False
    fit: FileFit | None = None
    has_profile: bool | None = None

    @property
    def is_model(self) -> bool:
        return not self.companion and not self.trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All files, the largest first, and what their fit was judged by.

    `devices` are names and free bytes, () without a device to offload to; None where they are not known, and `no_fit`
    says why. `n_ctx` is the context that counts as the default; a shorter training makes it shorter.
    """

    files: tuple[ListedFile, ...]
    shelves: tuple[Shelf, ...]
    notes: tuple[str, ...]
    n_ctx: int
    devices: tuple[tuple[str, int], ...] | None
    available_bytes: int | None
    no_fit: str = ""

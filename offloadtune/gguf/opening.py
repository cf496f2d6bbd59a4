"""From a path to its mapped header, or to the sentence that says why it cannot be a model."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offloadtune.errors import GgufError

MAX_HEADER_BYTES = 128 * 1024**2
"""No header is read beyond this: twenty times Gemma's, whose vocabulary is the largest in use."""

DOWNLOAD_AGAIN = "Download the file again and compare its size and SHA-256 with the publisher's."
_MAGIC = b"GGUF"
_SNIFF_BYTES = 512


def damaged(path: Path, what: str) -> GgufError:
    """The error for a header that contradicts itself; `what` completes "the file is damaged: ..."."""
    return GgufError(f"{path} is damaged: {what}.", hint=DOWNLOAD_AGAIN)


def unreadable(path: Path, error: OSError | ValueError) -> GgufError:
    """The error for a path the operating system refuses."""
    if isinstance(error, FileNotFoundError):
        return GgufError(f"{path} does not exist.", hint="Check the spelling and the folder of the path.")
    if isinstance(error, PermissionError):
        hint = "Give this user the right to read the file and its folder, for example with chmod."
        return GgufError(f"{path} may not be read by this user.", hint=hint)
    reason = getattr(error, "strerror", None) or str(error)
    return GgufError(f"{str(path)!r} cannot be read: {reason}.", hint="Check the path and the disk it is on.")


@contextmanager
def open_header(path: Path) -> Iterator[tuple[mmap.mmap, int]]:
    """The first `MAX_HEADER_BYTES` of a GGUF file, mapped read-only, and the size of the whole file in bytes.

    Raises GgufError for anything that does not start as a GGUF file does.
    """
    _refuse_other_than_file(path)
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            _refuse_other_than_gguf(path, file.read(_SNIFF_BYTES))
            with mmap.mmap(file.fileno(), min(file_bytes, MAX_HEADER_BYTES), access=mmap.ACCESS_READ) as window:
                yield window, file_bytes
    except OSError as error:
        raise unreadable(path, error) from error


def _refuse_other_than_file(path: Path) -> None:
    # Before opening, because opening a named pipe waits for its writer.
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        raise GgufError(f"{path} is a folder, not a file.", hint="Name one of the .gguf files in it.")
    if not stat.S_ISREG(mode):
        raise GgufError(f"{path} is a device or a pipe, not a file.", hint="Name a .gguf file on a disk.")


def _refuse_other_than_gguf(path: Path, start: bytes) -> None:
    if start.startswith(_MAGIC):
        return
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not start:
        raise GgufError(f"{path} is empty.", hint=DOWNLOAD_AGAIN)
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        hint = "Download the file itself: on Hugging Face the address has /resolve/ where the page has /blob/."
        raise GgufError(f"{path} is a web page that was saved instead of the model.", hint=hint)
    if text.startswith(b"version https://git-lfs"):
        hint = "Run `git lfs pull` in its folder to fetch the real file."
        raise GgufError(f"{path} is a Git LFS pointer, not the model it points to.", hint=hint)
    if not any(start):
        sentence = f"{path} is not a GGUF file: it starts with nothing but zeros, like an unfinished download."
        raise GgufError(sentence, hint=DOWNLOAD_AGAIN)
    sentence = f"{path} is not a GGUF file: it starts with {start[:8]!r} instead of b'GGUF'."
    raise GgufError(sentence, hint="Choose a .gguf file, or convert the model with llama.cpp's convert_hf_to_gguf.py.")

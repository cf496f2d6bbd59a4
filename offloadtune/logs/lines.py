"""The lines of a log: bounded, without their ends, decoded; what is no text is None."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from offloadtune.errors import UsageError

MAX_LINE_BYTES = 8 << 20
_PIECE_BYTES = 1 << 16
_FORMS = "name a file of requests as JSON lines or of prompts, one a line, or - for stdin"
_MAGICS = {
    b"GGUF": ("is a GGUF model file, not a log of requests", _FORMS),
    b"\x1f\x8b": ("is compressed", "unpack it, like: zcat LOG | offloadtune workload -"),
    b"(\xb5/\xfd": ("is compressed", "unpack it, like: zstdcat LOG | offloadtune workload -"),
    b"PK\x03\x04": ("is an archive", "unpack it first"),
    codecs.BOM_UTF16_LE: ("is UTF-16, not UTF-8", "convert it, like: iconv -f UTF-16 -t UTF-8"),
    codecs.BOM_UTF16_BE: ("is UTF-16, not UTF-8", "convert it, like: iconv -f UTF-16 -t UTF-8"),
}


class LineError(ValueError):
    """Why a line is no request, as a clause that holds none of its text."""


def lines_of(path: Path) -> Iterator[str | LineError]:
    """Each line, blank ones too, or why it cannot be read. Raises UsageError where the file cannot be, or is no log."""
    try:
        if str(path) == "-":
            yield from _lines(sys.stdin.buffer, "stdin")
            return
        with path.open("rb") as stream:
            yield from _lines(stream, repr(str(path)))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be read"
        raise UsageError(f"{str(path)!r}: {reason}.", hint=_FORMS) from None


def _lines(stream: BinaryIO, label: str) -> Iterator[str | LineError]:
    is_first = True
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if is_first:
            _check_begins_a_log(line, label)
            line = line.removeprefix(codecs.BOM_UTF8)
            is_first = False
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(_PIECE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield LineError(f"it is longer than {MAX_LINE_BYTES >> 20} MiB")
            continue
        try:
            yield line.decode().strip()
        except UnicodeDecodeError:
            yield LineError("it is not UTF-8")


def _check_begins_a_log(line: bytes, label: str) -> None:
    for magic, (what, hint) in _MAGICS.items():
        if line.startswith(magic):
            raise UsageError(f"{label} {what}.", hint=hint)

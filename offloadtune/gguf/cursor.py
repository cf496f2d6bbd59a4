"""A reading position in a mapped header that cannot run past its end."""

from __future__ import annotations

import mmap
import struct
from itertools import repeat
from pathlib import Path
from typing import Any

from offloadtune.errors import GgufError
from offloadtune.gguf.opening import DOWNLOAD_AGAIN, MAX_HEADER_BYTES, damaged

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads little-endian values in sequence; every method raises GgufError instead of leaving the header."""

    def __init__(self, path: Path, window: mmap.mmap, file_bytes: int) -> None:
        self.path = path
        self.position = 0
        self._window = window
        self._end = len(window)
        self._file_bytes = file_bytes

    def u32(self) -> int:
        value: int = self.unpack(_U32)[0]
        return value

    def u64(self) -> int:
        value: int = self.unpack(_U64)[0]
        return value

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        start = self.position
        self.skip(layout.size)
        return layout.unpack_from(self._window, start)

    def text(self, n_bytes: int) -> str:
        """The next `n_bytes` as UTF-8; bytes that are not become U+FFFD."""
        start = self.position
        self.skip(n_bytes)
        return self._window[start : self.position].decode(errors="replace")

    def skip(self, n_bytes: int) -> None:
        if n_bytes > self._end - self.position:
            raise self._past_the_end(n_bytes)
        self.position += n_bytes

    def skip_strings(self, n_strings: int) -> None:
        """Pass over strings by their lengths alone: a vocabulary of 262k in some 12 ms."""
        if n_strings * _U64.size > self._end - self.position:
            raise self._past_the_end(n_strings * _U64.size)
        unpack_from, window, position = _U64.unpack_from, self._window, self.position
        try:
            for _ in repeat(None, n_strings):
                position += 8 + unpack_from(window, position)[0]
        except (struct.error, OverflowError) as error:
            raise self._past_the_end(position - self.position) from error
        self.skip(position - self.position)

    def _past_the_end(self, n_bytes: int) -> GgufError:
        if n_bytes > MAX_HEADER_BYTES or self._end < self._file_bytes:
            return damaged(self.path, f"its header would be longer than {MAX_HEADER_BYTES} bytes")
        sentence = f"{self.path} is cut short: it ends inside its header, after {self._file_bytes} bytes."
        return GgufError(sentence, hint=DOWNLOAD_AGAIN)

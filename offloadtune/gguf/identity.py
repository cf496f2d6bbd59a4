"""`gguf_id`: which content this is, known in a fraction of a second whatever its size."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from offloadtune.errors import GgufError
from offloadtune.gguf.header import Header, read_header
from offloadtune.gguf.opening import DOWNLOAD_AGAIN, unreadable

_N_BLOCKS = 64
_BLOCK_BYTES = 1024**2


def identify(paths: Sequence[Path]) -> str:
    """The `gguf_id` of a model's files, given in shard order: 32 hex digits.

    It digests the total size, every header and 64 blocks of 1 MiB spread evenly over all shards taken end to end
    (everything, up to 64 MiB); names and dates play no part. Raises GgufError when a file cannot be read.
    """
    return identify_headers([read_header(path) for path in paths])


def identify_headers(headers: Sequence[Header]) -> str:
    """`identify` for files whose headers are read already."""
    total_bytes = sum(header.file_bytes for header in headers)
    digest = hashlib.blake2b(total_bytes.to_bytes(8, "little"), digest_size=16)
    first_byte = 0
    for header in headers:
        try:
            with header.path.open("rb") as file:
                for start, n_bytes in _samples(header, first_byte, total_bytes):
                    digest.update(_read(file, header.path, start, n_bytes))
        except OSError as error:
            raise unreadable(header.path, error) from error
        first_byte += header.file_bytes
    return digest.hexdigest()


def sha256_of(paths: Sequence[Path], *, until_s: float = math.inf) -> str | None:
    """SHA-256 of a model's files taken end to end, in shard order; reads them whole. Raises GgufError.

    None where that is not done when the monotonic clock shows `until_s`.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                while content := file.read(_BLOCK_BYTES):
                    if time.monotonic() > until_s:
                        return None
                    digest.update(content)
        except OSError as error:
            raise unreadable(path, error) from error
    return digest.hexdigest()


def _samples(header: Header, first_byte: int, total_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, length) of what is digested of one shard, which begins at `first_byte` of all shards end to end."""
    yield 0, header.header_bytes
    for i_block in range(_N_BLOCKS):
        block = max(0, total_bytes - _BLOCK_BYTES) * i_block // (_N_BLOCKS - 1) - first_byte
        start, end = max(0, block), min(header.file_bytes, block + _BLOCK_BYTES)
        if start < end:
            yield start, end - start


def _read(file: BinaryIO, path: Path, start: int, n_bytes: int) -> bytes:
    file.seek(start)
    content = file.read(n_bytes)
    if len(content) != n_bytes:
        raise GgufError(f"{path} became shorter while it was read.", hint=DOWNLOAD_AGAIN)
    return content

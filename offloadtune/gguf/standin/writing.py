"""A stand-in on its way to the disk: whole under its name or not at all, at the disk's speed, in little memory."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import stat
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from offloadtune.errors import BusyError, ExportError
from offloadtune.gguf.standin.blocks import Bytes, as_stored, random_blocks
from offloadtune.gguf.standin.encoding import Tensor, header, n_bytes_of, padded
from offloadtune.gguf.standin.sources import Parts
from offloadtune.gguf.tables import TYPES_BY_NAME
from offloadtune.units import format_bytes

try:
    import fcntl
except ImportError:  # not on Windows, where two writers of one file end in an error of the second
    fcntl = None  # type: ignore[assignment]

_POOL_BYTES = 8 * 1024**2
_N_POOLS = 24
_N_PLAIN = 1 << 22
_SPARE_BYTES = 64 * 1024**2

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are written."""

_SPREADS: tuple[tuple[re.Pattern[str], float, float], ...] = (
    (re.compile(r"norm"), 1.0, 0.5),
    (re.compile(r"rope_f|scale"), 1.0, 0.0),
    (re.compile(r"ssm_a$"), -1.0, 0.1),
    (re.compile(r"ssm_d$"), 1.0, 0.1),
    (re.compile(r"bias$|sinks"), 0.0, 0.1),
)
"""Part of a name -> middle and spread, of the logarithm where there is a middle, of a tensor that is no matrix.

They leave activations about as large as they were, and as unlike each other as norms of real files make them.
"""


def write(
    path: Path,
    parts: Parts,
    seed: int,
    check: Callable[[Path], None] = lambda _path: None,
    progress: Progress = lambda _done, _all: None,
) -> None:
    """Write `parts` with random weights to `path`, replacing what is there; the same seed makes the same file.

    Until it is whole it is PATH.partial, which goes when writing ends otherwise. `check` sees that file when its header
    stands and its weights do not, and may raise. Raises ExportError where the disk is too small or refuses, BusyError
    where another writes the same file.
    """
    _refuse_other_than_file(path)
    head = header(parts.key_values, parts.tensors)
    n_all = len(head) + sum(padded(n_bytes_of(one)) for one in parts.tensors)
    _refuse_small_disk(path, n_all)
    try:
        with _partial(path) as (file, partial):
            file.write(head)
            file.flush()
            file.truncate(n_all)
            check(partial)
            n_done = len(head)
            for piece in _data(parts.tensors, seed):
                file.write(piece)
                n_done += len(piece)
                progress(n_done, n_all)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}."
        raise ExportError(message, hint="check the folder's permissions and free space") from None


def _refuse_other_than_file(path: Path) -> None:
    """A link, a device or a folder would be lost, or not be replaced when all is written."""
    try:
        is_plain = stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # writing says what is wrong
        return
    if not is_plain:
        raise ExportError(f"{path} is not a plain file.", hint="choose another name with -o")


def _refuse_small_disk(path: Path, n_bytes: int) -> None:
    try:
        free = shutil.disk_usage(path.absolute().parent).free
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}."
        raise ExportError(message, hint="name a file in a folder that exists") from None
    if n_bytes + _SPARE_BYTES > free:
        message = f"{path} needs {format_bytes(n_bytes)}, and its disk has {format_bytes(free)} free."
        raise ExportError(message, hint="free some space, name another disk, or write fewer layers with --layers")


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """PATH.partial, open, empty and ours alone; what raises inside removes it. One that a kill left is taken over."""
    partial = path.with_name(f"{path.name}.partial")
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(partial, flags, 0o644), "r+b") as file:  # noqa: PTH123 - a handle has no path
        _take(file.fileno(), partial)
        try:
            file.truncate(0)
            yield file, partial
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _take(handle: int, partial: Path) -> None:
    """Lock the file, which is still the one of that name. Raises BusyError."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_taken = os.fstat(handle).st_ino == partial.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        is_taken = False
    if not is_taken:
        hint = "wait until it is done, or choose another name with -o"
        raise BusyError(f"{partial} is being written by another process.", hint=hint)


def _data(tensors: Sequence[Tensor], seed: int) -> Iterator[memoryview]:
    """The data section: the bytes of each tensor, padded."""
    pools, chance = _Pools(seed), np.random.default_rng(seed)
    for tensor in tensors:
        n_bytes = n_bytes_of(tensor)
        values = _plain(tensor, chance)
        if values is not None:
            yield values.data
        else:
            yield from pools.pieces(tensor, n_bytes, chance)
        yield memoryview(bytes(padded(n_bytes) - n_bytes))


def _plain(tensor: Tensor, chance: np.random.Generator) -> Bytes | None:
    """The bytes of a tensor that is no matrix of weights; None for one that is."""
    name, type_name, shape = tensor
    n_values = math.prod(shape)
    middle_and_spread = next((rest for pattern, *rest in _SPREADS if pattern.search(name)), None)
    if middle_and_spread is None or TYPES_BY_NAME[type_name].n_block > 1 or n_values > _N_PLAIN:
        return None
    middle, spread = middle_and_spread
    values = chance.standard_normal(n_values, dtype=np.float32)
    values = middle * np.exp(spread * values) if middle else spread * values
    return as_stored(type_name, values.astype(np.float32))


class _Pools:
    """Blocks made once for each type and length of rows, of which tensors take runs from random places."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pools: OrderedDict[tuple[str, int], Bytes] = OrderedDict()

    def pieces(self, tensor: Tensor, n_bytes: int, chance: np.random.Generator) -> Iterator[memoryview]:
        _, type_name, shape = tensor
        pool = self._pool(type_name, shape[0])
        block_bytes = pool.shape[1]
        left = n_bytes // block_bytes
        while left:
            start = int(chance.integers(len(pool)))
            piece = pool[start : start + left]
            yield piece.reshape(-1).data
            left -= len(piece)

    def _pool(self, type_name: str, n_row: int) -> Bytes:
        """Weights whose products with a vector of `n_row` numbers are about as large as those numbers."""
        key = type_name, n_row
        if key not in self._pools:
            if len(self._pools) == _N_POOLS:
                self._pools.popitem(last=False)
            chance = np.random.default_rng([self._seed, zlib.crc32(type_name.encode()), n_row])
            n_blocks = _POOL_BYTES // TYPES_BY_NAME[type_name].block_bytes
            self._pools[key] = random_blocks(type_name, n_blocks, 1 / math.sqrt(n_row), chance)
        self._pools.move_to_end(key)
        return self._pools[key]

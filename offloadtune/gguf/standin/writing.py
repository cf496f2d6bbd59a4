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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from offloadtune.errors import BusyError, ExportError
from offloadtune.gguf.standin.blocks import Bytes, as_stored, random_blocks
from offloadtune.gguf.standin.encoding import Tensor, encoded, header, n_bytes_of, padded, text
from offloadtune.gguf.standin.sources import Parts
from offloadtune.gguf.tables import STANDIN_KEY, TYPES_BY_NAME
from offloadtune.units import format_bytes

try:
    import fcntl
except ImportError:  # not on Windows, which lets nobody replace an open file: of two writers the first to end fails
    fcntl = None  # type: ignore[assignment]

_POOL_BYTES = 8 * 1024**2
_N_POOLS = 24
_N_PLAIN = 1 << 22
_SPARE_BYTES = 64 * 1024**2
_MAGIC = b"GGUF"
_PREAMBLE_BYTES = 24
_MARK = text(STANDIN_KEY) + encoded(value=True)

START_BYTES = _PREAMBLE_BYTES + len(_MARK)
"""How much of a file `is_marked` looks at."""

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
    stands and its weights do not, and may raise. Raises ExportError where the disk is too small or refuses, or the
    partial file is not ours, BusyError where another writes the same file.
    """
    _refuse_other_than_file(path)
    head = header(_mark_first(parts.key_values), parts.tensors)
    n_all = len(head) + sum(padded(n_bytes_of(one)) for one in parts.tensors)
    try:
        with _partial(path) as (file, partial):
            _refuse_small_disk(path, n_all)
            file.write(head)
            file.flush()
            file.truncate(n_all)
            check(partial)
            n_done = len(head)
            for piece in _data(parts.tensors, seed):
                file.write(piece)
                n_done += len(piece)
                progress(n_done, n_all)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}."
        is_gone = isinstance(error, FileNotFoundError)
        hint = "name a file in a folder that exists" if is_gone else "check the folder's permissions and free space"
        raise ExportError(message, hint=hint) from None


def is_marked(start: bytes) -> bool:
    """Whether a file that begins so was written here, be it whole or not."""
    return start.startswith(_MAGIC) and start[_PREAMBLE_BYTES:].startswith(_MARK)


def leftover_bytes(path: Path) -> int:
    """How much of the disk a PATH.partial takes that `write` would take over; 0 where there is none."""
    partial = _partial_path(path)
    try:
        found = partial.lstat()
        if not stat.S_ISREG(found.st_mode):
            return 0
        with partial.open("rb") as file:
            is_ours = is_marked(file.read(START_BYTES))
    except OSError:
        return 0
    # Its size is that of the whole file from the beginning on; of the disk it has what is written.
    n_bytes = 512 * found.st_blocks if hasattr(found, "st_blocks") else found.st_size
    return n_bytes if is_ours else 0


def _mark_first(key_values: Mapping[str, bytes]) -> dict[str, bytes]:
    """The mark of a stand-in before all other keys, so that any beginning of the file shows whose it is."""
    first = {key: value for key, value in key_values.items() if key == STANDIN_KEY}
    return {**first, **key_values}


def _refuse_other_than_file(path: Path) -> None:
    """A link, a device or a folder would be lost, or not be replaced when all is written."""
    try:
        is_plain = stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # writing says what is wrong
        return
    if not is_plain:
        raise ExportError(f"{path} is not a plain file.", hint="move it away, or write under another name")


def _refuse_small_disk(path: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(path.absolute().parent).free
    if n_bytes + _SPARE_BYTES > free:
        needs = f"{format_bytes(n_bytes)}, with {format_bytes(_SPARE_BYTES)} to spare"
        message = f"{path} needs {needs}, and its disk has {format_bytes(free)} free."
        raise ExportError(message, hint="free some space, use another disk, or write a smaller stand-in")


def _partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """PATH.partial, open, empty and ours alone; it becomes PATH at the end, and what raises inside removes it.

    One of ours that a kill left is taken over.
    """
    partial = _partial_path(path)
    _refuse_other_than_file(partial)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(partial, flags, 0o644), "r+b") as file:  # noqa: PTH123 - a handle has no path
        _take(file.fileno(), partial)
        _refuse_foreign(file, partial)
        try:
            file.truncate(0)
            yield file, partial
            file.flush()
            os.fsync(file.fileno())
            _let_go(file)
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):  # what ended the writing is to be told, not this
                _let_go(file)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def _let_go(file: BinaryIO) -> None:
    """Windows neither renames nor removes an open file; elsewhere the lock must outlast both."""
    if fcntl is None:
        file.close()


def _take(handle: int, partial: Path) -> None:
    """Lock the file, which is still the one of that name. Raises BusyError."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_taken = os.fstat(handle).st_ino == partial.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        is_taken = False
    if not is_taken:
        raise BusyError(f"{partial} is being written by another process.", hint="wait until it is done")


def _refuse_foreign(file: BinaryIO, partial: Path) -> None:
    """Somebody's unfinished download may have the same name; one of ours is empty or marked."""
    start = file.read(START_BYTES)
    if start and not is_marked(start):
        message = f"{partial} is in the way, and seems to be another program's unfinished file."
        raise ExportError(message, hint="remove it if nobody needs it, or write under another name")
    file.seek(0)


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

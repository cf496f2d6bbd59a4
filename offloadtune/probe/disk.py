"""Where a file lies and how fast it is read from there.

The mount is found in /proc/self/mountinfo, the medium below it in /sys. Reading is timed as loading a model reads:
in order, through the page cache, from the middle of the file, since its header is often cached by others.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from offloadtune.hardware import Disk
from offloadtune.probe.facts import Fact, known, notes_in
from offloadtune.probe.host import Door
from offloadtune.records import Note
from offloadtune.units import MIB

BLOCK_BYTES = 4 * MIB
MOST_BYTES = 256 * MIB
WHOLE_BYTES = 64 * MIB
DEADLINE_S = 0.7
_COLD_FRAC = 0.02
_N_LAYERS_MOST = 8  # of block devices: encryption on volumes on arrays on partitions

_NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs"),
    *("smb2", "smb3", "smbfs", "wekafs"),
    *(f"fuse.{name}" for name in ("ceph", "gcsfuse", "glusterfs", "juicefs", "mount-s3", "rclone", "s3fs", "sshfs")),
}
_WINDOWS_SIDE = {"9p", "drvfs", "virtiofs"}
_MEMORY = {"tmpfs", "ramfs"}
_UNTOLD = {
    "overlay": "the layers of a container, which may lie on several disks",
    "virtiofs": "a folder of the machine that this virtual machine runs on",
    "zfs": "a pool of disks, and Linux does not tell which",
}
_DEVICE_KINDS = {"nbd": "network", "ram": "memory", "rbd": "network", "zram": "memory"}
_UNTELLING_DEVICES = {
    "loop": "an image file on another disk",
    "mmcblk": "a memory card or chip, and these differ too much to be one kind",
    "vd": "a virtual machine's disk, and the host does not tell what it is",
    "xvd": "a virtual machine's disk, and the host does not tell what it is",
}
_VIRTUAL_MODEL = re.compile(r"qemu|vbox|virtual|vmware|persistent ?disk", re.IGNORECASE)
_SLOWEST_FIRST = ("network", "hdd", "ssd", "nvme", "memory")

Drop = Callable[[Path, int, int], str]
"""Takes the bytes from the first number up to the second out of the page cache, see `read_disk`."""

Share = Callable[[Path, int, int], float | None]
"""How much of these bytes is in the page cache, None where the system does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of mountinfo; `device` is "major:minor"."""

    device: str
    point: str
    filesystem: str
    source: str


def read_disk(
    path: Path,
    door: Door,
    drop_cached: Drop | None = None,
    cached_frac: Share | None = None,
    *,
    untimed: str = "",
) -> Disk:
    """What the file at `path` lies on, and on a live machine how fast it is read, in about two seconds at most.

    `drop_cached` takes the part that is read out of the page cache and says why it is not out, "" where it is; without
    it a cold read is timed only where `cached_frac` says that this part is not in the cache. `untimed` is a reason to
    read nothing. Raises nothing for what file and disk do: what is not known is None, with a Note.
    """
    resolved, device = _found(path, door)
    mount = mount_of(str(resolved), door.text("/proc/self/mountinfo"), device)
    kind = mount if isinstance(mount, Note) else _kind(mount, door)
    place = known(mount)
    in_memory = known(kind) == "memory"
    cold, warm, n_bytes = (
        _unread(untimed) if untimed else _speeds(path, door, drop_cached, cached_frac, in_memory=in_memory)
    )
    return Disk(
        path=path,
        mount_point=place.point if place else None,
        filesystem=place.filesystem if place else None,
        kind=known(kind),
        cold_bytes_per_s=known(cold),
        warm_bytes_per_s=known(warm),
        n_bytes_read=n_bytes,
        notes=notes_in(kind, cold, warm),
    )


def _found(path: Path, door: Door) -> tuple[Path, str | None]:
    """The file behind all links, and "major:minor" of what it is on; the path as it stands where that is not known."""
    if door.is_recorded:
        return path, None
    try:
        resolved = path.resolve()
        device = resolved.stat().st_dev
        return resolved, f"{os.major(device)}:{os.minor(device)}"
    except (OSError, ValueError, RuntimeError, AttributeError):  # a loop of links; no such numbers on Windows
        return path.absolute(), None


# --- the mount -----------------------------------------------------------------------------------------------------


def mount_of(path: str, mountinfo: str | None, device: str | None = None) -> Fact[Mount]:
    """The mount that holds `path`, an absolute path without links.

    Of the mounts above it the lowest counts, and of several in one place the last; one that another hides is told by
    the file's own `device`.
    """
    if mountinfo is None:
        return Note(subject="disk.kind", reason="Only Linux tells what a file lies on.")
    above = [one for one in parse_mountinfo(mountinfo) if _is_below(path, one.point)]
    if not above:
        return Note(subject="disk.kind", reason="No mounted file system holds this path.")
    same = [one for one in above if one.device == device]
    return max(enumerate(same or above), key=lambda entry: (len(entry[1].point), entry[0]))[1]


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mounts in the order they were made; lines that are no mount are left out."""
    mounts = []
    for line in text.split("\n"):  # a name may hold the rarer ends of lines
        before, separator, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if separator and len(fields) >= 6 and len(tail) >= 2:
            mounts.append(
                Mount(device=fields[2], point=_unescape(fields[4]), filesystem=tail[0], source=_unescape(tail[1]))
            )
    return tuple(mounts)


def _unescape(field: str) -> str:
    """Blanks, newlines and backslashes stand there as octal numbers."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), field)


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point if point.endswith("/") else f"{point}/")


# --- the medium ----------------------------------------------------------------------------------------------------


def _kind(mount: Mount, door: Door) -> Fact[str]:
    name = mount.filesystem
    if name in _WINDOWS_SIDE and "microsoft" in (door.text("/proc/sys/kernel/osrelease") or "").lower():
        return "wsl_mount"
    if name in _NETWORK:
        return "network"
    if name in _MEMORY:
        return "memory"
    if name in _UNTOLD:
        return _untold(f"It is on {name}: {_UNTOLD[name]}.")
    block = _block_device(mount, door)
    return _device_kind(block, door) if block else _untold(f"It is on {name}, which names no disk.")


def _block_device(mount: Mount, door: Door) -> str | None:
    """Name of the block device in /sys/class/block. Some file systems have a number of their own but name theirs."""
    uevent = door.text(f"/sys/dev/block/{mount.device}/uevent") or ""
    found = re.search(r"^DEVNAME=(\S+)$", uevent, re.MULTILINE)
    name = found[1] if found else mount.source.removeprefix("/dev/") if mount.source.startswith("/dev/") else ""
    if name.startswith("mapper/"):
        name = _mapped(name.removeprefix("mapper/"), door)
    name = name.replace("/", "!")
    return name if name and door.names(f"/sys/class/block/{name}") else None


def _mapped(name: str, door: Door) -> str:
    """What the device mapper's `name` is called below /sys: "dm-0"."""
    numbered = (one for one in door.names("/sys/class/block") if one.startswith("dm-"))
    return next((one for one in numbered if (door.text(f"/sys/class/block/{one}/dm/name") or "").strip() == name), "")


def _device_kind(name: str, door: Door, n_layers_most: int = _N_LAYERS_MOST) -> Fact[str]:
    """The kind of a block device; one made of others is as its slowest."""
    folder = f"/sys/class/block/{name}"
    below = door.names(f"{folder}/slaves")
    if below and n_layers_most:
        kinds = [_device_kind(one, door, n_layers_most - 1) for one in below]
        notes = notes_in(*kinds)
        return notes[0] if notes else min(kinds, key=lambda kind: _SLOWEST_FIRST.index(str(kind)))
    if door.text(f"{folder}/partition") is not None:
        folder += "/.."  # /sys/class/block holds links: the folder above is that of the whole disk
    family = re.split(r"[0-9]", name, maxsplit=1)[0]
    if family.startswith("nvme"):
        return "nvme"
    if family in _DEVICE_KINDS:
        return _DEVICE_KINDS[family]
    for prefix, words in _UNTELLING_DEVICES.items():
        if family.startswith(prefix):
            return _untold(f"It is on {name}: {words}.")
    model = (door.text(f"{folder}/device/model") or "") + (door.text(f"{folder}/device/vendor") or "")
    if _VIRTUAL_MODEL.search(model):
        return _untold(f"It is on {name}: {_UNTELLING_DEVICES['vd']}.")
    kinds_by_flag = {"0": "ssd", "1": "hdd"}
    flag = (door.text(f"{folder}/queue/rotational") or "").strip()
    return kinds_by_flag.get(flag) or _untold(f"It is on {name}, and Linux does not tell what that is.")


def _untold(reason: str) -> Note:
    return Note(subject="disk.kind", reason=reason)


# --- the speed -----------------------------------------------------------------------------------------------------


class _NotTimedError(Exception):
    """The text is a sentence."""


def _speeds(
    path: Path,
    door: Door,
    drop_cached: Drop | None,
    cached_frac: Share | None,
    *,
    in_memory: bool,
) -> tuple[Fact[float], Fact[float], int | None]:
    """Cold and warm bytes per second, and how many bytes were read for the first of them."""
    if door.is_recorded:
        return _unread("The machine is a recorded one; only a live one can be timed.")
    try:
        begin, end = _span(path)
        refusal = "It lies in memory, so that no read is a cold one." if in_memory else ""
        refusal = refusal or _why_not_cold(path, begin, end, drop_cached, cached_frac)
        with path.open("rb", buffering=0) as stream:
            if not refusal and _has_hole(stream, begin, end):
                refusal = "The file has holes there, which no disk reads."
            n_bytes, cold = _read(stream, begin, end)
            n_warm, warm = _read(stream, begin, begin + n_bytes)
    except _NotTimedError as error:
        return _unread(str(error))
    except (OSError, ValueError) as error:
        return _unread(f"It cannot be read: {(error.strerror if isinstance(error, OSError) else None) or error}.")
    if refusal:
        return Note(subject="disk.cold_bytes_per_s", reason=refusal), warm, n_warm
    return cold, warm, n_bytes


def _span(path: Path) -> tuple[int, int]:
    """Where to begin and to end reading."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise _NotTimedError("It is a folder or a device, not a file.")
    size = found.st_size
    if size == 0:
        raise _NotTimedError("The file is empty.")
    begin = 0 if size < WHOLE_BYTES else size // 2 // BLOCK_BYTES * BLOCK_BYTES
    return begin, min(size, begin + MOST_BYTES)


def _why_not_cold(path: Path, begin: int, end: int, drop_cached: Drop | None, cached_frac: Share | None) -> str:
    if drop_cached:
        why = drop_cached(path, begin, end)
        return f"The file cannot be made cold: {why}." if why else ""
    cached = cached_frac(path, begin, end) if cached_frac else None
    if cached is None:
        return "The file was not taken out of the cache, so that no read is surely a cold one."
    return "" if cached <= _COLD_FRAC else f"{cached:.0%} of the file is in the cache, and it was left there."


def _has_hole(stream: FileIO, begin: int, end: int) -> bool:
    if not hasattr(os, "SEEK_HOLE"):
        return False
    with contextlib.suppress(OSError):  # a file system that does not tell
        return os.lseek(stream.fileno(), begin, os.SEEK_HOLE) < end
    return False


def _read(stream: FileIO, begin: int, end: int) -> tuple[int, float]:
    """Bytes read and bytes per second. The deadline stands between blocks: a block under way cannot be left."""
    block = memoryview(bytearray(BLOCK_BYTES))
    stream.seek(begin)
    n_read = 0
    started_s = time.perf_counter()
    while begin + n_read < end and time.perf_counter() - started_s < DEADLINE_S:
        n = stream.readinto(block[: end - begin - n_read])
        if not n:
            break
        n_read += n
    if not n_read:
        raise _NotTimedError("The file became shorter while it was read.")
    return n_read, n_read / max(time.perf_counter() - started_s, 1e-9)


def _unread(reason: str) -> tuple[Fact[float], Fact[float], int | None]:
    cold, warm = (Note(subject=f"disk.{which}_bytes_per_s", reason=reason) for which in ("cold", "warm"))
    return cold, warm, None

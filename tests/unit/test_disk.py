"""Where a file lies, on recorded trees of /proc and /sys, and how it is read, on the machine that runs the tests."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.engine import cached_frac, drop_cached
from offloadtune.hardware import Disk
from offloadtune.probe import Door, disk
from offloadtune.probe.disk import mount_of, parse_mountinfo, read_disk
from offloadtune.records import Note
from offloadtune.units import MIB

ROOT_MOUNT = "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw"
WSL = "5.15.153.1-microsoft-standard-WSL2\n"
needs_linux = pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="only Linux has mountinfo")


def mountinfo(*mounts: str) -> str:
    """Lines "MAJ:MIN POINT FILESYSTEM SOURCE" as mountinfo has them, the file system of the root above."""
    lines = [ROOT_MOUNT]
    for i, mount in enumerate(mounts):
        device, point, filesystem, source = mount.split(" ")
        lines.append(f"{30 + i} 22 {device} / {point} rw,nosuid shared:{i} master:2 - {filesystem} {source} rw,x=y")
    return "\n".join(lines) + "\n"


class Tree:
    """A recorded /proc and /sys with real links, as the kernel makes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def mounts(self, *mounts: str) -> None:
        self.write("proc/self/mountinfo", mountinfo(*mounts))

    def block(self, device: str, name: str, *, below: str = "", slaves: tuple[str, ...] = (), **files: str) -> None:
        """A block device; a partition stands `below` its disk."""
        folder = f"sys/devices/pci/block/{below}/{name}" if below else f"sys/devices/pci/block/{name}"
        self.write(f"{folder}/uevent", f"MAJOR=1\nDEVNAME={name}\nDEVTYPE=disk\n")
        if below:
            self.write(f"{folder}/partition", "1\n")
        for slave in slaves:
            self.write(f"{folder}/slaves/{slave}/uevent", "")
        for path, text in files.items():
            self.write(f"{folder}/{path.replace('__', '/')}", text)
        for link in (f"sys/dev/block/{device}", f"sys/class/block/{name}"):
            (self.root / link).parent.mkdir(parents=True, exist_ok=True)
            (self.root / link).symlink_to(self.root / folder)

    def disk_of(self, path: str) -> Disk:
        return read_disk(Path(path), Door(self.root))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def kind_note(found: Disk) -> str:
    assert found.kind is None
    (reason,) = (note.reason for note in found.notes if note.subject == "disk.kind")
    return reason


# --- the mount -----------------------------------------------------------------------------------------------------


def test_the_lowest_mount_above_the_file_holds_it(tree: Tree) -> None:
    tree.mounts("0:40 /home nfs4 server:/home", "0:41 /home/user/models cifs //nas/models", "0:42 /homestead tmpfs x")
    for path, point in [
        ("/home/user/models/a.gguf", "/home/user/models"),
        ("/home/user/models", "/home/user/models"),
        ("/home/user/models2/a.gguf", "/home"),
        ("/homestead/a.gguf", "/homestead"),
        ("/homes/a.gguf", "/"),
    ]:
        assert tree.disk_of(path).mount_point == point


def test_of_mounts_in_one_place_the_last_counts() -> None:
    text = mountinfo("0:40 /models nfs4 server:/a", "0:41 /models tmpfs tmpfs")
    found = mount_of("/models/a.gguf", text)
    assert not isinstance(found, Note)
    assert found.filesystem == "tmpfs"


def test_a_mount_hidden_by_a_later_one_is_told_by_the_files_own_device() -> None:
    text = mountinfo("0:40 /data/models nfs4 server:/a", "8:17 /data ext4 /dev/sdb1")
    hidden, seen = mount_of("/data/models/a", text), mount_of("/data/models/a", text, "8:17")
    assert not isinstance(hidden, Note)
    assert not isinstance(seen, Note)
    assert (hidden.point, seen.point) == ("/data/models", "/data")
    unlisted = mount_of("/data/models/a", text, "0:99")  # a subvolume has a number that stands nowhere
    assert not isinstance(unlisted, Note)
    assert unlisted.point == "/data/models"


def test_octal_numbers_stand_for_blanks_and_worse(tree: Tree) -> None:
    tree.mounts(r"0:40 /mnt/my\040models\011and\134more\012x nfs server:/my\040models")
    found = tree.disk_of("/mnt/my models\tand\\more\nx/a.gguf")
    assert (found.mount_point, found.kind) == ("/mnt/my models\tand\\more\nx", "network")


@given(st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for mount in parse_mountinfo(text):
        assert mount.filesystem is not None
    mount_of("/models/a.gguf", text)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1).filter(lambda name: name != ".."))
def test_every_name_of_a_mount_is_found_again(name: str) -> None:
    escaped = "".join(f"\\{ord(one):03o}" if one in " \t\n\\" else one for one in name)
    found = mount_of(f"/mnt/{name}/a.gguf", mountinfo() + f"40 22 0:50 / /mnt/{escaped} rw - nfs4 server:/x rw\n")
    assert not isinstance(found, Note)
    assert found.point == f"/mnt/{name}"


def test_without_mountinfo_a_note_says_so(tmp_path: Path) -> None:
    found = read_disk(Path("/models/a.gguf"), Door(tmp_path))
    assert (found.mount_point, found.filesystem) == (None, None)
    assert kind_note(found) == "Only Linux tells what a file lies on."


# --- the medium ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filesystem", "osrelease", "kind"),
    [
        ("nfs4", "6.8.0", "network"),
        ("smb3", "6.8.0", "network"),
        ("fuse.sshfs", "6.8.0", "network"),
        ("9p", "6.8.0", "network"),
        ("9p", WSL, "wsl_mount"),
        ("drvfs", WSL, "wsl_mount"),
        ("virtiofs", WSL, "wsl_mount"),
        ("tmpfs", "6.8.0", "memory"),
        ("tmpfs", WSL, "memory"),
        ("nfs", WSL, "network"),
    ],
)
def test_file_systems_that_tell_their_medium(tree: Tree, filesystem: str, osrelease: str, kind: str) -> None:
    tree.write("proc/sys/kernel/osrelease", osrelease)
    tree.mounts(f"0:40 /mnt/d {filesystem} source")
    assert tree.disk_of("/mnt/d/a.gguf").kind == kind


@pytest.mark.parametrize(
    ("filesystem", "word"),
    [("overlay", "container"), ("zfs", "pool"), ("virtiofs", "virtual machine"), ("fuse.mergerfs", "names no disk")],
)
def test_file_systems_that_do_not_tell(tree: Tree, filesystem: str, word: str) -> None:
    tree.mounts(f"0:40 /mnt/d {filesystem} source")
    found = tree.disk_of("/mnt/d/a.gguf")
    assert word in kind_note(found)
    assert found.filesystem == filesystem


def test_a_partition_is_as_its_disk(tree: Tree) -> None:
    tree.block("8:0", "sda", queue__rotational="1\n", device__model="WDC WD40EZRZ\n")
    tree.block("8:1", "sda1", below="sda")
    tree.block("8:16", "sdb", queue__rotational="0\n", device__model="Samsung SSD 870\n")
    tree.block("8:17", "sdb1", below="sdb")
    tree.block("259:0", "nvme0n1", queue__rotational="0\n")
    tree.block("259:2", "nvme0n1p2", below="nvme0n1")
    tree.mounts("8:1 /hdd ext4 /dev/sda1", "8:17 /ssd xfs /dev/sdb1", "8:16 /whole xfs /dev/sdb")
    kinds = [tree.disk_of(f"{place}/a.gguf").kind for place in ("/hdd", "/ssd", "/whole", "")]
    assert kinds == ["hdd", "ssd", "ssd", "nvme"]


def test_a_device_made_of_others_is_as_its_slowest(tree: Tree) -> None:
    tree.block("8:0", "sda", queue__rotational="1\n")
    tree.block("8:1", "sda1", below="sda")
    tree.block("259:0", "nvme0n1")
    tree.block("259:1", "nvme0n1p1", below="nvme0n1")
    tree.block("9:0", "md0", slaves=("nvme0n1p1", "sda1"))
    tree.block("253:0", "dm-0", slaves=("nvme0n1p1",))
    tree.block("253:1", "dm-1", slaves=("dm-0",))
    tree.block("253:2", "dm-2", slaves=("md0", "dm-1"))
    tree.mounts("253:1 /crypt ext4 /dev/mapper/x", "9:0 /array ext4 /dev/md0", "253:2 /both ext4 /dev/mapper/y")
    assert [tree.disk_of(f"{place}/a").kind for place in ("/crypt", "/array", "/both")] == ["nvme", "hdd", "hdd"]


def test_devices_made_of_each_other_come_to_an_end(tree: Tree) -> None:
    tree.block("253:0", "dm-0", slaves=("dm-1",))
    tree.block("253:1", "dm-1", slaves=("dm-0",))
    tree.mounts("253:0 /odd ext4 /dev/mapper/x")
    assert kind_note(tree.disk_of("/odd/a"))


def test_a_file_system_with_a_number_of_its_own_names_its_disk(tree: Tree) -> None:
    tree.block("259:1", "nvme0n1p1", below="nvme0n1")
    tree.mounts("0:33 /sub btrfs /dev/nvme0n1p1", "0:34 /gone btrfs /dev/sdz1", "0:35 /odd fuseblk /dev/../../etc")
    assert tree.disk_of("/sub/a").kind == "nvme"
    tree.block("253:0", "dm-0", slaves=("nvme0n1p1",), dm__name="luks-1\n")
    tree.mounts(
        "0:36 /crypt btrfs /dev/mapper/luks-1", "0:34 /gone btrfs /dev/sdz1", "0:35 /odd fuseblk /dev/../../etc"
    )
    assert tree.disk_of("/crypt/a").kind == "nvme"
    assert "names no disk" in kind_note(tree.disk_of("/gone/a"))
    assert "names no disk" in kind_note(tree.disk_of("/odd/a"))


@pytest.mark.parametrize(
    ("name", "model", "word"),
    [
        ("vda", "", "virtual machine"),
        ("xvdf", "", "virtual machine"),
        ("sda", "QEMU HARDDISK", "virtual machine"),
        ("sda", "Virtual Disk", "virtual machine"),
        ("mmcblk0", "", "memory card"),
        ("loop3", "", "image file"),
    ],
)
def test_disks_that_may_be_anything_are_not_guessed(tree: Tree, name: str, model: str, word: str) -> None:
    tree.block("8:0", name, queue__rotational="1\n", device__model=model)
    tree.mounts(f"8:0 /d ext4 /dev/{name}")
    assert word in kind_note(tree.disk_of("/d/a"))


@pytest.mark.parametrize(("name", "kind"), [("nbd0", "network"), ("rbd1", "network"), ("zram0", "memory")])
def test_block_devices_that_are_no_disk(tree: Tree, name: str, kind: str) -> None:
    tree.block("43:0", name, queue__rotational="0\n")
    tree.mounts(f"43:0 /d ext4 /dev/{name}")
    assert tree.disk_of("/d/a").kind == kind


def test_a_recorded_machine_is_not_timed(tree: Tree) -> None:
    tree.mounts("0:40 /d tmpfs tmpfs")
    found = tree.disk_of("/d/a")
    assert (found.cold_bytes_per_s, found.warm_bytes_per_s, found.n_bytes_read) == (None, None, None)
    assert [note.subject for note in found.notes] == ["disk.cold_bytes_per_s", "disk.warm_bytes_per_s"]
    assert all("recorded" in note.reason for note in found.notes)


# --- the speed -----------------------------------------------------------------------------------------------------


def reason_of(found: Disk, which: str) -> str:
    (reason,) = (note.reason for note in found.notes if note.subject == f"disk.{which}_bytes_per_s")
    return reason


@pytest.fixture
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests' files lie, they count as on a disk."""
    monkeypatch.setattr(disk, "_kind", lambda _mount, _door: "ssd")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.gguf"
    path.write_bytes(os.urandom(MIB) * 5 + b"end")
    return path


@needs_linux
@pytest.mark.usefixtures("on_a_disk")
def test_a_dropped_file_has_both_speeds(file: Path) -> None:
    dropped: list[tuple[Path, int, int]] = []

    def drop(path: Path, begin: int, end: int) -> str:
        dropped.append((path, begin, end))
        return ""

    found = read_disk(file, Door(), drop)
    assert dropped == [(file, 0, 5 * MIB + 3)]
    assert found.notes == ()
    assert found.kind == "ssd"
    assert (found.cold_bytes_per_s or 0) > 0
    assert (found.warm_bytes_per_s or 0) > 0
    assert found.n_bytes_read == 5 * MIB + 3
    assert found.mount_point is not None
    assert file.resolve().is_relative_to(found.mount_point)


@pytest.mark.usefixtures("on_a_disk")
@pytest.mark.parametrize(
    ("drop", "cached", "word"),
    [
        (lambda *_span: "40% of the file stays in the cache", None, "40% of the file stays"),
        (None, None, "was not taken out"),
        (None, lambda *_span: None, "was not taken out"),
        (None, lambda *_span: 0.5, "50%"),
        (None, lambda *_span: 0.0, None),
    ],
)
def test_a_read_is_cold_only_where_that_is_known(
    file: Path,
    drop: disk.Drop | None,
    cached: disk.Share | None,
    word: str | None,
) -> None:
    found = read_disk(file, Door(), drop, cached)
    assert (found.warm_bytes_per_s or 0) > 0
    assert found.n_bytes_read == file.stat().st_size
    if word is None:
        assert (found.cold_bytes_per_s or 0) > 0
    else:
        assert found.cold_bytes_per_s is None
        assert word in reason_of(found, "cold")


def test_a_file_in_memory_is_not_dropped_and_never_cold(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_kind", lambda _mount, _door: "memory")
    found = read_disk(file, Door(), lambda *_span: pytest.fail("dropped"))
    assert found.cold_bytes_per_s is None
    assert "memory" in reason_of(found, "cold")
    assert (found.warm_bytes_per_s or 0) > 0


@needs_linux
@pytest.mark.usefixtures("on_a_disk")
def test_a_large_file_is_read_from_its_middle_and_holes_are_not_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "DEADLINE_S", 60.0)
    path = tmp_path / "large.gguf"
    with path.open("wb") as made:
        made.truncate(120 * MIB)
    assert disk._span(path) == (60 * MIB, 120 * MIB)
    spans: list[tuple[int, int]] = []

    def drop(_path: Path, begin: int, end: int) -> str:
        spans.append((begin, end))
        return ""

    found = read_disk(path, Door(), drop)
    assert spans == [(60 * MIB, 120 * MIB)]  # the user's file stays as warm as it was but for what is read
    assert found.n_bytes_read == 60 * MIB
    with path.open("rb", buffering=0) as stream:
        has_hole = disk._has_hole(stream, 60 * MIB, 120 * MIB)
    assert (found.cold_bytes_per_s is None) == has_hole
    assert not has_hole or "holes" in reason_of(found, "cold")


@pytest.mark.parametrize(
    ("size", "span"),
    [
        (1, (0, 1)),
        (64 * MIB - 1, (0, 64 * MIB - 1)),
        (64 * MIB, (32 * MIB, 64 * MIB)),
        (70 * MIB, (32 * MIB, 70 * MIB)),
        (40960 * MIB, (20480 * MIB, 20736 * MIB)),
    ],
)
def test_the_part_that_is_read(size: int, span: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "sized.gguf"
    with path.open("wb") as stream:
        stream.truncate(size)
    assert disk._span(path) == span


@pytest.mark.usefixtures("on_a_disk")
def test_a_slow_disk_is_left_at_the_deadline(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks half a second a reading, one block fits before the deadline."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) * 0.5)
    found = read_disk(file, Door(), lambda *_span: "")
    assert found.n_bytes_read == disk.BLOCK_BYTES
    assert found.cold_bytes_per_s == disk.BLOCK_BYTES / 1.5


def test_what_cannot_be_read_has_a_note(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    for path, word in [
        (tmp_path / "missing.gguf", "No such file"),
        (tmp_path, "a folder"),
        (empty, "empty"),
        (pipe, "a folder or a device"),
        (loop, "symbolic links"),
        (Path("nul\0byte"), "null"),
    ]:
        found = read_disk(path, Door(), lambda *_span: pytest.fail("dropped"))
        assert (found.cold_bytes_per_s, found.warm_bytes_per_s, found.n_bytes_read) == (None, None, None)
        assert word in reason_of(found, "cold")
        assert reason_of(found, "cold") == reason_of(found, "warm")


@pytest.mark.usefixtures("on_a_disk")
def test_a_file_that_vanishes_or_shrinks_meanwhile_has_a_note(file: Path) -> None:
    def cut(path: Path, *_span: int) -> str:
        os.truncate(path, 0)
        return ""

    def remove(path: Path, *_span: int) -> str:
        path.unlink()
        return ""

    assert "shorter" in reason_of(read_disk(file, Door(), cut), "cold")
    file.write_bytes(b"x" * MIB)
    assert "No such file" in reason_of(read_disk(file, Door(), remove), "cold")


def test_a_failing_read_has_a_note(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> tuple[int, float]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "_read", fail)
    assert reason_of(read_disk(file, Door()), "warm") == "It cannot be read: Input/output error."


def test_untimed_reads_nothing_but_where_the_file_lies(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_kind", lambda _mount, _door: "network")
    monkeypatch.setattr(disk, "_span", lambda _path: pytest.fail("looked at"))
    found = read_disk(file, Door(), lambda *_span: pytest.fail("dropped"), untimed="Measuring was not asked for.")
    assert found.kind == "network"
    assert (found.cold_bytes_per_s, found.warm_bytes_per_s) == (None, None)
    assert reason_of(found, "cold") == "Measuring was not asked for."


@needs_linux
def test_only_the_span_that_is_read_leaves_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with path.open("wb") as stream:
        stream.write(bytes(8 * MIB))
        stream.flush()
        os.fsync(stream.fileno())
    if cached_frac(path) != 1.0:
        pytest.skip("this file system keeps no cache that is told of")
    refusal = drop_cached(path, 4 * MIB, 6 * MIB)
    if cached_frac(path) == 1.0:
        pytest.skip("nothing leaves the cache of this file system")
    assert refusal == ""
    spans = ((0, 4 * MIB, 1.0), (4 * MIB, 6 * MIB, 0.0), (6 * MIB, 8 * MIB, 1.0), (0, 8 * MIB, 0.75))
    for begin, end, frac in spans:
        assert cached_frac(path, begin, end) == pytest.approx(frac, abs=0.05)

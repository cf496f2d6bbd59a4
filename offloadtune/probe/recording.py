"""Write this machine down, so that `Door(FOLDER)` replays it: `python -m offloadtune.probe.recording FOLDER`.

What the probe asks for is asked of the machine, written down without what names a person or tells one machine from
others, and only then answered, from what was written: the probe reads while it records what it will read later.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import getpass
import importlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offloadtune.conditions import Conditions
from offloadtune.errors import OffloadTuneError, ProbeError
from offloadtune.hardware import Hardware
from offloadtune.probe.conditions import read_conditions
from offloadtune.probe.host import THIS_MACHINE, Door, Moment, System
from offloadtune.probe.inventory import probe_host
from offloadtune.records import Host

NAMES_OF_NOBODY = frozenset({"", "admin", "localhost", "pi", "root", "ubuntu", "user"})
"""Accounts and machines that are called so by whoever made the system."""

OTHER_PROCESS = "process"

_SERIAL_KEY = r"[\w .\t-]*(?:serial|uuid|udid|part.?number|asset.?tag)[\w .\t-]*"
_SERIALS = (
    re.compile(rf'(?P<key>"{_SERIAL_KEY}"\s*:\s*)(?P<value>"[^"\n]+"|[0-9]+)', re.IGNORECASE),  # JSON
    re.compile(rf"^(?P<key>{_SERIAL_KEY}[=:][ \t]*)(?P<value>\S[^\n]*)$", re.IGNORECASE | re.MULTILINE),
)
_DASH = r"(?:[-_]|\\x2d)"  # of a UUID; the others are how systemd spells it in the name of a group
_NUMBERS = (
    re.compile(rf"[0-9a-f]{{8}}(?:{_DASH}[0-9a-f]{{4}}){{3}}{_DASH}[0-9a-f]{{12}}", re.IGNORECASE),
    re.compile(r"(?<![0-9a-f:-])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![0-9a-f:-])", re.IGNORECASE),  # network cards
    re.compile(r"[0-9a-f]{32,}", re.IGNORECASE),  # containers, machines
)
_REMOTE_MOUNT = re.compile(r"^(.* - (?:afs|ceph|cifs|fuse\.\S+|glusterfs|nfs4?|smb3|smbfs) ).*$", re.MULTILINE)
_STAND_IN = re.compile(r"removed([0-9]+)")
_PROCESS_FILE = re.compile(r"/proc/([0-9]+)/(?:task/[0-9]+/)?(stat|comm)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that the probe reads of a machine but its speeds. The clock of the conditions stands at 0."""

    host: Host
    conditions: Conditions
    hardware: Hardware | None


@dataclass(slots=True)
class Scrubber:
    """Puts stand-ins for serial numbers, UUIDs, addresses of network cards and `names`; the same for the same."""

    names: Collection[str] = ()
    _removed: list[str] = field(default_factory=list)

    def clean(self, text: str) -> str:
        """`text` without them. Servers that folders are mounted from are left out too."""
        text = _REMOTE_MOUNT.sub(r"\1removed rw", text)
        for pattern in _SERIALS:
            text = pattern.sub(self._without_value, text)
        for pattern in (*_NUMBERS, *self._name_patterns()):
            text = pattern.sub(lambda found: self._stand_in(found[0]), text)
        return text

    def restore(self, path: str) -> str:
        """`path` as it is on the machine: the probe made it out of a cleaned text."""
        known = len(self._removed)
        return _STAND_IN.sub(lambda found: self._removed[int(found[1])] if int(found[1]) < known else found[0], path)

    def _name_patterns(self) -> Iterable[re.Pattern[str]]:
        for name in sorted(self.names, key=len, reverse=True):
            yield re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])")

    def _without_value(self, found: re.Match[str]) -> str:
        value = self._stand_in(found["value"].strip('"'))
        return found["key"] + (f'"{value}"' if found["key"].startswith('"') else value)

    def _stand_in(self, value: str) -> str:
        if _STAND_IN.fullmatch(value):
            return value
        if value not in self._removed:
            self._removed.append(value)
        return f"removed{self._removed.index(value)}"


@dataclass(frozen=True, slots=True)
class RecordingDoor(Door):
    """Opens on a record in the making, and asks `live` for what is not in it yet.

    A name in a listing of which no more is asked is an empty file. Bytes are not kept: the tables of the firmware are
    full of serial numbers. What cannot be written is in `troubles`: those who read machines take a missing answer for
    one, and would go on.
    """

    live: Door = THIS_MACHINE
    scrubber: Scrubber = field(default_factory=Scrubber, compare=False)
    troubles: list[Exception] = field(default_factory=list, compare=False)
    _asked: set[object] = field(default_factory=set, compare=False)
    _kept: dict[Path, object] = field(default_factory=dict, compare=False)
    _printed: list[tuple[object, str]] = field(default_factory=list, compare=False)

    def text(self, path: str) -> str | None:
        if not path.startswith("/"):  # a file of the record itself: where Door.command looks for what was printed
            for command, printed in self._printed:
                self._keep(path, printed, of=command)
            self._printed.clear()
        elif self._is_new(path):
            text = self.live.text(self.scrubber.restore(path))
            if text is not None:
                self._keep(path, _without_process_name(path, text), of=path)
        return Door.text(self, path)

    def names(self, path: str) -> tuple[str, ...]:
        if self._is_new((path,)):
            for name in self.live.names(self.scrubber.restore(path)):
                self._keep(f"{path}/{self.scrubber.clean(name)}", None, of=None)
        return Door.names(self, path)

    def command(self, name: str, *arguments: str, **options: Any) -> str | None:
        command = (name, *arguments)
        if self._is_new(command):
            printed = self.live.command(*map(self.scrubber.restore, command), **options)
            if printed is not None:
                self._printed.append((command, printed))
        return Door.command(self, *command)

    def system(self) -> System:
        if self._is_new("system"):
            self._keep_fields("system.json", dataclasses.asdict(self.live.system()))
        return Door.system(self)

    def allowed_cpus(self) -> tuple[int, ...]:
        return self.system().allowed_cpus

    def nvml(self) -> Mapping[str, Any]:
        if self._is_new("nvml"):
            self._keep_fields("nvml.json", _joined(self.live.nvml(), self.live.nvml_moment()))
        return Door.nvml(self)

    def nvml_moment(self) -> Mapping[str, Any]:
        return self.nvml()

    def moment(self, ours: Sequence[int]) -> Moment:
        if self._is_new("moment"):
            fields = dataclasses.asdict(self.live.moment(ours))
            self._keep_fields("moment.json", {key: value for key, value in fields.items() if value is not None})
        return Door.moment(self, ours)

    def process_name(self, pid: int) -> str | None:
        path = f"/proc/{pid}/comm"
        if self._is_new(path):
            name = self.live.process_name(pid)
            if name is not None:
                self._keep(path, name if pid == os.getpid() else OTHER_PROCESS, of=path)
        return Door.process_name(self, pid)

    def _is_new(self, question: object) -> bool:
        """Whether it is asked for the first time: the first answer stays the answer."""
        is_new = question not in self._asked
        self._asked.add(question)
        return is_new

    def _keep_fields(self, name: str, fields: Mapping[str, Any]) -> None:
        self._keep(name, f"{json.dumps(fields, indent=1)}\n", of=name)

    def _keep(self, path: str, text: str | None, *, of: object) -> None:
        """Write the answer to the question `of`; without a text the name alone, where there is nothing of that name."""
        file = Path(os.path.normpath(self.root / path.lstrip("/")))
        if not file.is_relative_to(self.root) or (text is None and file.exists()):
            return
        content = "" if text is None else self.scrubber.clean(text)
        try:
            _make_folder((self.root / path.lstrip("/")).parent, self.root, self._kept)
            if self._kept.get(file) is None:
                file.write_bytes(content.encode())
                self._kept[file] = of
            elif self._kept[file] != of and file.read_bytes() != content.encode():
                message = f"Two different answers would both be written to {file.relative_to(self.root)}."
                self.troubles.append(ProbeError(message, hint="Report this, please, with the name of your system."))
        except OSError as error:
            self.troubles.append(error)


def read(door: Door) -> Reading:
    """The machine that `door` opens on."""
    return Reading(
        host=probe_host(measure=False, door=door),
        conditions=dataclasses.replace(read_conditions(door=door), at_s=0.0),
        hardware=_read_hardware(door),
    )


def record_machine(folder: Path, *, live: Door = THIS_MACHINE) -> Reading:
    """Record the machine in `folder`, which must be empty or not there yet, and tell what was read meanwhile.

    The folder appears when the record is whole and was seen to replay. ProbeError says why there is none.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            message = f"{folder} is there already and is not an empty folder."
            raise ProbeError(message, hint="Name a folder that does not exist yet.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".unfinished", dir=folder.parent)
        unfinished = Path(os.path.abspath(made))  # noqa: PTH100 - Path.absolute leaves ".." in, where files are compared
        try:
            reading = _record(unfinished, live)
            if folder.exists():
                folder.rmdir()  # Windows renames to nothing that is there
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        message = f"The record cannot be written to {folder}: {error.strerror or error}."
        raise ProbeError(message, hint="Name a folder that you may write to, on a disk with room left.") from error
    return reading


def main(arguments: Sequence[str] | None = None) -> int:
    """Record this machine; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m offloadtune.probe.recording",
        description="Record what offloadtune's probe reads of this machine, for a test or a report of an error.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to; must be empty or not there yet")
    folder = parser.parse_args(arguments).folder
    try:
        record_machine(folder)
    except OffloadTuneError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n" if error.hint else f"{error}\n")
        return error.exit_code
    n_files = sum(path.is_file() for path in folder.rglob("*"))
    sys.stdout.write(
        f"Recorded this machine in {folder}: {n_files} files.\n"
        "Serial numbers, UUIDs, network addresses and names were taken out. Look it through before you share it.\n"
    )
    return 0


def _record(root: Path, live: Door) -> Reading:
    door = RecordingDoor(root, live=live, scrubber=Scrubber(_own_names(live)))
    reading = read(door)
    if door.troubles:
        raise door.troubles[0]
    _shorten_id_tables(root)
    if read(Door(root)) != reading:
        message = "The record does not replay to what was read of this machine, so that it was not kept."
        raise ProbeError(message, hint="Report this, please, with the name of your system.")
    return reading


def _read_hardware(door: Door) -> Hardware | None:
    reader = getattr(importlib.import_module("offloadtune.probe"), "read_hardware", None)
    hardware: Hardware | None = reader(door) if reader else None
    return hardware


def _own_names(live: Door) -> frozenset[str]:
    """What this machine and its user are called."""
    names = {*live.host_names(), socket.gethostname()}
    with contextlib.suppress(OSError, KeyError, ImportError, RuntimeError):  # a user that the system has no name for
        names |= {Path.home().name, getpass.getuser()}
    names |= {name.partition(".")[0] for name in names}
    return frozenset(names) - NAMES_OF_NOBODY


def _joined(answers: Mapping[str, Any], moments: Mapping[str, Any]) -> Mapping[str, Any]:
    """NVML's answers about the cards and about this moment of them in one: a record has one place for both."""
    devices, listed = answers.get("devices"), moments.get("devices")
    if not isinstance(devices, list) or not isinstance(listed, list) or len(devices) != len(listed):
        return answers
    return {
        **answers,
        "devices": [
            device if "error" in device or "error" in moment else {**moment, **device}
            for device, moment in zip(devices, listed, strict=True)
        ],
    }


def _without_process_name(path: str, text: str) -> str:
    """The text of a file of another process without what that is called."""
    found = _PROCESS_FILE.fullmatch(path)
    if not found or int(found[1]) == os.getpid():
        return text
    # a name may hold anything, brackets too
    return OTHER_PROCESS if found[2] == "comm" else re.sub(r"\(.*\)", f"({OTHER_PROCESS})", text, flags=re.DOTALL)


def _make_folder(folder: Path, root: Path, kept: Mapping[Path, object]) -> None:
    """Folders down to `folder`, through "..", and in the place of names that were only listed."""
    place = root
    for part in folder.relative_to(root).parts:
        place /= part
        if place.is_file() and kept.get(Path(os.path.normpath(place))) is None:
            place.unlink()
        place.mkdir(exist_ok=True)


def _shorten_id_tables(root: Path) -> None:
    """Of the tables of all cards there are, keep what is about this machine's: they are over a megabyte."""
    files = (path for name in ("device", "vendor") for path in root.rglob(name) if path.is_file())
    ids = {path.read_text(encoding="utf-8").strip().removeprefix("0x") for path in files} - {""}
    for name, shorten in _ID_TABLES.items():
        for path in root.rglob(name):
            lines = shorten(path.read_text(encoding="utf-8").splitlines(), ids)
            path.write_bytes("".join(f"{line}\n" for line in lines).encode())


def _of_pci_ids(lines: Iterable[str], ids: Collection[str]) -> Iterator[str]:
    """Makers' lines, and below each, after a tab, those of its cards."""
    is_ours = False
    for line in lines:
        if line[:1] not in {"", "#", "\t"}:
            is_ours = line[:4] in ids
        if is_ours and line.strip("\t")[:4] in ids and not line.startswith("\t\t"):
            yield line


def _of_amdgpu_ids(lines: Iterable[str], ids: Collection[str]) -> Iterator[str]:
    return (line for line in lines if line.partition(",")[0].lower() in ids)


_ID_TABLES = {"pci.ids": _of_pci_ids, "amdgpu.ids": _of_amdgpu_ids}


if __name__ == "__main__":
    sys.exit(main())

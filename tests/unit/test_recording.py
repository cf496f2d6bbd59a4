"""Machines are recorded so that they replay, and so that nobody is named."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import getpass
import json
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.errors import ProbeError
from offloadtune.probe import Door, recording
from offloadtune.probe.host import Moment, System
from offloadtune.probe.recording import (
    NAMES_OF_NOBODY,
    Reading,
    RecordingDoor,
    Scrubber,
    main,
    read,
    record_machine,
)

HOSTS = Path(__file__).parents[1] / "hosts"
MACHINES = sorted(file.parent.name for file in HOSTS.glob("*/system.json"))

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
NETWORK_CARD = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
LONG_NUMBER = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)
SERIAL = re.compile(r"(?:serial|part)[ _]?number\W+(?!removed)\w", re.IGNORECASE)
CONTAINER = "92485c25de197d5505d2eaffb85b54e4"


@dataclass(frozen=True, slots=True)
class Live(Door):
    """A machine that is made up: files by their paths, what commands print by all their words."""

    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    commands: Mapping[tuple[str, ...], str] = field(default_factory=dict, hash=False)

    def text(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> tuple[str, ...]:
        below = {file.removeprefix(f"{path}/").partition("/")[0] for file in self.files if file.startswith(f"{path}/")}
        return tuple(sorted(below))

    def command(self, name: str, *arguments: str, **_: Any) -> str | None:
        return self.commands.get((name, *arguments))

    def system(self) -> System:
        return System(name="Linux", release="6.1", arch="x86_64", allowed_cpus=(0, 1))

    def nvml(self) -> Mapping[str, Any]:
        return {"error": "LibraryNotFound"}

    def nvml_moment(self) -> Mapping[str, Any]:
        return self.nvml()

    def process_name(self, pid: int) -> str | None:
        return "annas-editor" if pid == 77 else None


MEMORY = {"/proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n"}


def recorder(root: Path, live: Door, *names: str) -> RecordingDoor:
    return RecordingDoor(root, live=live, scrubber=Scrubber(names))


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# --- this machine --------------------------------------------------------------------------------------------------


def test_this_machine_replays_to_what_was_read(tmp_path: Path) -> None:
    reading = record_machine(tmp_path / "here")
    assert read(Door(tmp_path / "here")) == reading
    assert reading.host.ram.total_bytes > 0
    assert reading.conditions.n_cpus >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_nothing_of_this_machine_names_anyone(tmp_path: Path) -> None:
    record_machine(tmp_path / "here")
    kept = contents(tmp_path / "here")
    everything = "\n".join((*kept, *kept.values()))
    for pattern in (UUID, NETWORK_CARD, LONG_NUMBER, SERIAL):
        assert pattern.search(everything) is None
    names = {socket.gethostname(), Path.home().name}
    with contextlib.suppress(KeyError, OSError):  # a container's user may have no name
        names.add(getpass.getuser())
    for name in names - NAMES_OF_NOBODY:
        assert re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", everything) is None


def test_the_command_records_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "here")]) == 0
    assert f"Recorded this machine in {tmp_path / 'here'}" in capsys.readouterr().out
    before = contents(tmp_path / "here")
    assert main([str(tmp_path / "here")]) == ProbeError.exit_code
    assert "is there already and is not an empty folder.\nName a folder" in capsys.readouterr().err
    assert contents(tmp_path / "here") == before


# --- recorded machines, recorded again -----------------------------------------------------------------------------


def without_names(reading: Reading) -> Reading:
    """What of a reading a record keeps: cards have no UUID, processes no name."""
    cards = reading.host.nvml_gpus
    gpus = tuple(
        dataclasses.replace(
            gpu,
            other_processes=None
            if gpu.other_processes is None
            else tuple(dataclasses.replace(one, name="process") for one in gpu.other_processes),
        )
        for gpu in reading.conditions.gpus
    )
    hardware = reading.hardware
    if hardware is not None:
        in_depth = tuple(
            dataclasses.replace(
                gpu,
                processes=None
                if gpu.processes is None
                else tuple(dataclasses.replace(one, name="process") for one in gpu.processes),
            )
            for gpu in hardware.gpus
        )
        hardware = dataclasses.replace(hardware, gpus=in_depth)
    return Reading(
        host=dataclasses.replace(
            reading.host,
            nvml_gpus=None if cards is None else tuple(dataclasses.replace(card, uuid=None) for card in cards),
        ),
        conditions=dataclasses.replace(reading.conditions, gpus=gpus),
        hardware=hardware,
    )


@pytest.mark.parametrize("machine", MACHINES)
def test_every_recorded_machine_survives_being_recorded(machine: str, tmp_path: Path) -> None:
    reading = record_machine(tmp_path / machine, live=Door(HOSTS / machine))
    assert without_names(reading) == without_names(read(Door(HOSTS / machine)))
    everything = "\n".join(contents(tmp_path / machine).values())
    assert UUID.search(everything) is None
    assert "vllm" not in everything
    assert "gnome-shell" not in everything


# --- what is taken out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("MEMORY_DEVICE_0_SERIAL_NUMBER=416433E9", "MEMORY_DEVICE_0_SERIAL_NUMBER=removed0"),
        ("MEMORY_DEVICE_0_PART_NUMBER=M378A1K43CB2-CTD", "MEMORY_DEVICE_0_PART_NUMBER=removed0"),
        ("MEMORY_DEVICE_1_SPEED_MTS=2667", "MEMORY_DEVICE_1_SPEED_MTS=2667"),
        ("Revision\t: d04170\nSerial\t\t: 10000000abcdef01\n", "Revision\t: d04170\nSerial\t\t: removed0\n"),
        ('[{"SerialNumber":"E1B84019","Speed":3200}]', '[{"SerialNumber":"removed0","Speed":3200}]'),
        ('"serial_number" : "C02XX1234567",', '"serial_number" : "removed0",'),
        ('{"nvmlDeviceGetSerial": 1324419038793}', '{"nvmlDeviceGetSerial": "removed0"}'),
        ('"nvmlDeviceGetUUID": {"error": "NotSupported"}', '"nvmlDeviceGetUUID": {"error": "NotSupported"}'),
        ("GPU-3c1a7b52-9f0e-4d61-8a55-0b7f2f4c9d10", "GPU-removed0"),
        ("pod3c1a7b52_9f0e_4d61_8a55_0b7f2f4c9d10.slice", "podremoved0.slice"),
        (rf"4:memory:/docker/{CONTAINER * 2}", "4:memory:/docker/removed0"),
        ("link/ether 3c:7c:3f:aa:01:9e brd", "link/ether removed0 brd"),
        ("PCI_SLOT_NAME=0000:03:00.0", "PCI_SLOT_NAME=0000:03:00.0"),
        ("/home/anna/models on nest.example", "/home/removed0/models on removed1.example"),
        ("annabel nested NEST", "annabel nested NEST"),
        ("/dev/mapper/my--box--vg-root", "/dev/mapper/removed0--vg-root"),
        (r"/home/Anna\040Maria/models", "/home/removed0/models"),
        ("36 29 0:54 / /srv rw - 9p nas rw\n", "36 29 0:54 / /srv rw - 9p removed rw\n"),
        (
            "36 29 0:54 / /srv rw - nfs4 nas:/export rw,addr=10.0.0.7\n",
            "36 29 0:54 / /srv rw - nfs4 removed rw\n",
        ),
        ("flags\t\t: fpu avx2 serialize rdpid", "flags\t\t: fpu avx2 serialize rdpid"),
    ],
)
def test_what_is_taken_out_and_what_stays(text: str, cleaned: str) -> None:
    assert Scrubber(("anna", "nest", "my-box", "Anna Maria")).clean(text) == cleaned


@given(numbers=st.lists(st.uuids(), min_size=1, max_size=4), words=st.text(max_size=40))
def test_the_same_number_has_the_same_stand_in(numbers: list[uuid.UUID], words: str) -> None:
    scrubber = Scrubber()
    text = "\n".join((words, *map(str, numbers), *map(str, numbers)))
    cleaned = scrubber.clean(text)
    assert UUID.search(cleaned) is None
    assert scrubber.clean(cleaned) == cleaned
    lines = cleaned.split("\n")
    assert lines[-len(numbers) :] == lines[-2 * len(numbers) : -len(numbers)]
    assert len(set(lines[-len(numbers) :])) == len(set(numbers))


def test_no_name_in_a_record_has_a_colon(tmp_path: Path) -> None:
    """Windows has no such names, and is to hold records too."""
    path = "/sys/bus/pci/devices/0000:01:00.0/class"
    door = recorder(tmp_path, Live(files={path: "0x030000\n"}))
    assert door.text(path) == Door(tmp_path).text(path) == "0x030000\n"
    assert Door(tmp_path).names("/sys/bus/pci/devices") == ("0000:01:00.0",)
    assert not [file for file in tmp_path.rglob("*") if ":" in file.name]


def test_a_path_made_of_a_cleaned_text_leads_to_the_real_file(tmp_path: Path) -> None:
    folder = f"/sys/fs/cgroup/anna.slice/{CONTAINER}"
    live = Live(
        files={"/proc/self/cgroup": f"0::{folder.removeprefix('/sys/fs/cgroup')}\n", f"{folder}/memory.max": "7\n"}
    )
    door = recorder(tmp_path, live, "anna")
    path = (door.text("/proc/self/cgroup") or "").strip().removeprefix("0::")
    assert "anna" not in path
    assert door.text(f"/sys/fs/cgroup{path}/memory.max") == "7\n"
    assert Door(tmp_path).text(f"/sys/fs/cgroup{path}/memory.max") == "7\n"


def test_processes_of_others_have_no_names(tmp_path: Path) -> None:
    live = Live(files={"/proc/77/stat": "77 (annas (2) editor) S 1 2\n", "/proc/77/comm": "annas-editor\n"})
    door = recorder(tmp_path, live)
    assert (door.text("/proc/77/stat"), door.process_name(77)) == ("77 (process) S 1 2\n", "process")
    assert door.text("/proc/77/comm") == "process"
    assert (door.process_name(78), door.troubles) == (None, [])
    assert "anna" not in str(contents(tmp_path))


# --- how it is kept ------------------------------------------------------------------------------------------------


def test_the_first_answer_stays(tmp_path: Path) -> None:
    files = {"/proc/uptime": "1\n"}
    door = recorder(tmp_path, Live(files=files))
    assert (door.text("/proc/uptime"), door.text("/proc/stat")) == ("1\n", None)
    files |= {"/proc/uptime": "2\n", "/proc/stat": "cpu\n"}
    assert (door.text("/proc/uptime"), door.text("/proc/stat")) == ("1\n", None)


def test_a_listing_is_kept_whatever_else_is_asked(tmp_path: Path) -> None:
    live = Live(files={"/a/one/level": "3", "/a/two/level": "2", "/a/three": "t", "/b/x": "x"})
    door = recorder(tmp_path, live)
    assert door.text("/a/one/level") == "3"
    assert door.names("/a") == ("one", "three", "two")
    assert (door.text("/a/two/level"), door.text("/a/three")) == ("2", "t")
    assert door.names("/a/two") == ("level",)
    assert (door.names("/a"), door.names("/c"), door.troubles) == (("one", "three", "two"), (), [])
    replayed = Door(tmp_path)
    assert (replayed.names("/a"), replayed.text("/a/three"), replayed.text("/a/two/level")) == (
        door.names("/a"),
        "t",
        "2",
    )


def test_commands_replay_each_by_itself(tmp_path: Path) -> None:
    door = recorder(tmp_path, Live(commands={("sysctl", "-n", "hw.memsize"): "18\n", ("uname",): ""}))
    assert door.command("sysctl", "-n", "hw.memsize") == "18\n"
    assert (door.command("uname"), door.command("missing", "/x")) == ("", None)
    replayed = Door(tmp_path)
    assert (replayed.command("sysctl", "-n", "hw.memsize"), replayed.command("missing", "/x")) == ("18\n", None)


def test_nvml_is_one_answer_about_card_and_moment(tmp_path: Path) -> None:
    card, moment = {"name": "A", "memory": 1}, {"memory": 2, "clock": 3}

    class Cards(Live):
        def nvml(self) -> Mapping[str, Any]:
            return {"driver": "5", "devices": [card, {"error": "GpuIsLost"}]}

        def nvml_moment(self) -> Mapping[str, Any]:
            return {"devices": [moment, moment]}

    door = recorder(tmp_path, Cards())
    expected = {"driver": "5", "devices": [{"name": "A", "memory": 1, "clock": 3}, {"error": "GpuIsLost"}]}
    assert door.nvml() == door.nvml_moment() == Door(tmp_path).nvml_moment() == expected


def test_what_psutil_tells_is_kept(tmp_path: Path) -> None:
    class Mac(Live):
        def moment(self, ours: Any) -> Moment:
            return Moment(busy_cpu_s=2.5, our_cpu_s=dict.fromkeys(ours, 1.5), on_battery=True)

    door = recorder(tmp_path, Mac())
    assert door.moment([7]) == Door(tmp_path).moment([]) == Moment(busy_cpu_s=2.5, our_cpu_s={7: 1.5}, on_battery=True)
    assert door.allowed_cpus() == (0, 1)
    assert json.loads((tmp_path / "system.json").read_text())["release"] == "6.1"


def test_a_way_up_leads_beside(tmp_path: Path) -> None:
    live = Live(files={"/sys/c/sda1/../size": "1", "/sys/c/sdb1/../size": "2", "/sys/c/sdc1/../size": "1"})
    door = recorder(tmp_path, live)
    assert (door.text("/sys/c/sda1/../size"), door.text("/sys/c/sdc1/../size"), door.troubles) == ("1", "1", [])
    assert Door(tmp_path).text("/sys/c/sda1/../size") == "1"
    door.text("/sys/c/sdb1/../size")
    assert [str(trouble) for trouble in door.troubles] == ["Two different answers would both be written to sys/c/size."]


def test_nothing_is_written_outside_of_the_record(tmp_path: Path) -> None:
    root = tmp_path / "record"
    root.mkdir()
    recorder(root, Live(files={"/../outside": "text"})).text("/../outside")
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


def test_tables_of_all_cards_are_cut_to_those_that_are_here(tmp_path: Path) -> None:
    of_amd = ("1002  AMD", "\t744c  Navi 31", "\t\t744c 1da2  Board", "\t15bf  Phoenix")
    of_others = ("1003  Another", "\t744c  Its own", "# 744c", "C 03  Display", "\t00  VGA")
    (tmp_path / "pci.ids").write_text("\n".join(("# List", *of_amd, "", *of_others)))
    (tmp_path / "amdgpu.ids").write_text("# List\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n15BF,\tDD,\tRadeon 780M\n")
    (tmp_path / "card").mkdir()
    (tmp_path / "card/device").write_text("0x744c\n")
    (tmp_path / "card/vendor").write_text("0x1002\n")
    recording._shorten_id_tables(tmp_path)
    assert (tmp_path / "pci.ids").read_text() == "1002  AMD\n\t744c  Navi 31\n"
    assert (tmp_path / "amdgpu.ids").read_text() == "744C,\tC8,\tAMD Radeon RX 7900 XTX\n"


def test_two_commands_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    long = "x" * 300
    live = Live(commands={("tool", f"{long}1"): "one", ("tool", f"{long}2"): "two"})
    door = recorder(tmp_path, live)
    assert door.command("tool", f"{long}1") == "one"
    door.command("tool", f"{long}2")
    assert len(door.troubles) == 1


def test_a_folder_may_be_named_by_any_way_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aside").mkdir()
    monkeypatch.chdir(tmp_path)
    record_machine(Path("aside/../new/here"), live=Live(files=MEMORY))
    assert Door(tmp_path / "new/here").text("/proc/meminfo") == MEMORY["/proc/meminfo"]


# --- when it goes wrong --------------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for taken in (tmp_path, file):
        with pytest.raises(ProbeError, match="is not an empty folder"):
            record_machine(taken, live=Live(files=MEMORY))
    assert contents(tmp_path) == {"notes.txt": "mine"}
    (tmp_path / "empty").mkdir()
    record_machine(tmp_path / "empty", live=Live(files=MEMORY))
    assert "system.json" in contents(tmp_path / "empty")


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(Live):
        def nvml(self) -> Mapping[str, Any]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_machine(tmp_path / "here", live=Interrupted(files=MEMORY))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a signal that nothing can catch")
def test_a_killed_record_is_not_taken_for_one(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from offloadtune.probe import Door, recording\n"
        "class Killed(Door):\n"
        "    def nvml(self):\n"
        "        os.kill(os.getpid(), 9)\n"
        "recording.record_machine(pathlib.Path(sys.argv[1]), live=Killed())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "here")], check=False, timeout=60)
    assert done.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".unfinished")


def test_a_full_disk_is_an_error_and_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, _: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ProbeError) as stopped:
        record_machine(tmp_path / "here", live=Live(files=MEMORY))
    assert stopped.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_does_not_replay_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(Live(files=MEMORY))
    readings = iter(
        (reading, dataclasses.replace(reading, conditions=dataclasses.replace(reading.conditions, n_cpus=9)))
    )
    monkeypatch.setattr(recording, "read", lambda _: next(readings))
    with pytest.raises(ProbeError, match="does not replay"):
        record_machine(tmp_path / "here", live=Live(files=MEMORY))
    assert list(tmp_path.iterdir()) == []

"""What goes wrong while a sweep is under way is told in one sentence, and nothing that was measured is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import SHORT, Ended, check_refused, offloadtune
from conftest import MIB, CardMaker

from offloadtune.engine import Runner
from offloadtune.records import Outcome, Settings, TrialResult
from offloadtune.store import read_journal

pytestmark = pytest.mark.engine

ONE_THREAD = ("--set=n_threads=1", "--set=n_threads_batch=1")


def test_a_home_that_cannot_be_written(tmp_path: Path, smollm2_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    ended = offloadtune("sweep", smollm2_path, *SHORT, OFFLOADTUNE_HOME=str(blocker))
    check_refused(ended, 14, "The folder of journals", "cannot be written")
    assert "OFFLOADTUNE_HOME" in ended.err


def test_a_profile_that_cannot_be_written(home: Path, smollm2_path: Path) -> None:
    (home / "profiles").write_bytes(b"")  # a file where the folder must be
    fixed = [f"--set={one}" for one in ("flash_attn_type=enabled", "n_ubatch=64", "n_threads=1", "n_threads_batch=1")]
    ended = offloadtune("sweep", smollm2_path, *SHORT, "--budget", "60s", *fixed)
    assert ended.code == 16, ended.err
    tail = ended.err.splitlines()[-2:]
    check_refused(Ended(ended.code, ended.out, "\n".join(tail)), 16, f"{home}/profiles/", "cannot be written")
    journals = list(home.glob("sweeps/*/*.jsonl"))
    assert len(journals) == 1
    assert str(journals[0]) in tail[1]  # nothing that was measured is lost


# --- the card --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card_bytes", "options", "reason"),
    [
        (0, (), "Nothing is offloaded: no device memory is free, another program may hold it."),
        (MIB, (), "Nothing is offloaded: even one layer needs at least "),
        (600 * MIB, ("--vram-limit", "0"), "Nothing is offloaded: you allow no device memory."),
    ],
    ids=["none", "too little", "none allowed"],
)
def test_no_free_device_memory(
    card_bytes: int, options: tuple[str, ...], reason: str, smollm2_path: Path, make_card: CardMaker
) -> None:
    card = make_card(1, card_bytes)
    ended = offloadtune(
        "sweep", smollm2_path, *SHORT, *ONE_THREAD, "--budget", "15s", "--rpc", card.endpoint, "--json", *options
    )
    assert ended.code == 0, ended.err
    answer = json.loads(ended.out)
    told = answer["recommended"]["reasons"]
    assert answer["recommended"]["settings"]["n_gpu_layers"] == 0
    assert [one for one in told if one.startswith(reason)], told
    assert not [one for one in told if "lists no other device" in one]
    assert not [one for one in read_journal(Path(answer["journal_path"])).results if one.trial.settings.offloads]


def test_a_card_that_another_client_holds(smollm2_path: Path, make_card: CardMaker) -> None:
    """The other client is a real one; it keeps the card, and loses nothing by the attempt."""
    card = make_card(1, 600 * MIB)
    settings = Settings(n_gpu_layers=31, use_extra_bufts=False)
    with Runner(smollm2_path, [card.endpoint]) as holder:
        assert holder.try_tiny(settings, timeout_s=60)[0] is Outcome.OK
        ended = offloadtune("sweep", smollm2_path, *SHORT, "--rpc", card.endpoint)
        check_refused(ended, 13, f"The RPC endpoint {card.endpoint} took the connection but does not answer")
        assert "another client may be using it" in ended.err
        assert holder.try_tiny(settings, timeout_s=60)[0] is Outcome.OK
        assert holder.n_model_loads == 1
    freed = offloadtune("probe", "--quick", "--rpc", card.endpoint)
    assert freed.code == 0, freed.err


@pytest.mark.parametrize("n_trials", [0, 1])
def test_a_card_that_dies_for_good(n_trials: int, smollm2_path: Path, make_card: CardMaker, home: Path) -> None:
    card = make_card(2, 600 * MIB)
    sweep = Sweep(smollm2_path, "--rpc", card.endpoint, *ONE_THREAD, "--goal", "ttft", "--json")
    sweep.wait_for("trial 1: every layer" if n_trials == 0 else "every layer on the device: first token")
    card.close()
    ended = sweep.end()
    kept = finished_trials(home)
    if kept:
        assert ended.code == 0, ended.err
        assert re.search(r"^The sweep ends here: .*What was measured before stands\.$", ended.err, re.MULTILINE)
        assert json.loads(ended.out)["trials"]["ok"] == len(kept)
    else:
        assert n_trials == 0
        check_refused(ended, 3, "did not come back: Nothing answers at the RPC endpoint")
    assert sweep.n_told(": first token ") <= len(kept)


# --- the file --------------------------------------------------------------------------------------------------------


def exchange(path: Path) -> None:
    """As a download does that is renamed when it is whole."""
    other = path.with_name("other.gguf")
    other.write_bytes(path.read_bytes().replace(b"Smollm2", b"Smollm3"))
    other.replace(path)


def write_into(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)[0]
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last ^ 1]))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (exchange, "was exchanged for another file while it was measured"),
        (write_into, "was exchanged for another file while it was measured"),
        (Path.unlink, "was taken away or damaged while it was measured"),
    ],
    ids=["exchanged", "written into", "taken away"],
)
def test_a_file_that_does_not_stay_what_it_was(
    harm: Callable[[Path], object], words: str, smollm2_path: Path, tmp_path: Path, home: Path
) -> None:
    """No answer is made of two files: what was told before stands in the journal of the former one, nothing after."""
    path = tmp_path / "model.gguf"
    path.write_bytes(smollm2_path.read_bytes())
    sweep = Sweep(path, *ONE_THREAD)
    sweep.wait_for(": first token ")
    n_told = sweep.n_told(": first token ")
    harm(path)
    ended = sweep.end()
    check_refused(Ended(ended.code, ended.out, "\n".join(ended.err.splitlines()[-2:])), 11, words)
    assert n_told <= len(finished_trials(home)) <= n_told + 1
    assert not [path for path in home.glob("profiles/*/*") if path.name != "speed.json"]  # which is of earlier trials


def test_a_file_that_was_merely_touched_is_the_same(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(smollm2_path.read_bytes())
    sweep = Sweep(path, *ONE_THREAD)
    sweep.wait_for(": first token ")
    path.touch()
    ended = sweep.end()
    assert ended.code == 0, ended.err
    assert "Warning" not in ended.err


# --- the disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB, where the system lets this user mount one."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)  # noqa: S607


def fill(folder: Path, n_bytes_left: int) -> None:
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "ballast").write_bytes(b"x" * max(0, free - n_bytes_left))


def test_a_disk_that_is_full_from_the_start(small_disk: Path, smollm2_path: Path) -> None:
    fill(small_disk, 0)
    ended = offloadtune("sweep", smollm2_path, *SHORT, OFFLOADTUNE_HOME=str(small_disk))
    check_refused(ended, 14, str(small_disk), "cannot be written: No space left on device")
    assert "free some space or set OFFLOADTUNE_HOME" in ended.err
    (small_disk / "ballast").unlink()
    again = offloadtune("sweep", smollm2_path, *SHORT, *ONE_THREAD, "--budget", "12s", OFFLOADTUNE_HOME=str(small_disk))
    assert again.code == 0, again.err  # what the failed start left does not stand in the way


def test_a_disk_that_fills_while_measuring(small_disk: Path, smollm2_path: Path, home: Path) -> None:
    (home / "profiles").mkdir()  # on another disk
    sweep = Sweep(smollm2_path, *ONE_THREAD, "--json", OFFLOADTUNE_HOME=str(small_disk))
    sweep.wait_for(": first token ")
    fill(small_disk, 0)
    ended = sweep.end()
    assert ended.code == 0, ended.err
    told = re.findall(r"^Warning: The journal .* cannot be written: No space left .*$", ended.err, re.MULTILINE)
    assert len(told) == 1
    assert told[0].endswith("The sweep ends here, with what is known.")
    assert 1 <= len(finished_trials(small_disk)) <= json.loads(ended.out)["trials"]["ok"]
    (small_disk / "ballast").unlink()
    again = Sweep(smollm2_path, *ONE_THREAD, "--json", OFFLOADTUNE_HOME=str(small_disk)).end()
    assert again.code == 0, again.err
    assert json.loads(again.out)["trials"]["resumed"] >= 1


def test_a_journal_that_may_not_grow(smollm2_path: Path, home: Path) -> None:
    """The same without a mount: the system refuses every write beyond 16 KiB of a file."""
    sweep = Sweep(smollm2_path, *ONE_THREAD, "--json", file_bytes=16 << 10)
    ended = sweep.end()
    assert ended.code == 0, ended.err
    assert "cannot be written: File too large" in ended.err
    kept = finished_trials(home)
    assert 1 <= len(kept) <= json.loads(ended.out)["trials"]["ok"]
    again = Sweep(smollm2_path, *ONE_THREAD, "--json").end()
    assert again.code == 0, again.err
    assert json.loads(again.out)["trials"]["resumed"] >= len(kept)


# --- helpers ---------------------------------------------------------------------------------------------------------


class Sweep:
    """A sweep at the command line under way, whose progress can be waited for."""

    def __init__(self, path: Path, *options: str, file_bytes: int | None = None, **environment: str) -> None:
        arguments = [sys.executable, "-m", "offloadtune", "sweep", str(path), *SHORT, "--budget", "25s", *options]
        limit = [] if file_bytes is None else ["prlimit", f"--fsize={file_bytes}"]
        self._process = subprocess.Popen(
            [*limit, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._lines: list[str] = []

    def wait_for(self, words: str) -> None:
        """Read what it tells up to a line with `words`."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            if words in line:
                return
        pytest.fail("".join(self._lines))

    def n_told(self, words: str) -> int:
        return sum(words in line for line in self._lines)

    def end(self) -> Ended:
        out, err = self._process.communicate(timeout=150)
        self._lines += err.splitlines(keepends=True)
        return Ended(self._process.returncode, out, "".join(self._lines))


def finished_trials(home: Path) -> list[TrialResult]:
    """Trials that ran to their end, as the only journal in `home` holds them."""
    (journal,) = home.glob("sweeps/*/*.jsonl")
    return [result for result in read_journal(journal).results if result.outcome is Outcome.OK]

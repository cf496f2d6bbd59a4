"""Whatever is asked of it, the command line ends with a documented code, one sentence and one next step."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
from conftest import MIB

from offloadtune import cli, pipeline
from offloadtune.errors import EXIT_CODES

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 98765432\n"
SHORT = ("--workload", "0/16/4/1", "--n-ctx", "512")
NO_ENGINE = """\
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llama_cpp":
            raise ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp")

sys.meta_path.insert(0, Missing())
"""


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str, wall_s: float = 0.0) -> None:
        self.code, self.out, self.err, self.wall_s = code, out, err, wall_s


def offloadtune(*arguments: str | Path, **environment: str) -> Ended:
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "offloadtune", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - start_s)


def check_refused(ended: Ended, code: int, *words: str) -> None:
    """One sentence with `words` and one next step on stderr, nothing on stdout, and `code`."""
    assert ended.code == code, ended.err
    assert code in EXIT_CODES
    assert ended.out == ""
    assert "Traceback" not in ended.err
    lines = ended.err.splitlines()
    sentences = [i for i, line in enumerate(lines) if line.startswith("offloadtune: ")]
    assert len(sentences) == 1, ended.err
    sentence, *rest = lines[sentences[0] :]
    for word in words:
        assert word in sentence
    assert re.fullmatch(r"offloadtune: .{10,}\.", sentence), sentence
    assert len(rest) == 1, ended.err
    assert re.fullmatch(r"  next: \S.{5,}", rest[0]), rest


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def bad_files(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> dict[str, Path]:
    """Files that are no model, by what they are."""
    folder = tmp_path_factory.mktemp("bad files")
    files = {
        "missing": folder / "missing.gguf",
        "folder": folder,
        "empty": folder / "empty.gguf",
        "page": folder / "page.gguf",
        "pointer": folder / "pointer.gguf",
        "cut": folder / "cut.gguf",
        "cut_header": folder / "cut header.gguf",
        "projector": folder / "mmproj.gguf",
        "noise": folder / "noise.gguf",
        "socket": folder / "socket.gguf",
        "not_text": Path(f"{folder}/\udcff.gguf"),
        "too_long": folder / ("x" * 5000),
    }
    files["empty"].write_bytes(b"")
    files["page"].write_text("<!DOCTYPE html>\n<html><title>404</title></html>", encoding="utf-8")
    files["pointer"].write_text(LFS_POINTER, encoding="utf-8")
    with smollm2_path.open("rb") as whole:
        start = whole.read(4 * MIB)
    files["cut"].write_bytes(start)
    files["cut_header"].write_bytes(start[:5000])
    files["noise"].write_bytes(bytes(range(256)) * 8)
    writer = gguf.GGUFWriter(files["projector"], "clip")
    writer.add_bool("clip.has_vision_encoder", True)  # noqa: FBT003 - its signature
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(files["socket"]))
    return files


@pytest.mark.parametrize("command", ["inspect", "sweep"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "does not exist"),
        ("folder", "is a folder, not a file"),
        ("empty", "is empty"),
        ("page", "is a web page"),
        ("pointer", "is a Git LFS pointer"),
        ("cut", f"is cut at {4 * MIB} of 98"),
        ("cut_header", "ends inside its header"),
        ("projector", "is the projector, not the model"),
        ("noise", "is not a GGUF file"),
        ("socket", "is a device or a pipe"),
        ("not_text", "does not exist"),
        ("too_long", "cannot be read: File name too long"),
    ],
)
def test_a_file_that_is_no_model(command: str, kind: str, words: str, bad_files: dict[str, Path]) -> None:
    check_refused(offloadtune(command, bad_files[kind]), 11, words)


def test_a_cut_file_is_told_with_both_sizes(bad_files: dict[str, Path], smollm2_path: Path) -> None:
    ended = offloadtune("inspect", bad_files["cut"])
    check_refused(ended, 11, f"is cut at {4 * MIB} of {smollm2_path.stat().st_size} bytes.")


def test_a_name_that_is_no_text_is_read_and_shown(tmp_path: Path, smollm2_path: Path) -> None:
    path = tmp_path / "\udcff.gguf"
    path.symlink_to(smollm2_path)
    for options in ([], ["--json"]):
        ended = offloadtune("inspect", path, *options, PYTHONIOENCODING="utf-8:strict")
        assert (ended.code, ended.err) == (0, "")
        assert "\\udcff.gguf" in ended.out


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[InProcess]:
    """The command line in this process, for what cannot be made to happen in another."""
    before = signal.getsignal(signal.SIGTERM)
    yield InProcess(monkeypatch, capsys)
    signal.signal(signal.SIGTERM, before)


class InProcess:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["offloadtune", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = self._capsys.readouterr()
        code = caught.value.code
        return Ended(code if isinstance(code, int) else -1, captured.out, captured.err)


@pytest.mark.parametrize("command", ["inspect", "sweep"])
def test_a_file_without_permission(
    command: str, smollm2_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tests may run as root, who may read everything
    def refuse(path: Path, *_args: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    check_refused(in_process(command, smollm2_path), 11, f"{smollm2_path} may not be read by this user")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_for_real(tmp_path: Path) -> None:
    path = tmp_path / "locked.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    check_refused(offloadtune("inspect", path), 11, "may not be read by this user")


# --- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "banana"], ["--budget", "'banana' is not a length of time"]),
        (["--budget", "-5s"], ["--budget", "'-5s' is not a length of time"]),
        (["--budget", "9" * 400], ["--budget"]),
        (["--vram-limit", "9" * 400], ["--vram-limit"]),
        (["--vram-limit", "much"], ["--vram-limit", "'much' is not an amount of memory"]),
        (["--workload", "poem"], ["--workload 'poem' is not a workload"]),
        (["--workload", "1/2/3"], ["--workload '1/2/3' is not a workload"]),
        (["--workload", "x" * 5000], ["is not a workload"]),
        (["--workload", "0/16/4/2"], ["asks for 2 sequences at once"]),
        (["--n-ctx", "256"], ["--n-ctx 256 cannot hold the workload chat: it fills 2560 tokens"]),
        (["--n-ctx", "8193"], ["was trained for 8192 tokens of context; this asks for 8193"]),
        (["--workload", "long"], ["was trained for 8192 tokens of context; this asks for 16896"]),
        (["--set", "nonsense"], ["--set 'nonsense' names no setting"]),
        (["--set", "n_threads=many"], ["needs a whole number"]),
        (["--set", "n_threads=²"], ["needs a whole number"]),
        (["--target", "ollama"], ["--target 'ollama' is not known"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_an_option_that_cannot_be_meant(options: list[str], words: list[str], smollm2_path: Path) -> None:
    check_refused(offloadtune("sweep", smollm2_path, *options), 2, *words)


@pytest.mark.parametrize(("goal", "nearest"), [("trun", "turn"), ("decoding", "decode"), ("through-put", "throughput")])
def test_the_nearest_goal_is_named(goal: str, nearest: str, smollm2_path: Path) -> None:
    ended = offloadtune("sweep", smollm2_path, "--goal", goal)
    check_refused(ended, 2, f"--goal '{goal}' is not known")
    assert f"next: use {nearest} (or one of turn, " in ended.err


@pytest.mark.parametrize(
    "content", [b"n_gen = inf\n", b"= 5", b"\xff", b"n_prefix_cached = 0\n"], ids=["inf", "syntax", "bytes", "missing"]
)
def test_a_workload_file_that_is_none(content: bytes, tmp_path: Path, smollm2_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    check_refused(offloadtune("sweep", smollm2_path, "--workload", path), 2, "is not a workload (")


@pytest.mark.parametrize("setting", ["flash_attn_type=auto", "load_mode=direct_io"])
def test_what_the_target_cannot_be_told_is_refused_before_it_is_measured(setting: str, smollm2_path: Path) -> None:
    ended = offloadtune("sweep", smollm2_path, *SHORT, "--budget", "3s", "--set", setting)
    check_refused(ended, 16, "cannot be told", setting.partition("=")[0])
    assert len(ended.err.splitlines()) == 2  # no trial has been told of


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweep"],
        ["inspect"],
        ["bogus"],
        ["--bogus"],
        ["sweep", "x.gguf", "--bogus"],
        ["sweep", "x.gguf", "y.gguf"],
        ["sweep", "x.gguf", "--n-ctx", "0"],
        ["sweep", "x.gguf", "--n-ctx", "many"],
        ["sweep", "x.gguf", "--budget"],
        ["inspect", "x.gguf", "--json=perhaps"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    ended = offloadtune(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    assert re.search(r"^Error: .{10,}", ended.err, re.MULTILINE)


# --- the engine and its devices ------------------------------------------------------------------------------------


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers, as an RPC server does that serves another client."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A port behind which something else than llama.cpp answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    try:
                        connection.recv(9)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    except OSError:
                        continue

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        server.join(10)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def command_on(command: str, path: Path, *options: str) -> Ended:
    return offloadtune("probe", "--quick", *options) if command == "probe" else offloadtune("sweep", path, *options)


@pytest.mark.parametrize("command", ["probe", "sweep"])
def test_an_endpoint_where_nobody_listens(command: str, smollm2_path: Path, closed_port: int) -> None:
    endpoint = f"127.0.0.1:{closed_port}"
    ended = command_on(command, smollm2_path, "--rpc", endpoint)
    check_refused(ended, 13, f"Nothing answers at the RPC endpoint {endpoint}: Connection refused")


@pytest.mark.engine
def test_an_endpoint_that_never_answers_is_given_up_soon(smollm2_path: Path, silent_port: int) -> None:
    endpoint = f"127.0.0.1:{silent_port}"
    ended = offloadtune("sweep", smollm2_path, "--rpc", endpoint)
    check_refused(ended, 13, f"The RPC endpoint {endpoint} took the connection but does not answer")
    assert ended.wall_s < 45  # it was a minute; the deadline itself is a quarter of one


@pytest.mark.engine
@pytest.mark.parametrize("command", ["probe", "sweep"])
def test_an_endpoint_that_is_something_else(command: str, smollm2_path: Path, foreign_port: int) -> None:
    endpoint = f"127.0.0.1:{foreign_port}"
    ended = command_on(command, smollm2_path, "--rpc", endpoint)
    check_refused(ended, 13, f"The RPC endpoint {endpoint} took the connection but does not speak")


@pytest.mark.parametrize(
    "endpoint",
    [
        "card",
        ":50052",
        "card:",
        "card:²",
        "card:http",
        "card:0",
        "card:99999",
        "card:-1",
        "9" * 5000,
        "a:" + "9" * 5000,
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_endpoint(endpoint: str) -> None:
    check_refused(offloadtune("probe", "--quick", "--rpc", endpoint), 13, "is not an RPC endpoint")


def test_a_name_that_no_host_can_have() -> None:
    check_refused(offloadtune("probe", "--quick", "--rpc", f"{'x' * 100}:50052"), 13, "Nothing answers")


@pytest.mark.engine
@pytest.mark.parametrize("budget", ["0.05s", "0"])
def test_a_budget_too_small_for_one_trial(budget: str, smollm2_path: Path) -> None:
    ended = offloadtune("sweep", smollm2_path, "--budget", budget)
    check_refused(ended, 12, "The budget of", "ended before the first trial had finished")
    assert "--budget 60s" in ended.err


@pytest.mark.engine
def test_a_home_that_cannot_be_written(tmp_path: Path, smollm2_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    ended = offloadtune("sweep", smollm2_path, *SHORT, OFFLOADTUNE_HOME=str(blocker))
    check_refused(ended, 14, "The folder of journals", "cannot be written")
    assert "OFFLOADTUNE_HOME" in ended.err


@pytest.mark.engine
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


@pytest.fixture
def without_engine(tmp_path: Path) -> dict[str, str]:
    """An environment whose Python has no llama_cpp."""
    folder = tmp_path / "no engine"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NO_ENGINE, encoding="utf-8")
    environment = {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", "import llama_cpp"],
        check=False,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert "No module named 'llama_cpp'" in done.stderr
    return environment


def test_without_the_engine_the_rest_works(without_engine: dict[str, str], smollm2_path: Path) -> None:
    probed = offloadtune("probe", "--quick", **without_engine)
    assert (probed.code, probed.err) == (0, "")
    telling = [line for line in probed.out.splitlines() if "llama-cpp-python" in line]
    assert len(telling) == 1
    assert telling[0].startswith("devices: The engine, llama-cpp-python, is not installed in this Python.")
    assert "install" in telling[0].partition("Python.")[2]
    inspected = offloadtune("inspect", smollm2_path, **without_engine)
    assert (inspected.code, inspected.err) == (0, "")
    assert "Q4_1" in inspected.out
    assert offloadtune("--help", **without_engine).code == 0
    assert offloadtune("sweep", "--help", **without_engine).code == 0
    assert offloadtune("--version", **without_engine).code == 0


def test_without_the_engine_nothing_can_be_measured(without_engine: dict[str, str], smollm2_path: Path) -> None:
    ended = offloadtune("sweep", smollm2_path, **without_engine)
    check_refused(ended, 17, "The engine, llama-cpp-python, is not installed in this Python")
    assert "pip install" in ended.err


# --- our own mistakes ----------------------------------------------------------------------------------------------


def mistake(*_args: object) -> None:
    raise ZeroDivisionError("nothing to\n divide by")


def test_a_mistake_of_ours_is_told_and_kept(in_process: InProcess, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(pipeline, "inspect", mistake)
    ended = in_process("inspect", "\udcff.gguf")
    (kept,) = home.glob("crash-*.txt")
    assert ended.err.splitlines() == [
        "offloadtune: A mistake of offloadtune itself ended this (ZeroDivisionError).",
        f"  next: report it, please, with {kept}",
    ]
    check_refused(ended, 1)
    text = kept.read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "in mistake" in text
    assert "inspect" in text.splitlines()[0]


def test_a_mistake_that_cannot_be_kept_is_told_whole(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    monkeypatch.setenv("OFFLOADTUNE_HOME", str(blocker))
    monkeypatch.setattr(pipeline, "inspect", mistake)
    ended = in_process("inspect", "x.gguf")
    check_refused(ended, 1, "ZeroDivisionError")
    assert ended.err.endswith("with this line: nothing to divide by\n")

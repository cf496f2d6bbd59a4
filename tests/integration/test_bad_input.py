"""Whatever is asked of it, the command line ends with a documented code, one sentence and one next step."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import SHORT, Ended, InProcess, check_refused, offloadtune

from offloadtune import pipeline

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
        (["--set", "n_threads=0"], ["--set n_threads=0 needs a number above 0"]),
        (["--set", "n_ubatch=4096"], ["A batch of 4096 is more than the context of 2560"]),
        (["--set", "n_ubatch=512", "--set", "n_batch=256"], ["n_ubatch=512 is more than n_batch=256"]),
        (["--set", "n_cpu_moe=4"], ["--set n_cpu_moe=4 means nothing here", "has no experts"]),
        (["--set", "n_cpu_ffn=31"], ["--set n_cpu_ffn=31 is more than the 30 blocks of"]),
        (["--set", "n_threads=²"], ["needs a whole number"]),
        (["--target", "ollama"], ["--target 'ollama' is not known"]),
        (["--set", "n_ctx=512"], ["--set 'n_ctx=512': n_ctx is not set there"]),
        (["--min-tok-per-s", "0"], ["--min-tok-per-s needs a number above 0, not 0"]),
        (["--max-ttft", "0s"], ["--max-ttft needs a number above 0, not 0"]),
        (["--ram-limit", "1MiB"], ["of main memory", "--ram-limit allows 1.00 MiB"]),
        (["--set", "n_gpu_layers=31", "--vram-limit", "50MiB"], ["n_gpu_layers=31 takes at least"]),
        (["--goal", "decode", "--workload", "0/16/1/1"], ["--goal decode counts the tokens after the first"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_an_option_that_cannot_be_meant(options: list[str], words: list[str], smollm2_path: Path) -> None:
    check_refused(offloadtune("sweep", smollm2_path, *options), 2, *words)


@pytest.mark.parametrize(
    ("option", "value", "nearest"),
    [
        ("--goal", "trun", "turn (or one of turn, "),
        ("--goal", "decoding", "decode (or one of turn, "),
        ("--goal", "through-put", "throughput (or one of turn, "),
        ("--target", "llama-server", "llama_server (or one of "),
        ("--target", "llama.cpp-python", "llama_cpp_python (or one of "),
        ("--workload", "chatt", "chat (or one of chat, rag, "),
        ("--set", "n_thread=4", "n_threads (or one of "),
        ("--set", "flash_attn=enabled", "flash_attn_type (or one of "),
        ("--set", "flash_attn_type=enable", "enabled (or one of auto, disabled, enabled)"),
        ("--set", "load_mode=nmap", "mmap (or one of "),
        ("--set", "use_extra_bufts=flase", "false (or one of true, false)"),
    ],
)
def test_the_nearest_known_value_is_named(option: str, value: str, nearest: str, smollm2_path: Path) -> None:
    ended = offloadtune("sweep", smollm2_path, option, value)
    check_refused(ended, 2, option)
    assert f"  next: use {nearest}" in ended.err


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
    assert (
        f"{sys.executable} -m pip install --force-reinstall --no-cache-dir 'llama-cpp-python>=0.3.36,<0.4'" in ended.err
    )


@pytest.mark.parametrize("arguments", [("--help",), ("sweep", "--help"), ("--version",)], ids=" ".join)
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    """What takes longest to import; times are too noisy to compare."""
    heavy = ("numpy", "rich", "llama_cpp", "pynvml", "psutil")
    program = f"""
import atexit, sys
atexit.register(lambda: print("loaded", [name for name in {heavy} if name in sys.modules], file=sys.stderr))
sys.argv = ["offloadtune", *{arguments}]
from offloadtune.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "loaded []"
    assert "offloadtune" in done.stdout


# --- our own mistakes ----------------------------------------------------------------------------------------------


def mistake(*_args: object) -> None:
    raise ZeroDivisionError("nothing to\n divide by")


def test_a_mistake_of_ours_is_told_and_kept(in_process: InProcess, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(pipeline, "inspect", mistake)
    ended = in_process("inspect", "./\udcff.gguf")
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
    ended = in_process("inspect", "./x.gguf")
    check_refused(ended, 1, "ZeroDivisionError")
    assert ended.err.endswith("with this line: nothing to divide by\n")

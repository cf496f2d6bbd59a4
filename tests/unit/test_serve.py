"""A server of somebody else's, run as our child: its code is ours, and so is its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from offloadtune import serve
from offloadtune.errors import EngineError, EngineMissingError
from offloadtune.serve import run_server

SERVER = "trap 'echo heard; exit 5' INT; trap 'exit 6' TERM; echo ready; while true; do sleep 0.05; done"
DEAF = "trap '' INT TERM; echo ready; while true; do sleep 0.05; done"


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_its_exit_code_is_ours(script: str, code: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run_server(["sh", "-c", script]) == code
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the shell script given as its server, which is ready."""
    code = (
        f"import sys; from offloadtune.serve import run_server; sys.exit(run_server(['sh', '-c', {request.param!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    yield process
    for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
        child.kill()
    process.kill()
    process.communicate()


@pytest.mark.parametrize("served", [SERVER], indirect=True)
@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 5, "heard\n"), (signal.SIGTERM, 6, "")], ids=["ctrl-c", "term"]
)
def test_a_signal_is_passed_on_once(
    served: subprocess.Popen[str], number: signal.Signals, code: int, words: str
) -> None:
    children = psutil.Process(served.pid).children(recursive=True)
    served.send_signal(number)
    out, _ = served.communicate(timeout=30)
    assert (served.returncode, out) == (code, words)
    assert not psutil.wait_procs(children, timeout=10)[1]


@pytest.mark.parametrize("served", [DEAF], indirect=True)
def test_the_third_signal_kills_one_that_does_not_hear(served: subprocess.Popen[str]) -> None:
    (server,) = psutil.Process(served.pid).children()
    is_gone = False
    while not is_gone:
        served.send_signal(signal.SIGINT)
        is_gone = bool(psutil.wait_procs([server], timeout=1)[0])
    assert served.wait(timeout=30) == 137


@pytest.mark.parametrize("served", [SERVER], indirect=True)
def test_it_stands_in_a_group_of_its_own(served: subprocess.Popen[str]) -> None:
    (server,) = psutil.Process(served.pid).children()
    assert os.getpgid(server.pid) == server.pid != os.getpgid(served.pid)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"^llama-server is not on PATH\.$") as caught:
        run_server(["llama-server", "--model", "x"])
    assert "--target llama_cpp_python" in caught.value.hint


def test_a_server_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_bytes(b"\x00not a program")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="llama-server cannot be started"):
        run_server(["llama-server"])


def test_packages_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_is_installed", lambda module: module not in {"fastapi", "uvicorn"})
    with pytest.raises(EngineError, match=r"not installed: fastapi, uvicorn\.$") as caught:
        run_server([sys.executable, "-m", "llama_cpp.server"])
    assert "pip install 'llama-cpp-python[server]'" in caught.value.hint
    monkeypatch.setattr(serve, "_is_installed", lambda module: module != "llama_cpp")
    with pytest.raises(EngineMissingError, match="is not installed in this Python"):
        run_server([sys.executable, "-m", "llama_cpp.server"])

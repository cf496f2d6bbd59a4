"""A server of somebody else's takes our place: its code is ours, and so are its signals and its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offloadtune import serve
from offloadtune.errors import EngineError, EngineMissingError
from offloadtune.serve import run_server

SERVER = "trap 'echo heard; exit 5' INT; trap 'exit 6' TERM; echo $$; while true; do sleep 0.05; done"


def started(script: str) -> subprocess.Popen[str]:
    """A process that has said something and then runs `script` as its server."""
    code = (
        "import sys; from offloadtune.serve import run_server; "
        f"sys.stdout.write('before '); sys.exit(run_server(['sh', '-c', {script!r}]))"
    )
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -13 $$", -13)])
def test_its_exit_code_is_ours(script: str, code: int) -> None:
    with started(script) as process:
        assert process.communicate(timeout=30)[0] == "before "
    assert process.returncode == code


def test_variables_named_before_it_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineError, match="llama-server is not on PATH"):
        run_server(["env", "A=1", "llama-server", "--model", "a=b"])
    monkeypatch.undo()
    code = "from offloadtune.serve import run_server; run_server(['env', 'A=1=2', 'B=', 'sh', '-c', 'echo $A-$B-'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1=2--\n"


def test_it_reads_what_we_are_given() -> None:
    with started("cat") as process:
        assert process.communicate("words", timeout=30)[0] == "before words"


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 5, "heard\n"), (signal.SIGTERM, 6, ""), (signal.SIGKILL, -signal.SIGKILL, "")],
    ids=["ctrl-c", "term", "kill"],
)
def test_it_stands_in_our_place(number: signal.Signals, code: int, words: str) -> None:
    with started(SERVER) as process:
        assert process.stdout
        assert process.stdout.readline() == f"before {process.pid}\n"  # so no signal can leave it behind
        process.send_signal(number)
        assert process.communicate(timeout=30)[0] == words
    assert process.returncode == code


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

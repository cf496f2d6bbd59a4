"""Fixtures: the real files, the virtual card, a home of one's own for every test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from command_line import InProcess

from offloadtune.recommend import looks

hypothesis.settings.register_profile(  # no test asserts a time
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

ROOT = Path(__file__).parent.parent
SHORT_LOOKS = {"N_LOOKS_MOST": 1, "N_ROUNDS_A_LOOK": 3}
SHORT_SWEEPS = """
from offloadtune.__main__ import main
from offloadtune.recommend import looks

looks.N_LOOKS_MOST = 1
main()
"""
"""The command line as a program for `python -c`, whose sweeps judge their rounds once; what is recalled agrees."""
MIB = 1 << 20
_BEAT_S = 0.04
_NO_ENGINE = """\
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llama_cpp":
            raise ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp")

sys.meta_path.insert(0, Missing())
"""


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1: llama architecture, grouped-query attention, tied embeddings."""
    return _sample("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma-3-270M Q4_K_M: sliding window, 262k vocabulary."""
    return _sample("gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Journals, profiles and remembered facts of the test's own; the working folder has no ./profiles."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("OFFLOADTUNE_HOME", str(folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def short_sweeps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps in this process judge few rounds, once: without it a tie may take the whole of a budget."""
    if request.node.get_closest_marker("engine"):
        for name, value in SHORT_LOOKS.items():
            monkeypatch.setattr(looks, name, value)


@pytest.fixture
def without_engine(tmp_path: Path) -> dict[str, str]:
    """An environment whose Python has no llama_cpp."""
    folder = tmp_path / "no engine"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_NO_ENGINE, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), *([before] if before else [])])}
    done = subprocess.run(
        [sys.executable, "-c", "import llama_cpp"],
        check=False,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert "No module named 'llama_cpp'" in done.stderr
    return environment


class VirtualCard:
    """A card that comes back when a trial kills it, as a driver resets a real one.

    With `duty_frac` below 1 it works only that share of the time: a card that is surely slow, whatever else runs here.
    With `driver_bytes` its memory is counted to the byte, so much more being taken while a client holds any; what the
    file `taken` says is held by another program.
    """

    def __init__(
        self,
        n_threads: int,
        card_bytes: int,
        duty_frac: float = 1.0,
        driver_bytes: int | None = None,
        taken: Path | None = None,
    ) -> None:
        self._options = [] if driver_bytes is None else [str(driver_bytes), *([str(taken)] if taken else [])]
        self.card_bytes, self._n_threads, self._duty_frac = card_bytes, n_threads, duty_frac
        self.port = _free_port()
        self.n_starts = 0
        self._leave = threading.Event()
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._leave.set()
        self._watcher.join()
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self.n_starts += 1
        process = subprocess.Popen(
            [
                sys.executable,
                ROOT / "tests/virtual_card.py",
                str(self.port),
                str(self._n_threads),
                str(self.card_bytes),
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # freed memory goes back to the system at once, so that "free" is true
            env={**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "GGML_NO_BACKTRACE": "1"},
        )
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up and process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return process
            time.sleep(0.05)
        process.kill()
        process.wait()
        pytest.fail("the virtual card did not start")

    def _watch(self) -> None:
        while not self._leave.wait(_BEAT_S * self._duty_frac):
            if self._process.poll() is not None:
                self._process = self._start()
            elif self._duty_frac < 1:
                self._process.send_signal(signal.SIGSTOP)
                time.sleep(_BEAT_S * (1 - self._duty_frac))
                self._process.send_signal(signal.SIGCONT)


CardMaker = Callable[..., VirtualCard]


@pytest.fixture
def make_card() -> Iterator[CardMaker]:
    """Maker of virtual cards: `make_card(n_threads, card_bytes, duty_frac=1.0)`."""
    cards: list[VirtualCard] = []

    def make(*args: Any, **kwargs: Any) -> VirtualCard:
        cards.append(VirtualCard(*args, **kwargs))
        return cards[-1]

    yield make
    for card in cards:
        card.close()


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[InProcess]:
    """The command line in this process, for what cannot be made to happen in another."""
    before = signal.getsignal(signal.SIGTERM)
    yield InProcess(monkeypatch, capsys)
    signal.signal(signal.SIGTERM, before)


def _sample(name: str) -> Path:
    path = ROOT / "gguf_models" / name
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `python -m offloadtune.install.samples`")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

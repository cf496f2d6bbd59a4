"""Finding, building and keeping the engine's wheel, with a stand-in for pip."""

from __future__ import annotations

import io
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import pytest

from offloadtune.errors import EngineError
from offloadtune.install import engine
from offloadtune.install.backend import BuildPlan
from offloadtune.install.console import MovingLine, run_command

PLAN = BuildPlan(
    cmake_args="-DGGML_CUDA=ON -DGGML_RPC=ON",
    cpu_args="-DGGML_RPC=ON",
    backend="CUDA",
    reasons=("because",),
    key="0.3.36-cp311-cuda-0",
    engine_version="0.3.36",
)
WHEEL = "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
RECORD = "llama_cpp/lib/libllama.so,sha256=abc,3"


def write_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llama_cpp/lib/libllama.so", "abc")
        archive.writestr("llama_cpp_python-0.3.36.dist-info/RECORD", f"include/llama.h,sha256=x,1\n{RECORD}\n")


class Builder:
    """Stands in for pip: counts its calls."""

    def __init__(self) -> None:
        self.n_calls = 0

    def __call__(self, plan: BuildPlan, folder: Path, log: Path) -> None:
        assert plan is PLAN
        self.n_calls += 1
        log.write_text("built", encoding="utf-8")
        write_wheel(folder / WHEEL)


def never(_plan: BuildPlan, _folder: Path, _log: Path) -> None:
    pytest.fail("built although a wheel was there")


def test_first_time_builds_and_second_time_finds(tmp_path: Path) -> None:
    builder = Builder()
    wheel = engine.ensure_wheel(PLAN, tmp_path, builder)
    assert wheel == tmp_path / PLAN.key / WHEEL
    assert engine.ensure_wheel(PLAN, tmp_path, never) == wheel
    assert builder.n_calls == 1
    assert sorted(path.name for path in wheel.parent.iterdir()) == ["build.log", WHEEL, "lock"]


def test_killed_build_is_not_taken_for_good(tmp_path: Path) -> None:
    folder = tmp_path / PLAN.key
    half_done = folder / "building-dead"
    half_done.mkdir(parents=True)
    write_wheel(half_done / WHEEL)
    (folder / WHEEL).write_bytes(b"PK\x03\x04 cut short")
    builder = Builder()
    wheel = engine.ensure_wheel(PLAN, tmp_path, builder)
    assert builder.n_calls == 1
    assert zipfile.is_zipfile(wheel)
    assert not half_done.exists()


@pytest.mark.parametrize("error", [EngineError("no"), KeyboardInterrupt()])
def test_failed_build_leaves_no_wheel_but_its_log(tmp_path: Path, error: BaseException) -> None:
    def fail(_plan: BuildPlan, folder: Path, log: Path) -> None:
        write_wheel(folder / WHEEL)
        log.write_text("why", encoding="utf-8")
        raise error

    with pytest.raises(type(error)):
        engine.ensure_wheel(PLAN, tmp_path, fail)
    assert sorted(path.name for path in (tmp_path / PLAN.key).iterdir()) == ["build.log", "lock"]


def test_build_without_a_wheel_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="left no wheel"):
        engine.ensure_wheel(PLAN, tmp_path, lambda _plan, _folder, _log: None)


def test_two_callers_build_once(tmp_path: Path) -> None:
    class SlowBuilder(Builder):
        def __call__(self, plan: BuildPlan, folder: Path, log: Path) -> None:
            time.sleep(0.2)
            super().__call__(plan, folder, log)

    builder = SlowBuilder()
    callers = [threading.Thread(target=engine.ensure_wheel, args=(PLAN, tmp_path, builder)) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert builder.n_calls == 1


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OFFLOADTUNE_WHEELS": "/a", "OFFLOADTUNE_HOME": "/b"}, "/a"),
        ({"OFFLOADTUNE_HOME": "/b"}, "/b/wheels"),
    ],
)
def test_wheelhouse_can_be_moved(environ: dict[str, str], expected: str) -> None:
    assert engine.wheelhouse(environ) == Path(expected)


def test_wheelhouse_is_in_the_cache_by_default() -> None:
    assert engine.wheelhouse({}).parts[-2:] == ("offloadtune", "wheels")


class Installed:
    """Stands in for importlib.metadata's distribution."""

    def __init__(self, record: str) -> None:
        self.record = record

    def read_text(self, _name: str) -> str:
        return self.record


@pytest.mark.parametrize(
    ("record", "is_same"),
    [
        (f"{RECORD}\nllama_cpp_python-0.3.36.dist-info/INSTALLER,sha256=y,4\n", True),
        ("llama_cpp/lib/libllama.so,sha256=other,3\n", False),
        ("", False),
    ],
)
def test_installed_means_the_very_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str, *, is_same: bool
) -> None:
    write_wheel(tmp_path / WHEEL)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Installed(record))
    assert engine.is_installed(tmp_path / WHEEL) is is_same


@pytest.mark.parametrize(
    ("log", "stage"),
    [
        ("Collecting llama-cpp-python==0.3.36", "downloading the source"),
        ("  Installing build dependencies: started", "fetching the build tools"),
        ("Building wheel for llama-cpp-python\n-- Found Git", "configuring"),
        ("Building wheel\n  [1/144] /usr/bin/c++ a\n  [37/144] /usr/bin/c++ b\nwarning: [x]", "compiling, 37/144"),
        ("Building wheel\n  [  7%] Building CXX object", "compiling, 7 %"),
        ("  [144/144] link\n  -- Installing: lib", "packing the wheel"),
    ],
)
def test_stage_is_read_from_the_log(log: str, stage: str) -> None:
    assert engine.describe_stage(log) == stage


def test_failure_shows_the_end_of_the_log_and_a_way_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "build.log"
    lines = "\n\n".join(f"line {i}" for i in range(100))
    log.write_text(f"{lines}\n  error: subprocess-exited-with-error\n  pip on pip", encoding="utf-8")
    error = engine._explain_failure(PLAN, log)
    assert capsys.readouterr().err.splitlines() == [f"  | line {i}" for i in range(80, 100)]
    assert str(log) in error.hint
    assert 'CMAKE_ARGS="-DGGML_RPC=ON" make sweep' in error.hint


def test_missing_compiler_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match="no-such-compiler"):
        engine.build_wheel(PLAN, tmp_path, tmp_path / "build.log")


def test_own_environment_wins_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    monkeypatch.delenv("CC", raising=False)
    environment = engine._build_environment(PLAN)
    assert (environment["CXX"], environment["CC"]) == ("clang++", "cc")
    assert environment["CMAKE_ARGS"] == PLAN.cmake_args


@pytest.mark.parametrize("program", ["sleep 60", "trap '' INT; sleep 60 & wait"])
def test_interrupted_build_ends_with_all_it_started(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(engine, "_PATIENCE_S", 0.2)
    started = subprocess.Popen(["/bin/sh", "-c", program], start_new_session=True)
    engine._end(started)
    assert started.returncode is not None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_moving_line_speaks_now_and_then_in_a_log() -> None:
    stream, now = io.StringIO(), iter([0.0, 0.0, 0.0, 5.0, 5.0, 15.0, 15.0, 15.0])
    line = MovingLine(stream, lambda: next(now))
    for text in ("one", "two", "three"):
        line.show(text)
    assert stream.getvalue() == "  [0:00] one\n  [0:15] three\n"


def test_moving_line_is_redrawn_on_a_terminal() -> None:
    stream = Terminal()
    line = MovingLine(stream, lambda: 0.0)
    line.show("one")
    line.close()
    assert stream.getvalue() == "\r\x1b[K  [0:00] one\r\x1b[K"


def test_errors_become_two_lines_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise EngineError("It broke.", hint="Mend it.")

    assert run_command(fail) == EngineError.exit_code
    assert capsys.readouterr().err == "error: It broke.\n  next: Mend it.\n"

"""Install the engine into the Python that runs this: a wheel built once per kind of machine, kept in the user's cache.

`python -m offloadtune.install.engine`. pip's own cache cannot serve: it does not tell builds of different CMAKE_ARGS
apart. A wheel appears in its folder only by renaming a finished one, so whatever is found there is whole.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from offloadtune.errors import EngineError
from offloadtune.install.backend import DISTRIBUTION, BuildPlan, make_line, plan_build
from offloadtune.install.console import MovingLine, run_command, say
from offloadtune.install.facts import compiler_command, read_toolchain
from offloadtune.units import format_seconds

Build = Callable[[BuildPlan, Path, Path], None]
"""Put a wheel of the plan into the folder (second) and everything said meanwhile into the log (third)."""

_POLL_S = 0.5
_PATIENCE_S = 5.0
_N_LOG_LINES_SHOWN = 20
_LOG_TAIL_BYTES = 64 * 1024
_PIP_EPILOGUE = "error: subprocess-exited-with-error"
"""After it, pip talks of itself for a dozen lines."""
_STEP = re.compile(r"^\s*\[\s*(\d+)(?:/(\d+)|%)\]", re.MULTILINE)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # tidy up then as on Ctrl-C
    return run_command(install_engine)


def install_engine() -> None:
    plan = plan_build(read_toolchain(os.environ))
    wheel = ensure_wheel(plan, wheelhouse(os.environ), build_wheel)
    if is_installed(wheel):
        say(f"engine: {plan.title} is installed")
    else:
        say(f"engine: installing {wheel}")
        _install(wheel)


def wheelhouse(environ: Mapping[str, str]) -> Path:
    """Folder of the finished builds of all clones."""
    if folder := environ.get("OFFLOADTUNE_WHEELS"):
        return Path(folder).expanduser().absolute()
    if home := environ.get("OFFLOADTUNE_HOME"):
        return Path(home).expanduser().absolute() / "wheels"
    import platformdirs  # noqa: PLC0415  the rest of this module must work before it is installed

    return Path(platformdirs.user_cache_dir("offloadtune")) / "wheels"


# --- finding or building ---------------------------------------------------------------------------------------------


def find_wheel(folder: Path) -> Path | None:
    """The finished wheel in `folder`, if it holds one that opens."""
    return next((path for path in sorted(folder.glob("*.whl")) if zipfile.is_zipfile(path)), None)


def ensure_wheel(plan: BuildPlan, wheels: Path, build: Build) -> Path:
    """The wheel of `plan` in `wheels`, built there if this is the first time; two callers build it once."""
    folder = wheels / plan.key
    if wheel := find_wheel(folder):
        return wheel
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder / "lock"):
        return find_wheel(folder) or _build_into(folder, plan, build)


def _build_into(folder: Path, plan: BuildPlan, build: Build) -> Path:
    for leftover in folder.glob("building-*"):  # the lock is ours, so whoever made it was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as unfinished:
        build(plan, Path(unfinished), folder / "build.log")
        built = find_wheel(Path(unfinished))
        if built is None:
            raise EngineError("The build of the engine ended well but left no wheel.", hint=f"Read {folder}/build.log.")
        return built.replace(folder / built.name)


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("engine: the same build is under way in another process; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_wheel(plan: BuildPlan, folder: Path, log: Path) -> None:
    """Compile with pip, telling how far it is."""
    compiler = compiler_command(os.environ)
    if shutil.which(compiler[0]) is None:
        raise EngineError(
            f"The engine has to be compiled, and there is no C++ compiler {compiler[0]!r} here.",
            hint="Install one (Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++).",
        )
    _announce(plan, log)
    line = MovingLine(sys.stderr)
    with log.open("wb") as output:
        pip = subprocess.Popen(  # noqa: S603
            _build_command(plan, folder),
            env=_build_environment(plan),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _watch(pip, log, line)
        finally:
            _end(pip)
            line.close()
    if pip.returncode != 0:
        raise _explain_failure(plan, log)
    say(f"engine: built in {format_seconds(line.elapsed_s)}")


def _announce(plan: BuildPlan, log: Path) -> None:
    say(f"engine: building {plan.title}; this takes minutes, but only once")
    for reason in plan.reasons:
        say(f"  {reason}")
    say(f"  log: {log}")
    say(f"  to choose yourself, change this: {make_line(plan.cmake_args)}")


def _build_command(plan: BuildPlan, folder: Path) -> list[str]:
    options = ("--verbose", "--no-deps", "--no-cache-dir", "--no-binary", DISTRIBUTION, "--wheel-dir", str(folder))
    return [*_pip("wheel"), *options, f"{DISTRIBUTION}=={plan.engine_version}"]


def _build_environment(plan: BuildPlan) -> dict[str, str]:
    # Named outright, because the build would otherwise take the compiler that Python itself was built with.
    compilers = {"CXX": "c++", "CC": "cc"}
    n_jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    defaults = {"CMAKE_BUILD_PARALLEL_LEVEL": str(n_jobs), **compilers}
    return defaults | os.environ | {"CMAKE_ARGS": plan.cmake_args}


def _watch(pip: subprocess.Popen[bytes], log: Path, line: MovingLine) -> None:
    while True:
        try:
            pip.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            line.show(describe_stage(_read_tail(log)))
        else:
            return


def _end(pip: subprocess.Popen[bytes]) -> None:
    """When the watching was interrupted: end pip with the compilers it started, none may outlive us."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):  # on the first, pip tidies up
        if pip.poll() is None:
            os.killpg(pip.pid, signal_number)
            with suppress(subprocess.TimeoutExpired):
                pip.wait(timeout=_PATIENCE_S)


def describe_stage(tail: str) -> str:
    """What the build is doing, from the end of pip's log."""
    if "-- Installing:" in tail:
        return "packing the wheel"
    steps = _STEP.findall(tail)
    if steps:
        step, total = steps[-1]
        return f"compiling, {step}/{total}" if total else f"compiling, {step} %"
    if "Building wheel" in tail:
        return "configuring"
    if "Installing build dependencies" in tail:
        return "fetching the build tools"
    return "downloading the source"


def _read_tail(log: Path) -> str:
    with log.open("rb") as text:
        text.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return text.read().decode(errors="replace")


def _explain_failure(plan: BuildPlan, log: Path) -> EngineError:
    told, _, _ = _read_tail(log).partition(_PIP_EPILOGUE)
    lines = [text for text in told.splitlines() if text.strip()]
    for text in lines[-_N_LOG_LINES_SHOWN:]:
        say(f"  | {text}")
    hint = f"Look for the first error in {log}, mend it and run again"
    if plan.cpu_args != plan.cmake_args:
        hint += f"; or do without the GPU: {make_line(plan.cpu_args)}"
    return EngineError("The engine could not be built.", hint=hint)


# --- installing ------------------------------------------------------------------------------------------------------


def is_installed(wheel: Path) -> bool:
    """Whether this Python's engine is this very wheel: every hash of its package appears in what pip recorded."""
    importlib.invalidate_caches()
    try:
        installed = metadata.distribution(DISTRIBUTION).read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return False
    with zipfile.ZipFile(wheel) as archive:
        record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = archive.read(record).decode().splitlines()
    return {row for row in rows if row.startswith("llama_cpp/")} <= set(installed.splitlines())


def _install(wheel: Path) -> None:
    _run_pip("install", str(wheel))
    if not is_installed(wheel):  # pip leaves another build of the same version alone
        _run_pip("install", "--force-reinstall", "--no-deps", str(wheel))


def _run_pip(command: str, *arguments: str) -> None:
    done = subprocess.run([*_pip(command), "--quiet", *arguments], check=False)  # noqa: S603
    if done.returncode != 0:
        raise EngineError("pip could not install the engine.", hint="Read what pip says above, then run make again.")


def _pip(command: str) -> list[str]:
    return [sys.executable, "-m", "pip", command, "--disable-pip-version-check"]


if __name__ == "__main__":
    sys.exit(main())

"""The real llama-bench of the installed engine's own source, linked against the installed engine's own libraries.

Nothing is built where the environment variable LLAMA_BENCH names a program. Else the source of the llama-cpp-python
installed here is downloaded once, and llama-bench with what it shares with the other tools is compiled into the user's
cache folder: the engine itself, and so every kernel, is the very one that offloadtune loads.

    python benchmarks/llama_bench_build.py          prints where it is, and how to start it
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import filelock
import platformdirs

from offloadtune.engine import installed_build_id
from offloadtune.errors import EngineError, EngineMissingError, OffloadTuneError

DISTRIBUTION = "llama-cpp-python"
_PROJECT = """\
cmake_minimum_required(VERSION 3.21)
project(llama_bench C CXX)
set(CMAKE_CXX_STANDARD 17)
set(BUILD_SHARED_LIBS OFF)
set(LLAMA_BUILD_COMMON ON)
set(LLAMA_VERSION_BASE 0)
set(LLAMA_VERSION_MAJOR 0)
set(LLAMA_BUILD_NUMBER 0)        # as llama.cpp's own build has it without git
set(LLAMA_BUILD_COMMIT unknown)
function(llama_add_compile_flags)
endfunction()
function(license_add_file)
endfunction()
foreach(name ggml-base ggml llama)
    add_library(${name} SHARED IMPORTED GLOBAL)
    set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${LIBRARIES}/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX})
    target_include_directories(${name} INTERFACE ${SOURCE}/include ${SOURCE}/ggml/include)
endforeach()
target_link_libraries(llama INTERFACE ggml ggml-base)
add_subdirectory(${SOURCE}/vendor vendor)
add_subdirectory(${SOURCE}/common common)
add_subdirectory(${SOURCE}/tools/llama-bench llama-bench)
"""


@dataclass(frozen=True, kw_only=True)
class LlamaBench:
    """A llama-bench to be started with `environment`, so that it finds the engine's libraries."""

    path: Path
    environment: dict[str, str]


def ensure_llama_bench() -> LlamaBench:
    """The program, built first where it has to be. Raises EngineError, EngineMissingError."""
    libraries = _library_folder()
    found = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(found), "GGML_NO_BACKTRACE": "1"}
    if named := os.environ.get("LLAMA_BENCH"):
        if not os.access(named, os.X_OK):
            raise EngineError(f"LLAMA_BENCH names no program: {named!r}.", hint="give its path, or unset LLAMA_BENCH")
        return LlamaBench(path=Path(named).absolute(), environment=environment)
    version = metadata.version(DISTRIBUTION)
    folder = _cache_folder() / f"{version}-{installed_build_id()}"
    program = folder / "llama-bench"
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "lock"):
        if not program.exists():
            _build(version, libraries, folder, program)
    return LlamaBench(path=program, environment=environment)


def _library_folder() -> Path:
    spec = util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise EngineMissingError(f"{DISTRIBUTION} is not installed in this Python.", hint="run make engine first")
    return Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(spec.origin).parent / "lib")


def _cache_folder() -> Path:
    home = os.environ.get("OFFLOADTUNE_HOME")
    return (Path(home).absolute() if home else Path(platformdirs.user_cache_dir("offloadtune"))) / "llama-bench"


def _build(version: str, libraries: Path, folder: Path, program: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        raise EngineError("Building llama-bench takes cmake, and there is none here.", hint="install cmake")
    for leftover in folder.glob("building-*"):  # the lock is ours, so whoever made it was killed
        shutil.rmtree(leftover, ignore_errors=True)
    log = folder / "build.log"
    print(f"llama-bench: building it once, for minutes; log: {log}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as name, log.open("wb") as output:
        work = Path(name)
        source = _source(version, work, output.fileno())
        (work / "CMakeLists.txt").write_text(_PROJECT, encoding="utf-8")
        options = ["-DCMAKE_BUILD_TYPE=Release", f"-DSOURCE={source}", f"-DLIBRARIES={libraries}"]
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        _run([cmake, "-S", str(work), "-B", str(work / "build"), *generator, *options], output.fileno())
        jobs = ["--parallel", str(os.cpu_count() or 1)]
        _run([cmake, "--build", str(work / "build"), "--target", "llama-bench", *jobs], output.fileno())
        (work / "build" / "llama-bench" / "llama-bench").replace(program)


def _source(version: str, work: Path, log: int) -> Path:
    """llama.cpp's source as it lies in the package's."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(work)]
    _run([*pip, f"{DISTRIBUTION}=={version}"], log)
    for archive in work.glob("*.tar.gz"):
        with tarfile.open(archive) as files:
            files.extractall(work / "source", filter="data")
    found = list((work / "source").glob("*/vendor/llama.cpp"))
    if not found:
        raise EngineError(f"The source of {DISTRIBUTION} {version} has no llama.cpp.", hint="set LLAMA_BENCH instead")
    return found[0]


def _run(command: list[str], log: int) -> None:
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
    if done.returncode != 0:
        message = f"llama-bench could not be built: {Path(command[0]).name} ended with {done.returncode}."
        raise EngineError(message, hint="read the log; or set LLAMA_BENCH to a llama-bench of the same version")


@contextlib.contextmanager
def telling_errors() -> Iterator[None]:
    """End with one sentence and its exit code, as the command line does."""
    try:
        yield
    except OffloadTuneError as error:
        print(f"{error}\n  next: {error.hint}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    with telling_errors():
        built = ensure_llama_bench()
    print(f"LD_LIBRARY_PATH={built.environment['LD_LIBRARY_PATH']} {built.path}")

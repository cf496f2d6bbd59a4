"""Which build of the engine is installed, told without loading it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from offloadtune.engine import installed_build_id
from offloadtune.engine.build import build_id


def test_names_sizes_and_first_bytes_tell_builds_apart(tmp_path: Path) -> None:
    library = tmp_path / "libllama.so.1"
    library.write_bytes(b"one")
    ids = [build_id(tmp_path)]
    (tmp_path / "readme.txt").write_bytes(b"not a library")
    assert build_id(tmp_path) == ids[0]
    library.write_bytes(b"two")
    ids.append(build_id(tmp_path))
    library.write_bytes(b"twos")
    ids.append(build_id(tmp_path))
    library.rename(tmp_path / "libggml.dylib")
    ids.append(build_id(tmp_path))
    assert len(set(ids)) == 4


def test_the_folder_that_the_engine_would_load_from_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llama_cpp"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('it must not be loaded')")
    (package / "lib" / "libllama.so").write_bytes(b"packaged")
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    packaged = installed_build_id()
    assert packaged == build_id(package / "lib")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert installed_build_id() not in {None, packaged}


def test_without_an_engine_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert installed_build_id() is None


def test_asking_loads_no_engine() -> None:
    code = "import sys; from offloadtune.engine import installed_build_id; installed_build_id(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "llama_cpp" not in done.stdout.split()

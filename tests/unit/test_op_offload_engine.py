"""The engine on software Vulkan: what is missing is said in one sentence, a missing function is missed when called."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

vulkan: Any = importlib.import_module("vulkan_engine")


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan.ctypes, "CDLL", lambda _name: None)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: None) -> Path:  # noqa: ARG001
    found = tmp_path / "lvp_icd.x86_64.json"
    found.touch()
    monkeypatch.setattr(vulkan, "_DRIVER_FOLDERS", (str(tmp_path / "none"), str(tmp_path)))
    return found


def test_without_a_loader_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError

    monkeypatch.setattr(vulkan.ctypes, "CDLL", missing)
    with pytest.raises(vulkan.VulkanMissingError, match=r"libvulkan\.so\.1.*apt-get install mesa-vulkan-drivers"):
        vulkan.find_driver()


@pytest.mark.usefixtures("loader")
def test_without_a_driver_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "_DRIVER_FOLDERS", (str(tmp_path),))
    with pytest.raises(vulkan.VulkanMissingError, match="llvmpipe, is not installed here; on Debian: apt-get install"):
        vulkan.find_driver()


def test_the_driver_is_found(driver: Path) -> None:
    assert vulkan.find_driver() == driver


@pytest.mark.usefixtures("driver")
def test_without_npm_nothing_is_left_behind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(vulkan.VulkanMissingError, match="takes npm"):
        vulkan.ensure_vulkan_engine()
    assert not vulkan.libraries_folder().exists()
    assert not list((home / "vulkan-engine").glob("getting-*"))


@pytest.mark.usefixtures("driver")
def test_npm_that_fails_is_quoted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = home / "npm"
    npm.write_text("#!/bin/sh\necho noise >&2\necho no network >&2\nexit 1\n", encoding="ascii")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:/bin:/usr/bin")
    with pytest.raises(vulkan.VulkanMissingError, match=r"could not get .*: no network; check the network"):
        vulkan.ensure_vulkan_engine()


def test_another_archive_is_not_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "package.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(vulkan.VulkanMissingError, match="by its SHA-512"):
        vulkan.check_archive(archive)


def test_setting_up_ends_with_1_where_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vulkan, "_DRIVER_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(vulkan.ctypes, "CDLL", lambda _name: None)
    monkeypatch.setattr(sys, "argv", ["vulkan_engine.py", "--set-up"])
    with pytest.raises(SystemExit) as ended:
        vulkan.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_asking_what_is_here_downloads_nothing(
    driver: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vulkan_engine.py"])
    vulkan.main()
    assert capsys.readouterr().out == f"driver     {driver}\nlibraries  not here; get them with --set-up\n"


def test_a_missing_function_is_declared_but_not_called() -> None:
    library = vulkan.TolerantLibrary(None)
    library.llama_not_there.argtypes = [ctypes.c_int]
    with pytest.raises(NotImplementedError, match="has no llama_not_there"):
        library.llama_not_there(1)
    assert library.abs(-3) == 3


def test_asking_for_a_missing_function_by_key_tells() -> None:
    """The worker asks that way whether a build has what it can do without."""
    with pytest.raises(AttributeError):
        vulkan.TolerantLibrary(None)["llama_not_there"]

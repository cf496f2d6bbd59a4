"""The engine's library files: where they lie and what tells one build from another, without loading any.

Both the worker, which does load them, and those who only compare ask here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path


def library_dir(package: Path) -> Path:
    """Folder of the libraries that the `llama_cpp` at `package` loads."""
    return Path(os.environ.get("LLAMA_CPP_LIB_PATH") or package / "lib")


def build_id(folder: Path) -> str:
    """12 hex digits over names, sizes and first bytes of the libraries in `folder`."""
    digest = hashlib.sha256()
    for library in sorted(folder.glob("*")):
        if library.is_file() and (".so" in library.name or library.suffix in {".dylib", ".dll"}):
            with library.open("rb") as stream:
                digest.update(f"{library.name} {library.stat().st_size}".encode() + stream.read(1 << 16))
    return digest.hexdigest()[:12]


def installed_build_id() -> str | None:
    """The build that a sweep would measure with now, None where no engine is installed."""
    try:
        spec = importlib.util.find_spec("llama_cpp")
        return build_id(library_dir(Path(spec.origin).parent)) if spec and spec.origin else None
    except (ImportError, ValueError, OSError):
        return None

"""The only writer of files that users keep: whole or not at all; into what is no file of its own, plainly."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from offloadtune.errors import ExportError


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` atomically. A pipe, a device or a link is written into. Raises ExportError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _is_special(path):
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except UnicodeEncodeError:
        message = f"{path} cannot be written: a name in it is not valid UTF-8."
        raise ExportError(message, hint="rename the model file or its folder") from None
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}."
        raise ExportError(message, hint="check the folder's permissions and free space") from None


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False

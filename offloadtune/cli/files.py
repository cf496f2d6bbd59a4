"""FILE on the command line: a path, or a name of `offloadtune list`."""

from __future__ import annotations

import os
from pathlib import Path


def path_of(file: str, *, may_be_gone: bool = False) -> Path:
    """The file that `file` is or names; a path that exists is not looked for. Raises UsageError, GgufError.

    With `may_be_gone` what names nothing is taken as a path: journals may know what the disk does not any more.
    """
    if os.path.lexists(file):
        return Path(file)
    from offloadtune import pipeline  # noqa: PLC0415 - kept out of --help
    from offloadtune.cli import console  # noqa: PLC0415
    from offloadtune.errors import GgufError  # noqa: PLC0415

    try:
        return pipeline.resolve(file, console.tell)
    except GgufError:
        if may_be_gone:
            return Path(file)
        raise

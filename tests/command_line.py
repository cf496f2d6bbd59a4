"""The command line as a user meets it: run it, see how it ended, check that a refusal reads as one should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offloadtune import cli
from offloadtune.errors import EXIT_CODES

SHORT = ("--workload", "0/16/4/1", "--n-ctx", "512")


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str, wall_s: float = 0.0) -> None:
        self.code, self.out, self.err, self.wall_s = code, out, err, wall_s


def offloadtune(*arguments: str | Path, **environment: str) -> Ended:
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "offloadtune", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - start_s)


def check_refused(ended: Ended, code: int, *words: str) -> None:
    """One sentence with `words` and one next step on stderr, nothing on stdout, and `code`."""
    assert ended.code == code, ended.err
    assert code in EXIT_CODES
    assert ended.out == ""
    assert "Traceback" not in ended.err
    lines = ended.err.splitlines()
    sentences = [i for i, line in enumerate(lines) if line.startswith("offloadtune: ")]
    assert len(sentences) == 1, ended.err
    sentence, *rest = lines[sentences[0] :]
    for word in words:
        assert word in sentence
    assert re.fullmatch(r"offloadtune: .{10,}\.", sentence), sentence
    assert len(rest) == 1, ended.err
    assert re.fullmatch(r"  next: \S.{5,}", rest[0]), rest


class InProcess:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["offloadtune", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = self._capsys.readouterr()
        code = caught.value.code
        return Ended(code if isinstance(code, int) else -1, captured.out, captured.err)

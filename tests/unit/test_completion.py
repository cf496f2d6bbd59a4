"""The shell completes commands and the values of options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from offloadtune.records import WORKLOADS, Goal, Target

AS_INSTALLED = "import sys; sys.argv = ['offloadtune']; from offloadtune.cli import main; main()"


def offered(line: str) -> list[str]:
    """What bash offers at the end of `line`."""
    words = line.split(" ")
    asked = {"_OFFLOADTUNE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", AS_INSTALLED],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, **asked},
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("offloadtune ", ["probe", "inspect", "plan", "sweep", "recommend", "history", "export", "apply"]),
        ("offloadtune rec", ["recommend"]),
        ("offloadtune sweep --workload ", list(WORKLOADS)),
        ("offloadtune recommend --goal t", [goal.value for goal in Goal if goal.startswith("t")]),
        ("offloadtune apply --target ", [target.value for target in Target]),
    ],
)
def test_the_shell_completes(line: str, words: list[str]) -> None:
    assert offered(line) == words

"""The shell completes commands and the values of options."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from offloadtune.catalogue import find_card, find_quant, find_shape
from offloadtune.cli import completion
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
        (
            "offloadtune ",
            [
                "probe",
                "doctor",
                "inspect",
                "list",
                "plan",
                "standin",
                "workload",
                "calibrate",
                "sweep",
                "bench",
                "recommend",
                "history",
                "export",
                "apply",
            ],
        ),
        ("offloadtune rec", ["recommend"]),
        ("offloadtune sweep --workload ", list(WORKLOADS)),
        ("offloadtune recommend --goal t", [goal.value for goal in Goal if goal.startswith("t")]),
        ("offloadtune apply --target ", [target.value for target in Target]),
        ("offloadtune plan --shape llama-3-", ["llama-3-8b", "llama-3-70b"]),
        ("offloadtune plan --quant q4_k", ["q4_k_S", "q4_k_M"]),
        ("offloadtune plan --card rtx-309", ["rtx-3090", "rtx-3090-Ti"]),
        ("offloadtune plan --type-k q8", ["q8_0"]),
    ],
)
def test_the_shell_completes(line: str, words: list[str]) -> None:
    assert offered(line) == words


def test_every_name_that_is_offered_is_understood() -> None:
    for list_names, find in (("shape_names", find_shape), ("quant_names", find_quant), ("card_names", find_card)):
        offers = completion.name_of(list_names)("")
        assert len(offers) > 20
        for name in offers:
            assert shlex.quote(name) == name
            find(name)

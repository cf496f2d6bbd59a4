"""Every way to stop has its own exit code, and the README says which."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from offloadtune.errors import EXIT_CODES, OffloadTuneError

README = Path(__file__).parents[2] / "README.md"


def leaves(kind: type[OffloadTuneError]) -> list[type[OffloadTuneError]]:
    below = [leaf for sub in kind.__subclasses__() for leaf in leaves(sub)]
    return below or [kind]


LEAVES = leaves(OffloadTuneError)


def readme_exit_codes(markdown: str) -> dict[int, str]:
    """Rows `| N | meaning |` under the heading that speaks of exit codes."""
    section = re.search(
        r"^#+ [^\n]*exit codes?\b[^\n]*\n(.*?)(?=^#|\Z)", markdown, re.IGNORECASE | re.DOTALL | re.MULTILINE
    )
    rows = re.findall(r"^\|\s*`?(\d+)`?\s*\|\s*(.*?)\s*\|\s*$", section[1] if section else "", re.MULTILINE)
    return {int(code): meaning for code, meaning in rows}


def test_exit_codes_are_unique() -> None:
    repeated = {code: n for code, n in Counter(leaf.exit_code for leaf in LEAVES).items() if n > 1}
    assert repeated == {}


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_leaf_has_a_meaning_of_its_own(leaf: type[OffloadTuneError]) -> None:
    assert "exit_code" in vars(leaf)
    assert leaf.exit_code in EXIT_CODES
    assert leaf.exit_code not in {0, 1}


def test_every_code_but_success_and_mistake_belongs_to_a_leaf() -> None:
    assert set(EXIT_CODES) - {0, 1} == {leaf.exit_code for leaf in LEAVES}
    assert all(0 <= code < 256 for code in EXIT_CODES)
    assert OffloadTuneError.exit_code == 1


def test_an_error_is_a_sentence_with_a_next_step() -> None:
    error = LEAVES[0]("The file is missing.", hint="check the path")
    assert (str(error), error.hint) == ("The file is missing.", "check the path")
    assert LEAVES[0]("The file is missing.").hint == ""


def test_the_readme_prints_the_same_codes() -> None:
    assert readme_exit_codes(README.read_text(encoding="utf-8")) == EXIT_CODES


def test_readme_reader_reads_one_section_only() -> None:
    table = "\n| code | meaning |\n|---|---|\n| 0 | done |\n| `2` | wrong |\n"
    markdown = f"# A\n| 9 | no |\n## Exit codes\n{table}## B\n| 7 | no |\n"
    assert readme_exit_codes(markdown) == {0: "done", 2: "wrong"}

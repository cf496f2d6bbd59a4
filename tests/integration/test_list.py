"""The list as a user meets it, and its names in place of paths, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_line import SHORT, Ended, check_refused, offloadtune

UNSET = dict.fromkeys(
    ("LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME"), ""
)


class User:
    """Someone with a home of their own, and an LM Studio in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {**UNSET, "HOME": str(home), "OLLAMA_MODELS": str(home / "ollama")}
        self.shelf = home / ".lmstudio/models/owner/name-GGUF"

    def __call__(self, *arguments: str | Path) -> Ended:
        return offloadtune(*arguments, **self.environment)

    def files(self) -> list[dict[str, Any]]:
        """Files of the list that are theirs: services of the machine may have others."""
        files: list[dict[str, Any]] = json.loads(self("list", "--json").out)["files"]
        return [file for file in files if file["path"].startswith(f"{self.home}/")]

    def put(self, path: Path, name: str) -> Path:
        self.shelf.mkdir(parents=True, exist_ok=True)
        link = self.shelf / name
        link.symlink_to(path)
        return link


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path / "user")


def test_where_there_is_nothing_it_says_where_it_looked_and_what_to_do(user: User) -> None:
    ended = user("list")
    assert (ended.code, ended.err) == (0, "")
    value = json.loads(user("list", "--json").out)
    assert user.files() == []
    assert {"program": "LM Studio", "path": f"{user.home}/.lmstudio/models", "is_there": False} in value["shelves"]
    if value["files"]:
        pytest.skip("a service of this machine keeps GGUF files")
    assert value["devices"] is None
    assert ended.out.startswith("No GGUF file was found")
    assert f"- {user.home}/.lmstudio/models (LM Studio): not there\n" in ended.out
    assert ended.out.splitlines()[-1].startswith("Next: put a .gguf file into ./gguf_models")


@pytest.mark.engine
def test_what_is_there_is_listed_and_taken_by_its_name(user: User, smollm2_path: Path, gemma3_path: Path) -> None:
    user.put(smollm2_path, "mine-small.Q4_1.gguf")
    user.put(gemma3_path, "mine-large-Q4_K_M.gguf")
    ended = user("list")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("Fits with n_ctx=4096")
    assert lines[2].split()[0] == "name"
    words = [line.split()[0] for line in lines if line.strip()]
    rows = [(name, arch) for name, arch in pairwise(words) if name.startswith("mine-")]
    assert rows == [("mine-large-Q4_K_M", "gemma3"), ("mine-small.Q4_1", "llama")]
    assert lines[-1].startswith("Next: offloadtune sweep ")
    for file in user.files():
        assert file["fit"]["verdict"] in {"all", "some", "main_memory"}


@pytest.mark.engine
def test_a_sweep_by_name_leaves_a_profile_that_the_list_knows(user: User, smollm2_path: Path) -> None:
    path = user.put(smollm2_path, "mine-small.Q4_1.gguf")
    fixed = [f"--set={one}" for one in ("flash_attn_type=enabled", "n_ubatch=64", "n_threads=1", "n_threads_batch=1")]
    ended = user("sweep", "mine-small", *SHORT, "--budget", "60s", "--json", *fixed)  # few settings, and time for them
    assert ended.code == 0, ended.err
    assert f"mine-small is {path} (LM Studio)." in ended.err.splitlines()
    (file,) = user.files()
    assert file["has_profile"] is True
    for command in (["recommend"], ["export"], ["apply", "--print"], ["history"]):
        asked = user(command[0], "owner/name-GGUF:Q4_1", *command[1:])
        assert asked.code == 0, asked.err


@pytest.mark.parametrize(
    "command",
    [["inspect"], ["plan", "--card", "RTX 3090"], ["plan", "--draft"], ["history"]],
)
def test_commands_take_a_name(command: list[str], user: User, smollm2_path: Path) -> None:
    path = user.put(smollm2_path, "mine-small.Q4_1.gguf")
    options = [str(path), "--card", "RTX 3090", "--draft"] if "--draft" in command else command[1:]
    ended = user(command[0], *options, "mine-small")
    assert ended.code == 0, ended.err
    assert ended.err == f"mine-small is {path} (LM Studio).\n"
    by_path = [*options, str(path)]
    assert ended.out == user(command[0], *by_path).out


def test_the_doctor_takes_a_name(user: User, smollm2_path: Path) -> None:
    path = user.put(smollm2_path, "mine-small.Q4_1.gguf")
    by_name, by_path = user("doctor", "--quick", "mine-small"), user("doctor", "--quick", path)
    assert (by_name.code, by_path.code) == (0, 0)
    assert (by_name.err, by_path.err) == (f"mine-small is {path} (LM Studio).\n", "")
    for line in (0, -1):  # the machine and its file; figures between them are those of the moment
        assert by_name.out.splitlines()[line] == by_path.out.splitlines()[line]


@pytest.mark.parametrize("command", ["inspect", "plan", "sweep", "bench", "recommend", "export", "apply", "doctor"])
def test_a_name_that_nothing_has(command: str, user: User, smollm2_path: Path) -> None:
    user.put(smollm2_path, "mine-small.Q4_1.gguf")
    ended = user(command, "mine-smell")
    check_refused(ended, 11, "mine-smell does not exist.")
    assert "use mine-small.Q4_1, or another name that offloadtune list shows" in ended.err


def test_a_name_that_several_have(user: User, smollm2_path: Path, gemma3_path: Path) -> None:
    user.put(smollm2_path, "mine-small.gguf")
    user.put(gemma3_path, "mine-large.gguf")
    check_refused(user("inspect", "mine"), 2, "'mine' names 2 files here: mine-large, mine-small.")


def test_history_of_what_is_gone_goes_on(user: User) -> None:
    ended = user("history", "gone.gguf")
    assert (ended.code, ended.err) == (0, "")
    assert "Nothing was measured of gone.gguf" in ended.out


def test_a_folder_is_looked_into_and_shown_safely(user: User, tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    (folder / "evil\x1b[2J\nname.gguf").write_bytes(b"GGUF")
    ended = user("list", folder)
    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    assert f"- {folder}/evil[2Jname.gguf is cut short" in ended.out
    check_refused(user("list", tmp_path / "absent"), 2, "absent does not exist.")


def test_without_the_engine_the_list_says_that_the_fit_is_not_known(
    user: User, smollm2_path: Path, without_engine: dict[str, str]
) -> None:
    user.put(smollm2_path, "mine-small.gguf")
    user.environment |= without_engine
    ended = user("list")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Whether they fit is not known: The engine, llama-cpp-python, is not installed")


def test_a_path_that_exists_costs_no_search(smollm2_path: Path) -> None:
    script = (
        f"import sys\nsys.argv = ['offloadtune', 'inspect', {str(smollm2_path)!r}]\n"
        "from offloadtune.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "sys.exit('offloadtune.shelves' in sys.modules or 'offloadtune.pipeline.naming' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)

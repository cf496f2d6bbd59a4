"""A word in place of a path: the one file that it means, or a refusal that helps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.cli import files as cli_files
from offloadtune.errors import GgufError, UsageError
from offloadtune.listings import Shelved, ShelvedFile
from offloadtune.pipeline import naming
from offloadtune.pipeline.naming import handles_of, is_path, matches, resolve
from offloadtune.sweeps import Said


def shelved(path: str, *names: str, repository: str = "", trouble: str = "", companion: str = "") -> ShelvedFile:
    return ShelvedFile(
        path=Path(path),
        program="a program",
        names=names,
        file_bytes=1,
        repository=repository,
        trouble=trouble,
        companion=companion,
    )


SMALL = shelved("/m/SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1")
LLAMA_Q4 = shelved("/h/llama-3-8b-Q4_K_M.gguf", "llama-3-8b-Q4_K_M", repository="owner/llama-3-8b-GGUF")
LLAMA_Q8 = shelved("/h/llama-3-8b-Q8_0.gguf", "llama-3-8b-Q8_0", repository="owner/llama-3-8b-GGUF")
FLAT = shelved("/c/ggml-org_gemma-GGUF_gemma-Q8_0.gguf", "ggml-org_gemma-GGUF_gemma-Q8_0")
OLLAMA = shelved("/o/sha256-ab", "llama3.2:latest", "llama3.2")
OLLAMA_3B = shelved("/o/sha256-cd", "llama3.2:3b")
PROJECTOR = shelved("/h/mmproj-F16.gguf", "mmproj-F16", companion="projector of images")
HALF = shelved("/m/half.gguf.part", "half", trouble="is a download under way")
FILES = (SMALL, LLAMA_Q4, LLAMA_Q8, FLAT, OLLAMA, OLLAMA_3B, PROJECTOR, HALF)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SmolLM2-135M.Q4_1", [SMALL]),
        ("smollm2-135m.q4_1.GGUF", [SMALL]),
        ("smol", [SMALL]),
        ("135m", [SMALL]),
        ("Q8_0", [LLAMA_Q8, FLAT]),
        ("llama-3-8b", [LLAMA_Q4, LLAMA_Q8]),
        ("llama-3-8b.gguf", []),  # a whole name, of a file that is not here
        ("llama3.2:3b", [OLLAMA_3B]),
        ("llama3.2", [OLLAMA]),
        ("llama3", [OLLAMA, OLLAMA_3B]),
        ("owner/llama-3-8b-GGUF:Q8_0", [LLAMA_Q8]),
        ("Owner/Llama-3-8b-gguf:q4_k_m", [LLAMA_Q4]),
        ("owner/llama-3-8b-GGUF:Q2_K", []),
        ("ggml-org/gemma-GGUF:Q8_0", [FLAT]),
        ("mmproj", []),
        ("mmproj-F16", [PROJECTOR]),
        ("hal", []),
        ("half", [HALF]),  # the reader says what is wrong with it
        ("nothing like it", []),
    ],
)
def test_what_a_word_means(text: str, found: list[ShelvedFile]) -> None:
    assert matches(text, FILES) == found


def test_a_whole_file_hides_a_download_of_the_same_name() -> None:
    whole = shelved("/m/half.gguf", "half")
    assert matches("half", (HALF, whole)) == [whole]


def test_a_download_given_up_does_not_hide_the_finished_file_of_its_repository() -> None:
    given_up = shelved(
        "/b/x.incomplete", "owner/llama-3-8b-GGUF", repository="owner/llama-3-8b-GGUF", trouble="is half"
    )
    whole = shelved("/h/q4.gguf", "q4", "owner/llama-3-8b-GGUF/q4", repository="owner/llama-3-8b-GGUF")
    assert matches("owner/llama-3-8b-GGUF", (given_up, whole)) == [whole]
    assert matches("owner/llama-3-8b-GGUF", (given_up, SMALL)) == [given_up]


def test_a_file_that_cannot_be_used_is_not_taken_for_another() -> None:
    assert matches("half", (HALF, shelved("/m/half-2.gguf", "half-2"))) == [HALF]


def tell_nobody(_said: Said) -> None:
    """For whom it makes no difference."""


WORDS = st.text(st.sampled_from("aB.-/:_1é"), min_size=1, max_size=4)


@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=6))
def test_every_file_is_found_by_what_it_is_called(names: list[list[str]]) -> None:
    files = [shelved(f"/m/{i}.gguf", *some) for i, some in enumerate(names)]
    handles = handles_of(files)
    assert len(set(handles.values())) == len(files)
    for file in files:
        assert handles[file] == str(file.path) or matches(handles[file], files) == [file]


def test_files_of_one_name_are_called_by_more_of_it_or_by_their_paths() -> None:
    nested = shelved("/h/x/model-Q4.gguf", "model-Q4", "owner/name/model-Q4")
    plain, other = shelved("/m/model-Q4.gguf", "model-Q4"), shelved("/k/MODEL-Q4.gguf", "MODEL-Q4")
    handles = handles_of((nested, plain, other))
    assert handles == {nested: "owner/name/model-Q4", plain: "/m/model-Q4.gguf", other: "/k/MODEL-Q4.gguf"}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Said]:
    """What is told, where the shelves hold FILES."""
    monkeypatch.setattr(naming, "shelved_here", lambda: Shelved(files=FILES, shelves=()))
    return []


def test_the_file_that_a_name_took_is_told(heard: list[Said]) -> None:
    assert resolve("smol", heard.append) == SMALL.path
    assert [one.text for one in heard] == ["smol is /m/SmolLM2-135M.Q4_1.gguf (a program)."]


def test_several_files_are_listed(heard: list[Said]) -> None:
    with pytest.raises(UsageError) as caught:
        resolve("llama-3-8b", heard.append)
    assert str(caught.value) == "'llama-3-8b' names 2 files here: llama-3-8b-Q4_K_M, llama-3-8b-Q8_0."
    assert (caught.value.hint, heard) == ("write more of the name, or the path of one", [])


def test_of_many_files_the_first_are_listed_and_their_control_characters_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = tuple(shelved(f"/m/{i:02}.gguf", f"x\x1b[2J{i:02}") for i in range(20))
    monkeypatch.setattr(naming, "shelved_here", lambda: Shelved(files=many, shelves=()))
    with pytest.raises(UsageError, match=r"names 20 files here: x\[2J00, .*x\[2J07 and 12 more\.\Z") as caught:
        resolve("x", tell_nobody)
    assert "\x1b" not in str(caught.value)


def test_a_word_that_means_nothing_is_a_file_that_is_missing(heard: list[Said]) -> None:
    with pytest.raises(GgufError) as caught:
        resolve("SmolLM-135M.gguf", heard.append)
    assert str(caught.value) == "SmolLM-135M.gguf does not exist."
    assert caught.value.hint.startswith("use SmolLM2-135M.Q4_1")
    assert "offloadtune list" in caught.value.hint


def test_where_nothing_is_near_the_list_is_named(heard: list[Said]) -> None:
    with pytest.raises(GgufError, match=r"^zzz does not exist\.$") as caught:
        resolve("zzz", heard.append)
    assert "offloadtune list" in caught.value.hint


@pytest.mark.parametrize("text", ["", ".", "./smol", "../smol", "~/smol", "/smol", "x" * 5000, "a\0b"])
def test_a_path_is_never_looked_for(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "shelved_here", lambda: pytest.fail("looked for"))
    assert is_path(text)
    assert resolve(text, tell_nobody) == Path(text)


def test_a_path_that_exists_wins_over_a_name(heard: list[Said]) -> None:
    Path("smol").touch()
    Path("llama3").symlink_to("nowhere")
    assert resolve("smol", heard.append) == Path("smol")
    assert resolve("llama3", heard.append) == Path("llama3")
    assert heard == []


@given(st.text(max_size=20))
def test_whatever_is_typed_is_a_path_or_refused_in_a_sentence(text: str) -> None:
    def look() -> Shelved:
        return Shelved(files=FILES, shelves=())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(naming, "shelved_here", look)
        try:
            assert resolve(text, tell_nobody) in {Path(text), *(file.path for file in FILES)}
        except (GgufError, UsageError):
            assert not is_path(text)


@pytest.mark.usefixtures("heard")
def test_what_is_gone_keeps_its_name_where_journals_may_know_it() -> None:
    assert cli_files.path_of("zzz.gguf", may_be_gone=True) == Path("zzz.gguf")
    assert cli_files.path_of("SmolLM2-135M.Q4_1.gguf", may_be_gone=True) == SMALL.path
    with pytest.raises(GgufError):
        cli_files.path_of("zzz.gguf")


def test_the_shelves_are_those_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for path in (tmp_path / ".lmstudio/models/owner/name/one-of-mine.gguf", Path("gguf_models/two-of-mine.gguf")):
        path.parent.mkdir(parents=True)
        path.touch()
    assert resolve("one-of", tell_nobody) == tmp_path / ".lmstudio/models/owner/name/one-of-mine.gguf"
    assert resolve("two-of", tell_nobody) == Path("gguf_models") / "two-of-mine.gguf"
    assert not os.path.lexists("one-of")

"""Shelves of other programs, made up in a home of our own: what lies there is found once, and within bounds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloadtune.listings import Shelved, ShelvedFile
from offloadtune.shelves import Layout, Place, given_places, has_quantisation, look, usual_places, walking
from offloadtune.shelves.titles import Title, companion_of, shard_words, title_of
from offloadtune.shelves.walking import Walk

HEX = "ab" * 32


def put(path: Path, n_bytes: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"G" * n_bytes)
    return path


def tree(root: Path, **changes: object) -> Place:
    return Place(program="a program", path=root, **changes)  # type: ignore[arg-type]


def by_name(found: Shelved) -> dict[str, ShelvedFile]:
    return {file.names[0]: file for file in found.files}


# --- which folders -------------------------------------------------------------------------------------------------


def paths_of(program: str, environ: dict[str, str], home: Path, platform: str = "linux") -> list[str]:
    places = [place for place in usual_places(environ, home, platform) if place.program == program]
    return list(dict.fromkeys(str(place.path) for place in places))


@pytest.mark.parametrize(
    ("platform", "environ", "program", "paths"),
    [
        ("linux", {}, "llama.cpp", ["H/.cache/llama.cpp"]),
        ("linux", {"XDG_CACHE_HOME": "/c"}, "llama.cpp", ["/c/llama.cpp"]),
        ("linux", {"LLAMA_CACHE": "/l", "XDG_CACHE_HOME": "/c"}, "llama.cpp", ["/l"]),
        ("darwin", {}, "llama.cpp", ["H/Library/Caches/llama.cpp"]),
        ("win32", {"LOCALAPPDATA": "/local"}, "llama.cpp", ["/local/llama.cpp"]),
        ("linux", {}, "Hugging Face", ["H/.cache/huggingface/hub"]),
        ("linux", {"HF_HOME": "/hf"}, "Hugging Face", ["/hf/hub"]),
        ("linux", {"HF_HOME": "/hf", "HF_HUB_CACHE": "/hub"}, "Hugging Face", ["/hub"]),
        ("linux", {"XDG_CACHE_HOME": "/c"}, "Hugging Face", ["/c/huggingface/hub"]),
        ("darwin", {}, "Hugging Face", ["H/.cache/huggingface/hub"]),
        ("linux", {}, "LM Studio", ["H/.lmstudio/models", "H/.cache/lm-studio/models"]),
        ("darwin", {}, "Ollama", ["H/.ollama/models"]),
        ("darwin", {"OLLAMA_MODELS": "/o"}, "Ollama", ["/o"]),
        ("darwin", {}, "GPT4All", ["H/Library/Application Support/nomic.ai/GPT4All", "H/.cache/gpt4all"]),
        ("win32", {"LOCALAPPDATA": "/local"}, "GPT4All", ["/local/nomic.ai/GPT4All", "H/.cache/gpt4all"]),
        ("linux", {}, "GPT4All", ["H/.local/share/nomic.ai/GPT4All", "H/.cache/gpt4all"]),
        ("linux", {}, "Jan", ["H/.local/share/Jan/data/llamacpp/models", "H/jan/llamacpp/models", "H/jan/models"]),
    ],
)
def test_the_folders_of_each_program(
    platform: str, environ: dict[str, str], program: str, paths: list[str], tmp_path: Path
) -> None:
    assert paths_of(program, environ, tmp_path, platform) == [path.replace("H/", f"{tmp_path}/") for path in paths]


def test_a_service_of_ollama_on_linux_has_its_own_folder(tmp_path: Path) -> None:
    paths = paths_of("Ollama", {}, tmp_path)
    assert paths[:2] == [f"{tmp_path}/.ollama/models", "/usr/share/ollama/.ollama/models"]


def test_lm_studio_is_where_its_pointer_and_its_settings_say(tmp_path: Path) -> None:
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path}/elsewhere\n", encoding="utf-8")
    put(tmp_path / "elsewhere" / "settings.json").write_text(json.dumps({"downloadsFolder": "/big"}), encoding="utf-8")
    paths = paths_of("LM Studio", {}, tmp_path)
    assert paths[:2] == ["/big", f"{tmp_path}/elsewhere/models"]
    assert f"{tmp_path}/.lmstudio/models" in paths


def test_a_folder_that_two_rules_name_keeps_its_first_place(tmp_path: Path) -> None:
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path}/.lmstudio", encoding="utf-8")
    assert paths_of("LM Studio", {}, tmp_path) == [
        f"{tmp_path}/.lmstudio/models",
        f"{tmp_path}/.cache/lm-studio/models",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"data_folder": 5}', '{"data_folder": "relative"}', "[" * 100_000])
def test_settings_that_say_nothing_are_passed_over(text: str, tmp_path: Path) -> None:
    put(tmp_path / ".local/share/Jan/settings.json").write_text(text, encoding="utf-8")
    assert paths_of("Jan", {}, tmp_path)[0] == f"{tmp_path}/.local/share/Jan/data/llamacpp/models"


def test_jan_is_where_its_settings_say(tmp_path: Path) -> None:
    settings = put(tmp_path / ".local/share/Jan/settings.json")
    settings.write_text(json.dumps({"data_folder": "/big/jan"}), encoding="utf-8")
    assert paths_of("Jan", {}, tmp_path)[0] == "/big/jan/llamacpp/models"


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file_name", "title"),
    [
        ("a.gguf", Title(stem="a")),
        ("A.Q4_0.GGUF", Title(stem="A.Q4_0")),
        ("a-00002-of-00003.gguf", Title(stem="a", number=2, total=3)),
        ("a-00001-of-00001.gguf", Title(stem="a-00001-of-00001")),
        ("a-00004-of-00003.gguf", Title(stem="a-00004-of-00003")),
        ("a.gguf.part", Title(stem="a", is_unfinished=True)),
        ("a.gguf.download", Title(stem="a", is_unfinished=True)),
        ("a.gguf.downloadInProgress", Title(stem="a", is_unfinished=True)),
        ("incomplete-a.gguf", Title(stem="a", is_unfinished=True)),
        ("downloading_a.gguf.part", Title(stem="a", is_unfinished=True)),
        ("a-00002-of-00003.gguf.incomplete", Title(stem="a", number=2, total=3, is_unfinished=True)),
        ("a\n\x1b[2J.gguf", Title(stem="a\n\x1b[2J")),
        ("a.gguf.json", None),
        ("a.safetensors", None),
        ("gguf", None),
    ],
)
def test_what_the_name_of_a_file_says(file_name: str, title: Title | None) -> None:
    assert title_of(file_name) == title


@given(st.text(), st.integers(1, 99_999), st.integers(2, 99_999))
def test_a_shard_is_known_by_its_name(stem: str, number: int, total: int) -> None:
    title = title_of(f"{stem}-{number:05d}-of-{total:05d}.gguf")
    is_shard = bool(stem) and number <= total and not stem.lower().startswith(("incomplete-", "downloading_"))
    assert (title == Title(stem=stem, number=number, total=total)) == is_shard


@given(st.integers(2, 30).flatmap(lambda total: st.tuples(st.sets(st.integers(1, total), min_size=1), st.just(total))))
def test_missing_shards_are_counted_or_named(case: tuple[set[int], int]) -> None:
    numbers, total = case
    words, missing = shard_words(numbers, total), sorted(set(range(1, total + 1)) - numbers)
    if not missing:
        assert words == ""
    elif len(missing) > 4:
        assert words == f"lacks {len(missing)} of its {total} shards"
    else:
        named = [int(word.rstrip(",")) for word in words.split() if word.rstrip(",").isdecimal()]
        assert named == [*missing, total]


def test_companions_are_known_by_the_marks_that_llama_cpp_goes_by() -> None:
    assert companion_of("mmproj-model-f16") == "projector of images"
    assert companion_of("imatrix") == "importance matrix"
    assert companion_of("llama-3-8b") == ""


@pytest.mark.parametrize(
    ("stem", "quantisation", "is_taken"),
    [
        ("gemma-3-1b-it-Q4_K_M", "q4_k_m", True),
        ("gemma.Q8_0", "Q8_0", True),
        ("gemma-UD-Q4_K_XL", "UD-Q4_K_XL", True),
        ("gemma-Q4_K_M", "Q4_K", False),
        ("gemma-Q4_K_M", ".*", False),
    ],
)
def test_quantisations_as_for_llama_cpp(stem: str, quantisation: str, is_taken: bool) -> None:  # noqa: FBT001
    assert has_quantisation(stem, quantisation) is is_taken


# --- folders -------------------------------------------------------------------------------------------------------


def test_files_lie_anywhere_below_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "b.gguf", 5)
    put(tmp_path / "owner" / "name" / "a.Q4_0.gguf", 7)
    put(tmp_path / ".hidden" / "c.gguf")
    put(tmp_path / "readme.md")
    found = by_name(look([tree(tmp_path, has_owners=True)]))
    assert {name: file.file_bytes for name, file in found.items()} == {"b": 5, "a.Q4_0": 7}
    assert found["a.Q4_0"].names == ("a.Q4_0", "owner/name/a.Q4_0")
    assert (found["a.Q4_0"].repository, found["b"].repository) == ("owner/name", "")


def test_where_all_files_have_one_name_their_folders_are_the_name(tmp_path: Path) -> None:
    put(tmp_path / "Menlo" / "Jan-nano" / "model.gguf")
    put(tmp_path / "Menlo" / "Jan-nano" / "mmproj.gguf")
    found = by_name(look([tree(tmp_path)]))
    assert set(found) == {"Menlo/Jan-nano", "mmproj"}
    assert found["mmproj"].companion == "projector of images"


def test_shards_are_one_file_with_their_sum(tmp_path: Path) -> None:
    for number in (2, 1, 3):
        put(tmp_path / f"big-0000{number}-of-00003.gguf", number)
    put(tmp_path / "big-00001-of-00002.gguf", 50)  # another set of the same name
    whole, half = sorted(look([tree(tmp_path)]).files, key=lambda file: file.file_bytes)
    assert (whole.names, whole.file_bytes, whole.n_shards, whole.trouble) == (("big",), 6, 3, "")
    assert whole.path.name == "big-00001-of-00003.gguf"
    assert (half.file_bytes, half.trouble) == (50, "lacks shard 2 of 2")


def test_a_shard_on_its_way_is_missing_and_no_file_of_its_own(tmp_path: Path) -> None:
    put(tmp_path / "big-00001-of-00002.gguf", 5)
    put(tmp_path / "big-00002-of-00002.gguf.part", 5)
    (file,) = look([tree(tmp_path)]).files
    assert (file.file_bytes, file.trouble) == (5, "lacks shard 2 of 2")


def test_a_download_under_way_stands_beside_the_whole_file(tmp_path: Path) -> None:
    put(tmp_path / "a.gguf")
    put(tmp_path / "a.gguf.part")
    troubles = {file.path.name: file.trouble for file in look([tree(tmp_path)]).files}
    assert troubles == {"a.gguf": "", "a.gguf.part": "is a download under way, or one that was given up"}


def test_links_in_circles_end(tmp_path: Path) -> None:
    put(tmp_path / "one" / "a.gguf")
    (tmp_path / "one" / "two").symlink_to(tmp_path / "one")
    (tmp_path / "self.gguf").symlink_to(tmp_path / "self.gguf")
    found = look([tree(tmp_path)])
    assert sorted(file.names[0] for file in found.files) == ["a", "self"]
    assert next(file for file in found.files if file.names[0] == "self").trouble.startswith("cannot be read: Too many")


def test_a_file_is_listed_once_whatever_leads_to_it(tmp_path: Path) -> None:
    real = put(tmp_path / "one" / "real.gguf", 3)
    os.link(real, tmp_path / "one" / "same.gguf")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "link.gguf").symlink_to(real)
    (tmp_path / "three").symlink_to(tmp_path / "one")
    found = look([tree(tmp_path / name) for name in ("one", "two", "three")])
    (file,) = found.files
    assert (file.path, file.names) == (real, ("real", "same", "link"))


def test_what_is_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.gguf").mkdir()
    troubles = {file.names[0]: file.trouble for file in look([tree(tmp_path)]).files}
    assert troubles == {"pipe": "is no file", "gone": "is a link to a file that is gone"}


def test_thousands_of_files_end_at_the_bound_which_is_said(tmp_path: Path) -> None:
    for i in range(50):
        put(tmp_path / f"{i}.gguf")
    found = look([tree(tmp_path)], Walk(most_entries=20))
    assert len(found.files) == 20
    assert found.notes == (f"{tmp_path} was not read to its end: there are too many files in it.",)
    assert len(look([tree(tmp_path)], Walk(most_entries=50)).files) == 50


def test_the_bound_holds_for_each_place(tmp_path: Path) -> None:
    for name in ("one", "two"):
        put(tmp_path / name / f"{name}.gguf")
    assert len(look([tree(tmp_path / name) for name in ("one", "two")], Walk(most_entries=1)).files) == 2


def test_folders_too_deep_are_said(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*(["x"] * walking.DEEPEST))
    put(deep / "seen.gguf")
    put(deep / "x" / "unseen.gguf")
    found = look([tree(tmp_path)])
    assert [file.names[0] for file in found.files] == ["seen"]
    assert found.notes == (f"{tmp_path} holds folders in folders: only 8 levels were opened.",)


def test_a_folder_without_permission_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.gguf")
    locked = tmp_path / "locked"
    locked.mkdir()
    real = os.scandir

    def refuse(folder: Path) -> Iterator[os.DirEntry[str]]:  # tests may run as root, who may read everything
        if folder == locked:
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    found = look([tree(tmp_path), tree(locked), tree(locked, layout=Layout.FLAT)])
    assert [file.names[0] for file in found.files] == ["a"]
    assert found.notes == (f"{locked} may not be read by this user.",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may see everything")
def test_a_place_in_a_folder_without_permission_is_not_called_missing(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    (locked / "models").mkdir(parents=True)
    locked.chmod(0)
    found = look([tree(locked / "models"), tree(tmp_path / "absent")])
    locked.chmod(0o700)
    assert [shelf.is_there for shelf in found.shelves] == [None, False]
    assert found.notes == (f"{locked / 'models'} may not be read by this user.",)


def test_what_the_user_names_is_named_by_its_path(tmp_path: Path) -> None:
    one, other = put(tmp_path / "one" / "a.gguf"), put(tmp_path / "b.bin")
    found = look(given_places([tmp_path / "one", other]))
    assert [(file.path, file.names) for file in found.files] == [(one, (str(one),)), (other, (str(other),))]


# --- the Hugging Face cache ----------------------------------------------------------------------------------------


def hub_file(hub: Path, revision: str, name: str, blob: str, n_bytes: int = 1) -> None:
    folder = hub / "models--owner--name-GGUF"
    if not (folder / "blobs" / blob).exists():
        put(folder / "blobs" / blob, n_bytes)
    link = folder / "snapshots" / revision / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(folder / "blobs" / blob, link.parent))


def test_the_hugging_face_cache(tmp_path: Path) -> None:
    hub_file(tmp_path, "0ld", "name-Q4_K_M.gguf", "one", 9)
    hub_file(tmp_path, "new", "name-Q4_K_M.gguf", "one")
    hub_file(tmp_path, "new", "BF16/name-BF16-00001-of-00002.gguf", "two")
    hub_file(tmp_path, "new", "BF16/name-BF16-00002-of-00002.gguf", "three")
    put(tmp_path / "models--owner--name-GGUF" / "refs" / "main").write_text("new", encoding="utf-8")
    put(tmp_path / "models--owner--name-GGUF" / "blobs" / "four.incomplete", 3)
    put(tmp_path / "models--owner--other" / "blobs" / "five.incomplete")  # of no GGUF, as far as one can tell
    put(tmp_path / "datasets--owner--x" / "snapshots" / "new" / "z.gguf")
    found = by_name(look([tree(tmp_path, layout=Layout.HUB)]))
    assert set(found) == {"name-Q4_K_M", "name-BF16", "owner/name-GGUF"}
    one = found["name-Q4_K_M"]
    assert (one.file_bytes, one.repository) == (9, "owner/name-GGUF")
    assert one.path == tmp_path / "models--owner--name-GGUF/snapshots/new/name-Q4_K_M.gguf"
    assert one.names == ("name-Q4_K_M", "owner/name-GGUF/name-Q4_K_M")
    assert (found["name-BF16"].n_shards, found["name-BF16"].trouble) == (2, "")
    assert found["owner/name-GGUF"].trouble == "is a download under way, or one that was given up"


# --- Ollama --------------------------------------------------------------------------------------------------------


def manifest(root: Path, name: str, *layers: tuple[str, object]) -> None:
    path = put(root / "manifests" / name)
    value = {"layers": [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": one} for kind, one in layers]}
    path.write_text(json.dumps(value), encoding="utf-8")


def test_ollama(tmp_path: Path) -> None:
    put(tmp_path / "blobs" / f"sha256-{HEX}", 4)
    put(tmp_path / "blobs" / f"sha256-{'cd' * 32}", 2)
    put(tmp_path / "blobs" / f"sha256-{'ef' * 32}-partial", 1)
    put(tmp_path / "blobs" / f"sha256-{'ef' * 32}-partial-0", 1)
    usual = "registry.ollama.ai/library"
    manifest(tmp_path, f"{usual}/llama3.2/3b", ("model", f"sha256:{HEX}"), ("template", f"sha256:{'cd' * 32}"))
    manifest(tmp_path, f"{usual}/llama3.2/latest", ("model", f"sha256:{HEX}"))
    manifest(tmp_path, f"{usual}/llava/7b", ("model", f"sha256:{'12' * 32}"), ("projector", f"sha256:{'cd' * 32}"))
    manifest(tmp_path, "registry.ollama.ai/someone/tuned/v1", ("model", f"sha256:{'34' * 32}"))
    manifest(tmp_path, "hf.co/owner/name-GGUF/Q4_K_M", ("model", f"sha256:{'56' * 32}"))
    found = by_name(look([tree(tmp_path, layout=Layout.OLLAMA)]))
    assert set(found) == {
        "llama3.2:3b",
        "llava:7b",
        "llava:7b projector of images",
        "someone/tuned:v1",
        "hf.co/owner/name-GGUF:Q4_K_M",
        "sha256-efefefefefef",
    }
    assert found["llama3.2:3b"].names == ("llama3.2:3b", "llama3.2:latest", "llama3.2")
    assert (found["llama3.2:3b"].file_bytes, found["llama3.2:3b"].trouble) == (4, "")
    assert found["llava:7b"].trouble == "has a manifest, but what it names is gone"
    assert found["llava:7b projector of images"].companion == "projector of images"
    assert "under way" in found["sha256-efefefefefef"].trouble


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"layers": 5}', '{"layers": [5]}', '{"layers": [{}]}', "\x00"),
        '{"layers": [{"mediaType": [], "digest": "sha256:ab"}]}',
    ],
)
def test_a_manifest_that_is_none_is_said_and_the_others_go_on(content: str, tmp_path: Path) -> None:
    put(tmp_path / "manifests/registry.ollama.ai/library/a/broken").write_text(content, encoding="utf-8")
    put(tmp_path / "blobs" / f"sha256-{HEX}")
    manifest(tmp_path, "registry.ollama.ai/library/b/fine", ("model", f"sha256:{HEX}"))
    found = by_name(look([tree(tmp_path, layout=Layout.OLLAMA)]))
    assert found["a:broken"].trouble == "has a manifest that cannot be read"
    assert found["b:fine"].trouble == ""


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "/etc/passwd", f"sha256:{HEX}/../x", 5, None, ["x"]])
def test_a_digest_leads_nowhere_else(digest: object, tmp_path: Path) -> None:
    manifest(tmp_path, "registry.ollama.ai/library/a/hostile", ("model", digest))
    assert look([tree(tmp_path, layout=Layout.OLLAMA)]).files == ()


def manifest_blob(root: Path, digit: str, value: object) -> Path:
    path = put(root / "blobs" / f"sha256-{digit * 64}")
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def layers_of(digit: str) -> dict[str, object]:
    return {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digit * 64}"}]}


def list_of(**digits: str) -> dict[str, object]:
    """A list of manifests: runner -> digit of the digest of its manifest."""
    children = [{"digest": f"sha256:{digit * 64}", "runner": runner} for runner, digit in digits.items()]
    return {"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": children}


def link_v2(root: Path, name: str, blob: Path) -> None:
    link = root / "manifests-v2" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))


def test_the_newer_manifests_of_ollama_are_links_and_lists(tmp_path: Path) -> None:
    for digit, n_bytes in (("1", 11), ("2", 22), ("3", 33)):
        put(tmp_path / "blobs" / f"sha256-{digit * 64}", n_bytes)
    manifest_blob(tmp_path, "a", layers_of("1"))
    manifest_blob(tmp_path, "b", layers_of("2"))
    manifest_blob(tmp_path, "c", layers_of("9"))  # of content that was not fetched
    both = manifest_blob(tmp_path, "d", list_of(mlx="c", GGML="a", llamacpp="b"))
    half = manifest_blob(tmp_path, "e", list_of(ggml="a", llamacpp="c"))
    lost = manifest_blob(tmp_path, "f", list_of(ggml="8", llamacpp="7"))
    link_v2(tmp_path, "ollama.com/library/both/latest", both)
    link_v2(tmp_path, "ollama.com/someone/half/v1", half)
    link_v2(tmp_path, "ollama.com/library/lost/v1", lost)
    link_v2(tmp_path, "ollama.com/library/mlx/v1", manifest_blob(tmp_path, "0", list_of(mlx="c")))
    link_v2(tmp_path, "box%3A5000/library/mine/v1", manifest_blob(tmp_path, "5", layers_of("3")))
    found = by_name(look([tree(tmp_path, layout=Layout.OLLAMA)]))
    assert {name: (file.file_bytes, file.trouble) for name, file in found.items() if not file.trouble} == {
        "both:latest": (22, ""),
        "someone/half:v1": (11, ""),
        "box:5000/library/mine:v1": (33, ""),
    }
    assert found["both:latest"].names == ("both:latest", "both")
    assert found["lost:v1"].trouble == "has a manifest that cannot be read"
    assert set(found) == {"both:latest", "someone/half:v1", "box:5000/library/mine:v1", "lost:v1"}


def test_the_newer_of_two_manifests_counts_unless_it_leads_nowhere(tmp_path: Path) -> None:
    for digit, n_bytes in (("1", 11), ("2", 22)):
        put(tmp_path / "blobs" / f"sha256-{digit * 64}", n_bytes)
    for name in ("two", "gone"):
        manifest(tmp_path, f"registry.ollama.ai/library/{name}/v1", ("model", f"sha256:{'1' * 64}"))
    link_v2(tmp_path, "ollama.com/library/two/v1", manifest_blob(tmp_path, "a", layers_of("2")))
    link_v2(tmp_path, "ollama.com/library/gone/v1", tmp_path / "blobs" / "absent")
    found = by_name(look([tree(tmp_path, layout=Layout.OLLAMA)]))
    assert {name: file.file_bytes for name, file in found.items()} == {"two:v1": 22, "gone:v1": 11}


def test_what_ollama_keeps_for_its_older_versions_is_no_model(tmp_path: Path) -> None:
    put(tmp_path / "blobs" / f"sha256-{HEX}")
    manifest(tmp_path, f"registry.ollama.ai/library/llamacpp/{HEX}", ("model", f"sha256:{HEX}"))
    assert look([tree(tmp_path, layout=Layout.OLLAMA)]).files == ()


@pytest.mark.parametrize(
    ("layout", "pipe"),
    [
        (Layout.OLLAMA, "manifests/registry.ollama.ai/library/a/pipe"),
        (Layout.OLLAMA, "manifests-v2/ollama.com/library/a/pipe"),
        (Layout.HUB, "models--owner--name-GGUF/refs/main"),
    ],
)
def test_a_pipe_in_place_of_a_text_is_not_waited_for(
    layout: Layout, pipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / pipe
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    monkeypatch.setattr(Path, "open", lambda one, *_args: pytest.fail(f"{one} was opened"))
    found = look([tree(tmp_path, layout=layout)])
    assert [file.trouble for file in found.files] == ["has a manifest that cannot be read"] * (layout is Layout.OLLAMA)

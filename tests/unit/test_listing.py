"""The list: what headers say, how much fits, and what people and programs read."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import pytest
from golden import check_golden
from hypothesis import given
from hypothesis import strategies as st
from sample_records import ENGINE, MACHINE
from synthetic import MIB, made_up_facts
from test_report import screen

from offloadtune import store
from offloadtune.errors import EngineMissingError, UsageError
from offloadtune.footprint import GENERIC, Room, backend_of, margin_of
from offloadtune.listings import FileFit, FitVerdict, ListedFile, Listing, Shelf, Shelved, ShelvedFile
from offloadtune.pipeline import listing, naming
from offloadtune.pipeline.listing import fit_of, list_files
from offloadtune.report import listing_json, listing_view
from offloadtune.shelves import given_places, look

GIB = 1 << 30


# --- does it fit ---------------------------------------------------------------------------------------------------


def room(*free_bytes: int, available_bytes: int | None = 8 * GIB) -> Room:
    n = len(free_bytes)
    return Room(
        names=tuple(f"GPU{i}" for i in range(n)),
        backends=(GENERIC,) * n,
        free_bytes=free_bytes,
        runtime_bytes=(0,) * n,
        margin_bytes=(0,) * n,
        shares=tuple(float(free) for free in free_bytes),
        available_bytes=available_bytes,
    )


def card_room(name: str, free_bytes: int, available_bytes: int | None = 8 * GIB) -> Room:
    """With a device of the engine, which computes on it even where it holds no layer."""
    margin_bytes = (margin_of(free_bytes),)
    one = room(free_bytes, available_bytes=available_bytes)
    return dataclasses.replace(one, names=(name,), backends=(backend_of(name),), margin_bytes=margin_bytes)


FACTS = made_up_facts((100 * MIB,) * 12)


@pytest.mark.parametrize(
    ("devices", "available_bytes", "verdict"),
    [
        ((4 * GIB,), 8 * GIB, FitVerdict.ALL),
        ((2 * GIB, 2 * GIB), 8 * GIB, FitVerdict.ALL),
        ((600 * MIB,), 8 * GIB, FitVerdict.SOME),
        ((1,), 8 * GIB, FitVerdict.MAIN_MEMORY),
        ((), 8 * GIB, FitVerdict.MAIN_MEMORY),
        ((), GIB, FitVerdict.NO),
        ((600 * MIB,), 100 * MIB, FitVerdict.NO),
        ((600 * MIB,), 900 * MIB, FitVerdict.SOME),
    ],
)
def test_how_much_of_a_file_fits(devices: tuple[int, ...], available_bytes: int, verdict: FitVerdict) -> None:
    fit = fit_of(FACTS, room(*devices, available_bytes=available_bytes))
    assert fit.verdict is verdict
    assert fit.n_gpu_layers_all == 13
    if verdict is FitVerdict.SOME:
        assert 2 <= (fit.n_gpu_layers or 0) <= 5
    assert (fit.short_bytes is not None) == (verdict is FitVerdict.NO)


def test_what_is_lacking_is_what_would_make_it_fit() -> None:
    fit = fit_of(FACTS, room(600 * MIB, available_bytes=100 * MIB))
    assert fit.short_bytes
    assert fit_of(FACTS, room(600 * MIB, available_bytes=100 * MIB + fit.short_bytes)).verdict is FitVerdict.SOME
    assert fit_of(FACTS, room(600 * MIB, available_bytes=99 * MIB + fit.short_bytes)).verdict is FitVerdict.NO


@pytest.mark.parametrize("name", ["CUDA0", "Vulkan0", "Metal", "ROCm0"])
def test_a_card_too_full_to_compute_on_leaves_main_memory(name: str) -> None:
    full = card_room(name, 50 * MIB)
    assert fit_of(FACTS, full).verdict is FitVerdict.MAIN_MEMORY
    short_bytes = fit_of(FACTS, dataclasses.replace(full, available_bytes=GIB)).short_bytes
    assert short_bytes
    grown = dataclasses.replace(full, available_bytes=GIB + short_bytes)
    assert fit_of(FACTS, grown).verdict is FitVerdict.MAIN_MEMORY
    assert fit_of(FACTS, dataclasses.replace(grown, available_bytes=GIB + short_bytes - 1)).verdict is FitVerdict.NO


@given(st.sampled_from(["GPU0", "CUDA0"]), st.integers(0, 4 * GIB), st.integers(0, 4 * GIB), st.integers(0, GIB))
def test_more_memory_never_holds_less(name: str, device_bytes: int, available_bytes: int, more_bytes: int) -> None:
    order = [FitVerdict.NO, FitVerdict.MAIN_MEMORY, FitVerdict.SOME, FitVerdict.ALL]
    less = fit_of(FACTS, card_room(name, device_bytes, available_bytes=available_bytes))
    for grown in (
        card_room(name, device_bytes + more_bytes, available_bytes=available_bytes),
        card_room(name, device_bytes, available_bytes=available_bytes + more_bytes),
    ):
        more = fit_of(FACTS, grown)
        assert order.index(more.verdict) >= order.index(less.verdict)
        assert (more.n_gpu_layers or 0) >= (less.n_gpu_layers or 0)


# --- headers -------------------------------------------------------------------------------------------------------


class Worker:
    """Stands for the engine's process."""

    def describe(self) -> tuple[object, object]:
        return ENGINE, MACHINE.devices


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only one looked into, on a machine whose engine answers."""

    @contextmanager
    def runner(*_args: object) -> Iterator[Worker]:
        yield Worker()

    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setattr(listing, "Runner", runner)
    monkeypatch.setattr(listing, "probe_host", lambda **_asked: MACHINE.host)
    monkeypatch.setattr(listing, "shelved_here", lambda folders: look(given_places([folder, *folders])))
    return folder


def tiny(path: Path, arch: str, **keys: str) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        writer.add_string(f"general.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_models_companions_and_broken_files_are_told_apart(shelf: Path, smollm2_path: Path) -> None:
    (shelf / "good.gguf").symlink_to(smollm2_path)
    tiny(shelf / "eyes.gguf", "clip")
    tiny(shelf / "adapter.gguf", "llama", type="adapter")
    (shelf / "mmproj-x.gguf").write_bytes(b"")
    (shelf / "page.gguf").write_text("<!DOCTYPE html>", encoding="utf-8")
    with smollm2_path.open("rb") as whole:
        (shelf / "cut.gguf").write_bytes(whole.read(4 * MIB))
    (shelf / "half.gguf.part").write_bytes(b"GGUF")
    found = {file.path.name: file for file in list_files().files}
    assert [name for name, file in found.items() if file.is_model] == ["good.gguf"]
    good = found["good.gguf"]
    assert (good.arch, good.n_layer, good.quantisation) == ("llama", 30, "Q4_1")
    assert (good.has_profile, good.fit and good.fit.verdict) == (False, FitVerdict.ALL)
    assert {name: file.companion for name, file in found.items() if file.companion} == {
        "eyes.gguf": "projector of images",
        "adapter.gguf": "LoRA adapter",
        "mmproj-x.gguf": "projector of images",
    }
    assert {name: file.trouble for name, file in found.items() if file.trouble} == {
        "page.gguf": "is a web page that was saved instead of the model",
        "cut.gguf": f"is cut at {4 * MIB} of {smollm2_path.stat().st_size} bytes",
        "half.gguf.part": "is a download under way, or one that was given up",
    }


def test_the_largest_comes_first_and_progress_is_told(shelf: Path, smollm2_path: Path, gemma3_path: Path) -> None:
    (shelf / "a.gguf").symlink_to(smollm2_path)
    (shelf / "b.gguf").symlink_to(gemma3_path)
    told: list[tuple[int, int]] = []
    found = list_files(progress=lambda n_done, n_all: told.append((n_done, n_all)))
    assert [file.path.name for file in found.files] == ["b.gguf", "a.gguf"]
    assert told == [(0, 2), (1, 2)]


@pytest.mark.parametrize("tail", [b"", b"\xff" * 64, struct.pack("<IQQ", 3, 1 << 60, 1), struct.pack("<IQQ", 3, 0, 0)])
def test_whatever_a_file_holds_the_others_go_on(tail: bytes, shelf: Path, smollm2_path: Path) -> None:
    (shelf / "good.gguf").symlink_to(smollm2_path)
    (shelf / "hostile.gguf").write_bytes(b"GGUF" + tail)
    good, hostile = list_files().files
    assert good.is_model
    assert hostile.trouble
    assert "\n" not in hostile.trouble


def test_figures_that_make_no_sense_leave_the_fit_unknown(
    shelf: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> FileFit:
        raise OverflowError

    monkeypatch.setattr(listing, "fit_of", fail)
    (shelf / "good.gguf").symlink_to(smollm2_path)
    (good,) = list_files().files
    assert good.fit == FileFit(verdict=FitVerdict.UNKNOWN, reason="Its figures do not go together.")


def test_a_profile_is_of_this_machine_and_of_this_file(shelf: Path, smollm2_path: Path, home: Path) -> None:
    (shelf / "good.gguf").symlink_to(smollm2_path)
    path = home / "profiles" / MACHINE.machine_id / "good.toml"
    path.parent.mkdir(parents=True)
    answers = []
    for text in ("", "=", "gguf = 5", "[gguf]\nfile_bytes = 5", f"[gguf]\nfile_bytes = {smollm2_path.stat().st_size}"):
        path.write_text(text, encoding="utf-8")
        answers.append(list_files().files[0].has_profile)
    assert answers == [False, False, False, False, True]


def test_without_an_engine_the_fit_is_unknown_for_a_reason(
    shelf: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_args: object) -> None:
        raise EngineMissingError("llama-cpp-python is not installed.")

    monkeypatch.setattr(listing, "Runner", missing)
    (shelf / "good.gguf").symlink_to(smollm2_path)
    found = list_files()
    assert found.devices is None
    (good,) = found.files
    assert good.fit == FileFit(verdict=FitVerdict.UNKNOWN, reason="llama-cpp-python is not installed.")
    assert good.has_profile is None


def test_who_measures_is_left_alone(shelf: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "Runner", lambda *_args: pytest.fail("started"))
    (shelf / "good.gguf").symlink_to(smollm2_path)
    with store.measuring_alone(store.data_dir(), "other.gguf"):
        found = list_files()
    assert found.no_fit == "other.gguf is being measured now, and the devices must not be asked meanwhile."


def test_where_nothing_can_be_run_no_engine_is_started(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "Runner", lambda *_args: pytest.fail("started"))
    (shelf / "half.gguf.part").touch()
    assert len(list_files().files) == 1


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", Path(__file__) / "x"):
        with pytest.raises(UsageError, match="does not exist"):
            list_files([folder])


def test_what_is_wrong_with_a_shard_is_told_whole() -> None:
    path = Path("/m/a-00001-of-00002.gguf")
    assert listing._predicate(f"{path} is cut at 5 of 7 bytes.", path) == "is cut at 5 of 7 bytes"
    assert listing._predicate("/m/a-00002-of-00002.gguf is empty.", path) == (
        "cannot be used: /m/a-00002-of-00002.gguf is empty"
    )


def test_of_too_many_files_the_first_are_read(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_N_FILES_READ", 3)
    for i in range(5):
        (shelf / f"{i}.gguf").write_bytes(b"GGUF")
    found = list_files()
    assert len(found.files) == 3
    assert found.notes == ("Of 5 files the first 3 are shown.",)


def test_a_name_of_the_list_is_a_name_that_commands_take(
    tmp_path: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(listing, "_judge", lambda: listing._Judge(room=None, machine_id=None))
    link = tmp_path / ".lmstudio/models/owner/name/of-mine.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(smollm2_path)
    names = [file.name for file in list_files().files if file.path == link]
    assert [naming.resolve(name, lambda _said: None) for name in names] == [link]


# --- what is shown -------------------------------------------------------------------------------------------------


def listed(name: str, n_bytes: int, **fields: object) -> ListedFile:
    given = {"path": Path(f"/m/{name}.gguf"), "program": "LM Studio", **fields}
    return ListedFile(name=name, file_bytes=n_bytes, **given)  # type: ignore[arg-type]


def model(name: str, n_bytes: int, fit: FileFit, **fields: object) -> ListedFile:
    facts = {"arch": "llama", "quantisation": "Q4_K_M", "n_params": 8_030_000_000, "n_layer": 32, "n_expert": 0}
    return listed(name, n_bytes, **{"n_ctx_train": 8192, "fit": fit, "has_profile": False, **facts, **fields})


SHELVES = (
    Shelf(program="./gguf_models", path=Path("gguf_models"), is_there=True),
    Shelf(program="LM Studio", path=Path("/home/me/.lmstudio/models"), is_there=False),
    Shelf(program="Ollama", path=Path("/usr/share/ollama/.ollama/models"), is_there=None),
)
NOTE = "/usr/share/ollama/.ollama/models may not be read by this user."
FULL = Listing(
    files=(
        model("huge\x1b[2J", 400 * GIB, FileFit(verdict=FitVerdict.NO, n_gpu_layers_all=33, short_bytes=300 * GIB)),
        model(
            "qwen3-30b-a3b-Q4_K_M",
            17 * GIB,
            FileFit(verdict=FitVerdict.SOME, n_gpu_layers=20, n_gpu_layers_all=49),
            n_shards=2,
            n_expert=128,
            n_params=30_500_000_000,
        ),
        model(
            "llama3.2:3b",
            2 * GIB,
            FileFit(verdict=FitVerdict.ALL, n_gpu_layers=33, n_gpu_layers_all=33),
            program="Ollama",
        ),
        model("measured", GIB, FileFit(verdict=FitVerdict.ALL, n_gpu_layers=33, n_gpu_layers_all=33), has_profile=True),
        model("tiny", 90 * MIB, FileFit(verdict=FitVerdict.MAIN_MEMORY, n_gpu_layers=0, n_gpu_layers_all=33)),
        model("absurd", 80 * MIB, FileFit(verdict=FitVerdict.UNKNOWN, reason="It is absurd."), n_params=5),
        listed("mmproj-F16", 800 * MIB, companion="projector of images"),
        listed("half", 5, trouble="is a download under way, or one that was given up"),
    ),
    shelves=SHELVES,
    notes=(NOTE,),
    n_ctx=4096,
    devices=(("CUDA0", 22 * GIB),),
    available_bytes=64 * GIB,
)
NOTHING = dataclasses.replace(FULL, files=(), devices=None, available_bytes=None)
UNKNOWN = dataclasses.replace(
    FULL,
    files=(model("a b", GIB, FileFit(verdict=FitVerdict.UNKNOWN, reason="It is not installed."), has_profile=None),),
    notes=(),
    devices=None,
    available_bytes=None,
    no_fit="It is not installed.",
)


@pytest.mark.parametrize(("name", "value"), [("list", FULL), ("list_nothing", NOTHING), ("list_unknown", UNKNOWN)])
def test_the_screen(name: str, value: Listing) -> None:
    check_golden(f"report/{name}.txt", screen(listing_view(value)))


def test_the_largest_that_fits_whole_and_is_not_measured_is_advised() -> None:
    assert screen(listing_view(FULL)).splitlines()[-1] == "Next: offloadtune sweep llama3.2:3b"
    assert screen(listing_view(UNKNOWN)).splitlines()[-1] == "Next: offloadtune sweep 'a b'"
    hopeless = dataclasses.replace(FULL, files=FULL.files[:1])
    assert "Next:" not in screen(listing_view(hopeless))
    option = dataclasses.replace(UNKNOWN, files=(dataclasses.replace(UNKNOWN.files[0], name="--help"),))
    assert screen(listing_view(option)).splitlines()[-1] == "Next: offloadtune sweep '/m/a b.gguf'"


def test_json_has_everything_and_unknown_is_null() -> None:
    value = json.loads(json.dumps(listing_json(FULL)))
    assert [file["is_model"] for file in value["files"]] == [True] * 6 + [False] * 2
    assert value["files"][1]["fit"] == {
        "verdict": "some",
        "n_gpu_layers": 20,
        "n_gpu_layers_all": 49,
        "short_bytes": None,
        "reason": "",
    }
    assert value["files"][1]["path"] == "/m/qwen3-30b-a3b-Q4_K_M.gguf"
    assert (value["devices"], value["n_ctx"], value["notes"]) == ({"CUDA0": 22 * GIB}, 4096, [NOTE])
    assert [shelf["is_there"] for shelf in value["shelves"]] == [True, False, None]
    assert listing_json(UNKNOWN)["devices"] is None


def test_two_of_a_name_are_listed_by_their_paths(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = [ShelvedFile(path=shelf / name / "x.gguf", program="p", names=("x",), file_bytes=0) for name in "ab"]
    monkeypatch.setattr(listing, "shelved_here", lambda _folders: Shelved(files=tuple(twins), shelves=()))
    assert [file.name for file in list_files().files] == [str(twin.path) for twin in twins]

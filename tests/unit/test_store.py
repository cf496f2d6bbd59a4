"""What is kept: a journal reads back as it was written, and says in a sentence why when it does not."""

from __future__ import annotations

import dataclasses
import enum
import errno
import json
import math
import os
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_records import SETTINGS, TRIAL, header, recommendation, result, visit

from offloadtune.conditions import MemoryChange
from offloadtune.errors import BusyError, StoreError
from offloadtune.export import llama_cpp_python
from offloadtune.records import (
    Estimate,
    Limits,
    Machine,
    Outcome,
    Recommendation,
    Settings,
    TrialResult,
    Visit,
    Workload,
)
from offloadtune.store import (
    FORMAT,
    FactFile,
    Journal,
    SweepHeader,
    from_json,
    measuring_alone,
    owner_now,
    read_header,
    read_journal,
    soundness,
    to_json,
)

RESULTS = tuple(result(outcome) for outcome in Outcome)
ROUNDS = (
    {TRIAL.trial_id: (visit(),), "llama_cpp_python-0123456789ab": (visit(1.5), visit(1.25, is_warmup=True))},
    {TRIAL.trial_id: (visit(2.0),)},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal with every kind of line stands."""
    path = tmp_path / "made" / "on demand" / "sweep.jsonl"
    journal = Journal(path, header())
    for one in RESULTS:
        journal.append_trial(one)
    for visits in ROUNDS:
        journal.append_round(list(visits.items()))
    journal.append_end(recommendation())
    journal.close()
    return path


def refusal(path: Path) -> str:
    with pytest.raises(StoreError) as caught:
        read_journal(path)
    assert caught.value.exit_code == 14
    assert caught.value.hint
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


def change_line(path: Path, i_line: int, change: Callable[[Any], Any]) -> None:
    lines = path.read_bytes().splitlines()
    lines[i_line] = json.dumps(change(json.loads(lines[i_line]))).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")


# --- round trips ---------------------------------------------------------------------------------------------------


def test_a_journal_reads_back_as_it_was_written(path: Path) -> None:
    content = read_journal(path)
    assert content.header == header()
    assert content.results == RESULTS
    assert [one.outcome for one in content.results] == list(Outcome)
    assert content.rounds == ROUNDS
    assert content.n_results_at == (len(RESULTS), len(RESULTS))
    assert content.recommendation == recommendation()


def test_memory_that_changed_counts_from_its_line_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sweep.jsonl", header())
    ((name, first),) = header().free_bytes.items()
    less = MemoryChange(free_bytes=((name, 5),), words="It was taken.", n_fit_layers=2, no_fit="so")
    journal.append_trial(RESULTS[0])
    journal.append_change(less)
    journal.append_excused(RESULTS[1], "It was taken.")
    journal.append_trial(RESULTS[2])
    journal.append_change(MemoryChange(free_bytes=((name, first),), words=""))
    journal.close()
    content = read_journal(journal.path)
    assert content.results == (RESULTS[0], RESULTS[2])  # without the one that the change explains
    assert content.changes[0] == less
    assert [content.free_bytes_at(i)[name] for i in (0, 1, 2)] == [first, 5, first]
    assert content.header == header()
    assert content.header.after(less).as_change(less.words) == less
    assert content.header_now == dataclasses.replace(header(), n_fit_layers=None, no_fit="")


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"free_bytes": [["CUDA0", -1]], "words": ""},
        {"free_bytes": [["CUDA0", 1.5]], "words": ""},
        {"free_bytes": [["CUDA0\x1b[2J", 1]], "words": ""},
        {"free_bytes": [["CUDA0", 1]], "words": "\x1b[2J"},
        {"free_bytes": [["CUDA0", 1]], "words": "", "no_fit": "\x07"},
    ],
)
def test_a_change_that_is_none_is_told(path: Path, value: object) -> None:
    change_line(path, 1, lambda line: {**line, "kind": "change", "value": value})
    assert "does not read as what it says" in refusal(path)


def test_an_interval_without_ends_reads_back(path: Path) -> None:
    answer = read_journal(path).recommendation
    assert answer is not None
    ratio = next(one.ratio for one in answer.versus if one.against == "default")
    assert (ratio.low, ratio.high) == (-math.inf, math.inf)


def test_what_comes_back_is_the_records_of_the_program(path: Path) -> None:
    content = read_journal(path)
    trial = content.results[0].trial
    assert isinstance(trial.settings, Settings)
    assert trial.trial_id == result().trial.trial_id  # hashable, equal, and found again by its id
    assert {trial.settings: 1}[result().trial.settings] == 1
    assert isinstance(content.header.gguf_path, Path)
    assert content.header.machine.machine_id == header().machine_id


def test_a_sweep_without_an_answer_ends_with_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sweep.jsonl", header())
    journal.append_end(None)
    journal.close()
    content = read_journal(journal.path)
    assert (content.results, content.rounds, content.recommendation) == ((), (), None)


def test_every_line_is_on_disk_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal = Journal(tmp_path / "sweep.jsonl", header())
    for n_trials, one in enumerate(RESULTS, start=1):
        journal.append_trial(one)
        assert len(synced) == 1 + n_trials
        assert read_journal(journal.path).results == RESULTS[:n_trials]
    journal.close()


def test_a_journal_is_never_written_over(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreError):
        Journal(path, header())
    assert path.read_bytes() == before


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)  # where anything may stand, JSON has no infinity
    | st.text(max_size=9)
)


SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=20),
    type(None): st.none(),
    Path: st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1).map(Path),
    Any: SCALARS,
    Workload: st.builds(
        Workload, **{field.name: st.integers(1, 2**31) for field in dataclasses.fields(Workload)[1:]}, name=st.text()
    ),
}
NARROW = {"tensor_split": st.none() | st.lists(st.floats(1e-9, 1e15), min_size=1, max_size=15).map(tuple)}
"""Fields of which not every value of their type is one."""


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type as the records use types; new fields are covered without a word here."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        hints = typing.get_type_hints(kind).items()
        return st.builds(kind, **{name: NARROW.get(name, values(inner)) for name, inner in hints})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return _compound(typing.get_origin(hint), typing.get_args(hint))


def _compound(origin: Any, arguments: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if origin in {types.UnionType, typing.Union}:
        return st.one_of([values(argument) for argument in arguments])
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    assert origin is tuple
    if arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*map(values, arguments))


@pytest.mark.parametrize("kind", [Settings, Visit, TrialResult, Recommendation, Machine, SweepHeader])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_record_survives_the_codec(kind: type[Any], data: st.DataObject) -> None:
    record = data.draw(values(kind))
    line = json.dumps(to_json(record))
    assert "\n" not in line  # or it would be two lines of the journal
    assert from_json(kind, json.loads(line)) == record


def test_not_a_number_survives_the_codec() -> None:
    record = Estimate(p50=math.nan, low=0.0, high=1.0, n_samples=0, coverage_frac=0.0)
    assert math.isnan(from_json(Estimate, json.loads(json.dumps(to_json(record)))).p50)


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_ctx", "many"), ("n_ctx", 1.5), ("devices", "CUDA0"), ("swa_full", [])],
)
def test_the_codec_refuses_what_does_not_fit(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        from_json(Settings, {**to_json(SETTINGS), field: value})


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.01, 0.5, 0.99])
def test_a_torn_last_line_is_ignored(path: Path, keep: float) -> None:
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: start + max(1, int((len(whole) - start) * keep))])
    content = read_journal(path)
    assert (content.results, content.rounds, content.recommendation) == (RESULTS, ROUNDS, None)


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff\xfe", b"5", b"[]", b'"kind"', b"null", b"{}", b'{"kind": "trial"}', b'{"value": 1}']
)
def test_damage_in_the_middle_is_told_with_its_line(path: Path, damage: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[3] = damage
    path.write_bytes(b"\n".join(lines))
    assert refusal(path).endswith("is damaged at line 4.")


def test_a_changed_value_is_told(path: Path) -> None:
    change_line(path, 1, lambda line: {**line, "value": {**line["value"], "outcome": "splendid"}})
    assert refusal(path).endswith("does not read as what it says it is: line 2.")


@pytest.mark.parametrize("value", [5, None, [], "x", {"id": 5}, {"id": [5]}, {"id": [{"is_warmup": "perhaps"}]}])
def test_a_round_that_is_none_is_told(path: Path, value: object) -> None:
    change_line(path, 1 + len(RESULTS), lambda line: {**line, "value": value})
    assert "does not read as what it says" in refusal(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"kind": "trial", "value": {}}\n',
        b'{"kind": "header", "value": 5}\n',
        b'{"kind": "header", "value": {}}\n',
        b'{"kind": "header", "value": {"format": "1"}}\n',
        b'{"kind": "header", "value": null}\n',
    ],
)
def test_another_file_is_no_journal(tmp_path: Path, text: bytes) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(text)
    assert refusal(other) == f"{other} is not a journal of a sweep."


def test_a_newer_format_is_refused(path: Path) -> None:
    change_line(path, 0, lambda line: {**line, "value": {**line["value"], "format": FORMAT + 1, "novelty": 1}})
    assert refusal(path) == f"{path} was written by a newer offloadtune (format {FORMAT + 1}, this one reads {FORMAT})."


def test_a_missing_journal_and_a_folder_are_told(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "nothing.jsonl")
    assert "Is a directory" in refusal(tmp_path)


# --- places that cannot be written ---------------------------------------------------------------------------------


def cannot_write(code: int) -> Callable[..., Any]:
    def refuse(*_args: object, **_options: object) -> Any:
        raise OSError(code, os.strerror(code))

    return refuse


def check_unwritable(caught: pytest.ExceptionInfo[StoreError], code: int) -> None:
    assert caught.value.exit_code == 14
    assert os.strerror(code) in str(caught.value)
    assert "OFFLOADTUNE_HOME" in caught.value.hint


@pytest.mark.parametrize("method", ["mkdir", "open"])
def test_an_unwritable_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(Path, method, cannot_write(errno.EACCES))
    with pytest.raises(StoreError) as caught:
        Journal(tmp_path / "sweeps" / "sweep.jsonl", header())
    check_unwritable(caught, errno.EACCES)


def test_a_full_disk_is_told_and_what_stood_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "sweep.jsonl", header())
    journal.append_trial(RESULTS[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", cannot_write(errno.ENOSPC))
        with pytest.raises(StoreError) as caught:
            journal.append_trial(RESULTS[1])
    check_unwritable(caught, errno.ENOSPC)
    journal.close()
    assert read_journal(journal.path).results[0] == RESULTS[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
def test_a_disk_that_is_really_full_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sweep.jsonl", header())
    journal.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        journal._stream = full
        with pytest.raises(StoreError) as caught:
            journal.append_round([(TRIAL.trial_id, (visit(),))])
    check_unwritable(caught, errno.ENOSPC)


def test_every_word_that_a_front_end_can_be_told_is_known() -> None:
    assert soundness.WORDS["type_k"] == soundness.WORDS["type_v"] == set(llama_cpp_python._GGML_TYPES)
    assert set(llama_cpp_python._LOAD_MODES) < soundness.WORDS["load_mode"]


# --- who measures now ----------------------------------------------------------------------------------------------


def test_who_measures_is_known_while_the_lock_is_held(tmp_path: Path) -> None:
    assert owner_now(tmp_path) is None
    with measuring_alone(tmp_path, "a.gguf"):
        owner = owner_now(tmp_path)
        assert owner is not None
        assert (owner.pid, owner.what) == (os.getpid(), "a.gguf")
    assert owner_now(tmp_path) is None  # the note is there still, and so are we


@pytest.mark.parametrize("note", ["", "5", "{", "[" * 100_000, '{"pid": 1}', '{"pid": 1, "began": "x", "what": "y"}'])
def test_a_note_that_cannot_be_read_names_nobody(tmp_path: Path, note: str) -> None:
    with measuring_alone(tmp_path, "a.gguf"):
        (tmp_path / "measuring.json").write_text(note)
        assert owner_now(tmp_path) is None
        with pytest.raises(BusyError, match="its process left no name"), measuring_alone(tmp_path, "b.gguf"):
            pass


# --- small facts ---------------------------------------------------------------------------------------------------


def test_facts_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "made" / "facts.json"
    assert FactFile(path).get("key") is None
    FactFile(path).put("key", {"use_extra_bufts": False})
    FactFile(path).put("naïve \udcff", "x")  # a path that is no text may be part of a key
    assert FactFile(path).get("key") == {"use_extra_bufts": False}
    assert FactFile(path).get("naïve \udcff") == "x"
    assert sorted(os.listdir(path.parent)) == ["facts.json", "facts.json.lock"]  # noqa: PTH208 - names only


@pytest.mark.parametrize("garbage", [b"", b"{", b"[1]", b"5", b"null", b"\xff\xfe\x00", b'{"key": '])
def test_garbage_in_a_fact_file_is_forgotten(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(garbage)
    assert FactFile(path).get("key") is None
    FactFile(path).put("key", 1)
    assert FactFile(path).get("key") == 1


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    FactFile(blocker / "facts.json").put("key", 1)
    assert FactFile(blocker / "facts.json").get("key") is None

    path = tmp_path / "facts.json"
    FactFile(path).put("key", 1)
    monkeypatch.setattr(Path, "replace", cannot_write(errno.ENOSPC))
    FactFile(path).put("key", 2)
    assert FactFile(path).get("key") == 1
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_file()) == ["facts.json", "facts.json.lock", "file"]


def test_settings_keep_the_names_they_have_in_older_journals() -> None:
    """Fields that came later do not rename settings that do without them."""
    assert Settings(n_gpu_layers=5).settings_id == "cfc664a52f33"
    assert Settings(n_gpu_layers=5, n_cpu_moe=1).settings_id != "cfc664a52f33"
    assert Settings(n_gpu_layers=5, n_cpu_ffn=1).settings_id != "cfc664a52f33"
    assert Settings(n_gpu_layers=5, tensor_split=(1,)).settings_id != "cfc664a52f33"


def test_a_fixed_split_asks_the_same_question_when_it_is_read_back(tmp_path: Path) -> None:
    """JSON has lists for it: the sweep would be begun anew."""
    asked = dataclasses.replace(header(), fixed={"tensor_split": (3.0, 1.0), "n_threads": 2})
    Journal(tmp_path / "sweep.jsonl", asked).close()
    read = read_header(tmp_path / "sweep.jsonl")
    assert (read.question, read.sweep_key) == (asked.question, asked.sweep_key)
    assert Settings(**read.fixed).tensor_split == (3.0, 1.0)


@pytest.mark.parametrize("shares", [[], [0, 0], [-1, 2], [1] * 16, "3/1", [1e300]])
def test_a_fixed_split_that_is_none_is_told(path: Path, shares: object) -> None:
    change_line(path, 0, lambda line: {**line, "value": {**line["value"], "fixed": {"tensor_split": shares}}})
    refusal(path)


def test_limits_take_part_in_which_sweep_goes_on_and_none_are_as_before_there_were_any(tmp_path: Path) -> None:
    plain = header()
    limited = dataclasses.replace(plain, limits=Limits(min_tok_per_s=40.0))
    others = [dataclasses.replace(plain, limits=one) for one in (Limits(ttft_p95_s=40.0), Limits(host_bytes=40))]
    assert len({one.sweep_key for one in (plain, limited, *others)}) == 4
    Journal(tmp_path / "limited", limited).close()
    assert read_header(tmp_path / "limited") == limited
    assert read_header(tmp_path / "limited").sweep_key == limited.sweep_key
    Journal(tmp_path / "plain", plain).close()
    text = (tmp_path / "plain").read_text(encoding="utf-8")
    older = re.sub(r', "limits": {[^}]*}', "", text)
    assert older != text
    (tmp_path / "plain").write_text(older, encoding="utf-8")
    assert read_header(tmp_path / "plain") == plain


@pytest.mark.parametrize("limits", ['{"min_tok_per_s": 0}', '{"ttft_p95_s": NaN}', '{"ttft_p95_s": -1}', "[]", "40"])
def test_a_limit_that_means_nothing_is_refused(limits: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    Journal(path, header()).close()
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'"limits": {[^}]*}', f'"limits": {limits}', text), encoding="utf-8")
    with pytest.raises(StoreError):
        read_header(path)

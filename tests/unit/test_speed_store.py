"""speed.json: what is kept of a machine's speed comes back, or is as if it had never been."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import ENGINE, MACHINE

from offloadtune.errors import StoreError
from offloadtune.records import Host, Machine
from offloadtune.speeds import Phase, Run
from offloadtune.store import (
    N_RUNS_KEPT,
    SPEED_FORMAT,
    KeptRun,
    RunKind,
    SpeedMaker,
    keep_runs,
    maker_of,
    merged,
    read_speeds,
    speed_path,
)

MAKER = maker_of(MACHINE, ENGINE.build_id)
KIND = RunKind(type_name="Q4_K", devices=("CUDA0",), use_extra_bufts=True)
OTHER_KIND = dataclasses.replace(KIND, devices=())


def kept(amount: float, seconds: float = 0.01, phase: Phase = Phase.DECODE, session: str = "s1") -> KeptRun:
    run = Run(phase=phase, amounts=(("0.weights", amount), ("steps", 1.0)), seconds=seconds, noise_frac=0.02)
    return KeptRun(run=run, session=session)


RUNS = (kept(1e9), kept(2e9, 0.02), kept(3e9, 0.5, Phase.PREFILL))

positive = st.floats(min_value=1e-8, max_value=9e5)
runs = st.lists(
    st.builds(
        Run,
        phase=st.sampled_from(Phase),
        amounts=st.lists(st.tuples(st.text(max_size=8), positive), min_size=1, max_size=4).map(tuple),
        seconds=positive,
        noise_frac=st.floats(min_value=0, max_value=9),
        label=st.text(st.characters(codec="utf-8", categories=("L", "N", "S", "P")), max_size=20),
    ).map(lambda run: KeptRun(run=run, session="s")),
    max_size=8,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machine" / "speed.json"


def test_it_lies_beside_the_file_of_the_machine(home: Path) -> None:
    assert speed_path(MACHINE) == home / "profiles" / MACHINE.machine_id / "speed.json"


def test_the_maker_is_the_build_and_the_drivers_of_the_cards_it_uses() -> None:
    assert SpeedMaker(build_id="0123456789ab", drivers=("550.54.14",)) == MAKER
    host: Host = dataclasses.replace(MACHINE.host, nvml_gpus=None)
    assert maker_of(Machine(host=host, devices=MACHINE.devices), "b").drivers == ()


def test_nothing_stored_is_no_trouble(path: Path) -> None:
    assert read_speeds(path, MAKER) == ({}, "")


@given(some=runs, others=runs)
def test_runs_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, some: list[KeptRun], others: list[KeptRun]
) -> None:
    path = tmp_path_factory.mktemp("round") / "speed.json"
    keep_runs(path, MAKER, KIND, some)
    keep_runs(path, MAKER, OTHER_KIND, others)
    assert read_speeds(path, MAKER) == ({KIND: merged((), some), OTHER_KIND: merged((), others)}, "")


def test_of_equal_amounts_the_newest_stays(path: Path) -> None:
    keep_runs(path, MAKER, KIND, RUNS)
    again = kept(1e9, 0.03, session="s2")
    keep_runs(path, MAKER, KIND, [again])
    assert read_speeds(path, MAKER)[0] == {KIND: (*RUNS[1:], again)}


def test_the_newest_of_many_stay_and_one_phase_does_not_push_out_the_other(path: Path) -> None:
    prompt = kept(5.0, phase=Phase.PREFILL)
    steps = [kept(float(i)) for i in range(1, N_RUNS_KEPT + 11)]
    keep_runs(path, MAKER, KIND, [prompt, *steps])
    assert read_speeds(path, MAKER)[0] == {KIND: (prompt, *steps[10:])}


@given(st.lists(runs, max_size=4))
def test_merging_keeps_the_last_of_each_whatever_came_before(batches: list[list[KeptRun]]) -> None:
    result: tuple[KeptRun, ...] = ()
    for batch in batches:
        result = merged(result, batch)
    assert result == merged((), [one for batch in batches for one in batch])
    keys = [(one.run.phase, one.run.amounts) for one in result]
    assert len(keys) == len(set(keys))


def test_fresh_ones_take_the_place_of_their_kind_alone(path: Path) -> None:
    keep_runs(path, MAKER, KIND, RUNS)
    keep_runs(path, MAKER, OTHER_KIND, RUNS[:1])
    keep_runs(path, MAKER, KIND, [kept(7.0)], is_fresh=True)
    assert read_speeds(path, MAKER)[0] == {KIND: (kept(7.0),), OTHER_KIND: RUNS[:1]}


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (dataclasses.replace(MAKER, build_id="another"), "another engine build"),
        (dataclasses.replace(MAKER, drivers=("560.1",)), "another driver"),
    ],
)
def test_runs_of_another_engine_or_driver_do_not_count_and_go_when_new_ones_come(
    path: Path, other: SpeedMaker, word: str
) -> None:
    keep_runs(path, MAKER, KIND, RUNS)
    keep_runs(path, MAKER, OTHER_KIND, RUNS)
    found, sentence = read_speeds(path, other)
    assert found == {}
    assert word in sentence
    assert read_speeds(path, MAKER)[0] != {}  # reading alone takes nothing away
    keep_runs(path, other, KIND, RUNS[:1])
    assert read_speeds(path, other) == ({KIND: RUNS[:1]}, "")


def document(**changes: Any) -> str:
    run = {"phase": "decode", "amounts": [["steps", 1.0]], "seconds": 0.1, "noise_frac": 0.1, "label": "a"}
    run |= changes.pop("run", {})
    whole = {
        "format": SPEED_FORMAT,
        "maker": {"build_id": MAKER.build_id, "drivers": list(MAKER.drivers)},
        "kinds": [
            [{"type_name": "Q4_K", "devices": ["CUDA0"], "use_extra_bufts": True}, [{"run": run, "session": "s"}]]
        ],
    }
    return json.dumps({**whole, **changes})


def test_what_is_written_by_hand_reads_as_ours(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(document(), encoding="utf-8")
    assert len(read_speeds(path, MAKER)[0][KIND]) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "{" * 100_000,
        document()[:-20],
        document(format=0),
        document(format="1"),
        document(format=True),
        document(maker=None),
        document(kinds={}),
        document(kinds=[["Q4_K", []]]),
        " " * (9 << 20) + document(),
    ],
)
def test_what_is_damaged_or_hostile_is_as_if_nothing_were_stored(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    found, sentence = read_speeds(path, MAKER)
    assert found == {}
    assert "damaged" in sentence
    keep_runs(path, MAKER, KIND, RUNS)
    assert read_speeds(path, MAKER) == ({KIND: RUNS}, "")


UNSOUND: list[dict[str, Any]] = [
    {"seconds": 0},
    {"seconds": -1},
    {"seconds": math.inf},
    {"seconds": 1e300},
    {"seconds": math.nan},
    {"noise_frac": -0.1},
    {"noise_frac": 10.0},
    {"noise_frac": math.nan},
    {"phase": "thinking"},
    {"amounts": []},
    {"amounts": [["steps", math.inf]]},
    {"amounts": [["steps", -1.0]]},
    {"amounts": [["steps", 1e300]]},
    {"amounts": [["steps", 1.0]] * 1000},
    {"label": "\x1b[2J"},
    {"label": "a" * 300},
]


@pytest.mark.parametrize("changes", UNSOUND)
def test_a_run_that_no_law_can_be_solved_with_is_left_out_alone(path: Path, changes: dict[str, Any]) -> None:
    keep_runs(path, MAKER, KIND, RUNS)
    keep_runs(path, MAKER, OTHER_KIND, RUNS)
    value = json.loads(path.read_text(encoding="utf-8"))
    bad = json.loads(document(run=changes))["kinds"][0][1]
    value["kinds"][0][1] += [*bad, "no run"]
    path.write_text(json.dumps(value), encoding="utf-8")
    found, sentence = read_speeds(path, MAKER)
    assert found == {KIND: RUNS, OTHER_KIND: RUNS}
    assert "holds 2 runs that cannot be true: left out." in sentence
    keep_runs(path, MAKER, KIND, [kept(7.0)])
    assert read_speeds(path, MAKER) == ({KIND: (*RUNS, kept(7.0)), OTHER_KIND: RUNS}, "")


def test_an_unsound_run_is_not_kept(path: Path) -> None:
    noisy = dataclasses.replace(RUNS[0].run, noise_frac=12.0)
    keep_runs(path, MAKER, KIND, [*RUNS, dataclasses.replace(RUNS[0], run=noisy)])
    assert read_speeds(path, MAKER) == ({KIND: RUNS}, "")


def test_of_a_file_with_too_many_runs_the_newest_count(path: Path) -> None:
    value = json.loads(document())
    (run,) = value["kinds"][0][1]
    value["kinds"][0][1] = [
        {**run, "run": {**run["run"], "amounts": [["steps", i]]}} for i in range(1, N_RUNS_KEPT + 11)
    ]
    path.parent.mkdir()
    path.write_text(json.dumps(value), encoding="utf-8")
    amounts = [one.run.amounts[0][1] for one in read_speeds(path, MAKER)[0][KIND]]
    assert amounts == list(range(11, N_RUNS_KEPT + 11))


def test_what_an_older_format_holds_does_not_count_and_goes_when_new_ones_come(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(document(format=1), encoding="utf-8")
    found, sentence = read_speeds(path, MAKER)
    assert found == {}
    assert "older offloadtune" in sentence
    keep_runs(path, MAKER, OTHER_KIND, RUNS)
    assert read_speeds(path, MAKER) == ({OTHER_KIND: RUNS}, "")


def test_what_the_system_does_not_let_us_read_is_left_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_runs(path, MAKER, KIND, RUNS)

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        found, sentence = read_speeds(path, MAKER)
        assert found == {}
        assert "cannot be read (Permission denied)" in sentence
        with pytest.raises(StoreError, match="cannot be read, and is left as it is: Permission denied"):
            keep_runs(path, MAKER, KIND, [kept(7.0)])
    assert read_speeds(path, MAKER) == ({KIND: RUNS}, "")


def test_others_may_read_the_file(path: Path) -> None:
    keep_runs(path, MAKER, KIND, RUNS)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_newer_format_is_neither_read_nor_written_over(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(document(format=SPEED_FORMAT + 1), encoding="utf-8")
    found, sentence = read_speeds(path, MAKER)
    assert found == {}
    assert "newer offloadtune" in sentence
    with pytest.raises(StoreError, match="newer offloadtune"):
        keep_runs(path, MAKER, KIND, RUNS)
    assert path.read_text(encoding="utf-8") == document(format=SPEED_FORMAT + 1)


def test_a_pipe_or_a_folder_in_its_place_holds_nobody(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    assert "damaged" in read_speeds(path, MAKER)[1]
    path.unlink()
    path.mkdir()
    assert "damaged" in read_speeds(path, MAKER)[1]
    with pytest.raises(StoreError, match="cannot be written"):
        keep_runs(path, MAKER, KIND, RUNS)
    assert sorted(one.name for one in path.parent.iterdir()) == ["speed.json"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "machine").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written"):
        keep_runs(tmp_path / "machine" / "speed.json", MAKER, KIND, RUNS)


def test_a_writer_that_dies_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_runs(path, MAKER, KIND, RUNS[:1])

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("offloadtune.store.speeds.os.fsync", die)
    with pytest.raises(KeyboardInterrupt):
        keep_runs(path, MAKER, KIND, RUNS)
    assert read_speeds(path, MAKER) == ({KIND: RUNS[:1]}, "")
    assert sorted(one.name for one in path.parent.iterdir()) == ["speed.json"]

"""What trials teach of a device's memory, what is expected of the next, and what is refused for want of main memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from sample_records import CUDA0, GIB, MACHINE
from synthetic import MIB, made_up_facts

from offloadtune.errors import UsageError
from offloadtune.footprint import CUDA
from offloadtune.pipeline.calibrating import Calibration, Calibrations
from offloadtune.pipeline.checking import check_memory
from offloadtune.pipeline.devices import DeviceMemory, machine_place, runtime_bytes
from offloadtune.plans import RefusedTensors, RuntimeBasis
from offloadtune.records import EngineBuild, Machine, MemoryUse, Outcome, Settings, Target, Trial, TrialResult

BUILD = EngineBuild(version="made up", build_id="b1", system_info="", library_dir="")
EVERYTHING = Settings(n_gpu_layers=13, n_ctx=1024)


def result(*, beyond_bytes: int, outcome: Outcome = Outcome.OK) -> TrialResult:
    """A trial whose breakdown counts 100 MiB on the card, and whose peak was so much more."""
    use = MemoryUse(
        device="CUDA0", is_host=False, weights_bytes=80 * MIB, kv_cache_bytes=15 * MIB, compute_bytes=5 * MIB
    )
    return TrialResult(
        trial=Trial(settings=EVERYTHING, target=Target.LLAMA_SERVER, why="made up"),
        outcome=outcome,
        reason="",
        memory=(use,),
        device_peak_bytes=(("CUDA0", 100 * MIB + beyond_bytes),),
    )


def test_a_trial_teaches_what_no_breakdown_lists() -> None:
    memory = DeviceMemory(made_up_facts(), MACHINE, BUILD)
    before = dict(memory.predicted(EVERYTHING))["CUDA0"]
    memory.learn(result(beyond_bytes=312 * MIB))
    assert Calibrations(BUILD).of(CUDA0).runtime_bytes == 312 * MIB == runtime_bytes(MACHINE, BUILD)
    assert dict(memory.predicted(EVERYTHING))["CUDA0"] == before + 312 * MIB


def test_it_is_known_to_no_other_build_and_no_other_card() -> None:
    Calibrations(BUILD).learn_trial([CUDA0], result(beyond_bytes=MIB), "s1")
    assert Calibrations(dataclasses.replace(BUILD, build_id="b2")).of(CUDA0) == Calibration()
    assert Calibrations(BUILD).of(dataclasses.replace(CUDA0, description="another card")) == Calibration()


def test_the_most_of_a_sweep_counts_and_one_sweep_beside_a_game_does_not() -> None:
    calibrations = Calibrations(BUILD)
    for n_mib in (330, 80, 80):  # the first trial of a process pays for what the driver keeps
        calibrations.learn_trial([CUDA0], result(beyond_bytes=n_mib * MIB), "s1")
    assert calibrations.of(CUDA0).runtime_bytes == 330 * MIB
    calibrations.learn_trial([CUDA0], result(beyond_bytes=340 * MIB), "s2")
    assert calibrations.of(CUDA0).runtime_bytes == 340 * MIB
    calibrations.learn_trial([CUDA0], result(beyond_bytes=6 * GIB), "s3")  # a game was started
    assert calibrations.of(CUDA0).runtime_bytes == 340 * MIB
    for i in range(20):
        calibrations.learn_trial([CUDA0], result(beyond_bytes=300 * MIB), f"t{i:02}")
    assert calibrations.of(CUDA0).runtime_bytes == 300 * MIB


def test_what_no_driver_takes_is_not_learnt() -> None:
    Calibrations(BUILD).learn_trial([CUDA0], result(beyond_bytes=20 * GIB), "s1")
    assert Calibrations(BUILD).of(CUDA0).runtime_bytes is None


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY_DEVICE, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_a_trial_that_failed_teaches_nothing(outcome: Outcome) -> None:
    Calibrations(BUILD).learn_trial([CUDA0], result(beyond_bytes=MIB, outcome=outcome), "s1")
    assert Calibrations(BUILD).of(CUDA0).runtime_bytes is None


def test_a_driver_that_tells_less_than_the_engine_counts_is_no_debt() -> None:
    Calibrations(BUILD).learn_trial([CUDA0], result(beyond_bytes=-50 * MIB), "s1")
    assert Calibrations(BUILD).of(CUDA0).runtime_bytes == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"b1|x": 3}', "null", "[" * 100_000])
def test_a_damaged_file_is_as_good_as_none(home: Path, text: str) -> None:
    (home / "calibrations.json").write_text(text, encoding="utf-8")
    assert Calibrations(BUILD).of(CUDA0) == Calibration()
    Calibrations(BUILD).learn_trial([CUDA0], result(beyond_bytes=MIB), "s1")
    assert Calibrations(BUILD).of(CUDA0).runtime_bytes == MIB


@pytest.mark.parametrize("value", [3, "x", None, {"s": -1, "t": "x", "u": True, "v": 1.5, "w": 10**400}, [1]])
def test_values_that_make_no_sense_are_passed_over(home: Path, value: Any) -> None:
    Calibrations(BUILD).learn_trial([CUDA0], result(beyond_bytes=MIB), "s1")
    path = home / "calibrations.json"
    (key,) = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({key: {"beyond_bytes": value}}), encoding="utf-8")
    assert Calibrations(BUILD).of(CUDA0).runtime_bytes is None


def test_what_is_missing_since_the_card_was_idle_is_said() -> None:
    machine_place(MACHINE, BUILD)
    busy = dataclasses.replace(CUDA0, free_bytes=20 * GIB)
    place = machine_place(dataclasses.replace(MACHINE, devices=(busy,)), BUILD)
    assert place.room.free_bytes == (20 * GIB,)
    assert place.warnings == ("Other programs hold 3.00 GiB of CUDA0 now: 23.0 GiB were free at idle.",)


def test_until_a_trial_has_told_room_is_kept_for_the_driver() -> None:
    unknown = machine_place(MACHINE, BUILD)
    assert unknown.bases == (RuntimeBasis.UNKNOWN,)
    assert unknown.room.margin_bytes == (int(23 * GIB * 0.02),)
    Calibrations(BUILD).learn_trial([CUDA0], result(beyond_bytes=MIB), "s1")
    known = machine_place(MACHINE, BUILD)
    assert (known.bases, known.room.margin_bytes, known.room.runtime_bytes) == (
        (RuntimeBasis.CALIBRATED,),
        (0,),
        (MIB,),
    )


def test_types_that_a_device_refuses_stay_in_main_memory_from_then_on() -> None:
    facts = made_up_facts()
    memory = DeviceMemory(facts, MACHINE, BUILD)
    assert dict(memory.predicted(EVERYTHING))["CUDA0"] > 120 * MIB
    refused = RefusedTensors(example="blk.0", type_name="i8", n_tensors=12, refused_by="CUDA0", kept_in="CPU")
    Calibrations(BUILD).learn_refused([CUDA0], [refused])  # others of that type are there: an operation was lacking
    assert dict(memory.predicted(EVERYTHING))["CUDA0"] > 120 * MIB
    refused = dataclasses.replace(refused, is_whole_type=True)
    elsewhere = dataclasses.replace(CUDA0, name="CUDA1"), dataclasses.replace(refused, refused_by="CUDA10")
    Calibrations(BUILD).learn_refused([elsewhere[0]], [elsewhere[1]])
    assert Calibrations(BUILD).of(elsewhere[0]).refused_types == ()
    Calibrations(BUILD).learn_refused([CUDA0], [refused])
    assert dict(memory.predicted(EVERYTHING))["CUDA0"] < 120 * MIB
    assert machine_place(MACHINE, BUILD).room.backends == (dataclasses.replace(CUDA, refuses=frozenset({"I8"})),)


def test_nothing_is_expected_of_devices_that_get_nothing() -> None:
    memory = DeviceMemory(made_up_facts(), MACHINE, BUILD)
    assert memory.predicted(EVERYTHING.replace(devices=())) == ()
    assert memory.predicted(EVERYTHING.replace(n_gpu_layers=0)) == ()
    assert memory.predicted(EVERYTHING.replace(devices=("gone",))) == ()


def test_weights_that_main_memory_cannot_hold_are_refused() -> None:
    """Every sweep tries the CPU alone, so devices are no way out."""
    facts = made_up_facts((GIB,) * 12)
    small = with_ram(8 * GIB)
    check_memory({}, facts, small, n_ctx=512)  # mapped: they need not be there at once
    with pytest.raises(UsageError, match=r"load_mode=none holds 12\.\d GiB in main memory.*8\.00 GiB are available"):
        check_memory({"load_mode": "none"}, facts, small, n_ctx=512)
    with pytest.raises(UsageError, match="load_mode=mlock"):
        check_memory({"load_mode": "mlock"}, facts, dataclasses.replace(small, devices=()), n_ctx=512)
    check_memory({"load_mode": "none"}, facts, with_ram(16 * GIB), n_ctx=512)


def with_ram(available_bytes: int) -> Machine:
    ram = dataclasses.replace(MACHINE.host.ram, available_bytes=available_bytes)
    return dataclasses.replace(MACHINE, host=dataclasses.replace(MACHINE.host, ram=ram))

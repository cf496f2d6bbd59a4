"""Device memory that others take while a sweep is under way: what is said, waited for, and gone on with.

The engine and the driver are made up, and answer as the script of a test has it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_sweep import bare_sweep
from hypothesis import given
from hypothesis import strategies as st
from sample_records import MACHINE, header
from synthetic import made_up_facts, made_up_space

from offloadtune import store
from offloadtune.conditions import Conditions, GpuConditions, GpuProcess
from offloadtune.errors import EngineError
from offloadtune.pipeline import taking
from offloadtune.pipeline.journals import holds, last_results
from offloadtune.pipeline.taking import FreeMemory, grown, missing
from offloadtune.records import Outcome, Settings, TrialResult
from offloadtune.search import baseline_trials
from offloadtune.sweeps import Event, Said
from offloadtune.units import GIB, MIB

(CARD,) = MACHINE.offload_devices
NAME, FREE = CARD.name, CARD.free_bytes
ON_CARD, ON_CPU = Settings(n_gpu_layers=9), Settings(devices=())
SPACE = made_up_space(made_up_facts(), device_bytes=FREE)


def conditions(*processes: GpuProcess) -> Conditions:
    gpu = MACHINE.nvml_of(CARD)
    assert gpu is not None
    card = GpuConditions(
        index=0,
        name="card",
        clock_mhz=None,
        most_clock_mhz=None,
        temperature_c=None,
        throttle_reasons=None,
        other_processes=processes,
        pci_bus_id=gpu.pci_bus_id,
    )
    return Conditions(
        at_s=0.0,
        n_cpus=2,
        busy_cpu_s=None,
        stolen_cpu_s=None,
        ours_cpu_s=None,
        swapped_bytes=None,
        memory_stall_s=None,
        on_battery=None,
        power_profile=None,
        governor=None,
        gpus=(card,),
    )


class MadeUpWorkers:
    """Tells free memory by a script, the last of it for ever; a living worker keeps `kept_bytes` until it ends."""

    loaded: frozenset[Any] = frozenset()
    n_model_loads = 0

    def __init__(self, *free: Mapping[str, int] | EngineError | None, kept_bytes: int = 0) -> None:
        self._free, self.kept_bytes = list(free), kept_bytes
        self.n_asked = self.n_anew = 0
        self.is_new = False

    def keep_abreast(self, placements: object) -> None:
        """Nothing is loaded."""

    def free_bytes(self, *, timeout_s: float, is_anew: bool = False) -> dict[str, int] | None:
        assert timeout_s > 0
        self.n_asked += 1
        self.n_anew += is_anew
        told = self._free.pop(0) if len(self._free) > 1 else self._free[0]
        if isinstance(told, EngineError):
            raise told
        if told is None:
            return None
        return {name: n_bytes - (0 if is_anew else self.kept_bytes) for name, n_bytes in told.items()}


def watched(
    workers: MadeUpWorkers, *, budget_s: float = 1.0, now: Callable[[], Conditions] = conditions
) -> tuple[FreeMemory, list[Event]]:
    events: list[Event] = []
    runner: Any = workers
    return FreeMemory(runner, MACHINE, budget_s, events.append, now), events


@pytest.fixture(autouse=True)
def no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_BEAT_S", 0.001)


def told(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Said)]


# --- what is missing ---------------------------------------------------------------------------------------------


@given(usual=st.integers(0, 1 << 40), now=st.integers(0, 1 << 40))
def test_a_little_less_or_any_more_is_nothing(usual: int, now: int) -> None:
    lacks = missing({"a": usual}, {"a": now})
    assert bool(lacks) == (usual - now > max(100 * MIB, 0.03 * usual))
    assert all(n_bytes == usual - now for n_bytes in lacks.values())


def test_a_device_that_is_not_there_misses_all_it_had() -> None:
    assert missing({"a": 5 * MIB, "b": 0}, {}) == {"a": 5 * MIB}


def test_who_took_it_is_who_came_or_grew_on_that_card() -> None:
    browser, server = (GpuProcess(pid=1, name="browser", n_bytes=GIB), GpuProcess(pid=2, name="server", n_bytes=GIB))
    more = dataclasses.replace(browser, n_bytes=2 * GIB)
    before = conditions(browser)
    gpu = before.gpus[0].pci_bus_id
    assert grown(before, conditions(browser, server), gpu) == (server,)
    assert grown(before, conditions(more), gpu) == (more,)
    assert grown(before, conditions(browser), gpu) == ()
    assert grown(before, conditions(browser, server), "0000:99:00.0") == ()
    assert grown(before, conditions(browser, server), None) == ()
    unsized = dataclasses.replace(server, n_bytes=None)
    assert grown(before, conditions(browser, unsized), gpu) == (unsized,)
    assert grown(conditions(unsized), conditions(unsized), gpu) == ()


# --- looking -----------------------------------------------------------------------------------------------------


def test_nothing_is_asked_where_no_load_follows_or_none_on_a_device() -> None:
    workers = MadeUpWorkers({NAME: 0})
    memory, events = watched(workers)
    assert memory.look(ON_CPU, left_s=9) is None
    workers.loaded = frozenset({ON_CARD.placement})
    assert memory.look(ON_CARD, left_s=9) is None
    assert (workers.n_asked, events) == (0, [])


def test_what_the_driver_keeps_for_our_own_worker_is_told_apart_once() -> None:
    workers = MadeUpWorkers({NAME: FREE}, kept_bytes=900 * MIB)
    memory, events = watched(workers)
    assert memory.look(ON_CARD, left_s=9) is None
    assert workers.n_anew == 1
    assert memory.look(ON_CARD, left_s=9) is None
    assert (workers.n_anew, events) == (1, [])


def test_what_is_taken_is_named_waited_for_and_gone_on_without() -> None:
    left = FREE - 3 * GIB
    server = GpuProcess(pid=4711, name="llama-\x1b[2Jserver", n_bytes=3 * GIB)
    moments = iter([conditions(), conditions(server)])
    memory, events = watched(MadeUpWorkers({NAME: left}), now=lambda: next(moments))
    found = memory.look(ON_CARD, left_s=9)
    assert found is not None
    assert (found.free_bytes, found.is_back, found.gone) == ({NAME: left}, False, ())
    assert memory.free_bytes == {NAME: left}
    first, last = told(events)
    assert first == (
        f"3.00 GiB of {NAME} were taken by another program (llama-[2Jserver, pid 4711). "
        "Waiting for it up to 100 ms of the budget."
    )
    assert last.startswith("The sweep goes on with what is free: ")
    assert memory.look(ON_CARD, left_s=9) is None  # that is usual now


def test_what_comes_back_in_time_changes_nothing() -> None:
    gone, back = {NAME: FREE - 3 * GIB}, {NAME: FREE}
    memory, events = watched(MadeUpWorkers(gone, gone, gone, back), budget_s=60)
    found = memory.look(ON_CARD, left_s=9)
    assert found is not None
    assert found.is_back
    assert memory.free_bytes == {NAME: FREE}
    assert told(events)[-1] == "It is free again: the sweep goes on as before."


def test_what_comes_back_later_counts_again_but_not_for_ever() -> None:
    less, back = {NAME: FREE - 3 * GIB}, {NAME: FREE + 5 * GIB}
    workers = MadeUpWorkers(less)
    memory, _ = watched(workers, budget_s=0.01)
    n_returns = 0
    for _ in range(9):
        workers._free = [less]
        memory.look(ON_CARD, left_s=9)
        workers._free = [back]
        found = memory.look(ON_CARD, left_s=9)
        n_returns += found is not None
        assert found is None or found.free_bytes == {NAME: FREE}  # no more than it began with
    assert n_returns == 3


def test_all_waiting_together_is_a_part_of_the_budget() -> None:
    memory, events = watched(MadeUpWorkers({NAME: FREE - 3 * GIB}), budget_s=0.05)
    memory.look(ON_CARD, left_s=9)
    memory._usual = {NAME: FREE}
    memory.look(ON_CARD, left_s=9)
    assert sum("Waiting" in text for text in told(events)) == 1


def test_a_device_that_is_gone_ends_it() -> None:
    memory, events = watched(MadeUpWorkers({"Other0": GIB}), budget_s=0.05)
    found = memory.look(ON_CARD, left_s=9)
    assert found is not None
    assert found.gone == (NAME,)
    assert told(events)[0].startswith(f"{NAME} is gone: the engine lists it no more.")


def test_an_engine_that_stays_away_is_gone_and_one_without_an_answer_is_left_to_the_trial() -> None:
    memory, _ = watched(MadeUpWorkers(EngineError("Nothing answers.")))
    found = memory.look(ON_CARD, left_s=9, has_failed=True)
    assert found is not None
    assert (found.words, found.gone) == ("Nothing answers.", (NAME,))
    memory, events = watched(MadeUpWorkers(None))
    assert memory.look(ON_CARD, left_s=9) is None
    assert events == []


# --- what still holds --------------------------------------------------------------------------------------------


def ended(outcome: Outcome, peak_bytes: int = 0, settings: Settings = ON_CARD) -> TrialResult:
    trial = dataclasses.replace(baseline_trials(SPACE)["fit"], settings=settings)
    peaks = ((NAME, peak_bytes),) if peak_bytes else ()
    return TrialResult(trial=trial, outcome=outcome, reason="made up", device_peak_bytes=peaks)


@pytest.mark.parametrize(
    ("result", "then", "now"),
    [
        (ended(Outcome.OK, 2 * GIB), 4 * GIB, 3 * GIB),
        (ended(Outcome.OUT_OF_MEMORY_DEVICE), 2 * GIB, 2 * GIB),
        (ended(Outcome.OUT_OF_MEMORY_DEVICE), 2 * GIB, GIB),
        (ended(Outcome.CRASHED, settings=ON_CPU), 2 * GIB, 4 * GIB),
        (ended(Outcome.UNSUPPORTED), 2 * GIB, 4 * GIB),
    ],
)
def test_what_was_measured_holds_as_far_as_its_memory_is_there(result: TrialResult, then: int, now: int) -> None:
    assert holds(result, {NAME: then}, {NAME: now})


@pytest.mark.parametrize(
    ("result", "then", "now"),
    [
        (ended(Outcome.OK, 2 * GIB), 4 * GIB, GIB),
        (ended(Outcome.OUT_OF_MEMORY_DEVICE), 2 * GIB, 4 * GIB),
        (ended(Outcome.CRASHED), 2 * GIB, 4 * GIB),
    ],
)
def test_what_has_no_room_now_or_more_room_than_then_is_asked_again(result: TrialResult, then: int, now: int) -> None:
    assert not holds(result, {NAME: then}, {NAME: now})


# --- a sweep beside it -------------------------------------------------------------------------------------------


Maker = Callable[[MadeUpWorkers, Sequence[TrialResult]], tuple[Any, list[Event]]]


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Maker]:
    """Makes a sweep with some results on the sample machine, and the list of what it tells."""
    journals = []

    def make(workers: MadeUpWorkers, results: Sequence[TrialResult]) -> tuple[Any, list[Event]]:
        sweep = bare_sweep()
        sweep.free_memory, events = watched(workers, budget_s=0.01)
        sweep.runner, sweep.machine, sweep.listen = workers, MACHINE, events.append
        sweep.request, sweep.start_s = SimpleNamespace(budget_s=1e6), time.monotonic()
        sweep.header = dataclasses.replace(header(), ruler=store.RULER)
        sweep.journal = store.Journal(tmp_path / "sweep.jsonl", sweep.header)
        journals.append(sweep.journal)
        sweep.space = dataclasses.replace(SPACE, lists_devices=True)
        reckoned = SimpleNamespace(predicted=lambda _settings: ((NAME, 2 * GIB),), go_on_with=lambda _machine: None)
        sweep.device_memory = reckoned
        sweep.undisturbed = SimpleNamespace(overslept="")
        sweep._fit_rule = lambda made: dataclasses.replace(made, n_fit_layers=3)
        for one in results:
            sweep._keep(one)
        return sweep, events

    yield make
    for journal in journals:
        journal.close()


def settings_of(results: Sequence[TrialResult]) -> list[int]:
    return [result.trial.settings.n_gpu_layers for result in results]


def test_a_sweep_plans_with_what_is_left_and_keeps_that_for_the_next(changing: Maker) -> None:
    """What no longer fits does not count; when the memory is back it does, and what ran out meanwhile does not."""
    large, small = (
        ended(Outcome.OK, FREE - GIB, Settings(n_gpu_layers=30)),
        ended(Outcome.OK, GIB, Settings(n_gpu_layers=2)),
    )
    less, workers = {NAME: FREE - 9 * GIB}, MadeUpWorkers({NAME: FREE - 9 * GIB})
    sweep, _ = changing(workers, [large, small])
    assert sweep._has_changed(large.trial)
    assert settings_of(sweep.results) == [2]
    assert (sweep.space.device_bytes, sweep.space.n_fit_layers) == (less[NAME], 3)
    assert sweep.machine.offload_devices[0].free_bytes == less[NAME]
    sweep._keep(ended(Outcome.OUT_OF_MEMORY_DEVICE, settings=large.trial.settings))
    then = store.read_journal(sweep.journal.path)
    assert dict(then.header_now.free_bytes) == less
    assert [dict(one.free_bytes) for one in then.changes] == [less]
    assert {r.trial.settings.n_gpu_layers: r.outcome for r in last_results(then, less)} == {
        2: Outcome.OK,
        30: Outcome.OUT_OF_MEMORY_DEVICE,
    }
    assert {r.outcome for r in last_results(then, header().free_bytes)} == {Outcome.OK}
    workers._free = [{NAME: FREE}]
    assert sweep._has_changed(large.trial)
    assert settings_of(sweep.results) == [30, 2]
    assert {result.outcome for result in sweep.results} == {Outcome.OK}
    assert len(sweep.changes) == 2


def test_what_the_taking_explains_is_not_held_against_the_settings(changing: Maker) -> None:
    ran_out = ended(Outcome.OUT_OF_MEMORY_DEVICE)
    sweep, events = changing(MadeUpWorkers({NAME: FREE - 3 * GIB}), [])
    assert sweep._is_excused(ran_out)
    assert "which is not held against it. 3.00 GiB less of" in told(events)[-1]
    assert not sweep._is_excused(ran_out)  # nothing more was taken: now it is the settings
    assert store.read_journal(sweep.journal.path).results == ()


def test_what_was_not_foretold_to_fit_has_no_excuse(changing: Maker) -> None:
    sweep, _ = changing(MadeUpWorkers({NAME: FREE - 3 * GIB}), [])
    sweep.device_memory.predicted = lambda _settings: ((NAME, FREE + GIB),)
    assert not sweep._is_excused(ended(Outcome.OUT_OF_MEMORY_DEVICE))
    assert len(sweep.changes) == 1


def test_other_ends_are_not_asked_about(changing: Maker) -> None:
    workers = MadeUpWorkers({NAME: FREE - 3 * GIB})
    sweep, _ = changing(workers, [])
    for outcome in (Outcome.OK, Outcome.TIMED_OUT, Outcome.UNSUPPORTED, Outcome.OUT_OF_MEMORY_HOST):
        assert not sweep._is_excused(ended(outcome))
    assert workers.n_asked == 0


def test_a_trial_that_the_machine_slept_over_is_not_counted(changing: Maker) -> None:
    sweep, events = changing(MadeUpWorkers({NAME: FREE}), [])
    sweep.undisturbed.overslept = "The machine slept for 41.0 s."
    assert sweep._is_excused(ended(Outcome.TIMED_OUT))
    assert told(events)[-1].endswith("timed out, which is not held against it. The machine slept for 41.0 s.")


def test_a_device_that_is_gone_ends_the_sweep_with_what_it_has(changing: Maker) -> None:
    sweep, events = changing(MadeUpWorkers({"Other0": GIB}), [ended(Outcome.OK, GIB)])
    assert sweep._has_changed(ended(Outcome.OK).trial)
    assert sweep.is_gone
    assert len(sweep.results) == 1
    assert told(events)[-1].startswith(f"The sweep ends here: {NAME} is gone")

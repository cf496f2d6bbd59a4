"""Which stored sweep answers which question, and what is said where none does."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_sweep import bare_sweep
from rich.console import Console
from sample_records import ENGINE, FACTS, MACHINE, header, recommendation, visit
from sample_records import result as sample_result

from offloadtune import search, store
from offloadtune.errors import NotMeasuredError, UsageError
from offloadtune.pipeline import export_stored, history, recalling, recommend_stored, server_command, using
from offloadtune.pipeline.recalling import Recalled, recall
from offloadtune.pipeline.spaces import space_of
from offloadtune.recalls import JournalSummary, Question, UnreadableJournal
from offloadtune.records import WORKLOADS, Goal, Limits, Outcome, StandsFor, Target, Trial, TrialResult, Visit, Workload
from offloadtune.report import history_json, history_view, recall_view
from offloadtune.sweeps import Event, Said

SLOWER_TURN = 64  # n_ubatch of a rival whose first token comes sooner and whose turn takes longer
LATER_S = 1000.0


def steps(first: float, later: float) -> Visit:
    """A passage whose prefill takes `first` times and whose decoding takes `later` times as long as usual."""
    usual = visit()
    return dataclasses.replace(
        usual,
        prefill_ns=round(usual.prefill_ns * first),
        step_ns=tuple(round(step * later) for step in usual.step_ns),
    )


def results(n_ctx: int = 2816) -> list[TrialResult]:
    """Two that ran, as the header's sweep fixes settings, the first with the better turn, the second with the TTFT."""
    usual = sample_result()
    one = usual.trial.settings.replace(n_ctx=n_ctx, n_threads=8, swa_full=True, n_ubatch=512)
    trials = [
        dataclasses.replace(usual.trial, settings=one, why="the better turn"),
        dataclasses.replace(usual.trial, settings=one.replace(n_ubatch=SLOWER_TURN), why="the sooner token"),
    ]
    visits = [(steps(1, 1),), (steps(0.5, 1.5),)]
    return [dataclasses.replace(usual, trial=trial, visits=some) for trial, some in zip(trials, visits, strict=True)]


class Stored:
    """Writes journals into the test's own home, each newer than the one before."""

    def __init__(self) -> None:
        self.n_written = 0

    def __call__(
        self,
        *,
        results: list[TrialResult],
        rounds: list[dict[str, tuple[Visit, ...]]] | None = None,
        is_ended: bool = True,
        **changes: Any,
    ) -> Path:
        made = dataclasses.replace(header(), ruler=store.RULER, **changes)
        self.n_written += 1
        name = f"{made.gguf_path.stem}-{made.sweep_key}.{self.n_written}.jsonl"
        journal = store.Journal(store.data_dir() / "sweeps" / made.machine_id / name, made)
        for result in results:
            journal.append_trial(result)
        for one in rounds or []:
            journal.append_round(list(one.items()))
        if is_ended:
            journal.append_end(None)
        journal.close()
        os.utime(journal.path, (self.n_written * LATER_S, self.n_written * LATER_S))
        return journal.path


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    """On the sample machine, with the sample file."""
    for module in (recalling, using):
        monkeypatch.setattr(module, "read_gguf", lambda _path, **_options: FACTS)
    monkeypatch.setattr(recalling, "probe_host", lambda **_options: MACHINE.host)
    monkeypatch.setattr(recalling, "installed_build_id", lambda: ENGINE.build_id)
    return Stored()


def asked(listen: Callable[[Event], None] = lambda _event: None, **question: Any) -> Recalled:
    return recall(Question(path=FACTS.path, **question), listen)


def refusal(**question: Any) -> NotMeasuredError:
    with pytest.raises(NotMeasuredError) as caught:
        asked(**question)
    assert caught.value.exit_code == 15
    assert caught.value.hint.startswith("measure it: offloadtune sweep ")
    return caught.value


# --- what answers --------------------------------------------------------------------------------------------------


def test_the_newest_sweep_answers_what_it_was_asked(stored: Stored) -> None:
    stored(results=results(n_ctx=4096), n_ctx=4096)
    newest = stored(results=results())
    found = asked()
    assert found.stored.path == newest
    assert found.answer.trial.why == "the better turn"
    assert found.answer.goal is Goal.TURN
    assert asked(n_ctx=4000).space.n_ctx == 4096  # the context is padded as the sweep's was


def test_another_goal_is_answered_from_the_same_visits(stored: Stored) -> None:
    stored(results=results())
    found = asked(goal=Goal.TTFT)
    assert found.answer.trial.why == "the sooner token"
    assert any("The search went after turn" in note for note in found.notes)


def test_more_or_fewer_generated_tokens_are_reckoned(stored: Stored) -> None:
    stored(results=results())
    chat = WORKLOADS["chat"]
    found = asked(workload=dataclasses.replace(chat, name="mine", n_gen=8))
    by_name = {result.trial.why: result.visits[0] for result in results()}
    assert found.answer.trial.why == "the sooner token"  # which counts for more in a short turn
    assert found.answer.figures.turn_s.p50 == by_name["the sooner token"].turn_s(8)
    longer = dataclasses.replace(chat, name="mine", n_gen=513)  # one more than the context measured holds
    assert "--workload 2048/256/513/1" in refusal(workload=longer).hint


def test_rounds_count_where_all_who_are_compared_now_stood_in_them(stored: Stored) -> None:
    both = results()
    first, second = (result.trial.trial_id for result in both)
    whole: dict[str, tuple[Visit, ...]] = {first: (steps(1, 1),), second: (steps(1, 1.5),)}
    stored(results=both, rounds=[{first: (steps(1, 1),)}, whole, whole])
    assert len(asked().rounds) == 2


def test_a_finalist_that_failed_later_is_not_recommended(stored: Stored) -> None:
    best, other = results()
    died = dataclasses.replace(best, outcome=Outcome.CRASHED, reason="it crashed", visits=())
    stored(results=[best, other, died])
    assert asked().answer.trial.why == "the sooner token"


class Struck:
    """Visits of a sweep that take as long as the first of their trial, until so many of some ids were made."""

    is_interrupted = False
    overslept = ""

    def __init__(self, results: list[TrialResult], n_until: dict[str, int], outcome: Outcome) -> None:
        self.first = {one.trial.trial_id: one.visits for one in results}
        self.n_until, self.outcome = n_until, outcome

    def revisit(self, trial: Trial, _plan: object, *, timeout_s: float) -> tuple[Visit, ...] | TrialResult:
        assert timeout_s > 0
        n_left = self.n_until.get(trial.trial_id, 99)
        self.n_until[trial.trial_id] = n_left - 1
        if n_left == 0:
            return TrialResult(trial=trial, outcome=self.outcome, reason="it died")
        return self.first[trial.trial_id]


def swept(results: list[TrialResult], undisturbed: Struck, path: Path) -> Any:
    """A sweep with these results after its rounds, all of it journalled at `path`."""
    made = dataclasses.replace(header(), ruler=store.RULER)
    sweep = bare_sweep()
    sweep.space, sweep.journal = space_of(FACTS, made, {}), store.Journal(path, made)
    sweep.request, sweep.start_s = SimpleNamespace(budget_s=1e6), time.monotonic()
    sweep.undisturbed, sweep.listen = undisturbed, lambda _event: None
    for one in results:
        sweep._keep(one)
    sweep._compare()
    sweep.journal.append_end(sweep.best())
    sweep.journal.close()
    return sweep


def several(n: int) -> list[TrialResult]:
    """So many that ran, each somewhat slower than the one before."""
    fastest = results()[0]
    settings = [fastest.trial.settings.replace(n_ubatch=n_ubatch) for n_ubatch in (512, 256, 128, 64)[:n]]
    return [
        dataclasses.replace(
            fastest, trial=dataclasses.replace(fastest.trial, settings=one), visits=(steps(slower, slower),)
        )
        for one, slower in zip(settings, (1.0, 1.2, 1.4, 1.6)[:n], strict=True)
    ]


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY_HOST, Outcome.CRASHED])
@pytest.mark.parametrize("i_dies", [0, 1, 2])
def test_the_answer_is_the_reported_one_after_a_death_in_a_round(i_dies: int, outcome: Outcome) -> None:
    three = several(3)
    dies = three[i_dies].trial.trial_id
    path = store.data_dir() / "sweeps" / header().machine_id / "struck-1.jsonl"
    sweep = swept(three, Struck(three, {dies: 2}, outcome), path)
    content = store.read_journal(path)
    assert [dies in one for one in content.rounds[:3]] == [True, True, False]
    found = asked()
    assert found.answer == sweep.best() == content.recommendation
    assert list(found.rounds) == sweep.rounds
    assert len(found.rounds) > 2


@pytest.mark.usefixtures("stored")
def test_rounds_of_before_count_again_when_who_came_in_for_the_dead_dies_too() -> None:
    four = several(4)
    path = store.data_dir() / "sweeps" / header().machine_id / "struck-1.jsonl"
    deaths = {four[0].trial.trial_id: 2, four[3].trial.trial_id: 1}
    sweep = swept(four, Struck(four, deaths, Outcome.CRASHED), path)
    found = asked()
    assert found.answer == sweep.best()
    assert list(found.rounds) == sweep.rounds == sweep.all_rounds
    assert [len(one) for one in store.read_journal(path).rounds] == [3, 3, 3]  # who is left has clearly lost by then


def test_who_was_passed_over_in_the_last_rounds_is_not_compared(stored: Stored) -> None:
    """As where less device memory is free when a sweep goes on: what took more is not among the finalists then."""
    fastest, *others = several(3)
    visits = {one.trial.trial_id: one.visits for one in (fastest, *others)}
    without = {one.trial.trial_id: one.visits for one in others}
    path = stored(results=[fastest, *others], rounds=[visits, visits, without, without, without])
    found = asked()
    assert found.answer.trial == others[0].trial
    assert len(found.rounds) == 5
    journal = store.Journal(path, None)
    journal.append_trial(fastest)  # tried again later, it is to be had
    journal.close()
    assert len(asked().rounds) == 2


def test_what_the_user_stopped_or_what_a_later_round_held_again_is_not_out(stored: Stored) -> None:
    both = results()
    one = {result.trial.trial_id: result.visits for result in both}
    path = stored(results=[*both, dataclasses.replace(both[0], outcome=Outcome.CANCELLED, visits=())])
    assert asked().answer.trial == both[0].trial
    path = stored(results=[*both, dataclasses.replace(both[0], outcome=Outcome.OUT_OF_MEMORY_HOST, visits=())])
    assert asked().answer.trial == both[1].trial
    journal = store.Journal(path, None)
    for _ in range(3):
        journal.append_round(list(one.items()))
    journal.close()
    assert asked().answer.trial == both[0].trial
    assert len(asked().rounds) == 3


def test_what_was_best_once_but_not_compared_is_said(stored: Stored) -> None:
    both = results()
    slow = dataclasses.replace(both[0], trial=dataclasses.replace(both[0].trial, why="slow"), visits=(steps(0.1, 9),))
    others = [
        dataclasses.replace(
            both[0], trial=dataclasses.replace(both[0].trial, settings=both[0].trial.settings.replace(n_batch=n))
        )
        for n in (520, 530, 540)
    ]
    slow = dataclasses.replace(
        slow, trial=dataclasses.replace(slow.trial, settings=slow.trial.settings.replace(n_batch=999))
    )
    one: dict[str, tuple[Visit, ...]] = {result.trial.trial_id: (steps(1, 1),) for result in others}
    stored(results=[*others, slow], rounds=[one, one])
    found = asked(goal=Goal.TTFT)
    assert found.answer.trial.settings.n_batch != 999
    assert any("'slow' was best for ttft, but it was not compared" in note for note in found.notes)


def test_the_goal_context_takes_more_context_than_was_compared(stored: Stored) -> None:
    more = results(n_ctx=5632)[:1]
    one = {result.trial.trial_id: result.visits for result in results()}
    stored(results=[*results(), *more], rounds=[one, one])
    assert asked(goal=Goal.CONTEXT).answer.trial.settings.n_ctx == 5632
    assert asked().answer.trial.settings.n_ctx == 2816


def test_a_killed_sweep_answers_and_options_are_remembered(stored: Stored) -> None:
    stored(results=results(), is_ended=False, limit_bytes=20 << 30, endpoints=("far:1",))
    notes = " ".join(asked().notes)
    assert "--set n_threads=8" in notes
    assert "--vram-limit 20.0GiB" in notes
    assert "--rpc far:1" in notes
    assert "killed before its end" in notes


def test_where_nothing_ran_an_older_sweep_answers(stored: Stored) -> None:
    older = stored(results=results())
    stored(results=[sample_result(Outcome.CRASHED)])
    assert asked().stored.path == older


def cut_short(results: list[TrialResult]) -> list[TrialResult]:
    return [*results, dataclasses.replace(results[0], outcome=Outcome.CANCELLED, reason="stopped", visits=())]


def both_compared() -> list[dict[str, tuple[Visit, ...]]]:
    one = {result.trial.trial_id: result.visits for result in results()}
    return [one, one]


@pytest.mark.parametrize("is_ended", [False, True], ids=["killed", "stopped"])
def test_one_cut_short_before_its_rounds_gives_way_to_an_older_one_that_compared(
    stored: Stored, *, is_ended: bool
) -> None:
    older = stored(results=results(), rounds=both_compared())
    stored(results=cut_short(results()) if is_ended else results(), is_ended=is_ended)
    found = asked()
    assert found.stored.path == older
    assert any("compared nothing side by side yet: it is passed over" in note for note in found.notes)
    other = stored(results=results(n_ctx=4096), n_ctx=4096, is_ended=False)
    assert asked().stored.path == other  # which was asked something else
    whole = stored(results=results())
    assert asked().stored.path == whole


def test_the_engine_build_and_the_driver_and_the_cards_must_be_the_same(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(results=results())
    monkeypatch.setattr(recalling, "installed_build_id", lambda: "another")
    assert "was measured with another build of the engine (llama-cpp-python 0.3.36)" in str(refusal())
    monkeypatch.setattr(recalling, "installed_build_id", lambda: None)
    assert any("The engine is not installed in this Python" in note for note in asked().notes)
    (gpu,) = MACHINE.host.nvml_gpus or ()
    for other, words in (
        (dataclasses.replace(gpu, driver="560.1"), "here with another driver (550.54.14, now it is 560.1)"),
        (dataclasses.replace(gpu, name="NVIDIA RTX 2000"), "only on another machine"),
    ):
        host = dataclasses.replace(MACHINE.host, nvml_gpus=(other,))
        monkeypatch.setattr(recalling, "probe_host", lambda host=host, **_options: host)
        assert words in str(refusal())
    unknown = dataclasses.replace(MACHINE.host, nvml_gpus=None)
    monkeypatch.setattr(recalling, "probe_host", lambda **_options: unknown)
    assert asked()


def test_baselines_are_those_that_the_sweep_had(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(results=results(), n_os_cpus=6, fixed={})
    journal = store.Journal(path, None)
    journal.append_kept({})
    journal.append_kept({"use_extra_bufts": False})
    journal.close()
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    baseline = search.baseline_trials(asked().space)["default"].settings
    assert (baseline.n_threads_batch, baseline.use_extra_bufts) == (6, False)


def test_a_sweep_under_way_is_not_called_interrupted(stored: Stored) -> None:
    path = stored(results=results(), is_ended=False)
    with store.measuring_alone(store.data_dir(), FACTS.path.name):
        os.utime(path)
        (row,) = history(None)
        assert isinstance(row, JournalSummary)
        assert (row.is_under_way, row.is_interrupted) == (True, False)
        assert any("is being measured now" in note for note in asked().notes)
    (row,) = history(None)
    assert isinstance(row, JournalSummary)
    assert (row.is_under_way, row.is_interrupted) == (False, True)


def test_only_the_journal_that_the_same_command_would_find_is_gone_on_with(stored: Stored) -> None:
    path = stored(results=results(), is_ended=False)  # the name says: put aside
    assert "That sweep was killed before its end." in asked().notes
    path.replace(path.with_name(f"{path.stem.partition('.')[0]}.jsonl"))
    assert "That sweep was killed before its end; the same command goes on from there." in asked().notes


# --- damage --------------------------------------------------------------------------------------------------------


DAMAGES: dict[str, tuple[int, tuple[str, ...], Any]] = {
    "deep header": (0, ("fixed",), "DEEP"),
    "deep trial": (1, ("effective",), "DEEP"),
    "unknown fixed": (0, ("fixed",), {"novelty": 1}),
    "fixed of another type": (0, ("fixed",), {"n_threads": [1]}),
    "no os": (0, ("machine", "host", "os"), " "),
    "a folder out of place": (0, ("machine_id",), "../../x"),
    "an escape": (0, ("engine", "version"), "\x1b[2J"),
    "a huge number": (0, ("machine", "host", "ram", "total_bytes"), 10**400),
    "no cores": (0, ("machine", "host", "cpu", "n_logical_cores"), 0),
    "a negative context": (0, ("n_ctx",), -1),
    "unknown cache type": (1, ("trial", "settings", "type_k"), "zz"),
    "unknown load mode": (1, ("trial", "settings", "load_mode"), "zz"),
    "no prompt": (1, ("visits",), [{**store.to_json(visit()), "prefill_ns": 0}]),
    "no steps": (1, ("visits",), [{**store.to_json(visit()), "step_ns": []}]),
    "a round of warm-ups": (3, (results()[0].trial.trial_id,), [store.to_json(visit(is_warmup=True))]),
    "a round of nothing": (3, (results()[0].trial.trial_id,), []),
    "unknown kept": (4, (), {"novelty": 1}),
    "an infinite figure": (5, ("figures", "turn_s", "p50"), float("inf")),
    "a figure that is none": (5, ("figures", "ttft_s", "low"), float("nan")),
    "a changed goal": (5, ("goal",), "splendid"),
}


def damage(path: Path, i_line: int, keys: tuple[str, ...], value: Any) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    line = json.loads(lines[i_line])
    holder, last = line, "value"
    for key in keys:
        holder, last = holder[last], key
    holder[last] = value
    lines[i_line] = json.dumps(line).replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_a_row_and_a_warning_and_older_sweeps_answer(stored: Stored, name: str) -> None:
    older = stored(results=results(), rounds=both_compared())
    newer = stored(results=results(), rounds=both_compared()[:1], is_ended=False)
    journal = store.Journal(newer, None)
    journal.append_kept({})
    journal.append_end(recommendation())
    journal.close()
    damage(newer, *DAMAGES[name])
    heard: list[Event] = []
    report = recommend_stored(Question(path=FACTS.path), heard.append)
    shown(recall_view(report))
    shown(history_view(history(None)))
    json.dumps(history_json(history(None)), allow_nan=False)
    words = " ".join(event.text for event in heard if isinstance(event, Said))
    assert report.rests_on.path == older
    assert words.startswith(f"Warning: 1 journal left out: {newer} ") or name == "no cores"  # then a machine apart
    assert "Error" not in words


@pytest.mark.parametrize("keys", [("workload", "name"), ("gguf_path",)], ids=".".join)
def test_names_that_are_no_text_harm_nothing(stored: Stored, keys: tuple[str, ...]) -> None:
    path = stored(results=results())
    damage(path, 0, keys, "\ud800\x1b[2J")
    assert recommend_stored(Question(path=FACTS.path), print).rests_on.path == path
    shown(recall_view(recommend_stored(Question(path=FACTS.path), print)))
    shown(history_view(history(None)))


def test_what_else_can_be_had_is_told_from_the_journal(stored: Stored) -> None:
    stored(results=results())
    found = recommend_stored(Question(path=FACTS.path), print)
    assert [one.changes for one in found.front.points] == [(), (f"n_ubatch {SLOWER_TURN}",)]
    second = found.explanation.runner_up
    assert second is not None
    assert second.changes == (f"n_ubatch {SLOWER_TURN}",)
    assert found.explanation.limits
    text = shown(recall_view(found))
    assert "what else can be had" in text
    assert "Around it, by the time of a turn:" in text


@pytest.mark.parametrize("changes", [{"n_ctx": 0}, {"n_ubatch": 0}, {"n_gpu_layers": 1 << 40}, {"n_threads": -5}])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_settings_that_cannot_be_do_not_keep_the_answer_back(stored: Stored, changes: dict[str, int]) -> None:
    best, other = results()
    absurd = dataclasses.replace(other.trial, settings=other.trial.settings.replace(**changes))
    stored(results=[best, dataclasses.replace(other, trial=absurd)])
    found = recommend_stored(Question(path=FACTS.path), print)
    assert found.recommendation.trial.settings == best.trial.settings
    shown(recall_view(found))


def test_a_negative_time_of_another_trial_does_not_keep_the_answer_back(stored: Stored) -> None:
    best, other = results()
    early = dataclasses.replace(other.visits[0], tokenize_ns=-(10**9), step_ns=(10**12,))
    stored(results=[best, dataclasses.replace(other, visits=(early,))])
    found = recommend_stored(Question(path=FACTS.path), print)
    assert found.recommendation.trial.settings == best.trial.settings
    assert found.front.points == ()
    assert "do not go together" in shown(recall_view(found))


def test_infinite_bounds_of_a_single_round_are_shown(stored: Stored) -> None:
    path = stored(results=results(), is_ended=False)
    journal = store.Journal(path, None)
    journal.append_end(recommendation())  # holds one
    journal.close()
    assert FACTS.path.name in shown(history_view(history(None)))
    assert isinstance(history(None)[0], JournalSummary)


def shown(view: Any) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(view)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text
    return text


def test_an_unreadable_journal_is_one_warning(stored: Stored) -> None:
    path = stored(results=results())
    path.with_name("x-1.jsonl").write_text('{"kind": "header"}\n{"kind": 1\n')
    path.with_name("x-2.jsonl").write_text("nonsense\n")
    path.with_name("x-3.jsonl").write_text("")  # died before its first line: nothing to tell
    os.mkfifo(path.with_name("x-4.jsonl"))
    heard: list[Event] = []
    assert asked(heard.append).stored.path == path
    (said,) = heard
    assert isinstance(said, Said)
    assert said.text.startswith("Warning: 2 journals left out: ")
    rows = history(None)
    assert [type(row) for row in rows] == [UnreadableJournal, UnreadableJournal, JournalSummary]


# --- what does not -------------------------------------------------------------------------------------------------


def test_nothing_stored(stored: Stored) -> None:
    assert stored.n_written == 0
    error = refusal(goal=Goal.TTFT)
    assert str(error) == f"Nothing was measured of {FACTS.path.name} yet."
    assert error.hint == f"measure it: offloadtune sweep '{FACTS.path}' --goal ttft"


def test_another_question(stored: Stored) -> None:
    stored(results=results())
    error = refusal(workload=WORKLOADS["rag"], target=Target.LLAMA_SERVER)
    assert "was not measured here with --workload rag --target llama_server" in str(error)
    assert str(error).endswith("stored are: --workload chat --target llama_cpp_python --n-ctx 2816.")
    assert error.hint.endswith("--workload rag --target llama_server")
    custom = Workload(name="chat", n_prefix_cached=0, n_prompt_new=9, n_gen=9)  # a file may have any name
    assert "--workload 0/9/9/1" in str(refusal(workload=custom))


def test_another_content_and_another_machine(stored: Stored) -> None:
    other = dataclasses.replace(MACHINE.host, cpu=dataclasses.replace(MACHINE.host.cpu, n_logical_cores=2))
    stored(results=results(), gguf_id="before", gguf_path=Path("/elsewhere") / FACTS.path.name)
    assert "Nothing was measured of" in str(refusal())  # a namesake is not this file
    stored(results=results(), gguf_id="before")
    assert "has changed since it was measured" in str(refusal())
    stored(results=results(), machine_id="far-1", machine=dataclasses.replace(MACHINE, host=other))
    assert "only on another machine (1 sweep, far-1)" in str(refusal())
    stored(results=results())
    assert asked()


def test_an_older_ruler_does_not_compare(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(results=results())
    monkeypatch.setattr(store, "RULER", store.RULER + 1)
    assert "only in another way than today's" in str(refusal())


def test_a_journal_of_this_file_that_cannot_be_read(stored: Stored) -> None:
    path = stored(results=results())
    damage(path, 1, ("outcome",), "splendid")
    with pytest.raises(NotMeasuredError, match=r"What was measured of .* cannot be read: .*: line 2\.$") as caught:
        asked()
    assert caught.value.hint.startswith("move that file away and measure it again: offloadtune sweep ")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"n_ctx": 100}, "--n-ctx 100 cannot hold the workload chat"),
        ({"workload": Workload(name="x", n_prefix_cached=0, n_prompt_new=50_000, n_gen=9)}, "was trained for 40960"),
        ({"workload": Workload(name="x", n_prefix_cached=0, n_prompt_new=9, n_gen=9, n_parallel=2)}, "2 sequences"),
    ],
    ids=["context", "training", "sequences"],
)
def test_what_no_sweep_could_measure_is_refused_as_a_sweep_does(
    stored: Stored, question: dict[str, Any], words: str
) -> None:
    stored(results=results())
    with pytest.raises(UsageError, match=words):
        asked(**question)


def test_the_history_of_a_file_takes_unreadable_journals_by_their_whole_name(stored: Stored) -> None:
    path = stored(results=results())
    for stem in ("gone-0123456789ab", "gone-0123456789ab.20260102T030405", "gone-2-0123456789ab", "gone-old"):
        path.with_name(f"{stem}.jsonl").write_text("nonsense\n")
    assert {row.path.stem for row in history(Path("gone.gguf"))} == {
        "gone-0123456789ab",
        "gone-0123456789ab.20260102T030405",
    }


def test_only_failures(stored: Stored) -> None:
    stored(results=[sample_result(Outcome.CRASHED)])
    assert str(refusal()) == f"Of 1 stored trial of {FACTS.path.name} none ran to its end."


# --- what is made of it --------------------------------------------------------------------------------------------


def server_results() -> list[TrialResult]:
    return [
        dataclasses.replace(result, trial=dataclasses.replace(result.trial, target=Target.LLAMA_SERVER))
        for result in results()
    ]


def test_each_target_has_its_own_server(stored: Stored, home: Path) -> None:
    stored(results=results())
    stored(results=server_results(), target=Target.LLAMA_SERVER, endpoints=("far:1",))
    path = str(FACTS.path)
    words = server_command(Question(path=FACTS.path), ["--port", "81"], print)
    assert words[:5] == ["llama-server", "--model", path, "--rpc", "far:1"]
    assert words[-2:] == ["--port", "81"]
    words = server_command(Question(path=FACTS.path, target=Target.LLAMA_CPP_PYTHON), ["--port", "81"], print)
    assert words[:5] == [sys.executable, "-m", "llama_cpp.server", "--model", path]
    assert words[-2:] == ["--port", "81"]
    assert not (home / "profiles").exists()  # nothing that the words could not say


def test_what_the_server_has_no_words_for_stands_in_a_program(stored: Stored, home: Path) -> None:
    stored(results=results(), endpoints=("far:1",))
    python, program, port = server_command(Question(path=FACTS.path), ["--port=81"], print)
    assert (python, port) == (sys.executable, "--port=81")
    assert Path(program) == home / "profiles" / MACHINE.machine_id / f"{FACTS.path.stem}.llama_cpp_python_server.py"
    assert "['far:1']" in Path(program).read_text(encoding="utf-8")


# --- stand-ins -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[StandsFor], None]:
    """Makes the sample file one that stands for a model."""

    def make(real: StandsFor) -> None:
        facts = dataclasses.replace(FACTS, stands_for=real)
        for module in (recalling, using):
            monkeypatch.setattr(module, "read_gguf", lambda _path, **_options: facts)

    return make


WHOLE = StandsFor(label="Llama-3-8B", quantisation="Q4_K_M", n_layer=FACTS.n_layer)
DEEPER = dataclasses.replace(WHOLE, n_layer=32)


def test_settings_of_a_stand_in_are_exported_when_that_was_said(
    stored: Stored, stand_in: Callable[[StandsFor], None]
) -> None:
    stored(results=results())
    stored(results=server_results(), target=Target.LLAMA_SERVER)
    stand_in(WHOLE)
    question = Question(path=FACTS.path, target=Target.LLAMA_CPP_PYTHON)
    with pytest.raises(UsageError, match=r"is a stand-in for Llama-3-8B Q4_K_M, with random weights: ") as caught:
        export_stored(question, None, print)
    assert caught.value.hint == f"print them for that one: offloadtune export '{FACTS.path}' --yes"
    for asked_for, of in ((question, None), (question, "cpu_only"), (Question(path=FACTS.path), None)):
        text = export_stored(asked_for, of, print, may_be_standin=True)
        assert text.startswith("# measured on a stand-in of Llama-3-8B Q4_K_M, with random weights:\n# put the path ")
        assert text.count("PATH_TO/Llama-3-8B-Q4_K_M.gguf") == 2
        assert str(FACTS.path) not in text


def test_a_stand_in_is_not_served(stored: Stored, stand_in: Callable[[StandsFor], None]) -> None:
    stored(results=results())
    stand_in(WHOLE)
    with pytest.raises(UsageError, match="what it writes means nothing") as caught:
        server_command(Question(path=FACTS.path), (), print)
    assert caught.value.hint.endswith("--yes")


@pytest.mark.parametrize(
    ("label", "quantisation", "hint"),
    [
        ("llama 3 8b", "q4_k_m", "measure for the whole: offloadtune sweep --standin Llama-3-8B --quant Q4_K_M"),
        ("Mine", "Q4_K_M", "write a stand-in with all layers, offloadtune standin without --layers, and sweep that"),
        (
            "Llama-3-8B",
            "\x1b[2J",
            "write a stand-in with all layers, offloadtune standin without --layers, and sweep that",
        ),
    ],
)
def test_settings_of_fewer_layers_are_no_settings_of_the_whole(
    label: str, quantisation: str, hint: str, stored: Stored, stand_in: Callable[[StandsFor], None]
) -> None:
    stored(results=results())
    stand_in(StandsFor(label=label, quantisation=quantisation, n_layer=32))
    question = Question(path=FACTS.path)
    for refused in (
        lambda: export_stored(question, None, print),
        lambda: export_stored(question, None, print, may_be_standin=True),
        lambda: server_command(question, (), print),
    ):
        with pytest.raises(UsageError, match=r"28 of its 32 layers, .* not those of the whole model") as caught:
            refused()
        assert caught.value.hint == hint
        assert "\x1b" not in str(caught.value)


def test_what_cannot_be_exported_is_not_asked_to_be_measured_first(stand_in: Callable[[StandsFor], None]) -> None:
    stand_in(WHOLE)
    with pytest.raises(UsageError):
        export_stored(Question(path=FACTS.path), None, print)


def test_a_stored_answer_and_the_history_say_what_the_file_was(
    stored: Stored, stand_in: Callable[[StandsFor], None]
) -> None:
    stored(results=results(), stands_for=DEEPER, n_layer=28)
    stand_in(DEEPER)
    found = recommend_stored(Question(path=FACTS.path), print)
    assert (found.stands_for, found.n_layer) == (DEEPER, 28)
    assert f"model_path={str(FACTS.path)!r}" in found.apply_text
    assert "# settings for this file alone, not for the real one\n" in found.apply_text
    assert [(row.stands_for, row.n_layer) for row in history(None) if isinstance(row, JournalSummary)] == [(DEEPER, 28)]


# --- limits --------------------------------------------------------------------------------------------------------


def test_trials_over_a_limit_of_memory_are_out(stored: Stored) -> None:
    best, other = results()
    stored(results=[dataclasses.replace(best, device_peak_bytes=(("CUDA0", 6 << 30),)), other])
    assert asked().answer.trial.why == "the better turn"
    found = asked(vram_limit_bytes=5 << 30)
    assert found.answer.trial.why == "the sooner token"
    (note,) = (one for one in found.notes if "not tried yet for these" in one)
    assert f"offloadtune sweep '{FACTS.path}' --workload chat --target llama_cpp_python --n-ctx 2816" in note
    assert "--vram-limit 5.00GiB" in note
    assert "--set n_threads=8" in note


def test_where_none_stayed_within_the_limit_the_exact_command_is_named(stored: Stored) -> None:
    stored(results=results())
    error = refusal(limits=Limits(host_bytes=1 << 30))
    assert str(error) == f"Of 2 stored trials of {FACTS.path.name} none stayed within --ram-limit 1.00GiB."
    assert "--ram-limit 1.00GiB" in error.hint
    assert "--workload chat" in error.hint


def test_limits_of_speed_are_judged_anew(stored: Stored) -> None:
    both = results()
    one = {result.trial.trial_id: result.visits for result in both}
    stored(results=both, rounds=[one, one])
    ttft_s = both[1].visits[0].ttft_s
    found = asked(limits=Limits(ttft_p95_s=1.01 * ttft_s))
    assert found.answer.trial.why == "the sooner token"
    assert all(limit.is_kept for limit in found.answer.limits)
    nearest = asked(limits=Limits(ttft_p95_s=0.9 * ttft_s))
    assert nearest.answer.trial.why == "the sooner token"
    assert nearest.answer.reasons[0].startswith("No settings tried have their first token within")


def test_who_was_not_compared_answers_where_only_that_keeps_the_limit(stored: Stored) -> None:
    *three, last = several(4)
    sooner = dataclasses.replace(last, visits=(steps(0.5, 3.0),))
    stored(results=[*three, sooner], rounds=[{one.trial.trial_id: one.visits for one in three}] * 3)
    assert asked(goal=Goal.TTFT).answer.trial != sooner.trial  # it was compared with nobody
    found = asked(limits=Limits(ttft_p95_s=1.01 * sooner.visits[0].ttft_s))
    assert found.answer.trial == sooner.trial
    assert found.answer.limits[0].is_kept


def test_limits_of_the_sweep_hold_where_the_question_names_none(stored: Stored) -> None:
    both, limits = results(), Limits(ttft_p95_s=1.01 * results()[1].visits[0].ttft_s)
    stored(results=both, limits=limits)
    found = asked()
    assert found.answer.trial.why == "the sooner token"
    assert any(f"--max-ttft {limits.ttft_p95_s:.12g}s" in note for note in found.notes)
    assert not any("not tried yet" in note for note in found.notes)
    both_limits = asked(limits=Limits(min_tok_per_s=1.0)).space.limits
    assert both_limits == dataclasses.replace(limits, min_tok_per_s=1.0)

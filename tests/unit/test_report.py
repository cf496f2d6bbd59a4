"""What people and programs read: golden screens, and JSON with the keys that are promised."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden import check_golden
from rich.console import Console, Group, RenderableType
from sample_records import (
    BARE_MACHINE,
    CPU,
    CPU_ONLY,
    ENGINE,
    FACTS,
    MACHINE,
    SERVER_SETTINGS,
    SETTINGS,
    TRIAL,
    UNDECIDED,
    estimate,
    explanation,
    figures,
    front,
    journals,
    recalled,
    recommendation,
    report,
    result,
)

from offloadtune.cli import console
from offloadtune.conditions import Disturbance, DisturbanceKind
from offloadtune.plans import CacheCost
from offloadtune.records import Goal, Outcome, Target, Trial, Verdict
from offloadtune.report import (
    history_json,
    history_view,
    inspect_json,
    inspect_view,
    probe_json,
    probe_view,
    recall_json,
    recall_view,
    sweep_json,
    sweep_view,
)
from offloadtune.report.around import explanation_lines, front_lines
from offloadtune.sweeps import Explanation, Front, RunnerUp

SERVER_TRIAL = Trial(settings=SERVER_SETTINGS, target=Target.LLAMA_SERVER, why="x")
CPU_TRIAL = Trial(settings=CPU_ONLY, target=Target.LLAMA_CPP_PYTHON, why="x")
DENSE = dataclasses.replace(FACTS, n_expert=0, n_expert_used=0, n_swa=0, is_swa=(False,) * 28, is_tied=False, name=None)
CACHE, WINDOW_CACHE = (CacheCost(bytes_per_token=114_688, fixed_bytes=fixed) for fixed in (0, 30 << 20))
EMPTY = dataclasses.replace(
    FACTS, layer_bytes=(0,), expert_bytes=(0,), embedding_bytes=0, output_bytes=0, type_bytes=(("F32", 0),)
)


NOW = (
    Disturbance(kind=DisturbanceKind.BATTERY, words="The machine is on battery.", is_passing=False),
    Disturbance(kind=DisturbanceKind.GPU_PROCESS, words="Other programs hold 6 GiB: [red]x.", is_passing=True),
)


def screen(view: RenderableType) -> str:
    """`view` as a terminal of 100 columns shows it, without its colours."""
    stream = io.StringIO()
    Console(file=stream, width=100, highlight=False, markup=False, emoji=False, color_system=None).print(
        view, soft_wrap=True
    )
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("probe", lambda: probe_view(MACHINE, ENGINE)),
        ("probe_now", lambda: probe_view(MACHINE, ENGINE, NOW)),
        ("probe_without_cuda", lambda: probe_view(dataclasses.replace(MACHINE, devices=(CPU,)), ENGINE)),
        ("probe_unknowns", lambda: probe_view(BARE_MACHINE, None)),
        ("inspect", lambda: inspect_view(FACTS, CACHE)),
        ("inspect_dense", lambda: inspect_view(DENSE, WINDOW_CACHE)),
        ("sweep", lambda: sweep_view(report())),
        ("sweep_cpu_only", lambda: sweep_view(dataclasses.replace(report(CPU_TRIAL), baselines={}, skipped=()))),
        ("recall", lambda: recall_view(recalled())),
        ("history", lambda: history_view(journals())),
        ("history_empty", lambda: history_view([])),
        ("history_empty_of_file", lambda: history_view([], "a\x1b[2J.gguf")),
        ("sweep_server_interrupted", lambda: sweep_view(report(SERVER_TRIAL, is_interrupted=True))),
    ],
)
def test_the_screen(name: str, view: Callable[[], RenderableType]) -> None:
    check_golden(f"report/{name}.txt", screen(view()))


def test_the_figures_and_settings_are_those_of_the_answer() -> None:
    text = screen(sweep_view(report()))
    best = next(line for line in text.splitlines() if line.startswith("recommended"))
    assert best.split() == ["recommended", "180", "ms", "1422", "tok/s", "39.2", "tok/s", "6.68", "s"]
    assert f"n_gpu_layers={SETTINGS.n_gpu_layers}, n_ctx={SETTINGS.n_ctx}" in text
    assert report().apply_text in text
    assert "2 trials ok, 6 failed" in text


@pytest.mark.parametrize("name", ["[/bold] x", "[red]x", "a :smile: b", "50% [1/2]"])
def test_a_name_is_shown_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = dataclasses.replace(FACTS, name=name, path=Path(f"/models/{name.replace('/', '')}.gguf"))
    console.show(inspect_view(facts, CACHE))
    shown = capsys.readouterr().out
    assert f"{name}, qwen3moe" in shown
    assert facts.path.name in shown


def test_a_file_whose_tensors_are_empty_is_shown() -> None:
    assert "(F32 0%)" in screen(inspect_view(EMPTY, None))


def test_output_that_is_no_terminal_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    long = dataclasses.replace(report(), apply_text="x" * 5000, profile_path=Path("/p" * 2000))
    console.show(sweep_view(long))
    lines = capsys.readouterr().out.splitlines()
    assert "x" * 5000 in lines
    assert f"profile: {'/p' * 2000}" in lines


def around(text: str) -> list[str]:
    """The lines of the section."""
    lines = text.partition("Around it, ")[2].splitlines()[1:]
    return lines[: lines.index("")]


@pytest.mark.parametrize("n_neighbours", [0, 1, 4, 5, 6, 40])
@pytest.mark.parametrize("unknown", ["", "there is no law"])
@pytest.mark.parametrize("goal", Goal)
def test_what_lies_around_is_told_in_eight_lines(n_neighbours: int, unknown: str, goal: Goal) -> None:
    one, some = explanation(), explanation().neighbours
    many = tuple(some[i % len(some)] for i in range(n_neighbours))
    text = screen(Group(*explanation_lines(dataclasses.replace(one, neighbours=many, unknown=unknown), goal), "", ""))
    lines = around(text)
    assert len(lines) <= 8
    n_told = sum(" as long" in line or line.startswith("- No room") for line in lines) - 1  # the runner-up
    hidden = re.search(r"(\d+) more steps? with --json", text)
    assert n_told + (int(hidden[1]) if hidden else 0) == n_neighbours
    assert any("- Multiplying" in line for line in lines) == (goal is not Goal.DECODE)
    assert any("- Each token" in line for line in lines) == (goal is not Goal.TTFT)


def test_nothing_to_tell_makes_no_section() -> None:
    assert screen(Group(*explanation_lines(Explanation(), Goal.TURN), *front_lines(Front()))) == ""
    alone = Front(points=front().points[:1], n_ran=1, tolerance_frac=0.02)
    assert screen(Group(*front_lines(alone))) == ""
    told = screen(Group(*front_lines(dataclasses.replace(alone, n_ran=7))))
    assert told == "\nOf 7 settings that ran none is better in anything by more than 2%.\n"


def test_memory_of_devices_has_no_column_where_there_are_none() -> None:
    bare = tuple(dataclasses.replace(one, device_bytes=0) for one in front().points)
    assert "on devices" in screen(Group(*front_lines(front())))
    assert "on devices" not in screen(Group(*front_lines(dataclasses.replace(front(), points=bare))))


@pytest.mark.parametrize(
    ("verdict", "n_samples", "end"),
    [
        (Verdict.FASTER, 9, "9 rounds)."),
        (Verdict.SAME, 9, "9 rounds), no difference beyond the noise."),
        (Verdict.SAME, 2, "2 rounds), too few to tell."),
        (Verdict.SAME, 1, "by one visit each, too few to tell."),
        (Verdict.SLOWER, 9, "9 rounds); it is faster, but not what was asked for."),
    ],
)
def test_the_runner_up_is_told_with_what_the_noise_leaves_of_it(verdict: Verdict, n_samples: int, end: str) -> None:
    second = RunnerUp(trial=TRIAL, changes=("n_ubatch 512",), ratio=estimate(1.04, 0.02, n_samples), verdict=verdict)
    (line,) = around(screen(Group(*explanation_lines(Explanation(runner_up=second), Goal.TURN), "")))
    assert line.startswith("- Next came n_ubatch 512: 1.04x as long ")
    assert line.endswith(end)


def test_what_an_engine_said_cannot_steer_the_terminal() -> None:
    hostile = tuple(
        dataclasses.replace(one, words="\x1b[2J[red]x", no_room="\x1b]0;x\x07") for one in explanation().neighbours
    )
    point = dataclasses.replace(front().points[1], changes=("load_mode=\x1b[2J",))
    text = screen(
        Group(
            *explanation_lines(Explanation(neighbours=hostile), Goal.TURN),
            *front_lines(Front(points=(front().points[0], point), n_ran=2)),
        )
    )
    assert "[red]x" in text
    assert not set(text) & {"\x1b", "\x07"}


# --- JSON ----------------------------------------------------------------------------------------------------------


def strict(value: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Any:
    """What a program reads that knows no NaN and no Infinity."""
    console.show_json(value)
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_sweep_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    value = strict(sweep_json(report()), capsys)
    assert value["machine_id"] == MACHINE.machine_id
    gguf = value["gguf"]
    assert (gguf["identity"], gguf["sha256"], gguf["file_bytes"]) == (FACTS.gguf_id, "a" * 64, FACTS.file_bytes)
    trials = value["trials"]
    assert (trials["ok"], trials["failed"], trials["model_loads"]) == (2, 6, 4)
    assert trials["outcomes"] == {outcome.value: 2 if outcome is Outcome.OK else 1 for outcome in Outcome}
    assert set(value["baselines"]) == {"cpu_only", "default"}
    best = value["recommended"]
    assert best["settings"] == {**dataclasses.asdict(SETTINGS), "devices": None}
    assert best["target"] == "llama_cpp_python"
    for name, one in (("ttft_s", figures().ttft_s), ("decode_tok_per_s", figures().decode_tok_per_s)):
        seen = best[name]
        assert (seen["p50"], seen["low"], seen["high"]) == (one.p50, one.low, one.high)
    assert best["prefill_tok_per_s"]["p50"] == 1422.0
    assert best["peak_bytes"] == {"CUDA0": 5 << 30, "host_rss": None}
    assert value["memory"] == {"CUDA0": {"peak_bytes": 5 << 30, "predicted_bytes": (5 << 30) - (50 << 20)}}
    assert best["verdict_vs_default"] == "same"
    assert best["reasons"] == list(recommendation().reasons)
    assert value["profile_path"] == str(report().profile_path)


def test_what_else_can_be_had_and_why_is_whole_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    value = strict(sweep_json(report()), capsys)
    assert strict(recall_json(recalled()), capsys)["front"] == value["front"]
    assert len(value["front"]) == 8
    first = value["front"][0]
    assert (first["settings"]["n_gpu_layers"], first["changes"], first["n_visits"]) == (24, [], 9)
    assert (first["ttft_s"], first["decode_tok_per_s"], first["n_ctx"]) == (0.1805, 39.2, 2816)
    assert [one["device_bytes"] for one in value["front"]].count(None) == 1
    assert value["front_tolerance_frac"] == 0.02
    why = value["explanation"]
    assert len(why["neighbours"]) == 7
    more, fewer, twice, ended, *_ = why["neighbours"]
    assert (more["cost_ratio"], more["no_room"]) == (None, "needs about 5.17 GiB, there are 5.10 GiB")
    assert (fewer["cost_ratio"]["basis"], fewer["cost_ratio"]["p50"]) == ("calibrated", 1.06)
    assert (twice["cost_ratio"]["basis"], twice["cost_ratio"]["high"]) == ("measured", None)
    assert ended["unknown"].startswith("it did not run")
    assert [one["share_frac"] for one in why["limits"]] == [0.61, 0.71]
    assert (why["runner_up"]["verdict"], why["runner_up"]["changes"]) == ("faster", ["1 layer fewer", "n_ubatch 512"])
    assert why["unknown"] is None


def test_an_interval_without_ends_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    ratio = strict(sweep_json(report()), capsys)["recommended"]["versus"]["default"]["ratio"]
    assert (ratio["low"], ratio["p50"], ratio["high"]) == (None, UNDECIDED.p50, None)


def test_no_comparison_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    answer = dataclasses.replace(recommendation(), versus=())
    value = strict(sweep_json(dataclasses.replace(report(), recommendation=answer, sha256=None)), capsys)
    assert value["recommended"]["verdict_vs_default"] is None
    assert value["gguf"]["sha256"] is None


def test_no_devices_and_all_devices_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert strict(sweep_json(report(CPU_TRIAL)), capsys)["recommended"]["settings"]["devices"] == []
    assert strict(sweep_json(report(TRIAL)), capsys)["recommended"]["settings"]["devices"] is None


def test_the_probe_has_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    value = strict(probe_json(MACHINE, ENGINE), capsys)
    assert value["machine_id"] == MACHINE.machine_id
    assert value["engine"]["build_id"] == ENGINE.build_id
    assert [device["name"] for device in value["devices"]] == ["CUDA0", "CPU"]
    assert value["host"]["ram"]["total_bytes"] == MACHINE.host.ram.total_bytes
    assert value["now"] == []
    now = strict(probe_json(MACHINE, ENGINE, NOW), capsys)["now"]
    assert now[0] == {"kind": "battery", "words": "The machine is on battery.", "is_passing": False}
    bare = strict(probe_json(BARE_MACHINE, None), capsys)
    assert (bare["engine"], bare["devices"]) == (None, None)
    assert {note["subject"] for note in bare["notes"]} == {"devices"}


def test_the_file_has_its_facts_and_no_tensor_table(capsys: pytest.CaptureFixture[str]) -> None:
    value = strict(inspect_json(FACTS, CACHE), capsys)
    assert (value["n_tensors"], value["tensor_bytes"]) == (1, FACTS.tensor_bytes)
    assert "tensors" not in value
    assert value["key_values"] == {
        "general.name": FACTS.name,
        "a.nan": None,
        "a.inf": None,
        "a.list": [1, 2.5],
    }
    assert value["type_bytes"]["Q4_K"] == 3_900_000_000
    assert value["path"] == str(FACTS.path)


def test_every_outcome_is_counted_once() -> None:
    trials = sweep_json(dataclasses.replace(report(), results=tuple(map(result, Outcome))))["trials"]
    assert (trials["ok"], trials["failed"]) == (1, len(Outcome) - 2)  # cancelled is neither


def test_a_stored_answer_has_the_keys_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    swept, value = strict(sweep_json(report()), capsys), strict(recall_json(recalled()), capsys)
    for key in ("machine_id", "baselines", "recommended", "skipped", "apply"):
        assert value[key] == swept[key]
    assert value["trials"] == {"ok": 12, "failed": 1, "rounds": 6}
    assert value["rests_on"]["started_at"] == "2026-01-02T03:04:05+00:00"
    assert value["notes"] == list(recalled().notes)


def test_one_sample_has_no_interval() -> None:
    once = dataclasses.replace(recommendation().figures, ttft_s=estimate(1.6, n_samples=1))
    view = recall_view(
        dataclasses.replace(recalled(), recommendation=dataclasses.replace(recommendation(), figures=once))
    )
    assert "first token: 1.60 s, one sample" in screen(view)


def test_the_history_tells_the_unreadable_apart(capsys: pytest.CaptureFixture[str]) -> None:
    rows = strict(history_json(journals()), capsys)["journals"]
    under_way, *rows = rows
    assert (under_way["under_way"], under_way["interrupted"]) == (True, False)
    assert [row["unreadable"] for row in rows] == [
        None,
        None,
        "/home/user/sweeps/rtx/x-1.jsonl is damaged at line 3.",
        None,
    ]
    assert [row.get("interrupted") for row in rows] == [False, True, None, False]
    assert [row.get("put_aside") for row in rows] == [False, False, None, True]
    assert rows[1]["recommended"] is None
    assert rows[0]["recommended"]["verdict_vs_default"] == "same"

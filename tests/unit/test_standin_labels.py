"""What was measured on a stand-in says so wherever it is shown or written, and its settings name no file of theirs."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from golden import check_golden
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from sample_records import ENGINE, FACTS, MACHINE, SERVER_SETTINGS, TRIAL, header, journals, recalled, report, summary
from sample_runs import bench_run

from offloadtune import pipeline, store
from offloadtune.bench import figures_of, trend
from offloadtune.benches import BenchReport, BenchRequest, BenchRun
from offloadtune.errors import BudgetError
from offloadtune.export import Profile, render_profile
from offloadtune.pipeline import benching, sweeping
from offloadtune.pipeline.rendering import apply_text
from offloadtune.pipeline.trending import _trend
from offloadtune.records import WORKLOADS, GgufFacts, StandsFor, Target, Trial
from offloadtune.report import (
    bench_json,
    bench_view,
    calibration_json,
    calibration_view,
    checks_json,
    checks_view,
    history_json,
    history_view,
    recall_json,
    recall_view,
    regression_words,
    sweep_json,
    sweep_view,
    trends_json,
    trends_view,
)
from offloadtune.speeds import CalibrationReport
from offloadtune.store import read_header, read_runs
from offloadtune.sweeps import Said, SweepRequest
from offloadtune.trends import StaleProfile, TrendCheck, TrendReport

WHOLE = StandsFor(label="Llama-3-8B", quantisation="Q4_K_M", n_layer=FACTS.n_layer)
DEEPER = dataclasses.replace(WHOLE, n_layer=32)
HOSTILE = StandsFor(label='a\x1b[2J\n"b" coding: utf-7', quantisation="'coding", n_layer=FACTS.n_layer)
SERVER_TRIAL = Trial(settings=SERVER_SETTINGS, target=Target.LLAMA_SERVER, why="x")
MARKS: dict[str, Any] = {"n_layer": FACTS.n_layer, "stands_for": WHOLE}
IN_JSON = {"n_layer": FACTS.n_layer, "stands_for": dataclasses.asdict(WHOLE)}
LINE = (
    "stand-in for Llama-3-8B Q4_K_M, with random weights: "
    "says nothing of text quality, draft models or a trained router"
)


def stand_in(real: StandsFor) -> GgufFacts:
    return dataclasses.replace(FACTS, path=Path("/models/stand-in.gguf"), stands_for=real)


def screen(view: RenderableType) -> str:
    """`view` as a wide terminal shows it, without its colours."""
    stream = io.StringIO()
    console = Console(file=stream, width=200, highlight=False, markup=False, emoji=False, color_system=None)
    console.print(view, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def swept(real: StandsFor) -> RenderableType:
    facts = stand_in(real)
    return sweep_view(dataclasses.replace(report(), facts=facts, apply_text=apply_text(TRIAL, facts, ())))


def benched(real: StandsFor) -> BenchReport:
    run = bench_run(n_layer=FACTS.n_layer, stands_for=real)
    return BenchReport(run=run, figures=figures_of(run), notes=(), trend_path=None)


def trended(*runs: BenchRun, real: StandsFor = WHOLE) -> TrendReport:
    stale = StaleProfile(gguf_path=FACTS.path, why="another driver", command="offloadtune sweep x", stands_for=real)
    return TrendReport(trends=(_trend(runs, is_here=True),), broken=(), stale=(stale,))


def checked(real: StandsFor | None, before: StandsFor | None, **changes: Any) -> TrendCheck:
    """The sixth run of a file, after five that were of `before`."""
    gguf_id = FACTS.gguf_id if real == before else "another"
    runs = [bench_run(i, gguf_id=gguf_id, n_layer=FACTS.n_layer, stands_for=before) for i in range(5)]
    return trend.check([*runs, bench_run(5, n_layer=FACTS.n_layer, stands_for=real, **changes)])


def calibrated(real: StandsFor) -> CalibrationReport:
    return CalibrationReport(
        machine_id="a-card-01234567",
        engine_version="llama-cpp-python 0.3.36",
        path=Path("/models/stand-in.gguf"),
        type_name="Q4_K",
        devices=("CUDA0",),
        n_passages=3,
        n_loads=2,
        n_timings=9,
        coefficients=(),
        checks=(),
        failures=(),
        words=(),
        store_path=Path("/home/user/profiles/a-card-01234567/speed.json"),
        is_interrupted=False,
        duration_s=61.2,
        n_layer=FACTS.n_layer,
        stands_for=real,
    )


VIEWS: dict[str, Callable[[StandsFor], RenderableType]] = {
    "sweep": swept,
    "recall": lambda real: recall_view(dataclasses.replace(recalled(), n_layer=28, stands_for=real)),
    "history": lambda real: history_view([dataclasses.replace(summary(), stands_for=real, n_layer=28), *journals()]),
    "bench": lambda real: bench_view(benched(real)),
    "trends": lambda real: trends_view(trended(bench_run(), bench_run(1, n_layer=28, stands_for=real), real=real)),
    "checks": lambda real: checks_view([checked(real, real)]),
    "calibration": lambda real: calibration_view(calibrated(real)),
}


# --- on the screen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
def test_the_screen(name: str) -> None:
    check_golden(f"report/{name}_standin.txt", screen(VIEWS[name](WHOLE)))


def test_one_clear_line_stands_above_the_figures() -> None:
    for name in ("sweep", "recall", "bench", "calibration"):
        assert screen(VIEWS[name](WHOLE)).splitlines()[0] == LINE
    for name in ("trends", "checks"):
        assert screen(VIEWS[name](WHOLE)).splitlines()[1] == LINE


@pytest.mark.parametrize("name", VIEWS)
def test_fewer_layers_than_the_model_are_told(name: str) -> None:
    assert "stand-in for Llama-3-8B Q4_K_M, 28 of its 32 layers, with random weights" in screen(VIEWS[name](DEEPER))


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_stranger_wrote_into_the_file_is_made_safe(name: str) -> None:
    text = screen(VIEWS[name](HOSTILE))
    assert "\x1b" not in text
    assert "stand-in for a[2J" in text


def test_the_next_step_is_one_that_is_not_refused() -> None:
    text = screen(swept(WHOLE))
    assert "for the real file: offloadtune export /models/stand-in.gguf --yes\n" in text
    assert "offloadtune export /models/stand-in.gguf --of cpu_only --yes\n" in text
    assert "offloadtune apply" not in text
    text = screen(swept(DEEPER))
    assert "offloadtune apply" not in text
    assert "offloadtune export" not in text


def test_a_trend_tells_runs_of_a_stand_in_from_those_of_the_real_file() -> None:
    text = screen(VIEWS["trends"](WHOLE))
    assert text.count(LINE) == 1
    rows = [line for line in text.splitlines() if line.startswith("2026-")]
    assert [", stand-in" in row for row in rows] == [True, False]
    assert "Qwen 3 [8B].gguf (stand-in for Llama-3-8B Q4_K_M, with random weights): its profile was made with" in text


def test_a_regression_names_what_ran() -> None:
    slow = checked(WHOLE, WHOLE, slower=2.0)
    name = f"{FACTS.path.name} (stand-in for Llama-3-8B Q4_K_M, with random weights) runs slower than before: "
    assert regression_words([slow]).startswith(name)
    assert "\x1b" not in regression_words([dataclasses.replace(slow, stands_for=HOSTILE)])
    assert "stand-in" not in regression_words([checked(None, None, slower=2.0)])


@pytest.mark.parametrize(
    ("real", "before", "words"),
    [
        (None, WHOLE, "a stand-in with random weights"),
        (WHOLE, None, "the real file or another stand-in"),
        (WHOLE, HOSTILE, "the real file or another stand-in"),
    ],
)
def test_a_stand_in_and_what_is_none_are_not_compared_unsaid(
    real: StandsFor | None, before: StandsFor | None, words: str
) -> None:
    assert f"5 of 5 earlier runs measured something else: {words}." in checked(real, before).warnings
    assert not checked(None, None).warnings
    assert not checked(WHOLE, WHOLE).warnings
    unmarked = [bench_run(i) for i in range(5)]
    assert not trend.check([*unmarked, bench_run(5, **MARKS)]).warnings


# --- while it is measured ------------------------------------------------------------------------------------------


@pytest.fixture
def standin_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of a file that is read as a stand-in, and measured by nothing."""

    def measured(*_: object, **_named: object) -> None:
        raise BudgetError("No time.", hint="none")

    for module, names in ((sweeping, ["check"]), (benching, ["check_bench", "choose"])):
        monkeypatch.setattr(module, "read_gguf", lambda _path: stand_in(HOSTILE))
        for name in names:
            monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(sweeping, "GuardedRunner", measured)
    monkeypatch.setattr(benching, "_run", measured)
    return tmp_path / "a.gguf"


@pytest.mark.parametrize(
    ("measure", "request_of"),
    [(pipeline.sweep, partial(SweepRequest, workload=WORKLOADS["chat"])), (pipeline.bench_file, BenchRequest)],
)
def test_it_is_said_once_before_anything_is_measured(
    measure: Callable[..., object], request_of: Callable[..., object], standin_path: Path
) -> None:
    events: list[Any] = []
    with pytest.raises(BudgetError):
        measure(request_of(path=standin_path, budget_s=1.0), events.append)
    said = [event.text for event in events if isinstance(event, Said)]
    what = 'stand-in for a[2J"b" coding: utf-7 \'coding, with random weights'
    assert said == [f"stand-in.gguf is a {what}: it says nothing of text quality, draft models or a trained router."]


# --- for programs --------------------------------------------------------------------------------------------------


def test_programs_are_told() -> None:
    swept_json = sweep_json(dataclasses.replace(report(), facts=stand_in(WHOLE)))
    recalled_json = recall_json(dataclasses.replace(recalled(), **MARKS))
    (journal,) = history_json([dataclasses.replace(summary(), **MARKS)])["journals"]
    (one_trend,) = trends_json(trended(bench_run(**MARKS)))["trends"]
    (check,) = checks_json([checked(WHOLE, WHOLE)])["checks"]
    figures = bench_json(benched(WHOLE)), one_trend["runs"][0], check, calibration_json(calibrated(WHOLE))
    for value in (swept_json["gguf"], recalled_json["gguf"], journal, *figures):
        assert {name: value[name] for name in IN_JSON} == IN_JSON
        json.dumps(value)
    assert sweep_json(report())["gguf"]["stands_for"] is None
    assert trends_json(trended(bench_run()))["trends"][0]["runs"][0]["stands_for"] is None


def test_the_profile() -> None:
    facts = stand_in(WHOLE)
    profile = Profile(
        offloadtune_version="0.1.0",
        machine=MACHINE,
        engine=ENGINE,
        facts=facts,
        sha256=None,
        recommendation=report().recommendation,
        apply_text=apply_text(TRIAL, facts, ()),
        journal_path=Path("/home/user/sweeps/x.jsonl"),
        measured_at="2026-01-02T03:04:05+00:00",
    )
    text = render_profile(profile)
    check_golden("export/profile_standin.toml", text)
    read = tomllib.loads(text)
    assert {name: read["gguf"][name] for name in IN_JSON} == IN_JSON
    assert read["apply"]["python"] == profile.apply_text


# --- in the journals -----------------------------------------------------------------------------------------------


def test_a_journal_keeps_what_the_file_stands_for(tmp_path: Path) -> None:
    made = dataclasses.replace(header(), **MARKS)
    store.Journal(tmp_path / "a.jsonl", made).close()
    assert read_header(tmp_path / "a.jsonl") == made
    assert made.sweep_key == header().sweep_key  # what was measured before stand-ins were marked goes on


def without_marks(value: dict[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if name not in MARKS}


def test_journals_from_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    store.Journal(path, header()).close()
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "value": without_marks(line["value"])}) + "\n")
    assert read_header(path) == header()


def test_runs_from_before_are_read(tmp_path: Path) -> None:
    path = store.append_run(tmp_path, bench_run())
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "run": without_marks(line["run"])}) + "\n")
    assert read_runs(path).runs == (bench_run(),)
    marked = bench_run(1, **MARKS)
    store.append_run(tmp_path, marked)
    assert read_runs(path).runs[1] == marked


# --- as the front end takes it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "trial", "real"),
    [
        ("snippet_standin.py", TRIAL, WHOLE),
        ("command_standin.sh", SERVER_TRIAL, WHOLE),
        ("snippet_standin_fewer_layers.py", TRIAL, DEEPER),
    ],
)
def test_the_text(name: str, trial: Trial, real: StandsFor) -> None:
    check_golden(f"export/{name}.txt", apply_text(trial, stand_in(real), ()))


def test_a_real_file_is_named_without_a_comment() -> None:
    text = apply_text(TRIAL, FACTS, ())
    assert "#" not in text
    assert repr(str(FACTS.path)) in text


def words_of(text: str) -> list[str]:
    """Words of the command; shlex does not know that a backslash joins lines."""
    return shlex.split(text.replace(" \\\n  ", " "), comments=True)


def path_in_program(text: str) -> object:
    """The only statement besides imports must be the call."""
    *imports, call = ast.parse(text.encode()).body
    assert all(isinstance(one, ast.ImportFrom) for one in imports)
    assert isinstance(call, ast.Assign)
    assert isinstance(call.value, ast.Call)
    return next(ast.literal_eval(one.value) for one in call.value.keywords if one.arg == "model_path")


@given(label=st.text(max_size=100), quantisation=st.text(max_size=100), n_layer=st.sampled_from([28, 32]))
def test_whatever_a_file_claims_to_stand_for_the_text_does_one_thing(
    label: str, quantisation: str, n_layer: int
) -> None:
    facts = stand_in(StandsFor(label=label, quantisation=quantisation, n_layer=n_layer))
    path = str(facts.path)
    if n_layer == 28:
        path = str(path_in_program(apply_text(TRIAL, facts, ())))
        assert Path(path).parent == Path("PATH_TO")
        assert path.endswith(".gguf")
    else:
        assert path_in_program(apply_text(TRIAL, facts, ())) == path
    assert words_of(apply_text(SERVER_TRIAL, facts, ()))[:3] == ["llama-server", "--model", path]


@pytest.mark.parametrize("real", [WHOLE, DEEPER, HOSTILE])
def test_a_real_shell_starts_the_server_and_nothing_else(real: StandsFor, tmp_path: Path) -> None:
    text = apply_text(SERVER_TRIAL, stand_in(real), ())
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    server.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", text], capture_output=True, text=True, check=True, env={"PATH": f"{tmp_path}"}
    )
    assert (done.stdout.splitlines(), done.stderr) == (words_of(text)[1:], "")

"""What was measured once is answered, listed, exported and served again, without measuring anew."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import SHORT_SWEEPS

pytestmark = pytest.mark.engine

WORKLOAD = "0/32/8/1"
SERVER_DEADLINE_S = 120


class Measured:
    """A home in which SmolLM2 was measured, and what that sweep printed."""

    def __init__(self, folder: Path, swept: dict[str, Any]) -> None:
        self.folder, self.swept = folder, swept


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Measured:
    """One sweep for all tests here, of few trials and with time enough for all of them.

    One thread reads the prompt, because two suffer when others work here. Without repacking the settings are more
    than the server has words for, so that it takes a program to start it.
    """
    folder = tmp_path_factory.mktemp("measured")
    fixed = [f"--set={one}" for one in ("use_extra_bufts=false", "flash_attn_type=disabled", "n_threads_batch=1")]
    options = ["--budget", "60s", "--workload", WORKLOAD, "--n-ctx", "768", *fixed]
    command = [sys.executable, "-c", SHORT_SWEEPS, "sweep", str(smollm2_path), *options, "--json"]
    environment = {**os.environ, "OFFLOADTUNE_HOME": str(folder)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment, timeout=400)
    return Measured(folder, json.loads(done.stdout))


@pytest.fixture(autouse=True)
def home(measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the measured home, the test's own."""
    folder = tmp_path / "home"
    shutil.copytree(measured.folder, folder)
    monkeypatch.setenv("OFFLOADTUNE_HOME", str(folder))
    monkeypatch.chdir(folder)
    return folder


def offloadtune(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offloadtune", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def answered(*arguments: str | Path, **environment: str) -> Any:
    done = offloadtune(*arguments, "--json", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


# --- recommend -----------------------------------------------------------------------------------------------------


def test_the_answer_of_the_sweep_comes_back(measured: Measured, smollm2_path: Path) -> None:
    value = answered("recommend", smollm2_path)
    for key in ("machine_id", "baselines", "recommended", "skipped", "apply"):
        assert value[key] == measured.swept[key]
    assert value["baselines"]
    assert value["rests_on"]["trials"]["ok"] == measured.swept["trials"]["ok"]


def test_what_else_can_be_had_and_why_comes_back_with_it(measured: Measured, smollm2_path: Path) -> None:
    value = answered("recommend", smollm2_path)
    assert value["front"] == measured.swept["front"]
    first = value["front"][0]
    assert (first["settings"], first["changes"]) == (value["recommended"]["settings"], [])
    assert first["ttft_s"] == value["recommended"]["ttft_s"]["p50"]
    why, then = value["explanation"], measured.swept["explanation"]
    assert why["runner_up"] == then["runner_up"]
    assert {one["phase"] for one in why["limits"]} == {"prefill", "decode"}
    assert {one["basis"] for one in why["limits"]} == {"calibrated"}
    assert [one["words"] for one in why["neighbours"] if one["settings"]["n_ctx"] == 1536] == ["n_ctx 1536"]
    assert all(one["cost_ratio"] or one["no_room"] or one["unknown"] for one in why["neighbours"])
    fixed = {"use_extra_bufts": False, "flash_attn_type": "disabled", "n_threads_batch": 1}
    assert all(one["settings"] | fixed == one["settings"] for one in why["neighbours"])
    shown = offloadtune("recommend", smollm2_path).stdout
    assert "Around it, by the time of a turn:" in shown


def test_the_engine_is_not_needed(smollm2_path: Path, without_engine: dict[str, str]) -> None:
    assert answered("recommend", smollm2_path, "--goal", "ttft", **without_engine)["recommended"]["goal"] == "ttft"
    assert offloadtune("export", smollm2_path, **without_engine).returncode == 0
    assert answered("history", **without_engine)["journals"]
    served = offloadtune("apply", smollm2_path, **without_engine)
    assert (served.returncode, "is not installed in this Python" in served.stderr) == (17, True)


def test_another_build_of_the_engine_was_not_measured(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_bytes(b"another")
    done = offloadtune("recommend", smollm2_path, LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (15, "")
    assert "was measured with another build of the engine" in done.stderr
    assert f"  next: measure it: offloadtune sweep {smollm2_path}\n" in done.stderr


def test_another_goal_is_exported_and_served(smollm2_path: Path) -> None:
    for command in (("export",), ("apply", "--print")):
        done = offloadtune(*command, smollm2_path, "--goal", "ttft", "--workload", WORKLOAD, "--n-ctx", "768")
        assert done.returncode == 0
        assert "The search went after turn: one that goes after ttft may find better settings." in done.stderr
        refused = offloadtune(*command, smollm2_path, "--n-ctx", "4096")
        assert (refused.returncode, refused.stdout) == (15, "")


def test_another_file_name_with_the_same_content_is_the_same(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "renamed.gguf"
    path.symlink_to(smollm2_path)
    assert answered("recommend", path)["gguf"]["path"] == str(path)


def test_what_was_not_measured_is_said_with_the_command_that_does(smollm2_path: Path, gemma3_path: Path) -> None:
    other = offloadtune("recommend", smollm2_path, "--workload", "rag")
    assert (other.returncode, other.stdout) == (15, "")
    assert f"not measured here with --workload rag; stored are: --workload {WORKLOAD} " in other.stderr
    assert f"  next: measure it: offloadtune sweep {smollm2_path} --workload rag\n" in other.stderr
    for command in ("export", "apply"):
        server = offloadtune(command, smollm2_path, "--target", "llama_server")
        assert (server.returncode, server.stdout) == (15, "")
        assert "--target llama_server" in server.stderr.splitlines()[-1]
    nothing = offloadtune("recommend", gemma3_path)
    assert nothing.returncode == 15
    assert f"Nothing was measured of {gemma3_path.name} yet." in nothing.stderr


def test_fewer_generated_tokens_need_no_measuring(smollm2_path: Path) -> None:
    value = answered("recommend", smollm2_path, "--workload", "0/32/4/1")
    assert value["recommended"]["workload"]["n_gen"] == 4


@pytest.mark.parametrize("command", ["recommend", "export", "apply"])
def test_what_cannot_be_meant_is_refused(command: str, smollm2_path: Path) -> None:
    missing = offloadtune(command, "missing.gguf")
    assert (missing.returncode, missing.stdout) == (11, "")
    unknown = offloadtune(command, smollm2_path, "--target", "ollama")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "--target 'ollama' is not known" in unknown.stderr


# --- history -------------------------------------------------------------------------------------------------------


def test_the_history_lists_it(measured: Measured, smollm2_path: Path, gemma3_path: Path) -> None:
    (row,) = answered("history")["journals"]
    assert row["recommended"]["settings"] == measured.swept["recommended"]["settings"]
    assert (row["workload"]["name"], row["interrupted"], row["put_aside"]) == (WORKLOAD, False, False)
    assert answered("history", smollm2_path)["journals"] == [row]
    assert answered("history", Path("/gone") / smollm2_path.name)["journals"] == [row]
    assert answered("history", gemma3_path)["journals"] == []
    for nothing in (gemma3_path, Path("/gone/mistyped.gguf")):
        told = offloadtune("history", nothing)
        words = f"Nothing was measured of {nothing.name}; `offloadtune history` lists everything.\n"
        assert (told.returncode, told.stdout) == (0, words)
    assert smollm2_path.name in offloadtune("history").stdout


def test_an_empty_history_says_how_to_begin(tmp_path: Path) -> None:
    done = offloadtune("history", OFFLOADTUNE_HOME=str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (0, "Nothing was measured yet: offloadtune sweep FILE\n")


def test_an_unreadable_journal_hides_nothing(home: Path, smollm2_path: Path) -> None:
    (journal,) = home.glob("sweeps/*/*.jsonl")
    journal.with_name("broken-1.jsonl").write_text("nonsense\n", encoding="utf-8")
    done = offloadtune("recommend", smollm2_path)
    assert done.returncode == 0
    (warning,) = done.stderr.splitlines()
    assert "1 journal left out" in warning
    assert [row["unreadable"] is None for row in answered("history")["journals"]] == [False, True]


# --- export --------------------------------------------------------------------------------------------------------


def test_an_export_is_a_program(smollm2_path: Path, tmp_path: Path) -> None:
    texts = {}
    for of in ("", "default", "cpu_only"):
        options = ["--of", of] if of else []
        done = offloadtune("export", smollm2_path, *options)
        assert done.returncode == 0
        assert f" for {WORKLOAD}, turn, llama_cpp_python, n_ctx 768 on " in done.stderr.splitlines()[0]
        assert "Measured with --set use_extra_bufts=False" in done.stderr
        compile(done.stdout, "export", "exec")
        assert str(smollm2_path) in done.stdout
        path = tmp_path / "made" / "settings.py"
        written = offloadtune("export", smollm2_path, *options, "--output", path)
        assert (written.returncode, written.stdout) == (0, "")
        assert written.stderr.splitlines()[-1] == f"Written to {path}."
        assert path.read_text(encoding="utf-8") == done.stdout
        texts[of] = done.stdout
    assert texts["default"] != texts["cpu_only"]
    assert "n_ctx=768" in texts["default"]
    assert "n_threads=" not in texts["default"]
    assert "n_threads=" in texts["cpu_only"]


def test_an_export_never_takes_the_place_of_a_model_file(smollm2_path: Path, tmp_path: Path) -> None:
    copy, link = tmp_path / "copy.gguf", tmp_path / "link"
    shutil.copy(smollm2_path, copy)
    link.symlink_to(copy)
    for output in (copy, link):
        done = offloadtune("export", copy, "--output", output)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{output} is a GGUF model file and stays as it is." in done.stderr
    assert link.is_symlink()
    assert copy.read_bytes() == smollm2_path.read_bytes()


def test_an_export_goes_to_the_standard_output_by_its_name(smollm2_path: Path) -> None:
    done = offloadtune("export", smollm2_path, "--output", "/dev/stdout")
    assert done.returncode == 0
    assert done.stdout == offloadtune("export", smollm2_path).stdout
    assert Path("/dev/stdout").is_symlink()


def test_a_link_keeps_its_name(smollm2_path: Path, tmp_path: Path) -> None:
    link = tmp_path / "kept.gguf"
    link.symlink_to(smollm2_path)
    assert repr(str(link)) in offloadtune("export", link).stdout
    program = Path(shlex.split(offloadtune("apply", link, "--print").stdout)[1])
    assert program.name == "kept.llama_cpp_python_server.py"
    assert repr(str(link)) in program.read_text(encoding="utf-8")


def test_an_unknown_baseline_is_refused(smollm2_path: Path) -> None:
    done = offloadtune("export", smollm2_path, "--of", "defaults")
    assert (done.returncode, done.stdout) == (2, "")
    assert "next: use one of cpu_only, default" in done.stderr


# --- apply ---------------------------------------------------------------------------------------------------------


def test_the_command_is_printed(measured: Measured, home: Path, smollm2_path: Path) -> None:
    done = offloadtune("apply", smollm2_path, "--print", "--", "--port", "81")
    assert done.returncode == 0
    assert done.stderr.startswith("measured ")
    python, program, *extra = shlex.split(done.stdout)
    assert (python, extra) == (sys.executable, ["--port", "81"])
    assert Path(program).parent == home / "profiles" / measured.swept["machine_id"]
    assert "params.use_extra_bufts = False" in Path(program).read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["ctrl-c", "term", "kill"])
def test_the_server_serves_until_it_is_stopped(number: signal.Signals, smollm2_path: Path, free_port: int) -> None:
    with serving(smollm2_path, free_port) as process:
        completion = completed(free_port, process)
        assert completion["usage"]["completion_tokens"] == 4
        assert not psutil.Process(process.pid).children(recursive=True)  # it stands in our place
        process.send_signal(number)
        assert process.wait(timeout=60) in {0, 128 + number, -number}
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", free_port), timeout=5):
            pass


def test_a_server_that_cannot_take_its_options_ends_with_its_own_code(smollm2_path: Path) -> None:
    done = offloadtune("apply", smollm2_path, "--", "--no-such-option")
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such-option" in done.stderr
    assert "A mistake of offloadtune" not in done.stderr


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`offloadtune apply` under way; nothing of it is left afterwards."""
    command = [sys.executable, "-m", "offloadtune", "apply", str(path), "--", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def completed(port: int, process: subprocess.Popen[bytes]) -> Any:
    """What the server makes of a prompt, once it listens."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    give_up = time.monotonic() + SERVER_DEADLINE_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=SERVER_DEADLINE_S) as answer:  # noqa: S310
                return json.load(answer)
        except OSError:  # not listening yet
            time.sleep(0.1)
    pytest.fail("the server did not answer")

"""Plans on a card: what the engine says, what is then taken, and what goes wrong on the way."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import InProcess, check_refused, offloadtune
from conftest import MIB, CardMaker
from moe_file import write_moe_file
from stand_in import write_stand_in
from test_forecast import taken

from offloadtune import catalogue
from offloadtune.engine import Runner
from offloadtune.records import Settings
from offloadtune.store import data_dir, measuring_alone


def planned(*arguments: str | Path, **environment: str) -> dict[str, Any]:
    ended = offloadtune("plan", *arguments, "--json", **environment)
    assert ended.code == 0, ended.err
    assert ended.err == ""
    value: dict[str, Any] = json.loads(ended.out)
    return value


def really_taken(path: Path, settings: Settings, *endpoints: str) -> dict[str, tuple[int, int, int]]:
    """Weights, cache and compute buffers of a real load and context, by device."""
    (found,) = taken(path, [settings], endpoints)
    memory: dict[str, tuple[int, int, int]] = found["memory"]
    return memory


def settings_of(value: dict[str, Any]) -> Settings:
    return Settings(**value["settings"])


def told(one: dict[str, Any]) -> tuple[int, int, int]:
    return one["weights_bytes"], one["kv_cache_bytes"], one["compute_bytes"]


# --- the engine's word ---------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("smollm2_path", ["--n-gpu-layers", "12", "--n-ctx", "1000", "--flash-attn", "off"]),
        ("smollm2_path", ["--n-gpu-layers", "30", "--type-k", "q8_0", "--type-v", "q8_0", "--n-outputs-max", "1"]),
        ("gemma3_path", ["--n-gpu-layers", "-1", "--n-ctx", "4096", "--target", "llama_server"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_the_engine_says_is_what_a_load_takes_to_the_byte(
    name: str, options: list[str], request: pytest.FixtureRequest, make_card: CardMaker
) -> None:
    path, card = request.getfixturevalue(name), make_card(1, 2000 * MIB)
    here = (path, "--rpc", card.endpoint, "--load-mode", "none", *options)
    exact, reckoned = planned(*here, "--exact"), planned(*here)
    assert (exact["tier"], reckoned["tier"]) == ("A", "C")
    assert exact["settings"] == reckoned["settings"]
    real = really_taken(path, settings_of(exact), card.endpoint)
    assert told(exact["devices"]["RPC0"]) == real["RPC0"]
    assert told(exact["devices"]["RPC0"])[:2] == told(reckoned["devices"]["RPC0"])[:2]
    assert told(exact["host"]) == real["host"]
    assert exact["host"]["kv_cache_bytes"] == reckoned["host"]["kv_cache_bytes"]
    for_the_driver = 2000 * MIB // 50  # nobody has measured what it takes
    assert exact["devices"]["RPC0"]["band_bytes"] == for_the_driver < reckoned["devices"]["RPC0"]["band_bytes"]
    assert exact["n_splits"] is not None
    assert reckoned["n_splits"] is None


@pytest.mark.engine
def test_experts_in_main_memory(smollm2_path: Path, tmp_path: Path, make_card: CardMaker) -> None:
    path, card = tmp_path / "moe.gguf", make_card(1, 600 * MIB)
    write_moe_file(path, smollm2_path)
    options = ("--n-gpu-layers", "-1", "--n-cpu-moe", "2", "--n-ctx", "512", "--load-mode", "none")
    exact = planned(path, "--rpc", card.endpoint, *options, "--exact")
    real = really_taken(path, settings_of(exact), card.endpoint)
    assert told(exact["devices"]["RPC0"]) == real["RPC0"]
    assert planned(path, "--rpc", card.endpoint, *options)["devices"]["RPC0"]["weights_bytes"] == real["RPC0"][0]


@pytest.mark.engine
def test_the_layers_that_a_small_card_is_planned_for_do_load(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 90 * MIB)
    value = planned(smollm2_path, "--rpc", card.endpoint, "--n-ctx", "512", "--n-outputs-max", "1", "--exact")
    assert value["fits"] is True
    assert 0 < value["settings"]["n_gpu_layers"] < 31
    assert value["devices"]["RPC0"]["free_bytes"] <= 90 * MIB
    assert told(value["devices"]["RPC0"]) == really_taken(smollm2_path, settings_of(value), card.endpoint)["RPC0"]


@pytest.mark.engine
def test_two_cards_share_the_layers_as_the_engine_does(smollm2_path: Path, make_card: CardMaker) -> None:
    cards = make_card(1, 400 * MIB), make_card(1, 800 * MIB)
    here = [f"--rpc={card.endpoint}" for card in cards] + ["--n-gpu-layers", "-1", "--n-outputs-max", "1"]
    exact, reckoned = planned(smollm2_path, *here, "--exact", "--draft", smollm2_path), planned(smollm2_path, *here)
    assert list(exact["devices"]) == ["RPC0", "RPC1"]
    for name, device in exact["devices"].items():
        ours = reckoned["devices"][name]
        assert told(device)[:2] == told(ours)[:2]
        assert told(device)[2] == pytest.approx(told(ours)[2], rel=0.1)  # both take turns at parts of a batch
    assert exact["host"]["compute_bytes"] == pytest.approx(reckoned["host"]["compute_bytes"], rel=0.1)
    first, last = exact["devices"].values()
    assert (first["draft_bytes"], first["band_bytes"]) == (0, 400 * MIB // 50)
    assert last["draft_bytes"] > last["band_bytes"] > 800 * MIB // 50  # the engine is asked of the model alone
    assert any("draft model is by arithmetic" in sentence for sentence in exact["warnings"])


@pytest.mark.engine
def test_what_is_planned_for_is_used_nowhere_else(smollm2_path: Path, make_card: CardMaker) -> None:
    """Nothing is loaded, and no process is left behind."""
    card = make_card(1, 400 * MIB)
    for exact in ((), ("--exact",)):
        before = psutil.Process(card.pid).memory_info().rss
        command = [sys.executable, "-m", "offloadtune", "plan", str(smollm2_path), "--rpc", card.endpoint, *exact]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as done:
            out, err = done.communicate(timeout=60)
        assert (done.returncode, err) == (0, b"")
        assert b"RPC0" in out
        assert of_session(done.pid) == []
        assert psutil.Process(card.pid).memory_info().rss - before < 40 * MIB


# --- without the engine --------------------------------------------------------------------------------------------


def test_without_the_engine_arithmetic_answers(without_engine: dict[str, str], smollm2_path: Path) -> None:
    value = planned(smollm2_path, **without_engine)
    assert (value["tier"], value["devices"], value["fits"]) == ("C", {}, True)
    assert [one for one in value["warnings"] if "is not installed in this Python" in one and "--card" in one]
    carded = planned(smollm2_path, "--card", "RTX 3090", **without_engine)
    assert carded["tier"] == "C"
    assert carded["devices"]["CUDA0"]["kv_cache_bytes"] == 94_371_840


def test_without_the_engine_there_is_no_exact_answer(without_engine: dict[str, str], smollm2_path: Path) -> None:
    words = "The engine, llama-cpp-python, is not installed in this Python"
    check_refused(offloadtune("plan", smollm2_path, "--exact", **without_engine), 17, words)


# --- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("exact", [(), ("--exact",)], ids=["reckoned", "exact"])
def test_a_card_that_is_gone(exact: Sequence[str], smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 400 * MIB)
    card.close()
    ended = offloadtune("plan", smollm2_path, "--rpc", card.endpoint, *exact)
    check_refused(ended, 13, f"Nothing answers at the RPC endpoint {card.endpoint}")


@pytest.mark.engine
def test_a_file_that_the_engine_cannot_open(smollm2_path: Path, tmp_path: Path) -> None:
    """Its header is sound, its architecture is of no engine."""
    path = tmp_path / "other.gguf"
    path.write_bytes(smollm2_path.read_bytes().replace(b"llama", b"lhama"))
    assert planned(path)["tier"] == "C"
    check_refused(offloadtune("plan", path, "--exact"), 13, "lhama")


@pytest.mark.engine
def test_ctrl_c_ends_it_with_130_and_leaves_nothing(smollm2_path: Path, make_card: CardMaker) -> None:
    """The worker is made to hang, so that the signal surely comes in time."""
    card = make_card(1, 400 * MIB)
    command = [sys.executable, "-m", "offloadtune", "plan", str(smollm2_path), "--rpc", card.endpoint, "--exact"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as plan:
        give_up = time.monotonic() + 30
        while not (workers := psutil.Process(plan.pid).children()) and time.monotonic() < give_up:
            time.sleep(0.01)
        workers[0].suspend()
        time.sleep(0.3)
        os.killpg(plan.pid, signal.SIGINT)  # as a terminal does
        out, err = plan.communicate(timeout=60)
    assert (plan.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert of_session(plan.pid) == []


@pytest.mark.engine
def test_ctrl_c_while_the_engine_is_asked(
    smollm2_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "forecast", interrupted)
    ended = in_process("plan", smollm2_path, "--exact")
    assert (ended.code, ended.out) == (130, "")
    assert "Traceback" not in ended.err
    assert psutil.Process().children() == []


# --- how soon ------------------------------------------------------------------------------------------------------


def write_large_vocabulary(path: Path, n_merges: int) -> None:
    """The header of Llama-3-8B with as many tokens as the real one, and a hole for its data."""
    write_stand_in(path, catalogue.described("llama-3-8b", "Q4_K_M"), n_merges=n_merges)


def wall_s(*command: str | Path) -> float:
    start_s = time.monotonic()
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True, timeout=120)
    return time.monotonic() - start_s


def cold_times_s(path: Path, n_rounds: int) -> tuple[list[float], list[float]]:
    """Whole processes that plan for a file, before and after those that only read its header with the gguf package."""
    ours, theirs = [], []
    planning = ("-m", "offloadtune", "plan", path, "--card", "RTX 3090", "--json")
    for _ in range(n_rounds):
        ours.append(wall_s(*planning))
        theirs.append(wall_s("-c", f"import gguf; gguf.GGUFReader({str(path)!r})"))
        ours.append(wall_s(*planning))
    return ours, theirs


def test_a_plan_is_there_long_before_the_gguf_package_has_read_the_header(tmp_path: Path) -> None:
    path = tmp_path / "llama-3-8b.gguf"
    write_large_vocabulary(path, n_merges=1)
    assert planned(path, "--card", "RTX 3090")["settings"]["n_gpu_layers"] == 33
    ours, theirs = cold_times_s(path, 1)
    sys.stdout.write(f"header and plan {ours} s, the reader of the gguf package alone {theirs} s\n")
    assert max(ours) * 3 < min(theirs)


@pytest.mark.slow
def test_the_bar_for_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0.5 s for a cold process, header and plan; only printed, for it depends on the machine and what else it does."""
    path = tmp_path / "llama-3-8b.gguf"
    write_large_vocabulary(path, n_merges=280_147)
    ours, theirs = (statistics.median(times) for times in cold_times_s(path, 3))
    with capsys.disabled():
        met = "met" if ours <= 0.5 else "missed"
        sys.stdout.write(f"\nheader and plan: {ours:.3f} s, the bar of 0.5 s is {met}; gguf package {theirs:.3f} s\n")
    assert ours * 3 < theirs


def of_session(session: int) -> list[str]:
    """Living processes of a session, once they had a moment to end."""
    give_up = time.monotonic() + 5
    while True:
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            try:
                if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.info["cmdline"] or ()))
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        if not found or time.monotonic() > give_up:
            return found
        time.sleep(0.05)


@pytest.mark.engine
def test_while_a_sweep_measures_its_devices_are_left_alone(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 400 * MIB)
    with measuring_alone(data_dir(), "other.gguf"):
        aside = planned(smollm2_path)
        assert aside["devices"] == {}
        assert any("other.gguf is being measured" in sentence for sentence in aside["warnings"])
        refused = offloadtune("plan", smollm2_path, "--rpc", card.endpoint)
    assert refused.code == 18
    assert "other.gguf is being measured" in refused.err

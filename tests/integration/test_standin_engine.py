"""Stand-ins in the real engine: they load, read text and answer with finite numbers, whatever their kind."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import SHORT, check_refused, offloadtune
from conftest import SHORT_SWEEPS

from offloadtune import catalogue
from offloadtune.benches import BenchRequest
from offloadtune.engine import Runner, VisitPlan
from offloadtune.gguf import read_gguf, standin
from offloadtune.gguf.tables import STANDIN_KEY
from offloadtune.pipeline import bench_file, benching
from offloadtune.records import Outcome, Settings, StandsFor, Target, Trial, Workload

pytestmark = pytest.mark.engine

TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do."
SCRIPT = """
import json, sys
import numpy as np
from llama_cpp import Llama

llama = Llama(sys.argv[1], n_ctx=256, n_threads=2, n_threads_batch=2, n_gpu_layers=0, logits_all=True, verbose=False)
tokens = llama.tokenize(sys.argv[2].encode(), add_bos=False)
text = llama.detokenize(tokens).decode()
llama.eval(tokens[:24])
logits = np.array(llama.scores[:24], dtype=np.float64)
top = logits.max(axis=1, keepdims=True)
logs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
loss = -logs[np.arange(23), tokens[1:24]].mean()
print(json.dumps({"text": text, "n_tokens": len(tokens), "finite": bool(np.isfinite(logits).all()), "loss": loss}))
"""
WRITE = """
import json, resource, sys, time
from pathlib import Path
from offloadtune.pipeline import StandinRequest, write_standin

start_s = time.monotonic()
write_standin(StandinRequest(source=sys.argv[1], quant=sys.argv[2], output=Path(sys.argv[3])))
peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"peak_bytes": 1024 * peak_kib, "wall_s": time.monotonic() - start_s}))
"""


def child(script: str, *arguments: str | Path, timeout_s: float = 240) -> dict[str, Any]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def check_runs(path: Path) -> None:
    """It reads text as it stands, and its guesses are finite and not far from chance.

    Where the output is the embedding, a few layers leave the token that was read ahead of all others.
    """
    answer = child(SCRIPT, path, TEXT)
    assert answer["text"].strip() == TEXT
    assert answer["n_tokens"] < len(TEXT)
    assert answer["finite"]
    assert answer["loss"] == pytest.approx(math.log(read_gguf(path).n_vocab), abs=8)


def write(path: Path, shape: catalogue.Shape, quant: str) -> None:
    described = catalogue.described(shape, quant)
    vocabulary = standin.made_up(shape.n_vocab)
    standin.write(path, standin.described_parts(described.key_values, described.tensors, vocabulary), 1)


SMALL: dict[str, Any] = {"n_layer": 4, "n_embd": 512, "n_head": 8, "n_vocab": 8192, "n_ff": 1024}
MOE: dict[str, Any] = {"n_head_kv": 2, "n_embd_head_k": 64, "n_embd_head_v": 64, "n_expert": 8, "n_expert_used": 2}


@pytest.mark.parametrize("quant", ["Q4_K_M", "Q3_K_M", "Q4_0", "IQ1_M", "IQ2_M", "IQ3_M", "IQ4_XS", "F16"])
def test_a_mixture_of_eight_experts_runs_in_every_family_of_types(quant: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write(path, dataclasses.replace(catalogue.find_shape("mixtral-8x7b"), **SMALL, **MOE), quant)
    facts = read_gguf(path)
    assert (facts.n_expert, facts.n_expert_used) == (8, 2)
    check_runs(path)


@pytest.mark.parametrize(
    ("name", "quant", "n_layer"),
    [
        ("smollm2-135m", "Q4_1", "30"),
        ("gemma-3-270m", "Q4_K_M", "6"),  # five windows and one that sees everything
        ("qwen3-0.6b", "Q8_0", "2"),
        ("phi-3-mini-4k", "Q4_K_M", "2"),
        ("qwen3.5-4b", "Q4_K_M", "4"),  # three recurrent blocks and one of attention
        ("deepseek-v2-lite", "Q4_K_M", "2"),
        pytest.param("gpt-oss-20b", "MXFP4", "2", marks=pytest.mark.slow),
        pytest.param("gemma-4-12b", "Q4_K_M", "6", marks=pytest.mark.slow),
        pytest.param("gemma-4-26b-a4b", "Q4_K_M", "6", marks=pytest.mark.slow),
        pytest.param("gemma-2-2b", "Q4_K_M", "4", marks=pytest.mark.slow),
        pytest.param("glm-4-32b-0414", "Q4_K_M", "2", marks=pytest.mark.slow),
        pytest.param("command-r-35b", "Q4_K_M", "1", marks=pytest.mark.slow),
        pytest.param("qwen3-30b-a3b", "Q4_K_M", "2", marks=pytest.mark.slow),
        pytest.param("qwen3.6-35b-a3b", "Q4_K_M", "4", marks=pytest.mark.slow),
    ],
)
def test_published_shapes_run(name: str, quant: str, n_layer: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    ended = offloadtune("standin", name, "--quant", quant, "--layers", n_layer, "-o", path, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["n_layer"] == int(n_layer)
    check_runs(path)


def test_it_is_measured_as_any_file_is(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write(path, dataclasses.replace(catalogue.find_shape("llama-3-8b"), **SMALL), "Q4_K_M")
    workload = Workload(name="short", n_prefix_cached=0, n_prompt_new=32, n_gen=4)
    trial = Trial(settings=Settings(devices=(), n_ctx=256, n_threads=2), target=Target.LLAMA_SERVER, why="test")
    with Runner(path) as runner:
        result = runner.run(trial, VisitPlan(workload=workload, n_steps=2, n_visits=1), timeout_s=120)
    assert result.outcome is Outcome.OK, result.reason


def test_the_command_refuses_what_exists_and_tells_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    command = ("standin", "smollm2-135m", "--quant", "Q4_1", "--layers", "1", "-o", path)
    written = offloadtune(*command)
    assert written.code == 0
    assert "stand-in for SmolLM2-135M Q4_1, 1 of its 30 layers, with random weights" in written.out
    check_refused(offloadtune(*command), 2, "exists already")
    assert offloadtune(*command, "--yes").code == 0
    check_refused(offloadtune("standin", path, "-o", tmp_path / "b.gguf"), 2, "is a stand-in itself")
    assert "with random weights" in offloadtune("inspect", path).out
    assert "stand-in with random weights" in offloadtune("list", tmp_path).out


class Unwatched:
    """Whatever else goes on in the machine, a visit counts."""

    def __init__(self, *_pids: object, **_cards: object) -> None:
        pass

    def begin(self) -> None:
        pass

    def end_and_tell(self, _tell: object) -> tuple[str, ...]:
        return ()


def test_what_is_measured_on_it_says_so_and_is_not_handed_on_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gguf"
    described = catalogue.described(dataclasses.replace(catalogue.find_shape("llama-3-8b"), **SMALL), "Q4_K_M")
    parts = standin.described_parts(described.key_values, described.tensors, standin.made_up(SMALL["n_vocab"]))
    real: dict[str, Any] = {"label": "Tiny 8B", "quantisation": "Q4_K_M", "n_layer": SMALL["n_layer"]}
    marks = {
        f"{STANDIN_KEY}.of": "Tiny 8B",
        f"{STANDIN_KEY}.quant": "Q4_K_M",
        f"{STANDIN_KEY}.n_layer": real["n_layer"],
    }
    standin.write(path, standin.marked(parts, {STANDIN_KEY: True, **marks}), 1)
    label = "stand-in for Tiny 8B Q4_K_M, with random weights: says nothing of text quality"

    fixed = [f"--set={one}" for one in ("n_threads=2", "n_threads_batch=2", "n_ubatch=512", "flash_attn_type=disabled")]
    options = ["--budget", "15s", *SHORT, *fixed, "--json"]
    command = [sys.executable, "-c", SHORT_SWEEPS, "sweep", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    swept = json.loads(done.stdout)
    profile = tomllib.loads(Path(swept["profile_path"]).read_text(encoding="utf-8"))
    assert swept["gguf"]["stands_for"] == profile["gguf"]["stands_for"] == real
    assert swept["apply"] == profile["apply"]["python"] == Path(swept["apply_path"]).read_text(encoding="utf-8")
    assert "model_path='PATH_TO/Tiny-8B-Q4_K_M.gguf'" in swept["apply"]
    assert str(path) not in swept["apply"]

    check_refused(offloadtune("export", path), 2, "stand-in for Tiny 8B Q4_K_M", "settings are for the real file")
    check_refused(offloadtune("apply", path, "--print"), 2, "stand-in for Tiny 8B Q4_K_M")
    assert offloadtune("export", path, "--yes").out == swept["apply"]
    assert offloadtune("recommend", path).out.startswith(label)
    monkeypatch.setattr(benching, "Watch", Unwatched)
    run = bench_file(BenchRequest(path=path, budget_s=5, n_ctx=768), lambda _event: None).run
    assert (run.stands_for, run.n_layer) == (StandsFor(**real), 4)
    trend, journals = offloadtune("history").out.split("when ", 1)
    assert label in trend
    assert "stand-in for Tiny 8B Q4_K_M, with random weights" in journals


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_no_file(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offloadtune", "standin", "llama-2-7b", "--quant", "Q4_K_M"]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "a.gguf")], stderr=subprocess.PIPE, text=True)
    partial = tmp_path / "a.gguf.partial"
    give_up = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_blocks > 2048) and process.poll() is None:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode not in {0, None}
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_seven_billion_weights_are_written_in_little_memory_and_run(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    written = child(WRITE, "llama-2-7b", "Q4_K_M", path, timeout_s=600)
    print(f"7B Q4_K_M: {written['wall_s']:.1f} s, peak {written['peak_bytes'] / 2**20:.0f} MiB")
    assert written["peak_bytes"] < 500e6
    assert path.stat().st_size == pytest.approx(4_081_004_224, rel=0.001)
    check_runs(path)

"""A batch of plans: one answer a line, whatever the line is."""

from __future__ import annotations

import codecs
import gc
import io
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import InProcess, offloadtune
from conftest import ROOT
from test_gguf_refusals import LIES

from offloadtune.cli import options
from offloadtune.pipeline import batches
from offloadtune.pipeline.batches import plan_lines
from offloadtune.pipeline.planning import facts_for
from offloadtune.pipeline.rooms import named_place
from offloadtune.plans import PlanRequest
from offloadtune.records import GgufFacts
from offloadtune.report import plan_line_json

GOOD = {"shape": "llama-3-8b", "quant": "Q4_K_M", "card": "RTX 3090"}
PROMISED = {"weights_bytes", "kv_cache_bytes", "compute_bytes", "runtime_bytes", "total_bytes"}


def answers(*lines: str | dict[str, Any]) -> list[dict[str, Any]]:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return [plan_line_json(answer) for answer in plan_lines(texts)]


def device(spec: dict[str, Any], name: str = "CUDA0") -> dict[str, Any]:
    (answer,) = answers(spec)
    assert "error" not in answer, answer
    found: dict[str, Any] = answer["devices"][name]
    return found


# --- keys ----------------------------------------------------------------------------------------------------------


def test_an_answer_has_the_promised_keys() -> None:
    (answer,) = answers(GOOD)
    assert {"devices", "host", "fits", "tier"} <= set(answer)
    assert set(answer["devices"]["CUDA0"]) >= PROMISED
    assert set(answer["host"]) >= PROMISED - {"runtime_bytes"}
    assert (answer["fits"], answer["tier"]) == (True, "C")


def test_every_promised_key_is_understood() -> None:
    whole = {
        "ram_gb_per_s": 51.2,
        "n_gpu_layers": -1,
        "n_ctx": 8192,
        "n_batch": 2048,
        "n_ubatch": 512,
        "type_k": "q8_0",
        "type_v": "q8_0",
        "flash_attn": True,
        "n_cpu_moe": 0,
        "n_seq_max": 2,
        "n_outputs_max": 2,
        "n_devices": 2,
        "n_prompt_tokens": 500,
        "depth": 1000,
    }
    (answer,) = answers(GOOD | whole)
    assert list(answer["devices"]) == ["CUDA0", "CUDA1"]
    assert answer["settings"]["n_gpu_layers"] == 33
    assert answer["settings"]["flash_attn_type"] == "enabled"
    named = {key: value for key, value in whole.items() if key in answer["settings"] and key != "n_gpu_layers"}
    assert len(named) == 8
    assert named.items() <= answer["settings"].items()


def test_our_own_keys_are_understood(smollm2_path: Path) -> None:
    ours = {
        "vram_limit_bytes": 1 << 33,
        "ram_limit_bytes": 1 << 34,
        "target": "llama_server",
        "load_mode": "mmap",
        "swa_full": True,
        "kv_unified": True,
        "offload_kqv": True,
        "op_offload": False,
        "draft": str(smollm2_path),
    }
    (answer,) = answers(GOOD | ours)
    assert answer["devices"]["CUDA0"]["free_bytes"] == 1 << 33
    assert answer["devices"]["CUDA0"]["draft_bytes"] > 0
    assert answer["host"]["available_bytes"] == 1 << 34
    assert answer["target"] == "llama_server"


def test_shares_of_devices_decide_where_layers_lie() -> None:
    asked = GOOD | {"n_devices": 2}
    even, *others = answers(asked, *({**asked, "tensor_split": split} for split in ([1, 1], "3/1", [0, 1])))
    same, first, last = ([device["weights_bytes"] for device in one["devices"].values()] for one in others)
    assert same == [device["weights_bytes"] for device in even["devices"].values()]
    assert first[0] > 2 * first[1] > 0
    assert (last[0], last[1]) == (0, sum(same))
    assert others[2]["devices"]["CUDA0"]["total_bytes"] == 0
    assert others[1]["settings"]["tensor_split"] == (3.0, 1.0)
    assert others[1]["prediction"]["decode_tok_per_s"]["value"] > 0


def test_a_file_and_a_shape(smollm2_path: Path) -> None:
    of_file, of_shape = answers({"file": str(smollm2_path), "card": "3090"}, GOOD)
    assert of_file["label"] == smollm2_path.name
    assert of_file["devices"]["CUDA0"]["kv_cache_bytes"] == 94_371_840
    assert of_shape["label"] == "llama-3-8b.Q4_K_M.gguf"


@pytest.mark.parametrize("name", ["Llama-3-8B", "llama 3 8b", "LLAMA_3_8B", "Llama-3-8B-Instruct"])
@pytest.mark.parametrize(("quant", "card"), [("q4_k_m", "rtx3090"), ("Q4-K-M", "NVIDIA GeForce RTX 3090")])
def test_names_match_case_and_punctuation_aside(name: str, quant: str, card: str) -> None:
    assert answers({"shape": name, "quant": quant, "card": card}) == answers(GOOD)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *[(written, "enabled") for written in (True, 1, "on", "Enabled", "true")],
        *[(written, "disabled") for written in (False, 0, "OFF", "disabled")],
        *[(written, "auto") for written in (-1, "auto", "-1")],
    ],
)
def test_flash_attention_in_every_spelling(written: object, meant: str) -> None:
    assert answers(GOOD | {"flash_attn": written})[0]["settings"]["flash_attn_type"] == meant


def test_whole_numbers_may_be_written_as_floats_and_null_is_as_left_out() -> None:
    assert answers(GOOD | {"n_ctx": 8192.0, "n_batch": None}) == answers(GOOD | {"n_ctx": 8192})


def test_a_context_of_0_is_all_that_was_trained() -> None:
    assert answers(GOOD | {"n_ctx": 0})[0]["settings"]["n_ctx"] == 8192


def test_minus_one_and_too_many_layers_are_all() -> None:
    assert answers(GOOD | {"n_gpu_layers": -1}) == answers(GOOD | {"n_gpu_layers": 999}) == answers(GOOD)
    nothing = device(GOOD | {"n_gpu_layers": 0, "n_ubatch": 16})  # a larger batch is worked on there all the same
    assert nothing["total_bytes"] == 0


def test_a_context_above_the_training_is_answered_with_a_warning() -> None:
    (answer,) = answers(GOOD | {"n_ctx": 9000})
    assert any("9000 is more than the 8192 tokens" in sentence for sentence in answer["warnings"])


# --- lines that have no answer -------------------------------------------------------------------------------------

COUNTS = ("n_gpu_layers", "n_ctx", "n_batch", "n_ubatch", "n_cpu_moe", "n_seq_max", "n_outputs_max", "n_devices")
BAD_LINES = {
    "not JSON": ("{", "is not JSON"),
    "words": ("llama-3-8b Q4_K_M", "is not JSON"),
    "a list": ("[1]", "not a JSON object"),
    "a number": ("5", "not a JSON object"),
    "null": ("null", "not a JSON object"),
    "empty object": ("{}", "needs a file or a --shape"),
    "NaN": ('{"shape": "llama-3-8b", "quant": "Q8_0", "n_ctx": NaN}', "it has no NaN"),
    "Infinity": ('{"n_ctx": Infinity}', "it has no Infinity"),
    "overflowing float": ('{"shape": "llama-3-8b", "quant": "Q8_0", "n_ctx": 1e999}', "n_ctx must be a whole number"),
    "many digits": ('{"n_ctx": ' + "9" * 5000 + "}", "is not JSON"),
    "double key": ('{"n_ctx": 1, "n_ctx": 2}', "The key 'n_ctx' occurs twice"),
    "deep": ("[" * 100_000, "nested too deep"),
    "deep object": ('{"a":' * 100_000, "nested too deep"),
    "control characters": ('{"shape": "\x1b[2J"}', "is not JSON"),
    "long shape": (json.dumps(GOOD | {"shape": "x" * 5000}), "shape is longer than 4096 characters"),
    "unknown key": (json.dumps(GOOD | {"n_ubacth": 1}), "'n_ubacth' is no key of a specification. Use n_ubatch (or"),
    "unknown shape": (json.dumps(GOOD | {"shape": "lama-3-8b"}), "come nearest: Llama-3-8B"),
    "unknown quant": (json.dumps(GOOD | {"quant": "Q4_K_MM"}), "come nearest: Q4_K_M"),
    "unknown card": (json.dumps(GOOD | {"card": "RTX 3091"}), "come nearest: RTX 3090"),
    "ambiguous card": (json.dumps(GOOD | {"card": "A100"}), "'A100' may mean"),
    "unknown type": (json.dumps(GOOD | {"type_k": "q8"}), "type_k 'q8' is not known"),
    "unknown target": (json.dumps(GOOD | {"target": "ollama"}), "target 'ollama' is not known. Use one of llama"),
    "empty shape": (json.dumps(GOOD | {"shape": ""}), "shape is empty"),
    "missing file": ('{"file": "/nowhere/x.gguf", "card": "3090"}', "/nowhere/x.gguf"),
    "NUL in a name": (r'{"file": "a\u0000b", "card": "3090"}', "'a\\x00b' cannot be read"),
    "half a character": (r'{"file": "\ud800", "card": "3090"}', "cannot be read"),
    "a folder": ('{"file": "/", "card": "3090"}', "is a folder"),
    "a device": ('{"file": "/dev/zero", "card": "3090"}', "is a device or a pipe"),
    "both": (json.dumps(GOOD | {"file": "x.gguf"}), "not both"),
    "no quant": ('{"shape": "llama-3-8b"}', "needs a quantisation"),
    "quantised V": (json.dumps(GOOD | {"type_v": "q8_0", "flash_attn": False}), "needs flash attention"),
    "large ubatch": (json.dumps(GOOD | {"n_batch": 256, "n_ubatch": 512}), "n_ubatch 512 is more than n_batch 256"),
    "many sequences": (json.dumps(GOOD | {"n_seq_max": 1000}), "at most 256 sequences"),
    **{
        f"split {value}": (json.dumps(GOOD | {"tensor_split": value}), "tensor_split must be a list of numbers")
        for value in (1, True, {"0": 1}, [[1]], ["1"], [True])
    },
    **{
        f"split {value}": (json.dumps(GOOD | {"tensor_split": value}), words)
        for value, words in (("3:1", "'3:1' is no split over devices"), ("", "'' is no split over devices"))
    },
    **{
        f"shares {value}": (json.dumps(GOOD | {"tensor_split": value}), words)
        for value, words in (([0], "not all 0"), ([-1], "not all 0"), ([], "1 to 15"), ([10**400], "too large"))
    },
    "shares without end": ('{"shape": "llama-3-8b", "quant": "Q8_0", "tensor_split": [1e999]}', "not all 0"),
    "more shares than devices": (
        json.dumps(GOOD | {"n_devices": 2, "tensor_split": [1, 1, 0]}),
        "tensor_split 1/1/0 has 3 shares, and there are 2 devices. Name one share a device",
    ),
    "many devices": (json.dumps(GOOD | {"n_devices": 17}), "17 devices cannot be planned for"),
    "huge context": (json.dumps(GOOD | {"n_ctx": (1 << 53) - 1}), "more bytes than can be counted"),
    "huge batch": (json.dumps(GOOD | {"n_ctx": 1 << 31, "n_batch": 1 << 31, "n_ubatch": 1 << 31}), "than can be"),
    "projector that is none": (json.dumps(GOOD | {"mmproj": "/nowhere"}), "/nowhere"),
    **{f"{key} as text": (json.dumps(GOOD | {key: "8"}), f"{key} must be a whole number") for key in COUNTS},
    **{f"{key} true": (json.dumps(GOOD | {key: True}), f"{key} must be a whole number") for key in COUNTS},
    **{f"{key} negative": (json.dumps(GOOD | {key: -2}), f"{key} must be a whole number") for key in COUNTS},
    **{f"{key} half": (json.dumps(GOOD | {key: 1.5}), f"{key} must be a whole number") for key in COUNTS},
    **{f"{key} huge": (json.dumps(GOOD | {key: 1 << 60}), f"{key} must be a whole number") for key in COUNTS},
    **{
        f"{key} negative": (json.dumps(GOOD | {key: -1}), f"{key} must be a whole number of at least 0, not -1")
        for key in ("n_prompt_tokens", "depth")
    },
    "huge depth": (json.dumps(GOOD | {"depth": 1 << 31}), "A depth of 2147483648 tokens cannot be planned for"),
    "huge prompt": (json.dumps(GOOD | {"n_prompt_tokens": 1 << 52}), "A prompt of 4503599627370496 tokens"),
    **{
        f"RAM of {value}": (json.dumps(GOOD | {"ram_gb_per_s": value}), "ram_gb_per_s must be a number from 0.1 to")
        for value in (0, -1, 1e9, True, "51.2", [51.2])
    },
    "unknown RAM": (json.dumps(GOOD | {"ram": "dr5-5600x2"}), "'dr5-5600x2' says 'dr5'"),
    "RAM with an escape": (
        json.dumps(GOOD | {"ram": "ddr5-5600\x1b[2J"}),
        "has characters that no name of main memory",
    ),
    "empty RAM": (json.dumps(GOOD | {"ram": ""}), "ram is empty"),
    "RAM twice": (json.dumps(GOOD | {"ram": "ddr5-5600", "ram_gb_per_s": 80}), "Main memory is named twice"),
    **{f"{key} a list": (json.dumps(GOOD | {key: [1]}), key) for key in ("shape", "quant", "card", "file", "type_k")},
    **{f"{key} a list": (json.dumps(GOOD | {key: [1]}), key) for key in ("flash_attn", "swa_full", "target", "depth")},
}


@pytest.mark.parametrize(("line", "words"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_without_an_answer_says_why_and_the_next_is_answered(line: str, words: str) -> None:
    before, error, after = answers(GOOD, line, GOOD)
    assert set(error) == {"error"}
    assert words in error["error"]
    assert error["error"].endswith(".")
    assert len(error["error"]) < 1000
    assert before == after
    assert "devices" in after


@pytest.mark.parametrize("content", [content for content, _ in LIES.values()], ids=LIES)
def test_a_header_that_lies_costs_its_own_line_only(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(content)
    error, after = answers({"file": str(path), "card": "3090"}, GOOD)
    assert set(error) == {"error"}
    assert str(path) in error["error"]
    assert "devices" in after


def test_a_line_of_many_doubles_or_a_long_name_takes_no_time() -> None:
    many = "{" + ", ".join(f'"{i}": 1' for i in range(80_000)) + ', "79999": 2}'
    start_s = time.monotonic()
    doubles, name, good = answers(many, GOOD | {"shape": "llama " * 600}, GOOD)
    assert doubles["error"].startswith("The key '79999' occurs twice.")
    assert "no model called" in name["error"]
    assert "devices" in good
    assert time.monotonic() - start_s < 5


def test_what_the_readme_shows_is_understood() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Does it fit, and how fast will it be?")[2].partition("\n## ")[0]
    shown = [json.loads(line) for line in section.splitlines() if line.strip().startswith("{") and "..." not in line]
    of_shape, of_file = (batches.request_of(json.dumps(spec)) for spec in shown)
    assert "devices" in answers(shown[0])[0]
    assert (of_shape.path, of_file.path) == (None, Path("model.gguf"))
    assert named_place(of_file).room.is_known
    assert set(batches._KEYS) <= set(re.findall(r"\w+", section.partition("For scripts")[2]))


# --- files of lines ------------------------------------------------------------------------------------------------


def lines_of(content: bytes, tmp_path: Path) -> list[str]:
    path = tmp_path / "specs.jsonl"
    path.write_bytes(content)
    return list(options.lines_of(path))


LINE = json.dumps(GOOD).encode()


@pytest.mark.parametrize(
    "content",
    [
        LINE + b"\n" + LINE,
        LINE + b"\r\n" + LINE + b"\r\n",
        codecs.BOM_UTF8 + LINE + b"\n" + LINE + b"\n",
        b"\n\n" + LINE + b"\n  \t\n\r\n" + LINE + b"\n\n\n",
    ],
    ids=["no end", "CRLF", "BOM", "blank lines"],
)
def test_lines_are_read_as_editors_of_all_systems_write_them(content: bytes, tmp_path: Path) -> None:
    found = answers(*lines_of(content, tmp_path))
    assert found == answers(GOOD, GOOD)


def test_bytes_that_are_no_text_cost_their_own_line_only(tmp_path: Path) -> None:
    error, good = answers(*lines_of(b'{"file": "\xff\xfe"}\n' + LINE, tmp_path))
    assert "error" in error
    assert "devices" in good


def test_a_line_of_ten_megabytes_costs_its_own_line_only(tmp_path: Path) -> None:
    long = b'{"shape": "' + b"x" * 10_000_000 + b'"}\n'
    lines = lines_of(LINE + b"\n" + long + LINE, tmp_path)
    assert max(map(len, lines)) < 3_000_000
    before, error, after = answers(*lines)
    assert "longer than 1048576 characters" in error["error"]
    assert before == after


def test_an_empty_file_has_no_answers(tmp_path: Path) -> None:
    assert lines_of(b"", tmp_path) == []


def test_minus_reads_stdin(monkeypatch: pytest.MonkeyPatch, in_process: InProcess) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE + b"\nnonsense\n" + LINE)))
    ended = in_process("plan", "--batch", "-", "--json")
    assert ended.code == 0
    good, bad, again = map(json.loads, ended.out.splitlines())
    assert good == again
    assert "error" in bad


def test_a_reader_that_has_enough_ends_it_quietly(tmp_path: Path) -> None:
    path = tmp_path / "specs.jsonl"
    path.write_bytes((LINE + b"\n") * 300)
    command = [sys.executable, "-m", "offloadtune", "plan", "--batch", str(path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert "devices" in json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_every_answer_is_written_as_soon_as_it_is_known(smollm2_path: Path) -> None:
    command = [sys.executable, "-m", "offloadtune", "plan", "--batch", "-", "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        for spec in (GOOD, {"file": str(smollm2_path), "card": "3090"}, {"x": 1}):
            process.stdin.write(json.dumps(spec) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_the_command_answers_every_line_and_ends_with_0(tmp_path: Path) -> None:
    path = tmp_path / "specs.jsonl"
    path.write_text("\n".join([json.dumps(GOOD), "{", json.dumps(GOOD | {"n_ctx": "x"}), json.dumps(GOOD)]))
    ended = offloadtune("plan", "--batch", path, "--json")
    assert (ended.code, ended.err) == (0, "")
    values = [json.loads(line) for line in ended.out.splitlines()]
    assert ["error" in value for value in values] == [False, True, True, False]


# --- many lines ----------------------------------------------------------------------------------------------------


def test_the_facts_of_a_name_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str | None] = []

    def counting(request: PlanRequest) -> GgufFacts:
        read.append(request.shape)
        return facts_for(request)

    monkeypatch.setattr(batches, "facts_for", counting)
    assert len(answers(*[GOOD | {"n_ctx": 256 * i} for i in range(1, 30)])) == 29
    assert read == ["llama-3-8b"]


def n_facts() -> int:
    return sum(isinstance(one, GgufFacts) for one in gc.get_objects())


def test_what_is_kept_of_many_files_is_bounded(smollm2_path: Path, tmp_path: Path) -> None:
    def specs() -> Iterator[str]:
        for i in range(120):
            path = tmp_path / f"{i}.gguf"
            path.symlink_to(smollm2_path)
            yield json.dumps({"file": str(path), "card": "3090"})

    n_before = n_facts()
    answers_to = plan_lines(specs())
    for _ in range(120):
        assert not isinstance(next(answers_to), str)
    assert n_facts() - n_before < 100


@pytest.mark.parametrize("n_lines", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_lines_take_bounded_time_and_memory(n_lines: int, tmp_path: Path) -> None:
    path = tmp_path / "specs.jsonl"
    shapes = ("llama-3-8b", "qwen2.5-7b", "mixtral-8x7b")
    path.write_text(
        "".join(
            json.dumps({"shape": shapes[i % 3], "quant": "Q4_K_M", "card": "RTX 3090", "n_ctx": 512 + i}) + "\n"
            for i in range(n_lines)
        )
    )
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    took_ns, since_ns = [], time.perf_counter_ns()
    for answer in plan_lines(options.lines_of(path)):
        assert not isinstance(answer, str)
        now_ns = time.perf_counter_ns()
        took_ns.append(now_ns - since_ns)
        since_ns = now_ns
    assert len(took_ns) == n_lines
    assert statistics.median(took_ns[n_lines // 2 :]) < 3 * statistics.median(took_ns[: n_lines // 2])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes < 100 << 20

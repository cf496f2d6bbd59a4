"""What front ends take: golden texts, read back by what will read them, and never half a file."""

from __future__ import annotations

import ast
import concurrent.futures
import ctypes
import errno
import json
import math
import os
import re
import shlex
import stat
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, CardMaker
from golden import check_golden
from sample_records import (
    BARE_MACHINE,
    CPU_ONLY,
    ENGINE,
    FACTS,
    MACHINE,
    SERVER_SETTINGS,
    SETTINGS,
    TRIAL,
    recommendation,
)

from offloadtune.errors import ExportError, UsageError
from offloadtune.export import Profile, read_profile, render_command, render_profile, render_snippet, write_text
from offloadtune.export.llama_cpp_python import llama_kwargs
from offloadtune.export.llama_server import llama_server_words
from offloadtune.records import MIN_BATCH_VARIABLE, Machine, Settings, Target, Trial

PLAIN_PATH = Path("/models/SmolLM2-135M-Instruct.Q4_1.gguf")
HOSTILE_PATHS = {
    "quotes": Path("""/models/it's "the" best one.gguf"""),
    "shell": Path("/models/$HOME `id` $(id) !! ; rm -rf & | > < * ? ~ # %s {0} {x!r}.gguf"),
    "backslash": Path("/models/back\\slash\\n\\.gguf"),
    "non_ascii": Path("/models/Möbius 模型 \u2028 🦙.gguf"),
    "control": Path("/models/new\nline and \t tab and \r return.gguf"),
}
ENDPOINTS = ("192.168.1.7:50052", "[::1]:50052")
RECIPE = SETTINGS.replace(devices=("RPC0", "CUDA0"), use_extra_bufts=False)


def refuse(code: int) -> Callable[..., Any]:
    def raise_it(*_args: object, **_options: object) -> Any:
        raise OSError(code, os.strerror(code))

    return raise_it


# --- llama-cpp-python ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "path", "endpoints"),
    [
        ("plain", SETTINGS, PLAIN_PATH, ()),
        ("cpu_only", CPU_ONLY, PLAIN_PATH, ()),
        ("no_extra_bufts", SETTINGS.replace(use_extra_bufts=False), PLAIN_PATH, ()),
        ("endpoints", RECIPE, PLAIN_PATH, ENDPOINTS),
        ("experts_in_main_memory", SETTINGS.replace(n_cpu_moe=3), PLAIN_PATH, ()),
        ("feed_forward_in_main_memory", SETTINGS.replace(n_cpu_ffn=3), PLAIN_PATH, ()),
        ("cpu_only_with_endpoints", CPU_ONLY, PLAIN_PATH, ENDPOINTS[:1]),
        *((f"path_{name}", SETTINGS, path, ()) for name, path in HOSTILE_PATHS.items()),
    ],
)
def test_the_snippet(name: str, settings: Settings, path: Path, endpoints: tuple[str, ...]) -> None:
    text = render_snippet(settings, path, endpoints)
    compile(text, name, "exec")
    check_golden(f"export/snippet_{name}.py.txt", text)


class Said(dict[str, Any]):
    """Stands in for `Llama`: what it was told."""


def execute(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Said, Any]:
    """What the snippet tells `Llama`, and the model params it would get; the library is a stand-in."""
    low = types.ModuleType("llama_cpp.llama_cpp")
    found = {b"RPC0": 4096, b"CUDA0": 8192}

    def by_name(name: bytes) -> int:
        return found[name]

    stand_in = types.SimpleNamespace(
        ggml_backend_reg_by_name=types.SimpleNamespace(),
        ggml_backend_reg_get_proc_address=types.SimpleNamespace(),
        ggml_backend_dev_by_name=by_name,
        ggml_backend_cpu_buffer_type=lambda: 12288,
    )
    params = types.SimpleNamespace(use_extra_bufts=True, devices=None)
    vars(low).update(_lib=stand_in, llama_model_default_params=lambda: params)
    package = types.ModuleType("llama_cpp")
    vars(package).update(Llama=Said, llama_cpp=low)
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", low)
    names: dict[str, Any] = {}
    exec(compile(text, "snippet", "exec"), names)  # noqa: S102 - that is what users do with it
    return names["llm"], vars(low)["llama_model_default_params"]()


@pytest.mark.parametrize("path", [PLAIN_PATH, *HOSTILE_PATHS.values()], ids=str)
def test_the_snippet_tells_llama_everything(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, params = execute(render_snippet(SETTINGS, path), monkeypatch)
    assert said == {"model_path": str(path), **llama_kwargs(SETTINGS)}
    assert (params.use_extra_bufts, params.devices) == (True, None)


def test_the_recipe_reaches_what_llama_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    said, params = execute(render_snippet(CPU_ONLY, PLAIN_PATH), monkeypatch)
    assert said == {"model_path": str(PLAIN_PATH), **llama_kwargs(CPU_ONLY)}
    assert params.use_extra_bufts is False
    assert params.devices.value  # a list that ends at once, which is not the same as no list


def test_what_the_engine_reads_from_the_environment_is_there_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SETTINGS.replace(op_offload_min_batch=64)
    for changed in (settings, settings.replace(no_host=True)):
        monkeypatch.setenv(MIN_BATCH_VARIABLE, "")
        text = render_snippet(changed, PLAIN_PATH)
        assert text.index(MIN_BATCH_VARIABLE) < text.index("llama_cpp")
        said, params = execute(text, monkeypatch)
        assert os.environ[MIN_BATCH_VARIABLE] == "64"
        assert said == {"model_path": str(PLAIN_PATH), **llama_kwargs(SETTINGS)}
        assert getattr(params, "no_host", False) == changed.no_host


def test_the_command_names_the_environment_of_the_server() -> None:
    settings = SERVER_SETTINGS.replace(op_offload_min_batch=64, no_host=True)
    words = words_of(render_command(settings, PLAIN_PATH))
    assert words[:3] == ["env", f"{MIN_BATCH_VARIABLE}=64", "llama-server"]
    assert llama_server_words(settings, PLAIN_PATH) == words
    assert "--no-host" in words
    assert "--no-host" not in words_of(render_command(SERVER_SETTINGS, PLAIN_PATH))


def test_the_recipe_keeps_the_experts_of_the_first_blocks_in_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Override(ctypes.Structure):
        _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))

    settings = SETTINGS.replace(n_cpu_moe=12)
    said, params = execute(render_snippet(settings, PLAIN_PATH), monkeypatch)
    assert said == {"model_path": str(PLAIN_PATH), **llama_kwargs(settings)}
    *entries, end = ctypes.cast(params.tensor_buft_overrides, ctypes.POINTER(Override))[:13]
    patterns = [entry.pattern.decode() for entry in entries]
    assert {entry.buffer_type for entry in entries} == {12288}
    assert (end.pattern, end.buffer_type) == (None, None)
    for name, kept in (
        ("blk.0.ffn_up_exps.weight", True),
        ("blk.11.ffn_gate_up_exps.weight", True),
        ("blk.1.ffn_down_chexps.weight", True),
        ("blk.12.ffn_up_exps.weight", False),
        ("blk.110.ffn_up_exps.weight", False),
        ("blk.3.ffn_up_shexp.weight", False),
        ("blk.3.attn_q.weight", False),
    ):
        assert any(re.search(pattern, name) for pattern in patterns) == kept


def test_the_recipe_keeps_feed_forward_weights_beside_experts_in_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Override(ctypes.Structure):
        _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))

    _, params = execute(render_snippet(SETTINGS.replace(n_cpu_moe=2, n_cpu_ffn=3), PLAIN_PATH), monkeypatch)
    *entries, end = ctypes.cast(params.tensor_buft_overrides, ctypes.POINTER(Override))[:6]
    patterns = [entry.pattern.decode() for entry in entries]
    assert end.pattern is None
    assert patterns == native_patterns(n_cpu_moe=2, n_cpu_ffn=3)


def native_patterns(*, n_cpu_moe: int, n_cpu_ffn: int) -> list[str]:
    """What the measured engine is told (engine/worker/native.py), which loads a library and is not imported here."""
    experts = [rf"blk\.{i}\.ffn_(up|down|gate|gate_up)_(ch|)exps" for i in range(n_cpu_moe)]
    return experts + [rf"blk\.{i}\.ffn_(up|down|gate)\." for i in range(n_cpu_ffn)]


def test_every_setting_that_llama_takes_is_written() -> None:
    settings = Settings(
        n_gpu_layers=1,
        n_ctx=2,
        n_batch=3,
        n_ubatch=4,
        n_threads=5,
        n_threads_batch=6,
        flash_attn_type="enabled",
        type_k="q8_0",
        type_v="f32",
        offload_kqv=False,
        op_offload=False,
        swa_full=False,
        load_mode="mlock",
    )
    assert llama_kwargs(settings) == {
        "n_gpu_layers": 1,
        "n_ctx": 2,
        "n_batch": 3,
        "n_ubatch": 4,
        "n_threads": 5,
        "n_threads_batch": 6,
        "flash_attn": True,
        "type_k": 8,
        "type_v": 0,
        "offload_kqv": False,
        "op_offload": False,
        "swa_full": False,
        "use_mmap": False,
        "use_mlock": True,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"flash_attn_type": "auto"},
        {"load_mode": "direct_io"},
        {"load_mode": "auto"},
        {"n_seq_max": 2},
        {"n_outputs_max": 1},
        {"kv_unified": True},
    ],
    ids=str,
)
def test_what_llama_cannot_be_told_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ExportError, match=next(iter(changes))) as caught:
        render_snippet(SETTINGS.replace(**changes), PLAIN_PATH)
    assert caught.value.exit_code == 16


@pytest.mark.engine
def test_llama_has_every_argument_by_name() -> None:
    # Llama takes **kwargs and ignores them: a name that is wrong would be said to nobody
    code = (
        "import inspect, json, llama_cpp; print(json.dumps([*inspect.signature(llama_cpp.Llama.__init__).parameters]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"model_path", *llama_kwargs(SETTINGS)} <= set(json.loads(done.stdout)) - {"kwargs"}


REPORT = """
import json
print(json.dumps({
    "n_ctx": llm.context_params.n_ctx,
    "n_batch": llm.context_params.n_batch,
    "n_ubatch": llm.context_params.n_ubatch,
    "n_threads": llm.context_params.n_threads,
    "n_threads_batch": llm.context_params.n_threads_batch,
    "n_gpu_layers": llm.model_params.n_gpu_layers,
    "flash_attn_type": llm.context_params.flash_attn_type,
    "type_k": llm.context_params.type_k,
    "op_offload": llm.context_params.op_offload,
    "load_mode": llm.model_params.load_mode,
    "use_extra_bufts": llm.model_params.use_extra_bufts,
    "devices": [] if llm.model_params.devices else None,
    "text": llm("The capital of France is", max_tokens=4, temperature=0.0)["choices"][0]["text"],
}))
"""


def loaded(text: str) -> tuple[dict[str, Any], str]:
    """What the real `Llama` holds after the snippet, and what the engine said."""
    done = subprocess.run(
        [sys.executable, "-c", text + REPORT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.engine
def test_the_snippet_leaves_the_file_loaded_as_measured(smollm2_path: Path) -> None:
    settings = CPU_ONLY.replace(
        n_ctx=512, n_ubatch=128, n_threads=1, n_threads_batch=2, flash_attn_type="enabled", load_mode="none"
    )
    seen, _ = loaded(render_snippet(settings, smollm2_path))
    assert "Paris" in seen.pop("text")
    assert seen == {
        "n_ctx": 512,
        "n_batch": 512,
        "n_ubatch": 128,
        "n_threads": 1,
        "n_threads_batch": 2,
        "n_gpu_layers": 0,
        "flash_attn_type": 1,
        "type_k": 1,
        "op_offload": False,
        "load_mode": 0,
        "use_extra_bufts": False,
        "devices": [],
    }


@pytest.mark.engine
def test_the_snippet_reaches_a_remote_device(smollm2_path: Path, make_card: CardMaker) -> None:
    card = make_card(1, 600 * MIB)
    settings = SETTINGS.replace(devices=("RPC0",), n_gpu_layers=31, n_ctx=512, n_threads=1, n_threads_batch=1)
    seen, lines = loaded(render_snippet(settings, smollm2_path, (card.endpoint,)))
    assert "Paris" in seen["text"]
    assert "offloaded 31/31 layers" in lines


# --- llama-server --------------------------------------------------------------------------------------------------

SERVER_CASES: dict[str, tuple[Settings, Path, tuple[str, ...]]] = {
    "plain": (SERVER_SETTINGS, PLAIN_PATH, ()),
    "cpu_only": (CPU_ONLY.replace(load_mode="direct_io", offload_kqv=False), PLAIN_PATH, ()),
    "endpoints": (
        RECIPE.replace(n_seq_max=4, kv_unified=True, flash_attn_type="disabled", load_mode="none"),
        PLAIN_PATH,
        ENDPOINTS,
    ),
    **{f"path_{name}": (SERVER_SETTINGS, path, ()) for name, path in HOSTILE_PATHS.items()},
}
FLASH_ATTN = {"--flash-attn": {"on": "enabled", "off": "disabled", "auto": "auto"}}
NUMBERS = {
    "--n-gpu-layers": "n_gpu_layers",
    "--ctx-size": "n_ctx",
    "--batch-size": "n_batch",
    "--ubatch-size": "n_ubatch",
    "--threads": "n_threads",
    "--threads-batch": "n_threads_batch",
    "--parallel": "n_seq_max",
}
WORDS = {"--cache-type-k": "type_k", "--cache-type-v": "type_v"}
LOAD_MODES = {"mmap+mlock": "mmap_mlock", "dio": "direct_io"}
SWITCHES = {
    "--no-kv-offload": ("offload_kqv", False),
    "--no-op-offload": ("op_offload", False),
    "--no-repack": ("use_extra_bufts", False),
    "--no-host": ("no_host", True),
    "--swa-full": ("swa_full", True),
    "--kv-unified": ("kv_unified", True),
}
NOT_SAID = ("n_outputs_max",)  # llama-server has no flag for it


def words_of(text: str) -> list[str]:
    """Words of the command; shlex does not know that a backslash joins lines."""
    return shlex.split(text.replace(" \\\n  ", " "))


def parse_command(text: str) -> tuple[Settings, str, str | None]:
    """Settings, path and endpoints that a shell would hand to llama-server, where a missing flag is its default."""
    program, *words = words_of(text)
    assert program == "llama-server"
    fields: dict[str, Any] = {name: not value for name, value in SWITCHES.values()}
    rest: dict[str, str] = {}
    while words:
        flag = words.pop(0)
        if flag in SWITCHES:
            name, fields[name] = SWITCHES[flag]
        elif flag in NUMBERS:
            fields[NUMBERS[flag]] = int(words.pop(0))
        elif flag in WORDS:
            fields[WORDS[flag]] = words.pop(0)
        else:
            assert flag in {"--model", "--rpc", "--device", "--load-mode", "--flash-attn", "--fit"}, flag
            rest[flag] = words.pop(0)
    fields["flash_attn_type"] = FLASH_ATTN["--flash-attn"][rest["--flash-attn"]]
    fields["load_mode"] = LOAD_MODES.get(rest["--load-mode"], rest["--load-mode"])
    devices = rest.get("--device")
    fields["devices"] = None if devices is None else () if devices == "none" else tuple(devices.split(","))
    assert rest["--fit"] == "off"
    return Settings(**fields), rest["--model"], rest.get("--rpc")


@pytest.mark.parametrize("name", SERVER_CASES)
def test_the_command(name: str) -> None:
    settings, path, endpoints = SERVER_CASES[name]
    text = render_command(settings, path, endpoints)
    read, model, rpc = parse_command(text)
    unsaid = {field: getattr(Settings(), field) for field in NOT_SAID}
    assert read.replace(**unsaid) == settings.replace(**unsaid)
    assert model == str(path)
    assert rpc == (",".join(endpoints) or None)
    check_golden(f"export/command_{name}.sh.txt", text)


@pytest.mark.parametrize("name", SERVER_CASES)
def test_a_real_shell_reads_the_command_alike(name: str, tmp_path: Path) -> None:
    settings, path, endpoints = SERVER_CASES[name]
    text = render_command(settings, path, endpoints)
    stand_in = tmp_path / "llama-server"
    stand_in.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n", encoding="utf-8")
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=True, env=env)
    assert json.loads(done.stdout) == words_of(text)[1:]


def test_experts_that_stay_in_main_memory_are_said() -> None:
    assert "--n-cpu-moe 12" in render_command(SERVER_SETTINGS.replace(n_cpu_moe=12), Path("moe.gguf"))
    assert "--n-cpu-moe" not in render_command(SERVER_SETTINGS, Path("moe.gguf"))


def test_feed_forward_weights_that_stay_in_main_memory_are_said_in_one_pattern() -> None:
    words = llama_server_words(SERVER_SETTINGS.replace(n_cpu_ffn=12), Path("m.gguf"))
    pattern, _, buffer_type = words[words.index("--override-tensor") + 1].rpartition("=")
    assert buffer_type == "CPU"
    assert "," not in pattern  # which would part two overrides
    for name, kept in (
        ("blk.0.ffn_up.weight", True),
        ("blk.11.ffn_down.bias", True),
        ("blk.12.ffn_gate.weight", False),
        ("blk.110.ffn_gate.weight", False),
        ("blk.3.ffn_norm.weight", False),
        ("blk.3.ffn_up_exps.weight", False),
    ):
        assert bool(re.search(pattern, name)) == kept
    assert "--override-tensor" not in llama_server_words(SERVER_SETTINGS, Path("m.gguf"))


def test_shares_of_devices_are_said() -> None:
    assert "--tensor-split 3,0.5" in render_command(SERVER_SETTINGS.replace(tensor_split=(3, 0.5)), Path("m.gguf"))
    assert "--tensor-split" not in render_command(SERVER_SETTINGS, Path("m.gguf"))
    shared = SETTINGS.replace(tensor_split=(3, 1))
    assert llama_kwargs(shared)["tensor_split"] == [3.0, 1.0]
    assert llama_kwargs(shared, told=("tensor_split",)) == {"tensor_split": [3.0, 1.0]}
    assert "    tensor_split=[3.0, 1.0],\n" in render_snippet(shared, PLAIN_PATH)
    assert "tensor_split" not in llama_kwargs(SETTINGS)


def test_a_profile_keeps_the_shares_of_devices(tmp_path: Path) -> None:
    shared = Trial(settings=SETTINGS.replace(tensor_split=(3, 1)), target=Target.LLAMA_CPP_PYTHON, why="x")
    path = tmp_path / "profile.toml"
    path.write_text(render_profile(profile("x", trial=shared)), encoding="utf-8")
    assert read_profile(path).settings == shared.settings
    path.write_text(path.read_text(encoding="utf-8").replace("tensor_split = [", "tensor_split = [-1.0,"), "utf-8")
    with pytest.raises(UsageError, match="is not a profile"):
        read_profile(path)


# --- profiles ------------------------------------------------------------------------------------------------------


def profile(text: str, trial: Trial = TRIAL, machine: Machine = MACHINE, sha256: str | None = "a" * 64) -> Profile:
    return Profile(
        offloadtune_version="0.1.0",
        machine=machine,
        engine=ENGINE,
        facts=FACTS,
        sha256=sha256,
        recommendation=recommendation(trial),
        apply_text=text,
        journal_path=Path("/home/user/sweeps/x.jsonl"),
        measured_at="2026-01-02T03:04:05+00:00",
    )


def test_the_profile() -> None:
    snippet = render_snippet(RECIPE, HOSTILE_PATHS["quotes"], ENDPOINTS)
    text = render_profile(profile(snippet, trial=Trial(settings=RECIPE, target=Target.LLAMA_CPP_PYTHON, why="x")))
    check_golden("export/profile.toml", text)
    read = tomllib.loads(text)
    assert read["apply"] == {"python": snippet}
    assert read["machine"]["machine_id"] == MACHINE.machine_id
    assert [device["name"] for device in read["machine"]["devices"]] == ["CUDA0"]
    assert read["gguf"] == {
        "path": "/models/Qwen 3 [8B].gguf",
        "identity": FACTS.gguf_id,
        "sha256": "a" * 64,
        "file_bytes": FACTS.file_bytes,
    }
    assert Settings(**{**read["settings"], "devices": tuple(read["settings"]["devices"])}) == RECIPE
    assert read["measured"]["ttft_s"]["p50"] == recommendation().figures.ttft_s.p50
    assert read["measured"]["device_peak_bytes"] == {"CUDA0": 5 << 30}
    ratio = next(one["ratio"] for one in read["versus"] if one["against"] == "default")
    assert (ratio["low"], ratio["high"], ratio["basis"]) == (-math.inf, math.inf, "calibrated")
    assert "host_peak_rss_bytes" not in read["measured"]  # not known, and TOML has no null


def test_a_profile_leaves_out_what_is_not_known() -> None:
    text = render_profile(profile("x", machine=BARE_MACHINE, sha256=None))
    check_golden("export/profile_unknowns.toml", text)
    read = tomllib.loads(text)
    assert {"cpu", "n_physical_cores"}.isdisjoint(read["machine"])
    assert "sha256" not in read["gguf"]
    assert "devices" not in read["settings"]  # None: all the engine has
    assert "None" not in text
    assert "null" not in text


def test_no_devices_is_not_all_devices() -> None:
    cpu_only = Trial(settings=CPU_ONLY, target=Target.LLAMA_CPP_PYTHON, why="x")
    assert tomllib.loads(render_profile(profile("x", trial=cpu_only)))["settings"]["devices"] == []


@pytest.mark.parametrize("path", [PLAIN_PATH, *HOSTILE_PATHS.values()], ids=str)
@pytest.mark.parametrize(
    ("target", "key", "render"),
    [
        (Target.LLAMA_CPP_PYTHON, "python", render_snippet),
        (Target.LLAMA_SERVER, "command", render_command),
    ],
)
def test_the_applied_text_survives_the_profile(
    path: Path, target: Target, key: str, render: Callable[[Settings, Path, tuple[str, ...]], str], tmp_path: Path
) -> None:
    text = render(CPU_ONLY, path, ENDPOINTS)
    answer = profile(text, trial=Trial(settings=CPU_ONLY, target=target, why="x"))
    file = tmp_path / "profile.toml"
    write_text(file, render_profile(answer))
    assert tomllib.loads(file.read_text(encoding="utf-8"))["apply"] == {key: text}


def test_the_snippet_in_the_profile_is_still_python() -> None:
    for path in HOSTILE_PATHS.values():
        read = tomllib.loads(render_profile(profile(render_snippet(SETTINGS, path))))
        call = ast.parse(read["apply"]["python"]).body[-1]
        assert isinstance(call, ast.Assign)
        assert isinstance(call.value, ast.Call)
        assert ast.literal_eval(call.value.keywords[0].value) == str(path)


# --- the writer ----------------------------------------------------------------------------------------------------


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on demand.toml"
    write_text(path, "née\r\n🦙\n")
    assert path.read_bytes() == "née\r\n🦙\n".encode()
    write_text(path, "second")
    assert path.read_bytes() == b"second"
    assert [one.name for one in path.parent.iterdir()] == ["on demand.toml"]


def check_refused(path: Path, text: str) -> str:
    with pytest.raises(ExportError) as caught:
        write_text(path, text)
    assert caught.value.exit_code == 16
    assert caught.value.hint
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("step", ["fsync", "replace", "mkstemp"])
def test_the_old_file_stays_when_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "profile.toml"
    write_text(path, "old")
    owners: dict[str, Any] = {"fsync": os, "replace": Path, "mkstemp": sys.modules["tempfile"]}
    monkeypatch.setattr(owners[step], step, refuse(errno.ENOSPC))
    assert os.strerror(errno.ENOSPC) in check_refused(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["profile.toml"]


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.toml"
    write_text(path, "old")
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _handle: seen.append(path.read_text(encoding="utf-8")))
    write_text(path, "new")
    assert seen == ["old"]


def test_what_is_no_file_of_its_own_is_written_into(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old and longer")
    link.symlink_to(target)
    write_text(link, "new")
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    os.mkfifo(pipe)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        write_text(pipe, "through")
        assert read.result(timeout=30) == "through"
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    write_text(Path(os.devnull), "nowhere")
    assert not Path(os.devnull).is_file()


def test_a_folder_or_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "profile.toml").mkdir()
    check_refused(tmp_path / "profile.toml", "x")
    (tmp_path / "file").write_bytes(b"")
    check_refused(tmp_path / "file" / "profile.toml", "x")


def test_a_name_that_is_no_text_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    assert "UTF-8" in check_refused(tmp_path / "profile.toml", "/models/\udcff.gguf")
    assert [one for one in tmp_path.iterdir() if one.is_file()] == []

"""What llama-cpp-python's own server is told: golden texts, and the program run against a server that only listens."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from golden import check_golden
from sample_records import SETTINGS

from offloadtune.errors import ExportError
from offloadtune.export import llama_cpp_server_words, llama_kwargs, render_server_program
from offloadtune.records import MIN_BATCH_VARIABLE, Settings

PATH = Path("/models/it's [the] best {0}.gguf")
RECIPE = SETTINGS.replace(devices=("RPC0", "CUDA0"), use_extra_bufts=False)


def test_every_measured_setting_is_said() -> None:
    words = llama_cpp_server_words(SETTINGS, PATH)
    said = dict(zip(words[::2], words[1::2], strict=True))
    assert said["--model"] == str(PATH)
    assert (said["--n_gpu_layers"], said["--n_ctx"], said["--flash_attn"]) == ("24", "2816", "true")
    assert (said["--n_ubatch"], said["--n_threads_batch"], said["--type_k"]) == ("256", "16", "1")
    assert (said["--logits_all"], said["--use_mlock"], said["--verbose"]) == ("false", "false", "false")
    assert not {"--op_offload", "--swa_full"} & set(said)  # the server knows no such options


def test_shares_of_devices_are_values_of_one_option() -> None:
    shared = RECIPE.replace(tensor_split=(3, 1))
    words = llama_cpp_server_words(shared, PATH)
    i = words.index("--tensor_split")
    assert words[i : i + 4] == ["--tensor_split", "3.0", "1.0", "--logits_all"]
    program = render_server_program(shared, PATH)
    assert program is not None
    assert "    '--tensor_split', '3.0', '1.0',\n" in program
    compile(program, "program", "exec")


def test_no_program_where_the_words_say_it_all() -> None:
    assert render_server_program(SETTINGS, PATH) is None


@pytest.mark.parametrize(
    ("name", "settings", "endpoints"),
    [
        ("llama_cpp_server.py.txt", RECIPE, ("192.168.1.7:50052",)),
        ("llama_cpp_server_context.py.txt", SETTINGS.replace(op_offload=False, swa_full=False), ()),
    ],
)
def test_the_program(name: str, settings: Settings, endpoints: tuple[str, ...]) -> None:
    program = render_server_program(settings, PATH, endpoints)
    assert program
    compile(program, "program", "exec")
    check_golden(f"export/{name}", program)


def test_the_program_changes_the_defaults_and_starts_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    low = listening_server(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["program.py", "--port", "81"])
    settings = SETTINGS.replace(use_extra_bufts=False, op_offload=False, swa_full=False)
    program = render_server_program(settings, PATH)
    assert program
    exec(compile(program, "program", "exec"), {})  # noqa: S102 - our own text
    assert sys.argv == ["program.py", *llama_cpp_server_words(settings, PATH), "--port", "81"]
    assert low.started == ["program.py"]
    assert vars(low.llama_model_default_params()) == {"use_extra_bufts": False}
    assert vars(low.llama_context_default_params()) == {"op_offload": False, "swa_full": False}


def test_the_program_sets_what_the_engine_reads_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIN_BATCH_VARIABLE, "")
    low = listening_server(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["program.py"])
    for settings in (SETTINGS, SETTINGS.replace(no_host=True)):
        program = render_server_program(settings.replace(op_offload_min_batch=128), PATH)
        assert program
        assert program.index(MIN_BATCH_VARIABLE) < program.index("from llama_cpp")
        exec(compile(program, "program", "exec"), {})  # noqa: S102 - our own text
        assert os.environ[MIN_BATCH_VARIABLE] == "128"
        assert getattr(low.llama_model_default_params(), "no_host", False) == settings.no_host
    assert low.started


def listening_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A llama_cpp whose server only notes that it was started; the low-level module of it."""
    low: Any = types.ModuleType("llama_cpp.llama_cpp")
    low.llama_model_default_params = lambda: types.SimpleNamespace(use_extra_bufts=True)
    low.llama_context_default_params = lambda: types.SimpleNamespace(op_offload=True, swa_full=True)
    low.started = []
    package: Any = types.ModuleType("llama_cpp")
    package.llama_cpp = low
    server: Any = types.ModuleType("llama_cpp.server.__main__")
    server.main = lambda: low.started.append(sys.argv[0])
    modules = {"llama_cpp": package, "llama_cpp.llama_cpp": low, "llama_cpp.server.__main__": server}
    for name, module in {**modules, "llama_cpp.server": types.ModuleType("llama_cpp.server")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return low


@pytest.mark.parametrize("changes", [{"flash_attn_type": "auto"}, {"load_mode": "direct_io"}, {"n_seq_max": 4}])
def test_what_llama_cannot_be_told_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ExportError, match="cannot be told") as caught:
        render_server_program(SETTINGS.replace(**changes), PATH)
    assert caught.value.hint


SAME = """
import argparse
import sys

from llama_cpp import Llama
from llama_cpp.server.cli import add_args_from_model, parse_model_from_args
from llama_cpp.server.model import LlamaProxy
from llama_cpp.server.settings import ModelSettings, Settings

parser = argparse.ArgumentParser()
add_args_from_model(parser, Settings)
asked = parse_model_from_args(ModelSettings, parser.parse_args(sys.argv[2:]))
served, made = LlamaProxy.load_llama_from_model_settings(asked), Llama(**eval(sys.argv[1]), verbose=False)
plain = (bool, int, float)
for name in ("model_params", "context_params"):
    ours, theirs = getattr(made, name), getattr(served, name)
    for field, *_ in ours._fields_:
        if isinstance(getattr(ours, field), plain) and getattr(ours, field) != getattr(theirs, field):
            print(field, getattr(ours, field), getattr(theirs, field))
for llama in (made, served):
    assert llama.model_params.tensor_split[:3] == [3.0, 1.0, 0.0], llama.model_params.tensor_split[:3]
if made.scores.shape != served.scores.shape:
    print("scores", made.scores.shape, served.scores.shape)
"""


@pytest.mark.engine
def test_the_server_loads_what_was_measured(smollm2_path: Path) -> None:
    """Its `Llama` differs in nothing from the one of the snippet."""
    settings = Settings(n_ctx=768, n_ubatch=128, n_threads=1, n_threads_batch=2, flash_attn_type="enabled")
    settings = settings.replace(tensor_split=(3, 1))
    arguments = {"model_path": str(smollm2_path), **llama_kwargs(settings)}
    words = llama_cpp_server_words(settings, smollm2_path)
    done = subprocess.run(
        [sys.executable, "-c", SAME, repr(arguments), *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

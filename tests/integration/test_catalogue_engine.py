"""The catalogue against llama.cpp itself: its own choice of types, and whether it takes the tensors described."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stand_in import write_stand_in

from offloadtune import catalogue
from offloadtune.gguf import read_gguf

pytestmark = pytest.mark.engine

SCRIPT = """
import ctypes, json, re, sys
from llama_cpp import llama_cpp as low

path, asked = sys.argv[1], json.loads(sys.argv[2])
lines = []
log = low.llama_log_callback(lambda level, text, data: lines.append(text.decode(errors="replace")))
low.llama_log_set(log, None)
low.llama_backend_init()


class Importance(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


importance = (Importance * 2)(Importance(b"any", (ctypes.c_float * 1)(1.0), 1), Importance(None, None, 0))
chosen = []
for file_type, has_imatrix in asked:
    lines.clear()
    params = low.llama_model_quantize_default_params()
    params.ftype, params.dry_run, params.nthread = file_type, True, 1
    params.imatrix = ctypes.cast(importance, type(params.imatrix)) if has_imatrix else None
    assert low.llama_model_quantize(path.encode(), b"none.gguf", ctypes.byref(params)) == 0, "".join(lines)
    types = {}
    for line in "".join(lines).splitlines():
        match = re.search(r"\\] +(\\S+) +- \\[.*type = +(\\w+)(?:.*-> .*\\((\\w+)\\))?", line)
        if match:
            types[match[1]] = (match[3] or match[2]).upper()
    chosen.append(types)
load = low.llama_model_default_params()
load.no_alloc, load.load_mode, load.n_gpu_layers = True, 0, 0
loaded = low.llama_model_load_from_file(path.encode(), load)
print(json.dumps({"chosen": chosen, "n_params": low.llama_model_n_params(loaded) if loaded else 0}))
"""

QUANTISED = [quant for quant in catalogue.QUANTS.values() if quant.type_name not in {"F32", "F16", "BF16"}]
ONE_OF_EACH = [
    "smollm2-135m",
    "llama-3-70b",
    "mixtral-8x7b",
    "qwen2.5-7b",
    "qwen3-4b",
    "qwen3-30b-a3b",
    "gemma-2-9b",
    "gemma-3-1b",
    "gpt-oss-20b",
    "phi-4",
    "deepseek-v2-lite",
    "glm-4-32b-0414",
    "command-r-35b",
    "qwen3.5-9b",
    "qwen3.6-35b-a3b",
    "gemma-4-e2b",
    "gemma-4-26b-a4b",
]
AT_ONCE = {"smollm2-135m", "qwen3-30b-a3b", "gpt-oss-20b", "phi-4", "qwen3.5-9b"}


@pytest.mark.parametrize(
    "key", [key if key in AT_ONCE else pytest.param(key, marks=pytest.mark.slow) for key in ONE_OF_EACH]
)
def test_types_and_tensors_are_those_of_llama_cpp(key: str, tmp_path: Path) -> None:
    shape, path = catalogue.find_shape(key), tmp_path / "stand-in.gguf"
    write_stand_in(path, catalogue.described(shape, "F16"))
    mixtures = [(quant, has_imatrix) for quant in QUANTISED for has_imatrix in (False, True)]
    asked = [(quant.file_type, has_imatrix) for quant, has_imatrix in mixtures]
    answer = ask_llama_cpp(path, asked)
    assert answer["n_params"] == read_gguf(path).n_params
    for (quant, has_imatrix), types in zip(mixtures, answer["chosen"], strict=True):
        if quant.name == "MXFP4_MOE" and not shape.n_expert:
            continue
        ours = catalogue.described(shape, quant, has_imatrix=has_imatrix, as_published=False)
        assert {name: type_name for name, type_name, _ in ours.tensors} == types, (quant.name, has_imatrix)


def ask_llama_cpp(path: Path, asked: list[tuple[int, bool]]) -> dict[str, Any]:
    """Types that llama.cpp would choose for (file type, importance matrix at hand), and what it counts on loading."""
    command = [sys.executable, "-c", SCRIPT, str(path), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer

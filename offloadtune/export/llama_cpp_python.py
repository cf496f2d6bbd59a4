"""Settings as Python for llama-cpp-python: `Llama(**kwargs)`, with a recipe before it for what `Llama` cannot say.

`Llama.__init__` fills the structs that llama_model_default_params() returns; editing that function's result reaches
the fields it has no argument for (devices, use_extra_bufts, no_host, tensor_buft_overrides). What the engine reads from
the environment is set before llama_cpp is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from offloadtune.errors import ExportError
from offloadtune.records import Settings

_GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
_LOAD_MODES = {"mmap": (True, False), "none": (False, False), "mmap_mlock": (True, True), "mlock": (False, True)}

_FIELDS = {"flash_attn": "flash_attn_type", "use_mmap": "load_mode", "use_mlock": "load_mode"}
"""Fields of Settings behind arguments of `Llama` that have another name."""

_SAYABLE: dict[str, Callable[[Settings], bool]] = {
    "flash_attn_type": lambda settings: settings.flash_attn_type != "auto",
    "load_mode": lambda settings: settings.load_mode in _LOAD_MODES,
    "n_seq_max": lambda settings: settings.n_seq_max == 1,
    "n_outputs_max": lambda settings: settings.n_outputs_max == 0,
    "kv_unified": lambda settings: not settings.kv_unified,
}
"""What `Llama` can be told of each field that it has no argument for, or one that says less."""

_ENDPOINTS = """\
registry = lib.ggml_backend_reg_by_name(b"RPC")
address = lib.ggml_backend_reg_get_proc_address(ctypes.c_void_p(registry), b"ggml_backend_rpc_add_server")
add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
for endpoint in {endpoints!r}:
    lib.ggml_backend_register(ctypes.c_void_p(add_server(endpoint.encode())))
"""
_POINTERS = """\
lib = low._lib
for name in ("ggml_backend_reg_by_name", "ggml_backend_reg_get_proc_address", "ggml_backend_dev_by_name"):
    getattr(lib, name).restype = ctypes.c_void_p
"""
_DEVICES = """\
devices = (ctypes.c_void_p * {n})(*[lib.ggml_backend_dev_by_name(name) for name in {names!r}], None)
"""
_OVERRIDES = """\


class Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


lib.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
cpu = lib.ggml_backend_cpu_buffer_type()
patterns = {patterns}
overrides = (Override * (len(patterns) + 1))(*[(pattern, cpu) for pattern in patterns])
"""
_EXPERTS = r'[rb"blk\.%d\.ffn_(up|down|gate|gate_up)_(ch|)exps" % i for i in range({n})]'
_FFN = r'[rb"blk\.%d\.ffn_(up|down|gate)\." % i for i in range({n})]'
_PATCH = """\
default_params = low.llama_model_default_params


def model_params():
    params = default_params()
{lines}
    return params


low.llama_model_default_params = model_params
"""


def llama_kwargs(settings: Settings, told: Collection[str] | None = None) -> dict[str, Any]:
    """Arguments of `Llama` for `settings`: every measured one, defaults too, or only those of the fields `told`.

    Raises ExportError for what `Llama` can neither say nor be made to say.
    """
    unsayable = [f"{name}={getattr(settings, name)}" for name, says in _SAYABLE.items() if not says(settings)]
    if unsayable:
        message = f"Llama of llama-cpp-python cannot be told {', '.join(unsayable)}."
        raise ExportError(message, hint="leave it out, or sweep with --target llama_server")
    use_mmap, use_mlock = _LOAD_MODES[settings.load_mode]
    arguments: dict[str, Any] = {
        "n_gpu_layers": settings.n_gpu_layers,
        "n_ctx": settings.n_ctx,
        "n_batch": settings.n_batch,
        "n_ubatch": settings.n_ubatch,
        "n_threads": settings.n_threads,
        "n_threads_batch": settings.n_threads_batch,
        "flash_attn": settings.flash_attn_type == "enabled",
        "type_k": _GGML_TYPES[settings.type_k],
        "type_v": _GGML_TYPES[settings.type_v],
        "offload_kqv": settings.offload_kqv,
        "op_offload": settings.op_offload,
        "swa_full": settings.swa_full,
        "use_mmap": use_mmap,
        "use_mlock": use_mlock,
    }
    if settings.tensor_split is not None:
        arguments["tensor_split"] = list(settings.tensor_split)
    return {name: value for name, value in arguments.items() if told is None or _FIELDS.get(name, name) in told}


def render_snippet(
    settings: Settings, path: Path, endpoints: Sequence[str] = (), told: Collection[str] | None = None
) -> str:
    """A Python program that leaves the file loaded with `settings` as `llm`; see `llama_kwargs` for `told`."""
    arguments = "".join(f"    {name}={value!r},\n" for name, value in llama_kwargs(settings, told).items())
    call = f"llm = Llama(\n    model_path={str(path)!r},\n{arguments})\n"
    before = recipe(settings, endpoints)
    modules, low = ("import ctypes\n", "from llama_cpp import llama_cpp as low\n") if before else ("", "")
    parts = [
        environment_lines(settings, modules),
        f"from llama_cpp import Llama\n{low}",
        before + "\n" * bool(before) + call,
    ]
    return "\n".join(filter(None, parts))


def environment_lines(settings: Settings, imports: str) -> str:
    """`imports` of the standard library, and the variables that the engine must find when it starts."""
    lines = [f"os.environ[{name!r}] = {value!r}\n" for name, value in settings.environment.items()]
    if not lines:
        return imports
    modules = "".join(sorted([*imports.splitlines(keepends=True), "import os\n"]))
    return modules + "\n" + "".join(lines)


def recipe(settings: Settings, endpoints: Sequence[str]) -> str:
    """What has to run before `Llama` is called, "" where its arguments say it all; it takes `ctypes` and `low`."""
    parts, lines = [], []
    if endpoints:
        parts.append(_ENDPOINTS.format(endpoints=list(endpoints)))
    if settings.devices is not None:
        parts.append(_DEVICES.format(n=len(settings.devices) + 1, names=[n.encode() for n in settings.devices]))
        lines.append("    params.devices = ctypes.cast(devices, ctypes.c_void_p)")
    kept = [(_EXPERTS, settings.n_cpu_moe), (_FFN, settings.n_cpu_ffn)]
    if patterns := " + ".join(pattern.format(n=n) for pattern, n in kept if n):
        parts.append(_OVERRIDES.format(patterns=patterns))
        lines.append("    params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)")
    if parts:
        parts.insert(0, _POINTERS)
    if not settings.use_extra_bufts:
        lines.append("    params.use_extra_bufts = False")
    if settings.no_host:
        lines.append("    params.no_host = True")
    if lines:
        parts.append("\n" + _PATCH.format(lines="\n".join(lines)))
    return "".join(parts)

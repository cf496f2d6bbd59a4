"""Settings as a llama-server command line, in the newest spelling (--load-mode, not --no-mmap)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offloadtune.records import Settings
from offloadtune.units import format_split

_FLASH_ATTN = {"enabled": "on", "disabled": "off", "auto": "auto"}
_LOAD_MODES = {"mmap_mlock": "mmap+mlock", "direct_io": "dio"}


def render_command(settings: Settings, path: Path, endpoints: Sequence[str] = ()) -> str:
    """A bash command that serves `path` with `settings`; every measured setting is written, defaults too."""
    return " \\\n  ".join(shlex.join(group) for group in _groups(settings, path, endpoints)) + "\n"


def llama_server_words(settings: Settings, path: Path, endpoints: Sequence[str] = ()) -> list[str]:
    """The same command as the words that start a process."""
    return [word for group in _groups(settings, path, endpoints) for word in group]


def _groups(settings: Settings, path: Path, endpoints: Sequence[str]) -> list[list[str]]:
    variables = [f"{name}={value}" for name, value in settings.environment.items()]
    groups = [["env", *variables, "llama-server"] if variables else ["llama-server"], ["--model", str(path)]]
    if endpoints:
        groups.append(["--rpc", ",".join(endpoints)])
    if settings.devices is not None:
        groups.append(["--device", ",".join(settings.devices) or "none"])
    pairs: dict[str, Any] = {
        "--n-gpu-layers": settings.n_gpu_layers,
        "--ctx-size": settings.n_ctx,
        "--batch-size": settings.n_batch,
        "--ubatch-size": settings.n_ubatch,
        "--threads": settings.n_threads,
        "--threads-batch": settings.n_threads_batch,
        "--flash-attn": _FLASH_ATTN[settings.flash_attn_type],
        "--cache-type-k": settings.type_k,
        "--cache-type-v": settings.type_v,
        "--parallel": settings.n_seq_max,
        "--load-mode": _LOAD_MODES.get(settings.load_mode, settings.load_mode),
        "--fit": "off",
    }
    if settings.n_cpu_moe:
        pairs["--n-cpu-moe"] = settings.n_cpu_moe
    if settings.n_cpu_ffn:  # in the words of builds that do not know --n-cpu-ffn
        blocks = "|".join(map(str, range(settings.n_cpu_ffn)))
        pairs["--override-tensor"] = rf"blk\.({blocks})\.ffn_(up|down|gate)\.=CPU"
    if settings.tensor_split is not None:
        pairs["--tensor-split"] = format_split(settings.tensor_split, ",")
    groups += [[flag, str(value)] for flag, value in pairs.items()]
    switches = {
        "--no-kv-offload": not settings.offload_kqv,
        "--no-op-offload": not settings.op_offload,
        "--no-repack": not settings.use_extra_bufts,
        "--no-host": settings.no_host,
        "--swa-full": settings.swa_full,
        "--kv-unified": settings.kv_unified,
    }
    return groups + [[flag] for flag, wanted in switches.items() if wanted]

"""What llama.cpp's log lines say, as figures: pure, no library needed.

Sources: llama-context.cpp (sched_reserve, output_reserve, resolve_fused_ops), llama-model.cpp (load_tensors),
llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-model-loader.cpp. Sizes there are MiB with two decimals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

DEBUG_MARKS = ("load_tensors: layer ", "cannot be used with preferred buffer type")
"""What the lines of level DEBUG that are read here contain."""

_MIB = 1 << 20
_FLASH_ATTN_FORCED = re.compile(
    r"flash_attn is not compatible.*(forcing off)|(enabling flash_attn) since it is required"
)
_FLASH_ATTN_PROBED = re.compile(r"Flash Attention (?:(enabled)|.*not supported)")
_BUFFER = re.compile(r"(\S+)\s+(model|KV|RS|compute) buffer size\s*=\s*([\d.]+) MiB")
_BUFFER_FIELD = {"model": "weights_bytes", "KV": "kv_cache_bytes", "RS": "kv_cache_bytes", "compute": "compute_bytes"}
_OUTPUT = re.compile(r"output buffer size\s*=\s*([\d.]+) MiB")
_CACHE_TOTAL = re.compile(r"size =\s*([\d.]+) MiB \(.* seqs\), K \(")
_SPLITS = re.compile(r"graph.*, splits = (\d+)(?: / (\d+))?")
_LAYER = re.compile(r"load_tensors: layer\s+(\d+) assigned to device ([^,]+)")
_UNUSED = re.compile(r"has unused tensor .* \(size = (\d+) bytes\)")
_MOVED = re.compile(
    r"tensor '(?P<example>[^']*)' \((?P<type_name>[^)]*)\) \(and (?P<n_others>\d+) others\) "
    r"cannot be used with preferred buffer type (?P<refused_by>.+), using (?P<kept_in>.+) instead"
)
_SPEAKER = re.compile(r"^[\w:~]+: ")
_TELLS_NOTHING = re.compile(
    r"(?:error loading model: )?(?:llama_model_loader: )?failed to load model\b(?! architecture)"
)
_N_ERRORS_TOLD = 2


def resolved_flash_attn(asked: str, lines: Iterable[str]) -> str:
    """What flash attention became: forced by the file or the cache types, probed for "auto", as asked otherwise."""
    resolved = asked
    for line in lines:
        if match := _FLASH_ATTN_FORCED.search(line):
            resolved = "disabled" if match[1] else "enabled"
        elif resolved == "auto" and (match := _FLASH_ATTN_PROBED.search(line)):
            resolved = "enabled" if match[1] else "disabled"
    return resolved


def memory_from_lines(lines: Iterable[str], device_of: Mapping[str, str]) -> list[dict[str, Any]]:
    """Fields of `records.MemoryUse`, a row a device, where the exact breakdown cannot be read.

    `device_of` names the device of a device's buffer type. Under no_alloc only RS and compute buffers have their size.
    """
    rows: dict[str, dict[str, Any]] = {}
    for line in lines:
        match = _BUFFER.search(line)
        if match is None:
            continue
        on_host = match[1].startswith(("CPU", "AMX")) or match[1].endswith("_Host")
        device = "host" if on_host else device_of.get(match[1].removesuffix("_Mapped"), match[1])
        row = rows.setdefault(
            device,
            {"device": device, "is_host": on_host, "weights_bytes": 0, "kv_cache_bytes": 0, "compute_bytes": 0},
        )
        row[_BUFFER_FIELD[match[2]]] += round(float(match[3]) * _MIB)
    return list(rows.values())


def compute_mib(lines: Iterable[str]) -> dict[str, float]:
    """Compute buffers by buffer type, in MiB."""
    found: dict[str, float] = {}
    for line in lines:
        match = _BUFFER.search(line)
        if match and match[2] == "compute":
            found[match[1]] = found.get(match[1], 0.0) + float(match[3])
    return found


def output_mib(lines: Iterable[str]) -> float | None:
    """The buffer of logits, in MiB; None where no line tells."""
    return next((float(match[1]) for line in lines if (match := _OUTPUT.search(line))), None)


def cache_total_bytes(lines: Iterable[str]) -> int | None:
    """Keys and values of all caches on all devices (two with a sliding window), without recurrent states."""
    found = [float(match[1]) for line in lines if (match := _CACHE_TOTAL.search(line))]
    return round(sum(found) * _MIB) if found else None


def n_splits(lines: Iterable[str]) -> tuple[int, int] | None:
    """Pieces of the graph of a prompt and of one token; the engine tells one number where they are equal."""
    for line in lines:
        if match := _SPLITS.search(line):
            return int(match[1]), int(match[2] or match[1])
    return None


def layer_devices(lines: Iterable[str]) -> list[str]:
    """The device of each block, then of the output layer; "host" for the CPU. Needs lines of level DEBUG."""
    found = {int(match[1]): match[2] for line in lines if (match := _LAYER.search(line))}
    return ["host" if found[i] == "CPU" else found[i] for i in sorted(found)]


def unused_bytes(lines: Iterable[str]) -> int:
    """Tensors of the file that the engine does not load."""
    return sum(int(match[1]) for line in lines if (match := _UNUSED.search(line)))


def refused_tensors(
    lines: Iterable[str], device_of: Mapping[str, str], kept: str | None = None
) -> list[dict[str, Any]]:
    """Fields of `plans.RefusedTensors` by the loader's one line about tensors that are not where they belong.

    It names the first such tensor of a load and counts all of them, whatever their type and reason. Where the first is
    one that the host's extra buffers (AMX, REPACK) do not take, as any embedding is, or was asked to stay on the host
    (the pattern `kept`), it says nothing of devices. Needs lines of level DEBUG.
    """
    for line in lines:
        match = _MOVED.search(line)
        if match and match["refused_by"] in device_of and not (kept and re.search(kept, match["example"])):
            told = match.groupdict()
            n_others = int(told.pop("n_others"))
            return [{**told, "n_tensors": n_others + 1}]
    return []


def reason_of(errors: Iterable[str]) -> str:
    """The last lines of level ERROR as one sentence, without the names of the functions that speak."""
    told = dict.fromkeys(_SPEAKER.sub("", line.strip()).rstrip(".") for line in errors)
    telling = [line for line in told if not _TELLS_NOTHING.match(line)] or list(told)
    return "; ".join(telling[-_N_ERRORS_TOLD:])

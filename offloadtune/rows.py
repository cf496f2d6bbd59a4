"""The row of llama-bench, so that figures can be posted and compared. Floor 0: standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class FieldKind(StrEnum):
    """How llama-bench writes a field: the names are those of its own source."""

    STRING = "string"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"


FIELDS: dict[str, FieldKind] = {
    "build_commit": FieldKind.STRING,
    "build_number": FieldKind.INT,
    "cpu_info": FieldKind.STRING,
    "gpu_info": FieldKind.STRING,
    "backends": FieldKind.STRING,
    "model_filename": FieldKind.STRING,
    "model_type": FieldKind.STRING,
    "model_size": FieldKind.INT,
    "model_n_params": FieldKind.INT,
    "n_batch": FieldKind.INT,
    "n_ubatch": FieldKind.INT,
    "n_threads": FieldKind.INT,
    "cpu_mask": FieldKind.STRING,
    "cpu_strict": FieldKind.BOOL,
    "poll": FieldKind.INT,
    "type_k": FieldKind.STRING,
    "type_v": FieldKind.STRING,
    "n_gpu_layers": FieldKind.INT,
    "n_cpu_moe": FieldKind.INT,
    "split_mode": FieldKind.STRING,
    "main_gpu": FieldKind.INT,
    "no_kv_offload": FieldKind.BOOL,
    "flash_attn": FieldKind.INT,
    "devices": FieldKind.STRING,
    "tensor_split": FieldKind.STRING,
    "tensor_buft_overrides": FieldKind.STRING,
    "load_mode": FieldKind.STRING,
    "lazy_mode": FieldKind.STRING,
    "embeddings": FieldKind.BOOL,
    "no_op_offload": FieldKind.INT,
    "no_host": FieldKind.BOOL,
    "repack": FieldKind.BOOL,
    "fit_target": FieldKind.INT,
    "fit_min_ctx": FieldKind.INT,
    "n_prompt": FieldKind.INT,
    "n_gen": FieldKind.INT,
    "n_depth": FieldKind.INT,
    "test_time": FieldKind.STRING,
    "avg_ns": FieldKind.INT,
    "stddev_ns": FieldKind.INT,
    "avg_ts": FieldKind.FLOAT,
    "stddev_ts": FieldKind.FLOAT,
}
"""Fields of llama.cpp 0.5's llama-bench, in its order. Older and newer ones have some fewer and some more."""

ROW_FORMATS = ("md", "json", "jsonl", "sql", "csv")
OUR_PREFIX = "offloadtune_"
STANDS_FOR = f"{OUR_PREFIX}stands_for"
"""In `extra`, of a stand-in alone: what it stands for, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One test of llama-bench.

    `fields` holds its fields by their names there, in its order, as its JSON would: numbers, booleans and texts;
    `samples_ns` and `samples_ts` are empty where the file had none (SQL, CSV). `extra` are our own, named
    `offloadtune_*`, and whatever else a JSON line held.
    """

    fields: Mapping[str, Any]
    samples_ns: tuple[int, ...] = ()
    samples_ts: tuple[float, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRequest:
    """What `offloadtune bench FILE --llama-bench` was asked for, named and defaulted as in llama-bench.

    `n_threads` None: as many as there are physical cores that this process may use. llama-bench looks at neither
    affinity nor quota, and takes the fast cores alone where it can tell them from slow ones (Intel on Linux, macOS).
    `worker_command` starts another worker, for tests.
    """

    path: Path
    n_prompt: tuple[int, ...] = (512,)
    n_gen: tuple[int, ...] = (128,)
    n_pg: tuple[tuple[int, int], ...] = ()
    n_depth: tuple[int, ...] = (0,)
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    n_threads: int | None = None
    n_gpu_layers: int = -1
    n_cpu_moe: int = 0
    tensor_split: tuple[float, ...] | None = None
    flash_attn: str = "auto"
    repack: bool = True
    n_reps: int = 5
    endpoints: tuple[str, ...] = ()
    worker_command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRows:
    """What a file of rows held and where it was kept, apart from this machine's own.

    `n_broken` lines were no rows; `first_broken` says of the first which line it was and why. `machine` is the CPU and
    devices that the rows name.
    """

    path: Path
    stored_path: Path
    rows: tuple[BenchRow, ...]
    machine: str
    is_known: bool
    n_broken: int = 0
    first_broken: str = ""

"""Nouns of memory planning: what settings take before anything is loaded, and who says so.

Floor 0: standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from offloadtune.records import MemoryUse, Settings


class Tier(StrEnum):
    """Who speaks: A the engine itself, B its log lines and our arithmetic, C our arithmetic alone."""

    ENGINE = "A"
    LOG = "B"
    ARITHMETIC = "C"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedTensors:
    """Tensors of one ggml type that a device's backend cannot work with: the engine keeps them elsewhere.

    `example` is the first such tensor's name, `n_tensors` how many there are; buffer types by the engine's names.
    """

    example: str
    type_name: str
    n_tensors: int
    refused_by: str
    kept_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the engine says `settings` would take; nothing was loaded for it.

    `refusal` is why the engine would not open such a context, and "" where it would; with a refusal `memory` is empty.
    Where `is_foretold` is false `refusal` is why the engine's word cannot be trusted: it may open it all the same.
    `n_splits` counts the graph's pieces for a prompt and for one token; `flash_attn_type` is what "auto" became.
    `output_bytes` is the host buffer of logits, part of no breakdown, as a turn of one token a sequence needs
    it; `effective` as in `TrialResult`. `layer_devices` names the device of each block and then of the output layer,
    "host" for main memory. `memory` holds the host's weights as without mmap, whatever the load mode.

    At tier B `memory` has compute buffers and recurrent states only, to 0.01 MiB: weights and caches are to be added,
    layer by layer; `kv_cache_bytes` is what the engine says all caches take together, without recurrent states.
    """

    settings: Settings
    tier: Tier
    memory: tuple[MemoryUse, ...] = ()
    output_bytes: int | None = None
    n_splits: tuple[int, int] | None = None
    flash_attn_type: str | None = None
    effective: tuple[tuple[str, Any], ...] = ()
    refused: tuple[RefusedTensors, ...] = ()
    refusal: str = ""
    is_foretold: bool = True
    layer_devices: tuple[str, ...] = ()
    kv_cache_bytes: int | None = None

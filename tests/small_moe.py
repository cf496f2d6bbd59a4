"""A stand-in of a mixture of eight experts, two of them used, that is small enough for tests: no published shape is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from offloadtune import catalogue
from offloadtune.gguf import standin
from offloadtune.gguf.tables import STANDIN_KEY

SHAPE = dataclasses.replace(
    catalogue.find_shape("mixtral-8x7b"),
    n_layer=12,
    n_embd=512,
    n_head=8,
    n_head_kv=2,
    n_embd_head_k=64,
    n_embd_head_v=64,
    n_ff=1024,
    n_vocab=8192,
)


def write_small_moe(path: Path) -> None:
    """About 90 MiB in Q4_K_M, nine tenths of them experts."""
    described = catalogue.described(SHAPE, "Q4_K_M")
    parts = standin.described_parts(described.key_values, described.tensors, standin.made_up(SHAPE.n_vocab))
    of = {STANDIN_KEY: True, f"{STANDIN_KEY}.of": "small mixture", f"{STANDIN_KEY}.quant": "Q4_K_M"}
    standin.write(path, standin.marked(parts, {**of, f"{STANDIN_KEY}.n_layer": SHAPE.n_layer}), 1)

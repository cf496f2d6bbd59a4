"""What a simulated machine consists of. Rates are those of this one piece, not what a maker promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offloadtune.engine.synthetic.kernels import Curve, Floats
from offloadtune.engine.synthetic.surprises import Surprise
from offloadtune.records import Settings

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """What a file's blocks hold; each array has one entry a block.

    Operations are those a token asks for; of experts those it uses, while their bytes are of all. `ffn_bytes` and
    `ffn_flop` are the parts of dense ones that multiply in feed-forward networks. `cache_values` a token leaves in a
    block, `attention_flop` are a token's for each cached one, `n_heads` of its queries, `window` the cells that a block
    sees at most, 0 for all of them.
    """

    dense_bytes: Floats
    ffn_bytes: Floats
    expert_bytes: Floats
    dense_flop: Floats
    ffn_flop: Floats
    expert_flop: Floats
    cache_values: Floats
    attention_flop: Floats
    n_heads: Floats
    window: Ints
    output_bytes: float
    output_flop: float
    n_embd: int
    n_expert: int
    n_expert_used: int
    file_bytes: int

    @property
    def n_layer(self) -> int:
        return len(self.dense_bytes)

    @property
    def used_frac(self) -> float:
        """Of the experts, those that one token asks for."""
        return self.n_expert_used / self.n_expert if self.n_expert else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticCard:
    """A card. Curves are shares of its peaks: of reading by the bytes of a block, of products by the tokens at once.

    `flash_read` and `plain_read` are shares of `read_bytes_per_s` for reading a cache of so many cells, with and
    without flash attention; `flash_share` of `op_per_s` for attention in prompts. A block takes `launch_s` at least.
    While weights of the host are copied for the card, `overlap_frac` of the shorter of copying and computing is hidden.
    """

    name: str
    description: str
    total_bytes: int
    free_bytes: int
    read_bytes_per_s: float
    op_per_s: float
    link_bytes_per_s: float
    reads: Curve
    multiplies: Curve
    flash_read: Curve
    plain_read: Curve
    flash_share: float
    plain_share: float
    launch_s: float
    ubatch_s: float
    overlap_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticHost:
    """Processor and main memory. Curves over threads are by their number for each core: 1.0 is one thread a core.

    `read_bytes_per_s` and `op_per_s` are what all together reach at best. `flash_share` and `plain_share` are of
    reading, for the cache; `attends_share` of `op_per_s` for attention in prompts. Every block costs `barrier_s` for
    each thread.
    """

    n_cores: int
    n_logical_cores: int
    ram_bytes: int
    read_bytes_per_s: float
    op_per_s: float
    reads_by_threads: Curve
    multiplies_by_threads: Curve
    multiplies: Curve
    flash_share: float
    plain_share: float
    attends_share: float
    barrier_s: float
    handover_s: float
    sample_s: float
    disk_bytes_per_s: float
    cached_bytes_per_s: float
    load_s: float
    open_s: float

    def threads_frac(self, n_threads: int) -> float:
        """Threads for each core."""
        return n_threads / self.n_cores


@dataclass(frozen=True, kw_only=True)
class MemoryTaken:
    """Bytes that settings take: of the card with what its driver takes, and of main memory; one entry a setting."""

    device_bytes: Ints
    host_bytes: Ints


@dataclass(frozen=True, kw_only=True)
class SyntheticMachine:
    """One simulated machine with one file on it. `card` is None where there is only a processor."""

    name: str
    blocks: Blocks
    card: SyntheticCard | None
    host: SyntheticHost
    memory: Callable[[Sequence[Settings]], MemoryTaken]
    surprises: tuple[Surprise, ...] = ()

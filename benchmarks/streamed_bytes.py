"""What llama.cpp copies to a device for every ubatch of a prompt: by the scheduler's own log, and by a rule. Pure.

With op offload a device computes for blocks that lie in main memory, and their weights are copied to it each time. The
rule, read in ggml-backend.cpp (ggml_backend_sched_backend_id_from_cur, which asks the device's offload_op) and found in
the log:

    an operation moves to the device when it has at least 32 rows, and takes its weight along, matrix or norm
    operations have a row a token, until the last block has attended; from there on a row an output that is asked for
    attention between moved operations moves too, and takes the block's cache along, all cells of this ubatch's view

Keys lie cell after cell. So do values with flash attention; without it they lie transposed, and the view that is copied
reaches over the whole context but for the last row: ((n - 1) n_ctx + n_cells) values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vulkan_engine import CLOCK_MARK

from offloadtune.records import GgufFacts, Settings, TensorFacts

LEAST_ROWS = 32
"""Of an operation that a device takes over; GGML_OP_OFFLOAD_MIN_BATCH is not set here."""

_CELLS_STEP = 256
_VALUE_BYTES = {"f32": 4, "f16": 2}
_SPLIT = re.compile(r"## SPLIT #\d+: (?P<backend>\S+) # (?P<n_inputs>\d+) inputs(?P<inputs>.*)")
_INPUT = re.compile(r"\[([^\]]*?) \( *(\d+[KM])\)\]")
_CLOCK = re.compile(re.escape(CLOCK_MARK) + r"(\d+) (\d+) (\d+)$")
_CACHE = re.compile(r"cache_[kv]_l\d+ ")


@dataclass(frozen=True, slots=True)
class Copy:
    """An input of a split, with its size as the log prints it: whole KiB or MiB, rounded down."""

    name: str
    printed: str
    is_to_host: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph's copies; by when it was split what had passed and been computed, by this and by all programs."""

    at_ns: int
    at_cpu_ns: int
    at_busy_ns: int
    copies: tuple[Copy, ...]

    @property
    def to_device(self) -> tuple[Copy, ...]:
        return tuple(copy for copy in self.copies if not copy.is_to_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ubatch:
    """Tokens read together after `depth` others; `n_outputs` of them have logits."""

    n_tokens: int
    depth: int
    n_outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What one ubatch has copied to the device of weights and of cache."""

    n_copies: int
    weights_bytes: int
    cache_bytes: int


def ubatches_of(n_prompt: int, n_ubatch: int) -> tuple[Ubatch, ...]:
    """A prompt whose last token alone has logits."""
    starts = range(0, n_prompt, n_ubatch)
    return tuple(Ubatch(n_tokens=min(n_ubatch, n_prompt - i), depth=i, n_outputs=int(i == starts[-1])) for i in starts)


def graphs_of(log: str) -> tuple[Graph, ...]:
    """The graphs that were split, each after a line of clocks. Raises ValueError for what is no such log."""
    clocks: list[tuple[int, ...]] = []
    copies: list[list[Copy]] = []
    for line in log.splitlines():
        if clock := _CLOCK.match(line):
            clocks.append(tuple(map(int, clock.groups())))
            copies.append([])
        elif split := _SPLIT.match(line):
            backend, inputs = split["backend"], _INPUT.findall(split["inputs"])
            if not copies or len(inputs) != int(split["n_inputs"]):
                raise ValueError(f"a line of the scheduler's log is not understood: {line[:200]!r}")
            copies[-1] += [Copy(name, size, backend == "CPU") for name, size in inputs]
    return tuple(
        Graph(at_ns=at_ns, at_cpu_ns=at_cpu_ns, at_busy_ns=at_busy_ns, copies=tuple(of_graph))
        for (at_ns, at_cpu_ns, at_busy_ns), of_graph in zip(clocks, copies, strict=True)
    )


def printed_size(n_bytes: int) -> str:
    """As fmt_size of ggml-backend.cpp."""
    return f"{n_bytes >> 20}M" if n_bytes >= 1 << 20 else f"{n_bytes >> 10}K"


def streamed_by_log(graph: Graph, facts: GgufFacts) -> Streamed:
    """Weights by their names, as large as the file has them; cache by what is printed, rounded down as it is."""
    of_file = {tensor.name: tensor.n_bytes for tensor in facts.tensors}
    weights = [of_file[copy.name] for copy in graph.to_device if copy.name in of_file]
    cache = [_least_bytes(copy.printed) for copy in graph.to_device if _CACHE.match(copy.name)]
    return Streamed(n_copies=len(weights) + len(cache), weights_bytes=sum(weights), cache_bytes=sum(cache))


def streamed_by_rule(copies: Sequence[tuple[str, int]]) -> Streamed:
    """The sums over what `copies_by_rule` foretells."""
    cache = [n_bytes for name, n_bytes in copies if _CACHE.match(name)]
    total = sum(n_bytes for _, n_bytes in copies)
    return Streamed(n_copies=len(copies), weights_bytes=total - sum(cache), cache_bytes=sum(cache))


def copies_by_rule(facts: GgufFacts, settings: Settings, ubatch: Ubatch) -> list[tuple[str, int]]:
    """Name and bytes of every weight and every view of the cache that is copied for `ubatch`."""
    if not settings.op_offload:
        return []
    n_host = n_host_blocks(facts, settings)
    copies = [
        (tensor.name, tensor.n_bytes)
        for tensor in facts.tensors
        if is_on_host(tensor, n_host) and n_rows(tensor, facts, ubatch) >= LEAST_ROWS
    ]
    if ubatch.n_tokens >= LEAST_ROWS:
        for i in range(n_host):
            copies += zip(_views(i), cache_view_bytes(facts, settings, ubatch, i), strict=True)
    return copies


def differences(graph: Graph, copies: Iterable[tuple[str, int]], facts: GgufFacts) -> list[str]:
    """Weights and cache that the log or the rule alone has, or that they print differently; [] where they agree."""
    of_file = {tensor.name for tensor in facts.tensors}
    told = Counter(
        f"{copy.name} {copy.printed}" for copy in graph.to_device if copy.name in of_file or _CACHE.match(copy.name)
    )
    foretold = Counter(f"{name} {printed_size(n_bytes)}" for name, n_bytes in copies)
    only_log = [f"only in the log: {what}" for what in (told - foretold).elements()]
    return only_log + [f"only by the rule: {what}" for what in (foretold - told).elements()]


def n_host_blocks(facts: GgufFacts, settings: Settings) -> int:
    """Blocks in main memory; n_gpu_layers counts the output layer, which goes first."""
    return min(facts.n_layer, max(0, facts.n_layer + 1 - settings.n_gpu_layers))


def is_on_host(tensor: TensorFacts, n_host: int) -> bool:
    """Whether a block's tensor lies in main memory; those outside blocks are asked for no more than a row here."""
    block = block_of(tensor)
    return block is not None and block < n_host


def block_of(tensor: TensorFacts) -> int | None:
    """The block of a tensor, None for what belongs to none."""
    found = re.match(r"blk\.(\d+)\.", tensor.name)
    return int(found[1]) if found else None


def n_rows(tensor: TensorFacts, facts: GgufFacts, ubatch: Ubatch) -> int:
    """Rows of the operation that a block's tensor is the weight of."""
    is_after_attention = ".attn_" not in tensor.name
    return ubatch.n_outputs if block_of(tensor) == facts.n_layer - 1 and is_after_attention else ubatch.n_tokens


def n_cells(settings: Settings, ubatch: Ubatch) -> int:
    """Cells that the ubatch attends to, in llama.cpp's steps."""
    used = ubatch.depth + ubatch.n_tokens
    return min(settings.n_ctx, math.ceil(used / _CELLS_STEP) * _CELLS_STEP)


def cache_view_bytes(facts: GgufFacts, settings: Settings, ubatch: Ubatch, i_block: int) -> tuple[int, int]:
    """Keys and values of a block as far as their views reach."""
    cells, n_head = n_cells(settings, ubatch), facts.n_head_kv[i_block]
    n_k, n_v = n_head * facts.n_embd_head_k, n_head * facts.n_embd_head_v
    is_flash = settings.flash_attn_type == "enabled"
    n_values = n_v * cells if is_flash else (n_v - 1) * settings.n_ctx + cells
    return n_k * cells * _VALUE_BYTES[settings.type_k], n_values * _VALUE_BYTES[settings.type_v]


def _views(i_block: int) -> tuple[str, str]:
    return f"cache_k_l{i_block} (view) (permuted)", f"cache_v_l{i_block} (view) (permuted)"


def _least_bytes(printed: str) -> int:
    return int(printed[:-1]) << (20 if printed.endswith("M") else 10)

"""What a model is, from its headers: `read_gguf`, and `facts_of_parts` for a file that need not exist."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offloadtune.errors import GgufError
from offloadtune.gguf.attention import head_sizes, per_block, sliding_window
from offloadtune.gguf.header import Header, header_of_parts, is_count, shown
from offloadtune.gguf.identity import identify_headers
from offloadtune.gguf.opening import damaged
from offloadtune.gguf.projector import is_projector
from offloadtune.gguf.shards import read_shards
from offloadtune.gguf.tables import FILE_TYPES, STANDIN_KEY
from offloadtune.records import GgufFacts, StandsFor, TensorFacts
from offloadtune.units import format_count

_BLOCK_NAME = re.compile(r"blk\.([0-9]+)\.")
_EXPERT_MARK = "_exps"
_EMBEDDING_TENSORS = ("token_embd.", "per_layer_token_embd.")
_OUTPUT_TENSORS = ("output.", "output_norm.")
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_FTYPE_GUESSED = 1024

_COMPANIONS = {
    "adapter": "a LoRA adapter",
    "imatrix": "an importance matrix",
}
"""Values of `general.type` whose files accompany a model."""


def read_gguf(path: Path, *, identify: bool = True) -> GgufFacts:
    """What the header of the model at `path` (any of its shards) says; no weight is interpreted.

    Without `identify` no sample of the data is read, so `gguf_id` is "" and the answer comes some 60 ms sooner.

    `path` of the facts is the first shard, the one llama.cpp wants. A tensor's `shape` is in ggml's order, the
    contiguous dimension first; `key_values` are the first shard's. Raises GgufError: one sentence and a next step.
    """
    headers = read_shards(path)
    return _facts(headers, identify_headers(headers) if identify else "")


def facts_of_parts(
    path: Path,
    gguf_id: str,
    key_values: Mapping[str, Any],
    array_lengths: Mapping[str, int],
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
) -> GgufFacts:
    """Facts of a file that need not exist, from what its header would hold: `read_gguf` without the reading.

    `tensors` are (name, ggml type, shape) in the order of the table. `file_bytes` counts the aligned data section and
    a header without the strings and numbers of long arrays, some MB with a vocabulary. Raises GgufError as
    `read_gguf` does for a header that says the same.
    """
    header = header_of_parts(path, key_values, array_lengths, tensors)
    return _facts((header,), gguf_id)


def _facts(headers: Sequence[Header], gguf_id: str) -> GgufFacts:
    header = headers[0]
    tensors = tuple(tensor for shard in headers for tensor in shard.tensors)
    arch = _architecture(header)
    n_layer, n_layer_nextn = _n_layers(header, arch, tensors)
    n_swa, is_swa = sliding_window(header, arch, n_layer, n_layer_nextn)
    n_embd = header.count(f"{arch}.embedding_length")
    n_head = per_block(header, f"{arch}.attention.head_count", n_layer, (0,) * n_layer)
    n_embd_head_k, n_embd_head_v = head_sizes(header, arch, n_embd, n_head)
    sums = _sum_bytes(header.path, tensors, n_layer)
    return GgufFacts(
        path=header.path,
        shard_paths=tuple(shard.path for shard in headers),
        gguf_id=gguf_id,
        file_bytes=sum(shard.file_bytes for shard in headers),
        version=header.version,
        arch=arch,
        name=header.text("general.name"),
        quantisation=_quantisation(header, sums.of_type),
        n_params=sum(math.prod(tensor.shape) for tensor in tensors),
        n_layer=n_layer,
        n_layer_nextn=n_layer_nextn,
        n_embd=n_embd,
        n_vocab=_n_vocab(header, arch),
        n_ctx_train=header.count(f"{arch}.context_length"),
        n_head=n_head,
        n_head_kv=per_block(header, f"{arch}.attention.head_count_kv", n_layer, n_head),
        n_embd_head_k=n_embd_head_k,
        n_embd_head_v=n_embd_head_v,
        n_swa=n_swa,
        is_swa=is_swa,
        n_expert=header.count(f"{arch}.expert_count", default=0),
        n_expert_used=max(per_block(header, f"{arch}.expert_used_count", n_layer, (0,))),
        is_tied=all(tensor.name != "output.weight" for tensor in tensors),
        layer_bytes=sums.of_layer,
        expert_bytes=sums.of_experts,
        embedding_bytes=sums.embedding,
        output_bytes=sums.output,
        other_bytes=sums.other,
        type_bytes=sums.of_type,
        tensors=tensors,
        key_values=tuple(header.key_values.items()),
        stands_for=_stands_for(header, n_layer),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Bytes of tensor data by place and by type, the type with the most bytes first."""

    of_layer: tuple[int, ...]
    of_experts: tuple[int, ...]
    embedding: int
    output: int
    other: int
    of_type: tuple[tuple[str, int], ...]


def _architecture(header: Header) -> str:
    arch = header.text("general.architecture")
    kind = header.text("general.type")
    companion = "the projector" if is_projector(arch, kind) else _COMPANIONS.get(kind or "")
    if companion:
        hint = "Name the model's own .gguf file, which it accompanies."
        raise GgufError(f"{header.path} is {companion}, not the model.", hint=hint)
    if not arch:
        raise damaged(header.path, "it does not name its architecture (general.architecture)")
    return arch


def _n_layers(header: Header, arch: str, tensors: Sequence[TensorFacts]) -> tuple[int, int]:
    """(all blocks, those at the end that only predict further tokens)."""
    n_layer = header.count(f"{arch}.block_count", default=0)
    if n_layer == 0 or not any(_BLOCK_NAME.match(tensor.name) for tensor in tensors):
        sentence = f"{header.path} holds no block of a model: it is a vocabulary or another part."
        raise GgufError(sentence, hint="Name the .gguf file with the weights.")
    if n_layer > _MAX_LAYERS:
        raise damaged(header.path, f"it claims {n_layer} blocks, and llama.cpp takes at most {_MAX_LAYERS}")
    n_layer_nextn = header.count(f"{arch}.nextn_predict_layers", default=0)
    if n_layer_nextn > n_layer:
        raise damaged(header.path, f"it claims {n_layer_nextn} prediction blocks among {n_layer} blocks")
    return n_layer, n_layer_nextn


def _stands_for(header: Header, n_layer: int) -> StandsFor | None:
    if header.key_values.get(STANDIN_KEY) is not True:
        return None
    n_layer_true = header.key_values.get(f"{STANDIN_KEY}.n_layer")
    return StandsFor(
        label=header.text(f"{STANDIN_KEY}.of") or "unknown",
        quantisation=header.text(f"{STANDIN_KEY}.quant") or "unknown",
        n_layer=n_layer_true if is_count(n_layer_true) else n_layer,
    )


def _n_vocab(header: Header, arch: str) -> int:
    n_tokens = header.array_lengths.get("tokenizer.ggml.tokens")
    return header.count(f"{arch}.vocab_size") if n_tokens is None else n_tokens


def _quantisation(header: Header, type_bytes: tuple[tuple[str, int], ...]) -> str:
    file_type = header.key_values.get("general.file_type")
    name = FILE_TYPES.get(file_type & ~_FTYPE_GUESSED) if isinstance(file_type, int) else None
    return name or type_bytes[0][0]


def _sum_bytes(path: Path, tensors: Sequence[TensorFacts], n_layer: int) -> _Sums:
    of_layer, of_experts = [0] * n_layer, [0] * n_layer
    of_place: Counter[str] = Counter()
    of_type: Counter[str] = Counter()
    for tensor in tensors:
        of_type[tensor.type_name] += tensor.n_bytes
        block = _BLOCK_NAME.match(tensor.name)
        if block is None:
            of_place[_place(tensor.name)] += tensor.n_bytes
            continue
        i_layer = int(block[1])
        if i_layer >= n_layer:
            raise damaged(path, f"its tensor {shown(tensor.name)} lies beyond its {format_count(n_layer, 'block')}")
        of_layer[i_layer] += tensor.n_bytes
        of_experts[i_layer] += tensor.n_bytes if _EXPERT_MARK in tensor.name else 0
    return _Sums(
        of_layer=tuple(of_layer),
        of_experts=tuple(of_experts),
        embedding=of_place["embedding"],
        output=of_place["output"],
        other=of_place["other"],
        of_type=tuple(of_type.most_common()),
    )


def _place(name: str) -> str:
    if name.startswith(_EMBEDDING_TENSORS):
        return "embedding"
    return "output" if name.startswith(_OUTPUT_TENSORS) else "other"

"""Fewer blocks of the same model: evenly spaced ones, whose types and kinds are those of the places they take.

Models alternate kinds of blocks: windows with attention to everything, recurrent blocks with attention, dense ones
before experts. llama.cpp tells the kind by the block's number, so a block may only move by whole periods.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from offloadtune.errors import UsageError
from offloadtune.gguf.standin.encoding import encoded
from offloadtune.gguf.standin.sources import Parts, picked
from offloadtune.records import GgufFacts
from offloadtune.units import format_count

_BLOCK_NAME = re.compile(r"blk\.([0-9]+)\.(.*)")
_NOT_OF_BLOCKS = ("rope.dimension_sections",)
_BOUND_TO_ALL = ("attention.shared_kv_layers", "embedding_length_per_layer_input")
"""Keys of models whose blocks depend on each other: some use the cache of others, some have a part of one tensor."""

_SAID_BY_DEPTH = {"deepseek2": {"attention.q_lora_rank": 0}}
"""Keys that files may lack as long as llama.cpp knows the model by its number of blocks, and what they would say."""


def shorter(parts: Parts, facts: GgufFacts, kept: Sequence[int]) -> Parts:
    """`parts`, which `facts` describe, with the blocks `kept` alone."""
    if len(kept) == facts.n_layer:
        return parts
    places = {i_layer: place for place, i_layer in enumerate(kept)}
    said = {f"{facts.arch}.{key}": encoded(value) for key, value in _SAID_BY_DEPTH.get(facts.arch, {}).items()}
    key_values = said | parts.key_values | {f"{facts.arch}.block_count": encoded(len(kept))}
    for key, value in facts.key_values:
        name = key.removeprefix(f"{facts.arch}.")
        if name != key and isinstance(value, tuple) and len(value) == facts.n_layer and name not in _NOT_OF_BLOCKS:
            key_values[key] = picked(parts.key_values[key], kept)
    tensors = []
    for name, type_name, shape in parts.tensors:
        match = _BLOCK_NAME.match(name)
        if match is None:
            tensors.append((name, type_name, shape))
        elif int(match[1]) in places:
            tensors.append((f"blk.{places[int(match[1])]}.{match[2]}", type_name, shape))
    return dataclasses.replace(parts, key_values=key_values, tensors=tuple(tensors))


def kept_blocks(facts: GgufFacts, n_layer: int) -> tuple[int, ...]:
    """The blocks that stay, in their order. Raises UsageError where `n_layer` is not a number that keeps the kinds."""
    if not 0 < n_layer <= facts.n_layer:
        sentence = f"A stand-in of this model has 1 to {facts.n_layer} layers, not {n_layer}."
        raise UsageError(sentence, hint="Leave out --layers for all of them.")
    if n_layer == facts.n_layer:
        return tuple(range(n_layer))
    _refuse_bound(facts)
    n_first, n_last = _ends(facts)
    period = _period(facts, n_first, n_last)
    n_between = n_layer - n_first - n_last
    if n_between < period or n_between % period:
        raise _out_of_step(facts, n_first + n_last, period, n_layer)
    kept = [*range(n_first)]
    kept += _spread(range(n_first, n_layer - n_last), range(n_first, facts.n_layer - n_last), period)
    return (*kept, *range(facts.n_layer - n_last, facts.n_layer))


def layer_counts(facts: GgufFacts) -> tuple[int, ...]:
    """The numbers of layers, rising and fewer than the model's, that `kept_blocks` takes; none where none may go."""
    if _bound_to_all(facts):
        return ()
    n_first, n_last = _ends(facts)
    return _counts(facts, n_first + n_last, _period(facts, n_first, n_last))


def _counts(facts: GgufFacts, n_ends: int, period: int) -> tuple[int, ...]:
    return tuple(range(n_ends + period, facts.n_layer, period))


def _refuse_bound(facts: GgufFacts) -> None:
    bound = _bound_to_all(facts)
    if bound:
        sentence = f"Layers of this model depend on each other ({facts.arch}.{bound}), so none can be left out."
        raise UsageError(sentence, hint="Leave out --layers.")


def _bound_to_all(facts: GgufFacts) -> str | None:
    keys = dict(facts.key_values)
    return next((key for key in _BOUND_TO_ALL if keys.get(f"{facts.arch}.{key}")), None)


def _ends(facts: GgufFacts) -> tuple[int, int]:
    """How many blocks at the beginning and at the end are of kinds of their own."""
    n_dense = dict(facts.key_values).get(f"{facts.arch}.leading_dense_block_count", 0)
    return (n_dense if isinstance(n_dense, int) and n_dense < facts.n_layer else 0), facts.n_layer_nextn


def _period(facts: GgufFacts, n_first: int, n_last: int) -> int:
    """After how many blocks the kinds repeat; 1 where no block lies between the ends."""
    kinds = list(_kinds(facts))[n_first : facts.n_layer - n_last]
    periods = range(1, len(kinds) + 1)
    return next((n for n in periods if all(kinds[i] == kinds[i + n] for i in range(len(kinds) - n))), 1)


def _kinds(facts: GgufFacts) -> Iterator[tuple[object, ...]]:
    """What tells blocks apart: windows, heads, names and shapes of tensors, not types."""
    tensors: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(facts.n_layer)]
    for tensor in facts.tensors:
        match = _BLOCK_NAME.match(tensor.name)
        if match:
            tensors[int(match[1])].append((match[2], tensor.shape))
    for i in range(facts.n_layer):
        yield facts.is_swa[i], facts.n_head_kv[i], tuple(sorted(tensors[i]))


def _spread(places: range, blocks: range, period: int) -> Iterator[int]:
    """For each of `places` the block of the same kind nearest to its share of the way that leaves room for the next."""
    step = (len(blocks) - 1) / max(1, len(places) - 1)
    n_periods = (len(blocks) - len(places)) // period
    for place in places:
        ahead = (step - 1) * (place - places.start)
        yield place + period * min(round(ahead / period), n_periods)


def _out_of_step(facts: GgufFacts, n_ends: int, period: int, n_layer: int) -> UsageError:
    counts = _counts(facts, n_ends, period)
    if not counts:
        sentence = f"The layers of this model follow no pattern, so none of the {facts.n_layer} can be left out."
        return UsageError(sentence, hint="Leave out --layers.")
    ends = f", and {n_ends} at its ends are of kinds of their own" if n_ends else ""
    sentence = f"{format_count(n_layer, 'layer')} would be another model: its kinds repeat every {period}{ends}."
    near = sorted(sorted(counts, key=lambda count: abs(count - n_layer))[:3])
    return UsageError(sentence, hint=f"Use --layers {' or '.join(map(str, near))}.")

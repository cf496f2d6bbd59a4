"""From the engine's own word on two contexts of a placement to the terms of its compute buffer.

One context keeps few outputs, so that a block's phase is the dearest; the other keeps those asked for. What is left of
each after masks, scores and indices is linear in tokens and outputs, so other contexts of the placement follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from offloadtune.footprint.anatomy import Anatomy, anatomy_of
from offloadtune.footprint.compute import Terms, inputs_and_scores
from offloadtune.footprint.grid import Grid
from offloadtune.footprint.weights import slices_of
from offloadtune.records import GgufFacts, Settings


def probes_of(settings: Settings) -> tuple[Settings, Settings]:
    """The two contexts to ask the engine about: with few outputs, and as asked."""
    return settings.replace(n_outputs_max=settings.n_seq_max), settings


def identify(
    facts: GgufFacts, probes: Sequence[Settings], compute_bytes: Sequence[Sequence[int]], shares: Sequence[float]
) -> tuple[Terms, ...]:
    """Terms of each device from `compute_bytes[i_probe][i_device]` of `probes_of`."""
    anatomy = anatomy_of(facts)
    return tuple(
        _terms(anatomy, probes, [of_probe[i] for of_probe in compute_bytes], shares, i) for i in range(len(shares))
    )


def _terms(
    anatomy: Anatomy, probes: Sequence[Settings], n_bytes: Sequence[int], shares: Sequence[float], i_device: int
) -> Terms:
    few, asked = probes
    grid = Grid.of((few,), anatomy.n_layer)
    slices = slices_of(grid, anatomy.n_layer, shares)
    inputs, scores = inputs_and_scores(anatomy, grid, slices.begin[i_device], slices.end[i_device])
    n_ubatch = int(grid.n_ubatch[0])
    left = n_bytes[0] - int(inputs[0])
    if left <= 0 or n_ubatch == 0:
        return Terms()
    n_outputs = int(Grid.of((asked,), anatomy.n_layer).n_outputs[0])
    output = n_bytes[1] / n_outputs if n_bytes[1] > n_bytes[0] else None
    if few.flash_attn_type == "disabled" and int(scores[0]):
        return Terms(attention_bytes_per_token=(left - int(scores[0])) / n_ubatch, output_bytes_per_output=output)
    return Terms(block_bytes_per_token=left / n_ubatch, output_bytes_per_output=output)

"""From the engine's own word on two contexts of a placement to what the rule for compute buffers lacks there.

One context keeps few outputs, so that a block's phase is the dearest; the other keeps those asked for. What the engine
reserves beyond the rule is laid on tokens and outputs, so other contexts of the placement follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from offloadtune.footprint.anatomy import Backend
from offloadtune.footprint.compute import Terms
from offloadtune.footprint.grid import Grid
from offloadtune.footprint.reckon import reckon
from offloadtune.records import GgufFacts, Settings


def probes_of(settings: Settings) -> tuple[Settings, Settings]:
    """The two contexts to ask the engine about: with few outputs, and as asked."""
    return settings.replace(n_outputs_max=settings.n_seq_max), settings


def identify(
    facts: GgufFacts,
    probes: Sequence[Settings],
    compute_bytes: Sequence[Sequence[int]],
    backends: Sequence[Backend],
    shares: Sequence[float],
) -> tuple[Terms, ...]:
    """Terms of each device from `compute_bytes[i_probe][i_device]` of `probes_of`."""
    grid = Grid.of(probes, facts.n_layer)
    n_tokens, n_outputs = grid.n_ubatch.tolist(), grid.n_outputs.tolist()
    by_rule = reckon(facts, grid, backends, shares).compute_bytes
    of_tokens = [
        Terms(more_per_token=(few - rule) / n_tokens[0] if rule else 0.0)
        for few, rule in zip(compute_bytes[0], by_rule[:, 0].tolist(), strict=True)
    ]
    with_tokens = reckon(facts, grid, backends, shares, of_tokens).compute_bytes
    return tuple(
        Terms(more_per_token=terms.more_per_token, more_per_output=(asked - rule) / n_outputs[1] if rule else 0.0)
        for terms, asked, rule in zip(of_tokens, compute_bytes[1], with_tokens[:, 1].tolist(), strict=True)
    )

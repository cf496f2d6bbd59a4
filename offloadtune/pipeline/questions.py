"""Questions: what is planned with a file's facts at hand, and the arithmetic around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint import Footprints, Terms, fits, grid_of, is_mapped, reckon
from offloadtune.pipeline.companions import NONE, Companions
from offloadtune.pipeline.rooms import Place
from offloadtune.records import GgufFacts, Settings, Target

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned, with the file's facts at hand and what is to be said of them."""

    facts: GgufFacts
    settings: Settings
    target: Target
    place: Place
    companions: Companions = NONE
    warnings: tuple[str, ...] = ()

    def with_layers(self, n_gpu_layers: int) -> Question:
        return dataclasses.replace(self, settings=self.settings.replace(n_gpu_layers=n_gpu_layers))

    def footprints(self, terms: Sequence[Terms] | None, n_ctx: Ints, **arrays: Ints) -> Footprints:
        """The model with what is loaded beside it, one entry for each of the arrays' (fields of `Settings`)."""
        facts, room = self.facts, self.place.room
        grid = grid_of(facts, self.settings, n_ctx=n_ctx, **arrays)
        found = reckon(facts, grid, room.backends, room.shares, terms)
        return found + self.companions.footprints(self.settings, room, n_ctx)

    def most_layers(self, terms: Sequence[Terms] | None = None) -> int:
        """The most n_gpu_layers that fit, 0 for none; with `terms` without the rule's band, to be asked about."""
        layers = np.arange(self.facts.n_layer + 1, -1, -1)
        found = self.footprints(terms, np.full_like(layers, self.settings.n_ctx), n_gpu_layers=layers)
        is_exact = terms is not None and not self.companions
        ok = fits(found, self.place.room, is_mapped=is_mapped(self.settings), is_exact=is_exact)
        return int(layers[ok.argmax()]) if ok.any() else 0

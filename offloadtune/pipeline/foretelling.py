"""Foretelling: what the engine itself says that settings take, and what that teaches for other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offloadtune.errors import UsageError
from offloadtune.footprint import Terms, identify, probes_of
from offloadtune.pipeline.rooms import Place
from offloadtune.plans import Forecast, Tier
from offloadtune.records import GgufFacts, MemoryUse, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Bytes of (weights, cache, compute) on each device, and of (weights, cache, compute, output) in main memory."""

    devices: tuple[tuple[int, int, int], ...]
    host: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """The engine's word. `terms` make our arithmetic of compute buffers exact for this placement."""

    forecast: Forecast
    names: tuple[str, ...]
    terms: tuple[Terms, ...] | None

    @property
    def tier(self) -> Tier:
        return self.forecast.tier if self.forecast.is_foretold else Tier.ARITHMETIC

    @property
    def n_splits(self) -> tuple[int, int] | None:
        return self.forecast.n_splits

    @property
    def warnings(self) -> tuple[str, ...]:
        return () if self.forecast.is_foretold else (f"The engine {self.forecast.refusal.rstrip('.')}.",)

    def parts(self, by_arithmetic: Parts) -> Parts:
        """The engine's bytes; where only its log could be read, its compute buffers with the rest by arithmetic."""
        if self.tier is Tier.ARITHMETIC:
            return by_arithmetic
        rows = [_sum(self.forecast.memory, name) for name in (*self.names, "host")]
        whole = self.tier is Tier.ENGINE
        known = [*by_arithmetic.devices, by_arithmetic.host[:3]]
        parts = [
            (row.weights_bytes, row.kv_cache_bytes, row.compute_bytes) if whole else (*other[:2], row.compute_bytes)
            for row, other in zip(rows, known, strict=True)
        ]
        output = self.forecast.output_bytes
        host = (*parts[-1], by_arithmetic.host[3] if output is None else output)
        return Parts(devices=tuple(parts[:-1]), host=host)


def foretold(facts: GgufFacts, settings: Settings, place: Place, forecasts: Sequence[Forecast]) -> Foretold:
    """The engine's word of `settings`, from its forecasts of `probes_of(settings)`.

    Raises UsageError where the engine opens no such context.
    """
    few, asked = forecasts
    if asked.refusal and asked.is_foretold:
        raise UsageError(f"The engine refuses: {asked.refusal.rstrip('.')}.", hint="change the settings it names")
    names, terms = place.room.names, None
    if names and not few.refusal and not asked.refusal:
        computed = [[_sum(one.memory, name).compute_bytes for name in names] for one in (few, asked)]
        terms = identify(facts, probes_of(settings), computed, place.room.backends, place.room.shares)
    return Foretold(forecast=asked, names=names, terms=terms)


def _sum(memory: Sequence[MemoryUse], name: str) -> MemoryUse:
    rows = [row for row in memory if row.device == name]
    return MemoryUse(
        device=name,
        is_host=name == "host",
        weights_bytes=sum(row.weights_bytes for row in rows),
        kv_cache_bytes=sum(row.kv_cache_bytes for row in rows),
        compute_bytes=sum(row.compute_bytes for row in rows),
    )

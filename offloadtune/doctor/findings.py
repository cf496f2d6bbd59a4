"""All rules in one table, and their findings in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from offloadtune.doctor import cards, engine, memory, surroundings
from offloadtune.hardware import Examination, Finding, Severity

Rule = Callable[[Examination], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    engine.missing,
    engine.not_asked,
    engine.broken_path,
    cards.driver_mismatch,
    cards.card_lost,
    cards.no_driver,
    cards.libraries_missing,
    engine.without_card,
    engine.old,
    engine.unused_instruction_sets,
    memory.channels_unused,
    memory.below_rated_speed,
    memory.slow_memory,
    cards.narrow_link,
    cards.slow_link,
    cards.power_limit,
    surroundings.now,
    memory.swap,
    memory.address_space,
    surroundings.slow_kind_of_disk,
    surroundings.slow_disk,
    memory.memory_limit,
    cards.memory_taken,
    cards.integrated,
    cards.small_bar1,
    memory.numa,
    surroundings.sysmem_fallback,
    surroundings.config_files,
    surroundings.variables,
)
"""In the order in which findings of equal weight are told: what is worth most first."""

_WEIGHT = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def examine(examined: Examination) -> tuple[Finding, ...]:
    """What holds the machine back, the worst first. What is not known is nobody's fault: no finding comes of it."""
    found = [finding for rule in RULES for finding in rule(examined)]
    return tuple(sorted(found, key=lambda finding: _WEIGHT[finding.severity]))

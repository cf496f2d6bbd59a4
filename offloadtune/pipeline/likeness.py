"""Likeness: whether a stored sweep was made on what is here now. Figures of anything else are not its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from offloadtune import store
from offloadtune.bench.changes import computer
from offloadtune.records import Host


class Unlike(IntEnum):
    """What another sweep was made with, the nearest to ours first."""

    DRIVER = 1
    ENGINE = 2
    RULER = 3
    MACHINE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What a sweep would be made on now; `build_id` is None where no engine is installed."""

    host: Host
    build_id: str | None

    def is_in(self, host: Host) -> bool:
        """Whether `host` is this computer, whatever cards it had."""
        return computer(host) == computer(self.host)

    def is_on(self, host: Host) -> bool:
        """Whether `host` is this computer with its cards."""
        return self.is_in(host) and not _differ(host, self.host, lambda gpu: gpu.name)

    def unlike(self, header: store.SweepHeader) -> Unlike | None:
        """The first thing that keeps the sweep from speaking for what is here, None where nothing does."""
        host = header.machine.host
        if not self.is_on(host):
            return Unlike.MACHINE
        if header.ruler != store.RULER:
            return Unlike.RULER
        if self.build_id not in {None, header.engine.build_id}:
            return Unlike.ENGINE
        return Unlike.DRIVER if _differ(host, self.host, lambda gpu: gpu.driver) else None


def _differ(one: Host, other: Host, fact: Callable[[Any], Any]) -> bool:
    """Whether the cards of two hosts differ in `fact`, as far as both are known."""
    if one.nvml_gpus is None or other.nvml_gpus is None:
        return False
    return [fact(gpu) for gpu in one.nvml_gpus] != [fact(gpu) for gpu in other.nvml_gpus]

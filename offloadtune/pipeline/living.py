"""Living: what keeps this engine build alive, looked for before it first runs on the CPU, and on the devices."""

from __future__ import annotations

from typing import Any

from offloadtune.engine import Runner, self_test
from offloadtune.pipeline.rebuilding import rebuild_words
from offloadtune.pipeline.spaces import SelfTestMemory
from offloadtune.records import EngineBuild, GgufFacts, Machine, Settings
from offloadtune.sweeps import Listener, Said


class Living:
    """The self-tests of a sweep; what earlier ones found is not asked again."""

    def __init__(
        self, facts: GgufFacts, machine: Machine, engine: EngineBuild, runner: Runner, listen: Listener
    ) -> None:
        self._machine, self._runner, self._listen = machine, runner, listen
        self._memory = SelfTestMemory(facts, machine, engine)
        self._tested = {offloads for offloads in (False, True) if self._memory.get(offloads=offloads) is not None}

    def knobs_found(self, settings: Settings, *, timeout_s: float) -> dict[str, Any]:
        """Knobs that `settings` turn out to need to live, {} where they need none or were tested before.

        {} too where nothing helps: each trial will show for itself whether it lives.
        """
        if settings.offloads in self._tested:
            return {}
        found = self_test(self._runner, settings, timeout_s=timeout_s)
        if found.sentence:
            self._listen(Said(text=f"{found.sentence}{rebuild_words(found, self._machine)}"))
        if not found.is_conclusive:
            return {}
        self._tested.add(settings.offloads)
        if found.knobs is not None:
            self._memory.put(found.knobs, offloads=settings.offloads)
        return found.knobs or {}

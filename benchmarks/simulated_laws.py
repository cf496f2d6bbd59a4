"""The speed law of a simulated machine, as a sweep keeps it, but without a disk."""

from __future__ import annotations

import dataclasses

from simulated_machines import Case

from offloadtune import store
from offloadtune.pipeline.speed_memory import believed, runs_of
from offloadtune.records import Outcome, Settings, TrialResult
from offloadtune.speed import Laws, is_float_file, laws_of_kind


class LawsInMemory:
    """What `pipeline.SpeedMemory` is asked, primed from the catalogue and taught by trials; by devices used."""

    words: tuple[str, ...] = ()

    def __init__(self, case: Case) -> None:
        self._case = case
        self._kept: dict[bool, tuple[store.KeptRun, ...]] = {False: (), True: ()}
        self._laws: dict[bool, Laws] = {}

    def laws(self, settings: Settings | None = None) -> Laws:
        """What is believed, for settings of that kind."""
        uses = settings is None or settings.devices != ()
        if uses not in self._laws:
            prior = self._prior(uses=uses)
            decode, _ = believed(prior.decode, self._kept[uses])
            prefill, _ = believed(prior.prefill, self._kept[uses])
            self._laws[uses] = dataclasses.replace(prior, decode=decode, prefill=prefill)
        return self._laws[uses]

    def learn(self, result: TrialResult) -> None:
        """Add what a trial's visits took."""
        if result.outcome is not Outcome.OK:
            return
        uses = result.trial.settings.devices != ()
        runs = runs_of(self._case.facts, self._prior(uses=uses), result)
        self._kept[uses] = (*self._kept[uses], *(store.KeptRun(run=run, session="synthetic") for run in runs))
        self._laws.pop(uses, None)

    def _prior(self, *, uses: bool) -> Laws:
        rig = self._case.rig if uses else dataclasses.replace(self._case.rig, devices=(), shares=())
        return laws_of_kind(rig, is_float=is_float_file(self._case.facts))

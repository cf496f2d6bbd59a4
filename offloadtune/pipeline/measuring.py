"""Measuring: one sweep under way, from the self-test through the trials to the rounds side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import offloadtune
from offloadtune import search, store
from offloadtune.engine import Runner, VisitPlan, is_gone, self_test
from offloadtune.errors import StoreError
from offloadtune.pipeline.checking import check_memory
from offloadtune.pipeline.devices import DeviceMemory
from offloadtune.pipeline.foresight import Foresight
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.journals import side_by_side
from offloadtune.pipeline.probing import standing_now
from offloadtune.pipeline.rebuilding import rebuild_words
from offloadtune.pipeline.resuming import earlier_header, open_journal
from offloadtune.pipeline.rooms import check_split
from offloadtune.pipeline.spaces import SelfTestMemory, space_of, wanted_n_ctx
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.pipeline.undisturbed import Undisturbed
from offloadtune.probe import probe_host
from offloadtune.recommend import N_ROUNDS_LEAST, are_used_up, is_decided, recommend
from offloadtune.records import (
    GgufFacts,
    Machine,
    Outcome,
    Recommendation,
    Settings,
    Trial,
    TrialResult,
    Visit,
)
from offloadtune.sweeps import Listener, RoundFinished, Said, SweepRequest, TrialFinished, TrialStarted

_N_STEPS = 32


class Measuring:
    """One sweep under way: what is known so far and what is left of the budget."""

    def __init__(self, request: SweepRequest, facts: GgufFacts, runner: Runner, listen: Listener) -> None:
        self.request, self.facts, self.runner, self.listen = request, facts, runner, listen
        self.start_s = time.monotonic()
        self.started_at = datetime.now(UTC)
        self.is_interrupted = False
        self.running: Trial | None = None
        for one in standing_now(request.endpoints):
            listen(Said(text=one.words))
        self.engine, devices = runner.describe()
        self.machine = Machine(host=probe_host(), devices=devices)
        self.undisturbed = Undisturbed(runner, self.machine, self.engine, request.endpoints, listen)
        self.is_gone = False
        header = self._with_fit_layers(self._header())
        self.self_tests = SelfTestMemory(facts, self.machine, self.engine)
        self.tested = {offloads for offloads in (False, True) if self.self_tests.get(offloads=offloads) is not None}
        self.space = space_of(facts, header)
        check_memory(request.fixed, facts, self.machine, n_ctx=self.space.n_ctx)
        check_split(request.fixed.get("tensor_split"), len(self.machine.offload_devices))
        self.device_memory = DeviceMemory(facts, self.machine, self.engine)
        self.foresight = Foresight(SpeedMemory(facts, self.machine, self.engine), listen)
        self._tell_kept()
        self.plan = VisitPlan(
            workload=request.workload, n_steps=max(1, min(request.workload.n_gen - 1, _N_STEPS)), n_visits=1
        )
        opened = open_journal(header, is_fresh=request.is_fresh, listen=listen)
        self.journal = opened.journal
        if opened.kept != self.space.kept:
            self.journal.append_kept(self.space.kept)
        self.results, self.rounds = list(opened.results), list(opened.rounds)
        self.all_rounds = list(opened.rounds)  # those that do not count may again, once who was not in them is out
        self.n_resumed = len(self.results)
        self.measured_at = opened.began_at

    def measure(self) -> None:
        """Screen, then compare side by side, until done, out of budget or interrupted; every trial is kept.

        Raises StoreError when nothing can be journalled and there is no answer yet.
        """
        try:
            self._screen()
            self._compare()
        except KeyboardInterrupt:
            with deaf():
                self._stop()
        except StoreError as error:
            if self.best() is None:
                raise
            self.listen(Said(text=f"Warning: {error} The sweep ends here, with what is known."))

    def _stop(self) -> None:
        self.is_interrupted = True
        self.runner.kill()
        if self.running:
            with contextlib.suppress(StoreError):
                self._keep(TrialResult(trial=self.running, outcome=Outcome.CANCELLED, reason="stopped by the user"))

    def _screen(self) -> None:
        while trial := self._next_trial():
            if self._remaining_s() <= 0 or self._must_compare_now():
                return
            trial = self._after_self_test(trial)
            self.listen(
                TrialStarted(
                    trial=trial,
                    n_done=len(self.results),
                    elapsed_s=self.elapsed_s(),
                    remaining_s=self._remaining_s(),
                )
            )
            self.running = trial
            predicted, expected = (
                self.device_memory.predicted(trial.settings),
                self.foresight.expected(self.space, trial.settings),
            )
            n_visits = search.n_visits(
                self.foresight.beside(self.space), trial.settings, self.results, self.plan.n_steps
            )
            plan = dataclasses.replace(self.plan, n_visits=n_visits)
            result = self.undisturbed.run(trial, plan, timeout_s=self._trial_s())
            self.running = None
            result = dataclasses.replace(result, device_predicted_bytes=predicted, expected=expected)
            self.device_memory.learn(result)
            self._keep(result)
            self.foresight.learn(result)
            self._heed_interrupt()
            if self._tell_if_gone(result):
                return

    def _next_trial(self) -> Trial | None:
        return search.next_trial(self.foresight.beside(self.space), self.results, self._remaining_s())

    def _compare(self) -> None:
        """Rounds over the finalists until a look decides what is to be said, or the looks or the budget end."""
        finalists = self._finalists()
        round_s = search.round_s(self.results, finalists)
        while len(finalists) > 1 and self._wants_rounds() and self._remaining_s() > round_s:
            start_s = time.monotonic()
            order = shuffled(finalists, seed=len(self.rounds))
            one = self._round(order)
            if one is None and self.is_gone:
                return
            if one is None:
                finalists = self._finalists()
                continue
            self.rounds.append(one)
            self.all_rounds.append(one)
            self.journal.append_round([(trial.trial_id, one[trial.settings]) for trial in order])
            n_compared, finalists = len(finalists), self._finalists()
            is_same = len(finalists) == n_compared
            round_s = time.monotonic() - start_s if is_same else search.round_s(self.results, finalists)
            self.listen(
                RoundFinished(
                    n_rounds=len(self.rounds),
                    n_finalists=n_compared,
                    remaining_s=self._remaining_s(),
                    best=self.best(),
                )
            )

    def _wants_rounds(self) -> bool:
        return not are_used_up(len(self.rounds)) and not is_decided(self.space, self.results, self.rounds)

    def _round(self, order: Sequence[Trial]) -> dict[Settings, tuple[Visit, ...]] | None:
        """Visits of every finalist once; None when one failed, which from now on counts as its result."""
        one = {}
        for trial in order:
            visits = self.undisturbed.revisit(trial, self.plan, timeout_s=max(0.0, self._remaining_s()))
            if isinstance(visits, TrialResult):
                if self._tell_if_gone(visits):
                    return None
                if visits.outcome is not Outcome.TIMED_OUT or self._remaining_s() > 0:
                    self.results = [r for r in self.results if r.trial.settings != trial.settings]
                    self._keep(visits)
                return None
            one[trial.settings] = visits
            self._heed_interrupt()
        return one

    def _heed_interrupt(self) -> None:
        """Stop here where the user did while something was measured again; that must not lose what came before."""
        if self.undisturbed.is_interrupted:
            raise KeyboardInterrupt

    def _finalists(self) -> tuple[Trial, ...]:
        """Who is compared from now on, by the rounds that held all that had not clearly lost before."""
        finalists, rounds = side_by_side(self.space, self.results, self.all_rounds)
        self.rounds = list(rounds)
        return finalists

    def _tell_if_gone(self, result: TrialResult) -> bool:
        """Whether a device stayed away for good; then what was measured before stands, and no more is."""
        self.is_gone = is_gone(result.evidence)
        if self.is_gone:
            self.listen(Said(text=f"The sweep ends here: {result.reason}. What was measured before stands."))
        return self.is_gone

    def _trial_s(self) -> float:
        """Time a trial may take: all there is for the first answer, later a share, so that no loser eats the rest."""
        remaining_s = max(0.0, self._remaining_s())
        return remaining_s if self.best() is None else remaining_s * search.TRIAL_SHARE

    def _must_compare_now(self) -> bool:
        space, compared = self.foresight.beside(self.space), search.finalists(self.space, self.results)
        return search.must_compare(space, self.results, compared, N_ROUNDS_LEAST, self._remaining_s())

    def _after_self_test(self, trial: Trial) -> Trial:
        """`trial`, or what it becomes once the self-test has found what this engine build needs to live."""
        offloads = trial.settings.offloads
        if offloads in self.tested:
            return trial
        found = self_test(self.runner, trial.settings, timeout_s=self._trial_s())
        if found.sentence:
            self.listen(Said(text=f"{found.sentence}{rebuild_words(found, self.machine)}"))
        if not found.is_conclusive:
            return trial
        self.tested.add(offloads)
        if found.knobs is None:  # nothing helps; each trial will show for itself whether it lives
            return trial
        self.self_tests.put(found.knobs, offloads=offloads)
        if not found.knobs:
            return trial
        self.space = dataclasses.replace(self.space, kept={**self.space.kept, **found.knobs})
        self.journal.append_kept(self.space.kept)
        return self._next_trial() or trial

    def _tell_kept(self) -> None:
        if self.space.kept:
            words = ", ".join(f"{name}={value}" for name, value in self.space.kept.items())
            self.listen(Said(text=f"This engine build needs {words} here, as an earlier self-test found."))

    def _keep(self, result: TrialResult) -> None:
        self.results.append(result)
        self.journal.append_trial(result)
        self.listen(TrialFinished(result=result, best=self.best()))

    def best(self) -> Recommendation | None:
        """The answer if the sweep stopped now; None before any trial ran to its end."""
        return recommend(self.space, self.results, self.rounds)

    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def _header(self) -> store.SweepHeader:
        return store.SweepHeader(
            offloadtune_version=offloadtune.__version__,
            machine_id=self.machine.machine_id,
            machine=self.machine,
            engine=self.engine,
            gguf_id=self.facts.gguf_id,
            gguf_path=self.facts.path.absolute(),
            file_bytes=self.facts.file_bytes,
            workload=self.request.workload,
            goal=self.request.goal,
            target=self.request.target,
            n_ctx=wanted_n_ctx(self.request, self.facts),
            fixed=self.request.fixed,
            limit_bytes=self.request.vram_limit_bytes,
            endpoints=self.request.endpoints,
            n_os_cpus=os.cpu_count(),
            ruler=store.RULER,
            n_layer=self.facts.n_layer,
            stands_for=self.facts.stands_for,
            started_at=self.started_at.isoformat(timespec="seconds"),
        )

    def _with_fit_layers(self, header: store.SweepHeader) -> store.SweepHeader:
        """`header` with what llama.cpp's --fit rule says of the memory free now, or said when this sweep began.

        The rule may answer what no trial of ours can be given: parts of layers, or a split over several devices.
        """
        earlier = None if self.request.is_fresh else earlier_header(header)
        if earlier:
            return dataclasses.replace(header, n_fit_layers=earlier.n_fit_layers, no_fit=earlier.no_fit)
        space, devices = space_of(self.facts, header), self.machine.offload_devices
        if not devices or "n_gpu_layers" in space.fixed:
            return header
        spared_bytes = sum(device.free_bytes for device in devices) - space.device_bytes
        if len(devices) > 1 and spared_bytes:
            return dataclasses.replace(header, no_fit="it knows no limit over several devices")
        n_fit_layers, is_whole = self.runner.fit_layers(
            search.settings_to_fit(space), search.FIT_MARGIN_BYTES + spared_bytes, timeout_s=self._remaining_s()
        )
        if n_fit_layers is not None and not is_whole:
            return dataclasses.replace(header, no_fit="it would leave parts of layers on the host, or split them anew")
        return dataclasses.replace(header, n_fit_layers=n_fit_layers)

    def _remaining_s(self) -> float:
        return self.request.budget_s - self.elapsed_s()


def shuffled(finalists: Sequence[Trial], seed: int) -> tuple[Trial, ...]:
    """The finalists by chance, the same in every sweep; those of a placement stay together and share its load.

    An order that alternates makes neighbouring rounds share their noise, which the intervals then know nothing of.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    placements: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in finalists:
        placements.setdefault(trial.settings.placement, []).append(trial)
    groups = list(placements.values())
    chance.shuffle(groups)
    for group in groups:
        chance.shuffle(group)
    return tuple(trial for group in groups for trial in group)

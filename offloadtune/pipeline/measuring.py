"""Measuring: one sweep under way, from the self-test through the trials to the rounds side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from offloadtune import search, store
from offloadtune.conditions import Conditions
from offloadtune.engine import Runner, VisitPlan, is_gone
from offloadtune.errors import StoreError
from offloadtune.pipeline.checking import check_memory
from offloadtune.pipeline.devices import DeviceMemory, abreast
from offloadtune.pipeline.diverging import divergence_words, with_divergence
from offloadtune.pipeline.ending import least_left_s, left_of_rounds, why_ended
from offloadtune.pipeline.foresight import Foresight
from offloadtune.pipeline.heading import header_of, with_fit_rule
from offloadtune.pipeline.interrupts import deaf
from offloadtune.pipeline.journals import holds, last_words, side_by_side
from offloadtune.pipeline.lacking import idle_limits
from offloadtune.pipeline.living import Living
from offloadtune.pipeline.probing import standing_now
from offloadtune.pipeline.resuming import earlier_header, open_journal
from offloadtune.pipeline.rooms import check_split
from offloadtune.pipeline.spaces import space_of, with_free
from offloadtune.pipeline.speed_memory import SpeedMemory
from offloadtune.pipeline.taking import Found, FreeMemory
from offloadtune.pipeline.undisturbed import Undisturbed
from offloadtune.probe import local_servers, probe_host, read_conditions
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
_OVERTIME_FRAC = 0.05
"""Of the budget what one last measurement may take beyond it."""


class Measuring:
    """One sweep under way: what is known so far and what is left of the budget."""

    def __init__(self, request: SweepRequest, facts: GgufFacts, runner: Runner, listen: Listener) -> None:
        self.request, self.facts, self.runner, self.listen = request, facts, runner, listen
        self.start_s = time.monotonic()
        self.started_at = datetime.now(UTC)
        self.is_interrupted = False
        self.divergence = ""
        self.running: Trial | None = None
        for one in standing_now(request.endpoints):
            listen(Said(text=one.words))
        self.engine, devices = runner.describe()
        self.machine = Machine(host=probe_host(), devices=devices)
        self.undisturbed = Undisturbed(runner, self.machine, self.engine, request.endpoints, listen)
        self.free_memory = FreeMemory(runner, self.machine, request.budget_s, listen, self._conditions)
        self.ended, self.changes = "", list[str]()
        self.is_gone = self.is_plan_done = False
        self.may_be_abreast, self.abreast = True, frozenset[tuple[Any, ...]]()
        header = header_of(request, facts, self.machine, self.engine, self.started_at)
        earlier = None if request.is_fresh else earlier_header(header)
        header = self.header = header.with_rule_of(earlier) if earlier else self._fit_rule(header)
        self.living = Living(facts, self.machine, self.engine, runner, listen)
        self.space = space_of(facts, header)
        check_memory(request.fixed, facts, self.machine, n_ctx=self.space.n_ctx)
        check_split(request.fixed.get("tensor_split"), len(self.machine.offload_devices))
        for note in idle_limits(request, self.machine):
            listen(Said(text=note))
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
        self.told = [(result, header.free_bytes) for result in opened.results]
        self.all_rounds = list(opened.rounds)  # those that do not count may again, once who was not in them is out
        self.n_resumed = len(self.results)
        self.measured_at = opened.began_at

    def measure(self) -> None:
        """Screen, then compare side by side, until done, out of budget or interrupted; every trial is kept.

        Raises StoreError when nothing can be journalled and there is no answer yet.
        """
        try:
            self._screen()
            while not self._compare():  # what is free changed: there may be something else to try
                self._screen()
            self._measure_divergence()
        except KeyboardInterrupt:
            with deaf():
                self._stop()
        except StoreError as error:
            if self.best() is None:
                raise
            self.ended = "the journal cannot be written"
            self.listen(Said(text=f"Warning: {error} The sweep ends here, with what is known."))

    def _measure_divergence(self) -> None:
        """What the recommended cache does to answers, where it is coarser than f16."""
        best = self.best()
        chosen = next((one for one in self.results if best and one.trial == best.trial), None)
        if chosen is not None and not self.is_gone:
            left_s = self._remaining_s() + _OVERTIME_FRAC * self.request.budget_s
            self.divergence = divergence_words(self.runner, chosen, self.request.workload, left_s=left_s)

    def answer(self) -> Recommendation | None:
        """The answer, with what was found out about it alone."""
        best = self.best()
        return best and with_divergence(best, self.divergence)

    def _stop(self) -> None:
        self.is_interrupted = True
        self.runner.kill()
        if self.running:
            with contextlib.suppress(StoreError):
                self._keep(TrialResult(trial=self.running, outcome=Outcome.CANCELLED, reason="stopped by the user"))

    def _screen(self) -> None:
        while trial := self._next_trial():
            if self.is_gone or self._remaining_s() <= 0 or self._must_compare_now():
                return
            if self._has_changed(trial) or self._needs_knobs(trial):
                continue
            self.listen(
                TrialStarted(
                    trial=trial,
                    n_done=len(self.results),
                    elapsed_s=self.elapsed_s(),
                    remaining_s=self._remaining_s(),
                    least_s=least_left_s(self.results, self._comparison_s(), self._remaining_s()),
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
            result = self.undisturbed.run(trial, plan, timeout_s=self._trial_s(trial))
            self.running = None
            result = dataclasses.replace(result, device_predicted_bytes=predicted, expected=expected)
            if self._is_excused(result):
                continue
            self.device_memory.learn(result)
            self._keep(result)
            self.foresight.learn(result)
            self._heed_interrupt()
            if self._tell_if_gone(result):
                return
        self.is_plan_done = True

    def _next_trial(self) -> Trial | None:
        return search.next_trial(self.foresight.beside(self.space), self.results, self._remaining_s())

    def _compare(self) -> bool:
        """Rounds over the finalists until a look decides what is to be said, or the looks or the budget end.

        False where the memory that is free changed meanwhile, so that the plan is to be asked anew.
        """
        finalists, free_bytes = self._finalists(), self.header.free_bytes
        round_s = self._keep_abreast(finalists)
        while len(finalists) > 1 and self._wants_rounds() and self._remaining_s() > round_s:
            start_s, n_loads = time.monotonic(), self.runner.n_model_loads
            order = shuffled(finalists, seed=len(self.rounds))
            one = self._round(order)
            if self.header.free_bytes != free_bytes and not self.is_gone:
                self.runner.keep_abreast(())
                return False
            if one is None and self.is_gone:
                break
            if one is None:
                finalists = self._finalists()
                round_s = self._keep_abreast(finalists)
                continue
            self.rounds.append(one)
            self.all_rounds.append(one)
            self.journal.append_round([(trial.trial_id, one[trial.settings]) for trial in order])
            n_compared, finalists = len(finalists), self._finalists()
            is_other = len(finalists) != n_compared or (self.abreast and self.runner.n_model_loads > n_loads)
            round_s = self._round_s(finalists) if is_other else time.monotonic() - start_s
            least_s, most_s = left_of_rounds(len(self.rounds), round_s, self._remaining_s())
            self.listen(
                RoundFinished(
                    n_rounds=len(self.rounds),
                    n_finalists=n_compared,
                    remaining_s=most_s,
                    least_s=least_s,
                    best=self.best(),
                )
            )
        self.runner.keep_abreast(())
        self.ended = why_ended(
            len(self.rounds),
            is_gone=self.is_gone,
            is_decided=self._is_decided() or (len(self.rounds) > 0 and len(finalists) < 2),
            is_plan_done=self.is_plan_done and len(finalists) < 2,
            left_frac=self._remaining_s() / self.request.budget_s if self.request.budget_s else 0.0,
        )
        return True

    def _wants_rounds(self) -> bool:
        is_over = self.is_gone or are_used_up(len(self.rounds))
        return not is_over and not self._is_decided()

    def _is_decided(self) -> bool:
        return is_decided(self.space, self.results, self.rounds)

    def _round(self, order: Sequence[Trial]) -> dict[Settings, tuple[Visit, ...]] | None:
        """Visits of every finalist once; None when one failed, which from now on counts as its result."""
        one = {}
        for trial in order:
            if not self.abreast & self.runner.loaded and self._has_changed(trial):
                return None
            visits = self.undisturbed.revisit(trial, self.plan, timeout_s=max(0.0, self._remaining_s()))
            if isinstance(visits, TrialResult):
                if self._had_no_room_abreast(visits) or self._is_excused(visits) or self._tell_if_gone(visits):
                    return None
                if visits.outcome is not Outcome.TIMED_OUT or self._remaining_s() > 0:
                    self.results = [r for r in self.results if r.trial.settings != trial.settings]
                    self._keep(visits)
                return None
            if self.undisturbed.overslept:
                self.listen(Said(text=f"A round was thrown away: {self.undisturbed.overslept}"))
                return None
            one[trial.settings] = visits
            self._heed_interrupt()
        return one

    def _keep_abreast(self, finalists: Sequence[Trial]) -> float:
        """Let placements stay loaded from round to round where there is no time for their loads; seconds of a round.

        Loads of the same file differ, which only rounds with loads of their own show: better are those.
        """
        self.abreast = frozenset()
        round_s = self._round_s(finalists)
        if self.may_be_abreast and left_of_rounds(len(self.rounds), round_s, math.inf)[0] > self._remaining_s():
            compared = {trial.settings for trial in finalists}
            self.abreast = abreast([r for r in self.results if r.trial.settings in compared], self.machine)
        self.runner.keep_abreast(self.abreast)
        return self._round_s(finalists) if self.abreast else round_s

    def _had_no_room_abreast(self, result: TrialResult) -> bool:
        """Whether it may have run out of memory because others stayed loaded; from here on they do not."""
        if len(self.abreast) < 2 or not search.ran_out(result, None):
            return False
        self.may_be_abreast = False
        self.listen(Said(text="The finalists have no room beside each other: from here on one is loaded at a time."))
        return True

    # --- a machine that changes ----------------------------------------------------------------------------------

    def _has_changed(self, trial: Trial) -> bool:
        """Whether the device memory for `trial` is not what the plan went by; from then on it is."""
        found = self.free_memory.look(trial.settings, left_s=max(0.0, self._remaining_s()))
        if found:
            self._go_on_with(found)
        return found is not None and not found.is_back

    def _is_excused(self, result: TrialResult) -> bool:
        """Whether how a trial ended says nothing of its settings: the machine slept, or others took its memory."""
        why, settings = self.undisturbed.overslept, result.trial.settings
        if not why and result.outcome is not Outcome.OUT_OF_MEMORY_HOST and search.ran_out(result, None):
            promised, left_s = self.free_memory.free_bytes, max(0.0, self._remaining_s())
            if found := self.free_memory.look(settings, left_s=left_s, has_failed=True):
                self._go_on_with(found)
                predicted = self.device_memory.predicted(settings)
                why = found.words if all(n <= promised.get(name, 0) for name, n in predicted) else ""
        if why:
            self.journal.append_excused(result, why)
        if why and not self.is_gone:
            ended = result.outcome.value.replace("_", " ")
            self.listen(Said(text=f"{result.trial.why}: {ended}, which is not held against it. {why}"))
        return bool(why)

    def _go_on_with(self, found: Found) -> None:
        """Keep what changed, and plan with the memory that there is; results that it contradicts do not count now."""
        self.changes.append(found.words)
        self.is_gone = bool(found.gone)
        if self.is_gone:
            self.listen(Said(text=f"The sweep ends here: {found.words} What was measured before stands."))
        if found.is_back or found.gone:
            return
        self.machine = self.machine.with_free(found.free_bytes)
        self.header = self._fit_rule(
            dataclasses.replace(self.header, machine=self.machine, n_fit_layers=None, no_fit="")
        )
        self.journal.append_change(self.header.as_change(found.words))
        self.space = with_free(self.space, self.header)
        self.device_memory.go_on_with(self.machine)
        now = self.header.free_bytes
        self.results = list(last_words(result for result, then in self.told if holds(result, then, now)))

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
        self.is_gone = is_gone(result.evidence) and result.outcome is not Outcome.TIMED_OUT
        if self.is_gone:
            self.listen(Said(text=f"The sweep ends here: {result.reason}. What was measured before stands."))
        return self.is_gone

    def _trial_s(self, trial: Trial) -> float:
        """Time a trial may take: all there is for the first answer, later a share, so that no loser eats the rest."""
        remaining_s = max(0.0, self._remaining_s())
        if self.best() is None:
            return remaining_s
        return search.most_s(self.foresight.beside(self.space), trial, self.results, remaining_s)

    def _must_compare_now(self) -> bool:
        """Whether one more trial would take the time of the rounds that a verdict needs."""
        space, compared = self.foresight.beside(self.space), search.finalists(self.space, self.results)
        return search.must_compare(space, self.results, compared, N_ROUNDS_LEAST, self._remaining_s())

    def _comparison_s(self) -> float:
        """About what a round of today's finalists will take, nothing where there are no two."""
        finalists = search.finalists(self.space, self.results)
        return self._round_s(finalists) if len(finalists) > 1 else 0.0

    def _round_s(self, finalists: Sequence[Trial]) -> float:
        return search.round_s(self.results, finalists, kept=self.runner.loaded if self.abreast else None)

    def _needs_knobs(self, trial: Trial) -> bool:
        """Whether a self-test has found just now that this engine build needs something to live; then it is kept."""
        knobs = self.living.knobs_found(trial.settings, timeout_s=self._trial_s(trial))
        if not knobs:
            return False
        self.space = dataclasses.replace(self.space, kept={**self.space.kept, **knobs})
        self.journal.append_kept(self.space.kept)
        return True

    def _tell_kept(self) -> None:
        if self.space.kept:
            words = ", ".join(f"{name}={value}" for name, value in self.space.kept.items())
            self.listen(Said(text=f"This engine build needs {words} here, as an earlier self-test found."))

    def _keep(self, result: TrialResult) -> None:
        self.results.append(result)
        self.told.append((result, self.header.free_bytes))
        self.journal.append_trial(result)
        self.listen(TrialFinished(result=result, best=self.best()))

    def best(self) -> Recommendation | None:
        """The answer if the sweep stopped now; None before any trial ran to its end."""
        return recommend(self.space, self.results, self.rounds)

    def elapsed_s(self) -> float:
        return time.monotonic() - self.start_s

    def _conditions(self) -> Conditions:
        return read_conditions((*self.runner.pids, *local_servers(self.request.endpoints)))

    def _fit_rule(self, header: store.SweepHeader) -> store.SweepHeader:
        return with_fit_rule(header, self.facts, self.runner, timeout_s=max(0.0, self._remaining_s()))

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

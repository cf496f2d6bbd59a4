"""What a sweep has shown: figures of visits, and how settings compare by the rounds they shared."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offloadtune import stats
from offloadtune.recommend.looks import LEAVING_CONFIDENCE, N_ROUNDS_LEAST, confidence_at
from offloadtune.records import Comparison, Estimate, Figures, Goal, Settings, TrialResult, Verdict, Visit, Workload
from offloadtune.search import Space, candidates, measured, result_cost, shortfall, visit_cost

Round = Mapping[Settings, tuple[Visit, ...]]
"""One round of the side-by-side comparison: the visits of each finalist."""

TIE_FRAC = 0.01
"""What may be given up for settings that change less."""

LOADS_DIFFER_FRAC = 0.05
"""How much two loads of the same file may differ, as memory that is given anew lies otherwise: up to 4 % were seen."""

_ONE = Estimate(p50=1.0, low=1.0, high=1.0, n_samples=0, coverage_frac=1.0)


def figures(visits: Sequence[Visit], workload: Workload) -> Figures:
    """What `visits` say of the workload, warm-ups left out. Raises ValueError without any other."""
    counted = measured(visits)
    if not counted:
        message = "no visit to take figures from"
        raise ValueError(message)
    return Figures(
        ttft_s=stats.estimate_median([visit.ttft_s for visit in counted]),
        decode_tok_per_s=stats.estimate_median([1 / visit.token_s for visit in counted]),
        prefill_tok_per_s=stats.estimate_median([visit.prefill_tok_per_s for visit in counted]),
        turn_s=stats.estimate_median([visit.turn_s(workload.n_gen) for visit in counted]),
    )


def counted_visits(result: TrialResult, rounds: Sequence[Round]) -> tuple[Visit, ...]:
    """The visits its figures are taken from: those of the rounds, once two hold it; before that its first ones too.

    First visits follow right after the feasibility run, so they are warmer than those of the rounds.
    """
    held = [one[result.trial.settings] for one in rounds if result.trial.settings in one]
    later = tuple(visit for visits in held for visit in visits)
    return later if len(held) > 1 else (*result.visits, *later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The whole evidence of one sweep, and what is computed of it again and again."""

    space: Space
    results: Sequence[TrialResult]
    rounds: Sequence[Round]

    @property
    def noise_frac(self) -> float:
        """Noise of this sweep: how much the same settings differ from one round to the next."""
        everywhere = [settings for settings in (self.rounds or [{}])[0] if self.is_in_rounds(settings)]
        return stats.session_noise_frac([self.round_costs(settings)[0] for settings in everywhere])

    @property
    def feasible(self) -> dict[Settings, TrialResult]:
        return {result.trial.settings: result for result in candidates(self.space, self.results)}

    def is_in_rounds(self, settings: Settings) -> bool:
        """Whether every round holds `settings`: a finalist that fails later is in the first ones only."""
        return all(settings in one for one in self.rounds)

    @property
    def losers(self) -> set[Settings]:
        """What was in every round and is clearly slower than the best; see looks.py."""
        entrants = [settings for settings in self.feasible if self.is_in_rounds(settings)]
        if len(self.rounds) < N_ROUNDS_LEAST or not entrants:
            return set()
        best = min(entrants, key=self.rank)
        noise_fracs = {settings: self._noise_between(settings, best) for settings in entrants}
        costs = {settings: self.round_costs(settings, best) for settings in entrants if settings != best}
        return {
            settings
            for settings, (theirs, ours) in costs.items()
            if stats.compare_pairs(theirs, ours, noise_fracs[settings], LEAVING_CONFIDENCE).verdict is Verdict.FASTER
        }

    def has_left(self, settings: Settings) -> bool:
        """Whether it left the rounds as a clear loser: only the first ones hold it."""
        n_held = next((i for i, one in enumerate(self.rounds) if settings not in one), 0)
        return n_held > 0 and settings in dataclasses.replace(self, rounds=self.rounds[:n_held]).losers

    def round_costs(self, *compared: Settings) -> tuple[list[float], ...]:
        """Costs of each of `compared` in the rounds they share; rounds that disturbed one of them only if need be."""
        shared = [one for one in self.rounds if all(settings in one for settings in compared)]
        clean = [one for one in shared if all(any(v.counts for v in one[settings]) for settings in compared)]
        rounds = clean if len(clean) >= N_ROUNDS_LEAST else shared
        return tuple([self._cost(one[settings]) for one in rounds] for settings in compared)

    def _cost(self, visits: Sequence[Visit]) -> float:
        goal, workload = self.space.goal, self.space.workload
        return statistics.median(visit_cost(visit, goal, workload) for visit in measured(visits))

    def figures(self, result: TrialResult) -> Figures:
        return figures(counted_visits(result, self.rounds), self.space.workload)

    def first_cost(self, result: TrialResult) -> float:
        return result_cost(result, self.space.goal, self.space.workload)[1]

    def rank(self, settings: Settings) -> tuple[float, float, float]:
        """How far limits are missed, the context where the goal asks for it, the cost; the least is the best."""
        result = self.feasible[settings]
        first, cost = result_cost(result, self.space.goal, self.space.workload)
        by_rounds = statistics.median(self.round_costs(settings)[0]) if self.rounds else cost
        return self.shortfall(result), first, by_rounds

    def shortfall(self, result: TrialResult) -> float:
        """By how much a feasible result misses the limits of speed, by the visits that its figures are taken from."""
        return shortfall(counted_visits(result, self.rounds), self.space.limits)

    def pairs(self, other: Settings, chosen: Settings) -> stats.PairedComparison:
        """`chosen` against `other` by the rounds, at the confidence that so many have."""
        theirs, ours = self.round_costs(other, chosen)
        noise_frac = self._noise_between(other, chosen)
        return stats.compare_pairs(theirs, ours, noise_frac, confidence_frac=confidence_at(len(ours)))

    def _noise_between(self, one: Settings, other: Settings) -> float:
        """What two may differ by without being different.

        Placements that stayed loaded from round to round do not show how much loads differ: that counts besides.
        """
        if one.placement != other.placement and self._is_loaded_once(one, other):
            return max(self.noise_frac, LOADS_DIFFER_FRAC)
        return self.noise_frac

    def _is_loaded_once(self, *compared: Settings) -> bool:
        """Whether all rounds of one of `compared`, enough for a verdict, are of one load."""
        shared = [one for one in self.rounds if all(settings in one for settings in compared)]
        loads = ({visit.i_load for one in shared for visit in one[settings]} for settings in compared)
        return len(shared) >= N_ROUNDS_LEAST and any(len(some) == 1 for some in loads)

    def compare(self, name: str, other: Settings, chosen: Settings) -> Comparison:
        """`other` against `chosen`; the same settings need no measuring to be the same."""
        if other == chosen:
            return Comparison(against=name, ratio=_ONE, verdict=Verdict.SAME)
        found = self.pairs(other, chosen)
        verdict = found.verdict if found.ratio.n_samples >= N_ROUNDS_LEAST else Verdict.SAME
        return Comparison(against=name, ratio=stats.inverse(found.ratio), verdict=verdict)

    def is_tie(self, other: Settings, best: Settings) -> bool:
        """Whether `other` may stand for `best`: as good as the rounds have it, and not shown to be slower.

        Not being told apart is no tie: where noise is large, or rounds are few, much would be given away for it.
        """
        if other == best:
            return True
        found = self.pairs(other, best)
        return found.verdict is not Verdict.FASTER and 1 / found.ratio.p50 <= 1 + TIE_FRAC

    def tied_with(self, best: Settings, entrants: Sequence[Settings]) -> list[Settings]:
        """`best` and every entrant that is as good by the rounds."""
        if not self.rounds:
            return [best]
        if self.space.goal is Goal.CONTEXT:
            entrants = [settings for settings in entrants if settings.n_ctx == best.n_ctx]
        least = self.rank(best)[0]
        return [one for one in entrants if self.rank(one)[0] <= least and self.is_tie(one, best)]

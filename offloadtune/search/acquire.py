"""Which candidate is worth its time most: expected gain, times the chance of having room, for each second of cost.

A gain is the part of the cost that settings would save over the best tried so far, as far as it is believed: what is
uncertain may be much better, and what is known to be worse cannot. Another placement costs a load of the file; inside
the placement that is loaded settings cost a context and their visits. Where nothing promises enough the search ends.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Outcome, Settings, Trial, TrialResult
from offloadtune.search.cost import is_allowed, is_feasible, measured
from offloadtune.search.grid import Choices, choices_of
from offloadtune.search.keeping import aim_of, chance_of_keeping
from offloadtune.search.pacing import TRIAL_SHARE
from offloadtune.search.room import dominated, over_ram, wall_of
from offloadtune.search.space import Space
from offloadtune.search.surrogate import Belief, believe
from offloadtune.search.words import what_is_new
from offloadtune.speed.blocks import Floats

LEAST_GAIN_FRAC = 0.005
"""What no candidate can be expected to gain any more when the search ends."""

LOADS_PER_PLACEMENT = 1.3
"""Coming back to a placement costs a load for nothing new; after a failure whatever comes next does.

Once is allowed in any case: the baselines are tried between the first placement and all that is found to do in it.
"""

_READ_BYTES_PER_S = 1e9
_OPEN_S = 0.5
_TRIAL_NOISE = 0.02
_N_HOPEFUL = 256
_N_SIGMA_HOPEFUL = 2.0
_CHANCE_LEAST = 0.3
_LESSON_WORTH = 0.5
"""It takes another trial to make something of what was learnt."""
_N_POINTS = 7
_TINY = 1e-9
_UNTRIED_CHANCE = 0.1
"""That an axis does something large of which neither law nor trials tell: each is varied once where that is cheap."""
_N_NOVELTIES_MOST = 1
"""Of two new things at once a trial does not tell which it was; and what is new may take very long."""
_OF_WRITING, _OF_READING = ("n_threads",), ("n_threads_batch", "n_ubatch", "op_offload", "op_offload_min_batch")
"""What changes memory at most where only the other phase counts."""
_CHEAP_SHARE, _LOOK_SHARE = 0.01, 0.03
"""Of the time left: what is tried before a baseline takes its place, and what only is tried because it never was."""
_AS_GOOD_FRAC, _AS_DEAR_TIMES = 0.9, 10.0
"""Of settings that a load is for, and that promise about as much, those come first that most likely have room."""
_N_FAILED_MOST = 2
"""So often may a value end otherwise than well, without ever running, before it is left out."""


def next_best(
    space: Space, results: Sequence[TrialResult], remaining_s: float = math.inf, *, is_cheap: bool = False
) -> Trial | None:
    """The trial that promises most for its time, None where none promises enough. Needs a result that ran.

    What would most likely not end in the time that a trial may take of what is left is not begun. `is_cheap`: only what
    needs no load, and a small share of the time left; where it is not known what is left, nothing.
    """
    ran = [one for one in results if is_allowed(space, one)]
    rated = [one.trial.settings.n_ctx == space.n_ctx and is_as_fixed(space, one) for one in ran]
    if not any(rated) or (is_cheap and math.isinf(remaining_s)):
        return None
    aim = aim_of(space, ran, rated)
    space, rated, choices = aim.space, aim.rated, choices_of(aim.space)
    belief = believe(space, choices, ran, rated)
    loads = Loads.of(choices, results)
    seconds = cost_s(space, belief, loads, results)
    may_be = is_open(space, choices, results) & loads.are_allowed & (seconds <= TRIAL_SHARE * remaining_s)
    if is_cheap:
        may_be &= loads.is_loaded & (seconds <= _CHEAP_SHARE * remaining_s)
    chance = wall_of(space, results).chance_of(choices.columns) * may_be
    chance *= chance_of_keeping(space, aim.limits, choices, ran, rated)
    is_worth_a_look = (belief.spread_untried > 0) & (seconds <= _LOOK_SHARE * remaining_s)
    hoped = expected_gain(belief) + np.where(
        is_worth_a_look, _UNTRIED_CHANCE * gain_of(belief.log_ratio, belief.spread_untried), 0.0
    )
    gain = hoped * chance + _LESSON_WORTH * expected_lesson(belief, chance, loads.is_loaded)
    gain = np.where(gain >= LEAST_GAIN_FRAC, gain, 0.0)
    if not gain.any():
        return None
    plain = np.where(n_novelties(space, choices, results) <= _N_NOVELTIES_MOST, gain, 0.0)
    gain = plain if plain.any() else gain
    i = int(np.argmax(gain / seconds))
    if not loads.is_loaded[i]:
        alike = (choices.placements == choices.placements[i]) & (gain > 0) & (hoped >= _AS_GOOD_FRAC * hoped[i])
        alike &= seconds <= _AS_DEAR_TIMES * seconds[i]
        i = int(np.lexsort((gain / seconds, np.where(alike, chance, -1.0)))[-1])
    settings, best = choices.settings(i), ran[belief.i_best].trial.settings
    return space.trial(settings, what_is_new(settings, best, space.everything))


def one_larger(space: Space, results: Sequence[TrialResult], best: Settings) -> Trial | None:
    """A placement half-way between the best and the next larger one that was tried, with all else as there.

    More on the device is faster as a rule. Where the search holds that it is not, for what it saw farther up, that is
    seen for itself: what begins to be slow lies between. None where there is nothing between, or no room.
    """
    if best.devices == () or "n_gpu_layers" in space.fixed:
        return None
    choices = choices_of(space)
    common = {name: getattr(choices.base, name) for name in ("n_seq_max", "n_outputs_max", "kv_unified")}
    name = next((name for name in ("n_cpu_moe", "n_cpu_ffn") if getattr(best, name)), "n_gpu_layers")
    ours, step = getattr(best, name), 1 if name == "n_gpu_layers" else -1
    others = [one.trial.settings for one in results if one.trial.settings.devices != ()]
    alike = {getattr(one, name) for one in others if _what_is_away(one) == _what_is_away(best)}
    farther = min((step * (one - ours) for one in alike if step * (one - ours) > 0), default=2)
    larger = best.replace(**{name: ours + step * (farther // 2)}, **common)
    i = choices.index_of(larger)
    if farther < 2 or i is None:
        return None
    chance = wall_of(space, results).chance_of(choices.columns)[i] * is_open(space, choices, results)[i]
    return space.trial(larger, what_is_new(larger, best, space.everything)) if chance >= _CHANCE_LEAST else None


def _what_is_away(settings: Settings) -> tuple[bool, bool]:
    return settings.n_cpu_moe > 0, settings.n_cpu_ffn > 0


def n_novelties(space: Space, choices: Choices, results: Sequence[TrialResult]) -> Ints:
    """How much of each candidate no trial that ran had: values that the goal counts, and weights away.

    Layers are no novelty: the law knows what they are worth.
    """
    ran = [one.trial.settings for one in results if is_feasible(one, None)]
    told = {"n_gpu_layers", *_uncounted(space)}
    known = {name: [getattr(one, name) for one in ran] for name in choices.axes if name not in told}
    found = np.zeros(len(choices), dtype=np.int64)
    for name, values in known.items():
        found += ~np.isin(choices.axes[name], values)
    grid = choices.columns.grid
    for away, was_tried in (
        (grid.n_cpu_moe > 0, any(one.n_cpu_moe for one in ran)),
        (grid.n_cpu_ffn > 0, any(one.n_cpu_ffn for one in ran)),
    ):
        found += away & (not was_tried)
    return found


def _uncounted(space: Space) -> tuple[str, ...]:
    """Settings that change nothing that the goal or a limit counts."""
    return _OF_WRITING * (not space.counts_writing) + _OF_READING * (not space.counts_reading)


def is_as_fixed(space: Space, result: TrialResult) -> bool:
    """Whether its settings are those that the user fixed."""
    return all(getattr(result.trial.settings, name) == value for name, value in space.fixed.items())


def expected_gain(belief: Belief) -> Floats:
    """How much of the best cost each candidate is expected to save."""
    return gain_of(belief.log_ratio, belief.spread)


def gain_of(log_ratio: Floats, spread: Floats) -> Floats:
    """What is saved on average, what is lost counted as nothing; none where nothing is uncertain or better."""
    from scipy.special import ndtr  # noqa: PLC0415 - slow to load, and only a sweep that is under way asks

    spread = np.maximum(spread, _TINY)
    far = -log_ratio / spread
    return np.asarray(spread * (far * ndtr(far) + np.exp(-0.5 * far**2) / math.sqrt(2 * math.pi)))


def expected_lesson(belief: Belief, chance: Floats, is_loaded: Bools) -> Floats:
    """How much more may be expected of the others, on average, once a candidate was tried: what it teaches of them.

    So a setting that cannot win itself is worth a visit where it is loaded already: what it shows of a larger ubatch,
    say, holds elsewhere. Reckoned for the most hopeful candidates only, and of those that may still be tried: `chance`
    is none for the others.
    """
    hopeful = -belief.log_ratio + _N_SIGMA_HOPEFUL * belief.spread
    others = _highest(np.where(chance >= _CHANCE_LEAST, hopeful, -math.inf), _N_HOPEFUL)
    asked = np.union1d(
        _highest(np.where(chance > 0, hopeful, -math.inf), _N_HOPEFUL),
        _highest(np.where((chance > 0) & is_loaded, belief.spread, -math.inf), _N_HOPEFUL),
    )
    found = np.zeros(len(chance))
    if not len(others) or not len(asked):
        return found
    theirs, ours = belief.loadings(others), belief.loadings(asked)
    covariance = ours @ theirs.T + (asked[:, None] == others) * belief.own[asked][:, None] ** 2
    seen = np.sqrt(np.einsum("ij,ij->i", ours, ours) + belief.own[asked] ** 2 + _TRIAL_NOISE**2)
    moves = covariance / seen[:, None]
    before = max(float((-belief.log_ratio[others] * chance[others]).max()), 0.0)
    points, weights = np.polynomial.hermite_e.hermegauss(_N_POINTS)
    after = np.zeros(len(asked))
    for point, weight in zip(points, weights / weights.sum(), strict=True):
        gains = (-belief.log_ratio[others] - moves * point) * chance[others]
        after += weight * np.maximum(gains.max(axis=1), 0.0)
    found[asked] = np.maximum(after - before, 0.0) * chance[asked]
    return found


def _highest(values: Floats, n: int) -> Ints:
    """Where the `n` highest finite values are."""
    rows = np.argsort(-values, kind="stable")[:n]
    return rows[np.isfinite(values[rows])]


def cost_s(space: Space, belief: Belief, loads: Loads, results: Sequence[TrialResult]) -> Floats:
    """About what a trial of each candidate takes: its visits, and a load where another placement is loaded."""
    passages = [(one, _passage_s(one)) for one in results if is_feasible(one, None)]
    inside = [one.duration_s / max(seconds, 1e-9) for one, seconds in passages if not loads.began(one)]
    times = max(statistics.median(inside), 1.0) if inside else 2.0
    beside = [max(one.duration_s - times * seconds, 0.0) for one, seconds in passages if loads.began(one)]
    told = [one.load_ns / 1e9 for one in results if one.load_ns]
    load_s = max(
        statistics.median(beside) if beside else 0.0,
        statistics.median(told) if told else space.facts.file_bytes / _READ_BYTES_PER_S,
    )
    return np.asarray(_OPEN_S + times * belief.visit_s + np.where(loads.is_loaded, 0.0, load_s))


def _passage_s(result: TrialResult) -> float:
    visits = measured(result.visits)
    return statistics.median(one.ttft_s + sum(one.step_ns) / 1e9 for one in visits)


@dataclass(frozen=True, kw_only=True, eq=False)
class Loads:
    """Which candidates need no load now, and which may have one. `first_of` are the trials that began a load.

    To ask again for a placement that was not to be had, with smaller buffers, is no return.
    """

    is_loaded: Bools
    are_allowed: Bools
    first_of: frozenset[Settings]

    def began(self, result: TrialResult) -> bool:
        return result.trial.settings in self.first_of

    @classmethod
    def of(cls, choices: Choices, results: Sequence[TrialResult]) -> Loads:
        loaded, n_returns = None, 0
        first_of, seen, held = set(), set(), set()
        for result in results:
            placement = result.trial.settings.placement
            if placement != loaded:
                first_of.add(result.trial.settings)
                n_returns += loaded is not None and placement in held
            seen.add(placement)
            loaded = placement if result.outcome in {Outcome.OK, Outcome.UNSUPPORTED} else None
            if loaded is not None:
                held.add(loaded)
        numbers = [choices.placement_number(one) for one in held]
        is_loaded = choices.placements == (-1 if loaded is None else choices.placement_number(loaded))
        is_new = ~np.isin(choices.placements, numbers)
        may_return = loaded is None or n_returns + 1 <= max(1, (LOADS_PER_PLACEMENT - 1) * len(seen))
        return cls(is_loaded=is_loaded, are_allowed=is_loaded | is_new | may_return, first_of=frozenset(first_of))


def is_open(space: Space, choices: Choices, results: Sequence[TrialResult]) -> Bools:
    """What was not tried, need not end out of memory, and has no value that only ever failed.

    What differs from settings that ran in nothing that the goal counts was tried with them.
    """
    columns = choices.columns
    found = ~dominated(space, columns, results) & ~over_ram(space, columns, results)
    found[[i for one in results if (i := choices.index_of(one.trial.settings)) is not None]] = False
    ok = [one.trial.settings for one in results if is_feasible(one, None)]
    told = _uncounted(space)
    counted = [name for name in choices.axes if name not in told]
    for one in ok if told else ():
        if (one.n_ctx, one.n_seq_max) == (choices.base.n_ctx, choices.base.n_seq_max):
            is_same = choices.placements == choices.placement_number(one.placement)
            found &= ~np.all([is_same, *(choices.axes[name] == getattr(one, name) for name in counted)], axis=0)
    bad = [one.trial.settings for one in results if one.outcome in _TELLS_NOTHING or one.outcome is Outcome.CRASHED]
    for name, column in choices.axes.items():
        for value in {getattr(one, name) for one in bad} - {getattr(one, name) for one in ok}:
            if sum(getattr(one, name) == value for one in bad) >= _N_FAILED_MOST:
                found &= column != value
    return found


_TELLS_NOTHING = {Outcome.TIMED_OUT, Outcome.LOAD_FAILED, Outcome.UNSUPPORTED, Outcome.CANCELLED}

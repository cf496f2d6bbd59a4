"""What is believed of the cost of every candidate: the speed law, times what trials showed that the law does not know.

    log seconds of a phase = log of the law's seconds + sum over traits of (value x effect) + what is its own

An effect is what a trait (a ubatch of 512 on the device, more threads than cores) does to the log of the time. It is
believed to be small until trials say otherwise; then all settings with that trait share it. A machine has few
surprises, but large ones, so the few traits that trials speak for most strongly may have an effect of any size.

Every trial adds its row; effects are found by ridge regression (Bayes' rule, everything normal). Loads of a file, the
time of day (heat) and what disturbed a single trial have effects on what was measured, not on what is true: they are
learnt and left out. What one trial alone speaks for may be a disturbance, so half of it is believed, and all is open.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Goal, TrialResult
from offloadtune.search.columns import Columns, cards_of
from offloadtune.search.cost import measured
from offloadtune.search.expecting import foretold, laws_for
from offloadtune.search.grid import Choices
from offloadtune.search.space import Space
from offloadtune.search.traits import View, traits_of
from offloadtune.speed.blocks import Floats
from offloadtune.speeds import Phase

_VISIT_NOISE = 0.015
"""Of one visit (standard deviation of the log): neighbours differ by 1 %."""
_LOAD_NOISE = 0.02
_OWN = 0.006
"""What settings have of their own, that no trait explains."""
_HOPELESS = 0.8
"""Settings expected to take e^0.8 times as long as the best cannot win, however uncertain that is."""
_HEAT_WIDTH = 0.25
_SURPRISE_WIDTH = 1.0
_SURPRISE_EVIDENCE = 3.0
"""Trials must be e^3 times as likely with a surprise as without: there are many that could be."""
_AMBIGUOUS = 1.0
"""Of surprises whose evidence differs by less any may be the one."""
_N_SURPRISES_MOST = 3
_NUDGE = 1e-8
_BETTER_THAN_SHOWN = 0.9
"""What was tried may be better than its trial showed, where something held that up; that it is the best by more than
this is not believed before another trial speaks for it."""
_LAW_WIDTH_MOST = 3.0
"""The law is not off by more than twenty times (e^3), however little is known of its coefficients."""
_VARIED_LEAST = 0.25
"""What a trait is of less of the time than that, trials tell nothing of it."""
_UNTRIED_WIDTH = 1.0
"""What an axis that no trial has varied may do all the same, seldom: as much as any surprise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Belief:
    """Of each candidate, beside the best settings tried: the log of its cost over theirs, and how uncertain that is.

    `log_s` is the log of the cost itself. `i_best` counts among the results. `visit_s` are seconds of one timed passage
    of the workload. `loadings` of some candidates are such that their products are the covariances of what is uncertain
    of them; what is `own` to each comes on top. `spread_untried` holds besides what axes might do that no trial has
    varied, 0 where there are none.
    """

    i_best: int
    log_s: Floats
    log_ratio: Floats
    spread: Floats
    spread_untried: Floats
    visit_s: Floats
    own: Floats
    loadings: Callable[[Ints], Floats]


def believe(space: Space, choices: Choices, results: Sequence[TrialResult], rated: Sequence[bool]) -> Belief:
    """The belief after `results`, all of which ran and were measured; the best is among those that are `rated`."""
    alone = [result.trial.settings.replace(n_seq_max=1) for result in results]
    tried = Columns.of(space.facts, alone, cards_of(space))
    laws_of = laws_for(space)
    models = {}
    for phase in Phase:
        of_candidates, of_tried = (
            View(
                columns=columns,
                foretold=foretold(space, laws_of, choices.base, columns, phase),
                base=choices.base,
                n_cores=space.n_physical_cores,
                device_bytes=space.device_bytes,
            )
            for columns in (choices.columns, tried)
        )
        models[phase] = _Model(phase, of_candidates, of_tried, results)
    prompt, step = models[Phase.PREFILL], models[Phase.DECODE]
    weights = weights_of(space)
    cost_tried = _cost(weights, prompt.tried_log_s, step.tried_log_s)
    shown = _cost(weights, *(_log_seconds(phase, results) for phase in (Phase.PREFILL, Phase.DECODE)))
    best = int(np.argmin(np.where(rated, np.maximum(cost_tried, _BETTER_THAN_SHOWN * shown), math.inf)))
    cost = _cost(weights, prompt.log_s, step.log_s)
    shares = [
        (model, weight * np.exp(model.log_s) / cost, weight * float(np.exp(model.tried_log_s[best])) / cost_tried[best])
        for model, weight in ((prompt, weights[0]), (step, weights[1]))
        if weight
    ]

    def loadings(rows: Ints) -> list[Floats]:
        return [model.loadings(rows, share[rows], best, of_best) for model, share, of_best in shares]

    own = _OWN * np.sqrt(sum(share**2 for _, share, _ in shares))
    log_ratio = np.log(cost / cost_tried[best])
    near = np.flatnonzero(log_ratio < _HOPELESS)
    variance = np.zeros(len(cost))
    variance[near] = sum(np.einsum("ij,ij->i", one, one) for one in loadings(near))
    untried = np.asarray(sum(model.untried_variance(share, best) for model, share, _ in shares))
    n_steps = statistics.median(len(measured(result.visits)[0].step_ns) for result in results) + 1
    return Belief(
        i_best=best,
        log_s=np.log(cost),
        log_ratio=log_ratio,
        spread=np.sqrt(variance + own**2),
        spread_untried=np.where(untried > 0, np.sqrt(variance + untried), 0.0),
        visit_s=np.exp(prompt.log_s) + n_steps * np.exp(step.log_s),
        own=own,
        loadings=lambda rows: np.hstack(loadings(rows)),
    )


def weights_of(space: Space) -> tuple[float, float]:
    """How much of the goal's cost a second of the prompt is, and one of a token."""
    if space.goal is Goal.TTFT:
        return 1.0, 0.0
    return (0.0, 1.0) if space.goal is Goal.DECODE else (1.0, max(space.workload.n_gen - 1.0, 0.0))


def _cost(weights: tuple[float, float], prompt_log_s: Floats, step_log_s: Floats) -> Floats:
    return np.asarray(weights[0] * np.exp(prompt_log_s) + weights[1] * np.exp(step_log_s))


class _Model:
    """One phase: effects by the trials, and with them the log seconds of candidates and of what was tried.

    The law's coefficients are learnt as effects are: what trials showed of it before is where that begins.
    """

    def __init__(self, phase: Phase, candidates: View, tried: View, results: Sequence[TrialResult]) -> None:
        threads = np.unique(candidates.n_threads(phase)).tolist()
        fewer = [n for n in threads if n < candidates.n_cores]
        traits = traits_of(
            np.unique(candidates.columns.grid.n_ubatch).tolist(),
            fewer if len(fewer) > 1 else [],
            n_devices=len(candidates.foretold.device_shares),
        )
        self._candidates, self._tried = candidates.foretold, tried.foretold
        self._root = _root(self._candidates.covariance)
        self._design, self._tried_design = (
            np.column_stack(
                [
                    *(trait.values(view, phase) for trait in traits),
                    _bounded(view.foretold.slopes.T @ self._root),
                ]
            )
            for view in (candidates, tried)
        )
        n_effects, n_coefficients = self._design.shape[1], self._design.shape[1] - len(traits)
        mean = np.array([*(trait.mean for trait in traits), *[0.0] * n_coefficients])
        widths = np.array([*(trait.width_in(phase) for trait in traits), *[1.0] * n_coefficients])
        lasting = _Effects(
            rows=self._tried_design,
            widths=widths,
            surprised=np.where(widths > 0, np.maximum(widths, _SURPRISE_WIDTH), 0.0),
            is_only_slower=np.zeros(n_effects, dtype=np.bool_),
        )
        noise = _VISIT_NOISE**2 / np.array([len(measured(result.visits)) for result in results])
        residual = _log_seconds(phase, results) - self._tried.log_s - self._tried_design @ mean
        found = lasting.beside(_passing(results))
        found = found.with_surprises(residual, noise + _OWN**2)
        rows, widths = found.rows, found.widths
        effects, covariance = _ridge(rows, widths, residual, noise + _OWN**2)
        is_axis = np.array([*(trait.is_axis for trait in traits), *[False] * n_coefficients])
        self._untried = np.flatnonzero(
            is_axis & (widths[:n_effects] > 0) & (np.ptp(self._tried_design, axis=0) < _VARIED_LEAST)
        )
        self._covariance_root = _root(covariance[:n_effects, :n_effects])
        self.log_s = self._candidates.log_s + self._design @ (effects[:n_effects] + mean)
        own = (residual - rows @ effects) * _OWN**2 / (noise + _OWN**2)
        self.tried_log_s = self._tried.log_s + self._tried_design @ (effects[:n_effects] + mean) + own

    def untried_variance(self, shares: Floats, i_best: int) -> Floats:
        """What axes that no trial varied may do to the log cost of each candidate, beside the best tried."""
        away = self._design[:, self._untried] - self._tried_design[i_best, self._untried]
        return np.asarray((_UNTRIED_WIDTH * shares) ** 2 * (away**2).sum(axis=1))

    def loadings(self, rows: Ints, shares: Floats, i_best: int, share_of_best: float) -> Floats:
        """Of candidates in the log cost, less those of the best tried; by effects, and by coefficients where learnt."""
        effects = self._design[rows] * shares[:, None] - self._tried_design[i_best] * share_of_best
        return np.asarray(effects @ self._covariance_root)


def _bounded(moves: Floats) -> Floats:
    """Rows no longer than that: how the log of a time moves with a coefficient is known for small moves only."""
    lengths = np.sqrt((moves**2).sum(axis=1, keepdims=True))
    return np.asarray(moves * np.minimum(1.0, _LAW_WIDTH_MOST / np.maximum(lengths, _LAW_WIDTH_MOST)))


def _log_seconds(phase: Phase, results: Sequence[TrialResult]) -> Floats:
    of_visits = ([one.ttft_s if phase is Phase.PREFILL else one.token_s for one in measured(r.visits)] for r in results)
    return np.log([statistics.median(seconds) for seconds in of_visits])


def _passing(results: Sequence[TrialResult]) -> _Effects:
    """What was measured in each load, after each trial, and in one trial alone: what disturbs that only slows it."""
    n = len(results)
    loads = np.array([measured(result.visits)[0].i_load for result in results])
    of_loads = loads[:, None] == np.unique(loads)
    since = np.arange(n)[:, None] >= np.arange(1, n)
    sizes = [of_loads.shape[1], n - 1, n]
    return _Effects(
        rows=np.hstack([of_loads, since, np.eye(n)]).astype(np.float64),
        widths=np.repeat([_LOAD_NOISE, 0.0, 0.0], sizes),
        surprised=np.repeat([0.0, _HEAT_WIDTH, _SURPRISE_WIDTH], sizes),
        is_only_slower=np.repeat([False, False, True], sizes),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Effects:
    """What may explain trials: a column of `rows` each, its effect as wide as expected or, seldom, as `surprised`."""

    rows: Floats
    widths: Floats
    surprised: Floats
    is_only_slower: Bools

    def beside(self, others: _Effects) -> _Effects:
        """All of both."""
        names = ("widths", "surprised", "is_only_slower")
        return _Effects(
            rows=np.hstack([self.rows, others.rows]),
            **{name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in names},
        )

    def with_surprises(self, residual: Floats, noise: Floats) -> _Effects:
        """The same, those as `surprised` that the trials speak for most strongly, one after the other.

        Where trials speak for several alike, all of them: which it was is for the next trials to show.
        """
        rows, widths = self.rows, self.widths
        for _ in range(_N_SURPRISES_MOST):
            inverse = np.linalg.inv((rows * widths**2) @ rows.T + np.diag(noise))
            more = np.maximum(self.surprised**2 - widths**2, 0.0)
            scale = 1.0 + more * np.einsum("ij,ik,kj->j", rows, inverse, rows)
            pull = residual @ inverse @ rows
            evidence = 0.5 * more * pull**2 / scale - 0.5 * np.log(scale)
            evidence[self.is_only_slower & (pull < 0)] = 0.0
            if evidence.max() < _SURPRISE_EVIDENCE:
                break
            least = max(evidence.max() - _AMBIGUOUS, _SURPRISE_EVIDENCE)
            widths = np.where(evidence >= least, self.surprised, widths)
        return dataclasses.replace(self, widths=widths)


def _ridge(rows: Floats, widths: Floats, residual: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance of effects of these widths, given what was seen."""
    spread = rows * widths**2
    gain = np.linalg.solve(spread @ rows.T + np.diag(noise), spread).T
    return gain @ residual, np.diag(widths**2) - gain @ spread


def _root(covariance: Floats) -> Floats:
    """A lower triangular root of a covariance that may have no volume, or coefficients of very different sizes."""
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    unit = np.where(size > 0, size, 1.0)
    return np.asarray(
        unit[:, None] * np.linalg.cholesky(covariance / np.outer(unit, unit) + _NUDGE * np.eye(len(size)))
    )

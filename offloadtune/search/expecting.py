"""What settings are expected to reach, by the speed law, before they are tried: one of them, or all at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint import Grid
from offloadtune.records import Estimate, Expected, GgufFacts, Settings
from offloadtune.search.columns import Columns, cards_of
from offloadtune.search.space import Space
from offloadtune.speed import (
    Law,
    Laws,
    Term,
    amounts_of,
    is_float_file,
    laws_of_kind,
    predict,
    work_with_threads,
)
from offloadtune.speed.blocks import Floats
from offloadtune.speeds import DeviceRates, Figure, HostRates, Phase, Rig

_COVERAGE_FRAC = 0.9
_TINY_S = 1e-12
_NUMERICAL = (ArithmeticError, ValueError, np.linalg.LinAlgError)

LawsOf = Callable[[Settings], Laws]


def expected(space: Space, settings: Settings) -> Expected | None:
    """The workload's time to first token and its rate of writing one sequence; None where nothing is foretold."""
    if space.laws is None:
        return None
    workload = space.workload
    laws = space.laws(settings)
    alone = settings.replace(n_seq_max=1)  # visits write one sequence, whatever there is room for
    found = predict(space.facts, alone, laws, n_prompt=workload.n_prompt_new, depth=workload.n_prefix_cached)
    return Expected(
        ttft_s=_estimate(found.ttft_s),
        decode_tok_per_s=_estimate(found.decode_tok_per_s),
        bound_tok_per_s=found.bound_tok_per_s,
        bound_prefill_tok_per_s=found.bound_prefill_tok_per_s,
    )


def _estimate(figure: Figure) -> Estimate:
    return Estimate(
        p50=figure.value,
        low=figure.low,
        high=figure.high,
        n_samples=0,
        coverage_frac=_COVERAGE_FRAC,
        basis=figure.basis,
    )


# --- all at once ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Foretold:
    """What laws say of one phase, one entry a setting. Shares are parts of its time.

    `slopes` (n_coefficients, n) say how the log of the time moves with each coefficient, whose `covariance` it has;
    `device_shares` has a row a device.
    """

    log_s: Floats
    slopes: Floats
    covariance: Floats
    host_share: Floats
    link_share: Floats
    device_shares: Floats


def foretold(space: Space, laws_of: LawsOf, base: Settings, columns: Columns, phase: Phase) -> Foretold:
    """The law's word on each of `columns`: those with devices by the laws for them, the others by the CPU's alone."""
    with_devices = columns.grid.has_devices if space.has_devices else np.ones(len(columns), dtype=np.bool_)
    parts = []
    for settings, chosen in ((base, with_devices), (base.replace(devices=(), n_gpu_layers=0), ~with_devices)):
        laws = laws_of(settings)
        amounts = _amounts(_ById(columns), _ById(space.facts), laws.rig, phase, _passage(space, phase))
        parts.append((laws.of(phase), np.flatnonzero(chosen), amounts[:, chosen]))
    n, n_coefficients = len(columns), sum(len(law.terms) for law, _, _ in parts)
    found = Foretold(
        log_s=np.zeros(n),
        slopes=np.zeros((n_coefficients, n)),
        covariance=np.zeros((n_coefficients, n_coefficients)),
        host_share=np.zeros(n),
        link_share=np.zeros(n),
        device_shares=np.zeros((len(cards_of(space)), n)),
    )
    i = 0
    for law, rows, amounts in parts:
        seconds = np.maximum(law.seconds(amounts), _TINY_S)
        block = slice(i, i + len(law.terms))
        found.log_s[rows] = np.log(seconds)
        found.slopes[block][:, rows] = amounts / seconds
        found.covariance[block, block] = law.covariance
        found.host_share[rows] = _share(law, amounts, lambda term: term.place == "host") / seconds
        found.link_share[rows] = _share(law, amounts, lambda term: term.kind.startswith(("link", "streamed"))) / seconds
        for device, shares in enumerate(found.device_shares):
            shares[rows] = _share(law, amounts, functools.partial(_is_of, place=str(device))) / seconds
        i += len(law.terms)
    return found


def _is_of(term: Term, place: str) -> bool:
    return term.place == place


def laws_for(space: Space) -> LawsOf:
    """What is believed of this rig; where nobody says, or it cannot be computed, of a typical one."""

    def laws_of(settings: Settings) -> Laws:
        try:
            return _typical(space, settings) if space.laws is None else space.laws(settings)
        except _NUMERICAL:  # a sweep does not end because what was measured before cannot be made a law of
            return _typical(space, settings)

    return laws_of


def _typical(space: Space, settings: Settings) -> Laws:
    host, cards = HostRates(n_cores=space.n_physical_cores), cards_of(space)
    rig = Rig(devices=(), host=host)
    if space.has_devices and settings.devices != ():
        devices = tuple(DeviceRates(name=name) for name in cards.names)
        rig = Rig(devices=devices, host=host, shares=tuple(map(float, cards.free_bytes)))
    return laws_of_kind(rig, is_float=is_float_file(space.facts))


def _passage(space: Space, phase: Phase) -> tuple[int, int]:
    """Tokens of a prompt and cached ones before it; of a step, which comes after that prompt, one token."""
    n_new, n_cached = space.workload.n_prompt_new, space.workload.n_prefix_cached
    return (n_new, n_cached) if phase is Phase.PREFILL else (1, n_cached + n_new)


class _ById:
    """Makes a record usable as a cache key where it is the very same one."""

    def __init__(self, one: object) -> None:
        self.one = one

    def __hash__(self) -> int:
        return id(self.one)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.one is self.one


@functools.lru_cache(maxsize=16)  # a search asks the same again and again, only the laws change
def _amounts(columns_key: _ById, facts_key: _ById, rig: Rig, phase: Phase, passage: tuple[int, int]) -> Floats:
    """How much of each term the passage has, (n_terms, n); visits write one sequence, whatever there is room for."""
    columns, facts = columns_key.one, facts_key.one
    assert isinstance(columns, Columns)
    assert isinstance(facts, GgufFacts)
    n_threads = columns.n_threads if phase is Phase.DECODE else columns.n_threads_batch
    n_prompt, depth = passage
    work = work_with_threads(n_threads, rig.host, n_prompt=n_prompt, depth=depth, is_pinned=columns.is_pinned)
    return amounts_of(phase, facts, _of_one_sequence(columns.grid), work, rig)


def _of_one_sequence(grid: Grid) -> Grid:
    return dataclasses.replace(grid, n_seq_max=np.ones_like(grid.n_seq_max))


def _share(law: Law, amounts: Floats, is_meant: Callable[[Term], bool]) -> Floats:
    """Seconds of the terms meant."""
    rows = [i for i, term in enumerate(law.terms) if is_meant(term)]
    return np.asarray(law.mean[rows] @ amounts[rows])

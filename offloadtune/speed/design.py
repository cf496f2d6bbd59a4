"""Which short runs teach a law most: chosen one by one, by what is still unknown, for their time.

A passage reads a prompt and writes a few tokens, so it is a run of each phase. Near what is believed the law is linear
and its uncertainty normal, so what a run would leave of a query's variance is known before it is made: with q and r the
query's and the run's amounts by their seconds, C the covariance of the coefficients and s the noise of a run,

    v - (q' C r)^2 / (r' C r + s^2)

The next passage is the one that narrows the queries' intervals most, on average and in ratio, for each second it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.records import GgufFacts, Settings
from offloadtune.speed.law import Floats, Law
from offloadtune.speed.predicting import Laws, amounts_for
from offloadtune.speeds import Phase

N_PASSAGES_MOST = 8
N_STEPS = 16
"""Tokens that a passage writes."""

NEAR_FRAC = 0.05
"""A query is known well enough when no run could narrow it by more than so much of its time."""

_NOISE_OF_RUNS = 0.03
_N_PLACEMENTS = 5
_N_UBATCHES = (64, 128, 512)
_OPENING = ((True, 64), (True, 256), (False, 64), (False, 256))
"""Whether on the most layers or on the fewest, and tokens of the prompt."""

_PROMPTS = ((64, 0), (256, 0), (1024, 0), (64, 512), (64, 2048), (256, 2048))
_AROUND_S = 0.5
"""What a passage takes besides: a context is opened and warmed up."""

_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A prompt of `n_prompt` tokens after `depth` cached ones, and N_STEPS tokens after it."""

    settings: Settings
    n_prompt: int
    depth: int

    @property
    def n_ctx_needed(self) -> int:
        return self.depth + self.n_prompt + N_STEPS + 2

    @property
    def depth_of_steps(self) -> int:
        """Tokens before the middle one of those written."""
        return self.depth + self.n_prompt + 1 + N_STEPS // 2


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Passages, and how much of each term they have: amounts (n_terms, n_passages) of either phase."""

    passages: tuple[Passage, ...]
    decode: Floats
    prefill: Floats

    def of(self, phase: Phase) -> Floats:
        return self.decode if phase is Phase.DECODE else self.prefill


def candidates_of(facts: GgufFacts, settings: Settings, n_layers_most: int, *, lends: bool) -> list[Passage]:
    """Passages that may teach something: over placements, ubatches, prompts and depths that the context has room for.

    `settings` are those of a sweep's beginning, `n_layers_most` the largest n_gpu_layers there is memory for. Where
    the first device `lends` itself to the host, the host by itself is asked too.
    """
    ubatches = _ubatches(settings)
    return [
        Passage(settings=one.replace(n_ubatch=n_ubatch), n_prompt=n_prompt, depth=depth)
        for one in _placements(facts, settings, n_layers_most, lends=lends)
        for n_ubatch in ubatches
        for n_prompt, depth in _PROMPTS
        if depth + n_prompt + N_STEPS + 2 <= settings.n_ctx
        and (n_ubatch < n_prompt or n_ubatch == ubatches[-1])  # where all goes into one the size makes no difference
    ]


def queries_of(facts: GgufFacts, settings: Settings, n_layers_most: int) -> list[Passage]:
    """What a search will ask: prompts and tokens over the same placements and ubatches, shallow and deep."""
    n_prompt = min(512, max(1, settings.n_ctx // 4))
    deep = max(0, settings.n_ctx - n_prompt - N_STEPS - 2)
    return [
        Passage(settings=one.replace(n_ubatch=n_ubatch), n_prompt=n_prompt, depth=depth)
        for one in _placements(facts, settings, n_layers_most, lends=False)
        for n_ubatch in _ubatches(settings)
        for depth in sorted({0, deep})
    ]


def asked_of(facts: GgufFacts, laws: Laws, passages: Sequence[Passage]) -> Asked:
    """The amounts of passages on the rig of `laws`."""

    def amounts(phase: Phase) -> Floats:
        columns = [
            amounts_for(
                phase,
                facts,
                (one.settings,),
                laws.rig,
                n_prompt=one.n_prompt if phase is Phase.PREFILL else 1,
                depth=one.depth if phase is Phase.PREFILL else one.depth_of_steps,
            )
            for one in passages
        ]
        return np.concatenate(columns, axis=1)

    return Asked(passages=tuple(passages), decode=amounts(Phase.DECODE), prefill=amounts(Phase.PREFILL))


def seconds_of(laws: Laws, asked: Asked, n_visits: int, loaded: tuple[object, ...] | None, load_s: float) -> Floats:
    """About what each passage takes: its prefix once, its visits, and `load_s` where another placement is loaded."""
    prompt, step = laws.prefill.seconds(asked.prefill), laws.decode.seconds(asked.decode)
    n_prefix = np.array([one.depth / one.n_prompt for one in asked.passages])
    loads = np.array([one.settings.placement != loaded for one in asked.passages])
    return np.asarray(_AROUND_S + prompt * (n_prefix + 1 + n_visits) + n_visits * N_STEPS * step + loads * load_s)


def opening_passage(candidates: Asked, out: Collection[int], n_done: int) -> int | None:
    """One of the first passages, made before anybody knows how the machine computes; None where `n_done` were all.

    A short prompt and a longer one on the most layers there are, and then on none: what a ubatch costs and what a
    token costs look alike to a single prompt, and so do host and devices.
    """
    if n_done >= len(_OPENING):
        return None
    is_most, n_prompt = _OPENING[n_done]
    left = [i for i in range(len(candidates.passages)) if i not in out]

    def away(i: int) -> tuple[int, int, int, int]:
        one = candidates.passages[i]
        layers = one.settings.n_gpu_layers
        return -layers if is_most else layers, one.depth, abs(one.n_prompt - n_prompt), -one.settings.n_ubatch

    return min(left, key=away, default=None)


def next_passage(laws: Laws, candidates: Asked, queries: Asked, seconds: Floats, out: Collection[int]) -> int | None:
    """Index of the candidate that teaches most for its `seconds`; None where all are in `out`, made or impossible."""
    left = np.array([i for i in range(len(candidates.passages)) if i not in out], dtype=np.int64)
    if not len(left):
        return None
    gains = gains_of(laws, candidates, queries)[left]
    return int(left[(gains / seconds[left]).argmax()])


def is_known(laws: Laws, queries: Asked) -> bool:
    """Whether runs could narrow no query much more: the rest of its interval is the law's own error."""
    if not (laws.decode.runs and laws.prefill.runs):
        return False
    laws_and_amounts = ((law, queries.of(law.phase)) for law in (laws.decode, laws.prefill))
    return all((law.spread_frac(one) <= law.noise_frac + NEAR_FRAC).all() for law, one in laws_and_amounts)


def gains_of(laws: Laws, candidates: Asked, queries: Asked) -> Floats:
    """What each candidate would make of the queries' spreads: the mean logarithm of before by after, never negative."""
    gains = []
    for law in (laws.decode, laws.prefill):
        before, after = spreads_after(law, candidates.of(law.phase), queries.of(law.phase))
        gains.append(np.log(before[:, None] / after).mean(axis=0))
    return np.asarray(sum(gains) / len(gains))


def spreads_after(law: Law, candidates: Floats, queries: Floats) -> tuple[Floats, Floats]:
    """Spreads of queries now, (n_queries,), and after each candidate alone, (n_queries, n_candidates).

    The law's own error is in both.
    """
    q, r = (one / np.maximum(law.seconds(one), _TINY) for one in (queries, candidates))
    covariance = law.covariance
    noise = law.calibrated_noise_frac**2 + _NOISE_OF_RUNS**2
    variance = np.maximum(np.einsum("iq,ij,jq->q", q, covariance, q), 0.0)
    of_runs = np.maximum(np.einsum("ic,ij,jc->c", r, covariance, r), 0.0) + noise
    left = np.maximum(variance[:, None] - (q.T @ covariance @ r) ** 2 / of_runs, 0.0)
    own = law.calibrated_noise_frac**2
    return np.sqrt(variance + own), np.sqrt(left + own)


def _placements(facts: GgufFacts, settings: Settings, n_layers_most: int, *, lends: bool) -> list[Settings]:
    """From all that fits down to none; of a file with experts also with some or all of them in main memory."""
    layers = sorted(set(np.linspace(0, n_layers_most, _N_PLACEMENTS).round().astype(int).tolist()), reverse=True)
    found = [settings.replace(n_gpu_layers=k) for k in layers]
    if facts.n_expert and n_layers_most:
        n_moe = sorted({facts.n_layer, facts.n_layer // 2})
        found += [settings.replace(n_gpu_layers=facts.n_layer + 1, n_cpu_moe=k) for k in n_moe]
    if lends and n_layers_most:
        found.append(settings.replace(n_gpu_layers=0, op_offload=False))
    return found


def _ubatches(settings: Settings) -> list[int]:
    return sorted({min(n_ubatch, settings.n_batch, settings.n_ctx) for n_ubatch in _N_UBATCHES})

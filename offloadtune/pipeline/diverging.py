"""Diverging: what a cache of fewer bits does to the answers of the settings that win, measured before it is advised."""

from __future__ import annotations

import dataclasses

from offloadtune import search
from offloadtune.engine import Runner, TrialFailedError
from offloadtune.footprint import BYTES_OF_32
from offloadtune.records import Recommendation, Settings, TrialResult, Workload

_BEGINNING = "The KV cache is "
_N_LAST = 64
_N_PROMPT_MOST = 2048
_PREFILL_S = 10.0
"""A prompt is cut where reading it would take longer; it is read twice."""

_READING_SHARE = 0.25
_LEAST_S = 3.0
"""With less time left it is not begun."""


def divergence_words(runner: Runner, chosen: TrialResult, workload: Workload, *, left_s: float) -> str:
    """A sentence on how answers change, "" where the cache is not coarser than f16; says why where it is not known."""
    settings = chosen.trial.settings
    if not _is_coarse(settings) or left_s < _LEAST_S:
        return ""
    what = f"{_BEGINNING}{_types(settings)}"
    try:
        n_prompt = _n_prompt(chosen, workload, min(_PREFILL_S, _READING_SHARE * left_s))
        found = runner.divergence(chosen.trial, n_prompt, _N_LAST, timeout_s=left_s)
    except TrialFailedError as error:
        reason = error.result.reason.rstrip(".")
        return f"{what}, of lower precision than f16; how that changes answers could not be measured: {reason}."
    same = f"same top token in {found.n_same_top} of {found.n_tokens}"
    text = f"{n_prompt} tokens of text"
    return f"{what}: against an f16 cache, KL divergence {max(0.0, found.kl_nats):.4f}, {same}, after {text}."


def unknown_words(settings: Settings) -> str:
    """The sentence of a sweep that ended before it was measured, "" where there was no need."""
    if not _is_coarse(settings):
        return ""
    return (
        f"{_BEGINNING}{_types(settings)}, of lower precision than f16; how that changes answers was not measured: "
        "the sweep ended first."
    )


def with_divergence(answer: Recommendation, words: str) -> Recommendation:
    """`answer` with `words` on its cache; where there are none and its cache is coarse, it says that."""
    words = words or unknown_words(answer.trial.settings)
    return dataclasses.replace(answer, reasons=(*answer.reasons, words)) if words else answer


def remembered(answer: Recommendation, stored: Recommendation | None) -> Recommendation:
    """`answer` with what a stored one said of the cache of the same settings."""
    told = stored.reasons if stored and stored.trial.settings == answer.trial.settings else ()
    return with_divergence(answer, next((reason for reason in told if reason.startswith(_BEGINNING)), ""))


def _is_coarse(settings: Settings) -> bool:
    return min(BYTES_OF_32[name] for name in (settings.type_k, settings.type_v)) < BYTES_OF_32["f16"]


def _types(settings: Settings) -> str:
    same = settings.type_k == settings.type_v
    return settings.type_v if same else f"{settings.type_k} for K and {settings.type_v} for V"


def _n_prompt(chosen: TrialResult, workload: Workload, most_s: float) -> int:
    """As much of the workload's prompt as is read in a short time."""
    rates = [visit.prefill_tok_per_s for visit in search.measured(chosen.visits)]
    n_quick = int(most_s * max(rates, default=0.0))
    n_most = min(_N_PROMPT_MOST, workload.n_prefix_cached + workload.n_prompt_new)
    return max(min(n_most, n_quick), 2 * _N_LAST)

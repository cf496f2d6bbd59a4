"""Choosing: where the settings come from that a bench measures."""

from __future__ import annotations

import os
from dataclasses import dataclass

from offloadtune import export, search, store
from offloadtune.benches import BenchRequest
from offloadtune.errors import NotMeasuredError, UsageError
from offloadtune.pipeline.recalling import recall
from offloadtune.recalls import Question
from offloadtune.records import GgufFacts, Settings, Target, Trial
from offloadtune.sweeps import Teller

_N_CTX = 8448
"""Where nothing else is known: the longest prompt of the script and an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A trial to be measured, where its settings came from in words, and the endpoints that its devices need."""

    trial: Trial
    settings_from: str
    endpoints: tuple[str, ...]


def choose(request: BenchRequest, facts: GgufFacts, listen: Teller) -> Chosen:
    """Of a profile where one is named, of the stored recommendation for this file, else of the front end itself.

    Raises UsageError, and what `recall` raises but for there being none.
    """
    if request.profile_path is not None:
        return _chosen(request, _of_profile(request, facts), f"the profile {request.profile_path.name}")
    try:
        recalled = recall(Question(path=request.path, workload=None), listen)
    except NotMeasuredError:
        n_ctx = min(_N_CTX, (facts.n_ctx_train or _N_CTX) + search.N_CTX_SHIPPED)
        settings = search.llama_defaults(n_ctx, os.cpu_count() or 1)
        trial = Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="bench", told=("n_ctx",))
        return _chosen(request, trial, f"the defaults of {Target.LLAMA_CPP_PYTHON}, for nothing better was measured")
    words = f"the recommendation for {recalled.space.goal}, measured {recalled.stored.written_at:%Y-%m-%d}"
    return _chosen(request, recalled.answer.trial, words, recalled.stored.header.endpoints)


def _of_profile(request: BenchRequest, facts: GgufFacts) -> Trial:
    assert request.profile_path is not None
    saved = export.read_profile(request.profile_path)
    try:
        store.check_settings(saved.settings)
    except ValueError as error:
        message = f"{request.profile_path} holds settings that no engine knows: {error}."
        raise UsageError(message, hint="name a profile that a sweep wrote") from None
    if saved.gguf_id != facts.gguf_id:
        message = f"{request.profile_path} is the profile of another file than {facts.path.name}."
        raise UsageError(message, hint="name the profile of this file, or leave --settings out")
    return Trial(settings=saved.settings, target=saved.target, why="bench")


def _chosen(request: BenchRequest, trial: Trial, words: str, endpoints: tuple[str, ...] = ()) -> Chosen:
    settings = trial.settings
    if request.n_ctx is not None:
        settings = _with_context(settings, request.n_ctx)
        words += f", with n_ctx {settings.n_ctx}"
    all_endpoints = tuple(dict.fromkeys((*endpoints, *request.endpoints)))
    told = trial.told
    return Chosen(
        trial=Trial(settings=settings, target=trial.target, why="bench", told=told),
        settings_from=words,
        endpoints=all_endpoints,
    )


def _with_context(settings: Settings, n_ctx: int) -> Settings:
    return search.sane(settings.replace(n_ctx=n_ctx))

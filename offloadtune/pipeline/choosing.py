"""Choosing: where the settings come from that a bench measures."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from offloadtune import export, search, store
from offloadtune.benches import BenchRequest
from offloadtune.errors import NotMeasuredError, UsageError
from offloadtune.pipeline.recalling import recall
from offloadtune.recalls import Question
from offloadtune.records import GgufFacts, Target, Trial
from offloadtune.sweeps import Teller

_N_CTX = 8448
"""Where nothing else is known: the longest prompt of the script and an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A trial to be measured, where its settings came from in words, and the endpoints that its devices need.

    `machine_id` is that of a profile, None for what was measured here or is nobody's.
    """

    trial: Trial
    settings_from: str
    endpoints: tuple[str, ...]
    machine_id: str | None = None


def choose(request: BenchRequest, facts: GgufFacts, listen: Teller) -> Chosen:
    """Of a profile where one is named, of the stored recommendation for this file, else of the front end itself.

    Raises UsageError, and what `recall` raises but for there being none.
    """
    if request.profile_path is not None:
        return _of_profile(request, request.profile_path, facts)
    try:
        recalled = recall(Question(path=request.path, workload=None), listen)
    except NotMeasuredError:
        n_ctx = min(_N_CTX, (facts.n_ctx_train or _N_CTX) + search.N_CTX_SHIPPED)
        settings = search.llama_defaults(n_ctx, os.cpu_count() or 1)
        trial = Trial(settings=settings, target=Target.LLAMA_CPP_PYTHON, why="bench", told=("n_ctx",))
        return _chosen(request, trial, f"the defaults of {Target.LLAMA_CPP_PYTHON}, for nothing better was measured")
    words = f"the recommendation for {recalled.space.goal}, measured {recalled.stored.written_at:%Y-%m-%d}"
    return _chosen(request, recalled.answer.trial, words, recalled.stored.header.endpoints)


def _of_profile(request: BenchRequest, path: Path, facts: GgufFacts) -> Chosen:
    saved = export.read_profile(path)
    try:
        store.check_settings(saved.settings)
    except ValueError as error:
        message = f"{path} holds settings that no engine knows: {error}."
        raise UsageError(message, hint="name a profile that a sweep wrote") from None
    if saved.gguf_id != facts.gguf_id:
        message = f"{path} is the profile of another file than {facts.path.name}."
        raise UsageError(message, hint="name the profile of this file, or leave --settings out")
    trial = Trial(settings=saved.settings, target=saved.target, why="bench")
    return dataclasses.replace(_chosen(request, trial, f"the profile {path.name}"), machine_id=saved.machine_id)


def _chosen(request: BenchRequest, trial: Trial, words: str, endpoints: tuple[str, ...] = ()) -> Chosen:
    settings = trial.settings
    if request.n_ctx is not None:
        settings = search.sane(settings.replace(n_ctx=request.n_ctx))
        words += f", with n_ctx {settings.n_ctx}"
    return Chosen(
        trial=dataclasses.replace(trial, settings=settings, why="bench"),
        settings_from=words,
        endpoints=tuple(dict.fromkeys((*endpoints, *request.endpoints))),
    )

"""Expecting: how fast a plan's settings should be, and what the figures rest on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

from offloadtune import catalogue
from offloadtune.errors import UsageError
from offloadtune.footprint import contradiction, has_dense_ffn, pad_256
from offloadtune.pipeline.questions import Question
from offloadtune.plans import MemoryPlan, PlanRequest
from offloadtune.records import GgufFacts, Settings
from offloadtune.speed import N_PROMPT_USUAL, Laws, is_float_file, laws_of_kind, predict
from offloadtune.speeds import DeviceRates, Prediction, Rig
from offloadtune.units import format_bytes_per_s, format_count

LawsFor = Callable[[GgufFacts], Laws]
"""What is believed of a rig, for weights like those of a file."""

_N_TOKENS_LIMIT = (1 << 31) - 1
"""llama.cpp's positions are 32 bits wide."""


def check_tokens(request: PlanRequest) -> None:
    """Refuse a prompt or a depth that no context can hold. Raises UsageError."""
    for what, n_tokens in (("A prompt", request.n_prompt or 0), ("A depth", request.depth)):
        if not 0 <= n_tokens <= _N_TOKENS_LIMIT:
            message = f"{what} of {n_tokens} tokens cannot be planned for."
            raise UsageError(message, hint=f"name 0 to {_N_TOKENS_LIMIT} tokens")


def catalogue_laws(rig: Rig) -> LawsFor:
    """The laws of a rig on which nothing ran."""
    return lambda facts: _laws_of_kind(rig, is_float_file(facts))


@functools.lru_cache(maxsize=64)
def _laws_of_kind(rig: Rig, is_float: bool) -> Laws:  # noqa: FBT001 - by position, as the cache wants it
    return laws_of_kind(rig, is_float=is_float)


def with_prediction(plan: MemoryPlan, question: Question, request: PlanRequest, laws_for: LawsFor) -> MemoryPlan:
    """The plan with what is expected of its settings, or a warning that says why nothing is."""
    host = plan.host
    if host.available_bytes is not None and host.held_bytes <= host.available_bytes < host.total_bytes:
        slow = "No speed is predicted: main memory cannot keep the weights, and how fast the disk is sets the pace."
        return dataclasses.replace(plan, warnings=(*plan.warnings, slow))
    laws = laws_for(question.facts)
    found = _prediction_of(question, request, laws)
    if isinstance(found, str):
        return dataclasses.replace(plan, warnings=(*plan.warnings, found))
    words = (*_about_plan(plan, question, request), *_about_rig(question, request, laws), *found.words)
    return dataclasses.replace(plan, prediction=dataclasses.replace(found, words=words))


def _prediction_of(question: Question, request: PlanRequest, laws: Laws) -> Prediction | str:
    """What is expected of the settings, or the sentence that says why nothing can be."""
    facts = question.facts
    if not facts.tensors or not facts.n_layer:
        return "No speed is predicted: the header names no tensors."
    settings = at_work(question.settings, laws.rig, request)
    if refused := contradiction(facts, settings):
        return f"No speed is predicted for so many tokens. {refused[0]}"
    found = predict(facts, settings, laws, n_prompt=request.n_prompt, depth=request.depth)
    figures = (found.decode_tok_per_s, found.prefill_tok_per_s, found.ttft_s)
    if not all(math.isfinite(value) and value > 0 for one in figures for value in (one.value, one.low, one.high)):
        return "No speed is predicted: what the header says makes no time that can be."
    return found


def at_work(settings: Settings, rig: Rig, request: PlanRequest) -> Settings:
    """`settings` with all cores at work, which no plan chooses, in a context that holds what is asked about."""
    n_cores = rig.host.n_cores or settings.n_threads
    n_ctx = max(settings.n_ctx, pad_256(_n_held(settings, request)))
    return settings.replace(n_threads=n_cores, n_threads_batch=n_cores, n_ctx=n_ctx)


def _n_held(settings: Settings, request: PlanRequest) -> int:
    """Tokens of all sequences together, the prompt read."""
    return settings.n_seq_max * (request.depth + (request.n_prompt or N_PROMPT_USUAL))


def uses_host(question: Question) -> bool:
    """Whether main memory holds what is read for every token."""
    facts, settings = question.facts, question.settings
    is_partial = not question.place.room.names or settings.n_gpu_layers <= facts.n_layer
    is_away = (settings.n_cpu_moe and facts.n_expert) or (settings.n_cpu_ffn and has_dense_ffn(facts))
    return is_partial or bool(is_away) or not settings.offload_kqv


def _about_plan(plan: MemoryPlan, question: Question, request: PlanRequest) -> Iterator[str]:
    settings = question.settings
    if plan.fits is False:
        yield "It does not fit: these are the speeds it would have if it did."
    n_held = _n_held(settings, request)
    if n_held > settings.n_ctx:
        yield f"{n_held} tokens do not fit n_ctx {settings.n_ctx}: the speeds are those of a context that holds them."
    if settings.n_seq_max > 1:
        yield f"Decode is that of all {format_count(settings.n_seq_max, 'sequence')} together."
    if question.companions.draft:
        yield "What the draft model saves or costs is left out."


def _about_rig(question: Question, request: PlanRequest, laws: Laws) -> Iterator[str]:
    """What of the rig had to be assumed, where it matters and no run has shown it."""
    rig, settings = laws.rig, question.settings
    shown = {name for law in (laws.decode, laws.prefill) for run in law.runs for name, _ in run.amounts}
    if settings.n_gpu_layers:
        unknown = [one.name for i, one in enumerate(rig.devices) if _lacks(one) and f"{i}.weights" not in shown]
        if unknown:
            yield f"What {', '.join(unknown)} can do at best is not known in full, so a typical card fills in."
    if not uses_host(question):
        return
    host = rig.host
    if request.ram is not None and host.peak_bytes_per_s:
        read = catalogue.find_ram(request.ram).words
        yield f"Main memory is read as {read}: {format_bytes_per_s(host.peak_bytes_per_s)} at most."
    elif host.peak_bytes_per_s is None and host.read_bytes_per_s is None and "host.weights" not in shown:
        measure = "measure it with offloadtune doctor, or " if host.n_cores else ""  # it is this machine's
        yield f"The speed of main memory is not known, so a typical one is assumed: {measure}name it, like ddr5-5600x2."
    lender = None if rig.lender is None else rig.devices[rig.lender]
    lends = settings.op_offload and not shown & {"link_pinned", "link_pageable"}
    if lender and lends and lender.link_bytes_per_s is None:
        yield f"How fast weights are copied to {lender.name} for prompts is not known, so a typical link is assumed."


def _lacks(device: DeviceRates) -> bool:
    """Whether its maker does not say how fast it reads, or how fast it multiplies."""
    return device.read_bytes_per_s is None or not (device.flop_per_s or device.int8_op_per_s)

"""Planning: what settings would take, by arithmetic or by the engine's own word, and what lies around them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from offloadtune.errors import UsageError
from offloadtune.footprint import (
    COMPUTE_BAND_FRAC,
    Grid,
    Terms,
    contradiction,
    fits,
    is_mapped,
    largest_contexts,
    pad_256,
    reckon,
    refusals,
    warnings,
)
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.companions import NONE, Companions, companions_for
from offloadtune.pipeline.expecting import LawsFor, catalogue_laws, check_tokens, with_prediction
from offloadtune.pipeline.foretelling import Foretold, Parts
from offloadtune.pipeline.helping import gains_of
from offloadtune.pipeline.questions import Ints, Question
from offloadtune.pipeline.rooms import Place, check_split, named_place
from offloadtune.pipeline.shapes import facts_of_shape, weights_basis
from offloadtune.plans import (
    DevicePlan,
    HostPlan,
    LayerRow,
    MemoryPlan,
    PlanReport,
    PlanRequest,
    RuntimeBasis,
    Tier,
)
from offloadtune.records import GgufFacts, Settings, Target
from offloadtune.search import settings_of_target
from offloadtune.speeds import Gain
from offloadtune.units import GIB

N_CTX_PLANNED = 4096
N_CTX_UNTRAINED = 1 << 17
_N_CTX_STEP = 4096
_SERVER_PROMPT_CACHE_BYTES = 8 * GIB  # llama-server's --cache-ram unless told otherwise


Ask = Callable[[GgufFacts, Settings, Place], Foretold]
"""How the engine is asked."""


def facts_for(request: PlanRequest) -> GgufFacts:
    """The header of the file, or of the shape in its quantisation. Raises GgufError, UnknownNameError, UsageError."""
    if (request.path is None) == (request.shape is None):
        raise UsageError("A plan needs a file or a --shape, and not both.", hint="offloadtune plan --help")
    if request.path is not None and request.quant:
        raise UsageError("A file says its own quantisation.", hint="leave out --quant, or name a --shape")
    if request.path is not None:
        return read_gguf(request.path, identify=False)
    if not request.quant:
        message = f"--shape {request.shape} needs a quantisation."
        raise UsageError(message, hint="add --quant, for example --quant Q4_K_M")
    assert request.shape is not None
    return facts_of_shape(request.shape, request.quant)


def settings_for(request: PlanRequest, facts: GgufFacts) -> Settings:
    """The target's settings with those asked for; every layer on the devices where none was named."""
    base = settings_of_target(request.target)
    n_ctx = min(N_CTX_PLANNED, facts.n_ctx_train or N_CTX_PLANNED)
    asked = {"n_gpu_layers": -1, "n_ctx": n_ctx, **request.asked}
    if request.target is Target.LLAMA_SERVER:
        asked.setdefault("n_outputs_max", asked.get("n_seq_max", 1))
    if asked["n_ctx"] == 0:  # as for llama.cpp: all that was trained
        asked["n_ctx"] = facts.n_ctx_train or N_CTX_PLANNED
    if 0 < asked.get("n_outputs_max", 0) < asked.get("n_seq_max", 1):  # llama.cpp needs an output for each sequence
        asked["n_outputs_max"] = asked["n_seq_max"]
    for name, most in (("n_cpu_moe", facts.n_layer), ("n_outputs_max", asked["n_ctx"])):  # more is the same
        if name in asked:
            asked[name] = min(asked[name], most)
    n_batch = asked.get("n_batch") or max(base.n_batch, asked.get("n_ubatch", 0))
    asked["n_ubatch"] = asked.get("n_ubatch", min(base.n_ubatch, n_batch)) or n_batch  # 0 as for llama.cpp: n_batch
    settings = base.replace(**{**asked, "n_batch": n_batch})
    if refused := contradiction(facts, settings):
        raise UsageError(refused[0], hint=refused[1])
    layers = settings.n_gpu_layers
    everything = facts.n_layer + 1
    return settings.replace(n_gpu_layers=everything if layers < 0 else min(layers, everything))


def plan_memory(request: PlanRequest, facts: GgufFacts, place: Place, companions: Companions = NONE) -> MemoryPlan:
    """One plan by arithmetic, without its surroundings."""
    question = _question(request, facts, place, companions)
    plan = _plan(question, _parts(question), Tier.ARITHMETIC)
    return plan if place.rig is None else with_prediction(plan, question, request, catalogue_laws(place.rig))


def plan(request: PlanRequest) -> PlanReport:
    """What settings would take: on cards by name, else on the devices of this machine, or on its CPU without an engine.

    Raises GgufError, UnknownNameError, UsageError; EngineError where an endpoint or an exact answer fails.
    """
    if request.card is not None and request.endpoints:
        raise UsageError("--card names a card elsewhere, --rpc a device that answers.", hint="leave out one of them")
    if request.card is None and request.n_devices == 1:
        from offloadtune.pipeline.here import plan_here  # noqa: PLC0415 - loads what starts the engine

        return plan_here(request)
    if request.is_exact:
        message = "--exact asks this machine's engine about this machine's devices."
        raise UsageError(message, hint="leave out --card and --n-devices, or leave out --exact")
    return report_of(request, named_place(request), None)


def report_of(request: PlanRequest, place: Place, ask: Ask | None, laws_for: LawsFor | None = None) -> PlanReport:
    """A plan with the largest context at each n_gpu_layers and the price of one more layer or 4096 tokens of context.

    With `ask` the engine speaks, and `laws_for` knows what ran here. Raises as `facts_for` does, and what `ask` raises.
    """
    facts = facts_for(request)
    question = _question(request, facts, place, companions_for(request))
    chose = "n_gpu_layers" not in request.asked and place.room.is_known
    if chose:
        question = question.with_layers(question.most_layers(None))
    foretold = None
    if ask is not None:
        question, foretold = _asked(question, ask, is_free=chose)
    if chose and not question.settings.n_gpu_layers:
        said = f"Not even one layer fits on {', '.join(place.room.names)}, so all of them stay in main memory."
        question = dataclasses.replace(question, warnings=(*question.warnings, said))
    terms = foretold.terms if foretold else None
    plan = _plan(question, _parts(question), Tier.ARITHMETIC) if foretold is None else _foretold(question, foretold)
    layers, context = _costs(question, terms)
    gains: tuple[Gain, ...] = ()
    if place.rig is not None:
        laws_for = laws_for or catalogue_laws(place.rig)
        plan = with_prediction(plan, question, request, laws_for)
        if plan.prediction is not None and plan.fits is not False:
            gains = gains_of(question, request, laws_for)
    return PlanReport(
        plan=plan,
        n_layer=facts.n_layer,
        n_ctx_train=facts.n_ctx_train,
        rows=_rows(question, terms),
        layer_cost_bytes=layers,
        context_cost_bytes=context,
        chose_layers=chose,
        gains=gains,
    )


def _asked(question: Question, ask: Ask, *, is_free: bool) -> tuple[Question, Foretold]:
    """The engine's word; where layers are free to choose, on the most that it says fit."""
    foretold = ask(question.facts, question.settings, question.place)
    if not is_free or foretold.terms is None:
        return question, foretold
    safe = question, foretold
    for k in range(question.most_layers(foretold.terms), question.settings.n_gpu_layers, -1):
        more = question.with_layers(k)
        word = ask(more.facts, more.settings, more.place)
        if _foretold(more, word).fits:
            return more, word
    return safe


def _foretold(question: Question, foretold: Foretold) -> MemoryPlan:
    """The plan as the engine sees it."""
    plan = _plan(question, foretold.parts(_parts(question)), foretold.tier)
    return dataclasses.replace(plan, n_splits=foretold.n_splits, warnings=(*plan.warnings, *foretold.warnings))


def _question(request: PlanRequest, facts: GgufFacts, place: Place, companions: Companions) -> Question:
    check_tokens(request)
    settings = settings_for(request, facts)
    check_split(settings.tensor_split, len(place.room.names))
    if refused := companions.contradiction(settings):
        raise UsageError(f"The draft model: {refused[0]}", hint=refused[1])
    question = Question(
        facts=facts,
        settings=settings,
        target=request.target,
        place=place,
        companions=companions,
        warnings=(weights_basis(request.quant),) if request.shape and request.quant else (),
    )
    return question if place.room.names else question.with_layers(0)


# --- parts of a plan -----------------------------------------------------------------------------------------------


def _parts(question: Question) -> Parts:
    """By arithmetic."""
    facts, room = question.facts, question.place.room
    found = reckon(facts, Grid.of((question.settings,), facts.n_layer), room.backends, room.shares)
    devices = [
        (int(found.weights_bytes[i, 0]), int(found.kv_cache_bytes[i, 0]), int(found.compute_bytes[i, 0]))
        for i in range(len(room.names))
    ]
    host = (found.host_weights_bytes, found.host_kv_cache_bytes, found.host_compute_bytes, found.output_bytes)
    weights, cache, compute, output = (int(kind[0]) for kind in host)
    return Parts(devices=tuple(devices), host=(weights, cache, compute, output))


def _plan(question: Question, parts: Parts, tier: Tier) -> MemoryPlan:
    facts, settings, room = question.facts, question.settings, question.place.room
    devices = tuple(_device_plans(question, parts, tier))
    host = _host_plan(question, parts)
    if question.companions:
        devices = question.companions.beside_devices(devices, settings, room)
        host = question.companions.beside_host(host, settings, room)
    why_not = refusals(devices, host)
    is_used = any(device.total_bytes for device in devices)
    is_known = room.is_known if is_used else host.available_bytes is not None
    return MemoryPlan(
        label=facts.path.name,
        quantisation=facts.quantisation,
        target=question.target,
        settings=settings,
        tier=tier,
        devices=devices,
        host=host,
        fits=False if why_not else (True if is_known else None),
        refusals=tuple(why_not),
        warnings=(
            *((f"The file is a {facts.standin_words}.",) if facts.stands_for else ()),
            *warnings(facts, settings),
            *question.warnings,
            *question.companions.warnings(facts, room, tier),
            *question.place.warnings,
            *_host_warnings(host),
        ),
    )


def _device_plans(question: Question, parts: Parts, tier: Tier) -> Iterator[DevicePlan]:
    place, room = question.place, question.place.room
    n_ctx = np.array([question.settings.n_ctx])
    beside = question.companions.footprints(question.settings, room, n_ctx).device_bytes[:, 0].tolist()
    for i, (weights, cache, compute) in enumerate(parts.devices):
        is_used = weights + cache + compute + beside[i] > 0
        band = math.ceil(compute * COMPUTE_BAND_FRAC) if tier is Tier.ARITHMETIC else 0
        runtime, basis = room.runtime_bytes[i] * is_used, place.bases[i]
        yield DevicePlan(
            name=room.names[i],
            weights_bytes=weights,
            kv_cache_bytes=cache,
            compute_bytes=compute,
            runtime_bytes=None if basis is RuntimeBasis.UNKNOWN else runtime,
            runtime_basis=basis,
            band_bytes=(band + room.margin_bytes[i]) * is_used,
            free_bytes=room.free_bytes[i],
        )


def _host_plan(question: Question, parts: Parts) -> HostPlan:
    weights, cache, compute, output = parts.host
    room = question.place.room
    return HostPlan(
        weights_bytes=weights,
        kv_cache_bytes=cache,
        compute_bytes=compute,
        output_bytes=output,
        is_mapped=is_mapped(question.settings),
        is_pinned=any(backend.offloads_ops for backend in room.backends),
        prompt_cache_bytes=_SERVER_PROMPT_CACHE_BYTES * (question.target is Target.LLAMA_SERVER),
        available_bytes=room.available_bytes,
    )


def _host_warnings(host: HostPlan) -> list[str]:
    found: list[str] = []
    if host.available_bytes is None:
        return found
    if host.held_bytes <= host.available_bytes < host.total_bytes:
        found.append("Main memory cannot keep all mapped weights: some will be read from disk for every token.")
    if host.prompt_cache_bytes and host.total_bytes + host.prompt_cache_bytes > host.available_bytes:
        found.append("The server's cache of past prompts may outgrow main memory: limit it with --cache-ram.")
    return found


# --- around it -----------------------------------------------------------------------------------------------------


def _rows(question: Question, terms: Sequence[Terms] | None) -> tuple[LayerRow, ...]:
    facts, settings, room = question.facts, question.settings, question.place.room
    if not room.names:
        return ()
    layers = np.arange(facts.n_layer + 2)
    used = question.footprints(terms, np.full_like(layers, settings.n_ctx), n_gpu_layers=layers).device_bytes
    totals = (used + np.where(used > 0, np.array(room.runtime_bytes)[:, None], 0)).sum(axis=0).tolist()
    if not room.is_known:
        return tuple(LayerRow(n_gpu_layers=k, device_bytes=n, n_ctx_max=None) for k, n in enumerate(totals))
    is_exact = (layers == settings.n_gpu_layers) & (terms is not None) & (not question.companions)

    def do_fit(n_ctx: Ints) -> NDArray[np.bool_]:
        found = question.footprints(terms, n_ctx, n_gpu_layers=layers)
        return fits(found, room, is_mapped=is_mapped(settings), is_exact=is_exact)

    whole = pad_256(max(settings.n_ctx, facts.n_ctx_train * settings.n_seq_max or N_CTX_UNTRAINED))
    contexts = largest_contexts(whole, len(layers), do_fit).tolist()
    return tuple(
        LayerRow(n_gpu_layers=k, device_bytes=n, n_ctx_max=n_ctx, is_all=n_ctx == whole)
        for k, (n, n_ctx) in enumerate(zip(totals, contexts, strict=True))
    )


def _costs(question: Question, terms: Sequence[Terms] | None) -> tuple[int | None, int | None]:
    """Device bytes of one more layer (of the last one, where all are there) and of 4096 more tokens of context."""
    if not question.place.room.names:
        return None, None
    k, n_ctx = question.settings.n_gpu_layers, pad_256(question.settings.n_ctx)
    below, above = (k, k + 1) if k <= question.facts.n_layer else (k - 1, k)
    layers, contexts = np.array([below, above, k, k]), np.array([n_ctx, n_ctx, n_ctx, n_ctx + _N_CTX_STEP])
    totals = question.footprints(terms, contexts, n_gpu_layers=layers).device_bytes.sum(axis=0)
    return int(totals[1] - totals[0]), int(totals[3] - totals[2])

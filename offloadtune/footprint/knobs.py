"""What the engine would refuse or change of settings, said before it is asked."""

from __future__ import annotations

from offloadtune.footprint.anatomy import anatomy_of
from offloadtune.footprint.grid import BYTES_OF_32
from offloadtune.records import GgufFacts, Settings

_N_BLOCK = 32
_N_SEQ_LIMIT = 256  # LLAMA_MAX_SEQ


def contradiction(facts: GgufFacts, settings: Settings) -> tuple[str, str] | None:
    """Why the engine would open no context with `settings`, and what to do; None where it would.

    Source: llama-context.cpp, llama_init_from_model and the constructor.
    """
    if settings.n_ctx < 1 or settings.n_batch < 1 or settings.n_ubatch < 1 or settings.n_seq_max < 1:
        return "n_ctx, n_batch, n_ubatch and n_seq_max must be at least 1.", "name numbers above 0"
    if settings.n_seq_max > _N_SEQ_LIMIT:
        return f"llama.cpp holds at most {_N_SEQ_LIMIT} sequences, not {settings.n_seq_max}.", "use fewer"
    if settings.n_ubatch > settings.n_batch:
        sentence = f"n_ubatch {settings.n_ubatch} is more than n_batch {settings.n_batch}, which it divides."
        return sentence, "raise n_batch, or lower n_ubatch"
    if 0 < settings.n_outputs_max < settings.n_seq_max:
        sentence = f"n_outputs_max {settings.n_outputs_max} is less than one output for each of {settings.n_seq_max}"
        return f"{sentence} sequences.", "raise it, or leave it at 0"
    quantised = [name for name in ("type_k", "type_v") if _is_quantised(getattr(settings, name))]
    if "type_v" in quantised and settings.flash_attn_type == "disabled":
        return f"A V cache of {settings.type_v} needs flash attention.", "use --flash-attn on, or --type-v f16"
    anatomy = anatomy_of(facts)
    is_latent = bool((anatomy.n_values_k > 0).any()) and not anatomy.n_values_v.any()
    if is_latent and settings.type_k != settings.type_v:
        return "This model keeps K and V in one cache, so their types must be the same.", "name one type for both"
    if quantised and settings.flash_attn_type != "disabled" and max(facts.n_embd_head_k, facts.n_embd_head_v) % _N_BLOCK:
        sentence = f"Heads of {facts.n_embd_head_k} values cannot be quantised in blocks of {_N_BLOCK}."
        return sentence, "keep the cache in f16"
    return None


def warnings(facts: GgufFacts, settings: Settings) -> list[str]:
    """What works but is seldom meant, one sentence each."""
    found = []
    n_ctx_seq = settings.n_ctx if settings.kv_unified else settings.n_ctx // settings.n_seq_max
    if facts.n_ctx_train and n_ctx_seq > facts.n_ctx_train:
        found.append(f"A context of {n_ctx_seq} is more than the {facts.n_ctx_train} tokens the model was trained for.")
    if settings.n_cpu_moe and not facts.n_expert:
        found.append("The model has no experts, so n_cpu_moe changes nothing.")
    if why := anatomy_of(facts).why_inexact:
        found.append(f"The cache is an estimate: {why}.")
    return found


def _is_quantised(name: str) -> bool:
    return BYTES_OF_32[name] < BYTES_OF_32["f16"]

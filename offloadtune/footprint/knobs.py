"""What the engine would refuse or change of settings, said before it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from offloadtune.footprint.anatomy import anatomy_of, has_dense_ffn
from offloadtune.footprint.grid import BYTES_OF_32
from offloadtune.records import GgufFacts, Settings

_N_BLOCK = 32
_KEYS_OF_STATES = ("kda.", "shortconv.", "ssm.", "token_shift", "wkv.")
_MAX_PRODUCT = 1 << 55  # leaves room for the bytes of a value and the kinds of memory
_N_CTX_LIMIT = (1 << 31) - 1
_N_SEQ_LIMIT = 256  # LLAMA_MAX_SEQ


def contradiction(facts: GgufFacts, settings: Settings) -> tuple[str, str] | None:
    """Why the engine would open no context with `settings`, and what to do; None where it would.

    Source: llama-context.cpp, llama_init_from_model and the constructor.
    """
    return next(_contradictions(facts, settings), None)


def _contradictions(facts: GgufFacts, settings: Settings) -> Iterator[tuple[str, str]]:
    if _is_beyond_counting(facts, settings):
        yield (
            "These sizes multiply to more bytes than can be counted.",
            "correct the numbers, or download the file again",
        )
    if min(settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max) < 1:
        yield "n_ctx, n_batch, n_ubatch and n_seq_max must be at least 1.", "name numbers above 0"
    if settings.n_ctx > _N_CTX_LIMIT:
        yield f"llama.cpp counts no context of {settings.n_ctx}.", f"stay below {_N_CTX_LIMIT}"
    if settings.n_seq_max > _N_SEQ_LIMIT:
        yield f"llama.cpp holds at most {_N_SEQ_LIMIT} sequences, not {settings.n_seq_max}.", "use fewer"
    if settings.n_ubatch > settings.n_batch:
        sentence = f"n_ubatch {settings.n_ubatch} is more than n_batch {settings.n_batch}, which it divides."
        yield sentence, "raise n_batch, or lower n_ubatch"
    quantised = [name for name in ("type_k", "type_v") if _is_quantised(getattr(settings, name))]
    if "type_v" in quantised and settings.flash_attn_type == "disabled":
        yield f"A V cache of {settings.type_v} needs flash attention.", "use --flash-attn on, or --type-v f16"
    anatomy = anatomy_of(facts)
    is_latent = bool(anatomy.n_values_k.any()) and not anatomy.n_values_v.any()
    if is_latent and settings.type_k != settings.type_v:
        yield "This model keeps K and V in one cache, so their types must be the same.", "name one type for both"
    n_head_values = max(facts.n_embd_head_k, facts.n_embd_head_v)
    if quantised and settings.flash_attn_type != "disabled" and n_head_values % _N_BLOCK:
        yield f"Heads of {n_head_values} values cannot be quantised in blocks of {_N_BLOCK}.", "keep the cache in f16"


def warnings(facts: GgufFacts, settings: Settings) -> list[str]:
    """What works but is seldom meant, one sentence each."""
    found = []
    n_ctx_seq = settings.n_ctx if settings.kv_unified else settings.n_ctx // settings.n_seq_max
    if facts.n_ctx_train and n_ctx_seq > facts.n_ctx_train:
        found.append(f"A context of {n_ctx_seq} is more than the {facts.n_ctx_train} tokens the model was trained for.")
    if settings.n_cpu_moe and not facts.n_expert:
        found.append("The model has no experts, so n_cpu_moe changes nothing.")
    if settings.n_cpu_ffn and not has_dense_ffn(facts):
        found.append("The model has no feed-forward weights besides experts, so n_cpu_ffn changes nothing.")
    if why := anatomy_of(facts).why_inexact:
        found.append(f"The cache is an estimate: {why}.")
    return found


def _is_beyond_counting(facts: GgufFacts, settings: Settings) -> bool:
    """Whether a product of counts would leave 64 bits: a header may claim anything."""
    n_ctx, n_ubatch, n_seq = (max(one, 1) for one in (settings.n_ctx, settings.n_ubatch, settings.n_seq_max))
    head = max(facts.n_embd_head_k, facts.n_embd_head_v, _claimed(facts, "attention."), 1)
    n_heads = max((*facts.n_head, *facts.n_head_kv, 1))
    of_token = max(n_heads * head, facts.n_vocab, facts.n_embd, _claimed(facts, "feed_forward", "expert_feed"))
    of_caches = (n_heads * head + _claimed(facts, *_KEYS_OF_STATES) ** 2) * facts.n_layer * n_seq
    products = (
        max(n_ctx, facts.n_ctx_train) * n_heads * head * facts.n_layer,
        of_caches,
        n_ctx * n_ubatch * n_heads,
        max(n_ubatch, n_seq) * of_token * max(facts.n_expert_used, 1),
    )
    return max(products) > _MAX_PRODUCT


def _claimed(facts: GgufFacts, *beginnings: str) -> int:
    """The largest count under the architecture's keys that begin so; a window is none, it ends with the context."""
    keys = tuple(f"{facts.arch}.{beginning}" for beginning in beginnings)
    values = [value for name, value in facts.key_values if name.startswith(keys) and not name.endswith("window")]
    counts = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return max((abs(one) for one in counts if isinstance(one, int)), default=0)


def _is_quantised(name: str) -> bool:
    return BYTES_OF_32[name] < BYTES_OF_32["f16"]

"""How answers change with other settings of a context: next-token probabilities of one text, by both."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offloadtune.engine.worker import native
from offloadtune.engine.worker.refused import RefusedError

low = native.low
Logs = NDArray[np.float32]


def measure(handle: Any, tokens: Any, n_last: int, settings: dict[str, Any], against: dict[str, Any]) -> dict[str, Any]:
    """Mean Kullback-Leibler divergence of `settings` from `against` after each of the last tokens; top tokens alike.

    The contexts are opened one after the other on the loaded placement. Raises RefusedError.
    """
    theirs, ours = (_log_probabilities(handle, tokens, n_last, one) for one in (against, settings))
    kl_nats = float(np.mean([_divergence(p, q) for p, q in zip(theirs, ours, strict=True)]))
    if not np.isfinite(kl_nats):
        raise RefusedError("divergence", "some probabilities are no numbers")
    n_same_top = int(np.sum(theirs.argmax(axis=1) == ours.argmax(axis=1)))
    return {"kl_nats": kl_nats, "n_same_top": n_same_top, "n_tokens": n_last}


def _divergence(log_p: Logs, log_q: Logs) -> float:
    """Of one distribution; tokens that never come (some files forbid them) count nothing."""
    comes = log_p > -np.inf
    p, q = log_p[comes].astype(np.float64), log_q[comes].astype(np.float64)
    return float(np.sum(np.exp(p) * (p - q)))


def _log_probabilities(handle: Any, tokens: Any, n_last: int, settings: dict[str, Any]) -> Logs:
    """Of every token of the vocabulary, after each of the last tokens, (n_last, n_vocab)."""
    context = low.llama_init_from_model(handle, native.context_params(settings))
    if not context:
        raise RefusedError("open", f"the engine could not open a context with a cache of {settings['type_v']}")
    n_vocab = low.llama_vocab_n_tokens(low.llama_model_get_vocab(handle))
    try:
        n_first, n_batch = len(tokens) - n_last, low.llama_n_batch(context)
        for begin in range(0, n_first, n_batch):
            _decode(context, tokens, begin, min(n_batch, n_first - begin))
        rows = np.empty((n_last, n_vocab), dtype=np.float32)
        for i in range(n_last):  # one by one: a context may keep the logits of one token only
            _decode(context, tokens, n_first + i, 1)
            logits = np.ctypeslib.as_array(low.llama_get_logits_ith(context, -1), shape=(n_vocab,))
            shifted = logits.astype(np.float64) - logits.max()
            rows[i] = shifted - np.log(np.exp(shifted).sum())
    finally:
        low.llama_free(context)
    return rows


def _decode(context: Any, tokens: Any, begin: int, n_tokens: int) -> None:
    pointer = ctypes.cast(ctypes.byref(tokens, begin * ctypes.sizeof(low.llama_token)), ctypes.POINTER(low.llama_token))
    code = low.llama_decode(context, low.llama_batch_get_one(pointer, n_tokens))
    low.llama_synchronize(context)
    if code != 0:
        raise RefusedError("decode", f"llama_decode returned {code} for {n_tokens} tokens at depth {begin}")

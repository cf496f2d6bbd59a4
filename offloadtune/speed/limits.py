"""What limits settings: the terms of the law that take most of the time, in words.

A share is a term's part of the seconds that the law expects of one passage: bytes read, products, fixed costs. With
amounts a, coefficients theta of covariance C, and s = theta a, the share p_i = theta_i a_i / s has

    variance of p_i  =  g' C g,     g_j = (a_i [i = j] - p_i a_j) / s
"""

from __future__ import annotations

import dataclasses

import numpy as np

from offloadtune.records import GgufFacts, Settings
from offloadtune.speed.law import N_SIGMA_90
from offloadtune.speed.predicting import Laws, amounts_for
from offloadtune.speed.terms import Term
from offloadtune.speeds import Phase, Rig
from offloadtune.sweeps import TimeShare
from offloadtune.units import format_bytes

LEAST_FRAC = 0.05
"""What takes less limits nothing."""

_READ = {"weights": "of weights", "cache": "of cache", "plain_cache": "of cache, without flash attention,"}
_COPIED = {
    "link": "of cache from main memory to the device",
    "link_pinned": "of weights to the device",
    "link_pageable": "of weights, mapped from the file, to the device",
}
_COUNTED = {
    "blocks": "what each block takes besides, on {processor}",
    "handovers": "handing over between devices",
    "mixed": "splitting the blocks over host and devices",
    "steps": "what each token takes besides",
    "streamed_blocks": "blocks computed by the device for the host",
    "ubatches": "what each ubatch takes besides",
    "prompts": "what each prompt takes besides",
}
_SUBJECTS = {Phase.PREFILL: "the prompt", Phase.DECODE: "each token"}


def limits_of(facts: GgufFacts, settings: Settings, laws: Laws, *, n_prompt: int, depth: int) -> tuple[TimeShare, ...]:
    """What takes the time of a prompt of `n_prompt` tokens after `depth` cached ones, and of each token after it.

    The largest of each phase first; only what takes a noticeable part.
    """
    alone = settings.replace(n_seq_max=1)  # one sequence writes, whatever there is room for
    any_threads = dataclasses.replace(laws.rig, host=dataclasses.replace(laws.rig.host, n_cores=None))
    found: list[TimeShare] = []
    for phase, n_new, n_cached in ((Phase.PREFILL, n_prompt, depth), (Phase.DECODE, 1, depth + n_prompt)):
        law = laws.of(phase)
        amounts, plain = (
            amounts_for(phase, facts, (alone,), rig, n_prompt=n_new, depth=n_cached)[:, 0]
            for rig in (laws.rig, any_threads)  # fewer threads make bytes slower, not more
        )
        seconds = float(law.mean @ amounts)
        if seconds <= 0:
            continue
        shares = law.mean * amounts / seconds
        slopes = (np.diag(amounts) - np.outer(shares, amounts)) / seconds
        spreads = N_SIGMA_90 * np.sqrt(np.einsum("ij,jk,ik->i", slopes, law.covariance, slopes))
        for i in np.argsort(-shares, kind="stable").tolist():
            share, spread, term = float(shares[i]), float(spreads[i]), law.terms[i]
            if share < LEAST_FRAC:
                break
            limit = TimeShare(
                phase=phase.value,
                term=term.name,
                n_bytes=round(plain[i]) if term.unit == "bytes" else None,
                share_frac=share,
                low_frac=max(share - spread, 0.0),
                high_frac=min(share + spread, 1.0),
                words=_words(phase, term, float(plain[i]), share, laws.rig),
                basis=law.basis,
            )
            found.append(limit)
    return tuple(found)


def _words(phase: Phase, term: Term, amount: float, share: float, rig: Rig) -> str:
    """What takes how much of the time, as a sentence without its full stop."""
    subject = _SUBJECTS[phase]
    name = "the device" if len(rig.devices) == 1 or not term.place.isdigit() else rig.devices[int(term.place)].name
    memory, processor = ("main memory", "the CPU") if term.place == "host" else (f"the memory of {name}", name)
    if term.kind in _READ:
        does = f"{subject} reads {format_bytes(amount)} {_READ[term.kind]} from {memory}"
    elif term.kind in _COPIED:
        does = f"{subject} copies {format_bytes(amount)} {_COPIED[term.kind]}"
    else:
        what = _COUNTED.get(term.kind, f"{term.what} on {{processor}}").format(processor=processor)
        return f"{what}: {share:.0%} of the time of {subject}"
    return f"{does}: {share:.0%} of its time"

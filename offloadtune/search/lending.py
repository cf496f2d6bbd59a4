"""From how many tokens on a device works for matrices in main memory, where that says more than op offload on or off.

A prompt is read in ubatches of one size and what is left of it in a last one. Only a threshold between the two parts
them: below both all is lent, as unasked, and above both nothing, as with op offload off, which needs no other load.
"""

from __future__ import annotations

import numpy as np

from offloadtune.footprint import backend_of, lends_from
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Settings
from offloadtune.search.space import Space, start_settings

MIN_BATCHES = (128, 512)


def min_batches(space: Space, base: Settings) -> list[int | None]:
    """Values of op_offload_min_batch, that of `base` first."""
    own = base.op_offload_min_batch
    return [own] if _why_idle(space) else [own, *(n for n in MIN_BATCHES if n > lends_from(base))]


def parts_the_prompt(space: Space, base: Settings, n_ubatch: Ints, from_tokens: Ints) -> Bools:
    """Whether a threshold lends the prompt's ubatches and not its rest; of several that do the same, the lowest."""
    n_prompt = space.workload.n_prompt_new
    rest = n_prompt % n_ubatch
    found = np.zeros(len(n_ubatch), dtype=np.bool_)
    for low, high in zip((lends_from(base), *MIN_BATCHES), MIN_BATCHES, strict=False):
        found |= (from_tokens == high) & (low <= rest) & (rest < high) & (high <= n_ubatch) & (n_ubatch <= n_prompt)
    return found


def why_no_min_batch(space: Space, n_ubatches: Ints) -> str:
    """Why no other threshold is tried with any of these ubatches, "" where one is or the user holds it."""
    base = start_settings(space)
    if _is_held(space):
        return ""
    if why := _why_idle(space):
        return why
    if any(parts_the_prompt(space, base, n_ubatches, np.full_like(n_ubatches, n)).any() for n in MIN_BATCHES):
        return ""
    return f"of a prompt of {space.workload.n_prompt_new} tokens it lends all or nothing, as op_offload does"


def _is_held(space: Space) -> bool:
    return "op_offload_min_batch" in {**space.kept, **space.fixed}


def _why_idle(space: Space) -> str:
    held = {**space.kept, **space.fixed}
    if _is_held(space):
        return "you hold it"
    if not space.counts_reading:
        return f"it changes nothing that the goal {space.goal} counts"
    names = held.get("devices", space.device_names)
    if not any(backend_of(name).offloads_ops for name in names or ()):
        return "no device works for matrices in main memory"
    return "" if held.get("op_offload", True) else "op offload is off"

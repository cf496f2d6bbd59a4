"""One step from the best settings so far, in each direction that can matter."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from offloadtune.records import Goal, Settings
from offloadtune.search.space import Space, sane
from offloadtune.units import format_count

_SMALLEST_UBATCH = 64

Step = tuple[dict[str, Any], str]


def neighbours(space: Space, best: Settings, ran: Collection[Settings]) -> Iterator[tuple[Settings, str]]:
    """Steps from `best`, none that the user or the self-test fixed; those that need a load of the file come last.

    `ran` are the settings known to run.
    """
    held = {**space.kept, **space.fixed}
    for changes, why in (*_context_steps(space, best), *_trades(space, best, ran)):
        if not any(name in held for name in changes):
            yield space.hold(sane(best.replace(**changes))), why


def _context_steps(space: Space, best: Settings) -> Iterator[Step]:
    other = "disabled" if best.flash_attn_type != "disabled" else "enabled"
    yield {"flash_attn_type": other}, f"flash attention {other}"
    for n_ubatch in (best.n_ubatch * 2, best.n_ubatch // 2):
        if n_ubatch < best.n_ubatch or _is_useful(space, n_ubatch):
            yield from _ubatch_step(best, n_ubatch)
    if best.n_gpu_layers < space.everything or best.devices == ():
        for n_threads in sorted({max(space.n_physical_cores // 2, 1), space.n_physical_cores, space.n_logical_cores}):
            yield {"n_threads": n_threads}, f"{format_count(n_threads, 'thread')} for decoding"
            yield {"n_threads_batch": n_threads}, f"{format_count(n_threads, 'thread')} for prompts"
    n_ctx = best.n_ctx * 2
    if space.goal is Goal.CONTEXT:  # the last step may be a short one
        n_ctx = min(n_ctx, space.facts.n_ctx_train // 256 * 256)
    if best.n_ctx < n_ctx <= space.facts.n_ctx_train:
        yield {"n_ctx": n_ctx}, f"more context, {n_ctx}"


def _trades(space: Space, best: Settings, ran: Collection[Settings]) -> Iterator[Step]:
    """Layers against batch, where only a part is on the device: fewer of the one make room for more of the other.

    A trade is worth its load only where the gain cannot be had without giving anything for it.
    """
    k = best.n_gpu_layers
    if not best.offloads or k >= space.everything:
        return
    larger = sane(best.replace(**_ubatch_changes(best, best.n_ubatch * 2)))
    if larger.n_ubatch > best.n_ubatch and _is_useful(space, larger.n_ubatch):
        for fewer in range(k - 1, max(k - 3, 0), -1):
            if space.hold(larger.replace(n_gpu_layers=fewer + 1)) not in ran:
                yield from _ubatch_step(best, larger.n_ubatch, n_gpu_layers=fewer)
    if space.hold(best.replace(n_gpu_layers=k + 1)) not in ran:
        yield from _ubatch_step(best, best.n_ubatch // 2, n_gpu_layers=k + 1)


def _is_useful(space: Space, n_ubatch: int) -> bool:
    """Whether a batch of the size before did not take the whole prompt."""
    return n_ubatch < 2 * space.workload.n_prompt_new


def _ubatch_changes(best: Settings, n_ubatch: int) -> dict[str, Any]:
    return {"n_ubatch": n_ubatch, "n_batch": max(best.n_batch, n_ubatch)}


def _ubatch_step(best: Settings, n_ubatch: int, **more: int) -> Iterator[Step]:
    if n_ubatch >= _SMALLEST_UBATCH:
        layers = "".join(f" with {format_count(k, 'layer')} on the device" for k in more.values())
        yield {**_ubatch_changes(best, n_ubatch), **more}, f"n_ubatch {n_ubatch}{layers}"

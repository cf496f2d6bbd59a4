"""What lies one step from settings: a layer more or fewer, the next batch, flash attention off, twice the context.

A step is a row of STEPS. What the user or the self-test holds is not varied, nor what changes nothing that counts.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from offloadtune.footprint import has_dense_ffn
from offloadtune.records import Settings
from offloadtune.search.axes import AXES, THREADS, idle_axes, useful_ubatches
from offloadtune.search.space import Space, start_settings

_SEVERAL_FRAC = 1 / 8
"""Of all layers: what several of them are."""

_PLAIN_V_TYPES = {"f32", "f16", "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`name` is the setting varied, `of` yields the settings one step from those given."""

    name: str
    of: Callable[[Space, Settings], Iterator[Settings]]


def neighbours_of(space: Space, settings: Settings) -> list[Settings]:
    """The settings one step from `settings`, in the order of STEPS."""
    held = {*space.kept, *space.fixed, *idle_axes(space)}
    found = (one for step in STEPS if step.name not in held for one in step.of(space, settings))
    return [one for one in dict.fromkeys(found) if one != settings]


def _layers(space: Space, settings: Settings) -> Iterator[Settings]:
    """One layer and several, more and fewer; the first on a device takes what devices there are."""
    if not space.has_devices or "devices" in space.fixed:
        return
    several = max(2, round(space.everything * _SEVERAL_FRAC))
    now = space.everything if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, space.everything)
    devices = settings.devices if settings.offloads else start_settings(space).devices
    n_away = max(settings.n_cpu_moe, settings.n_cpu_ffn)
    least = 0 if n_away == 0 else space.everything - n_away + 1
    for n in (1, several, -1, -several):
        if max(least, 0) <= now + n <= space.everything:
            yield settings.replace(n_gpu_layers=now + n, devices=devices)


def _away(name: str) -> Callable[[Space, Settings], Iterator[Settings]]:
    """The experts, or the feed-forward weights, of one block more in main memory, and of one block fewer."""

    def found(space: Space, settings: Settings) -> Iterator[Settings]:
        has_any = space.facts.n_expert > 0 if name == "n_cpu_moe" else _has_ffn_axis(space)
        if not has_any or not settings.offloads:
            return
        n_there_already = max(space.everything - settings.n_gpu_layers, 0)
        now = max(getattr(settings, name), n_there_already)
        for n in (now + 1, now - 1):
            if n_there_already <= n <= space.facts.n_layer:
                yield settings.replace(**{name: n if n > n_there_already else 0})

    return found


def _has_ffn_axis(space: Space) -> bool:
    return not space.facts.n_expert and has_dense_ffn(space.facts)


def _context(space: Space, settings: Settings) -> Iterator[Settings]:
    if 2 * settings.n_ctx <= space.facts.n_ctx_train:
        yield settings.replace(n_ctx=2 * settings.n_ctx)


def _ubatches(space: Space, settings: Settings) -> Iterator[Settings]:
    base = start_settings(space)
    for n in _next_to(settings.n_ubatch, useful_ubatches(space, base)):
        n_batch = min(max(base.n_batch, n), settings.n_ctx)
        if n <= n_batch and ("n_batch" not in {**space.kept, **space.fixed} or n <= settings.n_batch):
            yield settings.replace(n_ubatch=n, n_batch=n_batch)


def _flash(space: Space, settings: Settings) -> Iterator[Settings]:
    if settings.flash_attn_type == "disabled":
        on = start_settings(space).flash_attn_type
        yield settings.replace(flash_attn_type="enabled" if on == "disabled" else on)
    elif settings.type_v in _PLAIN_V_TYPES:
        yield settings.replace(flash_attn_type="disabled")


def _op_offload(space: Space, settings: Settings) -> Iterator[Settings]:
    """Where there is a device to lend work to, and something in main memory to work with."""
    if space.has_devices and settings.devices != () and _works_on_host(space, settings):
        yield settings.replace(op_offload=not settings.op_offload)


def _threads(name: str) -> Callable[[Space, Settings], Iterator[Settings]]:
    """The next fewer and more threads of one kind, where the CPU computes something to speak of."""

    def found(space: Space, settings: Settings) -> Iterator[Settings]:
        if _works_on_host(space, settings):
            counts = next(axis for axis in THREADS if axis.name == name).values(space, settings)
            for n in _next_to(getattr(settings, name), counts):
                yield settings.replace(**{name: n})

    return found


def _other(name: str) -> Callable[[Space, Settings], Iterator[Settings]]:
    """The other values of an axis, as a search would try them; the cache is kept away only where it lacks room."""

    def found(space: Space, settings: Settings) -> Iterator[Settings]:
        base = start_settings(space)
        values = next(axis for axis in AXES if axis.name == name).values(space, base)
        for value in values if settings.offloads else ():
            if name != "offload_kqv" or value == base.offload_kqv:
                yield settings.replace(**{name: value})

    return found


def _works_on_host(space: Space, settings: Settings) -> bool:
    is_part = 0 <= settings.n_gpu_layers < space.everything
    return not settings.offloads or is_part or settings.n_cpu_moe + settings.n_cpu_ffn > 0


def _next_to(value: int, values: Any) -> list[int]:
    """Those next to `value`, the smaller one last."""
    ordered = sorted(values)
    larger, smaller = bisect.bisect_right(ordered, value), bisect.bisect_left(ordered, value) - 1
    return ordered[larger : larger + 1] + ordered[smaller : smaller + 1] * (smaller >= 0)


STEPS = (
    Step(name="n_gpu_layers", of=_layers),
    Step(name="n_cpu_moe", of=_away("n_cpu_moe")),
    Step(name="n_cpu_ffn", of=_away("n_cpu_ffn")),
    Step(name="n_ctx", of=_context),
    Step(name="n_ubatch", of=_ubatches),
    Step(name="flash_attn_type", of=_flash),
    Step(name="op_offload", of=_op_offload),
    Step(name="offload_kqv", of=_other("offload_kqv")),
    Step(name="swa_full", of=_other("swa_full")),
    Step(name="no_host", of=_other("no_host")),
    Step(name="n_threads", of=_threads("n_threads")),
    Step(name="n_threads_batch", of=_threads("n_threads_batch")),
)

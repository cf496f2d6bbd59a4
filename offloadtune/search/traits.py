"""Traits of settings: what of them may have an effect on the time that the law does not know.

An effect is believed to be small, as wide as its trait says, until trials speak for more (surrogate.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offloadtune.footprint import BYTES_OF_32
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Settings
from offloadtune.search.columns import Columns
from offloadtune.search.expecting import Foretold
from offloadtune.speed.blocks import Floats
from offloadtune.speeds import Phase
from offloadtune.units import format_count

_FILLED_PARTS = tuple(i / 100 for i in range(80, 101))
"""Where a driver may begin to move memory to the host instead of failing: from there on all is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that traits look at: settings, and how their time is shared out by the law."""

    columns: Columns
    foretold: Foretold
    base: Settings
    n_cores: int
    device_bytes: int

    @property
    def host(self) -> Floats:
        return self.foretold.host_share

    @property
    def device(self) -> Floats:
        return 1.0 - self.foretold.host_share

    @property
    def ubatch_steps(self) -> Floats:
        """Doublings of the ubatch beyond the target's own."""
        return np.log2(self.columns.grid.n_ubatch / self.base.n_ubatch)

    def threads(self, phase: Phase) -> Floats:
        """Threads of a phase for each core."""
        return np.asarray(self.n_threads(phase) / self.n_cores)

    def n_threads(self, phase: Phase) -> Ints:
        return self.columns.n_threads if phase is Phase.DECODE else self.columns.n_threads_batch

    @property
    def filled(self) -> Floats:
        """Part of the devices' memory that is taken."""
        return np.asarray(self.columns.device_bytes / max(self.device_bytes, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """`width` is the standard deviation of its effect, `mean` what is expected of it; `widths` where phases differ."""

    name: str
    width: float
    is_axis: bool = False
    values: Callable[[View, Phase], Floats]
    mean: float = 0.0
    in_decode: float | None = None

    def width_in(self, phase: Phase) -> float:
        return self.in_decode if phase is Phase.DECODE and self.in_decode is not None else self.width


def _one_where(chosen: Bools) -> Floats:
    return np.where(chosen, 1.0, 0.0)


def _ubatch_on_device(view: View, _: Phase, *, n: int) -> Floats:
    return np.where(view.columns.grid.n_ubatch == n, view.device, 0.0)


def _ubatch_on_host(view: View, _: Phase, *, n: int) -> Floats:
    return np.where(view.columns.grid.n_ubatch == n, view.host, 0.0)


def _with_threads(view: View, phase: Phase, *, n: int) -> Floats:
    return np.where(view.n_threads(phase) == n, view.host, 0.0)


def _on_device(view: View, _: Phase, *, i: int) -> Floats:
    return np.asarray(view.foretold.device_shares[i])


def _filled_beyond(view: View, _: Phase, *, part: float) -> Floats:
    return _one_where(view.filled > part)


def traits_of(n_ubatches: Sequence[int], n_fewer_threads: Sequence[int], n_devices: int) -> list[Trait]:
    """All traits where these sizes are tried, and these numbers of threads below one a core."""
    return [*_of_places(n_devices), *_of_batches(n_ubatches), *_of_threads(n_fewer_threads), *_of_the_rest()]


def _of_places(n_devices: int) -> list[Trait]:
    return [
        Trait(name="all", width=0.1, values=lambda view, _: np.ones(len(view.columns))),
        Trait(name="work of the host", width=0.15, values=lambda view, _: view.host),
        Trait(name="work over the link", width=0.15, values=lambda view, _: view.foretold.link_share),
        Trait(name="the CPU alone", width=0.1, values=lambda view, _: _one_where(~view.columns.grid.has_devices)),
        Trait(name="all on the device", width=0.05, values=lambda view, _: _one_where(~view.columns.works_on_host)),
        *(
            Trait(name=f"work of device {i}", width=0.01, values=functools.partial(_on_device, i=i))
            for i in range(1, n_devices)
        ),
        Trait(name="experts away", width=0.05, values=lambda view, _: _one_where(view.columns.grid.n_cpu_moe > 0)),
        Trait(name="FFN away", width=0.05, values=lambda view, _: _one_where(view.columns.grid.n_cpu_ffn > 0)),
        Trait(
            name="the cache away",
            width=0.2,
            values=lambda view, _: _one_where(view.columns.grid.offload_kqv != view.base.offload_kqv),
        ),
        Trait(
            name="other windows",
            width=0.05,
            values=lambda view, _: _one_where(view.columns.grid.swa_full != view.base.swa_full),
        ),
        Trait(
            name="a coarser cache",
            width=0.1,
            values=lambda view, _: _one_where(view.columns.grid.v32 != BYTES_OF_32[view.base.type_v]),
        ),
    ]


def _of_batches(n_ubatches: Sequence[int]) -> list[Trait]:
    return [
        Trait(
            name="larger ubatches on the device",
            is_axis=True,
            width=0.04,
            in_decode=0.0,
            values=lambda view, _: view.ubatch_steps * view.device,
        ),
        Trait(
            name="larger ubatches on the host",
            is_axis=True,
            width=0.03,
            in_decode=0.0,
            values=lambda view, _: view.ubatch_steps * view.host,
        ),
        *(
            Trait(
                name=f"a ubatch of {n} on the device",
                is_axis=True,
                width=0.04,
                in_decode=0.0,
                values=functools.partial(_ubatch_on_device, n=n),
            )
            for n in n_ubatches
        ),
        *(
            Trait(
                name=f"a ubatch of {n} on the host",
                is_axis=True,
                width=0.03,
                in_decode=0.0,
                values=functools.partial(_ubatch_on_host, n=n),
            )
            for n in n_ubatches
        ),
    ]


def _of_threads(n_fewer: Sequence[int]) -> list[Trait]:
    return [
        Trait(
            name="fewer threads than cores",
            is_axis=True,
            width=0.08,
            mean=0.02,
            values=lambda view, phase: (view.threads(phase) < 1) * view.host,
        ),
        *(
            Trait(
                name=format_count(n, "thread"),
                is_axis=True,
                width=0.05,
                values=functools.partial(_with_threads, n=n),
            )
            for n in n_fewer
        ),
        Trait(
            name="more threads than cores",
            is_axis=True,
            width=0.06,
            mean=0.03,
            values=lambda view, phase: (view.threads(phase) > 1) * view.host,
        ),
    ]


def _of_the_rest() -> list[Trait]:
    return [
        Trait(
            name="no flash attention on the device",
            is_axis=True,
            width=0.1,
            values=lambda view, _: ~view.columns.grid.flash * view.device,
        ),
        Trait(
            name="no flash attention on the host",
            is_axis=True,
            width=0.08,
            values=lambda view, _: ~view.columns.grid.flash * view.host,
        ),
        Trait(
            name="no work lent to the device",
            is_axis=True,
            width=0.1,
            in_decode=0.0,
            values=lambda view, _: _one_where(~view.columns.grid.op_offload & view.columns.works_on_host),
        ),
        Trait(
            name="main memory as the CPU likes it",
            is_axis=True,
            width=0.2,
            values=lambda view, _: view.columns.no_host * view.host,
        ),
        Trait(
            name="nothing lent of what the CPU stores its own way",
            is_axis=True,
            width=0.3,
            in_decode=0.0,
            values=lambda view, _: view.columns.no_host * view.foretold.link_share,
        ),
        *(
            Trait(
                name=f"memory filled beyond {part:.0%}",
                width=0.01,
                values=functools.partial(_filled_beyond, part=part),
            )
            for part in _FILLED_PARTS
        ),
    ]

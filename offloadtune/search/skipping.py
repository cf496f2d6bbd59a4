"""What a search leaves out, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from offloadtune.footprint import estimate_footprint
from offloadtune.search.axes import idle_axes, useful_ubatches
from offloadtune.search.caches import why_no_windows
from offloadtune.search.lending import why_no_min_batch
from offloadtune.search.mesh import ruled_out
from offloadtune.search.pinning import why_no_no_host
from offloadtune.search.space import Space, can_fit, start_settings
from offloadtune.search.splits import why_no_splits
from offloadtune.units import format_bytes

_NEVER_VARIED = ("load_mode", "use_extra_bufts")


def skipped(space: Space) -> tuple[str, ...]:
    """A sentence for each setting or value of one that is not tried."""
    return (*_of_the_work(space), *ruled_out(space), *_of_placements(space), *_of_the_rest(space))


def _of_the_work(space: Space) -> Iterator[str]:
    base = start_settings(space)
    full = base.replace(n_gpu_layers=space.everything)
    if space.has_devices and not can_fit(space, full):
        needed = estimate_footprint(space.facts, full).least_bytes
        whose = "you allow" if space.limit_bytes == space.device_bytes else "the device has"
        yield (
            f"all {space.everything} layers on the device: by the header's arithmetic they need at least "
            f"{format_bytes(needed)}, {whose} {format_bytes(space.device_bytes)}"
        )
    if not space.counts_reading:
        yield f"n_ubatch above {base.n_ubatch}: where only tokens count it could but take room"
    elif space.workload.n_prompt_new <= 512:
        yield f"n_ubatch above 512: a prompt of {space.workload.n_prompt_new} new tokens is one batch already"
    if idle := idle_axes(space):
        yield f"other values of {' and '.join(idle)}: they change nothing that the goal {space.goal} counts"


def _of_placements(space: Space) -> Iterator[str]:
    if not space.has_devices:
        yield "n_gpu_layers, n_cpu_moe, n_cpu_ffn and op_offload: the engine lists no device"
    elif not space.facts.n_expert:
        yield "n_cpu_moe: the model has no experts"
    else:
        yield "n_cpu_ffn: of a mixture the experts are what main memory can take most of"


def _of_the_rest(space: Space) -> Iterator[str]:
    yield f"{', '.join(_NEVER_VARIED)}: they stay as the front end has them, or as you or the self-test say"
    ubatches = np.array(useful_ubatches(space, start_settings(space)))
    if space.has_devices and (why := why_no_min_batch(space, ubatches)):
        yield f"op_offload_min_batch: {why}"
    if space.has_devices and (why := why_no_no_host(space)):
        yield f"no_host: {why}"
    if space.n_devices > 1 and (why := why_no_splits(space)):
        yield f"tensor_split: {why}"
    if why := why_no_windows(space):
        yield f"swa_full: {why}"
    if not space.allow_kv_quant:
        yield "quantised KV cache: it changes the stored precision; --allow-kv-quant tries it"

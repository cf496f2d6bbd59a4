"""Settings as arrays, as the engine will round them, and how a device's backend stores tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from offloadtune.footprint.anatomy import Backend, Bools, Floats, Ints
from offloadtune.records import Settings

BYTES_OF_32 = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}
"""KV cache type -> bytes of 32 values, the block of every quantised one."""


N_TOKENS_OFFLOADED = 32
"""From so many tokens on a device is lent to matrices on the host, unless told otherwise (ggml-cuda.cu)."""

HOST = Backend(alignment=32)
GENERIC = Backend(alignment=128, copies_quantised_kv=True, offloads_ops=True, has_events=True, is_assumed=True)
"""A card of which only the size is known: what any backend takes."""

CUDA = Backend(alignment=128, row_padding=512, copies_quantised_kv=True, offloads_ops=True, has_events=True)
RPC = Backend(alignment=32, has_events=True, keeps_handed=True)
"""Another machine's device: it takes turns, but does not work for this machine's memory (ggml-rpc.cpp)."""

_OF_A_GPU = Backend(alignment=128, offloads_ops=True, has_events=True)
_BACKENDS = {"CUDA": CUDA, "ROCm": CUDA, "MUSA": CUDA, "RPC": RPC}
_BACKENDS |= dict.fromkeys(("Vulkan", "SYCL", "MTL", "Metal"), _OF_A_GPU)


def backend_of(device_name: str) -> Backend:
    """By llama.cpp's name of the device, like CUDA0; a backend without a rule of its own stores as the host does."""
    return _BACKENDS.get(device_name.rstrip("0123456789"), HOST)


def lends_from(settings: Settings) -> int:
    """From how many tokens on a device works for matrices in main memory."""
    return N_TOKENS_OFFLOADED if settings.op_offload_min_batch is None else settings.op_offload_min_batch


def pad_256(n_cells: int) -> int:
    """llama.cpp rounds contexts up to whole blocks of 256 cells."""
    return (n_cells + 255) // 256 * 256


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One setting an entry; all arrays have one length. Fields are those of `Settings`, as effective in the engine.

    `n_cells` is the cache of one stream in cells, `n_streams` how many there are; `k32` and `v32` are bytes of 32
    cached values, `flash` whether flash attention is on, `has_devices` whether any but the CPU may be used. From
    `lends_from` tokens on a device works for matrices in main memory. `splits` are shares of the devices,
    (n_settings, n_shares), 0 in all of a row where the engine decides; None where it always does.
    """

    n_gpu_layers: Ints
    n_cpu_moe: Ints
    n_cpu_ffn: Ints
    n_cells: Ints
    n_streams: Ints
    n_seq_max: Ints
    n_ubatch: Ints
    n_outputs: Ints
    k32: Ints
    v32: Ints
    flash: Bools
    unified: Bools
    swa_full: Bools
    offload_kqv: Bools
    op_offload: Bools
    lends_from: Ints
    has_devices: Bools
    splits: Floats | None = None

    def __len__(self) -> int:
        return len(self.n_gpu_layers)

    def __getitem__(self, part: slice) -> Grid:
        some: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        some = {name: values if values is None else values[part] for name, values in some.items()}
        return Grid(**some)

    @classmethod
    def of(cls, settings: Sequence[Settings], n_layer: int) -> Grid:
        """The grid of a list of settings, in its order."""
        return cls.over(
            n_layer,
            flash=[one.flash_attn_type != "disabled" for one in settings],
            k32=[BYTES_OF_32[one.type_k] for one in settings],
            v32=[BYTES_OF_32[one.type_v] for one in settings],
            n_gpu_layers=[one.n_gpu_layers if one.devices != () else 0 for one in settings],
            unified=[one.kv_unified for one in settings],
            lends_from=[lends_from(one) for one in settings],
            has_devices=[one.devices != () for one in settings],
            splits=_splits_of(settings),
            **{name: [getattr(one, name) for one in settings] for name in _SAME_NAME},
        )

    @classmethod
    def over(cls, n_layer: int, **given: Any) -> Grid:
        """The grid of arrays or numbers that broadcast to one length, rounded as llama-context.cpp does.

        Named as in `Settings`, but for `k32`, `v32`, `flash`, `unified`, `lends_from` and `splits` (a row for each
        setting, or one for all); those left out are its defaults.
        """
        splits = given.pop("splits", None)
        arrays = np.broadcast_arrays(*({**_DEFAULTS, **given}[name] for name in _DEFAULTS))
        asked = {name: np.atleast_1d(value) for name, value in zip(_DEFAULTS, arrays, strict=True)}
        k = asked["n_gpu_layers"].astype(np.int64)
        n_ctx, n_seq_max = asked["n_ctx"].astype(np.int64), np.maximum(asked["n_seq_max"].astype(np.int64), 1)
        n_batch = np.minimum(n_ctx, asked["n_batch"])
        n_ubatch = np.minimum(n_batch, np.where(asked["n_ubatch"] == 0, n_batch, asked["n_ubatch"]))
        n_outputs_max = np.where(asked["n_outputs_max"] == 0, n_batch, asked["n_outputs_max"])
        unified = asked["unified"].astype(np.bool_)
        n_streams = np.where(unified, 1, n_seq_max)
        return cls(
            n_gpu_layers=np.where(k < 0, n_layer + 1, np.minimum(k, n_layer + 1)),
            n_cpu_moe=np.clip(asked["n_cpu_moe"].astype(np.int64), 0, n_layer),
            n_cpu_ffn=np.clip(asked["n_cpu_ffn"].astype(np.int64), 0, n_layer),
            n_cells=_pad_256(_pad_256(n_ctx) // n_streams),
            n_streams=n_streams,
            n_seq_max=n_seq_max,
            n_ubatch=n_ubatch.astype(np.int64),
            n_outputs=np.minimum(n_ubatch, n_outputs_max).astype(np.int64),
            k32=asked["k32"].astype(np.int64),
            v32=asked["v32"].astype(np.int64),
            flash=asked["flash"].astype(np.bool_),
            unified=unified,
            swa_full=asked["swa_full"].astype(np.bool_),
            offload_kqv=asked["offload_kqv"].astype(np.bool_),
            op_offload=asked["op_offload"].astype(np.bool_),
            lends_from=asked["lends_from"].astype(np.int64),
            has_devices=asked["has_devices"].astype(np.bool_),
            splits=None if splits is None else np.broadcast_to(splits, (len(k), np.shape(splits)[-1])),
        )


_SAME_NAME = (
    "n_cpu_moe",
    "n_cpu_ffn",
    "n_ctx",
    "n_batch",
    "n_ubatch",
    "n_seq_max",
    "n_outputs_max",
    "swa_full",
    "offload_kqv",
    "op_offload",
)
_DEFAULTS = {
    **{name: getattr(Settings(), name) for name in ("n_gpu_layers", *_SAME_NAME)},
    "k32": BYTES_OF_32["f16"],
    "v32": BYTES_OF_32["f16"],
    "flash": False,
    "unified": False,
    "lends_from": N_TOKENS_OFFLOADED,
    "has_devices": True,
}


def _splits_of(settings: Sequence[Settings]) -> Floats | None:
    n_shares = max((len(one.tensor_split or ()) for one in settings), default=0)
    if not n_shares:
        return None
    rows = np.zeros((len(settings), n_shares))
    for row, one in zip(rows, settings, strict=True):
        row[: len(one.tensor_split or ())] = one.tensor_split or ()
    return rows


def _pad_256(cells: Ints) -> Ints:
    return (cells + 255) // 256 * 256

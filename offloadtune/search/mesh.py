"""All combinations of placements and axes as arrays, and the rules that leave some out, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offloadtune.footprint import BYTES_OF_32, lends_from
from offloadtune.footprint.anatomy import Bools, Ints
from offloadtune.records import Settings
from offloadtune.search.axes import AXES, placements_of, values_of
from offloadtune.search.caches import KV_NAMES
from offloadtune.search.lending import parts_the_prompt
from offloadtune.search.pinning import has_much_on_host
from offloadtune.search.space import Space, start_settings
from offloadtune.search.splits import with_splits

_I_LENT = [axis.name for axis in AXES].index("op_offload_min_batch")


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """Combinations before any rule, one entry each; `splits` are layers a device, 0 in all where the engine divides."""

    has_devices: Bools
    n_gpu_layers: Ints
    n_cpu_moe: Ints
    n_cpu_ffn: Ints
    splits: Ints
    n_ubatch: Ints
    flash: Bools
    op_offload: Bools
    offload_kqv: Bools
    swa_full: Bools
    v32: Ints
    lends_from: Ints
    no_host: Bools

    def __getitem__(self, chosen: Bools | Ints) -> Mesh:
        return Mesh(**{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`allows` says of each combination whether it may be tried, and `why` what speaks against the others."""

    why: str
    allows: Callable[[Space, Settings, Mesh], Bools]


RULES = (
    Rule(
        why="no ubatch is larger than its batch",
        allows=lambda space, base, mesh: mesh.n_ubatch <= ({**space.kept, **space.fixed}.get("n_batch") or base.n_ctx),
    ),
    Rule(
        why="experts of blocks that are not on the device are in main memory already",
        allows=lambda space, base, mesh: (
            (mesh.n_cpu_moe == base.n_cpu_moe) | (mesh.n_cpu_moe > space.everything - mesh.n_gpu_layers)
        ),
    ),
    Rule(
        why="feed-forward weights of blocks that are not on the device are in main memory already",
        allows=lambda space, base, mesh: (
            (mesh.n_cpu_ffn == base.n_cpu_ffn) | (mesh.n_cpu_ffn > space.everything - mesh.n_gpu_layers)
        ),
    ),
    Rule(
        why="nothing is lent to a device where nothing, or everything, lies on it",
        allows=lambda space, base, mesh: (
            (mesh.op_offload == base.op_offload)
            | (mesh.has_devices & ((mesh.n_gpu_layers < space.everything) | (mesh.n_cpu_moe + mesh.n_cpu_ffn > 0)))
        ),
    ),
    Rule(
        why="where it lends all of a prompt, or nothing, op_offload says as much",
        allows=lambda space, base, mesh: (
            (mesh.lends_from == lends_from(base))
            | (
                mesh.has_devices
                & mesh.op_offload
                & ((mesh.n_gpu_layers < space.everything) | (mesh.n_cpu_moe + mesh.n_cpu_ffn > 0))
            )
            & parts_the_prompt(space, base, mesh.n_ubatch, mesh.lends_from)
        ),
    ),
    Rule(
        why="how the CPU stores weights counts where it has many, and then no device works for it",
        allows=lambda space, base, mesh: (
            (mesh.no_host == base.no_host)
            | mesh.has_devices
            & has_much_on_host(space, mesh.n_gpu_layers, mesh.n_cpu_moe + mesh.n_cpu_ffn)
            & (mesh.op_offload == base.op_offload)
            & (mesh.lends_from == lends_from(base))
        ),
    ),
    Rule(
        why="a quantised V cache needs flash attention",
        allows=lambda _space, _base, mesh: mesh.flash | (mesh.v32 >= BYTES_OF_32["f16"]),
    ),
    Rule(
        why="a cache in main memory is for blocks on a device, which attends to it with flash attention only",
        allows=lambda _, base, mesh: (mesh.offload_kqv == base.offload_kqv) | (mesh.flash & (mesh.n_gpu_layers > 1)),
    ),
)


def allowed(space: Space, base: Settings) -> Mesh:
    """All combinations that no rule leaves out."""
    mesh = _mesh_of(space, base)
    for rule in RULES:
        mesh = mesh[np.asarray(rule.allows(space, base, mesh))]
    return mesh


def ruled_out(space: Space) -> list[str]:
    """Values of axes that a rule leaves no combination of, each with its reason."""
    base = start_settings(space)
    mesh, found = _mesh_of(space, base), []
    for rule in RULES:
        left = mesh[np.asarray(rule.allows(space, base, mesh))]
        lost = {name: np.setdiff1d(getattr(mesh, name), getattr(left, name)) for name in _WORDS}
        found += [f"{_WORDS[name](values.tolist())}: {rule.why}" for name, values in lost.items() if len(values)]
        mesh = left
    return found


_WORDS: dict[str, Callable[[list[Any]], str]] = {
    "n_ubatch": lambda sizes: f"n_ubatch {', '.join(map(str, sizes))}",
    "n_cpu_moe": lambda counts: f"n_cpu_moe {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else ""),
    "n_cpu_ffn": lambda counts: f"n_cpu_ffn {counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else ""),
    "flash": lambda states: f"flash attention {' and '.join('on' if one else 'off' for one in states)}",
    "op_offload": lambda states: f"op offload {' and '.join('on' if one else 'off' for one in states)}",
    "offload_kqv": lambda _: "offload_kqv off",
    "v32": lambda counts: f"a cache of {' or '.join(KV_NAMES.get(n, 'f16') for n in counts)}",
}


def _mesh_of(space: Space, base: Settings) -> Mesh:
    values = [values_of(space, base, axis) for axis in AXES]
    values[_I_LENT] = [lends_from(base.replace(op_offload_min_batch=one)) for one in values[_I_LENT]]
    placements, splits = with_splits(space, np.array(placements_of(space, base)))
    sizes = [len(placements), *(len(one) for one in values)]
    i_place, *indices = np.indices(sizes).reshape(len(sizes), -1)
    columns = (np.array(one)[i] for one, i in zip(values, indices, strict=True))
    n_ubatch, flash, op_offload, offload_kqv, swa_full, type_v, from_tokens, no_host = columns
    has_devices, n_gpu_layers, n_cpu_moe, n_cpu_ffn = placements[i_place].T
    return Mesh(
        has_devices=has_devices.astype(np.bool_),
        n_gpu_layers=n_gpu_layers.astype(np.int64),
        n_cpu_moe=n_cpu_moe.astype(np.int64),
        n_cpu_ffn=n_cpu_ffn.astype(np.int64),
        splits=splits[i_place],
        n_ubatch=n_ubatch.astype(np.int64),
        flash=flash != "disabled",
        op_offload=op_offload.astype(np.bool_),
        offload_kqv=offload_kqv.astype(np.bool_),
        swa_full=swa_full.astype(np.bool_),
        v32=np.array([BYTES_OF_32[name] for name in type_v.tolist()], dtype=np.int64),
        lends_from=from_tokens.astype(np.int64),
        no_host=no_host.astype(np.bool_),
    )

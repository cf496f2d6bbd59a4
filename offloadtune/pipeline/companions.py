"""Companions: a draft model on the last device and a projector of images on the first, beside the model itself."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offloadtune.footprint import COMPUTE_BAND_FRAC, Footprints, Room, contradiction, grid_of, is_mapped, reckon
from offloadtune.gguf import projector_bytes, read_gguf
from offloadtune.plans import DevicePlan, HostPlan, PlanRequest, Tier
from offloadtune.records import GgufFacts, Settings

_N_TOKENS_APART = 128  # llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE


@dataclass(frozen=True, kw_only=True)
class Companions:
    """What is loaded beside the model; nothing by default."""

    draft: GgufFacts | None = None
    projector_bytes: int = 0

    def __bool__(self) -> bool:
        return self.draft is not None or self.projector_bytes > 0

    def contradiction(self, settings: Settings) -> tuple[str, str] | None:
        """Why the draft model cannot have this context, and what to do."""
        return contradiction(self.draft, _of_draft(settings)) if self.draft else None

    def footprints(self, settings: Settings, room: Room, n_ctx: NDArray[np.int64]) -> Footprints:
        """What they take with each context; the projector counts as weights of the first device."""
        zeros = np.zeros((len(room.names), len(n_ctx)), dtype=np.int64)
        weights, cache, compute = zeros.copy(), zeros.copy(), zeros.copy()
        weights[:1] += self.projector_bytes
        host = np.zeros((4, len(n_ctx)), dtype=np.int64)
        if self.draft:
            drawn = _of_draft(settings).replace(n_gpu_layers=-1 if room.names else 0)
            grid = grid_of(self.draft, drawn, n_ctx=n_ctx)
            found = reckon(self.draft, grid, room.backends[-1:])
            weights[-1:] += found.weights_bytes
            cache[-1:] += found.kv_cache_bytes
            compute[-1:] += found.compute_bytes
            host = np.stack(
                [found.host_weights_bytes, found.host_kv_cache_bytes, found.host_compute_bytes, found.output_bytes]
            )
        return Footprints(
            weights_bytes=weights,
            kv_cache_bytes=cache,
            compute_bytes=compute,
            host_weights_bytes=host[0],
            host_kv_cache_bytes=host[1],
            host_compute_bytes=host[2],
            output_bytes=host[3],
        )

    def beside_devices(self, devices: tuple[DevicePlan, ...], settings: Settings, room: Room) -> tuple[DevicePlan, ...]:
        """The plans of the devices with what the companions take there."""
        found = self.footprints(settings, room, np.array([settings.n_ctx]))
        totals, computed = found.device_bytes[:, 0].tolist(), found.compute_bytes[:, 0].tolist()
        on_projector = [self.projector_bytes, *[0] * len(devices)]
        return tuple(
            dataclasses.replace(
                device,
                draft_bytes=total - projector,
                projector_bytes=projector,
                band_bytes=device.band_bytes + math.ceil(compute * COMPUTE_BAND_FRAC),
            )
            for device, total, compute, projector in zip(devices, totals, computed, on_projector, strict=False)
        )

    def beside_host(self, host: HostPlan, settings: Settings, room: Room) -> HostPlan:
        """The plan of main memory with what the companions take there: a projector's weights are always held."""
        found = self.footprints(settings, room, np.array([settings.n_ctx]))
        weights = int(found.host_weights_bytes[0])
        held = int((found.host_kv_cache_bytes + found.host_compute_bytes + found.output_bytes)[0])
        return dataclasses.replace(
            host,
            draft_bytes=weights + held,
            projector_bytes=0 if room.names else self.projector_bytes,
            companions_mapped_bytes=weights if is_mapped(settings) else 0,
        )

    def warnings(self, facts: GgufFacts, room: Room, tier: Tier) -> list[str]:
        """What is to be known of them."""
        found = []
        if self.draft and abs(self.draft.n_vocab - facts.n_vocab) > _N_TOKENS_APART:
            sizes = f"{self.draft.n_vocab} tokens, the model's {facts.n_vocab}"
            found.append(f"The draft model's vocabulary has {sizes}: llama.cpp wants the same one.")
        if self.draft and tier is not Tier.ARITHMETIC:
            found.append("The draft model is by arithmetic all the same (tier C).")
        if self.projector_bytes:
            where = room.names[0] if room.names else "main memory"
            found.append(f"What an image needs on {where} while it is encoded is not known, and comes on top.")
        return found


NONE = Companions()


def companions_for(request: PlanRequest) -> Companions:
    """The companions that are asked for. Raises GgufError."""
    return Companions(
        draft=read_gguf(request.draft, identify=False) if request.draft else None,
        projector_bytes=projector_bytes(request.mmproj) if request.mmproj else 0,
    )


def _of_draft(settings: Settings) -> Settings:
    """A draft model has the context of the model, and an f16 cache unless told otherwise."""
    return settings.replace(n_gpu_layers=-1, n_cpu_moe=0, n_cpu_ffn=0, tensor_split=None, type_k="f16", type_v="f16")

"""The header of a sweep that begins: what is asked, of what, on what."""

from __future__ import annotations

import dataclasses
import os
from datetime import datetime

import offloadtune
from offloadtune import search, store
from offloadtune.engine import Runner
from offloadtune.pipeline.spaces import space_of, wanted_n_ctx
from offloadtune.records import EngineBuild, GgufFacts, Machine
from offloadtune.sweeps import SweepRequest


def header_of(
    request: SweepRequest, facts: GgufFacts, machine: Machine, engine: EngineBuild, started_at: datetime
) -> store.SweepHeader:
    """All but what llama.cpp's --fit rule says."""
    return store.SweepHeader(
        offloadtune_version=offloadtune.__version__,
        machine_id=machine.machine_id,
        machine=machine,
        engine=engine,
        gguf_id=facts.gguf_id,
        gguf_path=facts.path.absolute(),
        file_bytes=facts.file_bytes,
        workload=request.workload,
        goal=request.goal,
        target=request.target,
        n_ctx=wanted_n_ctx(request, facts),
        fixed=request.fixed,
        allow_kv_quant=request.allow_kv_quant,
        limit_bytes=request.vram_limit_bytes,
        limits=request.limits,
        endpoints=request.endpoints,
        n_os_cpus=os.cpu_count(),
        ruler=store.RULER,
        n_layer=facts.n_layer,
        stands_for=facts.stands_for,
        started_at=started_at.isoformat(timespec="seconds"),
    )


def with_fit_rule(
    header: store.SweepHeader, facts: GgufFacts, runner: Runner, *, timeout_s: float
) -> store.SweepHeader:
    """`header` with what llama.cpp's --fit rule says of the memory free now.

    The rule may answer what no trial of ours can be given: parts of layers, or a split over several devices.
    """
    space, devices = space_of(facts, header), header.machine.offload_devices
    if not devices or "n_gpu_layers" in space.fixed:
        return header
    spared_bytes = sum(device.free_bytes for device in devices) - space.device_bytes
    if len(devices) > 1 and spared_bytes:
        return dataclasses.replace(header, no_fit="it knows no limit over several devices")
    n_fit_layers, is_whole = runner.fit_layers(
        search.settings_to_fit(space), search.FIT_MARGIN_BYTES + spared_bytes, timeout_s=timeout_s
    )
    if n_fit_layers is not None and not is_whole:
        return dataclasses.replace(header, no_fit="it would leave parts of layers on the host, or split them anew")
    return dataclasses.replace(header, n_fit_layers=n_fit_layers)

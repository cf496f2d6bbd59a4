"""From a sweep's header to what may be tried: the same for one under way and for one read back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from offloadtune import search, store
from offloadtune.footprint import pad_256
from offloadtune.pipeline.devices import runtime_bytes
from offloadtune.recalls import Question
from offloadtune.records import EngineBuild, GgufFacts, Machine, Settings
from offloadtune.sweeps import SweepRequest

_OWN_LAYOUTS = ("REPACK", "AMX_INT8")
"""What an engine says of its CPU where that stores quantised weights its own way."""


def space_of(facts: GgufFacts, header: store.SweepHeader, kept: Mapping[str, Any] | None = None) -> search.Space:
    """What a sweep of `facts` under `header` may try.

    `kept` is what its engine build needs to live; None asks what earlier self-tests found.
    """
    machine, cpu = header.machine, header.machine.host.cpu
    free = sum(device.free_bytes for device in machine.offload_devices)
    if kept is None:
        memory = SelfTestMemory(facts, machine, header.engine)
        kept = {**(memory.get(offloads=False) or {}), **(memory.get(offloads=True) or {})}
    return search.Space(
        facts=facts,
        workload=header.workload,
        goal=header.goal,
        target=header.target,
        n_ctx=header.n_ctx,
        device_bytes=free if header.limit_bytes is None else min(free, header.limit_bytes),
        limit_bytes=header.limit_bytes,
        n_physical_cores=cpu.n_physical_cores or cpu.n_logical_cores,
        n_logical_cores=cpu.n_logical_cores,
        n_os_cpus=header.n_os_cpus or os.cpu_count() or 1,
        fixed=header.fixed,
        allow_kv_quant=header.allow_kv_quant,
        n_fit_layers=header.n_fit_layers,
        no_fit=header.no_fit,
        lists_devices=bool(machine.offload_devices),
        runtime_bytes=runtime_bytes(machine, header.engine),
        kept=kept,
        n_devices=len(machine.offload_devices),
        device_names=tuple(device.name for device in machine.offload_devices),
        device_free_bytes=tuple(device.free_bytes for device in machine.offload_devices),
        limits=header.limits,
        pins_host=any(device.pins_host for device in machine.offload_devices),
        repacks=any(f"{name} = 1" in header.engine.system_info for name in _OWN_LAYOUTS),
    )


def asked_space(space: search.Space, question: Question) -> search.Space:
    """`space` of a stored sweep, as `question` has it; what that does not say stays."""
    limit_bytes = space.limit_bytes if question.vram_limit_bytes is None else question.vram_limit_bytes
    asked = dataclasses.replace(
        space,
        goal=question.goal or space.goal,
        workload=question.workload or space.workload,
        limit_bytes=limit_bytes,
        limits=question.limits.over(space.limits),
    )
    if limit_bytes is None:
        return asked
    return dataclasses.replace(asked, device_bytes=min(sum(space.device_free_bytes), limit_bytes))


def begin_settings(request: SweepRequest, facts: GgufFacts) -> Settings:
    """Where a sweep of `facts` begins, threads aside."""
    base = search.settings_of_target(request.target).replace(n_ctx=wanted_n_ctx(request, facts))
    settings = search.sane(base.replace(**request.fixed))
    return settings if settings.n_gpu_layers >= 0 else settings.replace(n_gpu_layers=facts.n_layer + 1)


def with_free(space: search.Space, header: store.SweepHeader) -> search.Space:
    """`space` with the device memory and the answer of the --fit rule that `header` has."""
    free = sum(header.free_bytes.values())
    return dataclasses.replace(
        space,
        device_bytes=free if space.limit_bytes is None else min(free, space.limit_bytes),
        device_free_bytes=tuple(header.free_bytes[device.name] for device in header.machine.offload_devices),
        n_fit_layers=header.n_fit_layers,
        no_fit=header.no_fit,
    )


def wanted_n_ctx(request: SweepRequest, facts: GgufFacts) -> int:
    """The context wanted: no smaller than the front end's own, unless the user or the training asks for less."""
    least = min(search.N_CTX_SHIPPED, facts.n_ctx_train or search.N_CTX_SHIPPED)
    return pad_256(request.n_ctx or max(request.workload.n_ctx_needed, least))


class SelfTestMemory:
    """What self-tests of this build, machine and kind of file found: the knobs it needs to live, {} where none."""

    def __init__(self, facts: GgufFacts, machine: Machine, engine: EngineBuild) -> None:
        self._file = store.FactFile(store.data_dir() / "self_tests.json")
        types = ",".join(sorted(name for name, _ in facts.type_bytes))
        devices = ",".join(device.name for device in machine.offload_devices)
        self._keys = {
            offloads: f"{engine.build_id}|{machine.machine_id}|{devices if offloads else 'cpu'}|{types}"
            for offloads in (False, True)
        }

    def get(self, *, offloads: bool) -> dict[str, Any] | None:
        """The knobs, None where it was never tested with the devices (`offloads`) or without."""
        knobs: dict[str, Any] | None = self._file.get(self._keys[offloads])
        return knobs

    def put(self, knobs: dict[str, Any], *, offloads: bool) -> None:
        self._file.put(self._keys[offloads], knobs)

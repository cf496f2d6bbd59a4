"""Lacking: limits of memory that nothing can keep, those that limit nothing, and what would help where nothing runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offloadtune import search
from offloadtune.errors import UsageError
from offloadtune.footprint import estimate_footprint, margin_of
from offloadtune.pipeline.spaces import begin_settings
from offloadtune.records import GgufFacts, Machine, Outcome, Settings, TrialResult
from offloadtune.search import Lack, Remedy, remedies
from offloadtune.sweeps import SweepRequest
from offloadtune.units import MIB, format_bytes

_MAY_BE_MEMORY = {Outcome.OUT_OF_MEMORY_HOST, Outcome.LOAD_FAILED}


def check_limits(request: SweepRequest, facts: GgufFacts) -> None:
    """Refuse limits of memory that arithmetic says nothing can keep, before anything is loaded. Raises UsageError."""
    limit, ram_limit = request.vram_limit_bytes, request.limits.host_bytes
    if limit is None and ram_limit is None:
        return
    settings, is_fixed = begin_settings(request, facts), "n_gpu_layers" in request.fixed
    least = estimate_footprint(facts, _most_away(facts, settings, request.fixed)).least_bytes if is_fixed else 0
    most_away = settings if is_fixed else settings.replace(n_gpu_layers=0 if limit == 0 else facts.n_layer + 1)
    held = search.least_host_bytes(facts, most_away)
    if limit is not None and least > limit:
        what = f"n_gpu_layers={settings.n_gpu_layers} takes at least {format_bytes(least)} of device memory"
        message = f"By the header's arithmetic {what}, and --vram-limit allows {format_bytes(limit)}"
    elif ram_limit is not None and held > ram_limit:
        what = f"this takes at least {format_bytes(held)} of main memory, with as many layers on devices as may be"
        message = f"By the header's arithmetic {what}, and --ram-limit allows {format_bytes(ram_limit)}"
    else:
        return
    lack = Lack(
        facts=facts,
        settings=settings,
        device_bytes=limit,
        host_bytes=ram_limit,
        are_layers_fixed=is_fixed,
        n_ctx_needed=request.workload.n_ctx_needed,
        vram_limit_bytes=limit,
        ram_limit_bytes=ram_limit,
    )
    found = remedies(lack)
    raise UsageError(f"{message}{_enough_words(found)}.", hint=_acts(found) or "use a smaller model")


def _most_away(facts: GgufFacts, settings: Settings, fixed: Mapping[str, Any]) -> Settings:
    """`settings` with as much of their layers in main memory as a sweep may try."""
    name = "n_cpu_moe" if facts.n_expert else "n_cpu_ffn"
    return settings if name in fixed else settings.replace(**{name: facts.n_layer})


def idle_limits(request: SweepRequest, machine: Machine) -> Iterator[str]:
    """Limits of memory above what there is, a sentence each."""
    limit, ram_limit = request.vram_limit_bytes, request.limits.host_bytes
    free = sum(device.free_bytes for device in machine.offload_devices)
    available = machine.host.ram.available_bytes
    if limit is not None and not machine.offload_devices:
        yield "--vram-limit changes nothing: the engine lists no device."
    elif limit is not None and limit > free:
        yield f"--vram-limit {format_bytes(limit)} changes nothing: the devices have {format_bytes(free)} free."
    if ram_limit is not None and ram_limit > available:
        yield f"--ram-limit {format_bytes(ram_limit)} changes nothing: {format_bytes(available)} are available now."


def advice(space: search.Space, machine: Machine, results: Sequence[TrialResult]) -> tuple[str, str]:
    """What would give room to a sweep of which nothing ran: the end of a sentence, and what to do; "" for nothing.

    As measured, where trials ran but over a limit, else by arithmetic.
    """
    if measured := tuple(_measured_remedies(space, results)):
        return _enough_words(measured), _acts(measured)
    if results and not any(search.ran_out(r, space.limit_bytes) or r.outcome in _MAY_BE_MEMORY for r in results):
        return "", ""
    found = remedies_of(space, machine)
    return _enough_words(found, "by arithmetic "), _acts(found)


def remedies_of(space: search.Space, machine: Machine) -> tuple[Remedy, ...]:
    """What would give the settings that a sweep begins with room, where arithmetic finds none."""
    limit, ram_limit, available = space.limit_bytes, space.limits.host_bytes, machine.host.ram.available_bytes
    lack = Lack(
        facts=space.facts,
        settings=search.start_settings(space),
        device_bytes=space.device_bytes,
        device_taken_bytes=space.runtime_bytes or margin_of(space.device_bytes),
        host_bytes=available if ram_limit is None else min(available, ram_limit),
        are_layers_fixed="n_gpu_layers" in space.fixed,
        n_ctx_needed=space.workload.n_ctx_needed,
        vram_limit_bytes=limit,
        ram_limit_bytes=ram_limit,
        device_free_bytes=sum(device.free_bytes for device in machine.offload_devices),
        host_free_bytes=available,
    )
    return remedies(lack)


def over_words(space: search.Space, results: Sequence[TrialResult]) -> Iterator[str]:
    """What those took at the least that ran, but over a limit."""
    of_devices = [sum(peak for _, peak in r.device_peak_bytes) for r in results if _is_over_devices(space, r)]
    of_host = [one.host_peak_rss_bytes or 0 for one in results if search.is_over_ram(space, one)]
    if of_devices:
        yield f"{format_bytes(min(of_devices))} of device memory were taken at the least"
    if of_host:
        yield f"{format_bytes(min(of_host))} of main memory were taken at the least"


def _is_over_devices(space: search.Space, result: TrialResult) -> bool:
    return search.is_over_limit(result, space.limit_bytes)


def _measured_remedies(space: search.Space, results: Sequence[TrialResult]) -> Iterator[Remedy]:
    """Limits that what ran would keep."""
    of_devices, of_host = _taken(space, results)
    for option, what, limit, taken in (
        ("--vram-limit", "device", space.limit_bytes, of_devices),
        ("--ram-limit", "main", space.limits.host_bytes, of_host),
    ):
        if taken and limit is not None:
            n_mib = -(-min(taken) // MIB)
            words = f"{n_mib} MiB of {what} memory instead of {format_bytes(limit)}"
            yield Remedy(words=words, act=f"{option} {n_mib}MiB", given_up_frac=1 - limit / (n_mib * MIB))


def _taken(space: search.Space, results: Sequence[TrialResult]) -> tuple[list[int], list[int]]:
    """Bytes of devices, and of main memory, of those that would be an answer but for one limit alone."""
    as_fixed = [one for one in results if search.is_as_fixed(space, one)]
    over_ram = [one for one in as_fixed if search.is_over_ram(space, one)]
    over_devices = [one for one in as_fixed if _is_over_devices(space, one)]
    return (
        [sum(peak for _, peak in one.device_peak_bytes) for one in over_devices if one not in over_ram],
        [one.host_peak_rss_bytes or 0 for one in over_ram if one not in over_devices],
    )


def _enough_words(found: Sequence[Remedy], basis: str = "") -> str:
    return f"; {basis}{found[0].words} would be enough" if found else ""


def _acts(found: Sequence[Remedy]) -> str:
    return f"use {', or '.join(one.act for one in found)}" if found else ""

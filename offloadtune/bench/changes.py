"""What two runs of a bench have in common, and what changed between them, in words with both values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from offloadtune.benches import BenchRun
from offloadtune.records import Host, Settings, Workload
from offloadtune.units import format_bytes_per_s, format_split

_RATE_APART = 1.5
"""Measured read rates of one memory swing less than this from run to run, on a busy machine too."""


def computer(host: Host) -> tuple[Any, ...]:
    """What a computer is known by, whatever cards are in it and seen: the stable facts of its machine_id."""
    return host.os.split()[0], host.cpu.brand, host.cpu.n_logical_cores, round(host.ram.total_bytes / 2**30)


def kind(run: BenchRun) -> tuple[Any, ...]:
    """What a run was made with and on, as far as it moves figures at once; runs of one kind scatter by noise alone."""
    made_on = (run.engine.build_id, _device_words(run), run.drivers, run.endpoints)
    return run.settings, run.target, run.gguf_id, *made_on


def changes(before: BenchRun, after: BenchRun) -> tuple[str, ...]:
    """What `after` was run with or on that `before` was not; () where nothing is known to have changed."""
    return (*_script(before, after), *_software(before, after), *_machine(before, after), *_question(before, after))


def _script(before: BenchRun, after: BenchRun) -> Iterator[str]:
    if before.script != after.script:
        yield f"script {before.script} -> {after.script}, so the figures do not compare"


def _software(before: BenchRun, after: BenchRun) -> Iterator[str]:
    yield from _changed("driver", _joined(before.drivers), _joined(after.drivers))
    if before.engine.version != after.engine.version:
        yield f"engine {before.engine.version} -> {after.engine.version}"
    else:
        yield from _changed("engine build", before.engine.build_id, after.engine.build_id)
    yield from _changed("offloadtune", before.offloadtune_version, after.offloadtune_version)


def _machine(before: BenchRun, after: BenchRun) -> Iterator[str]:
    ram, ram_now = before.machine.host.ram, after.machine.host.ram
    speed, speed_now = ram.configured_mt_per_s, ram_now.configured_mt_per_s
    if speed and speed_now and speed != speed_now:
        yield f"RAM {speed} -> {speed_now} MT/s"
    rate, rate_now = ram.read_bytes_per_s, ram_now.read_bytes_per_s
    if rate and rate_now and max(rate, rate_now) > _RATE_APART * min(rate, rate_now):
        yield f"RAM reads {format_bytes_per_s(rate)} -> {format_bytes_per_s(rate_now)}"
    if before.machine.devices is not None and after.machine.devices is not None:
        yield from _changed("devices", _device_words(before), _device_words(after))
    yield from _changed("endpoints", _joined(before.endpoints), _joined(after.endpoints))


def _question(before: BenchRun, after: BenchRun) -> Iterator[str]:
    yield from _changed("file", before.gguf_path.name, after.gguf_path.name)
    yield from _changed("content of the file", before.gguf_id[:12], after.gguf_id[:12])
    yield from _changed("target", before.target, after.target)
    yield from _changed("workload", _workload_words(before.workload), _workload_words(after.workload))
    for field in dataclasses.fields(Settings):
        value, value_now = getattr(before.settings, field.name), getattr(after.settings, field.name)
        if value != value_now:
            words = _split_words if field.name == "tensor_split" else _setting_words
            yield f"{field.name} {words(value)} -> {words(value_now)}"


def _changed(what: str, before: str, after: str) -> Iterator[str]:
    if before != after:
        yield f"{what} {before} -> {after}"


def _joined(values: tuple[str | None, ...]) -> str:
    return ", ".join(dict.fromkeys(value or "unknown" for value in values)) or "none"


def _device_words(run: BenchRun) -> str:
    return _joined(tuple(f"{device.name} {device.description}" for device in run.machine.offload_devices))


def _workload_words(workload: Workload | None) -> str:
    if workload is None:
        return "none"
    return f"{workload.n_prefix_cached}/{workload.n_prompt_new}/{workload.n_gen}/{workload.n_parallel}"


def _split_words(value: tuple[float, ...] | None) -> str:
    return "by free memory" if value is None else format_split(value)


def _setting_words(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    return "all" if value is None else str(value)

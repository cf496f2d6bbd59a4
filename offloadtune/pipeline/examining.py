"""Examining: what holds the machine back, for the file that is named or for any, and the machine written down."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import offloadtune
from offloadtune import doctor, export, store
from offloadtune.conditions import Conditions
from offloadtune.engine import cached_frac, drop_cached
from offloadtune.errors import UsageError
from offloadtune.gguf import read_gguf
from offloadtune.hardware import Diagnosis, Disk, EngineFault, Examination, MachineProfile
from offloadtune.pipeline.journals import read_all
from offloadtune.pipeline.probing import machine_alone, machine_beside, measured_now, untimed_words
from offloadtune.pipeline.reaching import backends_in, closed_paths
from offloadtune.pipeline.rebuilding import Advice, advise, worth_words
from offloadtune.pipeline.spaces import SelfTestMemory
from offloadtune.probe import THIS_MACHINE, local_servers, read_conditions
from offloadtune.records import EngineBuild, GgufFacts

_TRANSFER_S = 30.0
_TILES_LOST = {"use_extra_bufts": False}

_VARIABLE_STARTS = ("LLAMA_ARG_", "GGML_CUDA_", "GGML_METAL_", "GGML_SYCL_", "GGML_VK_")
_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GGML_BACKEND_PATH",
        "GGML_DISABLE_VULKAN",
        "GGML_OP_OFFLOAD_MIN_BATCH",
        "HIP_VISIBLE_DEVICES",
        "HSA_OVERRIDE_GFX_VERSION",
        "ONEAPI_DEVICE_SELECTOR",
        "ROCR_VISIBLE_DEVICES",
    }
)
"""What llama.cpp's programs and its backends read beside their command line."""


def diagnose(
    path: Path | None, endpoints: Sequence[str] = (), since: Path | None = None, *, is_quick: bool = False
) -> Diagnosis:
    """What the doctor says of this machine, of the model file at `path` where one is named.

    `since` is a machine.toml to compare with. `is_quick` measures nothing. While a sweep measures, neither disk nor
    engine is asked. Raises GgufError, UsageError, EngineError.
    """
    before = store.read_machine(since) if since else None
    facts = read_gguf(path, identify=False) if path else None
    now = read_conditions(local_servers(endpoints))
    owner = measured_now()
    if owner is None:
        profile = machine_alone(endpoints, measure=not is_quick, transfer_s=_TRANSFER_S)
        untimed = "Measuring was not asked for." if is_quick else ""
    else:
        profile, untimed = machine_beside(owner), untimed_words(owner)
    examination = _examination(facts, profile, now, owner)
    if facts:
        examination = dataclasses.replace(examination, disks=(_disk(facts.path, untimed),))
    bytes_per_token = doctor.bytes_per_token(facts) if facts else None
    return Diagnosis(
        examination=examination,
        ladder=doctor.ladder(profile, examination.disks, bytes_per_token),
        findings=doctor.examine(examination),
        bytes_per_token=bytes_per_token,
        changes=_changes(before, profile, owner) if before else None,
    )


def _examination(facts: GgufFacts | None, profile: MachineProfile, now: Conditions, owner: str | None) -> Examination:
    """What the doctor judges by, but for the disk."""
    machine, engine, hardware = profile.machine, profile.engine, profile.hardware
    advice = advise(machine, engine) if owner is None else Advice(line=None)  # compilers are asked for it
    in_container = hardware.surroundings.container is not None
    vendors = {gpu.vendor for gpu in hardware.gpus if gpu.kind == "discrete"}
    backends = backends_in(Path(engine.library_dir)) if engine else None
    closed = closed_paths(vendors, backends, in_container=in_container) if sys.platform == "linux" else ()
    return Examination(
        profile=profile,
        now=now,
        rebuild_line=advice.line,
        card_advice=advice.cards,
        backends=backends,
        closed_paths=closed,
        faults=tuple(_faults(facts, profile)),
        config_paths=config_paths(os.environ, sys.platform),
        file_bytes=facts.file_bytes if facts else None,
        variables=variables(os.environ),
        measured_now=owner,
    )


def _changes(before: MachineProfile, profile: MachineProfile, owner: str | None) -> tuple[str, ...]:
    """An engine that was not asked is not gone."""
    after = store.at_rest(profile)
    return doctor.changes(before, after if owner is None else dataclasses.replace(after, engine=before.engine))


def keep_machine(examination: Examination) -> Path | None:
    """Write the machine that was examined down and give the path. Raises ExportError.

    What was measured before is not replaced by what was not. What the machine was before it changed stays beside it.
    Nothing is written, and None given, while a sweep measures: then the devices are not known, which are a part of what
    the machine is called.
    """
    if examination.measured_now is not None:
        return None
    profile = examination.profile
    path, before = store.machine_path(profile.machine), None
    is_there = False
    with contextlib.suppress(OSError):  # of a folder that may not be looked into; writing says so
        is_there = path.exists()
    if is_there and not profile.hardware.memory.speeds:
        return path
    with contextlib.suppress(UsageError):  # damaged, or a newer version's: written anew
        before = store.read_machine(path) if is_there else None
    if before is not None:
        profile = dataclasses.replace(profile, device_speeds=store.with_figures_of(before, profile))
        if doctor.changes(before, store.at_rest(profile), with_measured=False):
            export.write_text(store.previous_path(path), store.render_machine(before, offloadtune.__version__))
    export.write_text(path, store.render_machine(profile, offloadtune.__version__))
    return path


def config_paths(environ: Mapping[str, str], platform: str) -> tuple[Path, ...]:
    """The files from which llama.cpp's programs take settings, as far as they are here.

    By common_params_apply_system_config in its common/arg.cpp: the machine's first, then the user's.
    """
    if platform == "win32":
        folders = [Path(environ[name]) for name in ("PROGRAMDATA", "APPDATA") if environ.get(name)]
    else:
        home = Path(environ["HOME"]) if environ.get("HOME") else None
        own = Path(environ["XDG_CONFIG_HOME"]) if environ.get("XDG_CONFIG_HOME") else home and home / ".config"
        folders = [Path("/etc"), *([own] if own else [])]
    found: list[Path] = []
    for path in (folder / "llama.cpp" / "config.ini" for folder in folders):
        with contextlib.suppress(OSError, ValueError):
            found += [path] if path.exists() else []
    return tuple(found)


def variables(names: Collection[str]) -> tuple[str, ...]:
    """Those of the names that change how llama.cpp runs."""
    return tuple(sorted(name for name in names if name.startswith(_VARIABLE_STARTS) or name in _VARIABLES))


def _disk(path: Path, untimed: str) -> Disk:
    from offloadtune.probe.disk import read_disk  # noqa: PLC0415 - only where a file is named

    return read_disk(path, THIS_MACHINE, drop_cached, cached_frac, untimed=untimed)


def _faults(facts: GgufFacts | None, profile: MachineProfile) -> Iterator[EngineFault]:
    """What self-tests found that this build cannot live without, with this file or with those measured before."""
    machine, engine = profile.machine, profile.engine
    if engine is None:
        return
    if facts is not None:
        memory = SelfTestMemory(facts, machine, engine)
        for offloads in (False, True):
            if knobs := memory.get(offloads=offloads):
                yield _fault(knobs, engine, offloads=offloads)
        return
    here = (machine.machine_id, engine.build_id)
    stored, _ = read_all(lambda header: (header.machine_id, header.engine.build_id) == here)
    if knobs := next((one.content.kept for one in stored if one.content.kept), None):
        yield _fault(knobs, engine, offloads=None)


def _fault(knobs: dict[str, Any], engine: EngineBuild, *, offloads: bool | None) -> EngineFault:
    """The loss of AMX tiles leaves a trace of its own; which signal it was is not remembered."""
    from offloadtune.probe.instructions import engine_instruction_sets  # noqa: PLC0415

    is_tiles = not offloads and knobs == _TILES_LOST and "AMX_INT8" in engine_instruction_sets(engine.system_info)
    return EngineFault(
        knobs=tuple((name, str(value)) for name, value in knobs.items()),
        offloads=offloads,
        worth=worth_words(is_tiles=is_tiles),
    )

"""Examining: what holds the machine back, for the file that is named or for any, and the machine written down."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import offloadtune
from offloadtune import doctor, export, store
from offloadtune.engine import SelfTest, cached_frac, drop_cached
from offloadtune.gguf import read_gguf
from offloadtune.hardware import Diagnosis, Disk, Examination, MachineProfile
from offloadtune.pipeline.journals import read_all
from offloadtune.pipeline.probing import probe_machine
from offloadtune.pipeline.rebuilding import missing_backend, rebuild_line, rebuild_words
from offloadtune.pipeline.spaces import SelfTestMemory
from offloadtune.probe import THIS_MACHINE, local_servers, read_conditions
from offloadtune.records import GgufFacts

_TRANSFER_S = 30.0
_TILES_LOST = {"use_extra_bufts": False}

_VARIABLE_STARTS = ("LLAMA_ARG_", "GGML_CUDA_", "GGML_VK_")
_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GGML_DISABLE_VULKAN",
        "GGML_OP_OFFLOAD_MIN_BATCH",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
"""What llama.cpp's programs and its backends read beside their command line."""


def diagnose(
    path: Path | None, endpoints: Sequence[str] = (), since: Path | None = None, *, is_quick: bool = False
) -> Diagnosis:
    """What the doctor says of this machine, of the model file at `path` where one is named.

    `since` is a machine.toml to compare with. `is_quick` measures nothing. Raises GgufError, UsageError, EngineError.
    """
    before = store.read_machine(since) if since else None
    facts = read_gguf(path) if path else None
    now = read_conditions(local_servers(endpoints))
    profile = probe_machine(endpoints, measure=not is_quick, transfer_s=_TRANSFER_S)
    needs = _needs(facts, profile)
    examination = Examination(
        profile=profile,
        now=now,
        advice=_advice(profile, needs),
        needs=tuple((name, str(value)) for name, value in needs.items()),
        config_paths=config_paths(os.environ, sys.platform),
        disks=(_disk(facts.path),) if facts and not is_quick else (),
        file_bytes=facts.file_bytes if facts else None,
        variables=variables(os.environ),
    )
    bytes_per_token = doctor.bytes_per_token(facts) if facts else None
    return Diagnosis(
        examination=examination,
        ladder=doctor.ladder(profile, examination.disks, bytes_per_token),
        findings=doctor.examine(examination),
        bytes_per_token=bytes_per_token,
        changes=doctor.changes(before, store.at_rest(profile)) if before else None,
    )


def keep_machine(profile: MachineProfile) -> Path:
    """Write the machine down and give the path. Raises ExportError.

    What was measured before is not replaced by what was not.
    """
    path = store.machine_path(profile.machine)
    is_there = False
    with contextlib.suppress(OSError):  # of a folder that may not be looked into; writing says so
        is_there = path.exists()
    if profile.hardware.memory.speeds or not is_there:
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


def _disk(path: Path) -> Disk:
    from offloadtune.probe.disk import read_disk  # noqa: PLC0415 - only where a file is named

    return read_disk(path, THIS_MACHINE, drop_cached, cached_frac)


def _needs(facts: GgufFacts | None, profile: MachineProfile) -> dict[str, Any]:
    """What self-tests found that this build cannot live without, with this file or with any."""
    machine, engine = profile.machine, profile.engine
    if engine is None:
        return {}
    if facts is not None:
        memory = SelfTestMemory(facts, machine, engine)
        return {**(memory.get(offloads=False) or {}), **(memory.get(offloads=True) or {})}
    here = (machine.machine_id, engine.build_id)
    stored, _ = read_all(lambda header: (header.machine_id, header.engine.build_id) == here)
    return {name: value for one in reversed(stored) for name, value in (one.content.kept or {}).items()}


def _advice(profile: MachineProfile, needs: dict[str, Any]) -> str | None:
    """The line that builds a better engine, and why; None where this one does all it could, as far as is known."""
    from offloadtune.probe.instructions import engine_instruction_sets  # noqa: PLC0415

    machine, engine = profile.machine, profile.engine
    if engine is None:
        return rebuild_line()
    if advice := missing_backend(machine, engine):
        return advice
    used = engine_instruction_sets(engine.system_info)
    if needs:
        # the tiles' fault leaves this very trace; which signal it was is not remembered
        is_tiles = needs == _TILES_LOST and "AMX_INT8" in used
        found = SelfTest(knobs=needs, sentence="It is broken.", signal="SIGILL" if is_tiles else None)
        return rebuild_words(found, machine).strip()
    return rebuild_line() if set(profile.hardware.cpu.instruction_sets) - set(used) else None

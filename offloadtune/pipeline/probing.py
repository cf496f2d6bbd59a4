"""Probing: the machine and its engine's devices, a file's header, and where a mistake of ours is written down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from offloadtune import store
from offloadtune.engine import Runner
from offloadtune.errors import EngineError, EngineMissingError
from offloadtune.gguf import read_gguf
from offloadtune.pipeline.rebuilding import missing_backend, rebuild_line
from offloadtune.probe import probe_host
from offloadtune.records import EngineBuild, GgufFacts, Machine, Note


def probe(endpoints: Sequence[str] = (), *, measure: bool = True) -> tuple[Machine, EngineBuild | None]:
    """The machine, and the engine when it runs; without one the devices are unknown and a note says why.

    Raises EngineError when an endpoint does not answer.
    """
    host = probe_host(measure=measure)
    try:
        with Runner(Path(), endpoints) as runner:
            build, devices = runner.describe()
    except (EngineMissingError, EngineError) as error:
        if endpoints and isinstance(error, EngineError):
            raise
        note = Note(subject="devices", reason=f"{error} To install it: {rebuild_line()}")
        return Machine(host=host, devices=None, notes=(note,)), None
    machine = Machine(host=host, devices=devices)
    if advice := missing_backend(machine, build):
        machine = Machine(host=host, devices=devices, notes=(Note(subject="devices", reason=advice),))
    return machine, build


def crash_path() -> Path:
    """Where the traceback of a mistake of our own is to be kept."""
    return store.data_dir() / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S}.txt"


def inspect(path: Path) -> GgufFacts:
    """What the header of the file says. Raises GgufError."""
    return read_gguf(path)

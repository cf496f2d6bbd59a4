"""Probing: the machine and its engine's devices, a file's header, and where a mistake of ours is written down."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from offloadtune import store
from offloadtune.conditions import Disturbance
from offloadtune.engine import Runner
from offloadtune.errors import EngineError, EngineMissingError
from offloadtune.gguf import read_gguf
from offloadtune.interference import on_cards, standing
from offloadtune.pipeline.rebuilding import missing_backend, rebuild_line
from offloadtune.plans import CacheCost
from offloadtune.probe import local_servers, probe_host, read_conditions
from offloadtune.records import EngineBuild, GgufFacts, Machine, Note, Settings

_N_CTX_BLOCK = 256


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


def standing_now(endpoints: Sequence[str] = (), cards: Collection[str] | None = None) -> tuple[Disturbance, ...]:
    """What stands against measuring now, of the cards those with these PCI bus ids (None: all).

    To be asked before an engine of ours runs; a server at `endpoints` may.
    """
    return standing(on_cards(read_conditions(local_servers(endpoints)), cards))


def crash_path() -> Path:
    """Where the traceback of a mistake of our own is to be kept."""
    return store.data_dir() / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S}.txt"


def inspect(path: Path) -> GgufFacts:
    """What the header of the file says. Raises GgufError."""
    return read_gguf(path)


def cache_cost(facts: GgufFacts) -> CacheCost | None:
    """What a context costs in cache: f16, every block, one sequence, blocks that slide keeping no more than they must.

    None where the header's counts are absurd.
    """
    from offloadtune.footprint import contradiction, kv_cache_bytes  # noqa: PLC0415 - numpy is slow to import

    n_ctx = (facts.n_swa // _N_CTX_BLOCK + 8) * _N_CTX_BLOCK  # past the window and a batch
    settings = Settings(n_ctx=n_ctx, swa_full=False)
    if contradiction(facts, settings):
        return None
    small, large = (kv_cache_bytes(facts, settings.replace(n_ctx=n)) for n in (n_ctx, n_ctx + _N_CTX_BLOCK))
    per_token = (large - small) // _N_CTX_BLOCK
    return CacheCost(bytes_per_token=per_token, fixed_bytes=small - per_token * n_ctx)

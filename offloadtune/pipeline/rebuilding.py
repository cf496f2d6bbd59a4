"""Rebuilding the engine: when another build would do more, how to get it, and what is known of its worth."""

from __future__ import annotations

import os

from offloadtune.engine import SelfTest
from offloadtune.install import Toolchain, backend_advice, engine_line, install_command, plan_build, read_toolchain
from offloadtune.records import EngineBuild, Machine

_WORTH_OF_TILES = (
    "a rebuild that keeps the AMX tiles read SmolLM2-135M at 847 tok/s and wrote at 143 on another machine (2-core "
    "Xeon), against 130 and 62 with the extra buffers off; here it is not measured"
)


def rebuild_line() -> str:
    """The line that installs the engine for what this machine has."""
    return engine_line(plan_build(_look_around()), install_command())


def rebuild_words(found: SelfTest, machine: Machine) -> str:
    """What a rebuild of the broken engine that the self-test `found` would be worth, and its line; "" for a sound one.

    Only of one fault is a figure known, and it is another machine's.
    """
    if not found.sentence:
        return ""
    loses_tiles = found.signal == "SIGILL" and found.knobs == {"use_extra_bufts": False}
    is_known = loses_tiles and "amx_tile" in machine.host.cpu.flags
    worth = _WORTH_OF_TILES if is_known else "what a rebuild would be worth cannot be known before it is done"
    return f" Worth knowing: {worth}. To rebuild: {rebuild_line()}"


def missing_backend(machine: Machine, engine: EngineBuild) -> str | None:
    """The sentence and the line for cards that the driver shows and this engine cannot use; None without such."""
    return backend_advice(machine, engine, _look_around, install_command())


def _look_around() -> Toolchain:
    return read_toolchain(os.environ)

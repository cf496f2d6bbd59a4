"""Rebuilding the engine: when another build would do more, how to get it, and what is known of its worth."""

from __future__ import annotations

import os
from dataclasses import dataclass

from offloadtune.engine import SelfTest
from offloadtune.install import Toolchain, backend_advice, engine_line, install_command, plan_build, read_toolchain
from offloadtune.records import EngineBuild, Machine

_WORTH_OF_TILES = (
    "a rebuild that keeps the AMX tiles read SmolLM2-135M at 847 tok/s and wrote at 143 on another machine (2-core "
    "Xeon), against 130 and 62 with the extra buffers off; here it is not measured"
)


_REACHES = {"ROCm": ("amd",), "Vulkan": ("amd", "intel")}
"""Backend -> the vendors whose cards it brings; NVIDIA's have advice of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The line that builds the engine for this machine, None where it would leave out the cards that are used now.

    `cards` are for each vendor what to do so that the engine can use its cards.
    """

    line: str | None
    cards: tuple[tuple[str, str], ...] = ()


def rebuild_line() -> str:
    """The line that installs the engine for what this machine has."""
    return engine_line(plan_build(_look_around()), install_command())


def advise(machine: Machine, engine: EngineBuild | None) -> Advice:
    """What another build would do more, and the line for it."""
    plan = plan_build(_look_around())
    line = engine_line(plan, install_command())
    if engine is None:
        return Advice(line=line)
    nvidia = missing_backend(machine, engine)
    cards = (("nvidia", nvidia),) if nvidia else ()
    if any(not device.name.startswith("RPC") for device in machine.offload_devices):
        return Advice(line=None if plan.backend == "CPU" else line, cards=cards)
    reached = tuple((vendor, f"To use it by {plan.backend}: {line}") for vendor in _REACHES.get(plan.backend, ()))
    return Advice(line=line, cards=(*cards, *reached))


def rebuild_words(found: SelfTest, machine: Machine) -> str:
    """What a rebuild of the broken engine that the self-test `found` would be worth, and its line; "" for a sound one.

    Only of one fault is a figure known, and it is another machine's.
    """
    if not found.sentence:
        return ""
    loses_tiles = found.signal == "SIGILL" and found.knobs == {"use_extra_bufts": False}
    worth = worth_words(is_tiles=loses_tiles and "amx_tile" in machine.host.cpu.flags)
    return f" {worth} To rebuild: {rebuild_line()}"


def worth_words(*, is_tiles: bool) -> str:
    """What a rebuild is worth; `is_tiles` where it would bring back the AMX tiles."""
    known = _WORTH_OF_TILES if is_tiles else "what a rebuild would be worth cannot be known before it is done"
    return f"Worth knowing: {known}."


def missing_backend(machine: Machine, engine: EngineBuild) -> str | None:
    """The sentence and the line for cards that the driver shows and this engine cannot use; None without such."""
    return backend_advice(machine, engine, _look_around, install_command())


def _look_around() -> Toolchain:
    return read_toolchain(os.environ)

"""The GPU of an Apple chip: it has the machine's memory, up to a limit."""

from __future__ import annotations

from offloadtune.hardware import GpuHardware
from offloadtune.probe.facts import Fact, known, label, notes_in, parse_int
from offloadtune.probe.host import Door
from offloadtune.records import Note
from offloadtune.units import MIB

_LIMIT = "iogpu.wired_limit_mb"


def read_apple(door: Door, index: int) -> tuple[tuple[GpuHardware, ...], tuple[Note, ...]]:
    """The chip's GPU, () on a Mac with an Intel processor."""
    name = label(door.command("sysctl", "-n", "machdep.cpu.brand_string"))
    if "Apple" not in name:  # "VirtualApple" to a program for Intel's
        reason = "The processor is not Apple's own, and the graphics cards of such a Mac are not looked for."
        if not name:
            reason = "The command sysctl does not name the processor, so that its GPU is not known."
        return (), (Note(subject="gpus.apple", reason=reason),)
    shared = _shared_bytes(f"gpus[{index}].shared_bytes", door)
    working_set = _working_set_bytes(f"gpus[{index}].working_set_bytes", door, known(shared))
    gpu = GpuHardware(
        vendor="apple",
        index=index,
        name=name,
        kind="integrated",
        working_set_bytes=known(working_set),
        shared_bytes=known(shared),
    )
    return (gpu,), notes_in(shared, working_set)


def _shared_bytes(subject: str, door: Door) -> Fact[int]:
    n_bytes = _sysctl(door, "hw.memsize")
    return n_bytes or Note(subject=subject, reason="The command sysctl does not tell hw.memsize.")


def _working_set_bytes(subject: str, door: Door, shared_bytes: int | None) -> Fact[int]:
    """What somebody set, and nothing else: what macOS gives unset is Metal's to say, through the engine."""
    n_mb = _sysctl(door, _LIMIT)
    if not n_mb:
        reason = (
            f"{_LIMIT} is not set here, and then macOS decides: about 67 % of memory up to 36 GB, about 75 % above. "
            "The engine's Metal device tells it exactly."
        )
        return Note(subject=subject, reason=reason)
    if shared_bytes is not None and n_mb * MIB > shared_bytes:
        return Note(subject=subject, reason=f"{_LIMIT} is {n_mb}, which is more than the machine has.")
    return n_mb * MIB


def _sysctl(door: Door, name: str) -> int | None:
    value = parse_int(door.command("sysctl", "-n", name))
    return value if value is not None and 0 <= value < 1 << 43 else None

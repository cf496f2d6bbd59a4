"""Main memory in depth: modules, channels and what they could move, without any speed measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offloadtune.hardware import MemoryHardware, MemoryModule
from offloadtune.probe.channels import BITS_OF_A_CHANNEL, bus_bits, channels_of, most_bus_bits
from offloadtune.probe.dmi import Slot, Slots
from offloadtune.probe.facts import Fact, known, notes_in
from offloadtune.probe.host import Door, System
from offloadtune.probe.modules import configured_fact, kind_fact
from offloadtune.probe.numa import read_numa_nodes
from offloadtune.records import Note

APPLE_BYTES_PER_S: Mapping[tuple[str, int | None], float] = {
    ("Apple M1", None): 68.25e9,
    ("Apple M1 Pro", None): 200e9,
    ("Apple M1 Max", None): 400e9,
    ("Apple M1 Ultra", None): 800e9,
    ("Apple M2", None): 100e9,
    ("Apple M2 Pro", None): 200e9,
    ("Apple M2 Max", None): 400e9,
    ("Apple M2 Ultra", None): 800e9,
    ("Apple M3", None): 100e9,
    ("Apple M3 Pro", None): 150e9,
    ("Apple M3 Max", 14): 300e9,
    ("Apple M3 Max", 16): 400e9,
    ("Apple M3 Ultra", None): 819e9,
    ("Apple M4", None): 120e9,
    ("Apple M4 Pro", None): 273e9,
    ("Apple M4 Max", 14): 410e9,
    ("Apple M4 Max", 16): 546e9,
}
"""Chip, and its cores where there are two kinds of it -> bandwidth.

Source: the technical specifications at support.apple.com; of the first M1, LPDDR4X-4266 at 128 bits.
"""


def read_memory(door: Door, system: System, found: Slots | str) -> tuple[MemoryHardware, tuple[Note, ...]]:
    """What `read_slots` found, and a Note for each field that stays None."""
    slots = found.slots if isinstance(found, Slots) else ()
    channels = channels_of(slots)
    kind = kind_fact("memory.kind", found)
    rated = _rated(found)
    configured = configured_fact("memory.configured_mt_per_s", found)
    modules = _modules(slots, channels) or Note(subject="memory.modules", reason=_why_no_slots(found))
    n_slots = _n_slots(found)
    bits = bus_bits(slots, channels) if slots else _why_no_slots(found)
    most_bits = most_bus_bits(slots, channels, known(n_slots)) if slots else _why_no_slots(found)
    n_channels, n_most = _n_channels("memory.n_channels", bits), _n_channels("memory.n_channels_most", most_bits)
    theoretical = _theoretical(door, system, found, bits, configured)
    source: Fact[str] = found.source if isinstance(found, Slots) else Note(subject="memory.source", reason=found)
    nodes = read_numa_nodes(door)
    memory = MemoryHardware(
        kind=known(kind),
        rated_mt_per_s=known(rated),
        configured_mt_per_s=known(configured),
        modules=known(modules),
        n_slots=known(n_slots),
        n_channels=known(n_channels),
        n_channels_most=known(n_most),
        theoretical_bytes_per_s=known(theoretical),
        source=known(source),
        numa_nodes=known(nodes) or (),
    )
    return memory, notes_in(kind, rated, configured, modules, n_slots, n_channels, n_most, theoretical, source, nodes)


def _why_no_slots(found: Slots | str) -> str:
    return found if isinstance(found, str) else "The memory is part of the chip: macOS lists no modules."


def _modules(slots: Sequence[Slot], channels: Sequence[str | None]) -> tuple[MemoryModule, ...]:
    return tuple(
        MemoryModule(
            slot=slot.locator,
            channel=channel,
            kind=slot.kind,
            n_bytes=slot.n_bytes,
            rated_mt_per_s=slot.rated_mt_per_s,
            configured_mt_per_s=slot.configured_mt_per_s,
            n_bits=slot.n_bits,
        )
        for slot, channel in zip(slots, channels, strict=True)
        if slot.n_bytes
    )


def _rated(found: Slots | str) -> Fact[int]:
    """The slowest module's rating."""
    subject = "memory.rated_mt_per_s"
    if isinstance(found, str) or not found.slots:
        return Note(subject=subject, reason=_why_no_slots(found))
    rated = [slot.rated_mt_per_s for slot in found.filled if slot.rated_mt_per_s]
    return min(rated, default=0) or Note(subject=subject, reason="The firmware gives no rated memory speed.")


def _n_slots(found: Slots | str) -> Fact[int]:
    subject = "memory.n_slots"
    if isinstance(found, str) or not found.slots:
        return Note(subject=subject, reason=_why_no_slots(found))
    return found.n_slots or Note(subject=subject, reason=f"{found.source} does not tell how many slots there are.")


def _n_channels(subject: str, bits: int | str) -> Fact[int]:
    if isinstance(bits, str):
        return Note(subject=subject, reason=bits)
    n_channels, n_rest = divmod(bits, BITS_OF_A_CHANNEL)
    if n_rest or not n_channels:
        return Note(subject=subject, reason=f"The modules are {bits} bits wide, which is no number of whole channels.")
    return n_channels


def _theoretical(door: Door, system: System, found: Slots | str, bits: int | str, configured: Fact[int]) -> Fact[float]:
    subject = "memory.theoretical_bytes_per_s"
    if isinstance(found, Slots) and found.soldered_kind:
        return _apple_bytes_per_s(door, system) or Note(
            subject=subject, reason="This chip is not in the list of Apple's memory bandwidths, or comes with several."
        )
    if isinstance(bits, str):
        return Note(subject=subject, reason=bits)
    if isinstance(configured, Note):
        return Note(subject=subject, reason=configured.reason)
    return bits / 8 * configured * 1e6


def _apple_bytes_per_s(door: Door, system: System) -> float | None:
    chip = (door.command("sysctl", "-n", "machdep.cpu.brand_string") or "").strip()
    return APPLE_BYTES_PER_S.get((chip, None)) or APPLE_BYTES_PER_S.get((chip, system.n_physical_cores))

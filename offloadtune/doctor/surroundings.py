"""What holds a run back from outside: the system, drives, files that change settings unseen, what goes on right now."""

from __future__ import annotations

from collections.abc import Iterator

from offloadtune.conditions import DisturbanceKind
from offloadtune.doctor.classes import disk_class, disk_kind
from offloadtune.hardware import Disk, Examination, Finding, Severity
from offloadtune.interference import standing
from offloadtune.units import MIB, format_bytes, format_bytes_per_s, format_seconds

SLOW_DISK_BYTES_PER_S = {"nvme": 0.8e9, "ssd": 0.2e9, "hdd": 0.05e9}
"""Slower than this no sound drive of its kind reads a file in order, through the page cache and encryption."""

LEAST_BYTES_READ = 64 * MIB

_STANDING: dict[DisturbanceKind, tuple[str, str, str]] = {
    DisturbanceKind.BATTERY: (
        "on_battery",
        "The machine runs on its battery, and spares it.",
        "Plug the machine in before you measure or compare.",
    ),
    DisturbanceKind.POWER_PROFILE: (
        "power_saver",
        "The machine saves power, so the CPU runs below its speed.",
        "Choose the performance profile: powerprofilesctl set performance, or cpupower frequency-set -g performance.",
    ),
    DisturbanceKind.GPU_PROCESS: (
        "gpu_memory_taken",
        "Other programs hold memory of a card that a model then lacks.",
        "Close these programs before a model is loaded.",
    ),
    DisturbanceKind.GPU_THROTTLE: (
        "gpu_throttled",
        "A card protects itself and runs below its speed.",
        "Look at its power supply and cables, its power limit, and on a laptop the charger.",
    ),
}
"""What stands against measuring -> code, words, next step; the evidence is its own sentence.

Swap is left to the rule in `memory`.
"""

_COOL_DOWN = "Let the card cool down; clean its fans and filters."


def now(examined: Examination) -> Iterator[Finding]:
    """What stands against measuring costs speed whatever is run; beside a sweep it would be the sweep's own doing."""
    for one in standing(examined.now) if examined.measured_now is None else ():
        if one.kind in _STANDING:
            code, words, step = _STANDING[one.kind]
            step = _COOL_DOWN if one.kind is DisturbanceKind.GPU_THROTTLE and _is_hot(examined) else step
            evidence = f"{one.words}{_clocks(examined, one.kind)}"
            yield Finding(code=code, severity=Severity.WARNING, words=words, evidence=evidence, next_step=step)


def sysmem_fallback(examined: Examination) -> Iterator[Finding]:
    """Windows' NVIDIA driver moves what does not fit to main memory without a word, and runs become far slower."""
    hardware = examined.profile.hardware
    is_windows = examined.profile.machine.host.os.startswith("Windows")
    cards = [gpu.name for gpu in hardware.gpus if gpu.vendor == "nvidia"]
    if cards and (is_windows or hardware.surroundings.is_wsl):
        yield Finding(
            code="sysmem_fallback",
            severity=Severity.NOTE,
            words="Where a model does not quite fit, Windows' driver moves a part of it to main memory unasked, and it"
            " runs many times slower instead of failing.",
            evidence=f"{'WSL on Windows' if hardware.surroundings.is_wsl else 'Windows'} with {', '.join(cards)};"
            " how the driver is set is not told.",
            next_step='In the NVIDIA Control Panel set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback".',
        )


def config_files(examined: Examination) -> Iterator[Finding]:
    """llama.cpp's programs read them before anything else (common/arg.cpp); its Python bindings do not."""
    if examined.config_paths:
        yield Finding(
            code="config_file",
            severity=Severity.NOTE,
            words="llama-server and its kin read settings from a file, under whatever their command line says.",
            evidence=f"Found: {', '.join(map(str, examined.config_paths))}.",
            next_step="Look through it: what the command line leaves out comes from there.",
        )


def variables(examined: Examination) -> Iterator[Finding]:
    """Names only: a value may be a secret."""
    if examined.variables:
        yield Finding(
            code="environment_settings",
            severity=Severity.NOTE,
            words="Variables of the environment change how llama.cpp runs, unseen.",
            evidence=f"Set: {', '.join(examined.variables)}.",
            next_step="Unset those you do not mean.",
        )


def slow_kind_of_disk(examined: Examination) -> Iterator[Finding]:
    for disk in examined.disks:
        kind = disk_kind(disk)
        if kind in _DISK_WORDS:
            code, severity, words, step = _DISK_WORDS[kind]
            yield Finding(
                code=code,
                severity=severity,
                words=f"{disk.path.name} lies on {words}.",
                evidence=_disk_evidence(disk, examined),
                next_step=step,
            )


def slow_disk(examined: Examination) -> Iterator[Finding]:
    """Far below its own class. A short read is mostly the waking of the drive."""
    for disk in examined.disks:
        kind, cold = disk_kind(disk), disk.cold_bytes_per_s
        if (disk.n_bytes_read or 0) < LEAST_BYTES_READ:
            continue
        if cold and kind in SLOW_DISK_BYTES_PER_S and cold < SLOW_DISK_BYTES_PER_S[kind]:
            name, (low, high) = disk_class(kind)
            usual = f"{format_bytes_per_s(low)} to {format_bytes_per_s(high)}"
            yield Finding(
                code="disk_slow",
                severity=Severity.WARNING,
                words=f"The drive that holds {disk.path.name} reads slower than its kind ({name}) does.",
                evidence=f"{_disk_evidence(disk, examined)} Usual is {usual}.",
                next_step="Look for other programs that use the drive, encryption, heat, and the slot it is in.",
            )


_LOCAL = "Copy the file to a drive of this machine, best an SSD."
_DISK_WORDS: dict[str, tuple[str, Severity, str, str]] = {
    "network": ("disk_network", Severity.WARNING, "a network drive, from which it loads slowly", _LOCAL),
    "wsl_mount": (
        "disk_wsl_mount",
        Severity.WARNING,
        "a Windows drive, which WSL reads slowly",
        "Copy the file into WSL's own file system, below your home folder.",
    ),
    "hdd": ("disk_hdd", Severity.WARNING, "a hard disk, from which it loads slowly", _LOCAL),
    "memory": (
        "disk_in_memory",
        Severity.NOTE,
        "a drive that is main memory, which it takes as long as it lies there",
        "Move it to a disk where memory gets short.",
    ),
}


def _disk_evidence(disk: Disk, examined: Examination) -> str:
    where = f"{disk.mount_point or disk.path} ({disk.filesystem or 'unknown file system'})"
    if not disk.cold_bytes_per_s:
        return f"{where}; its speed was not measured."
    load = ""
    if examined.file_bytes:
        load = (
            f": {format_bytes(examined.file_bytes)} take {format_seconds(examined.file_bytes / disk.cold_bytes_per_s)}"
        )
    return f"{where} reads {format_bytes_per_s(disk.cold_bytes_per_s)}{load}."


def _is_hot(examined: Examination) -> bool:
    """Whether heat is what slows a card: power that falls short slows it as well."""
    return any("thermal" in reason for gpu in examined.now.gpus for reason in gpu.throttle_reasons or ())


def _clocks(examined: Examination, kind: DisturbanceKind) -> str:
    """The clocks of the cards, for what says that one is held down."""
    if kind is not DisturbanceKind.GPU_THROTTLE:
        return ""
    clocks = [
        f"GPU {gpu.index} at {gpu.clock_mhz} of {gpu.most_clock_mhz} MHz"
        for gpu in examined.now.gpus
        if gpu.clock_mhz and gpu.most_clock_mhz
    ]
    return f" Clocks: {', '.join(clocks)}." if clocks else ""

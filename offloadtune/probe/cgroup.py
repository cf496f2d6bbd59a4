"""Limits that Linux control groups (version 2 and 1) set on this process: the tightest ancestor rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from offloadtune.probe.facts import parse_int
from offloadtune.probe.host import Door

MOUNT = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """One group's limit, and what it leaves free; page cache the kernel would drop first counts as free."""

    limit_bytes: int
    available_bytes: int


def memory_bounds(door: Door) -> tuple[MemoryBound, ...]:
    """The bound of each group that has one, this process's own group first."""
    bounds = (_memory_bound(door, folder) for folder in _folders(door, "memory"))
    return tuple(bound for bound in bounds if bound is not None)


def cpu_quota(door: Door) -> float | None:
    """CPUs' worth of time this process may use, None when unlimited."""
    quotas = (_cpu_quota(door, folder) for folder in _folders(door, "cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def cpu_shared(door: Door) -> tuple[float, float | None] | None:
    """The quota of `cpu_quota`, and the CPU seconds that all who share it have used, None where that is not told."""
    groups = [(quota, folder) for folder in _folders(door, "cpu") if (quota := _cpu_quota(door, folder)) is not None]
    if not groups:
        return None
    quota, folder = min(groups)
    used_us = _statistics(door.text(f"{folder}/cpu.stat") or "").get("usage_usec")
    used_ns = parse_int(door.text(f"{folder}/cpuacct.usage")) if used_us is None else used_us * 1000  # version 1
    return quota, None if used_ns is None else used_ns / 1e9


def group_folders(text: str, controller: str) -> tuple[str, ...]:
    """Folders that may hold a limit of `controller`, from the text of /proc/self/cgroup.

    Own group first, then its ancestors up to the mount. In a container the path may be the host's and exist only in
    part: that is why the ancestors, not the named folder alone, are the answer.
    """
    folders: list[str] = []
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            mount = f"{MOUNT}/{controller}"
        elif hierarchy == "0" and not controllers:
            mount = MOUNT
        else:
            continue
        parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
        folders += ["/".join((mount, *parts[:depth])) for depth in range(len(parts), -1, -1)]
    return tuple(folders)


def _folders(door: Door, controller: str) -> Iterator[str]:
    return iter(group_folders(door.text("/proc/self/cgroup") or "", controller))


def _memory_bound(door: Door, folder: str) -> MemoryBound | None:
    # above memory.high the kernel throttles instead of killing: for a benchmark as good as a wall
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for name in names if (limit := parse_int(door.text(f"{folder}/{name}"))) is not None]
    if not limits:
        return None
    usage = parse_int(door.text(f"{folder}/memory.current") or door.text(f"{folder}/memory.usage_in_bytes")) or 0
    statistics = _statistics(door.text(f"{folder}/memory.stat") or "")
    droppable = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    limit = min(limits)
    return MemoryBound(limit_bytes=limit, available_bytes=max(0, limit - max(0, usage - droppable)))


def _statistics(text: str) -> dict[str, int]:
    pairs = (line.partition(" ")[::2] for line in text.splitlines())
    return {name: number for name, value in pairs if (number := parse_int(value)) is not None}


def _cpu_quota(door: Door, folder: str) -> float | None:
    words = (door.text(f"{folder}/cpu.max") or "").split()
    if len(words) == 2:
        quota_us, period_us = (parse_int(word) for word in words)
    else:
        quota_us = parse_int(door.text(f"{folder}/cpu.cfs_quota_us"))
        period_us = parse_int(door.text(f"{folder}/cpu.cfs_period_us"))
    if not quota_us or not period_us or quota_us < 0 or period_us < 0:  # v1 writes -1, v2 "max", for unlimited
        return None
    return quota_us / period_us

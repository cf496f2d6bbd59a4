"""What bounds this process besides the machine: control groups and resource limits."""

from __future__ import annotations

from offloadtune.hardware import Limits
from offloadtune.probe.cgroup import MOUNT, cpu_quota, memory_bounds
from offloadtune.probe.host import Door, System
from offloadtune.records import Note


def read_limits(door: Door, system: System, total_bytes: int | None) -> tuple[Limits, tuple[Note, ...]]:
    """`total_bytes` is the machine's memory.

    A limit that leaves the whole machine is none: version 1 of the groups writes a huge number for "unlimited".
    """
    quota = cpu_quota(door)
    bounds = [bound.limit_bytes for bound in memory_bounds(door)]
    limits = Limits(
        memory_bytes=min((limit for limit in bounds if total_bytes is None or limit < total_bytes), default=None),
        cpus=quota if quota is not None and quota < len(system.allowed_cpus) else None,
        address_space_bytes=system.address_space_bytes,
        locked_bytes=system.locked_bytes,
    )
    return limits, _unseen_groups(door)


def _unseen_groups(door: Door) -> tuple[Note, ...]:
    if not door.text("/proc/self/cgroup") or door.names(MOUNT):
        return ()
    reason = f"Control groups are in use but not mounted at {MOUNT}: a limit they set is not seen."
    return tuple(Note(subject=f"limits.{field}", reason=reason) for field in ("memory_bytes", "cpus"))

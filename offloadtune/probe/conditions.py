"""What goes on in the machine now: `read_conditions() -> Conditions`, in a few milliseconds, and never an error.

Every part stands or falls alone; what cannot be read is None.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TypeVar

from offloadtune.conditions import Conditions
from offloadtune.probe import cards, power
from offloadtune.probe.cgroup import cpu_shared, group_folders
from offloadtune.probe.cpu import read_cpu
from offloadtune.probe.host import THIS_MACHINE, UNSEEN_PID, Door, Listener, Moment
from offloadtune.probe.load import cpu_times, our_cpu_s
from offloadtune.probe.ram import parse_meminfo

T = TypeVar("T")

_STALLED = re.compile(r"^some .*\btotal=([0-9]{1,18})$", re.MULTILINE)
_SWAPPED = re.compile(r"^pswp(?:in|out) ([0-9]{1,18})$", re.MULTILINE)
_EVERYWHERE = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - compared with, not bound to
_LOOPBACK = ("127.", "::1")


def read_conditions(ours: Sequence[int] = (), *, door: Door = THIS_MACHINE, with_gpus: bool = True) -> Conditions:
    """The machine at hand, or the recorded one `door` opens on.

    This process and `ours`, and all their children, are what measures; what they take disturbs nobody.
    """
    at_s = time.monotonic()
    seen = [pid for pid in ours if pid != UNSEEN_PID]
    cpus = _or_none(door.allowed_cpus) or ()
    stat = door.text("/proc/stat")
    moment = Moment() if stat is not None else _or_none(lambda: door.moment(seen)) or Moment()
    shared = _or_none(lambda: _shared(door, len(cpus)))
    times = _or_none(lambda: cpu_times(stat or "", cpus)) or (moment.busy_cpu_s, None)
    our_times = moment.our_cpu_s if stat is None else _or_none(lambda: our_cpu_s(door, seen))
    meminfo = parse_meminfo(door.text("/proc/meminfo") or "")
    governor, governed_by = _or_none(lambda: power.governor(door, cpus)) or (None, None)
    our_pids = {*ours, *(our_times or ())}
    return Conditions(
        at_s=at_s,
        n_cpus=shared[0] if shared else len(cpus) or 1,
        busy_cpu_s=shared[1] if shared else times[0],
        stolen_cpu_s=None if shared else times[1],
        ours_cpu_s=sum(our_times.values()) if our_times and UNSEEN_PID not in ours else None,
        swapped_bytes=_swapped_bytes(door, moment),
        memory_stall_s=_memory_stall_s(door),
        on_battery=_or_none(lambda: power.on_battery(door)) if moment.on_battery is None else moment.on_battery,
        power_profile=_or_none(lambda: power.power_profile(door, cpus)),
        governor=governor,
        gpus=(_or_none(lambda: cards.read_cards(door, our_pids)) or ()) if with_gpus else (),
        governed_by=governed_by,
        swap_total_bytes=meminfo.get("SwapTotal", moment.swap_total_bytes),
        swap_free_bytes=meminfo.get("SwapFree", moment.swap_free_bytes),
        n_cores=_or_none(lambda: _n_cores(door, cpus)),
    )


def local_servers(endpoints: Sequence[str], *, door: Door = THIS_MACHINE) -> tuple[int, ...]:
    """The processes that listen at those of `endpoints` (HOST:PORT) that are this machine.

    UNSEEN_PID is among them where one's process is not shown to this user.
    """
    wanted = [(host.strip("[]").lower(), port) for host, _, port in (one.rpartition(":") for one in endpoints)]
    if not wanted:
        return ()
    addresses = _or_none(door.addresses) or frozenset()
    names = {"localhost", *(_or_none(door.host_names) or ())}
    here = {(host, port) for host, port in wanted if port.isdecimal() and _is_here(host, {*names, *addresses})}
    if not here:
        return ()
    listeners = _or_none(door.listeners) or ()
    found = {end: {one.pid for one in listeners if _is_at(one, *end, is_name=end[0] in names)} for end in here}
    return tuple(sorted({pid for pids in found.values() for pid in pids or {UNSEEN_PID}}))


def _is_here(host: str, ours: Collection[str]) -> bool:
    return host.startswith(_LOOPBACK) or host in ours


def _is_at(listener: Listener, host: str, port: str, *, is_name: bool) -> bool:
    """A name is taken for each of this machine's addresses: to ask what it stands for may take seconds."""
    return str(listener.port) == port and (is_name or listener.address in {host, *_EVERYWHERE})


def _shared(door: Door, n_allowed: int) -> tuple[int, float | None] | None:
    """CPUs of a container's quota and the seconds that all in it used, None where no quota binds.

    The whole machine's seconds would be judged by a part of it. What the quota held back is not counted as stolen:
    our own threads may have used it up.
    """
    quota, busy_s = cpu_shared(door) or (n_allowed, 0.0)
    return (max(1, int(quota)), busy_s) if quota < n_allowed else None


@cache
def _n_cores(door: Door, cpus: tuple[int, ...]) -> int | None:
    """Of the CPUs allowed, which `cpus` says anew when that changes."""
    del cpus
    return read_cpu(door, door.system())[0].n_physical_cores


def _swapped_bytes(door: Door, moment: Moment) -> int | None:
    counts = _SWAPPED.findall(door.text("/proc/vmstat") or "")
    return sum(map(int, counts)) * door.page_bytes if counts else moment.swapped_bytes


def _memory_stall_s(door: Door) -> float | None:
    """Of this process's own group where it has one: the others' waiting is not ours."""
    folders = group_folders(door.text("/proc/self/cgroup") or "", "memory")
    paths = (*(f"{folder}/memory.pressure" for folder in folders), "/proc/pressure/memory")
    found = next((match for path in paths if (match := _STALLED.search(door.text(path) or ""))), None)
    return int(found[1]) / 1e6 if found else None


def _or_none(read: Callable[[], T]) -> T | None:
    """What watches a measurement must not end it, whatever a machine answers."""
    try:
        return read()
    except Exception:  # noqa: BLE001
        return None

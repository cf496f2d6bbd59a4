"""What goes on in the machine now: `read_conditions() -> Conditions`, in a few milliseconds, and never an error.

Every part stands or falls alone; what cannot be read is None.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from offloadtune.conditions import Conditions
from offloadtune.probe import cards, power
from offloadtune.probe.cgroup import group_folders
from offloadtune.probe.host import THIS_MACHINE, Door, Moment
from offloadtune.probe.load import cpu_times, our_cpu_s
from offloadtune.probe.ram import parse_meminfo, usable_memory

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
    cpus = _or_none(door.allowed_cpus) or ()
    stat = door.text("/proc/stat")
    moment = Moment() if stat is not None else _or_none(lambda: door.moment(ours)) or Moment()
    times = _or_none(lambda: cpu_times(stat or "", cpus)) or (moment.busy_cpu_s, None)
    our_times = moment.our_cpu_s if stat is None else _or_none(lambda: our_cpu_s(door, ours))
    meminfo = parse_meminfo(door.text("/proc/meminfo") or "")
    memory = _or_none(lambda: _memory(door, meminfo, moment)) or (None, None)
    governor, governed_by = _or_none(lambda: power.governor(door, cpus)) or (None, None)
    our_pids = {*ours, *(our_times or ())}
    return Conditions(
        at_s=at_s,
        n_cpus=len(cpus) or 1,
        busy_cpu_s=times[0],
        stolen_cpu_s=times[1],
        ours_cpu_s=sum(our_times.values()) if our_times else None,
        available_bytes=memory[1],
        total_bytes=memory[0],
        swapped_bytes=_swapped_bytes(door, moment),
        memory_stall_s=_memory_stall_s(door),
        on_battery=_or_none(lambda: power.on_battery(door)) if moment.on_battery is None else moment.on_battery,
        power_profile=_or_none(lambda: power.power_profile(door, cpus)),
        governor=governor,
        gpus=(_or_none(lambda: cards.read_cards(door, our_pids)) or ()) if with_gpus else (),
        governed_by=governed_by,
        swap_total_bytes=meminfo.get("SwapTotal", moment.swap_total_bytes),
        swap_free_bytes=meminfo.get("SwapFree", moment.swap_free_bytes),
    )


def local_servers(endpoints: Sequence[str], *, door: Door = THIS_MACHINE) -> tuple[int, ...]:
    """The processes that listen at those of `endpoints` (HOST:PORT) that are this machine; () where nobody tells."""
    wanted = [(host.strip("[]"), port) for host, _, port in (one.rpartition(":") for one in endpoints)]
    if not wanted:
        return ()
    addresses = _or_none(door.addresses) or frozenset()
    here = {(host, port) for host, port in wanted if host == "localhost" or _is_here(host, addresses)}
    if not here:
        return ()
    return tuple(
        sorted(
            {
                one.pid
                for one in _or_none(door.listeners) or ()
                for host, port in here
                if str(one.port) == port
                and (one.address in {host, *_EVERYWHERE} or (host == "localhost" and one.address.startswith(_LOOPBACK)))
            }
        )
    )


def _is_here(host: str, addresses: frozenset[str]) -> bool:
    return host.startswith(_LOOPBACK) or host in addresses


def _memory(door: Door, meminfo: Mapping[str, int], moment: Moment) -> tuple[int, int] | None:
    total_bytes = meminfo.get("MemTotal", moment.total_bytes)
    return usable_memory(door, total_bytes, meminfo.get("MemAvailable", moment.available_bytes))


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

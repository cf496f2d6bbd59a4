"""CPU time of everybody and of ours, from Linux's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offloadtune.probe.facts import parse_int
from offloadtune.probe.host import Door

TICKS_PER_S = 100
"""Linux counts CPU time for programs in this unit on every machine it still runs on, whatever its own clock."""

_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq; the time of guests is in user and nice already
_STOLEN = 7
_PARENT, _OWN_AND_WAITED = 1, slice(11, 15)  # counted from the field after the name: utime stime cutime cstime


def cpu_times(text: str, cpus: Sequence[int]) -> tuple[float, float] | None:
    """Busy and stolen seconds of `cpus`, from the text of /proc/stat; None where it does not list them.

    In a container its lines may be numbered anew: as many lines as there are allowed CPUs are those.
    """
    lines = (line.split() for line in text.splitlines() if line.startswith("cpu"))
    ticks = {parse_int(words[0][3:]): [parse_int(word) or 0 for word in words[1:]] for words in lines}
    rows = {cpu: row for cpu, row in ticks.items() if cpu is not None and len(row) > _STOLEN}
    if not set(cpus) <= rows.keys():
        if len(rows) != len(cpus):
            return None
        cpus = [cpu for cpu in rows if cpu is not None]
    if not cpus:
        return None
    busy = sum(rows[cpu][i] for cpu in cpus for i in _BUSY)
    return busy / TICKS_PER_S, sum(rows[cpu][_STOLEN] for cpu in cpus) / TICKS_PER_S


def our_cpu_s(door: Door, ours: Sequence[int]) -> Mapping[int, float]:
    """CPU seconds of this process, of `ours` and of their children; a child that ended stands with its parent."""
    own = parse_int((door.text("/proc/self/stat") or "").partition(" ")[0])
    roots = {pid for pid in (own, *ours) if pid is not None}
    lists_children = own is not None and door.text(f"/proc/{own}/task/{own}/children") is not None
    found = _by_children(door, roots) if lists_children else _by_parents(door, roots)
    return {pid: sum(fields[_OWN_AND_WAITED]) / TICKS_PER_S for pid, fields in found.items()}


def parse_process(text: str | None) -> tuple[int, ...] | None:
    """The numbers behind the name in /proc/PID/stat, the state as 0; a name may hold anything, brackets too."""
    fields = (text or "").rpartition(")")[2].split()
    numbers = tuple(parse_int(field) or 0 for field in fields)
    return numbers if len(numbers) >= _OWN_AND_WAITED.stop else None


def _by_children(door: Door, roots: set[int]) -> dict[int, tuple[int, ...]]:
    """By the kernel's list of each thread's children, where it was built with one: the rest is not looked at."""
    found, waiting = {}, set(roots)
    while waiting:
        pid = waiting.pop()
        fields = parse_process(door.text(f"/proc/{pid}/stat"))
        if fields is None:
            continue
        found[pid] = fields
        lists = (door.text(f"/proc/{pid}/task/{thread}/children") for thread in door.names(f"/proc/{pid}/task"))
        children = {parse_int(word) for text in lists for word in (text or "").split()}
        waiting |= {child for child in children if child is not None and child not in found}
    return found


def _by_parents(door: Door, roots: set[int]) -> dict[int, tuple[int, ...]]:
    """By the parent of every process there is."""
    pids = (parse_int(name) for name in door.names("/proc"))
    read = {pid: parse_process(door.text(f"/proc/{pid}/stat")) for pid in pids if pid is not None}
    processes = {pid: fields for pid, fields in read.items() if fields is not None}
    found, n_before = {pid for pid in roots if pid in processes}, -1
    while len(found) > n_before:
        n_before = len(found)
        found |= {pid for pid, fields in processes.items() if fields[_PARENT] in found}
    return {pid: processes[pid] for pid in found}

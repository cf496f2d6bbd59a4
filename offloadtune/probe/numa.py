"""Memory nodes and the CPUs next to each, from /sys/devices/system/node."""

from __future__ import annotations

import re

from offloadtune.hardware import NumaNode
from offloadtune.probe.facts import Fact, parse_cpu_list
from offloadtune.probe.host import Door
from offloadtune.records import Note

NODE_FOLDER = "/sys/devices/system/node"

_NODE = re.compile(r"node(\d{1,5})")
_TOTAL = re.compile(r"^Node \d+ MemTotal:\s+(\d{1,15}) kB\s*$", re.MULTILINE)


def read_numa_nodes(door: Door) -> Fact[tuple[NumaNode, ...]]:
    """The nodes in their order. One without CPUs is memory further away, such as on a CXL card."""
    indices = sorted(int(match[1]) for name in door.names(NODE_FOLDER) if (match := _NODE.fullmatch(name)))
    nodes = tuple(_read_node(door, index) for index in indices)
    return nodes or Note(subject="memory.numa_nodes", reason="The operating system lists no memory nodes.")


def _read_node(door: Door, index: int) -> NumaNode:
    folder = f"{NODE_FOLDER}/node{index}"
    total = _TOTAL.search(door.text(f"{folder}/meminfo") or "")
    return NumaNode(
        index=index,
        cpus=parse_cpu_list(door.text(f"{folder}/cpulist")),
        total_bytes=int(total[1]) * 1024 if total else None,
    )

"""The computer, read without root and without the engine: `probe_host() -> Host`, `read_conditions() -> Conditions`.

host.py       Door: the only place that asks the operating system, psutil or NVML, or replays a recorded machine
facts.py      a fact is a value or the Note that says why there is none
cgroup.py     limits a container sets          cpu.py  ram.py  gpu.py    text from the door -> records
bandwidth.py  reads memory by many threads (the only importer of numpy, loaded when measuring)
inventory.py  probe_host: all of it, in order
conditions.py read_conditions: what goes on now   load.py  power.py  cards.py   its parts
"""

from offloadtune.probe.conditions import local_servers, read_conditions
from offloadtune.probe.host import THIS_MACHINE, Door
from offloadtune.probe.inventory import probe_host

__all__ = ["THIS_MACHINE", "Door", "local_servers", "probe_host", "read_conditions"]

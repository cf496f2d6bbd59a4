"""The computer as it stands, read without root and without the engine: `probe_host() -> Host`.

host.py       Door: the only place that asks the operating system, psutil or NVML, or replays a recorded machine
facts.py      a fact is a value or the Note that says why there is none
cgroup.py     limits a container sets          cpu.py  ram.py  gpu.py    text from the door -> records
bandwidth.py  reads memory by many threads (the only importer of numpy, loaded when measuring)
inventory.py  probe_host: all of it, in order
"""

from offloadtune.probe.host import THIS_MACHINE, Door
from offloadtune.probe.inventory import probe_host

__all__ = ["THIS_MACHINE", "Door", "probe_host"]

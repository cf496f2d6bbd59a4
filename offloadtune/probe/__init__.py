"""The computer, read without root and without the engine.

`probe_host() -> Host`, `read_hardware() -> Hardware`, `read_conditions() -> Conditions`.

host.py       Door: the only place that asks the operating system, psutil or NVML, or replays a recorded machine
facts.py      a fact is a value or the Note that says why there is none
cgroup.py     limits a container sets          cpu.py  ram.py  gpu.py    text from the door -> records
bandwidth.py  reads memory by many threads (the only importer of numpy, loaded when measuring)
inventory.py  probe_host: all of it, in order
hardware.py   read_hardware: the machine in depth
modules.py    who tells of memory modules      dmi.py  channels.py  memory.py  numa.py    what that says of memory
cores.py      instructions.py  limits.py  surroundings.py    the other parts of it
gpu_hardware.py  every GPU, by  nvidia.py nvml.py  amd.py drm.py  apple.py  windows_gpus.py    its maker or its system
links.py      Links: the cards' links, asked again while data moves
disk.py       what a file lies on and how fast it is read
conditions.py read_conditions: what goes on now   load.py  power.py  cards.py   its parts
sleeping.py   how long it was suspended
recording.py  this machine written down, so that Door replays it
"""

from offloadtune.probe.conditions import local_servers, read_conditions
from offloadtune.probe.hardware import read_hardware
from offloadtune.probe.host import THIS_MACHINE, Door
from offloadtune.probe.instructions import engine_instruction_sets
from offloadtune.probe.inventory import probe_host
from offloadtune.probe.sleeping import slept_s

__all__ = [
    "THIS_MACHINE",
    "Door",
    "engine_instruction_sets",
    "local_servers",
    "probe_host",
    "read_conditions",
    "read_hardware",
    "slept_s",
]

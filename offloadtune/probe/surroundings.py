"""What the system runs inside: Windows' Linux, a container, a virtual machine."""

from __future__ import annotations

import re
from collections.abc import Collection

from offloadtune.hardware import UNNAMED_HYPERVISOR, Surroundings
from offloadtune.probe.facts import parse_int, printable
from offloadtune.probe.host import Door, System
from offloadtune.records import Note

_PORTABLE = {8, 9, 10, 11, 14, 30, 31, 32}
"""SMBIOS's types of chassis: portable, laptop, notebook, handheld, sub-notebook, tablet, convertible, detachable."""

_UNTOLD_CHASSIS = {1, 2}  # other, unknown

DMI_FOLDER = "/sys/class/dmi/id"

_GROUPS = (
    ("kubernetes", re.compile(r"/kubepods")),
    ("docker", re.compile(r"/docker(?:/|-[0-9a-f]{12,}\.scope)")),
    ("podman", re.compile(r"/libpod[_-]")),
    ("lxc", re.compile(r"/lxc(?:/|\.payload)")),
)
_FILES = (("docker", "/.dockerenv"), ("podman", "/run/.containerenv"))

_MACHINES = (  # maker and product in the firmware's words; Amazon rents out whole machines as well
    ("vmware", re.compile(r"VMware", re.IGNORECASE)),
    ("virtualbox", re.compile(r"VirtualBox", re.IGNORECASE)),
    ("hyperv", re.compile(r"Microsoft.* Virtual Machine", re.IGNORECASE)),
    ("xen", re.compile(r"\bXen\b", re.IGNORECASE)),
    ("parallels", re.compile(r"Parallels", re.IGNORECASE)),
    ("bhyve", re.compile(r"bhyve", re.IGNORECASE)),
    ("kvm", re.compile(r"\bKVM\b|QEMU|Amazon EC2 (?!\S*metal)|Google Compute Engine|OpenStack", re.IGNORECASE)),
)


def read_surroundings(door: Door, system: System, flags: Collection[str]) -> tuple[Surroundings, tuple[Note, ...]]:
    """By files and by the CPU's `flags`. A Note says where it could not be asked."""
    kernel = f"{door.text('/proc/sys/kernel/osrelease') or ''} {door.text('/proc/version') or ''}".lower()
    is_wsl = system.name == "Linux" and "microsoft" in kernel
    surroundings = Surroundings(
        is_wsl=is_wsl,
        container=_container(door),
        hypervisor="hyperv" if is_wsl else _hypervisor(door, flags),
        is_portable=_is_portable(door),
    )
    if system.name == "Linux":
        return surroundings, ()
    reason = f"{system.name} is not asked whether it runs in a virtual machine."
    return surroundings, (Note(subject="surroundings.hypervisor", reason=reason),)


def _is_portable(door: Door) -> bool | None:
    chassis = parse_int(door.text(f"{DMI_FOLDER}/chassis_type"))
    return None if chassis is None or chassis in _UNTOLD_CHASSIS else chassis in _PORTABLE


def _container(door: Door) -> str | None:
    if door.names("/run/secrets/kubernetes.io"):
        return "kubernetes"
    groups = f"{door.text('/proc/self/cgroup') or ''}\n{door.text('/proc/1/cgroup') or ''}"
    by_group = next((name for name, pattern in _GROUPS if pattern.search(groups)), None)
    by_file = next((name for name, path in _FILES if door.text(path) is not None), None)
    by_systemd = printable(door.text("/run/systemd/container"))
    return by_group or by_file or (None if by_systemd == "wsl" else by_systemd)


def _hypervisor(door: Door, flags: Collection[str]) -> str | None:
    """By what the firmware calls the machine, and by the flag that x86 shows inside of one nobody names."""
    words = " ".join((door.text(f"{DMI_FOLDER}/{name}") or "").strip() for name in ("sys_vendor", "product_name"))
    named = next((name for name, pattern in _MACHINES if pattern.search(words)), None)
    kind = named or printable(door.text("/sys/hypervisor/type"))
    return kind or (UNNAMED_HYPERVISOR if "hypervisor" in flags else None)

"""Find the llama.cpp settings that serve a GGUF model best on this machine, by measuring them.

The map, in the order of a sweep (each arrow is one stage, each stage one module or package):

    machine --probe--> Host          file --gguf--> GgufFacts        engine --hello--> Device, EngineBuild
        Workload + Goal + budget --search--> Trial --engine--> TrialResult --store--> journal
        TrialResult --stats, recommend--> Recommendation --export--> profile, snippet, command --report--> screen
        a model's name --catalogue, gguf.standin--> a file with random weights, measured as any other and marked
    machine --probe, engine--> MachineProfile --doctor--> Finding          folders --shelves--> Listing
        GgufFacts + Settings + Rig --speed--> Prediction; each TrialResult is a Run that teaches the law

Floors, enforced by tests/test_floors.py; a module imports only what stands below it,
words nothing but the standard library:

    0  units errors records sweeps recalls plans workloads conditions hardware rows benches trends speeds listings  base
    1  stats lengths interference bench footprint speed search recommend doctor    judgement: pure functions of records
    1  probe gguf catalogue engine store export report install serve logs shelves    hands: touch the world, never judge
    2  pipeline    the conductor: knows both wings
    3  cli    the face

Importing this package loads no engine, no NVML and no command line; the names of `__all__` load what they need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offloadtune.errors import OffloadTuneError
    from offloadtune.gguf import read_gguf
    from offloadtune.pipeline import sweep
    from offloadtune.records import WORKLOADS, Goal, Limits, Settings, Target, Workload
    from offloadtune.sweeps import SweepReport, SweepRequest

__version__ = "0.1.0"

__all__ = [
    "WORKLOADS",
    "Goal",
    "Limits",
    "OffloadTuneError",
    "Settings",
    "SweepReport",
    "SweepRequest",
    "Target",
    "Workload",
    "read_gguf",
    "sweep",
]

_HOMES = {"OffloadTuneError": "errors", "SweepReport": "sweeps", "SweepRequest": "sweeps", "read_gguf": "gguf"}


def __getattr__(name: str) -> Any:
    """A public name, imported from its home when it is first asked for."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    home = "pipeline" if name == "sweep" else _HOMES.get(name, "records")
    return getattr(import_module(f"{__name__}.{home}"), name)

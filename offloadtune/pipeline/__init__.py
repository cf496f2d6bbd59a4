"""The conductor: probe -> plan -> run -> store -> recommend -> export. The only package that knows both wings.

probing      the machine, the engine's devices, a header
linking      what a card's link does while data moves
examining    what holds the machine back, and the machine written down
planning     what settings take, before anything is loaded
questions    what is planned, and the arithmetic around it
expecting    how fast it should be
helping      what would help most
here         the same on this machine's own devices
batches      the same for every line of a file
foretelling  what the engine itself says of them
rooms        cards to plan on, by name
rigs         what they, or this machine, can do at best
companions   a draft model or a projector beside it
shapes       a model by name instead of by file
standing_in  a file with its shape and random weights
standin_sweeping  a sweep of such a file
depths       or of two with fewer layers, and what they say of the whole
surroundings the memory that it will find
calibrating  what trials taught of the devices
calibrating_speed  the few runs that teach the law of this machine's speed most
speed_memory what runs showed of it
foresight    what a sweep expects of a trial's speed, for as long as that proves right
sweeping     one sweep from its checks to its answer
checking     what cannot be measured is refused first
lacking      limits of memory that nothing keeps, and what would help where nothing runs
diverging    what a coarser cache does to the answers
measuring    one sweep under way: self-test, trials, rounds side by side
heading      what it was begun with
living       what the engine build needs to live
taking       device memory that others take meanwhile, or give back
ending       why it ends, and when
resuming     what the same sweep measured before
spaces       what it may try
reaching     what stands between the engine and a card
rebuilding   when another engine build would do more
guarding     when the file itself is not, or no longer, what can be measured
answering    its report and profile, or why there is none
recalling    the stored sweep that answers a question
likeness     whether it was made on what is here now
missing      what has to be measured where none answers
using        its answer again, its settings as text, and the target's own server started with them
summing      all journals, in short
benching     one run of the fixed script
choosing     which settings it measures
loading      how long the file takes to load, cold and warm
warming      whether an engine build ran here before
trending     runs of a bench kept, and what they say over time
staling      profiles that were made on something else than is here now
gathering    a workload from a log of real requests
undisturbed  trials measured again when something else ran
watching     what else went on in the machine meanwhile
listing      the GGUF files on this machine, and how much of each its devices hold
naming       the file that a word means where it is no path
rows         llama-bench's tests, and the rows of others
interrupts   when Ctrl-C must wait

Each name of `__all__` loads what it needs when it is first asked for: a plan is not to wait for what only sweeps use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offloadtune.pipeline.batches import plan_lines
    from offloadtune.pipeline.benching import bench_file
    from offloadtune.pipeline.calibrating_speed import calibrate
    from offloadtune.pipeline.examining import diagnose, keep_machine
    from offloadtune.pipeline.gathering import gather_workload
    from offloadtune.pipeline.listing import list_files
    from offloadtune.pipeline.naming import resolve
    from offloadtune.pipeline.planning import plan
    from offloadtune.pipeline.probing import cache_cost, crash_path, inspect, probe, probe_machine, standing_here
    from offloadtune.pipeline.rows import bench_rows, import_rows, render_rows, stored_rows
    from offloadtune.pipeline.shapes import card_names, quant_names, shape_names
    from offloadtune.pipeline.standin_sweeping import sweep_standin
    from offloadtune.pipeline.standing_in import StandinRequest, write_standin
    from offloadtune.pipeline.summing import history
    from offloadtune.pipeline.sweeping import sweep
    from offloadtune.pipeline.trending import check_trends, keep_run, trends
    from offloadtune.pipeline.using import export_stored, recommend_stored, serve_stored, server_command, write_export

__all__ = [
    "StandinRequest",
    "bench_file",
    "bench_rows",
    "cache_cost",
    "calibrate",
    "card_names",
    "check_trends",
    "crash_path",
    "diagnose",
    "export_stored",
    "gather_workload",
    "history",
    "import_rows",
    "inspect",
    "keep_machine",
    "keep_run",
    "list_files",
    "plan",
    "plan_lines",
    "probe",
    "probe_machine",
    "quant_names",
    "recommend_stored",
    "render_rows",
    "resolve",
    "serve_stored",
    "server_command",
    "shape_names",
    "standing_here",
    "stored_rows",
    "sweep",
    "sweep_standin",
    "trends",
    "write_export",
    "write_standin",
]

_HOMES = {
    "StandinRequest": "standing_in",
    "bench_file": "benching",
    "bench_rows": "rows",
    "cache_cost": "probing",
    "calibrate": "calibrating_speed",
    "card_names": "shapes",
    "check_trends": "trending",
    "crash_path": "probing",
    "diagnose": "examining",
    "gather_workload": "gathering",
    "history": "summing",
    "import_rows": "rows",
    "inspect": "probing",
    "keep_machine": "examining",
    "keep_run": "trending",
    "list_files": "listing",
    "plan": "planning",
    "plan_lines": "batches",
    "probe": "probing",
    "probe_machine": "probing",
    "quant_names": "shapes",
    "render_rows": "rows",
    "resolve": "naming",
    "shape_names": "shapes",
    "standing_here": "probing",
    "stored_rows": "rows",
    "sweep": "sweeping",
    "sweep_standin": "standin_sweeping",
    "trends": "trending",
    "write_standin": "standing_in",
}
"""Modules of the names above; the others are in `using`."""


def __getattr__(name: str) -> Any:
    """A public name, imported from its home when it is first asked for."""
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'using')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

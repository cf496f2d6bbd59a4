"""The engine: trials in a child process, because what is tried may crash, hang or be killed.

`Runner` runs trials and asks what settings would take; it is built on `placing`, which loads placements and frees them,
and that on `holding`: what needs no file (which devices there are, what each moves); `WorkerProcess` owns the child;
`classify` reads its remains; `self_test` looks for what keeps a broken build alive; `installed_build_id` tells builds
apart, loading none. `engine.synthetic` simulates all of it and is imported by that name alone: no sweep needs it.
Rejected: a process for every trial (a load each), a process for the whole sweep (the first crash ends it), threads
(an abort takes us down).
"""

from offloadtune.engine.abreast import Abreast
from offloadtune.engine.anchor import AnchorProcess
from offloadtune.engine.build import installed_build_id
from offloadtune.engine.classify import classify, is_gone, refused_file
from offloadtune.engine.osdoor import cached_frac, drop_cached
from offloadtune.engine.process import WORKER_COMMAND, WorkerDiedError, WorkerProcess, WorkerRefusedError
from offloadtune.engine.ruler import RulerFailedError, RulerRep, RulerTest
from offloadtune.engine.runner import OpenedTrial, Runner, TrialFailedError, VisitPlan
from offloadtune.engine.selftest import SelfTest, self_test

__all__ = [
    "WORKER_COMMAND",
    "Abreast",
    "AnchorProcess",
    "OpenedTrial",
    "RulerFailedError",
    "RulerRep",
    "RulerTest",
    "Runner",
    "SelfTest",
    "TrialFailedError",
    "VisitPlan",
    "WorkerDiedError",
    "WorkerProcess",
    "WorkerRefusedError",
    "cached_frac",
    "classify",
    "drop_cached",
    "installed_build_id",
    "is_gone",
    "refused_file",
    "self_test",
]

"""The real worker with trouble in its forecasts. Started like it, plus the kind of trouble first.

    python foreign_worker.py HOW ENDPOINT...

HOW: `unreadable`, `wrong_weights`, `wrong_compute`: another compiler laid out the C++ objects; `segfault`: and reading
them is death. A SIGNAL strikes in a context of 768 cells; `maps` lets the engine map the file, of which it aborts;
`forgets` takes the tensors that were asked to stay on the host for refused ones.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from offloadtune.engine.worker import __main__ as worker
from offloadtune.engine.worker import native, placed, tensor_map

how = sys.argv[1]
_read, _refused = native.buffer_breakdown, placed.refused_tensors


def read(context: Any) -> list[tuple[str, dict[str, Any]]] | None:
    if how == "segfault" or (how.startswith("SIG") and native.low.llama_n_ctx(context) == 768):
        os.kill(os.getpid(), signal.Signals[how if how.startswith("SIG") else "SIGSEGV"])
    rows = None if how == "unreadable" else _read(context)
    if rows is None or not how.startswith("wrong"):
        return rows
    field = f"{how.removeprefix('wrong_')}_bytes"
    return [(name, {**row, field: row[field] // 2}) for name, row in rows]


def forgetful(tensors: Any, layer_devices: Any, device_of: Any, _kept: str | None) -> list[dict[str, Any]]:
    return _refused(tensors, layer_devices, device_of, None)


native.buffer_breakdown = read
if how == "unreadable":
    tensor_map.placed_tensors = lambda _loaded: None  # type: ignore[assignment]
if how == "forgets":
    placed.refused_tensors = forgetful  # type: ignore[assignment]
if how == "maps":
    native.LOAD_MODES["none"] = native.LOAD_MODES["mmap"]
worker.main(sys.argv[2:])

"""A worker that dies on order: the real one, with one real signal in it. Started like it, plus a condition first.

    python faulty_worker.py CONDITION SIGNAL ENDPOINT...

CONDITION is a Python expression over the settings `s` of the open context; where it holds, decoding raises SIGNAL.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from offloadtune.engine.worker import __main__ as worker
from offloadtune.engine.worker import session

condition, signal_name = sys.argv[1:3]
_open, _load = session.Session.open, session.Session.load
_settings: dict[str, Any] = {}


def load(self: session.Session, path: str, settings: dict[str, Any]) -> dict[str, Any]:
    _settings.update(settings)
    return _load(self, path, settings)


def open_(self: session.Session, loaded: int, settings: dict[str, Any], arguments: Any = None) -> dict[str, Any]:
    _settings.update(settings)
    return _open(self, loaded, settings, arguments)


def dying(decode: Any) -> Any:
    def decode_or_die(*args: Any) -> None:
        if eval(condition, {"s": _settings}):  # noqa: S307 - the test's own expression
            os.kill(os.getpid(), signal.Signals[signal_name])
        decode(*args)

    return decode_or_die


session.Session.load, session.Session.open = load, open_  # type: ignore[method-assign]
session.Session._decode = dying(session.Session._decode)  # type: ignore[method-assign]
worker.main(sys.argv[3:])
